"""Whatever happens to a results folder, "done" and "nothing to be done" are true.

Hypothesis draws histories, and shrinks one that breaks the promise. It prints the remaining steps,
each with its bash script. ``HISTORIES=20`` in the environment plays fewer.
"""

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, currently_in_test_context, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests import processes
from tests.workspace import SNAKEMAKE, Finished, Workspace

Config = dict[str, Any]
At = tuple[int, int]

LIMIT_S = 300  # of one step
REPAIRS = 4  # How often a user follows the messages of a run before it has to end with 0.
PARTS = 4  # of a night's histories, side by side, as processes wait half of their time
MATRICES = 12
ONE, RECIPE = {"ranks": 1}, {"matrices": MATRICES, "dim": 6, "dtype": "float32", "seed": 0}
BASE: Config = {
    "input": "in.npy", "synthetic": RECIPE, "shards": 2, "materialize": False, "keep": "products",
    "dispatch": "jobs", "product": "A @ A", "right": None, "results": "results",
    "reduce": ONE | {"statistics": ["sum"]},
}  # fmt: skip
CHANGES: list[tuple[int, list[Config]]] = [
    (6, [{"input": name} for name in ("other.npy", "in.npy", "stack", "sheet.tsv", "stack/m0*.npy",
                                      None)]),
    (6, [{"shards": number} for number in (3, 4, 5)]),
    (4, [{"product": name, "right": None} for name in ("A.T @ A", "A @ A.T", "fun.py:double")]),
    (3, [{"product": "A @ B", "right": name} for name in ("right.npy", "other.npy")]),
    (4, [{"keep": "sum"}]),
    (4, [{"materialize": True}]),
    (4, [{"dispatch": name} for name in ("pool", "pool", "mpi")]),
    (3, [{"reduce": ONE | {"statistics": names}} for names in
         (["sum", "max"], ["mean"], ["std"], ["min"], ["max", "sum"])]),
    (2, [{"input": None, "synthetic": RECIPE | other} for other in
         ({"seed": 1}, {"dtype": "float64"}, {"matrices": MATRICES - 2})]),
    (2, [{"reduce": {"ranks": 2, "statistics": ["sum"]}}]),
    (1, [{"backend": "numpy"}, {"verify": False}, {"nonfinite": "allow"}, {"workers": "node"},
         {"precision": "tf32"}, {"precision": "tf32x3"}, {"array_limit": 2}, {"array_tasks": 2},
         {"shards": "auto", "shard_bytes": 600}, {"shards": "auto", "shard_bytes": "1KiB"}]),
]  # fmt: skip
"""Changes of a config, with their relative frequency."""

ALL = ("sum", "mean", "min", "max", "std")
LOST = (
    "products/00001-*.npy", "products/00001-*.json", "products/00000-*", "products",
    "shards/00000-*.npy", "shards", "done", "failed", "ledger.tsv", "sum.npy", "summary.json",
    "{sum.npy,summary.json}", "plan.tsv", "plan.json", "plan.*", "sources.tsv", "input.npy", "logs",
    "report.html", "metrics.prom", "{ledger.tsv,summary.json}", "logs/ledger",
)  # fmt: skip
"""What may be removed from a results folder, as patterns of bash."""

