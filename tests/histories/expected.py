"""What a results folder must hold: by NumPy where the numbers are exact, else by a fresh run."""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.histories.steps import MATRICES, Config
from tests.workspace import Finished, Workspace

DATA = ("in.npy", "other.npy", "right.npy", "sheet.tsv", "stack", "fun.py", "edit.py")
"""What lies beside the project in a working folder."""

EDIT = '''\
"""Other integers in an .npy file: edit.py FILE SEED 'in place'|anew kept|new int|nan."""
import os
import sys

import numpy as np

file, seed, how, stamp, kind = sys.argv[1:]
old = np.load(file)
new = np.random.default_rng(int(seed)).integers(-4, 5, old.shape).astype(old.dtype)
if kind == "nan":
    new.flat[7] = np.nan
before = os.stat(file)
if how == "in place":
    there = np.load(file, mmap_mode="r+")
    there[:] = new
    there.flush()
else:
    np.save("new.npy", new)
    os.replace("new.npy", file)
os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns) if stamp == "kept" else None)
'''

_EXACT = {"sum", "mean", "min", "max", "argmin", "argmax", "all", "any"}


def prepare(workspace: Workspace, seed: int) -> None:
    """Lay small integer matrices into a working folder; their products and sums are exact."""
    root, draw = workspace.root, np.random.default_rng(seed)
    for name, shape in (("in", (MATRICES, 6, 6)), ("other", (MATRICES, 6, 6)), ("right", (6, 6))):
        np.save(root / f"{name}.npy", _integers(draw, shape))
    (root / "stack").mkdir()
    names = [f"stack/m{number:02}.npy" for number in range(MATRICES)]
    for name in names:
        np.save(root / name, _integers(draw, (6, 6)))
    (root / "sheet.tsv").write_text("\n".join(["path", *reversed(names)]) + "\n")
    (root / "fun.py").write_text("def double(xp, block):\n    return block * 2\n")
    (root / "edit.py").write_text(EDIT)


def _integers(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return draw.integers(-4, 5, shape).astype("float32")


@dataclass
class Expected:
    """The results of a config: what is not known is left out."""

    statistics: dict[str, np.ndarray] = field(default_factory=dict)
    products: np.ndarray | None = None
    files: dict[str, bytes] = field(default_factory=dict)


def by_numpy(place: Path, config: Config) -> Expected | None:
    """What a config gives for the files as they are now; None where only a run can say it."""
    names = config["reduce"]["statistics"]
    left = _stack(place, config["input"])
    if left is None or not set(names) <= _EXACT:
        return None
    products = _products(place, config, left)
    total = products.sum(axis=0)
    known = {
        "sum": total, "mean": total / len(products), "min": products.min(axis=0),
        "max": products.max(axis=0), "argmin": products.argmin(axis=0),
        "argmax": products.argmax(axis=0), "all": products.all(axis=0), "any": products.any(axis=0),
    }  # fmt: skip
    return Expected(known, products)


def _stack(place: Path, named: str | None) -> np.ndarray | None:
    if named is None:
        return None
    if named == "sheet.tsv":
        files = [place / line for line in (place / named).read_text().split()[1:]]
    elif named == "stack":
        files = sorted((place / named).glob("*.npy"))
    elif "*" in named:
        files = sorted(place.glob(named))
    else:
        return np.load(place / named).astype(float)
    return np.stack([np.load(file) for file in files]).astype(float)


def _products(place: Path, config: Config, left: np.ndarray) -> np.ndarray:
    product = config["product"]
    if product == "A @ B":
        return left @ np.load(place / config["right"]).astype(float)
    if product.startswith("fun.py"):
        return left * int((place / "fun.py").read_text().split()[-1])
    turned = left.transpose(0, 2, 1)
    factors = {"A @ A": (left, left), "A.T @ A": (turned, left), "A @ A.T": (left, turned)}
    return np.matmul(*factors[product])


@dataclass
class Fresh:
    """Runs in empty folders, each made once per config and input."""

    warmed: Workspace
    folder: Path
    known: dict[str, tuple[Finished, Expected]] = field(default_factory=dict)

    def run(self, place: Path, config: Config) -> tuple[Finished, Expected]:
        """How a fresh run of a config ends on the files as they are now, and what it gives."""
        config = config | {"results": "results"}
        key = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        named = [place / name for name in DATA]
        for path in sorted(path for own in named for path in (own, *own.glob("*"))):
            key.update(path.read_bytes() if path.is_file() else b"")
        if key.hexdigest() not in self.known:
            self.known[key.hexdigest()] = self._ran(place, config)
        return self.known[key.hexdigest()]

    def _ran(self, place: Path, config: Config) -> tuple[Finished, Expected]:
        workspace = self.warmed.clone(self.folder / "fresh")
        for name in DATA:
            if (place / name).is_dir():
                shutil.copytree(place / name, workspace.root / name)
            else:
                shutil.copy2(place / name, workspace.root)
        workspace.configure(**config)
        done = workspace.run("--cores", "1")
        expected = Expected()
        if done.code == 0:
            names = config["reduce"]["statistics"]
            results = workspace.root / config["results"]
            expected.statistics = {name: np.load(results / f"{name}.npy") for name in names}
            files = (results / "products").glob("*.npy")
            expected.files = {file.stem: file.read_bytes() for file in files}
        shutil.rmtree(workspace.root)
        return done, expected
