"""Names, formats of arrays, checksums and atomic commits.

Paths and arrays come in; bytes on disk go out. This room knows no plan.
"""
