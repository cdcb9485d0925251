"""`shardwise.run` and `shardwise.plan`: what the command does, from a script or a notebook.

Snakemake runs in a child process, as it cannot run twice in one. Its output is shown as it comes.
"""

import json
import os
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from shardwise.command.runs import begin, snakemake_line
from shardwise.errors import InputError, of_code, short, tell
from shardwise.files.commit import commit
from shardwise.files.paths import CACHE
from shardwise.host import LAST_WORDS
from shardwise.plan import config_file
from shardwise.plan import plan as plan_file
from shardwise.plan.config import Settings, config_files, load
from shardwise.processes import contain

Config = str | os.PathLike[str] | Mapping[str, Any] | None

_LINES = 20  # of output that are kept for an error of Snakemake's own
_OUTPUT = {"stdout": PIPE, "stderr": STDOUT, "encoding": "utf-8", "errors": "replace"}


def settings_of(config: Config, keys: Mapping[str, Any]) -> Settings:
    """The checked config: a file as the command reads it, or values; ``keys`` override either."""
    if isinstance(config, str | os.PathLike):
        config = config_file.read_files(config_files([Path(config)]))
    if not isinstance(config, Mapping | None) or not (config or keys):
        raise InputError(
            f"config: {short(config)} is neither the path of a YAML file nor a dict of keys; give "
            "one, such as 'config.yaml', or keys, such as input='stack.npy'"
        )
    plain = json.dumps(config_file.merge([config or {}, keys]), default=_plain)
    return load(json.loads(plain))


def _plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    raise InputError(
        f"config: a value of type {type(value).__name__} is not allowed; save an array with "
        "np.save, put a function into a file, and give the path: 'stack.npy', 'file.py:name'"
    )


def follow(settings: Settings, profile: str, *words: str) -> None:
    """Start Snakemake with a config, ``words`` last, show what it says, and wait for its end.

    The config stays in a file: jobs read it, and so does the command that is printed to be
    repeated. Raises the ShardwiseError of the exit code, with the last words of the run.
    """
    file = CACHE / f"config-{plan_file.digest(vars(settings))}.json"
    with commit(file) as new:
        new.write(json.dumps(vars(settings), indent=1).encode())
    # An empty --config overrides what a profile says of the config.
    own = ["--replace-workflow-config", "--configfile", str(file), "--config"]
    line, lines = snakemake_line(profile, [*own, *words]), deque[str](maxlen=_LINES)
    with TemporaryFile() as left:
        given = os.environ | {LAST_WORDS: str(left.fileno())}
        with begin(line, env=given, pass_fds=[left.fileno()], **_OUTPUT) as child:

            def show() -> None:
                for text in child.stdout or ():
                    lines.append(text)
                    tell(text.rstrip("\n"))

            try:
                show()
            except KeyboardInterrupt:  # the run, in its own session, stops its jobs, and says so
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(child.pid, signal.SIGINT)  # and its jobs here, as a terminal does
                show()
                raise
        left.seek(0)
        told = left.read().decode()
    if code := child.returncode:
        how = contain.words(code) if code < 0 else f"ended with {code}"
        raise of_code(code, told or f"Snakemake {how}\n{''.join(lines)}".strip())
