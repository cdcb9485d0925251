"""A user's folder: write its config and profile, and start Snakemake in it."""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from shardwise.errors import InputError, leave_on_interrupt, tell
from shardwise.files.commit import commit
from shardwise.files.paths import CACHE
from shardwise.host import BEGUN, PROJECT, SUBMITTED, TYPED
from shardwise.records.locks import take_lock

_PROFILES = tuple(sorted(path.name for path in (PROJECT / "profiles").iterdir()))
_LOG = Path("shardwise.log")

_LOOK_SECONDS = 0.2


def init(words: list[str]) -> int:
    """Write config.yaml and profiles/NAME/config.yaml, both commented, into this folder."""
    parser = argparse.ArgumentParser("shardwise init", description=init.__doc__, allow_abbrev=False)
    parser.add_argument("--profile", choices=_PROFILES, default="local", help="where jobs run")
    profile = parser.parse_args(words).profile
    for file in (Path("config.yaml"), Path("profiles", profile, "config.yaml")):
        if os.path.lexists(file):
            sys.stdout.write(f"{file} exists already, and is not changed\n")
            continue
        text = (PROJECT / file).read_text(encoding="utf-8")
        with commit(file) as new:
            new.write(text.replace("snakemake --profile", "shardwise run --profile").encode())
        sys.stdout.write(f"{file} written\n")
    sys.stdout.write(f"Edit them, then make a dry run: shardwise run --profile {profile} -n\n")
    return 0


def run(words: list[str]) -> NoReturn:
    """Run the workflow in this folder: snakemake --profile PROFILE -s SNAKEFILE OPTIONS."""
    leave_on_interrupt()
    line, _ = _snakemake(run, words)
    sys.argv = line[line.index("snakemake") :]
    from snakemake.cli import main  # it takes seconds

    sys.exit(main())


def submit(words: list[str]) -> int:
    """Run the workflow in the background, where it outlives this shell, or as a job."""
    line, options = _snakemake(submit, words)
    if options.job is not None:
        take_log().close()
        return _submit_job(line, options)
    with take_log() as log:  # Snakemake inherits the lock, and holds it to its end
        began = log.seek(0, os.SEEK_END)
        started = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {SUBMITTED: "1"},
        )  # fmt: skip
    sys.stdout.write(
        f"process {started.pid} on this machine does the run; its messages: {_LOG}\n"
        f"Stop it with its jobs: kill -INT {started.pid}\n"
    )
    with suppress(KeyboardInterrupt):  # nobody has to wait: the run is in another session
        return _see_it_begin(started, began)
    return 0


def _see_it_begin(run: "subprocess.Popen[bytes]", first_byte: int) -> int:
    """Show what a run says until it has passed its checks; if it ends before, return its code."""
    said = ""
    with open(_LOG, encoding="utf-8", errors="replace") as log:
        log.seek(first_byte)
        while BEGUN not in said:
            code = run.poll()
            said += (more := log.read())
            sys.stdout.write(more)
            sys.stdout.flush()
            if code is not None:
                return code
            time.sleep(_LOOK_SECONDS)
    return 0


def take_log() -> BinaryIO:
    """Lock and open the log of submitted runs; TryAgain if such a run works in this folder."""
    busy = f"a run that was submitted in this folder is still at work (see {_LOG}); let it finish"
    return take_lock(_LOG, busy)


_JOBS = {
    "slurm": (
        f"sbatch --parsable --job-name=shardwise --open-mode=append --output={_LOG} "
        "--signal=B:INT@120",
        "scancel",
    ),
    "shardwise-grid-engine": (
        f"qsub -terse -N shardwise -cwd -V -notify -j y -o {_LOG} -S /bin/bash",
        "qdel",
    ),
}
"""By executor of the profile: the commands that submit and cancel the job of a controller."""


