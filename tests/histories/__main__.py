"""Play random histories: python -m tests.histories --count 300.

A history that shows a difference is printed with its seed, and as the shortest script for bash that
shows it too.
"""

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
    arguments.add_argument("--seed", type=int, default=0, help="of the first history")
    arguments.add_argument("--count", type=int, default=300, help="histories to play")
    arguments.add_argument("--show", action="store_true", help="print the histories, play none")
    arguments.add_argument("--keep", type=Path, help="keep the folder of the last one here")
    options = arguments.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    if options.show:
        for seed in seeds:
            _say(f"seed {seed}\n{told(history(seed))}")
        return 0
    with tempfile.TemporaryDirectory(prefix="histories-") as folder:
        return _played(Stage(options.keep or Path(folder)), seeds, options)


def _played(stage: Stage, seeds: Sequence[int], options: argparse.Namespace) -> int:
    kinds = Counter[str]()
    for seed in seeds:
        steps, start = history(seed), time.monotonic()
        try:
            stage.play(steps, keep=bool(options.keep))
        except DifferenceError as error:
            kinds[error.kind] += 1
            _say(f"seed {seed}: DIFFERENCE, {error}", f"seed {seed}: {[s.what for s in steps]}")
            shortest = stage.shortest(steps, error.kind)
            _say(f"seed {seed}: {error.kind}, shortest script that shows it:", told(shortest))
        else:
            seconds = time.monotonic() - start
            _say(f"seed {seed}: as it must be; {len(steps)} steps in {seconds:.0f} s")
    _say(f"{len(seeds)} histories, {kinds.total()} with a difference: {dict(kinds)}")
    return 1 if kinds else 0


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
