"""Names, formats of arrays, checksums and atomic commits."""
