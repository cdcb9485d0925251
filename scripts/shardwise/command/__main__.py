"""The command `shardwise`, from any working folder."""

import runpy
import sys
from contextlib import suppress

from shardwise.command.folder import RUNS
from shardwise.errors import FAULT, InputError, ShardwiseError, tell, verdict
from shardwise.host import SCRIPTS, begin_in_utf8

_STAGES = {
    "watch": "a run while it goes",
    "report": "write the page on a run",
    "verify": "whether a results folder is whole",
    "merge": "add the sums of several finished results folders",
    "doctor": "what would run on this machine, and what is missing",
    "plan": "write plan.tsv, which says which matrices each shard holds",
    "synthesize": "generate the synthetic stack",
    "shard": "copy the matrices of one shard into a file",
    "multiply": "multiply the matrices of one shard",
    "work": "be a worker: multiply missing shards on one device",
    "dispatch": "start workers on all missing shards",
    "ledger": "check the receipts, one row per shard",
    "reduce": "sum the products of all shards",
}

_CLEAN = "list, or remove, what other configs left in a results folder"


def main() -> None:
    """Start what the first word names, and end with 2 where that cannot be."""
    begin_in_utf8()
    try:
        _start(sys.argv[1] if len(sys.argv) > 1 else "--help")
    except (ShardwiseError, ImportError, OSError) as error:
        code, words = verdict(error)
        if code == FAULT:
            raise
        tell(words)
        sys.exit(code)


def _start(name: str) -> None:
    if name in RUNS:
        sys.exit(RUNS[name][1](sys.argv[2:]))
    if name == "clean":
        from shardwise.command.clean import clean  # here: `run` needs none of what it imports

        sys.exit(clean(sys.argv[2:]))
    if name in _STAGES:
        with suppress(ImportError):  # doctor itself says what is missing
            from shardwise import cli  # here: `run` needs none of what stages share

            cli.program = f"shardwise {name}"
        sys.argv = [str(SCRIPTS / f"{name}.py"), *sys.argv[2:]]
        runpy.run_path(sys.argv[0], run_name="__main__")
    elif name in ("-h", "--help"):
        sys.stdout.write(_help())
    elif name == "--version":
        from shardwise import __version__

        sys.stdout.write(f"shardwise {__version__}\n")
    else:
        raise InputError(f"shardwise: there is no command {name!r}\n\n{_help()}")


def _help() -> str:
    """What the command can do, a line each."""
    lines = {name: words for name, (words, _) in RUNS.items()} | _STAGES | {"clean": _CLEAN}
    return (
        "usage: shardwise COMMAND [OPTIONS]\n\n"
        + "".join(f"  {name:<12}{words}\n" for name, words in lines.items())
        + "\nshardwise COMMAND --help lists its options. Begin with init.\n"
    )


if __name__ == "__main__":
    main()
