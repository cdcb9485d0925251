"""Play random histories: python -m tests.histories --count 300.

A history that shows a difference is printed with its seed, and as the shortest script for bash that
shows it too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.histories.steps import ROOT, Step, history
from tests.histories.world import DifferenceError, Stage


def told(steps: Sequence[Step]) -> str:
    """A history as a script for bash."""
    parts = [f"# {number}. {step.place}: {step.what}\n({step.script})" for number, step in
             enumerate(steps, 1)]  # fmt: skip
    return "\n".join(parts).replace(ROOT, '"$PWD"')


def main() -> int:
    """Read the command line and play."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--seed", type=int, nargs="+", default=[0], help="of the first history; several: of each"
    )
    arguments.add_argument("--count", type=int, default=300, help="histories to play")
    arguments.add_argument("--seconds", type=float, help="begin none after so long")
    arguments.add_argument("--whole", action="store_true", help="do not shorten what fails")
    arguments.add_argument("--show", action="store_true", help="print the histories, play none")
    arguments.add_argument("--keep", type=Path, help="keep the folder of the last one here")
    options = arguments.parse_args()
    first, *others = options.seed
    seeds = options.seed if others else range(first, first + options.count)
    if options.show:
        for seed in seeds:
            _say(f"seed {seed}\n{told(history(seed))}")
        return 0
    with tempfile.TemporaryDirectory(prefix="histories-") as folder:
        return _played(Stage(options.keep or Path(folder)), seeds, options)


def _played(stage: Stage, seeds: Sequence[int], options: argparse.Namespace) -> int:
    began, kinds, played = time.monotonic(), Counter[str](), 0
    for seed in seeds:
        if options.seconds and time.monotonic() - began > options.seconds:
            break
        steps, start = history(seed), time.monotonic()
        played += 1
        try:
            stage.play(steps, keep=bool(options.keep))
        except DifferenceError as error:
            kinds[error.kind] += 1
            _say(f"seed {seed}: DIFFERENCE, {error}", f"seed {seed}: {[s.what for s in steps]}")
            if not options.whole:
                shortest = stage.shortest(steps, error.kind)
                _say(f"seed {seed}: {error.kind}, shortest script that shows it:", told(shortest))
        else:
            seconds = time.monotonic() - start
            _say(f"seed {seed}: as it must be; {len(steps)} steps in {seconds:.0f} s")
    _say(f"{played} histories, {kinds.total()} with a difference: {dict(kinds)}")
    return 1 if kinds else 0


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
