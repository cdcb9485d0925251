"""Damaged files for every reader, in any number: python -m tests.hostile.fuzz --cases 1000000.

Hypothesis draws them. With ``--guided`` atheris (the extra `fuzz`) leads the cases of one reader by
what they reach in the code, until it is interrupted. A case that breaks a promise is kept in
``tests/hostile/found`` and ends the run of its reader.
"""

import argparse
import ast
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.hostile.readers import Reader

FOUND = Path(__file__).parent / "found"
"""Cases that once broke a promise, a file a reader, a line each; the suite reads them again."""


def found(name: str) -> list[bytes]:
    """The cases that once broke a promise to a reader."""
    path = FOUND / f"{name}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [ast.literal_eval(line) for line in lines]


def cases(made: "Reader", count: int, keep: Path, guided: bool = False) -> Callable[[], None]:
    """A function that gives a reader so many damaged files, the same in each run of the suite."""

    # The phases that are left out shrink what fails, which the kept case makes needless.
    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.randoms(use_true_random=not guided))
    def read(random):
        raw = made.case(random)
        try:
            made.check(raw)
        except BaseException:
            keep.mkdir(parents=True, exist_ok=True)
            with open(keep / f"{type(made).__name__.lower()}.txt", "a") as file:
                file.write(f"{raw!r}\n")
            raise

    return read


def main() -> None:
    """Read the command line and run."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cases", type=int, default=1_000_000, help="of all readers together")
    arguments.add_argument("--only", nargs="+", help="these readers")
    arguments.add_argument("--guided", action="store_true", help="by atheris; for one reader")
    options = arguments.parse_args()
    if options.guided:
        import atheris

        with atheris.instrument_imports(include=["shardwise"]):
            from tests.hostile import readers
    else:
        from tests.hostile import readers
    names = options.only or list(readers.READERS)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            began, made = time.monotonic(), readers.reader(name, Path(folder) / "x")
            read = cases(made, options.cases // len(names), FOUND, options.guided)
            if options.guided:
                atheris.Setup(sys.argv[:1], read.hypothesis.fuzz_one_input)
                atheris.Fuzz()  # it never returns
            read()
            seconds = time.monotonic() - began
        tried = readers.TRIED[type(made).__name__]
        sys.stdout.write(f"{name:10}{tried:>10} cases in {seconds:.0f} s, none broken\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
