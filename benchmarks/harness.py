"""What the benchmarks share: a budget of time, tables that grow row by row, clocks, and data."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO / "scripts"))  # a bare GPU machine has nothing installed

MIB = 1024**2
GB = 1e9
NOTHING = "–"
DRAWN = 2**23  # numbers drawn for a file, which holds pieces of them


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--minutes", type=float, default=7.0, help="what is not begun by then is not")
    made.add_argument("--tiny", action="store_true", help="tiny cells on NumPy, without a GPU")
    return made


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where files are written."""
    default = REPO / ".cache" / "benchmarks"
    parser.add_argument("--folder", type=Path, default=default, help="where files are written")


@contextmanager
def working_folder(options: argparse.Namespace) -> Iterator[Path]:
    """A folder to measure in, which is removed afterwards."""
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        yield Path(name).resolve()


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """Names in the order of round ``number``: each begins another one."""
    ring = list(names)
    return ring[number % len(ring) :] + ring[: number % len(ring)]


class Budget:
    """Wall time that a benchmark may take."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())


class Table:
    """A Markdown table; rows appear as they are made, so that an interrupted run loses none."""

    def __init__(self, columns: list[str]) -> None:
        self._notes: list[str] = []
        say(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")

    def row(self, cells: Iterable[object]) -> None:
        """Print a row."""
        texts = [cell if isinstance(cell, str) else number(cell) for cell in cells]
        say(f"| {' | '.join(texts)} |")

    def note(self, text: str) -> None:
        """Keep a remark for below the table; the same remark is made once."""
        if text not in self._notes:
            self._notes.append(text)

    def end(self) -> None:
        """Print the remarks."""
        say("\n" + "".join(f"- {note}\n" for note in self._notes))


def say(text: str) -> None:
    """Write a line at once: a run that is killed has shown what it found."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def number(value: object) -> str:
    """Three significant digits; a dash for what is not there."""
    if value is None:
        return NOTHING
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.2e}"


def reason(error: BaseException) -> str:
    """Why something failed, in one line that fits a table."""
    first = (str(error).strip().splitlines() or [""])[0].replace("|", "/")
    return f"{type(error).__name__}: {first}"[:200]


def ratio(over: float | None, under: float | None) -> float | None:
    """A quotient, or None where either is missing."""
    return over / under if over and under else None


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is there."""
    there = [v for v in values if v is not None]
    return statistics.median(there) if there else None


def machine() -> str:
    """Processor, Python and NumPy, in one line."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}"
    )


def array_module(tiny: bool) -> Any:
    """NumPy in a tiny run, else cupy; without a GPU the process ends with 2."""
    from shardwise import errors
    from shardwise.multiply import backend

    need_gpu(tiny)
    try:
        return backend.array_module("numpy" if tiny else "cupy")
    except errors.ShardwiseError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def need_gpu(tiny: bool) -> None:
    """End with 2 where there is no driver, unless the run is tiny.

    Where nobody has chosen a device, it is the first: all that is compared has to share one.
    """
    from shardwise.devices import choose

    if tiny:
        return
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    if choose.driver_cuda_version() is None:
        sys.stderr.write("no NVIDIA driver here: run on a GPU node, or try --tiny on NumPy\n")
        sys.exit(2)


def device_name(xp: Any) -> str:
    """The device that a run computed on, with its library."""
    if xp is np:
        return "NumPy on the CPU"
    name = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    return f"{name}, CuPy {xp.__version__}, CUDA {xp.cuda.runtime.runtimeGetVersion()}"


def seconds_of(xp: Any, call: Callable[[], object], calls: int) -> float:
    """Seconds that one of several calls in a row takes on the device, by its own events."""
    if xp is np:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls
    first, last = xp.cuda.Event(), xp.cuda.Event()
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return xp.cuda.get_elapsed_time(first, last) / 1e3 / calls


def devices() -> list[str]:
    """UUIDs of the GPUs of this machine; without one the process ends with 2."""
    from shardwise.devices import choose

    need_gpu(False)
    del os.environ["CUDA_VISIBLE_DEVICES"]
    return [device.uuid for device in choose.candidates()]


def drop(paths: Iterable[Path]) -> None:
    """Take files out of the page cache."""
    for path in {path.resolve() for path in paths}:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # pages that are not on the disk yet would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def file_system(folder: Path) -> str:
    """Type and device of the file system that a folder lies on."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    inside = [m for m in lines if folder.resolve().is_relative_to(m[1].replace("\\040", " "))]
    device, _, kind, *_ = max(inside, key=lambda m: len(m[1]))
    return f"{kind} on {device}"


def normal(xp: Any, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Standard normal numbers on the device."""
    wide = "float64" if dtype == "float64" else "float32"
    if xp is np:
        return np.random.default_rng(seed).standard_normal(shape, dtype=wide).astype(dtype)
    xp.random.seed(seed)
    drawn = xp.random.standard_normal(shape, dtype=wide)
    return drawn.astype(dtype, copy=False)


def pieces(dtype: str, numbers: int, seed: int = 0) -> Iterator[np.ndarray]:
    """So many normal numbers, a piece at a time, made as fast as a disk takes them.

    Each is cut at a place of its own from what was drawn once, so that few matrices are equal.
    """
    random = np.random.default_rng(seed)
    piece = min(DRAWN // 2, numbers)
    drawn = random.standard_normal(2 * piece, "float32").astype(dtype, copy=False)
    while numbers:
        low = int(random.integers(piece))
        count = min(piece, numbers)
        yield drawn[low : low + count]
        numbers -= count


def settings(**over: Any) -> Any:
    """A config with its defaults; the schema's checks need a package that a bare machine lacks."""
    import yaml
    from shardwise import units
    from shardwise.plan import config

    schema = yaml.safe_load(config.SCHEMA.read_text())
    full = {key: rule.get("default") for key, rule in schema["properties"].items()} | over
    full["shard_bytes"] = units.parse_bytes(full["shard_bytes"])
    full["reduce"] = config.reduce_settings(full)
    return config.Settings(**full)


def write_plan(folder: Path, stack: Path | None, **over: Any) -> Path:
    """Plan a stack that is read in place, in one shard; the path of its ``plan.tsv``.

    Without a stack it is a synthetic one, which need not be there. ``over`` are config keys.
    """
    from shardwise.plan import planner

    folder.mkdir(parents=True, exist_ok=True)
    own = {"input": stack and str(stack), "shards": 1, "materialize": False, **over}
    # A benchmark's input is one set of matrices under many names, which a run would refuse.
    with mock.patch("shardwise.plan.sources._refuse_twice"):
        plan = planner.make(settings(results=str(folder), **own))
    planner.write(plan)
    return plan.results.plan


class Cost(NamedTuple):
    """What a command took: wall time, CPU time, and the most memory of one of its processes."""

    seconds: float
    cpu_seconds: float
    mib: float


def cost(line: list[str], **options: Any) -> Cost:
    """The cost of a command that must succeed; options as of `subprocess.Popen`."""
    start = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, **options)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{line} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(time.perf_counter() - start, cpu, usage.ru_maxrss / 1024)


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    return json.loads(path.read_bytes())
