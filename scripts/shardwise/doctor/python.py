"""Python and the packages that the main job needs, beside their pins."""

import importlib.metadata
import importlib.util
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shardwise.doctor.findings import Finding, fault, note, ok

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
_OLDEST = (3, 11)
_PIN = re.compile(r"([\w.-]+)(?:\[[^]]*\])?==([\w.]+)$")


def findings() -> Iterator[Finding]:
    """Python's version, each package's version, and a product with NumPy."""
    yield _python()
    yield from packages(pins(PROJECT), _installed)
    yield _numpy()


def pins(project: Path) -> dict[str, str]:
    """The version that the project pins of each package, by the package's name.

    Parameters
    ----------
    project
        ``pyproject.toml``; where it is missing, what was installed is asked.
    """
    if project.is_file():
        lines = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        lines = importlib.metadata.requires("shardwise") or []
    return {match[1]: match[2] for line in lines if (match := _PIN.match(line))}


def packages(
    pinned: Mapping[str, str], installed: Callable[[str], str | None]
) -> Iterator[Finding]:
    """What is missing, and what has another version than the tested one."""
    found = {name: installed(name) for name in pinned}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        text = f"not installed: {', '.join(missing)}"
        yield fault("packages", text, "make install", missing=missing)
    for name, version in found.items():
        if version not in (None, pinned[name]):
            text = f"{name} is {version}; tested is {pinned[name]}"
            yield note("packages", text, "make install", package=name, version=version)
    fitting = [name for name, version in found.items() if version == pinned[name]]
    if fitting:
        text = f"{len(fitting)} of {len(pinned)} have the version that was tested"
        yield ok("packages", text, versions=found)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    version, facts = platform.python_version(), {"executable": sys.executable}
    if sys.version_info < _OLDEST:
        cure = "name a newer one: make clean, then make install PYTHON=python3.12"
        return fault("python", f"{version} is older than 3.11", cure, version=version, **facts)
    return ok("python", f"{version}, {sys.executable}", version=version, **facts)


def _numpy() -> Finding:
    """A product, which loads the libraries behind NumPy."""
    try:
        import numpy as np  # here: that it may be missing is what is looked for

        total = float((np.ones((64, 64)) @ np.ones((64, 64))).sum())
    except ImportError as error:
        return fault("numpy", f"cannot be imported: {error}", "make install")
    if total != 64**3:
        return fault("numpy", f"a product of ones sums to {total}, not {64**3}", "make install")
    return ok("numpy", f"{np.__version__} multiplies", version=np.__version__)
