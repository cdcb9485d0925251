"""The reduce of finished shards to their sum, beside other ways to add the same files.

Files hold normal numbers, with receipts as ``multiply`` leaves them. In each round all peers take
turns on the same files, cold or in the page cache, each in an MPI world of its own, and the rate of
reading alone is taken as well. Seconds are medians over the rounds, of the time inside the ranks;
ratios are of bytes per second, and medians of the ratios within a round.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import harness
import numpy as np
import transfers
from reduce_peers import PEERS, arrays_in, files_of, plain_file

GIB = 1024**3
OURS, PLAIN, LOWER, RAW = "shardwise", "plain loop", "lower-case reduce", "raw"
PREROUNDED = "prerounded sum"
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
WORLD = Path(__file__).with_name("reduce_peers.py")
WORLD_SECONDS = 300.0  # that a world may take with its start
SHARDS = 8  # files of products; of sums, as many as hold the bytes
TERMS = 2  # matrices of each sum
WARM_DIM, WARM_MATRICES = 1024, 4  # of the small reduce before the clock starts
# More would take minutes: the rest is not read.
MOST_ARRAYS = {PLAIN: 2**22, PREROUNDED: 2**14, LOWER: 2**16}
MOST_BYTES = {PREROUNDED: GIB // 4, LOWER: GIB}
TOLERANCE = 1e-6  # of the norm of the sum
DTYPES = ["float16", "float32", "float64", "complex64"]
CHUNK_BYTES = 32 * harness.MIB


@dataclass(frozen=True)
class Stack:
    """The files of some rows: what each holds."""

    dtype: str
    dim: int
    keep: str
    gib: float

    @property
    def array_bytes(self) -> int:
        """Bytes of one product, or of one sum."""
        if self.keep == "products":
            return self.dim**2 * np.dtype(self.dtype).itemsize
        return self.dim**2 * sum_bytes(self.dtype)

    @property
    def arrays(self) -> int:
        """Products, or sums, of all files."""
        fewest = SHARDS if self.keep == "products" else TERMS
        return max(fewest, int(self.gib * GIB) // self.array_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of all files."""
        return self.arrays * self.array_bytes

    def plan(self, folder: Path) -> Any:
        """A plan of such files in a folder, with all of them made."""
        from shardwise.plan import plan as plans

        sums = self.keep == "sum"
        recipe = {
            "matrices": self.arrays * (TERMS if sums else 1),
            "dim": self.dim, "dtype": self.dtype, "seed": 0,
        }  # fmt: skip
        path = harness.write_plan(
            folder, None, synthetic=recipe, keep=self.keep, backend="numpy",
            shards=self.arrays if sums else SHARDS,
        )  # fmt: skip
        made = plans.load(path)
        fabricate(made)
        return made