DATA = ("in.npy", "other.npy", "right.npy", "sheet.tsv", "stack", "fun.py", "edit.py")
"""What a working folder contains besides the project."""

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
kept = (before.st_atime_ns, before.st_mtime_ns)
os.utime(file, ns=kept) if stamp == "kept" else os.utime(file)
'''

_CURES = (
    re.compile(r"((?:rm (?:-\w+ )?|mv )[^\n;]*?)[,;] (?:then|and) start the run"),
    re.compile(r"(\S+\.(?:tsv|json|npy)):? [^\n]*; remove it,? (?:and )?start the run"),
)
_PLAN = "$PYTHON scripts/plan.py --configfile config.yaml mine.yaml"
_KEY = re.compile("-[0-9a-f]{12}")
_NAME = r"""sed -n 's/^\(00001\)\t.*\t\(.*\)$/\1-\2/p' "$RESULTS"/plan.tsv"""
_SNAKEMAKE = "$SNAKEMAKE --profile profiles/local --configfile mine.yaml --cores 1"


class Stage:
    """A pristine copy of the project, its clones, and a cache of what fresh runs in them leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        env = os.environ | {"OMP_NUM_THREADS": "1", "SHARDWISE_LEASES": str(folder / "leases")}
        self.pristine = Workspace.create(folder / "pristine", env)
        self.pristine.configure(**BASE | {"input": None, "results": str(folder / "warm")})
        self.pristine.succeed("--cores", "1")  # clones take over what it compiles
        shutil.rmtree(self.pristine.root / ".snakemake")
        self._fresh: dict[str, tuple[Finished, dict[str, bytes]]] = {}

    def prepare(self, root: Path, seed: int) -> None:
        """A working folder with small integer matrices, whose products and sums are exact."""
        self.pristine.clone(root)
        draw, names = np.random.default_rng(seed), [f"stack/m{i:02}.npy" for i in range(MATRICES)]
        (root / "stack").mkdir()
        for name in ("in.npy", "other.npy", "right.npy", *names):
            shape = (MATRICES, 6, 6) if name in ("in.npy", "other.npy") else (6, 6)
            np.save(root / name, draw.integers(-4, 5, shape).astype("float32"))
        (root / "sheet.tsv").write_text("\n".join(["path", *reversed(names)]) + "\n")
        (root / "fun.py").write_text("def double(xp, block):\n    return block * 2\n")
        (root / "edit.py").write_text(EDIT)

    def fresh(self, place: Path, config: Config) -> tuple[Finished, dict[str, bytes]]:
        """How a fresh run on the files as they are now ends, and its arrays by name without key.

        It makes all statistics that it can, to compare with any that lie in a results folder: none
        there may be of something else.
        """
        asked = config["reduce"]["statistics"]
        more = {"products": ALL, "sum": ("sum", "mean")}[config["keep"]]
        names = list(dict.fromkeys((*asked, *more))) if {*asked} <= {*more} else asked
        config = config | {"results": "out", "reduce": config["reduce"] | {"statistics": names}}
        key = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        for name in DATA:
            for path in sorted((place / name).rglob("*.npy")) or [place / name]:
                key.update(path.read_bytes())
        if key.hexdigest() not in self._fresh:
            workspace = self.pristine.clone(self.folder / "fresh")
            for name in DATA:
                copy = shutil.copytree if (place / name).is_dir() else shutil.copy2
                copy(place / name, workspace.root / name)
            workspace.configure(**config)
            done, out = workspace.run("--cores", "1"), workspace.root / "out"
            made = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.npy")}
            made = {_KEY.sub("", name): content for name, content in made.items()}
            self._fresh[key.hexdigest()] = done, made
            shutil.rmtree(workspace.root)
        return self._fresh[key.hexdigest()]


def configs(changes: int) -> st.SearchStrategy[Config]:
    """Draw some changes of a config, merged into one."""
    kinds = st.sampled_from([news for often, news in CHANGES for _ in range(often)])
    drawn = st.lists(kinds.flatmap(st.sampled_from), max_size=changes)
    return drawn.map(lambda news: {key: value for new in news for key, value in new.items()})


OTHER = st.tuples(st.integers(0, 1), st.integers(0, 1))
"""Whether a step uses the other working folder than the last run, and the other config."""

acted = precondition(lambda self: self.steps)
calm = precondition(lambda self: self.steps and self.disturbed < 2)


class Histories(RuleBasedStateMachine):
    """Two configs with one results folder or two, or two working folders that share results."""

    stage: ClassVar[Stage]

    def __init__(self) -> None:
        super().__init__()
        self.root = self.stage.folder / "played"
        self.root.mkdir()
        self.steps = self.disturbed = 0
        self.excused = self.failed = False
        self._env = (self.stage.pristine.env or {}) | {
            "HISTORY": str(self.root), "SNAKEMAKE": SNAKEMAKE, "PYTHON": sys.executable,
        }  # fmt: skip

    @initialize(
        kind=st.sampled_from(["one folder"] * 5 + ["shared"] * 2 + ["two folders"] * 2),
        first=configs(3), second=configs(2), twin=st.booleans(),
    )  # fmt: skip
    def begin(self, kind: str, first: Config, second: Config, twin: bool = False) -> None:
        """Make the first run; two working folders may have the same config on other input."""
        shared = kind == "shared"
        one = BASE | first | ({"results": "../shared"} if shared else {})
        two = one if shared and twin else one | second
        self.configs = [one, two | ({"results": "other_results"} if kind == "two folders" else {})]
        self.places, self.last = ["a", "b"] if shared else ["a"], ("a", 0)
        for seed, name in enumerate(self.places):
            self.stage.prepare(self.root / name, seed)
        self.run((0, 0), "")

    def at(self, other: At) -> tuple[str, int]:
        """The working folder and the config number of a step, relative to those of the last run."""
        place, number = self.last
        places = self.places if place == self.places[0] else self.places[::-1]
        return places[other[0] % len(places)], (number + other[1]) % 2

    # Runs, which must be right.

    @acted
    @rule(
        other=st.sampled_from([(0, 0)] * 5 + [(0, 1), (1, 0), (1, 1)]),
        words=st.sampled_from([""] * 36 + ["-q", "--quiet progress", "--quiet all", "--forceall",
                                           "-R reduce"] + ["-R multiply"] * 2),
    )  # fmt: skip
    def run(self, other: At, words: str) -> None:
        """A whole run by snakemake."""
        self.last = self.at(other)
        dispatch = self.configs[self.last[1]]["dispatch"]
        words = words if dispatch == "jobs" else words.replace("multiply", dispatch)
        self.step(f"snakemake {words}", f"{_SNAKEMAKE} {words}\n", self.last, check="done")
        self.disturbed = 0

    # Whatever else may happen.

    @calm
    @rule(other=OTHER, end=st.sampled_from(["multiply", "ledger", "reduce", "reduce"]),
          dispatch=st.sampled_from(["", "", "pool", "mpi"]))  # fmt: skip
    def by_hand(self, other: At, end: str, dispatch: str) -> None:
        """The commands of the README by hand, up to some stage."""
        at = self.at(other)
        config, plan = self.configs[at[1]], '--plan "$RESULTS"/plan.tsv'
        each = 'for s in $(tail -n +2 "$RESULTS"/plan.tsv | cut -f1); do '
        each += f"$PYTHON scripts/{{}}.py {plan} --shard $s || exit; done"
        lines = [_PLAN]
        lines += [f"$PYTHON scripts/synthesize.py {plan}"] * (config["input"] is None)
        lines += [each.format("shard")] * config["materialize"]
        ranks = " --ranks 1" if dispatch == "mpi" else ""
        by = f"$PYTHON scripts/dispatch.py {plan} --dispatch {dispatch}{ranks}"
        lines += [by if dispatch else each.format("multiply")]
        lines += [f"$PYTHON scripts/ledger.py {plan}"] * (end != "multiply")
        names = " ".join(config["reduce"]["statistics"])
        reduce = f"$PYTHON scripts/reduce.py {plan} --ranks 1 --statistics {names}"
        lines += [reduce] * (end == "reduce")
        check = {"reduce": "hand", "multiply": "products"}.get(end, "none")
        script = "".join(f"{line} || exit\n" for line in lines)
        self.step(f"by hand to the {end}", script, at, check=check, excuse=True)

    @calm
    @rule(other=OTHER, what=st.sampled_from(["look", "touch", "forget", "dry"]))
    def act(self, other: At, what: str) -> None:
        """A plan by hand, `--touch`, a dry run; or Snakemake's own records are removed."""
        scripts = {"look": _PLAN, "touch": f"{_SNAKEMAKE} --touch", "forget": "rm -rf .snakemake",
                   "dry": f"{_SNAKEMAKE} -n"}  # fmt: skip
        self.step(what, f"{scripts[what]}\ntrue\n", self.at(other), excuse=what != "dry")

    @calm
    @rule()
    def move(self) -> None:
        """Two results folders swap names, or one is set aside and comes back."""
        here, there = "a/results", "a/other_results"
        if len(self.places) > 1:
            here, there = "shared", "shared_aside"
        script = (
            f"cd ..\n[ -e {here} ] && mv {here} moving\n[ -e {there} ] && mv {there} {here}\n"
            f"[ -e moving ] && mv moving {there}\ntrue\n"
        )
        self.step("move results to and fro", script, self.last, excuse=True)

    @calm
    @rule(
        which=st.integers(0, 3), stamp=st.sampled_from(["kept", "new", "new"]),
        how=st.sampled_from(["in place"] * 3 + ["anew"] * 3 + ["touch", "swap", "function"]),
        seed=st.integers(0, 10**6), kind=st.sampled_from(["int"] * 12 + ["nan"]),
    )  # fmt: skip
    def edit(self, which: int, how: str, stamp: str, seed: int, kind: str) -> None:
        """An input file gets other numbers, under its old or a new time stamp, or is just touched.

        Or two files of equal size and time stamp swap names, or the function changes.
        """
        config = self.configs[self.last[1]]
        files = {"in.npy": ["in.npy"], "other.npy": ["other.npy"], None: ["right.npy"]}
        names = files.get(config["input"], ["stack/m00.npy", "stack/m07.npy"])
        name = [*names, config["right"] or names[0]][which % (len(names) + 1)]
        scripts = {
            "touch": f"touch {name}\n",
            "swap": "cd stack\ntouch -r m02.npy m09.npy\nmv m02.npy x\nmv m09.npy m02.npy\n"
            "mv x m09.npy\n",
            "function": "cat > fun.py <<'E'\ndef double(xp, block):\n"
            f"    return block * {3 + seed % 7}\nE\n",
        }
        script = f"$PYTHON edit.py {name} {seed} '{how}' {stamp} {kind}\n"
        self.step(f"edit {name} {how}", scripts.get(how, script), self.last)

    @calm
    @rule(change=configs(1))
    def change(self, change: Config) -> None:
        self.configs[self.last[1]] |= change

    @calm
    @rule(other=OTHER, seconds=st.integers(12, 50), words=st.sampled_from(["", "", "--forceall"]),
          number=st.sampled_from(["KILL", "KILL", "INT"]))  # fmt: skip
    def strike(self, other: At, seconds: int, words: str, number: str) -> None:
        """A run ends by kill -9 or Ctrl-C, at any moment."""
        script = (
            f"setsid env --default-signal=INT {_SNAKEMAKE} {words} > run.log 2>&1 & pid=$!\n"
            f"sleep {seconds / 10}\nkill -{number} -- -$pid 2> /dev/null\nwait $pid\ntrue\n"
        )
        self.step(f"kill -{number} of snakemake {words}", script, self.at(other), excuse=True)

    @calm
    @rule(other=OTHER, names=st.lists(st.sampled_from(LOST), min_size=1, max_size=2))
    def lose(self, other: At, names: list[str]) -> None:
        where = " ".join(f'"$RESULTS"/{name}' for name in names)
        self.step(f"remove {names}", f"rm -rf {where}\n", self.at(other), excuse=True)

    @calm
    @rule(other=OTHER, what=st.sampled_from(["until", "plan", "product", "product"]))
    def part(self, other: At, what: str) -> None:
        """A run for some of the results, after its plan: products that exist need no new one."""
        at = self.at(other)
        dispatch = self.configs[at[1]]["dispatch"]
        words, check = {
            "until": (f"--until {dispatch.replace('jobs', 'multiply')}", "products"),
            "plan": ('"$RESULTS"/plan.tsv', "none"),
            "product": (f'"$RESULTS"/products/"$({_NAME})".npy', "one"),
        }[what if dispatch == "jobs" or what != "product" else "until"]
        first = f'{_SNAKEMAKE} "$RESULTS"/plan.tsv || exit\n' * (check != "none")
        self.step(f"snakemake {words}", f"{first}{_SNAKEMAKE} {words}\n", at, check=check)

    # What a step does, and what must hold after it.

    def step(
        self, what: str, script: str, at: tuple[str, int], *, check: str = "", excuse: bool = False
    ) -> None:
        """Run a bash script in a working folder, with a config as ``mine.yaml``; check results."""
        place, config = self.root / at[0], self.configs[at[1]]
        text = yaml.safe_dump(config, default_flow_style=None, sort_keys=False, width=200)
        head = f"cd {at[0]}\ncat > mine.yaml <<'E'\n{text}E\nRESULTS={config['results']}\n"
        self.steps, self.disturbed = self.steps + 1, self.disturbed + 1
        self.excused |= excuse
        self.failed = True  # until it has ended well
        if currently_in_test_context():
            note(f"# {self.steps}. {what}\n({head}{script})")
        done = self._bash(head + script)
        assert check or done.code == 0, f"no such step:\n{done.output}"
        if check not in ("", "none"):
            if done.code and check == "done":
                done = self._healed(head, script, place, config, done)
            elif done.code:
                refused = self.stage.fresh(place, config)[0].code != 0
                assert self.excused or refused, f"unexplained exit {done.code}:\n{done.output}"
            if done.code == 0:
                self._compare(place, config, check, done.output)
            if done.code == 0 and check == "done":
                dry = self._bash(f"{head}{_SNAKEMAKE} -n\n")
                assert "Nothing to be done" in dry.output, f"more to do after a run:\n{dry.output}"
        self.failed = False

    def _healed(
        self, head: str, script: str, place: Path, config: Config, done: Finished
    ) -> Finished:
        """What a run ends with after the user has done what the messages say."""
        if self.stage.fresh(place, config)[0].code != 0:
            return done
        assert self.excused, f"unexplained exit {done.code}:\n{done.output}"
        for _ in range(REPAIRS):
            cures = {cure.strip("`'\"") for cure in _CURES[0].findall(done.output)}
            cures |= {f"rm -f {shlex.quote(path)}" for path in _CURES[1].findall(done.output)}
            assert cures, f"no way on from exit {done.code}:\n{done.output}"
            for cure in cures:
                self._bash(f"{head}{cure}\n")
            done = self._bash(head + script)
            if done.code == 0:
                return done
        raise AssertionError(f"no end of repairs:\n{done.output}")

    def _compare(self, place: Path, config: Config, check: str, output: str) -> None:
        """Assert that a run that ended well has made all it should, equal to a fresh run's."""
        fresh, arrays = self.stage.fresh(place, config)
        assert fresh.code == 0, f"done, and a fresh run ends with {fresh.code}:\n{fresh.output}"
        results = place / config["results"]
        products = {name for name in arrays if name.startswith("products/")}
        wanted = {"products/00001.npy"} if check == "one" else products
        whole = check in ("done", "hand")
        if whole:
            wanted = wanted | {f"{name}.npy" for name in config["reduce"]["statistics"]}
            assert "not finished" not in output, output
        rows = [line.split("\t") for line in (results / "plan.tsv").read_text().split("\n")[1:-1]]
        keys = {f"products/{row[0]}.npy": row[-1] for row in rows}
        assert set(keys) == products, f"{results}/plan.tsv has other shards:\n{output}"
        for name in sorted(wanted | {name for name in arrays if whole and "/" not in name})[::-1]:
            path = results / (name.replace(".", f"-{keys[name]}.") if name in keys else name)
            there = path.is_file()
            assert there or name not in wanted, f"{path} is missing:\n{output}"
            if there:
                found, right = np.load(path), np.load(io.BytesIO(arrays[name]))
                same = found.dtype == right.dtype and np.array_equal(found, right, equal_nan=True)
                assert same, f"{path} is\n{found}\na fresh run gives\n{right}\n{output}"

    def _bash(self, script: str) -> Finished:
        """Run a script, and wait until none of its processes lives."""
        log = self.root / "output"
        with open(log, "wb") as sink:
            run = subprocess.Popen(
                ["bash", "-c", script], cwd=self.root, env=self._env, stdin=subprocess.DEVNULL,
                stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
        processes.until(
            lambda: run.poll() is not None and not self._living(), LIMIT_S,
            lambda: f"hangs:\n{log.read_text(errors='replace')}", pause_s=0.02,
        )  # fmt: skip
        return Finished(run.returncode, log.read_text(errors="replace"))

    def _living(self) -> set[int]:
        found = processes.living(processes.running())
        own = str(self.root)
        return {pid for pid in found if processes.environment(pid).get("HISTORY") == own}

    def teardown(self) -> None:
        """Make a last run, after which verify finds the results whole; then remove everything."""
        try:
            if self.steps and not self.failed:
                if self.disturbed:
                    self.run((0, 0), "")
                place, config = self.last[0], self.configs[self.last[1]]
                if self.stage.fresh(self.root / place, config)[0].code == 0:
                    words = f"cd {place}\n$PYTHON scripts/verify.py {config['results']}\n"
                    verified = self._bash(words)
                    assert verified.code == 0, verified.output
        finally:
            processes.kill(self._living())
            shutil.rmtree(self.root, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def _stage(tmp_path_factory: pytest.TempPathFactory) -> None:
    Histories.stage = Stage(tmp_path_factory.mktemp("histories"))


def test_results_by_hand_of_another_config() -> None:
    """Such results, even touched, are never taken for this config's; a false "done" is found."""
    history = Histories()
    history.begin("one folder", {}, {"product": "A.T @ A"})
    history.by_hand((0, 1), "reduce", "pool")
    history.run((0, 0), "")
    history.act((0, 1), "touch")
    history.run((0, 1), "")
    with pytest.raises(AssertionError, match=r"sum\.npy is"):
        history.step("nothing", "echo done\n", ("a", 0), check="hand")
    history.teardown()


@pytest.mark.nightly
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_300_histories_keep_the_promises(part: int) -> None:
    """Many drawn histories, in parts side by side; one that fails is printed with its steps."""
    played = int(os.environ.get("HISTORIES", "300"))
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=(played + part) // PARTS, stateful_step_count=6, derandomize=False,
            deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
