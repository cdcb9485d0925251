"""One shard through one device; the only importer of cupy.

A plan and a shard's number come in; a product file and its receipt go out.
"""
