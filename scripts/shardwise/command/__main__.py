"""The command `shardwise`, from any working folder, and the entry scripts next to the library."""

import inspect
import os
import sys

from shardwise.errors import FAULT, InputError, ShardwiseError, tell, verdict
from shardwise.host import SCRIPTS


def main(script: str | None = None) -> None:
    """Start the command of the first word, or an entry script; an error ends with its exit code."""
    try:
        if script:
            _stage(script, None)
        else:
            _start(sys.argv[1] if len(sys.argv) > 1 else "--help")
    except (ShardwiseError, ImportError, OSError) as error:
        code, words = verdict(error)
        if code == FAULT:
            raise
        tell(words)
        sys.exit(code)


def _start(name: str) -> None:
    from shardwise.command import stages  # here: an entry script needs none of the other commands
    from shardwise.command.runs import RUNS

    if name in RUNS:
        sys.exit(RUNS[name](sys.argv[2:]))
    if name in stages.STAGES:
        sys.argv = [str(SCRIPTS / f"{name}.py"), *sys.argv[2:]]
        _stage(name, f"shardwise {name}")
    elif name in ("-h", "--help"):
        works = RUNS | {name: work for name, (work, _) in stages.STAGES.items()}
        lines = (f"  {name:<12}{work.__doc__.splitlines()[0]}\n" for name, work in works.items())
        sys.stdout.write(f"usage: shardwise COMMAND [OPTIONS]\n\n{''.join(lines)}\n")
        sys.stdout.write("shardwise COMMAND --help lists its options. Begin with init.\n")
    elif name == "--version":
        from shardwise import __version__

        sys.stdout.write(f"shardwise {__version__}\n")
    else:
        raise InputError(f"shardwise: there is no command {name!r}; see shardwise --help")


def _stage(name: str, typed: str | None) -> None:
    """Run a stage; ``typed`` is the command that the user typed, None for an entry script."""
    from shardwise.command import options, process, stages

    if name in ("multiply", "work", "dispatch"):
        # As Snakemake does for its jobs; a scheduler grants no more without being asked, either.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    work, names = stages.STAGES[name]
    parsed = options.parser(typed, inspect.getdoc(work), names.split()).parse_args()
    begin_ranks = None
    if name == "reduce":
        from shardwise.mpi.launch import start_ranks as begin_ranks
    quiet = typed is not None or name == "doctor"
    process.run(work, parsed, begin_ranks, quiet)


if __name__ == "__main__":
    main()
