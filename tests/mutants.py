"""Put small faults into the code, each alone; see if unit tests and whole runs detect them.

``python -m tests.mutants [SEED]`` tries 49 in copies of the tree. The suite does not run this.
"""

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.factories import ROOT

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
    for source in (ROOT / "scripts/shardwise" / name for name in SOURCES):
        files = sorted(source.glob("*.py")) if source.is_dir() else [source]
        places = [(path, number) for path in files for number in range(len(faults(path)))]
        for path, number in chance.sample(places, 7):
            tree, node, field, value = faults(path)[number]
            before = ast.unparse(node)
            setattr(node, field, value)
            what = " ".join(f"{before} -> {ast.unparse(node)}".split())
            yield path.relative_to(ROOT), node.lineno, what[:150], ast.unparse(tree)


def tried(fault: tuple[Path, int, str, str]) -> str:
    """What becomes of a fault: the first test that fails, of those that import its file first."""
    path, line, what, text = fault
    room = path.parent.name
    own = re.compile(rf"shardwise\.{room}(?:\.| import .*\b){path.stem}\b")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results"))
        (copy / path).write_text(text)
        tests = sorted((copy / "tests/unit").glob("*/test_*.py"))
        tests.sort(key=lambda test: (not own.search(test.read_text()), test.parent.name != room))
        words = ["timeout", "-s", "KILL", "1800", sys.executable, "-m", "pytest", "-x", "-q", "-n0"]
        words += ["-o", "timeout_method=thread", *map(str, tests), "tests/workflow/test_local.py"]
        found = os.environ | {"PYTHONPATH": str(copy / "scripts")}  # for the tests' processes too
        done = subprocess.run(words, cwd=copy, env=found, stdout=-1, text=True, check=False)
    test = re.search(r"^(?:FAILED|ERROR) (.{,100})", done.stdout, re.MULTILINE)
    end = f"killed by {test[1] if test else 'a time limit'}" if done.returncode else "SURVIVED"
    return f"{end}: {path}:{line}: {what}\n"


def main() -> None:
    """Try the faults, as many at once as there are cores, and print what became of each."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for told in pool.map(tried, drawn(int(*sys.argv[1:]))):
            os.write(1, told.encode())


if __name__ == "__main__":
    main()