@dataclass(frozen=True)
class Cell:
    """One row: some files, where they lie, and how many ranks add them."""

    stack: Stack
    where: str
    ranks: int

    @property
    def label(self) -> str:
        """What the table calls it."""
        stack = self.stack
        return f"{stack.dtype} d={stack.dim} {stack.keep} {self.where}"

    @property
    def name(self) -> str:
        """What ``--only`` looks at."""
        return f"{self.label} ranks={self.ranks}"

    def most(self, peer: str) -> int | None:
        """Arrays that a peer adds, of all files together; None for all of them."""
        most = MOST_ARRAYS.get(peer, self.stack.arrays)
        if peer in MOST_BYTES:
            most = min(most, max(1, MOST_BYTES[peer] // self.stack.array_bytes))
        return most if most < self.stack.arrays else None


def cells(options: argparse.Namespace) -> list[Cell]:
    """All rows; those on the same files follow each other."""
    small, middle, large = (8, None, 520) if options.tiny else (8, 256, 4096)
    gib = 2**-8 if options.tiny else options.gib
    kinds = [(d, "products") for d in (small, middle, large)]
    kinds += [(d, "sum") for d in (middle, large)]
    stacks = [Stack(options.dtype, dim, keep, gib) for dim, keep in kinds if dim]
    places, ranks = ("cached", "cold"), (1, 2) if options.tiny else (1, 2, 4)
    return [Cell(*of) for of in itertools.product(stacks, places, ranks)]


def fabricate(plan: Any) -> None:
    """Write the product files of a plan, their receipts and the ledger, as if it had been run.

    Products are normal numbers, not computed from anything; sums are of matrices of normal numbers.
    """
    from shardwise.files import commit, npy
    from shardwise.numerics import binned, packed
    from shardwise.records import ledger, receipts

    problem, sums = plan.problem, plan.settings.keep == "sum"
    dtype, packing = np.dtype("uint16" if sums else problem.product_dtype), None
    for number, (shard_id, shard) in enumerate(plan.shards.items()):
        started, count = time.time(), shard.stop - shard.start
        path, shape = plan.results.product(shard_id), (count, *problem.product_shape)
        if sums:
            rows, packing = random_sum(problem, count, number)
            blocks, shape = iter([rows]), rows.shape
            plain_file(plan, path).parent.mkdir(exist_ok=True)
            planes = packed.unpack(rows, packing)
            np.save(plain_file(plan, path), binned.rounded(planes, problem.product_dtype))
        else:
            blocks = harness.pieces(dtype.name, int(np.prod(shape)), number)
        with commit.commit(path) as file, npy.StackWriter(file, shape, dtype) as writer:
            for block in blocks:
                writer.append(block)
            checksum = writer.checksum()
        pieces = writer.row_bytes, writer.piece_bytes
        facts = receipts.describe_file(path, shape, dtype.name, checksum, *pieces, packing)
        receipt = {
            "shard": shard_id, "start": shard.start, "stop": shard.stop,
            "fingerprint": shard.fingerprint, "keep": plan.settings.keep, "backend": "numpy",
            "device": {"name": "CPU"}, "attempt": 1, "file": facts, "proof": None,
            **receipts.describe_origin("multiply", started, {}),
        }  # fmt: skip
        receipts.write(plan.results.receipt(shard_id), receipt)
    ledger.write(plan)


@cache
def sum_bytes(dtype: str) -> int:
    """Bytes of an element of a sum of matrices of normal numbers, of which this is one."""
    from shardwise.plan.problem import Problem

    rows, _ = random_sum(Problem(TERMS, (256, 256), "A @ A", dtype), TERMS, 0)
    return int(rows.nbytes) // 256**2


def random_sum(problem: Any, terms: int, seed: int) -> tuple[np.ndarray, Any]:
    """The packed planes of a sum of matrices of normal numbers."""
    from shardwise.multiply import sinks
    from shardwise.multiply.lanes import HostLane

    shape = (terms, *problem.product_shape)
    added = sinks.PlanesOfSum(np, problem, terms)
    added.allocate()
    added.take(harness.normal(np, shape, problem.product_dtype, seed))
    return added.result()(HostLane()), added.packing


def expected(plan: Any, most: int | None) -> np.ndarray:
    """The sum of what a peer adds, in float64, by NumPy."""
    total = np.zeros(plan.problem.product_shape, plan.problem.sum_dtype)
    for path, count in files_of(plan, most):
        found = arrays_in(plan, path)
        step = max(1, CHUNK_BYTES // found[0].nbytes)
        for first in range(0, count, step):
            total += found[first : min(first + step, count)].sum(axis=0, dtype=total.dtype)
    return total


@dataclass
class Bench:
    """The files of the present rows, and what goes around a reduce.

    Attributes
    ----------
    broken
        Why a peer has no result, by its name; of the present cell.
    """

    folder: Path
    memory: np.ndarray
    broken: dict[str, str] = field(default_factory=dict)
    _stack: Stack | None = None
    _plans: list[Any] = field(default_factory=list)
    _sums: dict[int | None, np.ndarray] = field(default_factory=dict)

    def prepare(self, stack: Stack) -> None:
        """Make the files of a row, and of the small reduce; those of other rows go."""
        if stack == self._stack:
            return
        self._stack, self._sums = None, {}
        for folder in self.folder.iterdir():
            shutil.rmtree(folder)
        small = min(stack.dim, WARM_DIM)
        warm = Stack(stack.dtype, small, stack.keep, WARM_MATRICES * 4 * small**2 / GIB)
        self._plans = [stack.plan(self.folder / "files"), warm.plan(self.folder / "warm")]
        self._stack = stack

    @property
    def files(self) -> list[Path]:
        """The product files of the present rows."""
        plan = self._plans[0]
        return [plan.results.product(shard) for shard in plan.shards]

    def settle(self, cell: Cell) -> None:
        """Take all files out of the page cache, or read them into it."""
        plain = [plain_file(self._plans[0], path) for path in self.files]
        for path in self.files + (plain if cell.stack.keep == "sum" else []):
            if cell.where == "cold":
                transfers.evict(path)
            elif transfers.cached_fraction(path) != 1:
                transfers.warm(path, self.memory)
        os.sync()

    def measure(self, name: str, cell: Cell) -> dict[str, Any] | None:
        """One turn of one peer; None where it failed, which is noted."""
        if name in self.broken:
            return None
        try:
            if name == RAW:
                return {"seconds": self._read(cell)}
            self.settle(cell)
            return self._reduce(name, cell)
        except Exception as error:
            self.broken[name] = harness.reason(error)
            return None

    def _read(self, cell: Cell) -> float:
        """Seconds to read all files, by the best of some numbers of threads."""
        cold, found = cell.where == "cold", []
        for threads in (
            (4 * cell.ranks, transfers.THREADS) if cold else (cell.ranks, 4 * cell.ranks)
        ):
            self.settle(cell)
            found.append(transfers.read_files(self.files, self.memory, cold, threads))
        return min(found)

    def _reduce(self, name: str, cell: Cell) -> dict[str, Any]:
        """One reduce in a world of its own; with the bytes that it added."""
        output, most = self.folder / "files" / "found.npy", cell.most(name)
        plan, warm = self._plans
        words = [name, plan.results.plan, warm.results.plan, output]
        few = [] if most is None else ["--most", most]
        answer = run_world(cell.ranks, [*words, *few])
        self._check(name, np.load(output), most)
        added = sum(count for _, count in files_of(plan, most))
        return {**answer, "bytes": added * cell.stack.array_bytes}

    def _check(self, name: str, found: np.ndarray, most: int | None) -> None:
        plan = self._plans[0]
        if most not in self._sums:
            self._sums[most] = expected(plan, most)
        truth = self._sums[most]
        # The lower-case reduce adds a few products in their own precision.
        allowed = max(TOLERANCE, 8 * float(np.finfo(plan.problem.product_dtype).eps))
        error = np.linalg.norm(found - truth) / np.linalg.norm(truth)
        if not error < allowed:
            raise ValueError(f"wrong result, by {error:.1e} of its norm")


def run_world(ranks: int, words: list[Any]) -> dict[str, Any]:
    """What rank 0 of a new MPI world says.

    Raises
    ------
    RuntimeError
        Where the world fails, or takes too long.
    """
    line = [MPIEXEC, "-n", ranks, sys.executable, "-m", "mpi4py", WORLD, *words]
    process = subprocess.Popen(
        [str(word) for word in line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, complaint = process.communicate(timeout=WORLD_SECONDS)
    except BaseException as error:
        process.terminate()  # mpiexec ends its ranks
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RuntimeError(f"no answer within {WORLD_SECONDS:.0f} s") from error
        raise
    if process.returncode:
        lines = [line for line in complaint.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"exit code {process.returncode}")
    return json.loads(out.splitlines()[-1])


def rounds(bench: Bench, cell: Cell, most: int, budget: harness.Budget) -> list[dict[str, Any]]:
    """Answers by peer, a dictionary a round; after the first only while time is left."""
    done: list[dict[str, Any]] = []
    names = [*PEERS, RAW]
    while len(done) < most and (not done or budget.left):
        answers = {n: bench.measure(n, cell) for n in harness.in_turn(names, len(done))}
        done.append({name: answer for name, answer in answers.items() if answer})
    return done


HEADINGS = ["job", "ranks", "GB", "rounds", "s", "GB/s", "to the plain loop",
            "to the prerounded sum", "to the lower-case reduce", "to raw reads",
            "read of the files", "peak MiB", "beside the result MiB"]  # fmt: skip


def add_row(table: harness.Table, bench: Bench, cell: Cell, done: list[dict[str, Any]]) -> None:
    """One row of the table, with its remarks."""
    nbytes, names = cell.stack.nbytes, [*PEERS, RAW]
    rates = {
        name: [a.get("bytes", nbytes) / a["seconds"] if (a := r.get(name)) else None for r in done]
        for name in names
    }

    def against(name: str) -> float | None:
        pairs = zip(rates[OURS], rates[name], strict=True)
        return harness.median(harness.ratio(own, other) for own, other in pairs)

    ours = [answers[OURS] for answers in done if OURS in answers]
    seconds = harness.median(answer["seconds"] for answer in ours)
    key = "read_bytes" if cell.where == "cold" else "rchar"
    read = harness.median(answer[key] / nbytes for answer in ours)
    peak = max((answer["peak"] for answer in ours), default=None)
    number = 16 if "complex" in cell.stack.dtype else 8
    part = number * cell.stack.dim**2 // cell.ranks
    columns = [
        seconds, harness.ratio(nbytes / harness.GB, seconds),
        *(against(name) for name in (PLAIN, PREROUNDED, LOWER, RAW)), read,
        peak and peak / harness.MIB, peak and (peak - part) / harness.MIB,
    ]  # fmt: skip
    figures = {**vars(cell.stack), "where": cell.where, "ranks": cell.ranks, "bytes": nbytes,
               "answers": done, "rates": rates, "broken": dict(bench.broken)}  # fmt: skip
    table.row([cell.label, cell.ranks, nbytes / harness.GB, len(done), *columns], figures)
    for remark in remarks(bench, cell, done):
        table.note(remark)


def remarks(bench: Bench, cell: Cell, done: list[dict[str, Any]]) -> Iterator[str]:
    """What a row cannot say."""
    for name, why in bench.broken.items():
        yield f"{cell.name}: {name}: {why}"
    for name in PEERS:
        if (most := cell.most(name)) is not None:
            share = most * cell.stack.array_bytes / harness.GB
            yield f"d={cell.stack.dim} {cell.stack.keep}: {name}: on {share:.2f} GB of the files"


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = harness.parser(__doc__)
    harness.add_folder(parser)
    parser.set_defaults(minutes=60.0)
    parser.add_argument("--rounds", type=int, default=3, help="at most, while time is left")
    parser.add_argument("--gib", type=float, default=4.0, help="GiB of the files of a row")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--only", default="", help="regular expression for rows: LABEL ranks=N")
    return parser


def run(options: argparse.Namespace, folder: Path) -> None:
    """Measure row by row."""
    budget = harness.Budget(options.minutes)
    bench = Bench(folder, transfers.ring(np, options.tiny))
    harness.say(
        f"Reduce, {harness.machine()}, {transfers.file_system(folder)}; GB of files per second"
    )
    table = harness.Table("reduce", HEADINGS, options.json)
    longest = 0.0
    for cell in (c for c in cells(options) if re.search(options.only, c.name)):
        if budget.left <= longest:
            table.note(f"{cell.name}: skipped, out of time")
            continue
        begin, bench.broken = time.monotonic(), {}
        try:
            bench.prepare(cell.stack)
            done = rounds(bench, cell, 1 if options.tiny else options.rounds, budget)
            add_row(table, bench, cell, done)
            longest = max(longest, (time.monotonic() - begin) / len(done))
        except Exception as error:  # the disk is full, say: the next row may be smaller
            table.note(f"{cell.name}: {harness.reason(error)}")
    table.note(
        "read of the files: cold, what the disk gave; cached, what calls to read gave, which leave "
        "mapped files out; with what is read again of the result"
    )
    table.note("peak: Python, its libraries and mapped pages of the files are part of it")
    table.end()


def main() -> None:
    """Measure in a folder that is removed afterwards."""
    options = arguments().parse_args()
    with harness.working_folder(options) as folder:
        run(options, folder)


if __name__ == "__main__":
    main()
