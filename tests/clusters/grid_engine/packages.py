"""Grid Engine out of Debian's or Ubuntu's own packages, made to run from any folder."""

import os
import subprocess
from pathlib import Path

from tests import debian

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "gridengine-common")

# Debian's programs load their spooling library from this path only. If its name has no folder,
# the loader searches where it finds their other libraries.
SPOOLING = b"/usr/lib/gridengine/%s%s\0"
ANYWHERE = b"%s%s\0".ljust(len(SPOOLING), b"\0")


def ensure() -> Path:
    """Return a folder holding Grid Engine, unpacked by the first call."""
    return debian.unpacked("uge", PACKAGES, _make_movable)


def programs(prefix: Path) -> Path:
    """Return the folder with the daemons and commands."""
    return prefix / "usr" / "lib" / "gridengine"


def shared(prefix: Path) -> Path:
    """Return the folder with the default settings and the helper scripts."""
    return prefix / "usr" / "share" / "gridengine"


def architecture(prefix: Path) -> str:
    """Return Grid Engine's name for this kind of machine, such as ``lx-amd64``."""
    env = os.environ | {"SGE_ROOT": str(shared(prefix))}
    line = ["/bin/sh", shared(prefix) / "util" / "arch"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise debian.PackagesError(f"Grid Engine's `arch` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _make_movable(prefix: Path) -> None:
    """Let the programs find their libraries: they look in ``../../lib/ARCHITECTURE``.

    So no job inherits an ``LD_LIBRARY_PATH`` that it would not have elsewhere.
    """
    for program in programs(prefix).iterdir():
        if program.is_file() and SPOOLING in (code := program.read_bytes()):
            program.write_bytes(code.replace(SPOOLING, ANYWHERE))
    libraries = prefix / "usr" / "lib" / architecture(prefix)
    libraries.mkdir()
    found = [*programs(prefix).glob("*.so"), *prefix.glob("usr/lib/*-linux-*/*.so*")]
    for library in (*found, *prefix.glob("lib/*-linux-*/*.so*")):
        (libraries / library.name).symlink_to(os.path.relpath(library, libraries))
