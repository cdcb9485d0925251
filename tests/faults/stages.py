"""The stages of a small run, to be disturbed at any call, and what must hold afterwards."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from shardwise.errors import ShardwiseError
from shardwise.files.checksum import file_checksum
from shardwise.files.npy import read_header
from shardwise.files.paths import Results
from shardwise.multiply import copy as copies
from shardwise.multiply import job
from shardwise.plan import memory, planner
from shardwise.plan import plan as plan_file
from shardwise.records import ledger, locks, receipts
from shardwise.records.receipts import ArrayFile, SumReceipt
from shardwise.records.store import Store
from shardwise.reduce import reducer

from tests import factories

_VOLATILE = "started", "finished", "process", "attempt", "held", "proof", "digest", "made"
"""Keys whose values differ from run to run, and the digest of a receipt, which covers them."""

STACK = factories.noise((6, 5, 5), "float32", seed=7)
SHARDS = ("00000", "00001")


def _made(folder: Path, **over: object) -> plan_file.Plan:
    path = folder.parent / "input.npy"
    if not path.exists():
        np.save(path, STACK)
    own = {"input": None if "synthetic" in over else str(path), "shards": 2}
    plan = planner.make(factories.settings(results=str(folder / "results"), **own | over))
    planner.check_folder(plan)
    planner.write(plan)
    return plan


def _plan(folder: Path) -> plan_file.Plan:
    return plan_file.load(folder / "results" / "plan.tsv")


def _copied(folder: Path) -> None:
    copies.materialize(_plan(folder), SHARDS[1])


def _multiplied(folder: Path, *names: str) -> None:
    for name in names or SHARDS:
        with locks.hold_job_lock(_plan(folder).results):
            job.run_shard(_plan(folder), name)


def _ledger(folder: Path) -> None:
    ledger.write(_plan(folder))


def _reduced(folder: Path) -> None:
    from mpi4py import MPI

    memory.REDUCE_BATCH_BYTES = 300  # in many steps, each of which is committed
    reducer.run(MPI.COMM_SELF, folder / "results" / "plan.tsv", ["sum", "mean"])


def _touched(folder: Path) -> None:
    """Touch the input, which gives its shards other keys."""
    (folder.parent / "input.npy").touch()
    _in_place(folder)


_in_place = partial(_made, materialize=False)
_made_sum = partial(_made, keep="sum", materialize=False, product="A.T @ A")
_made_synthetic = partial(_made, synthetic={"matrices": 4, "dim": 4, "dtype": "float32", "seed": 1})
_first, _last = (lambda folder, name=name: _multiplied(folder, name) for name in SHARDS)
_listed = (_made, _multiplied, _ledger)
_listed_sum = (_made_sum, _multiplied, _ledger)
STAGES: dict[str, tuple[Callable[[Path], object], ...]] = {
    "plan": (_made,),
    "plan over another": (_made, _copied, _multiplied, _ledger, _reduced, partial(_made, shards=3)),
    "synthesize": (_made_synthetic, lambda folder: copies.synthesize(_plan(folder))),
    "shard": (_made, _copied),
    "multiply": (_made, _first, _last),
    "multiply, keep: sum": (_made_sum, _first, _last),
    "multiply over another": (_made_sum, _multiplied, _made, _first, _last),
    "multiply, adopted": (_in_place, _multiplied, _touched, _last),
    "ledger": _listed,
    "ledger over another": (*_listed_sum, *_listed),
    "reduce": (*_listed, _reduced),
    "reduce over another": (*_listed_sum, _reduced, *_listed, _reduced),
}
"""Each stage, the last of some steps in ``folder/results``; another plan's sum has other bits."""


def state(folder: Path) -> dict[str, bytes]:
    """All finished files, without what differs from run to run.

    Logs, failures and temporary files are left aside.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        aside = path.name.endswith(".tmp") or {"logs", "failed"} & {*path.parts}
        if path.is_file() and not aside:
            found[name] = _comparable(path)
    return found


def _comparable(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix == ".json" and path.parent.name in ("products", "shards", "results"):
        facts = {key: value for key, value in json.loads(raw).items() if key not in _VOLATILE}
        facts.get("checksums", {}).pop("plan.json", None)  # it covers the time of the plan
        return json.dumps(facts).encode()
    if path.name == "ledger.tsv":
        rows = [line.split(b"\t") for line in raw.splitlines()]
        return b"\n".join(b"\t".join(row[:12] + row[14:]) for row in rows)
    return raw


def visible_faults(folder: Path, *allowed: dict[str, bytes]) -> Iterator[str]:
    """Yield whatever looks finished to a reader but is not."""
    try:
        found = state(folder)
    except ValueError as error:
        yield f"a file cannot be read: {error}"
        return
    for name, content in found.items():
        if content not in [one.get(name) for one in allowed]:
            yield f"{name} is neither the old nor the new one"
    results = Results(folder / "results")
    if results.summary.exists():
        for name, facts in receipts.read(results.summary, SumReceipt).files.items():
            if not vouches(facts, results.statistic(name)):
                yield f"summary.json vouches for another {name}.npy"
    try:
        plan = _plan(folder)
    except ShardwiseError:
        return
    store = Store(plan)
    lacking = store.missing()
    for name in plan.shards:
        if name not in lacking and not vouches(
            factories.receipt(plan, name).file, factories.file(plan, "product", name)
        ):
            yield f"the receipt of product {name} vouches for another file"
        copy = factories.file(plan, "shard", name)
        known = copy.exists() and receipts.passes(store.copy_receipt, name)
        if known and not vouches(store.copy_receipt(name).file, copy):
            yield f"the receipt of copy {name} vouches for another file"


def vouches(facts: ArrayFile, path: Path) -> bool:
    """Whether a file has the elements that its receipt describes."""
    receipts.check_file(path, facts)
    offset = read_header(path).offset
    return facts.checksum == file_checksum(path, offset, facts.row_bytes, facts.piece_bytes)


def restored(snapshot: Path, folder: Path) -> None:
    """Replace ``folder`` by a copy of ``snapshot``, time stamps included."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(snapshot, folder, symlinks=True)
