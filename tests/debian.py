"""Programs out of Debian's or Ubuntu's own packages, unpacked into a folder.

Nothing is installed and no root is needed: apt keeps its lists and downloads in a private folder,
and ``dpkg-deb -x`` only unpacks.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[1] / ".cache"

# Raise the number when the unpacked content changes: prefixes of earlier recipes are then ignored.
PREFIX_NAME = "prefix-1"

# After the host's own settings (sources, proxies, keys): private state, and no hooks, some of which
# clear the system's caches. Options of the command line cannot empty a list of hooks.
CONFIG = """\
#clear APT::Update;
#clear DPkg;
Dir::State::lists "{work}/lists/";
Dir::Cache "{work}/";
Dir::Cache::archives "{work}/archives/";
APT::Sandbox::User "root"; // apt's own user may have no way into this folder
Acquire::Languages "none";
Acquire::Retries "3";
"""


class PackagesError(RuntimeError):
    """The packages cannot be obtained on this machine; the message says why."""


def none_here(what: str, error: object) -> None:
    """Skip a test because this machine lacks something, with the reason; in CI, fail it."""
    refuse = pytest.fail if os.environ.get("CI") else pytest.skip
    refuse(f"no {what} here: {error}")


def unpacked(
    name: str, packages: Sequence[str], finish: Callable[[Path], object] = lambda prefix: None
) -> Path:
    """Return a folder holding packages and the libraries they need, unpacked by the first call.

    ``finish`` gets the folder once all is unpacked; if it raises, nothing is kept.
    """
    folder = CACHE / name
    prefix = folder / PREFIX_NAME
    if prefix.is_dir():
        return prefix
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel frees it with the process, however it ends
        if not prefix.is_dir():
            work = folder / "work"
            shutil.rmtree(work, ignore_errors=True)  # what a killed run left
            try:
                _unpack(work, packages)
                finish(work / "prefix")
                # The rename is the mark of completion: a half-unpacked prefix never has this name.
                (work / "prefix").rename(prefix)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return prefix


def library_path(prefix: Path) -> str:
    """The ``LD_LIBRARY_PATH`` of unpacked programs.

    Some packages, such as pulseaudio, keep libraries in a private folder, which their programs look
    for at its usual place on the system.
    """
    patterns = ("lib", "lib/*-linux-gnu", "lib/*-linux-gnu/*/")
    found = [path for top in (prefix / "usr", prefix) for at in patterns for path in top.glob(at)]
    return ":".join(map(str, found))


def _unpack(work: Path, packages: Sequence[str]) -> None:
    """Download the packages into `work` and unpack them into ``work/prefix``."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise PackagesError(f"{tool} not found: {packages[0]} needs Debian or Ubuntu")
    for name in ("lists/partial", "archives/partial", "debs"):
        (work / name).mkdir(parents=True)
    (work / "apt.conf").write_text(CONFIG.format(work=work))
    apt = ["apt-get", f"--config-file={work}/apt.conf", "-q"]
    # An unreachable source of the host must not stop us: the next step shows if it matters.
    _run([*apt, "update"], work, check=False)
    plan = _run([*apt, "-s", "install", "--no-install-recommends", *packages], work)
    # Dependencies that are programs, such as a mail server, are not called here. A package that
    # is installed already is not in the plan, but we still need its daemons in the prefix.
    libraries = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst lib")]
    _run([*apt, "download", *{*libraries, *packages}], work / "debs")
    for deb in sorted(work.glob("debs/*.deb")):
        _run(["dpkg-deb", "-x", str(deb), str(work / "prefix")], work)


def _run(command: list[str], cwd: Path, check: bool = True) -> str:
    """Run a command and return its output, both streams together."""
    env = os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    # A test that waits for packages has a time limit of its own.
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if check and done.returncode != 0:
        shown = " ".join(command[:3])
        raise PackagesError(f"`{shown} …` exited {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout
