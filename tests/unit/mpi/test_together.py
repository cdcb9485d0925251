"""What ranks do together: an error of one is raised on all, of the class that a stage alone has."""

import errno

import pytest
from shardwise.errors import InputError, IntegrityError, TryAgain
from shardwise.mpi.together import agree


@pytest.mark.parametrize(("error", "kind", "words"), [
    (PermissionError(errno.EACCES, "Permission denied", "x.npy"), InputError, "denied: 'x.npy'$"),
    (BlockingIOError(errno.EAGAIN, "no fork"), TryAgain, "no more threads or processes"),
    (OSError(errno.ENOSPC, "No space left"), TryAgain, "make room on the disk"),
    (IntegrityError("x.npy is damaged"), IntegrityError, "^x.npy is damaged$"),
])  # fmt: skip
def test_errors_of_the_system_are_those_of_other_stages(error, kind, words):
    """A file that may not be read is the user's fault, for one rank as for a stage without MPI."""
    from mpi4py import MPI

    def work() -> None:
        raise error

    with pytest.raises(kind, match=words):
        agree(MPI.COMM_SELF, work)
