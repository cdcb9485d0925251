"""Python, the packages that the jobs import, and variables that make it find others."""

import importlib.metadata
import os
import platform
import re
import sys
import tomllib
from typing import Any

from shardwise import host
from shardwise.doctor.finding import Call, Finding, Findings, judge
from shardwise.errors import FINDERS

# Packages with compiled code: a copy for another Python does not load.
_PACKAGES = "numpy, numba, pandas, mpi4py, xxhash, msgspec, yaml, matplotlib"


def installed() -> dict[str, str]:
    """The version of each installed package, by its name as normalized by package indexes."""
    found = ((d.metadata["Name"] or "", d.version) for d in importlib.metadata.distributions())
    return {re.sub("[-_.]+", "-", name).lower(): version for name, version in found}


def check(ask: Call, installed: Call = installed, environ: Any = os.environ) -> Findings:
    """The versions of Python and each package, and whether all that the jobs import loads."""
    yield Finding("ok", "python", f"{platform.python_version()}, {sys.executable}")
    project = tomllib.loads((host.PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    pins, here = dict(line.split("==") for line in project["dependencies"]), installed()
    odd = {name: here.get(name, "missing") for name, pin in pins.items() if here.get(name) != pin}
    found = ", ".join(f"{name} {version} (tested: {pins[name]})" for name, version in odd.items())
    bad = "fault" if "missing" in odd.values() else "note"
    found, allowed = found or f"all {len(pins)} as tested", "the tested versions; others may work"
    yield judge(not odd, "packages", found, allowed, host.install(), bad)
    strays = ", ".join(name for name in FINDERS if environ.get(name))
    reply = ask([sys.executable, "-P", "-c", f"import {_PACKAGES}"])
    found = "all that jobs import" if reply.code == 0 else f"a package does not load: {reply.last}"
    found += f"; packages in {strays} come first" * bool(strays)
    do, bad = f"unset {strays}" if strays else host.install(anew=True), "fault"
    do, bad = ("try --time-limit 60", "later") if reply.code is None else (do, bad)
    yield judge(reply.code == 0, "loading", found, "packages for this Python", do, bad)
