"""Histories are played here, and each "done" is compared with a fresh run in an empty folder."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests import processes
from tests.histories.expected import Expected, Fresh, by_numpy, prepare
from tests.histories.steps import ROOT, Config, Step
from tests.workspace import SNAKEMAKE, Finished, Workspace

LIMIT_S = 300
"""Within which a step has to end."""

REPAIRS = 4
"""Times that a user does what a message says before the run has to end with 0."""

_IDLE = "Nothing to be done"

_CURES = (
    re.compile(r"((?:rm (?:-\w+ )?|mv )[^\n;]*?)[,;] (?:then|and) (?:run )?snakemake"),
    re.compile(r"(\S+\.(?:tsv|json|npy)):? [^\n]*; remove it,? (?:and )?run snakemake"),
)


class DifferenceError(Exception):
    """A history that did not keep what the product promises."""

    def __init__(self, kind: str, text: str, output: str = "") -> None:
        super().__init__(f"{kind}: {text}\n{output[-4000:]}")
        self.kind = kind


class Stage:
    """Where histories are played: a copy of the project, whose clones each begin anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        env = os.environ | {"OMP_NUM_THREADS": "1", "SHARDWISE_LEASES": str(folder / "leases")}
        warm = Workspace.create(folder / "warm", env)  # what it compiles, all later ones take over
        prepare(warm, 0)
        warm.configure(input="in.npy", shards=2, keep="sum", materialize=True, reduce={"ranks": 1})
        done = warm.run("--cores", "1")
        assert done.code == 0, done.output
        shutil.rmtree(warm.root)
        self.pristine = Workspace.create(folder / "pristine", env)
        self.fresh = Fresh(self.pristine, folder)

    def play(self, steps: Sequence[Step], *, keep: bool = False) -> None:
        """Play a history in folders of its own."""
        root = self.folder / "played"
        shutil.rmtree(root, ignore_errors=True)
        play = Play(self, root)
        try:
            for number, step in enumerate(steps, 1):
                play.step(step, number, excused=any(done.excuse for done in steps[:number]))
            play.verify(steps[-1])
        finally:
            play.end()
            if not keep:
                shutil.rmtree(root, ignore_errors=True)

    def shortest(self, steps: Sequence[Step], kind: str) -> list[Step]:
        """The same history without the steps that the difference does not need."""
        left = list(steps)
        for step in [*steps[:-1]]:
            fewer = [other for other in left if other is not step]
            try:
                self.play(fewer)
            except DifferenceError as error:
                if error.kind == kind:
                    left = fewer
        return left


