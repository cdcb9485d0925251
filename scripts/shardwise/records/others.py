"""Files that other configs have left in a results folder, known by the keys in their names."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.files.paths import list_names, place
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.units import human_bytes

_MOST_SHARDS = 100_000
_NAME = "[0-9]+-[0-9a-f]{12}"
_ARRAY, _LOG, _FAILURE = (
    re.compile(rf"(?:[0-9]{{3}}/)?({_NAME})\.(?:{suffixes})")
    for suffixes in ("npy|json", "log|starts", "json")
)
_STAGE = re.compile(rf"[a-z]+-({_NAME}|[0-9a-f]{{12}})\.json")
_MARKER = re.compile("([0-9a-f]{12})")


def find(plan: Plan) -> Iterator[Path]:
    """Files of other configs; each folder is listed once, and nothing is opened.

    The marker of another config's sum is left out: it says which files the next sum must remove.
    """
    results, rows = plan.results, plan.shards.values()
    products, copies = {row.name for row in rows}, {row.input_name for row in rows}
    for top, pattern, own in (
        (results.products, _ARRAY, products),
        (results.shards, _ARRAY, copies),
        (results.root / "logs" / "multiply", _LOG, products),
        (results.root / "logs" / "shard", _LOG, copies),
        (results.failed, _FAILURE, products),
        (results.failed, _STAGE, {plan.key, *copies}),
    ):
        for name in sorted(list_names(top)):
            match = pattern.fullmatch(name)
            if match is None or match[1] in own:
                continue
            # A file of a shard counts only where a run puts it.
            if pattern is _STAGE or name.partition(".")[0] == place(match[1]):
                yield top / name


def config_differs(plan: Plan) -> bool:
    """Whether the plan in the folder is of another config, not only of another input."""
    with suppress(ShardwiseError):  # there is none, or none that can be used
        own, there = plan.facts, plans.load_facts(plan.results.plan)
        return own.digest != there.digest and own.config_digest != there.config_digest
    return False


def replaced(plan: Plan) -> str:
    """What to say before a run replaces the finished results of another config."""
    summed = set(filter(_MARKER.fullmatch, list_names(plan.results.done)))
    if not summed or plan.key in summed or not config_differs(plan):
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
    sizes = []
    for path in find(plan):
        with suppress(OSError):  # removed meanwhile
            sizes.append(os.lstat(path).st_size)
    if sum(sizes) <= own / 10:
        return ""
    taken = human_bytes(sum(sizes))
    return f"{len(sizes)} files of other configs or inputs take {taken}; shardwise clean lists them"


def reusable(plan: Plan, missing: Sequence[str]) -> str:
    """What to say of missing shards that may have an earlier product of the same matrices.

    Their tasks check whether they have (`shardwise.multiply.adopt`). Only the receipts of one shard
    are read here: if those of others are of another config, the number is a little too high.
    """
    if not missing or len(plan.shards) > _MOST_SHARDS:
        return ""
    from shardwise.records import judge, receipts  # here: jobs do not need them

    folder, rows, wanted = plan.results.products, plan.shards, set(missing)
    earlier = defaultdict[str, list[Path]](list)
    for name in list_names(folder) - {f"{place(row.name)}.json" for row in rows.values()}:
        shard = name.rpartition("/")[2].partition("-")[0]
        if name.endswith(".json") and shard in wanted:
            earlier[shard].append(folder / name)
    first = min(earlier, default="")
    for path in earlier.get(first, ()):
        with suppress(ShardwiseError):
            if judge.is_alike(plan, rows[first], receipts.read(path, receipts.ProductReceipt)):
                return (
                    f"{len(earlier)} of these have an earlier product, which is kept if a read "
                    "shows that their matrices are the same"
                )
    return ""
