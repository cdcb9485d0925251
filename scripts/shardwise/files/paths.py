"""Every file name of a results folder."""

import shlex
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(".snakemake") / "shardwise"
"""What the main process keeps from run to run: headers, results of trials, uncommitted plans."""


def for_bash(path: Path) -> str:
    """A path as one word for bash, which no program takes for an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


@dataclass(frozen=True)
class Results:
    """The files of one results folder."""

    root: Path

    @classmethod
    def of_plan(cls, plan: Path) -> "Results":
        """The results folder that a ``plan.tsv`` lies in."""
        return cls(plan.parent)

    @property
    def plan(self) -> Path:
        """One row a shard; the hub that every stage reads."""
        return self.root / "plan.tsv"

    @property
    def plan_facts(self) -> Path:
        """What holds for all shards: settings, shapes, checksum of the plan; written last."""
        return self.root / "plan.json"

    @property
    def sources(self) -> Path:
        """One row an input file: which matrices it holds."""
        return self.root / "sources.tsv"

    @property
    def synthetic(self) -> Path:
        """The generated stack."""
        return self.root / "input.npy"

    @property
    def synthetic_receipt(self) -> Path:
        """The receipt of the generated stack."""
        return self.root / "input.json"

    @property
    def marker(self) -> Path:
        """What says that a run of ours has made this folder, so that it may replace files in it."""
        return self.root / ".shardwise"

    @property
    def stale(self) -> Path:
        """What lay where a run writes its own files, and was moved out of the way."""
        return self.root / "stale"

    @property
    def ledger(self) -> Path:
        """One row a shard, made from the receipts."""
        return self.root / "ledger.tsv"

    @property
    def summary(self) -> Path:
        """The receipt of the reduce."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """The page on the run, for a browser."""
        return self.root / "report.html"

    @property
    def metrics(self) -> Path:
        """Figures of the run, for a cluster's monitoring (Prometheus)."""
        return self.root / "metrics.prom"

    @property
    def runs(self) -> Path:
        """The names under which earlier runs submitted jobs to a scheduler."""
        return self.root / "runs.tsv"

    @property
    def quarantine(self) -> Path:
        """One row a device that failed, and how long no task takes it."""
        return self.root / "quarantine.tsv"

    def names(self) -> list[str]:
        """Every name that a run writes at the top of the folder, but for the marker."""
        files = (self.plan, self.plan_facts, self.sources, self.synthetic, self.synthetic_receipt,
                 self.ledger, self.summary, self.report, self.metrics, self.runs, self.quarantine,
                 self.arrays, *map(self.statistic, STATISTICS))  # fmt: skip
        folders = (self.shard("").parent, self.product("").parent, self.running.parent,
                   self.partial, self.stale)  # fmt: skip
        return [path.name for path in (*files, *folders)]

    def array_folder(self, run: str) -> Path:
        """What one dispatch of arrays and its tasks tell each other: scripts, marks of ends."""
        return self.root / "logs" / "array" / run

    @property
    def running(self) -> Path:
        """The file on which the one run on this folder holds a lock."""
        return self.root / "logs" / "run.lock"

    @property
    def command(self) -> Path:
        """The command line that continues the last run."""
        return self.root / "logs" / "command.txt"

    @property
    def living(self) -> Path:
        """The file on which every job at work holds a lock."""
        return self.root / "logs" / "living.lock"

    @property
    def arrays(self) -> Path:
        """One row an array job: scheduler, name, digest of the plan, and more."""
        return self.root / "arrays.tsv"

    @property
    def living_array(self) -> Path:
        """The file on which every task of an array at work holds a lock."""
        return self.root / "logs" / "array.lock"

    @property
    def reducing(self) -> Path:
        """The file on which the one reduce of this folder holds a lock."""
        return self.root / "logs" / "reduce.lock"

    @property
    def dispatching(self) -> Path:
        """The file on which the one that hands out the shards holds a lock."""
        return self.root / "logs" / "dispatch.lock"

    @property
    def multiplied(self) -> Path:
        """What the job leaves that has computed all shards, under any dispatch but jobs."""
        return self.root / "logs" / "multiply" / "done"

    @property
    def live(self) -> Path:
        """The folder of what tasks at work say of themselves, a file each."""
        return self.root / "logs" / "live"

    @property
    def partial(self) -> Path:
        """Work of a reduce that has not finished."""
        return self.root / "partial"

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
        """What the device of a shard did meanwhile, one row a sample."""
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


STATISTICS = ("sum", "mean", "std", "min", "max", "prod", "argmin", "argmax", "all", "any")
"""What can be computed over all products, element by element (see statistics.py)."""