class Play:
    """One history under way."""

    def __init__(self, stage: Stage, root: Path) -> None:
        self.root, self._fresh, self._at = root, stage.fresh, ""
        root.mkdir()
        for seed, name in enumerate("ab"):
            prepare(stage.pristine.clone(root / name), seed)
        mark = {"HISTORY": str(root), "SNAKEMAKE": SNAKEMAKE, "PYTHON": sys.executable}
        self._env = (stage.pristine.env or {}) | mark

    def step(self, step: Step, number: int, *, excused: bool) -> None:
        """Do it, and look whether what it promises holds."""
        self._at = f"step {number}, {step.what}: "
        done = self._bash(step.script)
        if step.check == "none" or step.config is None:
            return
        config = _rooted(step.config, self.root)
        if done.code and step.check == "done":
            done = self._healed(step, config, done, excused=excused)
        elif done.code and not (excused or self._refused(step, config, done)):
            raise self._difference("unexplained exit", f"{done.code}", done.output)
        if done.code == 0:
            self._check(step, config, done)

    def _difference(self, kind: str, text: str, output: str) -> DifferenceError:
        return DifferenceError(kind, f"{self._at}{text}", output)

    def _bash(self, script: str) -> Finished:
        """Run a script until nothing of it lives."""
        log = self.root / "output"
        with open(log, "wb") as sink:
            run = subprocess.Popen(
                ["bash", "-c", script.replace(ROOT, str(self.root))], cwd=self.root, env=self._env,
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + LIMIT_S
        try:
            run.wait(timeout=LIMIT_S)
            while self._living():
                if time.monotonic() > end:
                    raise subprocess.TimeoutExpired(script, LIMIT_S)
                time.sleep(0.02)
        except subprocess.TimeoutExpired as error:
            self.end()
            run.wait()
            raise self._difference("hang", "", log.read_text(errors="replace")) from error
        return Finished(run.returncode, log.read_text(errors="replace"))

    def _living(self) -> set[int]:
        own = str(self.root)
        return {
            pid
            for pid in processes.living(processes.running())
            if processes.environment(pid).get("HISTORY") == own
        }

    def end(self) -> None:
        """End all that still lives of this history."""
        for pid in self._living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # Runs that do not end with 0.

    def _refused(self, step: Step, config: Config, done: Finished) -> bool:
        """Whether a fresh run of this config on these files does not end with 0 either."""
        return self._fresh.run(self.root / step.place, config)[0].code != 0

    def _healed(self, step: Step, config: Config, done: Finished, *, excused: bool) -> Finished:
        """What a run ends with after the user has done what the messages say."""
        if self._refused(step, config, done):
            return done
        if not excused:
            raise self._difference("unexplained exit", f"{done.code}", done.output)
        for _ in range(REPAIRS):
            if not self._obeyed(step, done):
                raise self._difference("no way on", f"{done.code}", done.output)
            done = self._bash(step.script)
            if done.code == 0:
                return done
        raise self._difference("no end of repairs", f"{done.code}", done.output)

    def _obeyed(self, step: Step, done: Finished) -> bool:
        """Do what a message says, as a user would; returns whether it said anything."""
        if "--unlock" in done.output:
            line = "$SNAKEMAKE --profile profiles/local --configfile mine.yaml --unlock"
            return self._bash(f"cd {step.place}\n{line}\n").code == 0
        commands = {found.strip("`'\"") for found in _CURES[0].findall(done.output)}
        commands |= {f"rm -f {shlex.quote(path)}" for path in _CURES[1].findall(done.output)}
        for command in commands:
            self._bash(f"cd {step.place}\n{command}\n")
        return bool(commands)

    # Runs that end with 0.

    def _check(self, step: Step, config: Config, done: Finished) -> None:
        place, results = self.root / step.place, self.root / step.place / config["results"]
        for kind, text in self._differences(step, config, place, results, done.output):
            raise self._difference(kind, text, done.output)
        if step.check == "done" and _IDLE not in done.output:
            self._check_dry_run(step)

    def _differences(
        self, step: Step, config: Config, place: Path, results: Path, output: str
    ) -> Iterator[tuple[str, str]]:
        if step.check == "done" and "not finished" in output:
            yield "a lie", "exit code 0, and not finished"
        expected = by_numpy(place, config)
        if expected is None:
            fresh, expected = self._fresh.run(place, config)
            if fresh.code:
                yield "wrong done", f"a fresh run ends with {fresh.code}:\n{fresh.output}"
        whole = step.check in ("done", "hand")
        wrong = list(_wrong_statistics(results, config["reduce"]["statistics"], expected))
        if whole:
            yield from (found for found in wrong if not found[0].startswith("stale"))
        rows = _rows(results / "plan.tsv")
        if isinstance(config["shards"], int) and len(rows) != config["shards"]:
            yield "wrong plan", f"{len(rows)} shards in plan.tsv"
        yield from _wrong_products(step, config, results, rows, expected)
        if whole:
            yield from wrong

    def _check_dry_run(self, step: Step) -> None:
        line = "$SNAKEMAKE --profile profiles/local --configfile mine.yaml -n"
        done = self._bash(f"cd {step.place}\n{line}\n")
        if done.code or _IDLE not in done.output:
            raise self._difference("restless", "after a run there is more to do", done.output)

    def verify(self, step: Step) -> None:
        """After the last run the results folder is whole, as verify sees it."""
        if step.config is None or step.check != "done":
            return
        config = _rooted(step.config, self.root)
        if self._fresh.run(self.root / step.place, config)[0].code:
            return
        results = shlex.quote(config["results"])
        done = self._bash(f"cd {step.place}\n$PYTHON scripts/verify.py --input {results}\n")
        if done.code:
            raise self._difference("verify", f"{done.code}", done.output)


def _rooted(config: Config, root: Path) -> Config:
    return config | {"results": config["results"].replace(ROOT, str(root))}


def _rows(plan: Path) -> dict[str, tuple[int, int]]:
    """The matrices of each shard."""
    lines = [line.split("\t") for line in plan.read_text().splitlines()[1:]]
    return {words[0]: (int(words[1]), int(words[2])) for words in lines}


def _wrong_statistics(
    results: Path, wanted: Sequence[str], expected: Expected
) -> Iterator[tuple[str, str]]:
    for name in sorted(expected.statistics, key=lambda name: name not in wanted):
        path, array = results / f"{name}.npy", expected.statistics[name]
        if path.is_file():
            found = np.load(path)
            if not np.array_equal(found, array, equal_nan=found.dtype.kind == "f"):
                kind = "wrong" if name in wanted else "stale"
                yield f"{kind} {name}", f"{path} is\n{found}\na fresh run gives\n{array}"
        elif name in wanted:
            yield f"no {name}", f"{path} is missing"


def _wrong_products(
    step: Step, config: Config, results: Path, rows: dict[str, tuple[int, int]], expected: Expected
) -> Iterator[tuple[str, str]]:
    wanted = {"00001": rows["00001"]} if step.check == "one" else rows
    for shard, (start, stop) in wanted.items():
        path = results / "products" / f"{shard}.npy"
        if not path.is_file():
            yield "no product", f"{path} is missing"
        elif expected.products is not None and config["keep"] == "products":
            found, array = np.load(path), expected.products[start:stop]
            if not np.array_equal(found, array, equal_nan=True):
                yield "wrong product", f"{path} is\n{found}\na fresh run gives\n{array}"
        elif expected.files and path.read_bytes() != expected.files.get(shard):
            yield "wrong product", f"{path} is not as a fresh run writes it"
    if step.check == "one":
        return
    for folder in ("products", "shards"):
        files = [path for path in (results / folder).glob("*") if path.is_file()]
        stale = sorted(path.name for path in files if path.name.split(".")[0] not in rows)
        if stale:
            yield f"stale {folder}", f"{results / folder} holds {stale}"
