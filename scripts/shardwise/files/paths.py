"""Every file name of a results folder."""

import shlex
from dataclasses import dataclass
from pathlib import Path

# What the main process keeps from run to run: headers, results of trials, uncommitted plans.
CACHE = Path(".snakemake") / "shardwise"


def for_bash(path: Path) -> str:
    """A path as one word for bash, which no program takes for an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


class _Name:
    """A file or folder of the results, under a fixed name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, results: "Results", _: type) -> Path:
        return results.root / self._name


@dataclass(frozen=True)
class Results:
    """The files of one results folder."""

    root: Path

    marker = _Name(".shardwise")  # a run of ours made this folder, and may replace files in it
    plan = _Name("plan.tsv")  # one row per shard; the hub that every stage reads
    plan_facts = _Name("plan.json")  # what holds for all shards, and checksums; written last
    sources = _Name("sources.tsv")  # one row per input file: which matrices it holds
    synthetic = _Name("input.npy")  # the generated stack
    synthetic_receipt = _Name("input.json")
    ledger = _Name("ledger.tsv")  # one row per shard, made from the receipts
    summary = _Name("summary.json")  # the receipt of the reduce
    report = _Name("report.html")  # the page on the run
    metrics = _Name("metrics.prom")  # figures of the run, for Prometheus
    crate = _Name("ro-crate-metadata.json")  # where the results come from, for other programs
    runs = _Name("runs.tsv")  # names under which earlier runs submitted jobs
    arrays = _Name("arrays.tsv")  # one row per array job: scheduler, name, digest of the plan
    quarantine = _Name("quarantine.tsv")  # one row per device that failed
    partial = _Name("partial")  # work of a reduce that has not finished
    stale = _Name("stale")  # what lay in the way of a run's files
    live = _Name("logs/live")  # what tasks at work say of themselves, one file each
    command = _Name("logs/command.txt")  # the command line that continues the last run
    multiplied = _Name("logs/multiply/done")  # left by the job that computed all shards

    # Locks: of the one run on this folder, of each job at work, of each array task at work, of the
    # one reduce, and of the one process that hands out the shards.
    running = _Name("logs/run.lock")
    living = _Name("logs/living.lock")
    living_array = _Name("logs/array.lock")
    reducing = _Name("logs/reduce.lock")
    dispatching = _Name("logs/dispatch.lock")

    @classmethod
    def of_plan(cls, plan: Path) -> "Results":
        """The results folder that a ``plan.tsv`` lies in."""
        return cls(plan.parent)

    def names(self) -> list[str]:
        """Every name that a run writes at the top of the folder, but for the marker."""
        files = (self.plan, self.plan_facts, self.sources, self.synthetic, self.synthetic_receipt,
                 self.ledger, self.summary, self.report, self.metrics, self.crate, self.runs,
                 self.quarantine, self.arrays, *map(self.statistic, STATISTICS))  # fmt: skip
        folders = (self.shard("").parent, self.product("").parent, self.running.parent,
                   self.partial, self.stale)  # fmt: skip
        return [path.name for path in (*files, *folders)]

    def array_folder(self, run: str) -> Path:
        """What one dispatch of arrays and its tasks tell each other: scripts, marks of ends."""
        return self.root / "logs" / "array" / run

    def shard(self, shard: str) -> Path:
        """A shard's matrices, where they are materialized."""
        return self.root / "shards" / f"{shard}.npy"

    def shard_receipt(self, shard: str) -> Path:
        """The receipt of a materialized shard."""
        return self.root / "shards" / f"{shard}.json"

    def product(self, shard: str) -> Path:
        """A shard's products, or their sum."""
        return self.root / "products" / f"{shard}.npy"

    def receipt(self, shard: str) -> Path:
        """The receipt of a shard's products."""
        return self.root / "products" / f"{shard}.json"

    def telemetry(self, shard: str) -> Path:
        """What the device of a shard did meanwhile, one row per sample."""
        return self.root / "products" / f"{shard}.telemetry.tsv"

    def statistic(self, name: str) -> Path:
        """A result over all matrices, such as ``sum.npy``."""
        return self.root / f"{name}.npy"

    def starts(self, shard: str, rule: str = "multiply") -> Path:
        """The journal of a rule's attempts at a shard: one line each."""
        return self.root / "logs" / rule / f"{shard}.starts"

    def log(self, rule: str, shard: str | None = None) -> Path:
        """The log of a rule, or of one of its shards."""
        return self.root / "logs" / rule / f"{shard or rule}.log"


# What can be computed over all products, element by element (see statistics.py).
STATISTICS = ("sum", "mean", "std", "min", "max", "prod", "argmin", "argmax", "all", "any")
