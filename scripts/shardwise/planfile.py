"""The plan on disk: ``plan.tsv``, ``sources.tsv`` and ``plan.json``.

``plan.json`` is written last and carries the checksums of the other two: without it there is no
plan. Reading takes the standard library only, because every job reads the plan.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, IntegrityError
from shardwise.paths import Results
from shardwise.plan import Problem, Shard

SETTINGS_THAT_MATTER = ("product", "keep", "backend", "precision", "verify", "nonfinite")
"""Settings that a shard's products or their proof depend on; each stands in the fingerprint."""


@dataclass(frozen=True)
class Plan:
    """A plan as the stages use it."""

    results: Results
    shards: dict[str, Shard]
    problem: Problem
    dtype: str
    settings: dict[str, Any]
    facts: dict[str, Any]

    def shard(self, shard: str) -> Shard:
        """The row of a shard.

        Raises
        ------
        InputError
            Where the plan has no such shard.
        """
        try:
            return self.shards[shard]
        except KeyError:
            ids = list(self.shards)
            raise InputError(
                f"shard {shard!r} is not in {self.results.plan}; it holds {ids[0]} to {ids[-1]}"
            ) from None


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits that change with a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def to_tsv(rows: Iterable[Any], kind: type) -> bytes:
    """A table of dataclass rows as bytes; quoted where a path needs it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(f.name for f in fields(kind))
    writer.writerows(astuple(row) for row in rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def from_tsv(raw: bytes, kind: type, path: Path) -> list[Any]:
    """The rows of a table that :func:`to_tsv` wrote.

    Raises
    ------
    IntegrityError
        Where a row does not fit the columns.
    """
    text = io.StringIO(raw.decode("utf-8", "surrogateescape"), newline="")
    reader = csv.reader(text, delimiter="\t")
    columns = fields(kind)
    if next(reader, None) != [c.name for c in columns]:
        raise IntegrityError(f"{path}: is damaged; remove it and run snakemake again")
    try:
        return [
            kind(*(c.type(v) for c, v in zip(columns, row, strict=True)))  # type: ignore[operator]
            for row in reader
        ]
    except ValueError as error:
        raise IntegrityError(f"{path}: is damaged ({error}); run snakemake again") from error


def dumps(facts: dict[str, Any]) -> bytes:
    """JSON as it stands on disk."""
    return json.dumps(facts, indent=1).encode() + b"\n"


def load(path: Path) -> Plan:
    """Read a plan.

    Raises
    ------
    InputError
        Where there is none.
    IntegrityError
        Where it is damaged.
    """
    results = Results.of_plan(path)
    try:
        raw, facts = path.read_bytes(), json.loads(results.plan_facts.read_bytes())
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename} is missing; make the plan first: snakemake, or scripts/plan.py"
        ) from error
    except ValueError as error:
        raise IntegrityError(f"{results.plan_facts}: is damaged; run snakemake again") from error
    _check(raw, facts, path)
    return Plan(
        results=results,
        shards={row.shard: row for row in from_tsv(raw, Shard, path)},
        problem=_problem(facts["problem"]),
        dtype=facts["dtype"],
        settings=facts["settings"],
        facts=facts,
    )


def load_sources(plan: Plan) -> list[Any]:
    """The input files of a plan, as :class:`shardwise.sources.Source` rows."""
    from shardwise.sources import (
        Source,  # here: it needs NumPy, which the workflow's parsing avoids
    )

    path = plan.results.sources
    raw = path.read_bytes()
    _check(raw, plan.facts, path)
    return from_tsv(raw, Source, path)


def checksum(raw: bytes) -> str:
    """Checksum of a small text file, by the standard library alone."""
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def _check(raw: bytes, facts: dict[str, Any], path: Path) -> None:
    if facts.get("checksums", {}).get(path.name) != checksum(raw):
        raise IntegrityError(
            f"{path}: does not fit its plan.json (changed by hand, or damaged); remove both and "
            "run snakemake again"
        )


def _problem(facts: dict[str, Any]) -> Problem:
    right = tuple(facts["right"]) if facts["right"] else None
    return Problem(**{**facts, "left": tuple(facts["left"]), "right": right})