def _submit_job(line: list[str], options: argparse.Namespace) -> int:
    """Submit a job that starts Snakemake and looks after it, see `controller`."""
    import yaml  # here: the doctor also starts if a package is missing

    first = line.index("snakemake") + 1  # of its options: after a -- it would take -n for a target
    if code := subprocess.run([*line[:first], "-n", *line[first:]], check=False).returncode:
        return code
    profile = _profile(options.profile)  # which the dry run has read
    executor = (yaml.safe_load(Path(profile, "config.yaml").read_bytes()) or {}).get("executor")
    if executor not in _JOBS:
        raise InputError(f"--job: {profile}: executor must be one of {', '.join(_JOBS)}")
    submits, cancels = _JOBS[executor]
    words = [*submits.split(), *options.job]
    if shutil.which(words[0]) is None:
        raise InputError(f"--job: {words[0]} is not on PATH; load the scheduler first")
    script = shlex.join([sys.executable, "-P", "-m", "shardwise.command.controller", *line])
    done = subprocess.run(
        words, input=f"#!/bin/bash\nexec {script}\n", text=True, stdout=subprocess.PIPE,
        check=False, env=os.environ | {SUBMITTED: "1"},
    )  # fmt: skip
    if done.returncode == 0:
        job = re.split(r"\W", done.stdout.strip())[0]
        sys.stdout.write(
            f"job {job} will do the run, and submit its other jobs; its messages: {_LOG}\n"
            f"Stop it with its jobs: {cancels} {job}\n"
        )
    return done.returncode


RUNS: dict[str, Callable[[list[str]], int]] = {"init": init, "run": run, "submit": submit}


def _snakemake(command: Callable[..., Any], words: list[str]) -> tuple[list[str], Any]:
    """Print and return the line that `run` or `submit` starts, and our options in ``words``."""
    parser = argparse.ArgumentParser(
        f"shardwise {command.__name__}", description=command.__doc__, allow_abbrev=False,
        usage="%(prog)s [--profile PROFILE] [OPTIONS OF SNAKEMAKE]",
        epilog="Useful options of snakemake: -n for a dry run, --configfile mine.yaml, "
        "--config results=results/mine, --quiet host for all its messages.",
    )  # fmt: skip
    where = "a folder, or its name in profiles/; default: the only one in profiles/"
    parser.add_argument("--profile", help=where)
    if command is submit:
        job = "options of sbatch or qsub for a job that runs Snakemake: --job='--time=7-0 --mem=8G'"
        parser.add_argument("--job", metavar="WORDS", type=shlex.split, help=job)
    options, others = parser.parse_known_args(words)
    if not Path("config.yaml").is_file() and "--configfile" not in " ".join(others):
        raise InputError(
            f"{Path.cwd()} has no config.yaml; write one with shardwise init, or name --configfile"
        )
    program = sys.argv[0]
    if Path(program).name == "shardwise":  # else it was started by python -m
        program = "shardwise" if shutil.which("shardwise") == program else program
        os.environ[TYPED] = shlex.join([program, command.__name__, *words])
    return snakemake_line(options.profile, others), options


def snakemake_line(profile: str | None, words: list[str]) -> list[str]:
    """Print and return the command line that runs Snakemake with a profile."""
    words = ["--profile", _profile(profile), "-s", str(PROJECT / "Snakefile"), *words]
    line = [sys.executable, "-P", "-m", "snakemake", *words]
    tell(shlex.join(line))
    return line


def line_of(settings: Any, profile: str | None, *words: str) -> list[str]:
    """Write a checked config to a file, and return the command line that runs it, ``words`` last.

    The file stays: jobs read it, and so does the command that a run prints to be repeated.
    """
    from shardwise.plan import plan as plans  # here: as above

    file = CACHE / f"config-{plans.digest(vars(settings))}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with commit(file) as new:
        new.write(json.dumps(vars(settings), indent=1).encode())
    # An empty --config overrides what a profile says of the config.
    own = ["--replace-workflow-config", "--configfile", str(file), "--config"]
    return snakemake_line(profile, [*own, *words])


_BEGIN = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from shardwise.processes import contain
# A notebook ignores it between its cells, and a shell in the background.
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
contain.end_with_parent(signal.SIGINT, int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""A program, not a function that runs after a fork: the threads of a notebook may hold locks."""


def begin(line: list[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start Snakemake with no signal blocked; it gets a Ctrl-C when this process ends.

    It has its own session: signals of a terminal or a scheduler reach this process alone.
    """
    words = [sys.executable, "-P", "-c", _BEGIN, str(os.getpid()), *line]
    return subprocess.Popen(words, start_new_session=True, stdin=subprocess.DEVNULL, **options)


def _profile(name: str | None) -> str:
    """The folder of the profile: this folder's, else that of the installation."""
    if name is None:
        present = sorted(path.parent.name for path in Path("profiles").glob("*/config.yaml"))
        if len(present) > 1:
            raise InputError(f"profiles/ has {', '.join(present)}; name one with --profile")
        name = present[0] if present else "local"
    for folder in (Path("profiles", name), Path(name), PROJECT / "profiles" / name):
        if (folder / "config.yaml").is_file():
            return str(folder)
    raise InputError(f"there is no profile {name}; shardwise init writes {', '.join(_PROFILES)}")
