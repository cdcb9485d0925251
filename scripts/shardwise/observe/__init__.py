"""Shows a results folder from its files alone: watch, page, metrics, verify; changes no run."""
