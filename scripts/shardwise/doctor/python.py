"""Whether the packages that the jobs import load, and variables that make Python find others."""

import os
import platform
import sys
from typing import Any

from shardwise import host
from shardwise.doctor.finding import Call, Finding, Findings, judge
from shardwise.errors import FINDERS

# Packages with compiled code: a copy for another Python does not load.
_PACKAGES = "numpy, numba, pandas, mpi4py, xxhash, msgspec, yaml, matplotlib"


def check(ask: Call, environ: Any = os.environ) -> Findings:
    """The version of Python, and whether all that the jobs import loads."""
    yield Finding("ok", "python", f"{platform.python_version()}, {sys.executable}")
    strays = ", ".join(name for name in FINDERS if environ.get(name))
    reply = ask([sys.executable, "-P", "-c", f"import {_PACKAGES}"])
    found = "all that jobs import" if reply.code == 0 else f"a package does not load: {reply.last}"
    found += f"; packages in {strays} come first" * bool(strays)
    do = f"unset {strays}" if strays else host.install()
    bad = "later" if reply.code is None else "fault"
    yield judge(reply.code == 0, "loading", found, "packages for this Python", do, bad)
