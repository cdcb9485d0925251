"""Every file name of a results folder."""

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# What the main process keeps from run to run: headers, results of trials, uncommitted plans.
CACHE = Path(".snakemake") / "shardwise"


def for_bash(path: Path) -> str:
    """A path quoted as one word for bash, in one line; no program takes it for an option."""
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return shlex.quote(text)
    plain = (c if c.isprintable() and c not in "\\'" else None for c in text)
    odd = ("".join(f"\\x{byte:02x}" for byte in os.fsencode(c)) for c in text)
    return f"$'{''.join(p or o for p, o in zip(plain, odd, strict=True))}'"


def id_digits(shards: int) -> int:
    """The number of digits of an id in a plan of ``shards`` shards; `place` depends on it."""
    # With more shards a folder holds a thousand: some disks get slow beyond that.
    return 5 if shards <= 1000 else 7


def place(name: str) -> str:
    """Where the files of a shard lie: at ``00007-KEY`` (as any pattern), or ``012/0012345-KEY``."""
    shard = name.partition("-")[0]
    return f"{shard[-6:-3]}/{name}" if len(shard) == 7 and shard.isdecimal() else name


def wildcards(name: str) -> str:
    """The pattern, for Snakemake, of the :func:`place` of all shards, given the name of any one."""
    return "{shard}-{key}" if place(name) == name else "{thousand}/{shard}-{key}"


def folders(top: Path) -> list[Path]:
    """A folder of per-shard files, and its folders of a thousand shards; none if it is missing."""
    return [top, *sorted(top.glob("[0-9][0-9][0-9]/"))] if top.is_dir() else []


def list_names(top: Path) -> set[str]:
    """The names, by `place` and suffix, of the per-shard files in a folder."""
    names: set[str] = set()
    with suppress(OSError):
        for folder in folders(top):
            before = "" if folder == top else f"{folder.name}/"
            names.update(f"{before}{name}" for name in os.listdir(folder))
    return names


def stamp(path: Path | str) -> tuple[int, int] | None:
    """When a file was written, in nanoseconds, and its size in bytes; None if there is none."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size
    return None


def freed_by(path: Path) -> int:
    """Bytes that a disk gets back if a file is removed: none while it has another name."""
    with suppress(OSError):
        status = os.lstat(path)
        return status.st_size if status.st_nlink == 1 else 0
    return 0


@dataclass
class _Name:
    """A file or folder of the results, under a fixed name."""

    name: str

    def __get__(self, results: "Results", _: type) -> Path:
        return results.root / self.name


def _by_name(begin: str, end: str = "") -> Callable[["Results", str], Path]:
    """A method that returns a file, given its key, or the name of a shard or of a statistic."""
    # For a million shards, joining text takes a third of the time that joining Paths takes.
    return lambda results, name: Path(f"{results.root}/{begin}{place(name)}{end}")


@dataclass(frozen=True)
class Results:
    """The files of one results folder."""

    root: Path

    marker = _Name(".shardwise")  # a run of ours made this folder, and may replace files in it
    merging = _Name(".shardwise-merge")  # a merge made this folder; also the lock of merges into it
    plan = _Name("plan.tsv")  # one row per shard; the hub that every stage reads
    plan_facts = _Name("plan.json")  # what holds for all shards, and checksums; written last
    sources = _Name("sources.tsv")  # one row per input file: which matrices it holds
    weights = _Name("weights.npy")  # one number per matrix, if the config has weights
    labels = _Name("labels.npy")  # likewise: the place of its label in labels.json
    label_names = _Name("labels.json")  # the labels in the order of sums.npy, and their matrices
    synthetic = _Name("input.npy")  # the generated stack
    ledger = _Name("ledger.tsv")  # one row per shard, made from the receipts
    summary = _Name("summary.json")  # the receipt of the reduce
    report = _Name("report.html")  # the page on the run
    metrics = _Name("metrics.prom")  # figures of the run, for Prometheus
    runs = _Name("runs.tsv")  # names under which earlier runs submitted jobs
    shards = _Name("shards")  # the shards' matrices, if they are materialized
    products = _Name("products")  # their products, with the receipts
    failed = _Name("failed")  # what went wrong: a file for each shard or stage
    done = _Name("done")  # a file named after the key of the plan whose sum lies here
    claims = _Name("claims")  # which worker computes which shard, in a folder for each run at work
    command = _Name("logs/command.txt")  # the command line that continues the last run

    # Locks: of the run on this folder, of jobs at work, of the reduce, of who starts workers.
    running = _Name("logs/run.lock")
    living = _Name("logs/living.lock")
    reducing = _Name("logs/reduce.lock")
    dispatching = _Name("logs/dispatch.lock")

    # Files of a shard. Its name is its id and the key of its products, or of its input.
    shard = _by_name("shards/", ".npy")  # its matrices, if they are materialized; by its input
    shard_receipt = _by_name("shards/", ".json")  # likewise
    product = _by_name("products/", ".npy")  # its products, or the nodes of their sum
    receipt = _by_name("products/", ".json")
    failure = _by_name("failed/", ".json")  # why it, or a stage such as reduce-KEY, failed last
    starts = _by_name("logs/multiply/", ".starts")  # the journal of attempts at it: one line each

    work = _by_name("logs/computed/")  # the one job for all shards is done (`Run.product_files`)
    planned = _by_name("logs/plan/")  # which plan the files of the plan belong to (`Plan.mark`)
    listed = _by_name("logs/ledger/")  # which plan the ledger belongs to
    summed = _by_name("done/")  # which plan the sum belongs to
    statistic = _by_name("", ".npy")  # a result over all matrices, such as sum.npy
    synthetic_receipt = _by_name("input-", ".json")  # of the generated stack: what it is made from
    array_folder = _by_name("logs/array/")  # the scripts and logs of the array tasks of a run

    def names(self) -> list[str]:
        """Every fixed name that a run writes at the top of the folder, except the marker."""
        names = [own.name.split("/")[0] for own in vars(Results).values() if isinstance(own, _Name)]
        names += [f"{name}.npy" for name in RESULTS]
        return [name for name in dict.fromkeys(names) if name[0] != "."]

    def log(self, rule: str, name: str | None = None) -> Path:
        """The log of a rule, or of one of its shards."""
        return Path(f"{self.root}/logs/{rule}/{place(name or rule)}.log")


STATISTICS = ("sum", "mean", "std", "min", "max")  # over all products, element by element
COVARIANCE = ("covariance", "correlation", "row_mean", "offset")  # `covariance: true` adds these
SUMS = "sums"  # replaces the sum if the config has `labels`
RESULTS = (*STATISTICS, *COVARIANCE, SUMS)
