"""The rooms of the library and their order: a room imports from lower floors only.

Every import counts, those inside functions as well. `_KNOWN` may only shrink.
"""

import ast
import functools
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "scripts" / "shardwise"
FLOORS = (
    ("errors",),
    ("units", "host"),
    ("files", "processes"),
    ("plan",),
    ("numerics",),
    ("records",),
    ("devices",),
    ("mpi",),
    ("multiply", "reduce"),
    ("work",),
    ("observe",),
    ("workflow", "doctor"),
    ("cli",),
    ("command",),
)
"""From the lowest to the highest; rooms on one floor do not know each other."""

TOP_FILES, ROOM_FILES, SCRIPT_LINES = 5, 16, 60
IMPORTERS = {
    "cupy": ("multiply/",), "kvikio": ("multiply/",), "mpi4py": ("mpi/", "work/ranks.py"),
    "h5py": ("files/formats/",), "zarr": ("files/formats/",), "safetensors": ("files/formats/",),
    "obstore": ("files/remote.py",),
}  # fmt: skip
"""Who may import what only some machines have."""

_KNOWN: dict[tuple[str, str], str] = {}
"""Imports that break the order, each with the reason; nothing is added here."""

_FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def _module(path: Path) -> str:
    """The dotted name of a file, below the package; empty for the package itself."""
    words = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


FILES = {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def _imports(path: Path, types: bool = True) -> set[str]:
    """All modules that a file imports anywhere, with the names that it takes from them.

    Without ``types`` those are left out that only a type checker follows.
    """
    tree, found = ast.parse(path.read_text("utf-8")), set()
    if not types:
        tree.body = [node for node in tree.body if "TYPE_CHECKING" not in ast.unparse(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _inner(name: str) -> str | None:
    """The module of this package that an import reaches; None for any other package."""
    words = name.split(".")
    if words[0] != PACKAGE.name:
        return None
    for end in range(len(words), 1, -1):
        if (module := ".".join(words[1:end])) in FILES:
            return module
    return ""


def _graph(types: bool) -> dict[str, set[str]]:
    """The modules of this package that each of them imports."""
    return {
        module: {_inner(name) for name in _imports(path, types)} - {None, "", module}
        for module, path in FILES.items()
    }


def _room(module: str) -> str:
    return module.partition(".")[0]


def test_every_file_is_in_a_room_that_has_a_floor():
    """A new room needs a place in the order first."""
    assert {_room(module) for module in FILES if module} <= set(_FLOOR)


def test_a_room_imports_only_from_lower_floors():
    """Neither upward nor sideways, except for what is known, and all of that still exists."""
    wrong = {
        (module, target)
        for module, targets in _graph(types=True).items()
        for target in targets
        if module
        and _room(module) != _room(target)
        and _FLOOR[_room(target)] >= _FLOOR[_room(module)]
    }
    assert wrong == set(_KNOWN)


def test_no_circle():
    """The modules can be put in an order in which each runs with the earlier ones alone."""
    left = _graph(types=False)
    while free := [module for module, targets in left.items() if not targets]:
        for module in free:
            del left[module]
        for targets in left.values():
            targets.difference_update(free)
    assert not left


@pytest.mark.parametrize("room", sorted({_room(module) for module in FILES if module}))
def test_a_signpost_is_a_docstring(room):
    """The first file of a room says what it is, and imports nothing."""
    for path in (PACKAGE / room).rglob("__init__.py"):
        body = ast.parse(path.read_text("utf-8")).body
        assert len(body) == 1, path
        assert ast.get_docstring(ast.Module(body, [])), path


def test_rooms_stay_small():
    """A room that is full is split before anything is added."""
    rooms = defaultdict(list)
    for path in FILES.values():
        rooms[path.parent].append(path.name)
    assert len(rooms.pop(PACKAGE)) <= TOP_FILES
    crowded = {room.name: len(names) for room, names in rooms.items() if len(names) > ROOM_FILES}
    assert not crowded


def test_entry_scripts_stay_short():
    """What a stage does is in the library."""
    lines = {
        path.name: len(path.read_text("utf-8").splitlines()) for path in PACKAGE.parent.glob("*.py")
    }
    assert lines
    assert not {name for name, count in lines.items() if count >= SCRIPT_LINES}


@pytest.mark.parametrize("package", IMPORTERS)
def test_importers(package):
    """Only some rooms import what needs a GPU or starts MPI."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES.values()
        if any(name.partition(".")[0] == package for name in _imports(path))
    }
    assert found
    assert not {name for name in found if not name.startswith(IMPORTERS[package])}


def test_parsing_a_snakefile_imports_nothing_heavy():
    """Each job parses it again: what the rules import takes the standard library only."""
    program = (
        "import sys; from shardwise.workflow import hooks, progress, run; "
        "heavy = {'cupy', 'jsonschema', 'mpi4py', 'numba', 'numpy', 'pandas', 'xxhash', 'yaml'}; "
        "print(*sorted(heavy & set(sys.modules)))"
    )
    line = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    assert not done.stdout.split()
