"""What all command lines share: logging, the replay command, signals and exit codes."""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from shardwise.errors import ShardwiseError, Terminated, explain, terminate
from shardwise.files.commit import abandon
from shardwise.files.paths import Results
from shardwise.files.small import refuse_links
from shardwise.host import begin_in_utf8
from shardwise.mpi import launch
from shardwise.mpi.together import abort
from shardwise.records import locks, logs
from shardwise.units import MIB

log = logging.getLogger("shardwise")

program: str | None = None
"""What the user typed, where it was the command `shardwise`: such as ``shardwise plan``."""

_ARRIVAL_SECONDS = 5.0
"""How long the ranks wait for each other before one counts as having failed alone."""

_PROGRESS_SECONDS = 10.0


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def parser(description: str) -> argparse.ArgumentParser:
    """A parser that shows defaults and explains the exit codes."""
    return argparse.ArgumentParser(
        prog=program,
        description=description,
        formatter_class=_Help,
        allow_abbrev=False,  # --config is another option of snakemake than --configfile
        epilog="Exit codes: 0 done; 2 bad input or config; 3 an integrity check failed; "
        "75 try again (device busy, out of memory, disk trouble).",
    )


def add_results(arguments: argparse.ArgumentParser) -> None:
    """Add what names a results folder: itself, or ``--configfile``, for who only looks at it."""
    arguments.add_argument(
        "results", nargs="?", type=Path, help="results folder; default: that of the config"
    )
    words = "config files that name the results folder, later over earlier; default: config.yaml"
    arguments.add_argument("--configfile", nargs="+", type=Path, metavar="FILE", help=words)


def add_plan(arguments: argparse.ArgumentParser, shard: bool = False) -> None:
    """Add ``--plan``, and ``--shard`` where a stage works on one."""
    words = "plan.tsv of the results folder"
    arguments.add_argument("--plan", type=Path, required=True, help=words)
    if shard:
        arguments.add_argument("--shard", required=True, help="id of the shard, such as 00007")


def add_key(arguments: argparse.ArgumentParser) -> None:
    """Add ``--key``, by which a run makes sure that its jobs use its own plan."""
    words = "key that the plan must have for this job; snakemake passes it"
    arguments.add_argument("--key", help=words)


def add_task(arguments: argparse.ArgumentParser) -> None:
    """Add the options of a process that computes shards: ``--mem-mb`` and ``--device-wait``."""
    from shardwise.devices import wait

    add = arguments.add_argument
    words = "MiB of host memory for all processes of a machine together; with less than the plan "
    words += "says, batches on NumPy are smaller; default, and with 0: what the "
    words += "plan says"
    add("--mem-mb", dest="memory", type=mebibytes, metavar="N", help=words)
    words = "how long to wait for a GPU while none changes hands; then the task ends with "
    words += f"75; default: {wait.JOB_WAIT_SECONDS:.0f} in a job of Slurm or Grid Engine, whose "
    words += f"run time is limited, {wait.WAIT_SECONDS:.0f} elsewhere, and for tasks of the same "
    words += "job"
    add("--device-wait", type=seconds, metavar="SECONDS", help=words)


def add_ranks(
    arguments: argparse._ActionsContainer, otherwise: str = str(launch.DEFAULT_RANKS)
) -> None:
    """Add ``--ranks`` and ``--launcher``, for a stage that starts its MPI ranks itself.

    ``otherwise`` says how many ranks there are if neither the user nor a scheduler says it.
    """
    words = "MPI ranks to start; default, also with 0: the tasks of the Slurm job or the slots of "
    words += f"the Grid Engine job, else {otherwise}"
    arguments.add_argument("--ranks", type=natural, help=words)
    add_launcher(arguments)


def add_launcher(arguments: argparse._ActionsContainer) -> None:
    """Add ``--launcher``."""
    words = "what starts the MPI ranks, with its options, such as 'mpiexec -hosts node1,node2'; "
    words += "mpiexec is that of the MPI that mpi4py loads"
    arguments.add_argument("--launcher", default="mpiexec", help=words)


