"""How bytes are cut: the pieces that checksums are made of."""

from shardwise.units import MIB

PART_BYTES = 4 * MIB  # what a thread reads or writes at once: it stays in a cache
# The most that is hashed at once: it stays in a cache, and several readers can share a row. A rank
# of the reduce holds the sums of one piece: 2**18 numbers at most, whatever their bytes.
CHECKSUM_PIECE_BYTES, CHECKSUM_PIECE_NUMBERS = MIB, 2**18
_ALIGNED = 16  # a multiple of the bytes of every element type


def checksum_pieces(row_bytes: int, item: int = 8) -> tuple[int, int]:
    """Bytes of a row and of a piece of the checksum of a file (see `checksum.PieceChecksum`).

    As many arrays as fit in :data:`CHECKSUM_PIECE_BYTES` form a row of one piece; a longer array is
    a row, in pieces of about one size. So no piece mixes parts of two arrays, and none is short
    (see xxh3.py). Numbers (of ``item`` bytes) narrower than float32 make shorter pieces.
    """
    row, most = max(1, row_bytes), min(CHECKSUM_PIECE_BYTES, CHECKSUM_PIECE_NUMBERS * item)
    if row > most:
        count = -(-row // most)
        return row, -(-row // (count * _ALIGNED)) * _ALIGNED
    group = most // row * row
    return group, group
