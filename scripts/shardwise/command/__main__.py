"""The command `shardwise`, from any working folder, and the entry scripts next to the library."""

import os
import sys

from shardwise import __version__
from shardwise.errors import FAULT, InputError, ShardwiseError, tell, verdict
from shardwise.host import SCRIPTS


def main(script: str | None = None) -> None:
    """Start the command of the first word, or an entry script; an error ends with its exit code."""
    try:
        _start(script or (sys.argv[1] if len(sys.argv) > 1 else "--help"), typed=script is None)
    except (ShardwiseError, ImportError, OSError, KeyboardInterrupt) as error:
        code, words = verdict(error)
        if code == FAULT:
            raise
        tell(words)
        sys.exit(code)


def _start(name: str, typed: bool) -> None:
    """Start a command; ``typed`` says that the user typed its name, not that of a script."""
    from shardwise.command import options, process, stages

    if name in ("-h", "--help"):
        works = {name: work for name, (work, _) in stages.STAGES.items()}
        lines = (f"  {name:<12}{work.__doc__.splitlines()[0]}\n" for name, work in works.items())
        sys.stdout.write(f"usage: shardwise COMMAND [OPTIONS]\n\n{''.join(lines)}\n")
        sys.stdout.write("shardwise COMMAND --help lists its options. Begin with init.\n")
        return
    if name == "--version":
        sys.stdout.write(f"shardwise {__version__}\n")
        return
    if name not in stages.STAGES:
        raise InputError(f"shardwise: there is no command {name!r}; see shardwise --help")
    if name in ("multiply", "work", "dispatch"):
        # As Snakemake does for its jobs; a scheduler grants no more without being asked, either.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    work, names = stages.STAGES[name]
    parsed = options.parse(work, names, f"shardwise {name}" if typed else None)
    if name in ("init", "run", "submit"):
        sys.exit(work(parsed))
    if typed:
        sys.argv = [str(SCRIPTS / f"{name}.py"), *sys.argv[2:]]
    process.run(name, work, parsed, typed)


if __name__ == "__main__":
    main()
