"""The Makefile: what it asks the machine, and which targets install anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories import ROOT

LOOKERS = ("doctor", "report", "watch", "verify")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone: the Makefile, the library, and a Python that notes each of its starts."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, folder / name)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    noting(folder / "python", folder / "asked")
    return folder


def noting(program: Path, notes: Path) -> None:
    """Write a Python that notes its words, a line per start, and installs nothing."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> "{notes}"\n'
        'case "$*" in *"-m venv"*|*"-m pip"*|*shardwise.command*) exit 0 ;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    program.chmod(0o755)


def make(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run make as a user does, with the Python of this clone unless another is named."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "CUDA"}
    return subprocess.run(
        ["make", "PYTHON=./python", *words],
        cwd=folder, env=own | env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def lines(path: Path) -> list[str]:
    """The lines of a file of notes; none where nothing was noted."""
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("goal", ["run", "test", "examples/x"])
def test_cuda_is_asked_for_once(clone: Path, goal: str) -> None:
    """However many rules name it; and not at all where the user names it."""
    make(clone, "--dry-run", goal)
    assert sum("cuda_extra" in words for words in lines(clone / "asked")) == 1
    make(clone, "--dry-run", goal, "CUDA=12")
    make(clone, "--dry-run", goal, CUDA="none")
    assert sum("cuda_extra" in words for words in lines(clone / "asked")) == 1


def test_the_size_of_cuda_is_told_before_it_comes(clone: Path) -> None:
    """With the reason on a login node, whose only sign of a GPU is a scheduler's client."""
    noting(clone / "sbatch", clone / "asked")
    here = f"{clone}:{os.environ['PATH']}"
    for words, reason in (((), "as a driver or a scheduler's client is here: 3 GB"),
                          (("CUDA=12",), "CUDA 12 are installed: 3 GB")):  # fmt: skip
        done = make(clone, "install", *words, PATH=here)
        assert f"{reason}; CUDA=none leaves them out" in done.stderr.splitlines()[0]
    assert "3 GB" not in make(clone, "install", "CUDA=none").stderr


def test_who_looks_at_a_run_installs_nothing(clone: Path) -> None:
    """Without a .venv it says how to make one; with one it runs, however old that is."""
    done = make(clone, "watch")
    assert done.returncode == 2
    assert "there is no .venv here yet: run make install first" in done.stderr
    assert not (clone / ".venv").exists()

    noting(clone / ".venv/bin/python", clone / "own")  # no stamp says which cupy it has
    for goal in LOOKERS:
        assert make(clone, goal, "ARGS=--json").returncode == 0
    assert [words.split()[2] for words in lines(clone / "own")] == [*LOOKERS]
    assert lines(clone / "asked") == [], "nobody needs to know which cupy would fit"


def test_cuda_is_one_of_three(clone: Path) -> None:
    """Anything else is refused where it would count."""
    done = make(clone, "install", "CUDA=11")
    assert (done.returncode, lines(clone / "asked")) == (2, [])
    assert 'CUDA is "11"; it must be 12, 13 or none' in done.stderr


def test_a_python_that_does_not_run_is_named(clone: Path) -> None:
    """Too old or not there: the message names it, and how to name another."""
    done = make(clone, "install", "PYTHON=./nowhere")
    assert done.returncode == 2
    assert "./nowhere" in done.stderr
    assert "make install PYTHON=python3.12" in done.stderr
    assert "CUDA is" not in done.stderr
