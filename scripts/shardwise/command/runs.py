"""A user's folder: write its config and profile, and start Snakemake in it."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NoReturn

from shardwise.errors import InputError, leave_on_interrupt, tell
from shardwise.files.commit import commit
from shardwise.files.remote import masked
from shardwise.host import PROJECT, TYPED
from shardwise.processes.contain import without_stray
from shardwise.records.locks import take_lock

_LOG = Path("shardwise.log")


def init(options: Namespace) -> int:
    """Write config.yaml and profiles/NAME/config.yaml, both commented, into this folder."""
    profile, present = options.profile or "local", os.listdir(PROJECT / "profiles")
    if profile not in present:
        raise InputError(f"there is no profile {profile}; name one of {', '.join(sorted(present))}")
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


def run(options: Namespace) -> NoReturn:
    """Run the workflow in this folder: snakemake --profile PROFILE -s SNAKEFILE OPTIONS.

    All other options go to snakemake: -n for a dry run, --configfile mine.yaml, --config
    results=results/mine, --quiet host for all its messages. Exit codes: 0 done; 1 jobs have failed;
    2 or 75 refused before any job; 130 interrupted.
    """
    leave_on_interrupt()
    line = _line(options)
    sys.argv = line[line.index("snakemake") :]
    from snakemake.cli import main  # it takes seconds

    # Of a wrong option: more than a hundred lines, above the one that says what is wrong.
    ArgumentParser.print_usage = lambda *_: None  # type: ignore[method-assign]
    sys.exit(main())


def submit(options: Namespace) -> int:
    """Run the workflow in the background, where it outlives this shell, or as a job.

    A dry run shows first whether the run would be refused. All other options go to snakemake.
    Exit codes: 0 it is submitted; else that of the dry run, or of the scheduler.
    """
    line = _line(options)
    busy = f"a run that was submitted in this folder is still at work (see {_LOG}); let it finish"
    take_lock(_LOG, busy).close()
    watch = _watch(options.others)
    first = line.index("snakemake") + 1  # of its options: after a -- it would take -n for a target
    if code := subprocess.run([*line[:first], "-n", *line[first:]], check=False).returncode:
        return code
    submits, cancels = _commands(options)
    if options.job is None:
        with take_lock(_LOG, busy) as log:  # Snakemake inherits the lock, and holds it to its end
            run = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        who, cancel = f"process {run.pid} on this machine", f"kill -INT {run.pid}"
    else:
        job = _submit_job(line, [*submits.split(), *options.job])
        who, cancel = f"job {job}", f"{cancels} {job}"
    sys.stdout.write(
        f"{who} does the run; its messages: {_LOG}\n"
        f"Watch it: {watch}\nStop it with its jobs: {cancel}\n"
    )
    return 0


def _watch(others: list[str]) -> str:
    """The command that watches a run with these options of snakemake."""
    named = _config_of(others)
    results = [text.removeprefix("results=") for text in named.config if text[:8] == "results="]
    files = ["--configfile", *named.configfile] if named.configfile else []
    return shlex.join(["shardwise", "watch", *(results or files)])


def _config_of(others: list[str]) -> Namespace:
    """The words after --configfile and --config among options of snakemake."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", default=[])
    parser.add_argument("--config", "-C", nargs="*", default=[])
    return parser.parse_known_args(others)[0]


_JOBS = {
    "slurm": ("sbatch --parsable -J shardwise --open-mode=append --signal=B:INT@120", "scancel"),
    "shardwise-grid-engine": ("qsub -terse -N shardwise -cwd -V -notify -j y -S /bin/bash", "qdel"),
}
"""By executor of the profile: the commands that submit and cancel the job of a controller."""


def _commands(options: Namespace) -> tuple[str, str]:
    """The commands of the profile's scheduler; empty if it has none, refused if they are absent."""
    import yaml  # here: the doctor starts without it

    profile = _profile(options.profile)  # which the dry run has read
    executor = (yaml.safe_load(Path(profile, "config.yaml").read_bytes()) or {}).get("executor")
    if executor not in _JOBS and options.job is not None:
        raise InputError(f"--job: {profile}: executor must be one of {', '.join(_JOBS)}")
    submits, cancels = _JOBS.get(executor, ("", ""))
    if submits and shutil.which(client := submits.split()[0]) is None:
        raise InputError(f"{profile}: {client} is not on PATH; load the scheduler first")
    return submits, cancels


def _submit_job(line: list[str], words: list[str]) -> str:
    """Submit a job that starts Snakemake, see `control`; return its name."""
    words = [words[0], "-o", str(_LOG), *words[1:]]
    script = shlex.join([sys.executable, "-P", "-m", "shardwise.command.runs", *line])
    script = f"#!/bin/bash\nexec {script}\n"
    done = subprocess.run(
        words, input=script, text=True, stdout=subprocess.PIPE, env=without_stray(), check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    return re.split(r"\W", done.stdout.strip())[0]


def _line(options: Namespace) -> list[str]:
    """Print and return the line that runs Snakemake with the words that the user typed."""
    if not Path("config.yaml").is_file() and "--configfile" not in " ".join(options.others):
        raise InputError(
            f"{Path.cwd()} has no config.yaml; write one with shardwise init, or name --configfile"
        )
    if odd := [text for text in _config_of(options.others).config if "=" not in text]:
        raise InputError(f"--config takes KEY=VALUE, such as shards=8, but not {odd[0]!r}")
    program = sys.argv[0]
    if Path(program).name == "shardwise":  # else it was started by python -m
        program = "shardwise" if shutil.which("shardwise") == program else program
        os.environ[TYPED] = shlex.join([program, *sys.argv[1:]])
    return snakemake_line(options.profile, options.others)


def snakemake_line(profile: str | None, words: list[str]) -> list[str]:
    """Print and return the command line that runs Snakemake with a profile."""
    words = ["--profile", _profile(profile), "-s", str(PROJECT / "Snakefile"), *words]
    line = [sys.executable, "-P", "-m", "snakemake", *words]
    tell(shlex.join(masked(word) if "://" in word else word for word in line))
    return line


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
    raise InputError(f"there is no profile {name}; shardwise init --profile writes one of ours")


# The signals of scancel, of `submit` before the limit of Slurm, of qdel, of s_rt of Grid Engine.
_CANCEL = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGUSR1)
_LOOK_SECONDS = 1.0


def control(line: list[str]) -> int:
    """Run Snakemake in a job of its own, so that the run outlives the login node.

    If the job is cancelled, or its time is nearly up, Snakemake gets a Ctrl-C and cancels its jobs.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _CANCEL)  # each is pending until it is waited for
    # Otherwise the jobs that Snakemake submits would inherit the size of this one.
    run = begin(
        line, env={k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k[:6] != "SLURM_"}
    )
    cancelled = False
    while (code := run.poll()) is None:
        cancelled = bool(signal.sigtimedwait(_CANCEL, _LOOK_SECONDS)) or cancelled
        if cancelled:
            # Again at each look: while a SIGTERM of Slurm is pending in Snakemake's main thread,
            # another thread gets the SIGINT, and then the main thread may sleep on.
            run.send_signal(signal.SIGINT)
    return code


if __name__ == "__main__":
    sys.exit(control(sys.argv[1:]))
