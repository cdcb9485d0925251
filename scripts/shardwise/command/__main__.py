"""The command `shardwise`, from any working folder, and the entry scripts next to the library.

A stage gets its log, the lock that it holds, signals, and the end of its process from here.
"""

import logging
import os
import shlex
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any, NoReturn

from shardwise import __version__, errors
from shardwise.errors import InputError, ShardwiseError, log
from shardwise.files.commit import abandon
from shardwise.files.paths import Results
from shardwise.files.small import refuse_links
from shardwise.host import SCRIPTS
from shardwise.records import locks

_LAST_WORDS_SECONDS = 0.5
_ARRIVAL_SECONDS = 5.0  # the ranks wait for each other; then one counts as having failed alone


def main(script: str | None = None) -> None:
    """Start the command of the first word, or an entry script; an error ends with its exit code."""
    try:
        _start(script or (sys.argv[1] if len(sys.argv) > 1 else "--help"), typed=script is None)
    except (ShardwiseError, ImportError, OSError, KeyboardInterrupt) as error:
        code, words = errors.verdict(error)
        if code == errors.FAULT:
            raise
        errors.tell(words)
        sys.exit(code)


def _start(name: str, typed: bool) -> None:
    """Start a command; ``typed`` says that the user typed its name, not that of a script."""
    from shardwise.command import options
    from shardwise.command.stages import STAGES

    if name in ("-h", "--help"):
        sys.stdout.write("usage: shardwise COMMAND [OPTIONS]\n\n")
        for command, (where, _) in STAGES.items():
            about = resolve_name(f"shardwise.{where}").__doc__.splitlines()[0]
            sys.stdout.write(f"  {command:<12}{about}\n")
        sys.stdout.write("\nshardwise COMMAND --help lists its options. Begin with init.\n")
        return
    if name == "--version":
        sys.stdout.write(f"shardwise {__version__}\n")
        return
    if name not in STAGES:
        raise InputError(f"shardwise: there is no command {name!r}; see shardwise --help")
    if name in ("multiply", "work", "dispatch"):
        # As Snakemake does for its jobs; a scheduler grants no more without being asked, either.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    where, names = STAGES[name]
    work = resolve_name(f"shardwise.{where}")
    parsed = options.parse(work, names, f"shardwise {name}" if typed else None)
    if name in ("init", "run", "submit"):
        sys.exit(work(parsed))
    if typed:
        sys.argv = [str(SCRIPTS / f"{name}.py"), *sys.argv[2:]]
    _run(name, work, parsed, typed)


def _run(
    name: str, work: Callable[[Namespace], int | None], options: Namespace, typed: bool
) -> None:
    """Run a stage and end the process with its exit code, which ``work`` may return.

    The reduce has several ranks: one that fails alone ends all. If the user has not ``typed`` the
    name of the stage, it logs how to repeat this by hand.
    """
    handler = logging.StreamHandler(sys.stderr)
    lines = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.format = lambda record: errors.shown(lines.format(record))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    signal.signal(signal.SIGTERM, errors.terminate)
    if name in ("watch", "verify"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as for other programs before | head
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, errors.terminate)
    code, mpi = 0, None
    try:
        if name == "reduce":
            from shardwise.mpi.launch import start_ranks

            mpi = start_ranks(options)
        if not (typed or name == "doctor" or (mpi and mpi.COMM_WORLD.rank)):
            here, line = os.getcwd(), shlex.join([sys.executable, *sys.argv])
            log.info("on %s, process %d, in %s", socket.gethostname(), os.getpid(), here)
            if not getattr(options, "round", None):  # else `dispatch` has logged what to do
                log.info("by hand: cd %s && %s", shlex.quote(here), line)
        with ExitStack() as held:
            if hasattr(options, "plan") and options.plan.is_file():
                refuse_links(results := Results(options.plan.parent))
                held.enter_context(locks.hold_job_lock(results))
            code = work(options) or 0
    except BaseException as error:
        code = _end(error, mpi)
    if "cupy" in sys.modules and not mpi:
        # Python would take a tenth of a second to free memory that the driver frees at once.
        _leave(code)
    sys.exit(code)


def _end(error: BaseException, mpi: Any) -> int:
    """Say why the stage ends, once for all ranks; clean up, and give the exit code."""
    if mpi and isinstance(error, ShardwiseError):
        # srun ends the other ranks when the first has ended, but they must return this code, too.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Whether all ranks come here, each with an error.
        arrival, end = mpi.COMM_WORLD.Ibarrier(), time.monotonic() + _ARRIVAL_SECONDS
        while not (together := arrival.Test()) and time.monotonic() < end:
            time.sleep(0.01)
        if together:
            if mpi.COMM_WORLD.rank == 0:
                errors.explain(error)
            mpi.Finalize()  # a regular end: after an abort srun would return 137, whatever the code
            return error.exit_code
    code, _ = errors.explain(error)
    ended = isinstance(error, (errors.Terminated, KeyboardInterrupt))
    if mpi or ended:
        # Remove unfinished files: an abort does not wait for a thread that may be writing, and a
        # signal may come just before Python notes that a file has to be removed.
        abandon()
    if mpi:
        # MPICH's launcher drops output that it still holds when a rank aborts: often the reason.
        time.sleep(_LAST_WORDS_SECONDS)
        mpi.COMM_WORLD.Abort(code)
    if ended:
        # All is cleaned up. If a thread was about to start when the signal came, no pool knows to
        # end it, and Python would wait for it forever.
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End the process without waiting for Python to take itself apart."""
    logging.shutdown()
    if sys.stdout:  # else it is closed
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
