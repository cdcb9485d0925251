"""The plan on disk: ``plan.tsv``, ``sources.tsv`` and ``plan.json``, which is written last.

Every job reads the plan, so reading takes msgspec and the standard library only.
"""

import csv
import io
import itertools
import json
import os
import re
import sys
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise import ALGORITHM
from shardwise.errors import InputError, IntegrityError, ShardwiseError, short, unread
from shardwise.files.paths import Results
from shardwise.files.remote import is_url
from shardwise.files.small import checksum, read
from shardwise.plan.problem import Problem

if TYPE_CHECKING:
    from shardwise.plan.per_matrix import PerMatrix

# Without this lock, threads that open results folders might crash; see `receipts._DECODERS`.
_CONVERTING = threading.Lock()

_FIRST = attrgetter("first")
_KEY_DIGITS = 12
_NAMES = re.compile(rf"[0-9]+(-[0-9a-f]{{{_KEY_DIGITS}}}){{2}}")


@dataclass(frozen=True)
class Shard:
    """One row of the plan; sizes are in bytes."""

    shard: str
    start: int
    stop: int
    bytes: int
    product_bytes: int
    memory: int  # what its task takes at most on the host
    device_memory: int
    input_key: str = ""  # changes with its matrices
    key: str = ""  # changes with anything that its products depend on

    @property
    def name(self) -> str:
        """What the files of its products are called."""
        return f"{self.shard}-{self.key}"

    @property
    def input_name(self) -> str:
        """What the files of the copy of its matrices are called."""
        return f"{self.shard}-{self.input_key}"

    @property
    def run(self) -> range:
        """The places of its matrices in the stack."""
        return range(self.start, self.stop)


@dataclass(frozen=True)
class Source:
    """One input file: matrices ``first`` to ``first + count`` of the stack."""

    path: str  # also names the array in a file that may hold several: ``run.h5:/frames``
    first: int
    count: int
    identity: str  # see `lookup.Status`; or what the synthetic stack is made from; of a copy ""


def between(sources: Sequence[Source], start: int, stop: int) -> list[Source]:
    """The sources that hold matrices ``start`` to ``stop``; all are in the order of the stack."""
    begin = max(0, bisect_right(sources, start, key=_FIRST) - 1)
    return list(sources[begin : bisect_left(sources, stop, begin, key=_FIRST)])


@dataclass(frozen=True)
class ShardSettings:
    """What the jobs need to know of the config; keys as in the config."""

    product: str
    keep: str
    backend: str
    precision: str
    verify: bool
    materialize: bool
    nonfinite: str


@dataclass(frozen=True)
class Covariance:
    """What a plan says of ``covariance: true``."""

    offset: str | None  # what each row loses first: in the dtype of the input, "<", in hexadecimal
    ddof: int  # the sums are divided by n - ddof


@dataclass(frozen=True)
class Facts:
    """What ``plan.json`` says; its fields are the keys of the file, in their order."""

    problem: Problem
    settings: ShardSettings
    function: str | None  # digest of the code of a user's function
    right_sources: tuple[Source, ...]  # the files of B; empty if B is made from A
    synthetic: dict[str, Any] | None  # the key of the config; None if the input is the user's own
    digest: str = ""  # changes with anything that a result depends on
    per_matrix: dict[str, str] = field(default_factory=dict)  # digests of weights and of labels
    labels: list[int | str] = field(default_factory=list)  # the distinct ones, sorted
    label_counts: list[int] = field(default_factory=list)  # matrices with each label
    depends: dict[str, str] = field(default_factory=dict)  # digests of files the function uses
    covariance: Covariance | None = None
    config: dict[str, Any] = field(default_factory=dict)  # the settings that the plan follows from
    decoded: int = 0  # bytes that a task needs to decode chunks; 0: there are none
    notes: list[str] = field(default_factory=list)  # on the input, for people
    checksums: dict[str, str] = field(default_factory=dict)  # of all files of the plan, by name

    @property
    def config_digest(self) -> str:
        """A digest of these settings, except the results folder: it may move."""
        return digest(self.config | {"results": None})

    @cached_property
    def recipe(self) -> str:
        """A digest of all that a product depends on, except the bytes of its factors."""
        # What ``nonfinite`` forbids makes the sum NaN or Inf, and the reduce refuses that.
        settings = replace(self.settings, materialize=False, nonfinite="")
        problem = replace(self.problem, matrices=0, labels=0)
        offset = self.covariance and self.covariance.offset
        stated = [asdict(problem), asdict(settings), self.function, self.depends, offset]
        return digest([ALGORITHM["multiply"], *stated])


