"""Names, ``.npy``, checksums, atomic commits and direct I/O.

Paths and arrays come in; bytes on disk go out. This room knows no plan.
"""
