"""A copy of the project to run snakemake in, as a user would in a clone."""

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from tests import processes

REPO = Path(__file__).parents[1]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
_PARTS = ("workflow", "scripts", "profiles", "examples")
_PACKAGE = Path("scripts", "shardwise", "numerics")
_JOB = re.compile(r"^(?:local)?rule (\w+):\n(?:    .*\n)*", re.MULTILINE)
_AT_START = ("HOME", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS")
"""Variables that are read while Python starts or Snakemake is imported."""

_warm: dict[tuple[str | None, ...], "subprocess.Popen[str]"] = {}
"""The processes that fork runs, by the values of these variables; they end when this one does."""
_SHARD = re.compile(r"^    wildcards: (?:thousand=\d+, )?shard=(\d+), ", re.MULTILINE)


@dataclass
class Workspace:
    """A copy of the project with its own config, and the runs in it.

    ``before`` are words in front of every command, which run it in the right place.
    """

    root: Path
    env: dict[str, str] | None = None
    before: Sequence[str] = ()

    @classmethod
    def create(
        cls, root: Path, env: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> "Workspace":
        """Copy the project's files to ``root``."""
        for part in _PARTS:
            shutil.copytree(REPO / part, root / part, ignore=_not_copied)
        for part in ("Snakefile", "config.yaml"):
            shutil.copy2(REPO / part, root)
        hand_on_compiled(REPO / _PACKAGE, root / _PACKAGE)
        return cls(root, env, before)

    def clone(self, root: Path) -> "Workspace":
        """The same workspace with the same history, elsewhere; time stamps are kept."""
        shutil.copytree(self.root, root, symlinks=True)
        hand_on_compiled(self.root / _PACKAGE, root / _PACKAGE)
        return Workspace(root, self.env)

    def configure(self, **values: object) -> None:
        """Write ``mine.yaml``, which all runs here use; a second rank of reduce would cost 1 s."""
        (self.root / "mine.yaml").write_text(yaml.safe_dump({"reduce": {"ranks": 1}} | values))

    def command(self, *arguments: str, profile: str = "local") -> list[str]:
        """The command line of a run; Snakemake prints all, unless the arguments have a --quiet."""
        own = ["--configfile", "mine.yaml"] if (self.root / "mine.yaml").exists() else []
        words = ["--quiet", "host", "--profile", f"profiles/{profile}", *own, *arguments]
        return [*self.before, SNAKEMAKE, *words]

    def run(self, *arguments: str, profile: str = "local", timeout: int = 500) -> "Finished":
        """Run snakemake to its end."""
        line, env = self.command(*arguments, profile=profile), self.env or os.environ.copy()
        if self.before:
            done = subprocess.run(
                line, cwd=self.root, env=env, capture_output=True, text=True, timeout=timeout,
                check=False,
            )  # fmt: skip
        else:
            done = _in_a_fork(line, self.root, env, timeout)
        hand_on_compiled(self.root / _PACKAGE, REPO / _PACKAGE)
        return Finished(done.returncode, done.stdout + done.stderr)

    def succeed(self, *arguments: str, profile: str = "local") -> "Finished":
        """Run snakemake to its end; it must exit with 0."""
        done = self.run(*arguments, profile=profile)
        assert done.code == 0, done.output
        return done

    def start(self, *arguments: str, profile: str = "local") -> "subprocess.Popen[str]":
        """Start snakemake in a process group of its own; its output goes to ``run.log``."""
        with open(self.root / "run.log", "w") as log:
            return subprocess.Popen(
                self.command(*arguments, profile=profile),
                cwd=self.root,
                env=self.env or os.environ.copy(),
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=processes.heed_interrupts,  # noqa: PLW1509 - no threads
            )

    def dry_run(self, *arguments: str) -> set[str]:
        """The jobs of a dry run, as ``rule`` or ``rule shard``; empty if there is nothing to do."""
        return self.succeed("--dry-run", *arguments).jobs

    def file(self, name: str) -> Path:
        """A file of the default results folder; a ``*`` in its name stands for a key."""
        folder = self.root / "results" / "default"
        return next(folder.glob(name), folder / name) if "*" in name else folder / name

    def load(self, name: str) -> np.ndarray:
        return np.load(self.file(name))


def _in_a_fork(
    line: list[str], cwd: Path, env: dict[str, str], timeout: float
) -> "subprocess.CompletedProcess[str]":
    """Run a command line of Snakemake in a fork of a process that has imported it."""
    key = tuple(env.get(name) for name in _AT_START)
    if key not in _warm:
        # No more of ``env``: a test's cluster, once it ends, kills all that carry its variables.
        own = {name: text for name, text in os.environ.items() if name not in _AT_START}
        own |= {name: env[name] for name in _AT_START if name in env}
        _warm[key] = subprocess.Popen(
            [sys.executable, REPO / "tests" / "warm_snakemake.py"], env=own, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"{folder}/output", f"{folder}/errors"]
        _warm[key].stdin.write(json.dumps([line, str(cwd), env, outputs]) + "\n")
        if not select.select([_warm[key].stdout], [], [], timeout)[0]:
            pid = _warm.pop(key).pid
            processes.kill([*processes.descendants([pid]), pid])
            raise subprocess.TimeoutExpired(line, timeout)
        code = int(_warm[key].stdout.readline())
        return subprocess.CompletedProcess(line, code, *(Path(p).read_text() for p in outputs))


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """The names that a clone would not have; compiled modules are copied all the same."""
    loops = Path(folder).name == "__pycache__"
    return [x for x in names if x.endswith(".egg-info") or (loops and not x.endswith(".pyc"))]


def hand_on_compiled(source: Path, target: Path) -> None:
    """Give one copy of the package the loops that numba has compiled for another.

    Compiling takes longer than the rest of a small run. Their names have a hash of the sources, so
    a copy with other sources gets no use of them.
    """
    for path in source.glob("__pycache__/loops.*.nb[ic]"):
        copy = target / "__pycache__" / path.name
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            shutil.copy2(path, new := f"{copy}.{os.getpid()}")
            os.rename(new, copy)


@dataclass(frozen=True)
class Finished:
    """How a run of snakemake ended, and all that it printed."""

    code: int
    output: str

    @property
    def jobs(self) -> set[str]:
        """The jobs that the output names, as ``rule`` or ``rule shard``."""
        found = set()
        for match in _JOB.finditer(self.output):
            shard = _SHARD.search(match[0])
            found.add(f"{match[1]} {shard[1]}" if shard else match[1])
        return found - {"all"}
