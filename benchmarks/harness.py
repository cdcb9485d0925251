"""What the benchmarks share: options, turns, tables, and data."""

import argparse
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

REPO = Path(__file__).parents[1]
sys.path[:0] = [str(REPO / "scripts"), str(REPO)]  # a bare GPU machine has nothing installed

MIB, GIB, GB = 1024**2, 1024**3, 1e9
DRAWN = 2**23 - 15  # numbers drawn for a file, which repeats them: a prime, so matrices differ


def options(text: str, tiny: dict[str, Any], **defaults: Any) -> argparse.Namespace:
    """The options of the command line; under ``--tiny`` the values of ``tiny`` replace them."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--tiny", action="store_true", help="tiny cells on NumPy, without a GPU")
    for name, default in defaults.items():
        several = isinstance(default, list)
        more: dict[str, Any] = {"type": type(default[0] if several else default)}
        more |= {"nargs": "+"} if several else {}
        more = {"action": "store_true"} if default is False else more
        parser.add_argument(f"--{name}", default=default, help=f"default: {default}", **more)
    found = parser.parse_args()
    vars(found).update(tiny if found.tiny else {})
    return found


def in_turn(calls: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[Any]]:
    """What each call returns, round by round.

    Each round has its own random order, the same in all processes: a call after heavy work finds a
    slower device, and a call after another reader of the same files finds them in memory.
    """
    found: dict[Any, list[Any]] = {name: [] for name in calls}
    random = np.random.default_rng(0)
    for _ in range(rounds):
        for place in random.permutation(len(calls)):
            name = list(calls)[place]
            found[name].append(calls[name]())
    return found


def heading(*cells: str) -> None:
    """Begin a Markdown table."""
    say("")
    row(*cells)
    say("|---" * len(cells) + "|")


def row(*cells: object) -> None:
    """Print a row: floats with four significant digits, None as a dash."""
    texts = [f"{c:.4g}" if isinstance(c, float) else str("–" if c is None else c) for c in cells]
    say(f"| {' | '.join(texts)} |")


def say(text: str) -> None:
    """Write a line and flush it, so that a run that is killed has shown its results so far."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a remark to standard error, outside the table."""
    sys.stderr.write(f"{text}\n")


def machine(xp: Any = np) -> str:
    """Processor, Python and NumPy, and a device with its library, in one line."""
    words = f"{os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"
    if xp is np:
        return words
    name = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    return f"{name}, CuPy {xp.__version__}, CUDA {xp.cuda.runtime.runtimeGetVersion()}, {words}"


def array_module(numpy: bool) -> Any:
    """NumPy or, where there is a GPU, cupy."""
    from shardwise.multiply import backend

    if numpy:
        return np
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # all peers have to share one device
    backend.clear_switches()
    import cupy

    return cupy


def drop(paths: Iterable[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # pages that are not on the disk yet would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def write_stack(path: Path, dtype: str, shape: tuple[int, ...], seed: int = 0) -> None:
    """Write a stack of normal numbers, as fast as a disk takes them."""
    left = math.prod(shape)
    random = np.random.default_rng(seed)
    drawn = random.standard_normal(min(DRAWN, left), "float32").astype(dtype)
    with open(path, "wb") as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for rest in range(left, 0, -len(drawn)):
            file.write(drawn[:rest].data)


def plan(folder: Path, stack: Path, **over: Any) -> Any:
    """The plan of a stack that is read in place, in one shard; ``over`` are config keys."""
    from shardwise.plan import sources

    from tests import factories

    own, look = {"input": str(stack), "shards": 1, "materialize": False, **over}, sources._look
    # A benchmark may list a file several times, which a run would refuse: each counts as another.
    with mock.patch.object(sources, "_look") as patched:
        patched.side_effect = lambda *asked: [
            (*found[:2], found[2]._replace(place=str(place)))
            for place, found in enumerate(look(*asked))
        ]
        return factories.plan(folder, **own)
