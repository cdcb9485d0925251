"""The packages that `make run` installs, as opposed to those that tests need on top."""

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.factories import ROOT

_HIDE = """
import sys
from importlib.abc import MetaPathFinder


class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Hide())
"""


def installed_with(*lines: str) -> set[str]:
    """The packages of these requirements and all that they depend on, as installed here."""
    found, todo = set[str](), [Requirement(line) for line in lines]
    while todo:
        need = todo.pop()
        name = canonicalize_name(need.name)
        if name in found:
            continue
        found.add(name)
        extras = ["", *need.extras]
        for theirs in map(Requirement, importlib.metadata.requires(name) or []):
            if not theirs.marker or any(theirs.marker.evaluate({"extra": e}) for e in extras):
                todo.append(theirs)
    return found


def hide_the_others(folder: Path) -> str:
    """Write a module that hides all other packages from a Python; returns its ``PYTHONPATH``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kept = {"shardwise"} | installed_with(*project["dependencies"])
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_HIDE.format(hidden=others(kept)))
    return str(folder)


def others(kept: set[str]) -> set[str]:
    """The modules of all packages except ``kept`` and Snakemake's plugins."""
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not any(canonicalize_name(owner) in kept for owner in owners)
        and not module.startswith("snakemake_")  # it imports each plugin that it finds
    }
