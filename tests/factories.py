"""Seeded makers of stacks, configs and plans; small integers, so that sums are exact to the bit."""

import json
import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shardwise.errors import InputError
from shardwise.files.extents import OpenFiles
from shardwise.files.paths import SUMS
from shardwise.multiply import copy, job
from shardwise.numerics import gemm
from shardwise.plan import config, planner
from shardwise.plan import plan as plan_file
from shardwise.plan.config import Settings
from shardwise.plan.plan import Plan
from shardwise.plan.problem import PRODUCTS
from shardwise.plan.stack import StackReader
from shardwise.records import ledger, receipts
from shardwise.records.receipts import ProductReceipt
from shardwise.reduce import reducer

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
TURNED = {
    "": lambda x: x,
    "T": lambda x: x.swapaxes(-1, -2),
    "H": lambda x: x.swapaxes(-1, -2).conj(),
}


def factors(product: str, a: Any, b: Any = None) -> list[Any]:
    """The two factors of a product, as it is written."""
    parts = (part.partition(".") for part in product.split(" @ "))
    return [TURNED[how]({"A": a, "B": b}[name]) for name, _, how in parts]


def right_rows(product: str, rows: int, columns: int) -> int | None:
    """The rows of B for an A of this many rows and columns; None if the product has no B."""
    return {"A @ B": columns, "A.T @ B": rows, "A.H @ B": rows}.get(product)


REFERENCES = {p: lambda a, b=None, p=p: operator.matmul(*factors(p, a, b)) for p in PRODUCTS}


def read(reader: StackReader, start: int, stop: int) -> np.ndarray:
    """Matrices ``start`` to ``stop`` of a stack, ``(n, m, k)``."""
    block = np.empty((stop - start, reader.matrix_bytes), np.uint8)
    reader.read_into(
        OpenFiles(reader.inputs.compare), block.reshape(-1), start * reader.matrix_bytes
    )
    return block.view(reader._dtype).reshape(-1, *reader._shape)


def nightly(*values: Any) -> Any:
    """A case that runs only at night: a case of the daily suite tests the same mechanism."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def stack(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Small integers as elements of a dtype: every product and every sum of them is exact."""
    random, kind = np.random.default_rng(seed), np.dtype(dtype).kind
    numbers = random.integers(0 if kind == "u" else -3, 4, shape)
    if kind == "c":
        numbers = numbers + 1j * random.integers(-3, 4, shape)
    return numbers.astype(dtype)


