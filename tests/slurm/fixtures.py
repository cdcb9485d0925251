"""The pytest fixture `slurm`: one real Slurm cluster for the whole session."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster, SlurmError
from tests.slurm.packages import PackagesError


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """Yield a running cluster; where there can be none, skip with the reason, or fail in CI."""
    with contextlib.ExitStack() as stack:
        try:
            run_dir = stack.enter_context(_run_dir())
            cluster = stack.enter_context(SlurmCluster().start(run_dir))
        except (PackagesError, SlurmError) as error:
            refuse = pytest.fail if os.environ.get("CI") else pytest.skip
            refuse(f"no Slurm test cluster here: {error}")
        yield cluster


@contextlib.contextmanager
def _run_dir() -> Iterator[Path]:
    """Yield a run folder that no other test session uses.

    The folders have fixed names, so that a session that crashed is cleaned up after by the next
    one, and lie in the temporary folder, as a checkout's path may be too long for the sockets.
    """
    base = Path(tempfile.gettempdir()) / f"shardwise-slurm-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise SlurmError(f"{base} belongs to somebody else: set TMPDIR to a folder of your own")
    for number in itertools.count():
        with (base / f"{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # another session's
            yield base / str(number)
            return
