"""Grid Engine out of Debian's or Ubuntu's own packages, made to run from any folder."""

import os
import subprocess
from pathlib import Path

from tests import debian

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "gridengine-common")
PROGRAMS, SHARED = Path("usr/lib/gridengine"), Path("usr/share/gridengine")

# Debian's programs load their spooling library from this path only. If its name has no folder,
# the loader searches where it finds their other libraries.
SPOOLING = b"/usr/lib/gridengine/%s%s\0"
ANYWHERE = b"%s%s\0".ljust(len(SPOOLING), b"\0")


def ensure() -> tuple[Path, Path]:
    """Return two folders, unpacked by the first call: the programs, and what they share.

    The latter has the default settings and the helper scripts.
    """
    prefix = debian.unpacked("uge", PACKAGES, _make_movable)
    return prefix / PROGRAMS, prefix / SHARED


def architecture(shared: Path) -> str:
    """Return Grid Engine's name for this kind of machine, such as ``lx-amd64``."""
    line, env = ["/bin/sh", shared / "util" / "arch"], os.environ | {"SGE_ROOT": str(shared)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise debian.PackagesError(f"Grid Engine's `arch` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _make_movable(prefix: Path) -> None:
    """Let the programs find their libraries: they look in ``../../lib/ARCHITECTURE``.

    So no job inherits an ``LD_LIBRARY_PATH`` that it would not have elsewhere.
    """
    programs = prefix / PROGRAMS
    for program in programs.iterdir():
        if program.is_file() and SPOOLING in (code := program.read_bytes()):
            program.write_bytes(code.replace(SPOOLING, ANYWHERE))
    libraries = prefix / "usr" / "lib" / architecture(prefix / SHARED)
    libraries.mkdir()
    found = [*programs.glob("*.so"), *prefix.glob("usr/lib/*-linux-*/*.so*")]
    for library in (*found, *prefix.glob("lib/*-linux-*/*.so*")):
        (libraries / library.name).symlink_to(os.path.relpath(library, libraries))
