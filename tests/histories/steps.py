"""What may happen to a results folder, as bash; and histories drawn from that by a seed."""

from dataclasses import dataclass
from random import Random
from typing import Any

import yaml

Config = dict[str, Any]

ROOT = "@ROOT@"
"""Stands for the folder that the history is played in."""

MATRICES = 12
SHARDS = 2

BASE: Config = {
    "input": "in.npy",
    "shards": SHARDS,
    "materialize": False,
    "keep": "products",
    "dispatch": "jobs",
    "product": "A @ A",
    "results": "results",
    "reduce": {"ranks": 1, "statistics": ["sum"]},
}

CHANGES: list[tuple[int, str, list[Any]]] = [
    (6, "input", ["other.npy", "in.npy", "stack", "sheet.tsv", "stack/m0*.npy", None]),
    (6, "shards", [3, 4, 5]),
    (4, "product", ["A.T @ A", "A @ A.T", "A @ B", "fun.py:double"]),
    (4, "keep", ["sum"]),
    (4, "materialize", [True]),
    (4, "dispatch", ["pool", "pool", "mpi"]),
    (3, "reduce", [["sum", "max"], ["mean"], ["std"], ["min", "argmax"], ["any", "sum"], 2]),
    (2, "reproducible", [False]),
    (1, "backend", ["numpy"]),
    (1, "precision", ["tf32", "tf32x3"]),
    (1, "verify", [False]),
    (1, "nonfinite", ["allow"]),
    (2, "synthetic", [{"seed": 1}, {"dtype": "float64"}, {"matrices": MATRICES - 2}]),
    (1, "shard_bytes", [600, "1KiB"]),
    (1, "array_limit", [2]),
    (1, "array_tasks", [2]),
    (1, "workers", ["node"]),
]
"""How often a key changes, and what to."""

SYNTHETIC = {"matrices": MATRICES, "dim": 6, "dtype": "float32", "seed": 0}

_PLAN = "$PYTHON scripts/plan.py --configfile config.yaml mine.yaml"

FILES = {"in.npy": ["in.npy"], "other.npy": ["other.npy"], None: ["right.npy"]}
"""What of an input is edited; of those of many files, some of a folder."""

FOLDER = ["stack/m00.npy", "stack/m07.npy"]

LOST = (
    "products/00001.npy", "products/00001.json", "products/00000.*", "products", "shards/00000.npy",
    "shards", "ledger.tsv", "sum.npy", "summary.json", "{sum.npy,summary.json}", "plan.tsv",
    "plan.json", "plan.*", "sources.tsv", "input.npy", "logs", "report.html", "metrics.prom",
    "ro-crate-metadata.json",
    "{ledger.tsv,summary.json}", "logs/multiply/done",
)  # fmt: skip
"""What may be removed from a results folder, as patterns of bash."""


@dataclass(frozen=True)
class Step:
    """One thing that somebody does."""

    what: str
    script: str
    config: Config | None = None
    place: str = "a"
    check: str = "none"
    excuse: bool = False


def changed(config: Config, random: Random) -> Config:
    """Another config: one key changed, with what it needs."""
    key, values = random.choices(
        [(key, values) for _, key, values in CHANGES], [weight for weight, _, _ in CHANGES]
    )[0]
    value, new = random.choice(values), dict(config)
    if key == "reduce":
        part = {"ranks": value} if isinstance(value, int) else {"statistics": value}
        new["reduce"] = config["reduce"] | part
    elif key == "synthetic":
        new |= {"input": None, "synthetic": config.get("synthetic", SYNTHETIC) | value}
    elif key == "shard_bytes":
        new |= {"shards": "auto", "shard_bytes": value}
    else:
        new[key] = value
    if new["input"] is None:
        new.setdefault("synthetic", SYNTHETIC)
    new.pop("right", None)
    if new["product"] == "A @ B":
        new["right"] = random.choice(["right.npy", "other.npy"])
    return new


