"""Files that other configs have left in a results folder, known by the keys in their names."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.files.paths import list_names, stamp
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.units import human_bytes

_MOST_SHARDS = 100_000
_NAME = "([0-9]+-[0-9a-f]{12})"
_KEYED = re.compile(
    rf"(?:[0-9]{{3}}/)?{_NAME}\.(?:npy|json)|[a-z]+-(?:{_NAME}|([0-9a-f]{{12}}))\.json"
)
"""A file of a shard, or the failure of a copy or of a stage."""


def find(plan: Plan) -> Iterator[Path]:
    """Files of other configs; each folder is listed once, and nothing is opened.

    The marker of another config's sum is left out: it says which files the next sum must remove.
    """
    results, own = plan.results, {plan.key}
    for row in plan.shards.values():
        own |= {row.name, row.input_name}
    for top in (results.products, results.shards, results.failed):
        for name in sorted(list_names(top)):
            match = _KEYED.fullmatch(name)
            if match and own.isdisjoint(match.groups()):
                yield top / name


def config_differs(plan: Plan) -> bool:
    """Whether the plan in the folder is of another config, not only of another input."""
    with suppress(ShardwiseError):  # there is none, or none that can be used
        own, there = plan.facts, plans.load_facts(plan.results.plan)
        return own.digest != there.digest and own.config_digest != there.config_digest
    return False


def replaced(plan: Plan) -> str:
    """What to say before a run replaces the finished results of another config."""
    if not list_names(plan.results.done) or not config_differs(plan):
        return ""
    return (
        f"{plan.results.root} holds the finished results of another config. Their sum and page "
        "will be replaced, their products stay; to keep all, set results to another folder"
    )


def advice(plan: Plan) -> str:
    """What to say of other configs if their files take over a tenth of the plan's own bytes.

    Empty for a plan of very many shards, whose folders take seconds to list.
    """
    if len(plan.shards) > _MOST_SHARDS:
        return ""
    own = sum(row.product_bytes for row in plan.shards.values())
    own += sum(row.bytes for row in plan.shards.values()) if plan.settings.materialize else 0
    sizes = [found[1] for path in find(plan) if (found := stamp(path))]
    if sum(sizes) <= own / 10:
        return ""
    taken = human_bytes(sum(sizes))
    return f"{len(sizes)} files of other configs or inputs take {taken}; shardwise clean lists them"
