"""The Makefile: what it asks the machine, and which targets install nothing."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.factories import ROOT

NOTES = """#!/bin/sh
echo "$*" >> "{notes}"
case "$*" in *"-m venv"*|*"-m pip"*|*shardwise.command*) exit 0 ;; esac
exec "{python}" "$@"
"""
"""A Python that notes its words, a line per start, and installs nothing."""


@pytest.fixture
def make(tmp_path):
    """Runs make in a fresh clone; the exit code, what it says, and what its Python was asked."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    own = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "CUDA"}

    def run(*words):
        for name in ("python", ".venv/bin/python")[: 1 + (tmp_path / ".venv/bin").exists()]:
            (tmp_path / name).write_text(
                NOTES.format(notes=tmp_path / "asked", python=sys.executable)
            )
            (tmp_path / name).chmod(0o755)
        (tmp_path / "asked").write_text("")
        line = ["make", "PYTHON=./python", *words]
        done = subprocess.run(
            line, cwd=tmp_path, env=own, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr, (tmp_path / "asked").read_text().splitlines()

    return run


def test_cuda_is_asked_for_once_and_its_size_is_told(make):
    """Not where the user names it, which is one of three; a Python that is not there is named."""
    assert sum("cuda_extra" in words for words in make("--dry-run", "test")[2]) == 1
    _, said, asked = make("install", "CUDA=12")
    assert "CUDA 12 are installed: 3 GB; CUDA=none leaves them out" in said
    assert not any("cuda_extra" in words for words in asked)
    code, said, asked = make("install", "CUDA=11")
    assert (code, asked, 'CUDA is "11"; it must be 12, 13 or none' in said) == (2, [], True)
    code, said, _ = make("install", "PYTHON=./nowhere")
    assert (code, "./nowhere" in said, "make install PYTHON=python3.12" in said) == (2, True, True)


def test_who_looks_at_a_run_installs_nothing(make, tmp_path):
    """Without a .venv it says how to make one; with one it runs, however old that is."""
    code, said, _ = make("watch")
    assert (code, "there is no .venv here yet: run make install first" in said) == (2, True)
    assert not (tmp_path / ".venv").exists()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for goal in ("doctor", "report", "watch", "verify"):
        code, _, asked = make(goal, "ARGS=--json")
        assert (code, [words.split()[:3] for words in asked]) == (
            0, [["-m", "shardwise.command", goal]],
        )  # fmt: skip
