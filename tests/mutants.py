"""Put small faults into the code, one at a time; see if the unit tests of its room detect them.

``python -m tests.mutants [SEED]`` tries 49 in a copy of the tree. The suite does not run this.
"""

import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.factories import ROOT

PACKAGE = "scripts/shardwise"
SOURCES = (
    "records/store.py", "numerics/tree.py", "multiply/ring.py", "work/", "reduce/", "merge/",
    "plan/",
)  # fmt: skip
_PAIRS = [("Eq", "NotEq"), ("Lt", "LtE"), ("Gt", "GtE"), ("In", "NotIn"), ("Is", "IsNot"),
          ("Add", "Sub"), ("Mult", "FloorDiv"), ("LShift", "RShift"), ("And", "Or")]  # fmt: skip
OTHERS = dict(_PAIRS) | {other: one for one, other in _PAIRS}


def changes(node: Any) -> Iterator[tuple[str, object]]:
    """The fields of a node that may hold another value, and that value."""
    operator = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
    if other := OTHERS.get(type(operator).__name__):
        made = getattr(ast, other)()
        yield ("ops", [made, *node.ops[1:]]) if isinstance(node, ast.Compare) else ("op", made)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield "value", not node.value if isinstance(node.value, bool) else node.value + 1
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "test", ast.UnaryOp(ast.Not(), node.test)


def faults(path: Path) -> list[tuple[ast.AST, Any, str, object]]:
    """Each fault that one change makes: the tree, its node, the field, and what it then holds."""
    tree = ast.parse(path.read_text())
    return [(tree, node, *change) for node in ast.walk(tree) for change in changes(node)]


def drawn(seed: int) -> Iterator[tuple[Path, int, str, str]]:
    """Draw seven faults in each of `SOURCES`: file, line, what has changed, whole text."""
    chance = random.Random(seed)
    for source in (ROOT / PACKAGE / name for name in SOURCES):
        files = sorted(source.glob("*.py")) if source.is_dir() else [source]
        places = [(path, number) for path in files for number in range(len(faults(path)))]
        for path, number in chance.sample(places, 7):
            tree, node, field, value = faults(path)[number]
            before = ast.unparse(node)
            setattr(node, field, value)
            what = " ".join(f"{before} -> {ast.unparse(node)}".split())
            yield path.relative_to(ROOT), node.lineno, what[:150], ast.unparse(tree)


def passes(copy: Path, path: Path) -> bool:
    """Whether the unit tests of a file's room, its own first, pass within five minutes."""
    room = Path("tests/unit", path.parts[2])
    own = [name for name in (room / f"test_{path.name}", room) if (copy / name).exists()]
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", *map(str, own)]
    with subprocess.Popen(line, cwd=copy, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        try:
            return run.wait(300) == 0
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return False


def main() -> None:
    """Try the faults and print whether each was killed or survived."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results"))
        for path, line, what, text in drawn(int(*sys.argv[1:])):
            (copy / path).write_text(text)
            end = "survived" if passes(copy, path) else "killed"
            shutil.copy2(ROOT / path, copy / path)
            os.write(1, f"{end:8} {path}:{line}: {what}\n".encode())


if __name__ == "__main__":
    main()
