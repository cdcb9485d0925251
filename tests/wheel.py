"""A wheel of the project, installed into a fresh environment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace import REPO, hand_on_compiled

_SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "Snakefile", "config.yaml",
            "workflow", "profiles", "scripts")  # fmt: skip


def installed(folder: Path) -> Path:
    """Install into a fresh environment, which also sees this one's packages; return its ``bin``."""
    clone, environment = folder / "clone", folder / "environment"
    clone.mkdir()
    subprocess.run(["cp", "-a", *(REPO / name for name in _SOURCES), clone], check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    no_network = ["--no-index", "--no-deps"]
    build = ["wheel", *no_network, "--no-build-isolation", "--wheel-dir", folder, clone]
    subprocess.run([*pip, *build], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    (wheel,) = folder.glob("*.whl")
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", *no_network, wheel], check=True)
    shutil.rmtree(clone)  # the wheel must not need it
    numerics = Path("shardwise", "numerics")
    hand_on_compiled(REPO / "scripts" / numerics, packages / numerics)
    return environment / "bin"


def environment(bin_folder: Path) -> dict[str, str]:
    """The variables of a user who has activated that environment and has no clone."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # mpich has installed its library in the environment of the tests.
    mpi = f"{sys.prefix}/lib/libmpi.so.12"
    return found | {"PATH": f"{bin_folder}:{found['PATH']}", "MPI4PY_LIBMPI": mpi}


def call(
    bin_folder: Path, folder: Path, *words: str, code: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder; it must end with ``code``."""
    done = subprocess.run(
        [bin_folder / "shardwise", *words], cwd=folder, env=environment(bin_folder),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done