@dataclass(frozen=True)
class Plan:
    """A plan as the stages use it."""

    results: Results
    shards: dict[str, Shard]
    facts: Facts
    # Of a plan just made; any other reads them from its files.
    made_of: tuple[Source, ...] = ()
    made_with: "PerMatrix | None" = None

    @property
    def problem(self) -> Problem:
        """What is computed, as numbers."""
        return self.facts.problem

    @property
    def element_type(self) -> str:
        """The dtype of the numbers in the shards' files of products, or of nodes of their sum."""
        problem = self.problem
        return problem.sum_dtype if self.settings.keep == "sum" else problem.product_dtype

    @property
    def settings(self) -> ShardSettings:
        """What the config says of how shards are computed."""
        return self.facts.settings

    @cached_property
    def key(self) -> str:
        """A digest of all that the sum depends on."""
        return key_of(f"{self.facts.digest} {ALGORITHM['reduce']}".encode())

    @cached_property
    def written(self) -> dict[str, int]:
        """Bytes that a run writes, by kind of file."""
        taken = sum(row.bytes for row in self.shards.values())
        return {
            "input": taken if self.facts.synthetic else 0,
            "shards": taken if self.settings.materialize else 0,
            "products": sum(row.product_bytes for row in self.shards.values()),
        }

    @property
    def offset(self) -> bytes | None:
        """The row that is subtracted from each row of A for a covariance, as bytes, or None."""
        covariance = self.facts.covariance
        return bytes.fromhex(covariance.offset) if covariance and covariance.offset else None

    @property
    def mark(self) -> str:
        """A digest of the plan and its config: which plan is on the disk."""
        return key_of(f"{self.facts.digest} {self.facts.config_digest}".encode())

    @property
    def synthetic_receipt(self) -> Path | None:
        """The receipt of the synthetic stack, by what it is made from; or None."""
        if self.facts.synthetic is None:
            return None
        made_from = json.dumps([ALGORITHM["synthesize"], self.facts.synthetic], sort_keys=True)
        return self.results.synthetic_receipt(key_of(made_from.encode()))

    @property
    def function(self) -> str | None:
        """The user's function that makes the products, ``file.py:function``; None for none."""
        return self.problem.product if self.problem.result else None

    def anchored(self, folder: Path) -> "Plan":
        """The same plan with ``folder`` before its paths: the working directory may then change."""
        sources = tuple(
            row if is_url(row.path) else replace(row, path=os.path.join(folder, row.path))
            for row in self.sources
        )
        return replace(self, results=Results(folder / self.results.root), made_of=sources)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """All input files, read once: there may be a million of them; refused if changed."""
        path = self.results.sources
        return self.made_of or tuple(from_tsv(_content(path, self.facts), Source, path))

    @cached_property
    def per_matrix(self) -> "PerMatrix":
        """What the plan says of single matrices, such as their weights."""
        from shardwise.plan import per_matrix  # here: it takes NumPy

        facts = self.facts
        return self.made_with or per_matrix.load(self.results, facts.per_matrix, facts.labels)

    def nodes_of(self, shard: str) -> dict[str, Any]:
        """What the receipt of a shard says of the nodes in its file; None for files of products."""
        if self.settings.keep == "products":
            return {"nodes": None, "labels": None}
        keys, names = self.per_matrix.keys(self.shards[shard].run), self.facts.labels
        labels = tuple(names[label] for label, *_ in keys) if names else None
        return {"nodes": tuple((level, index) for *_, level, index in keys), "labels": labels}

    def result_files(self, statistics: Sequence[str]) -> list[Path]:
        """The files that a reduce with these statistics leaves, except its receipt."""
        arrays = map(self.results.statistic, self.problem.results(statistics))
        return [*arrays, *([self.results.label_names] if self.problem.labels else [])]

    def shard(self, shard: str) -> Shard:
        """The row of a shard; InputError if the plan has no such shard."""
        if shard not in self.shards:
            ids = list(self.shards)
            words = f"which has {ids[0]} to {ids[-1]}"
            raise InputError(f"shard {short(shard)} is not in {self.results.plan}, {words}")
        return self.shards[shard]