def noise(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> np.ndarray:
    """Standard normal numbers, whose sums do round."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        numbers = numbers + 1j * random.standard_normal(shape)
    return numbers.astype(dtype)


def wide(array: Any) -> Any:
    """The same numbers as float64, complex128 or int64."""
    kinds = {"f": "float64", "c": "complex128"}
    return None if array is None else array.astype(kinds.get(array.dtype.kind, "int64"))


def refusal(act: Any, *words: Any, kind: type[Exception] = InputError, **over: Any) -> str:
    """The message of the error that ``act`` raises."""
    with pytest.raises(kind) as caught:
        act(*words, **over)
    return str(caught.value)


def refused(made: Plan, shard: str = "00000", kind: type[Exception] = InputError) -> str:
    """The message that refuses a shard, which leaves nothing behind."""
    told = refusal(job.run_shard, copied(made), shard, kind=kind)
    assert not [*made.results.products.glob("*"), *leftovers(made.results.root)]
    return told


def settings(**over: Any) -> Settings:
    """A checked config that computes on the CPU."""
    return config.load({"backend": "numpy", "materialize": True, **over})


def save(path: Path, array: np.ndarray) -> Path:
    """Save a ``.npy`` file; make its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


def plan(folder: Path, left: Any = None, right: Any = None, **over: Any) -> Plan:
    """A plan on disk in ``folder/results``, with its input in ``folder``."""
    if left is not None:
        over["input"] = str(save(folder / "input.npy", left))
    if right is not None:
        over["right"] = str(save(folder / "right.npy", right))
    made = planner.make(settings(**{"results": str(folder / "results"), **over}))
    planner.write(made)
    return plan_file.load(made.results.plan)


def copied(made: Plan) -> Plan:
    """The same plan, with its synthetic stack and copies of shards on disk if it asks for them."""
    if made.facts.synthetic:
        copy.synthesize(made)
    if made.settings.materialize:
        for shard_id in made.shards:
            copy.materialize(made, shard_id)
    return made


def computed(made: Plan) -> Plan:
    """The same plan, all its shards multiplied."""
    for shard_id in copied(made).shards:
        job.run_shard(made, shard_id)
    return made


def listed(made: Plan) -> Plan:
    """The same plan, all its shards multiplied, with their ledger."""
    ledger.write(computed(made))
    return made


def reduced(made: Plan, *names: str) -> np.ndarray:
    """The sum of a listed plan, or other statistics too, by one rank in this process."""
    from mpi4py import MPI

    reducer.run(MPI.COMM_SELF, made.results.plan, list(names) or ["sum"])
    first = SUMS if made.problem.labels else names[0] if names else "sum"
    return np.load(made.results.statistic(first))


def repeated(made: Plan, count: int | None = None) -> Plan:
    """The same plan; its first ``count`` shards, or all, have the product of the first shard.

    The sum is right only if all matrices are alike.
    """
    first, *others = list(made.shards.values())[:count]
    job.run_shard(made, first.shard)
    product = made.results.product(first.name).read_bytes()
    said = json.loads(made.results.receipt(first.name).read_bytes())
    del said["digest"]
    for row in others:
        path = made.results.product(row.name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(product)
        said |= {"shard": row.shard, "start": row.start, "stop": row.stop}
        said["file"]["name"], said["key"] = path.name, row.key
        path.with_suffix(".json").write_bytes(receipts._text(said))
    return made


def file(made: Plan, kind: str, shard_id: str = "00000") -> Path:
    """A file of a shard: ``product``, ``receipt``, ``shard`` or ``shard_receipt``."""
    row = made.shards[shard_id]
    return getattr(made.results, kind)(row.input_name if "shard" in kind else row.name)


def receipt(made: Plan, shard_id: str = "00000") -> ProductReceipt:
    """The receipt of a shard's product."""
    return receipts.read(file(made, "receipt", shard_id), ProductReceipt)


def kept(path: Path, raw: bytes) -> None:
    """Write other bytes into a file, and keep its time stamp."""
    before = path.stat()
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(path: Path, at: int = -1, bit: int = 0) -> None:
    """Change one bit of a file, by default of its last byte; keep its size and time stamp."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    kept(path, raw)


def pipe(path: Path) -> None:
    """Replace a file by a named pipe: opening it would block forever."""
    path.unlink()
    os.mkfifo(path)


def astray(path: Path) -> None:
    """Replace a file by a dangling link."""
    path.unlink()
    path.symlink_to("nowhere")


def rewritten(path: Path, without: str = "", **values: Any) -> None:
    """Rewrite a receipt with other values and a new digest; keep its time stamp."""
    said = json.loads(path.read_bytes()) | values
    own = {key: value for key, value in said.items() if key not in ("digest", without)}
    kept(path, receipts._text(own))


def products(made: Plan) -> np.ndarray:
    """The product files of a plan, concatenated; under ``keep: sum`` they hold tree nodes."""
    return np.concatenate([np.load(made.results.product(row.name)) for row in made.shards.values()])


def multiplied(made: Plan, left: np.ndarray, right: np.ndarray | None = None) -> np.ndarray:
    """Products by the plan's own call of BLAS: on some CPUs other calls round differently."""
    out = np.empty((len(left), *made.problem.product_shape), made.problem.product_dtype)
    gemm.kernel(np, made.problem, "ieee").multiply(left, right, out, len(left))
    return out


def partials(made: Plan) -> np.ndarray:
    """The partial sums of a plan, one per shard."""
    return np.stack(
        [np.load(made.results.product(row.name)).sum(axis=0) for row in made.shards.values()]
    )


def results(made: Plan) -> np.ndarray:
    """The products of a plan, or the partial sums of its shards."""
    return partials(made) if made.settings.keep == "sum" else products(made)


def leftovers(folder: Path) -> list[Path]:
    """Temporary files anywhere under a folder."""
    return sorted(folder.rglob("*.tmp"))


def command(script: str, *words: Any) -> list[str]:
    """A script's command line."""
    return [sys.executable, str(SCRIPTS / f"{script}.py"), *map(str, words)]


def run(script: str, *words: Any, **options: Any) -> subprocess.CompletedProcess:
    """Run a script by hand and wait for it."""
    return subprocess.run(
        command(script, *words), capture_output=True, text=True, check=False, **options
    )


def mpirun(ranks: int, made: Plan, *words: Any) -> subprocess.CompletedProcess:
    """Run the reduce of a plan under ``mpiexec``."""
    launcher = str(Path(sys.executable).parent / "mpiexec")
    line = [launcher, "-n", str(ranks), *command("reduce", "--plan", made.results.plan, *words)]
    return subprocess.run(
        line, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