def positive(text: str) -> int:
    """A whole number, 1 or more, as `argparse` reads it from a command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def natural(text: str) -> int:
    """A whole number, 0 or more, as `argparse` reads it from a command line."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is not 0 or more")
    return number


def mebibytes(text: str) -> int | None:
    """Bytes of a number of MiB, as `argparse` reads it from a command line; None for 0."""
    return natural(text) * MIB or None


def seconds(text: str) -> float:
    """A time above 0, or ``inf``, as `argparse` reads it from a command line."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def address(text: str) -> tuple[str, int]:
    """``[HOST:]PORT``, as `argparse` reads it; without a host, that of this machine alone."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(
            f"{text} is not PORT or HOST:PORT, such as 9500 or 0.0.0.0:9500"
        )
    return host or "127.0.0.1", int(port)


def now_and_then() -> Callable[[str], None]:
    """A function that logs progress, at most every ten seconds."""
    told = time.monotonic()

    def tell(text: str) -> None:
        nonlocal told
        if time.monotonic() - told >= _PROGRESS_SECONDS:
            told = time.monotonic()
            log.info("%s", text)

    return tell


def run(
    work: Callable[[argparse.Namespace], int | None],
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    mpi: Callable[[argparse.Namespace], Any] | None = None,
) -> None:
    """Run a stage and end the process with its exit code.

    Parameters
    ----------
    work
        The stage; it raises :class:`ShardwiseError` if the user has to act. It may return an exit
        code, if what it found is not a failure of its own.
    mpi
        For a stage of several ranks: returns mpi4py's ``MPI``, once this process is a rank. Rank 0
        then logs for all, and a rank that fails alone ends all.
    """
    begin_in_utf8()
    logs.begin()
    options = arguments.parse_args(argv)
    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, terminate)
    world = None
    try:
        world = mpi(options) if mpi else None
        if _speaks(world) and not program:  # who typed it knows where
            logs.log_start(sys.argv)
        with _at_work(options):
            code = work(options) or 0
    except ShardwiseError as error:
        code = _refuse(error, world)
    except BaseException as error:
        code, _ = explain(error)
        if world or isinstance(error, (Terminated, KeyboardInterrupt)):
            # An abort does not wait for the thread that may be writing, and a signal may come just
            # before Python notes that a file has to be removed.
            abandon()
        if world:
            abort(world.COMM_WORLD, code)
        if isinstance(error, (Terminated, KeyboardInterrupt)):
            # All is cleaned up. A thread that was about to start when the signal came, no pool
            # knows to end, and Python would wait for it for ever.
            logging.shutdown()
            os._exit(code)
    sys.exit(code)


def _speaks(mpi: Any) -> bool:
    """Whether this process speaks for all ranks."""
    return mpi is None or mpi.COMM_WORLD.rank == 0


def _refuse(error: ShardwiseError, mpi: Any) -> int:
    """Say what the user has to do, once for all ranks, and give the exit code."""
    if _speaks(mpi):
        log.error("%s", error)
    if mpi is None:
        return error.exit_code
    # The first rank to end makes srun end the others, which have this code to return too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _all_arrive(mpi.COMM_WORLD):
        # A regular end: after an abort srun would return 137, whatever the ranks returned.
        mpi.Finalize()
    else:
        if not _speaks(mpi):
            log.error("rank %d: %s", mpi.COMM_WORLD.rank, error)
        abort(mpi.COMM_WORLD, error.exit_code)
    return error.exit_code


def _all_arrive(comm: Any) -> bool:
    """Whether all ranks come here within some seconds, with an error that they agree on."""
    arrival, end = comm.Ibarrier(), time.monotonic() + _ARRIVAL_SECONDS
    while not arrival.Test():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _at_work(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Mark the results folder as worked on, for the stages that take a plan, if it is fit for it.

    Raises InputError as :func:`small.refuse_links`.
    """
    if not hasattr(options, "plan") or not options.plan.is_file():
        return nullcontext()
    results = Results.of_plan(options.plan)
    refuse_links(results)
    return locks.hold_job_lock(results)
