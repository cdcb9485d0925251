"""What a user without a scheduler types after the plan: the shards, the ledger, the sum.

    python -m tests.faults.tasks PLAN jobs|pool|mpi RANKS

Run in a copy of the project, whose scripts it uses. Under `jobs` each missing shard is a process of
its own; all are forks of this one, which spares the starts of Python. The exit code is the first
that is not 0; the ledger waits for all shards, the reduce for the ledger.
"""

import os
import runpy
import sys
from pathlib import Path

SCRIPTS = Path.cwd() / "scripts"


def main() -> int:
    """Compute what is missing, and sum."""
    file, dispatch, ranks = sys.argv[1:]
    if dispatch == "jobs":
        codes = [_forked("multiply", "--plan", file, "--shard", shard) for shard in _missing(file)]
        code = next(filter(None, codes), 0)
    else:
        own = ("--ranks", ranks) if dispatch == "mpi" else ()
        code = _started("dispatch", "--plan", file, "--dispatch", dispatch, *own)
    code = code or _forked("ledger", "--plan", file)
    return code or _started("reduce", "--plan", file, "--ranks", ranks)


def _missing(file: str) -> list[str]:
    """The shards without a whole product."""
    from shardwise.multiply import session  # noqa: F401 - imported once, for all forks
    from shardwise.plan import plan
    from shardwise.records import missing

    return missing.list_missing(plan.load(Path(file)))


def _forked(script: str, *words: str) -> int:
    """Run a script in a fork, as from its command line; returns its exit code."""
    if pid := os.fork():
        return _end(pid)
    sys.argv = [str(SCRIPTS / f"{script}.py"), *words]
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


def _started(script: str, *words: str) -> int:
    """Run a script in a Python of its own; returns its exit code."""
    line = [sys.executable, str(SCRIPTS / f"{script}.py"), *words]
    return _end(os.spawnv(os.P_NOWAIT, sys.executable, line))


def _end(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
