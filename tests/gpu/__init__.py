"""Tests of the products on a real GPU, and of whole runs over all GPUs of a machine."""
