"""What a file is, by its first bytes, if it is not what its name promises. No libraries."""

from pathlib import Path

HEAD_BYTES = 8
_UNPACK = "unpack it and name its contents"
_SIGNATURES = (
    (b"\x93NUMPY", "a .npy file; let its name end in .npy"),
    (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file; let its name end in .h5 and add the dataset: run.h5:/x",
    ),
    (b"PK\x03\x04", f"a zip archive, such as a .npz file or a zipped store of Zarr; {_UNPACK}"),
    (b"\x1f\x8b", f"compressed by gzip; {_UNPACK}"),
    (b"CDF", "a netCDF file of the classic format; convert it to netCDF-4: nccopy -k nc4 IN OUT"),
    (b"MATLAB 5", "a MATLAB file of an old version; save it in MATLAB with '-v7.3', which is HDF5"),
    (b"\x0e\x03\x13\x01", "an HDF4 file; convert it to HDF5: h4toh5 IN OUT"),
    (b"\0\5\x16\7", "a Mac's extra data about a file (AppleDouble), not the file; leave it out"),
)


def kind_of(head: bytes) -> str | None:
    """The kind of file that begins with these bytes, and what to do about it; None if unknown."""
    return next((f"is {words}" for first, words in _SIGNATURES if head.startswith(first)), None)


def kind_of_file(path: Path) -> str | None:
    """As :func:`kind_of`, for a file that is not a pipe; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return kind_of(file.read(HEAD_BYTES))
    except OSError:
        return None