def expect(plan: Plan, digest: str, expected: str | None) -> None:
    """Refuse a plan, by a digest of it or of a part, for which this job was not started."""
    if expected not in (None, digest):
        words = "another command has replaced the plan of this run; start the run again"
        raise IntegrityError(f"{plan.results.plan}: {words}")


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits that change with a JSON value."""
    return checksum(json.dumps(value, sort_keys=True).encode(), 8)


def key_of(raw: bytes) -> str:
    """Twelve hexadecimal digits for a file name: a digest of all that the content depends on."""
    return checksum(raw, _KEY_DIGITS // 2)


def label_text(labels: Sequence[int | str], matrices: Sequence[int]) -> bytes:
    """The content of ``labels.json``: the labels in the order of sums, and their matrix counts."""
    return json.dumps({"labels": list(labels), "matrices": list(matrices)}).encode() + b"\n"


def load(path: Path) -> Plan:
    """Read a plan; InputError if there is none, IntegrityError if it is damaged."""
    facts = load_facts(path)
    rows: list[Shard] = from_tsv(_content(path, facts), Shard, path)
    for row in rows:
        if not _NAMES.fullmatch(f"{row.name}-{row.input_key}"):
            # They go into names of files and into commands.
            raise IntegrityError(f"{path}: {short(row.name)} is not the name of a shard")
    return Plan(Results(path.parent), {row.shard: row for row in rows}, facts)


def is_committed(plan: Plan) -> bool:
    """Whether the files of a plan are there, and neither changed nor damaged."""
    try:
        there = Plan(plan.results, {}, load_facts(plan.results.plan))
        for path in (plan.results.plan, plan.results.sources):
            _content(path, there.facts)
        assert there.per_matrix is not None  # weights and labels are checked as they are loaded
        return there.mark == plan.mark and plan.results.planned(plan.mark).exists()
    except ShardwiseError:
        return False


def to_tsv(rows: Iterable[Any], kind: type) -> Iterator[bytes]:
    """A table of dataclass rows, in parts of some lines; quoted if a path needs it."""
    lines = itertools.chain([[f.name for f in fields(kind)]], (vars(row).values() for row in rows))
    while part := list(itertools.islice(lines, 1000)):
        # The csv module does not quote a lone carriage return, but its reader ends a line there.
        awkward = any("\r" in str(value) for line in part for value in line)
        text, dialect = io.StringIO(newline=""), csv.unix_dialect if awkward else csv.excel_tab
        csv.writer(text, dialect, delimiter="\t", lineterminator="\n").writerows(part)
        yield text.getvalue().encode("utf-8", "surrogateescape")


def from_tsv(raw: bytes, kind: type, path: Path) -> list[Any]:
    """The rows of a table; IntegrityError if damaged."""
    text = io.StringIO(raw.decode("utf-8", "surrogateescape"), newline="")
    reader = csv.reader(text, delimiter="\t")
    names, types = zip(*((column.name, column.type) for column in fields(kind)), strict=True)
    try:
        if tuple(next(reader, ())) != names:
            raise ValueError("other columns")
        return [kind(*(of(v) for of, v in zip(types, row, strict=True))) for row in reader]
    except (ValueError, csv.Error) as error:
        words = f"{path} is damaged ({short(error)}); remove it and start the run again"
        raise IntegrityError(words) from error


def _content(path: Path, facts: Facts) -> bytes:
    """The bytes of a file of the plan; IntegrityError if it is missing, changed or damaged."""
    if (raw := read(path, sys.maxsize)) is None:
        raise IntegrityError(f"{path} is missing; remove plan.tsv too, and start the run again")
    if facts.checksums.get(path.name) != checksum(raw):
        words = "changed by hand, or damaged); remove both and start the run again"
        raise IntegrityError(f"{path} does not match its plan.json ({words}")
    return raw


def load_facts(path: Path) -> Facts:
    """Read a plan's facts, without its shards (up to a million); raises errors as `load` does."""
    import msgspec  # here: where a Snakefile is only parsed, it need not be installed

    results = Results(path.parent)
    try:
        os.stat(path)
        content = json.loads(results.plan_facts.read_bytes())
        checksums = content.pop("checksums")
        proven = json.dumps(content, sort_keys=True).encode()
        if checksums[results.plan_facts.name] != checksum(proven):
            raise ValueError("changed by hand, or damaged")
        with _CONVERTING:
            return replace(msgspec.convert(content, Facts), checksums=checksums)
    except PermissionError as error:
        raise unread(error.filename, error) from error
    except OSError as error:
        told = f"there are no results of a run in {os.path.abspath(path.parent)} ({error})"
        told += "; start the run first, or name its results folder"
        if os.path.isfile(results.merging):
            told = f"{path.parent} holds a total of several runs, not a run; load its .npy files"
        raise InputError(told) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        words = "is damaged; remove it and start the run again"
        raise IntegrityError(f"{results.plan_facts} {words}") from error
