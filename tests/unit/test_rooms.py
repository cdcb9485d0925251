"""The rooms of the library and their order: a room imports from lower floors only.

Every import counts, those inside functions as well.
"""

import ast
import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "scripts" / "shardwise"
FLOORS = (
    ("errors",),
    ("units", "host"),
    ("pace",),
    ("files", "processes"),
    ("plan",),
    ("numerics",),
    ("records",),
    ("devices",),
    ("mpi",),
    ("multiply", "reduce"),
    ("work", "merge"),
    ("observe",),
    ("workflow", "doctor"),
    ("command",),
)
"""From the lowest to the highest; rooms on one floor do not import each other."""

TOP_FILES, ROOM_FILES, SCRIPT_LINES = 5, 16, 10
IMPORTERS = {
    "cupy": ("multiply/",), "kvikio": ("multiply/",), "mpi4py": ("mpi/",),
    "h5py": ("files/formats/",), "zarr": ("files/formats/",), "safetensors": ("files/formats/",),
    "obstore": ("files/remote.py",),
}  # fmt: skip
"""Which files may import a package that only some machines have."""

_FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def _imports(path: Path) -> set[str]:
    """All modules that a file imports anywhere, with the names that it takes from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_a_room_imports_only_from_lower_floors():
    """Each has its floor; no import goes upward or sideways."""
    wrong = []
    for path in FILES:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            own = {name.split(".")[1] for name in _imports(path) if name.startswith("shardwise.")}
            others = own & {*_FLOOR} - {room}
            wrong += [(path, other) for other in others if _FLOOR[other] >= _FLOOR[room]]
    assert not wrong


def test_rooms_and_entry_scripts_stay_small():
    """A room has few files, its ``__init__.py`` only a docstring, an entry script few lines."""
    rooms = Counter(path.parent for path in FILES)
    assert rooms.pop(PACKAGE) <= TOP_FILES
    assert not {room: files for room, files in rooms.items() if files > ROOM_FILES}
    for init in PACKAGE.rglob("*/__init__.py"):
        body = ast.parse(init.read_text("utf-8"))
        assert (len(body.body), bool(ast.get_docstring(body))) == (1, True), init
    scripts = [path.read_text("utf-8") for path in PACKAGE.parent.glob("*.py")]
    assert max(len(text.splitlines()) for text in scripts) < SCRIPT_LINES


@pytest.mark.parametrize("package", IMPORTERS)
def test_importers(package):
    """Only the files of `IMPORTERS` import a package that some machines lack."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if any(name.partition(".")[0] == package for name in _imports(path))
    }
    assert found
    assert not {name for name in found if not name.startswith(IMPORTERS[package])}


def test_parsing_a_snakefile_imports_nothing_heavy():
    """Each job parses the Snakefile again, so the rules must not import slow packages."""
    program = (
        "import sys; from shardwise.workflow import hooks, progress, run; "
        "heavy = {'cupy', 'jsonschema', 'mpi4py', 'numba', 'numpy', 'pandas', 'xxhash', 'yaml'}; "
        "print(*sorted(heavy & set(sys.modules)))"
    )
    line = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    assert not done.stdout.split()
