"""The command `shardwise`, installed from a wheel, in folders of a user's own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace import REPO, Workspace, hand_on_compiled

_SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "Snakefile", "config.yaml",
            "workflow", "profiles", "scripts")  # fmt: skip


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a fresh environment has the command; its other packages are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    clone, environment = folder / "clone", folder / "environment"
    clone.mkdir()
    for name in _SOURCES:
        copy = shutil.copytree if (REPO / name).is_dir() else shutil.copy2
        copy(REPO / name, clone / name)
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
    shutil.rmtree(clone)  # nothing may come from it
    numerics = Path("shardwise", "numerics")
    hand_on_compiled(REPO / "scripts" / numerics, packages / numerics)
    return environment / "bin"


def call(
    bin_folder: Path, folder: Path, *words: str, code: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder."""
    env = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "MPI4PY_LIBMPI": f"{sys.prefix}/lib/libmpi.so.12",  # of the environment of the tests
    }
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["shardwise", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_run_from_a_wheel_has_the_bits_of_a_clone(bin_folder: Path, tmp_path: Path) -> None:
    """`init`, `plan`, `run` and `verify` in an empty folder; snakemake is shown once."""
    folder = tmp_path / "mine"
    folder.mkdir()
    call(bin_folder, folder, "init")
    config = folder / "config.yaml"
    text = config.read_text().replace("matrices: 48, dim: 256", "matrices: 12, dim: 16")
    config.write_text(text.replace("shards: 8", "shards: 3"))
    call(bin_folder, folder, "plan")
    done = call(bin_folder, folder, "run")
    line = done.stderr.splitlines()[0]
    assert " -m snakemake --profile profiles/local -s " in line
    assert done.stderr.count(" -s ") == 1
    assert "whole" in call(bin_folder, folder, "verify").stdout
    clone = Workspace.create(tmp_path / "clone")
    shutil.copy2(config, clone.root / "config.yaml")
    clone.run()
    result = Path("results", "default", "sum.npy")
    assert (folder / result).read_bytes() == (clone.root / result).read_bytes()
    with (folder / "profiles" / "local" / "config.yaml").open("a") as profile:
        profile.write("# a remark\n")
    assert "Nothing to be done" in call(bin_folder, folder, "run").stderr


def test_what_a_folder_lacks_is_said(bin_folder: Path, tmp_path: Path) -> None:
    """No config, two profiles, a command that there is not: each ends with 2 and what to do."""
    assert "shardwise init" in call(bin_folder, tmp_path, "run", code=2).stderr
    for profile in ("slurm", "uge"):
        call(bin_folder, tmp_path, "init", "--profile", profile)
    assert "--profile" in call(bin_folder, tmp_path, "run", "-n", code=2).stderr
    assert "no command 'rnu'" in call(bin_folder, tmp_path, "rnu", code=2).stderr
    assert "usage: shardwise plan " in call(bin_folder, tmp_path, "plan", "--help").stdout
