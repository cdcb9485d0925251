"""Damaged files for every reader, in any number: python -m tests.hostile.fuzz --cases 1000000.

With atheris (the extra `fuzz`) the cases are led by what they reach in the code; without it they
are drawn blindly. Both damage files in the same ways. It prints how many cases each reader was
given, and ends with 1 where any broke a promise; such a case is kept in ``tests/hostile/found``.
"""

import argparse
import ast
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

FOUND = Path(__file__).parent / "found"
"""Cases that once broke a promise, a file a reader, a line each; the suite reads them again."""

GUIDED = importlib.util.find_spec("atheris") is not None
_ENOUGH = 40


def found(name: str) -> list[bytes]:
    """The cases that once broke a promise to a reader."""
    path = FOUND / f"{name}.txt"
    return (
        [ast.literal_eval(line) for line in path.read_text().splitlines()] if path.exists() else []
    )


class Session:
    """Cases for one reader in one process, counted; those that break a promise are kept."""

    def __init__(self, name: str, cases: int, seed: int, folder: Path, keep: Path) -> None:
        from tests.hostile import readers

        self.reader = readers.reader(name, folder)
        self.name, self.cases, self.keep = name, cases, keep
        self.random = Random(f"{name} {seed}")
        self.tried, self.accepted = 0, 0
        self.broken: Counter[str] = Counter()

    def step(self, raw: bytes) -> None:
        """Read one case."""
        self.tried += 1
        try:
            self.accepted += self.reader.check(raw)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self._keep(raw, error)

    def _keep(self, raw: bytes, error: BaseException) -> None:
        """Keep the first case that fails at a place, and say where that is."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "shardwise" in f.filename] or frames
        place = f"{type(error).__name__} in {own[-1].name}: {str(error)[:60]}"
        self.broken[place] += 1
        if self.broken[place] > 1 or len(self.broken) > _ENOUGH:
            return
        self.keep.mkdir(parents=True, exist_ok=True)
        with open(self.keep / f"{self.name}.txt", "a") as file:
            file.write(f"{raw!r}\n")

    def told(self) -> str:
        """One line of figures, and one for each place that broke."""
        lines = [f"{self.name}\t{self.tried}\t{self.accepted}\t{sum(self.broken.values())}"]
        return "\n".join([*lines, *(f"# {n} times {place}" for place, n in self.broken.items())])

    def blind(self) -> None:
        """Draw all cases."""
        while self.tried < self.cases:
            self.step(self.reader.case(self.random))

    def guided(self) -> None:
        """Let atheris choose which cases are damaged further; it ends the process."""
        import atheris

        def damage(raw: bytes, most: int, seed: int) -> bytes:
            from tests.hostile.mutate import mutated

            random, most = Random(seed), min(most, self.reader.most)
            if not raw or not random.randrange(4):
                return self.reader.case(random)[:most]
            return mutated(raw, random, self.reader.seeds)[:most]

        def one(raw: bytes) -> None:
            if self.tried == self.cases:
                _say(self.told())
                os._exit(0)
            self.step(raw)

        with tempfile.TemporaryDirectory() as corpus:
            for number, seed in enumerate(self.reader.seeds):
                (Path(corpus) / str(number)).write_bytes(seed)
            words = [sys.argv[0], f"-seed={self.random.randrange(1, 2**31)}", "-max_len=65536"]
            words += ["-verbosity=0", "-timeout=600", "-rss_limit_mb=0", corpus]
            atheris.Setup(words, one, custom_mutator=damage)
            atheris.Fuzz()


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def _one(options: argparse.Namespace) -> None:
    """The process of one reader."""
    if options.guided:
        import atheris

        with atheris.instrument_imports(include=["shardwise"]):
            from tests.hostile import readers  # noqa: F401 - the readers import what they read with
    with tempfile.TemporaryDirectory() as folder:
        own = Session(options.reader, options.cases, options.seed, Path(folder) / "x", options.keep)
        if options.guided:
            own.guided()
        own.blind()
    _say(own.told())


def run(cases: int, seed: int, keep: Path, names: list[str], guided: bool) -> tuple[int, int]:
    """Give so many cases to the readers, in equal parts; how many were tried, and broke."""
    total, broken = 0, 0
    _say("guided by atheris" if guided else "drawn blindly (atheris would lead them)")
    _say(f"{'reader':10}{'tried':>10}{'accepted':>10}{'broken':>8}{'seconds':>9}")
    for number, name in enumerate(names):
        part = cases * (number + 1) // len(names) - cases * number // len(names)
        words = ["--reader", name, "--cases", str(part), "--seed", str(seed), "--keep", str(keep)]
        words += ["--guided"] if guided else []
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tests.hostile.fuzz", *words],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith((f"{name}\t", "# "))]
        if done.returncode or not lines:
            sys.stderr.write(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}\n")
            raise SystemExit(f"{name}: the process ended with {done.returncode}")
        tried, accepted, bad = map(int, lines[0].split("\t")[1:])
        seconds = time.monotonic() - began
        _say(f"{name:10}{tried:>10}{accepted:>10}{bad:>8}{seconds:>9.0f}", *lines[1:])
        total, broken = total + tried, broken + bad
    _say(f"{'all':10}{total:>10}{'':>10}{broken:>8}")
    return total, broken


def main() -> None:
    """Read the command line and run."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cases", type=int, default=1_000_000, help="of all readers together")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only", nargs="+", help="these readers")
    arguments.add_argument("--keep", type=Path, default=FOUND, help="where cases are kept")
    arguments.add_argument("--blind", action="store_true", help="also where atheris is installed")
    arguments.add_argument("--reader", help=argparse.SUPPRESS)
    arguments.add_argument("--guided", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.reader:
        return _one(options)
    from tests.hostile.readers import READERS

    guided = not options.blind and GUIDED
    tried, broken = run(
        options.cases, options.seed, options.keep, options.only or list(READERS), guided
    )
    sys.exit(bool(broken) or tried != options.cases)


if __name__ == "__main__":
    main()