class History:
    """A history that is being drawn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.steps: list[Step] = []
        kind = self.random.choices(["one folder", "shared", "two folders"], [5, 2, 2])[0]
        self.places = ["a", "b"] if kind == "shared" else ["a"]
        first = BASE | {"input": self.random.choice(["in.npy", "in.npy", "stack", "sheet.tsv"])}
        first |= {"results": f"{ROOT}/shared"} if kind == "shared" else {}
        for _ in range(self.random.choice((0, 0, 1, 2))):
            first = changed(first, self.random)
        second = first
        for _ in range(self.random.choice((1, 1, 2))):
            second = changed(second, self.random)
        if kind == "shared" and self.random.random() < 0.5:
            second = first  # then the working folder alone tells them apart
        if kind == "two folders":
            second = second | {"results": "other_results"}
        self.configs = [first, second]
        self._last = (self.places[0], 0)

    def draw(self) -> list[Step]:
        """A first run, then disturbances with runs behind them, and a run at the end."""
        random = self.random
        self.run(*self._last)
        for _ in range(random.choice((1, 2, 2, 3))):
            for _ in range(random.choice((1, 1, 2))):
                self.disturb()
            # As before, most of the time: what lies there now may be another run's.
            self.run(*(self._last if self.random.random() < 0.6 else self._other()))
        return self.steps

    def chosen(self) -> tuple[str, Config]:
        """Where something takes place, and of which config it is: mostly not of the last run's."""
        place, number = self._last if self.random.random() < 0.3 else self._other()
        return place, self.configs[number]

    def _other(self) -> tuple[str, int]:
        place, number = self._last
        if len(self.places) == 1 or self.random.random() < 0.3:
            return place, 1 - number
        return ("b" if place == "a" else "a"), self.random.choice((number, 1 - number))

    def run(self, place: str, number: int) -> None:
        """A whole run by snakemake."""
        self._last, config = (place, number), self.configs[number]
        words = self.random.choices(
            ["", "-q", "--quiet progress", "--quiet all", "--forceall", "-R multiply", "-R reduce"],
            [36, 1, 1, 1, 1, 2, 1],
        )[0]
        if words == "-R multiply" and config["dispatch"] in ("pool", "mpi"):
            words = f"-R {config['dispatch']}"
        self.add(f"snakemake {words}".strip(), _snakemake(place, config, words), config, place,
                 check="done")  # fmt: skip

    def add(self, what: str, script: str, *more: Any, **named: Any) -> None:
        """One more step."""
        self.steps.append(Step(what, script, *more, **named))

    def disturb(self) -> None:
        """Anything else."""
        ways = [
            (3, self.run_other), (4, self.by_hand), (2, self.look), (3, self.move),
            (3, self.touch_results), (4, self.edit), (2, self.swap), (1, self.touch_input),
            (3, self.kill), (1, self.interrupt), (4, self.lose), (1, self.lose_records),
            (2, self.part), (1, self.edit_function), (2, self.change),
        ]  # fmt: skip
        self.random.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()

    def run_other(self) -> None:
        """The other config by snakemake."""
        self.run(*self._other())

    def change(self) -> None:
        """From here on the config of the last run is another."""
        number = self._last[1]
        self.configs[number] = changed(self.configs[number], self.random)

    def by_hand(self) -> None:
        """The commands of the README, to the end or not so far."""
        place, config = self.chosen()
        end = self.random.choices(["multiply", "ledger", "reduce"], [2, 1, 5])[0]
        one_by_one, dispatch = self.random.random() < 0.5, self.random.choice(("pool", "mpi"))
        replace = self.random.random() < 0.7
        plan = '--plan "$RESULTS"/plan.tsv'
        each = 'for s in $(tail -n +2 "$RESULTS"/plan.tsv | cut -f1)'
        lines = [f"{_PLAN}{' --replace' * replace}"]
        if config["input"] is None:
            lines.append(f"$PYTHON scripts/synthesize.py {plan}")
        if config["materialize"]:
            lines.append(f"{each}; do $PYTHON scripts/shard.py {plan} --shard $s || exit; done")
        if one_by_one:
            lines.append(f"{each}; do $PYTHON scripts/multiply.py {plan} --shard $s || exit; done")
        else:
            ranks = " --ranks 1" if dispatch == "mpi" else ""
            lines.append(f"$PYTHON scripts/dispatch.py {plan} --dispatch {dispatch}{ranks}")
        if end != "multiply":
            lines.append(f"$PYTHON scripts/ledger.py {plan}")
        if end == "reduce":
            names = " ".join(config["reduce"]["statistics"])
            lines.append(f"$PYTHON scripts/reduce.py {plan} --ranks 1 --statistics {names}")
        script = "".join(f"{line} || exit\n" for line in lines)
        what = f"by hand to the {end}" + " with --replace" * replace
        check = {"reduce": "hand", "multiply": "products"}.get(end, "none")
        self.add(what, _in(place, config, script), config, place, check=check, excuse=True)

    def look(self) -> None:
        """A plan by hand, and nothing more."""
        place, config = self.chosen()
        script = f"{_PLAN}\ntrue\n"
        self.add("plan.py to look", _in(place, config, script), config, place, excuse=True)

    def move(self) -> None:
        """Results of one and the other change places, or one is set aside and comes back."""
        here, there = "a/results", "a/other_results"
        if "b" in self.places:
            here, there = "shared", "shared_aside"
        self.add(
            "move results to and fro",
            f"[ -e {here} ] && mv {here} moving\n[ -e {there} ] && mv {there} {here}\n"
            f"[ -e moving ] && mv moving {there}\ntrue\n",
            excuse=True,
        )

    def touch_results(self) -> None:
        """Snakemake is told that all is up to date."""
        place, config = self.chosen()
        script = _snakemake(place, config, "--touch") + "true\n"
        self.add("snakemake --touch", script, config, place, excuse=True)

    def edit(self) -> None:
        """Other numbers in an input file: in place or by another file, time stamp kept or not."""
        place, name = self._file()
        how = self.random.choice(("in place", "anew"))
        stamp = self.random.choice(("kept", "new", "new"))
        kind = self.random.choices(("int", "nan"), (12, 1))[0]
        self.add(
            f"edit {name} {how}, time stamp {stamp}{', with a NaN' * (kind == 'nan')}",
            f"cd {place}\n"
            f"$PYTHON edit.py {name} {self.random.randrange(10**6)} '{how}' {stamp} {kind}\n",
        )

    def _file(self) -> tuple[str, str]:
        """A file that the last run has read, mostly."""
        place, number = self._last
        config = self.configs[number]
        names = FILES.get(config["input"], FOLDER)
        return place, self.random.choice([*names, config.get("right", names[0])])

    def swap(self) -> None:
        """Two files of equal size and time stamp change places."""
        place, number = self._last
        if self.configs[number]["input"] in FILES:
            return self.edit()
        return self.add(
            "swap two input files of equal size and time stamp",
            f"cd {place}/stack\ntouch -r m02.npy m09.npy\n"
            "mv m02.npy x\nmv m09.npy m02.npy\nmv x m09.npy\n",
        )

    def touch_input(self) -> None:
        """Input with a new time stamp and the same numbers."""
        place, name = self._file()
        self.add(f"touch {name}", f"touch {place}/{name}\n")

    def edit_function(self) -> None:
        """The user's own function computes something else."""
        place, number = self._last
        if not self.configs[number]["product"].startswith("fun.py"):
            return self.edit()
        factor = self.random.randrange(3, 9)
        return self.add(
            "edit fun.py",
            f"cat > {place}/fun.py <<'E'\ndef double(xp, block):\n    return block * {factor}\nE\n",
        )

    def kill(self) -> None:
        """A run ends by kill -9, wherever it is."""
        self._struck("kill -9", "kill -9 -- -$pid")

    def interrupt(self) -> None:
        """A run ends by Ctrl-C."""
        self._struck("Ctrl-C", "kill -INT -- -$pid")

    def _struck(self, what: str, command: str) -> None:
        place, config = self.chosen()
        seconds = round(self.random.uniform(1.2, 5), 1)
        words = self.random.choice(("", "", "--forceall"))
        script = (
            f"setsid env --default-signal=INT {_line(words)} > run.log 2>&1 & pid=$!\n"
            f"sleep {seconds}\n{command} 2> /dev/null\nwait $pid\ntrue\n"
        )
        self.add(f"{what} after {seconds} s of snakemake {words}".rstrip(),
                 _in(place, config, script), config, place, excuse=True)  # fmt: skip

    def lose(self) -> None:
        """Some result files are removed."""
        place, config = self.chosen()
        for name in self.random.sample(LOST, self.random.choice((1, 1, 2))):
            where = config["results"]
            self.add(f"remove {where}/{name}", f"cd {place}\nrm -rf {where}/{name}\n", excuse=True)

    def lose_records(self) -> None:
        """Snakemake's own records are removed."""
        place = self.random.choice(self.places)
        self.add("remove .snakemake", f"rm -rf {place}/.snakemake\n", excuse=True)

    def part(self) -> None:
        """A run for some of the results, or none."""
        place, config = self.chosen()
        jobs = config["dispatch"] == "jobs"
        rule = {"jobs": "multiply"}.get(config["dispatch"], config["dispatch"])
        where = config["results"]
        product = f"{where}/products/00001.npy"
        ways = [(f"--until {rule}", "products"), ("-n", "none"), (f"{where}/plan.tsv", "none")]
        words, check = self.random.choice(ways + [(product, "one")] * 2 * jobs)
        self.add(f"snakemake {words}", _snakemake(place, config, words), config, place, check=check)


def _line(words: str) -> str:
    return f"$SNAKEMAKE --profile profiles/local --configfile mine.yaml --cores 1 {words}".rstrip()


def _snakemake(place: str, config: Config, words: str) -> str:
    return _in(place, config, f"{_line(words)}\n")


def _in(place: str, config: Config, script: str) -> str:
    """A script that runs in a working folder, with ``mine.yaml`` of this config."""
    text = yaml.safe_dump(config, default_flow_style=None, sort_keys=False, width=200)
    results = f"RESULTS={config['results']}\n" if "$RESULTS" in script else ""
    return f"cd {place}\ncat > mine.yaml <<'E'\n{text}E\n{results}{script}"


def history(seed: int) -> list[Step]:
    """The history of a seed."""
    return History(seed).draw()
