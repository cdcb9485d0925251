"""Python and the packages that the main job needs, beside their pins."""

import importlib
import importlib.metadata
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shardwise import host
from shardwise.doctor import findings as base
from shardwise.doctor.findings import Finding, fault, note, ok
from shardwise.errors import InputError, of_import
from shardwise.host import PROJECT
from shardwise.processes import environment

_PIN = re.compile(r"([\w.-]+)(?:\[[^]]*\])?==([\w.]+)$")


def findings() -> Iterator[Finding]:
    """Python's version, and each package's."""
    version = platform.python_version()
    text = f"{version}, {sys.executable}"
    yield ok("python", text, version=version, executable=sys.executable)
    yield from packages(pins(), _installed)
    yield from loading(environment.PACKAGES, importlib.import_module)


def pins() -> dict[str, str]:
    """The version that the project pins of each package, by the package's name."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    lines = tomllib.loads(text)["project"]["dependencies"]
    return {match[1]: match[2] for line in lines if (match := _PIN.match(line))}


def packages(
    pinned: Mapping[str, str], installed: Callable[[str], str | None]
) -> Iterator[Finding]:
    """What is missing, and what has another version than the tested one."""
    found = {name: installed(name) for name in pinned}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        text = f"not installed: {', '.join(missing)}"
        yield fault("packages", text, host.install(), missing=missing)
    for name, version in found.items():
        if version not in (None, pinned[name]):
            text = f"{name} is {version}; tested is {pinned[name]}"
            yield note("packages", text, host.install(), package=name, version=version)
    fitting = [name for name, version in found.items() if version == pinned[name]]
    if fitting:
        text = f"{len(fitting)} of {len(pinned)} have the version that was tested"
        yield ok("packages", text, versions=found)


def loading(names: Iterable[str], load: Callable[[str], Any]) -> Iterator[Finding]:
    """What keeps the jobs from loading what they import, if anything does."""
    try:
        environment.refuse_other_packages()
        for name in names:
            load(name)
    except (InputError, ImportError) as error:
        refused = of_import(error) if isinstance(error, ImportError) else error
        yield base.refused("loading", refused, host.install(anew=True))


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
