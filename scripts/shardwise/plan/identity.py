"""Whether an input file has changed since it was planned, or since its first byte was read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.errors import changed
from shardwise.files import remote
from shardwise.files.extents import Status
from shardwise.files.formats import registry
from shardwise.plan.plan import Source


def identity_of(status: Status) -> str:
    """The identity of an input file in the plan: ``size:modified:changed``, times in ns.

    Of an object it is ``size:ETag``, of a Zarr array a digest of these for all chunks. Device and
    inode are left out: nodes, or file systems such as FUSE, may tell others.
    """
    if isinstance(status, remote.Status):
        return f"{status.size}:{status.etag}"
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def is_as_planned(source: Source, status: Status) -> bool:
    """Whether a file has the identity in the plan; True if the plan has no identity of a file."""
    planned = source.identity
    return not planned[:1].isdigit() or planned == identity_of(status)


class InputFiles:
    """The input files that a stage reads, each as it was before its first byte was read."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int | str, ...]] = {}

    def note(self, path: str, status: Status) -> None:
        """Note a file that is going to be read; if it was noted before, :meth:`compare` it."""
        self._first.setdefault(path, state_of(status))
        self.compare(path, status)

    def compare(self, path: str, status: Status) -> None:
        """Refuse a file that has changed since it was noted; serves as `extents.Opened`."""
        if path in self._first and self._first[path] != state_of(status):
            raise changed(path)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context for all reads; IntegrityError at its end if one of the files has changed.

        This also replaces a failure, which the change may have caused.
        """
        try:
            yield
        except Exception:
            self._compare_all()
            raise
        self._compare_all()

    def _compare_all(self) -> None:
        for path, first in list(self._first.items()):
            try:
                if not isinstance(first, remote.Status):
                    # NFS caches the status of a file for seconds, but revalidates it on open.
                    with open(path, "rb", buffering=0) as file:
                        self.compare(path, os.fstat(file.fileno()))
                elif not path.endswith(".npy"):  # each range of a .npy object was compared
                    self.compare(path, registry.status_of(path))
            except (FileNotFoundError, NotADirectoryError) as error:  # it has disappeared
                raise changed(path) from error


def state_of(status: Status) -> tuple[int | str, ...]:
    """Values that differ between any two files, and before and after a file is written to."""
    if isinstance(status, remote.Status):
        return status
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip
