"""What a file is, by its first bytes, if it is not what its name promises. No libraries."""

from pathlib import Path

_UNPACK = "unpack it and name its contents"
_SIGNATURES = (
    (b"\x93NUMPY", "a .npy file; let its name end in .npy"),
    (b"\x89HDF", "an HDF5 file; let its name end in .h5 and add the dataset: run.h5:/x"),
    (b"PK\x03\x04", f"a zip archive, such as a .npz file or a zipped store of Zarr; {_UNPACK}"),
    (b"\x1f\x8b", f"compressed by gzip; {_UNPACK}"),
)


def kind_of(head: bytes) -> str | None:
    """The kind of file that begins with these bytes, and what to do about it; None if unknown."""
    return next((f"is {words}" for first, words in _SIGNATURES if head.startswith(first)), None)


def kind_of_file(path: Path) -> str | None:
    """As :func:`kind_of`, for a file that is not a pipe."""
    with open(path, "rb") as file:
        return kind_of(file.read(8))
