"""The reduce: every rank adds its part of all products, and each byte is read once.

Where the result has many stripes, ranks share them, and each writes its own part of the result's
files; else ranks share the products, and what they hold is merged. Nothing that is merged depends
on order or grouping (binned.py, statistics.py). The checksum of each shard's file is formed in the
same pass, and compared with its receipt before anything is published.
"""

import contextlib
import json
import logging
import math
import time
from collections import Counter
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shardwise import ALGORITHM, host
from shardwise.devices import quarantine, telemetry
from shardwise.errors import InputError, IntegrityError, some
from shardwise.files import pieces as piecess
from shardwise.files import small
from shardwise.files.paths import STATISTICS
from shardwise.numerics import reference
from shardwise.numerics.binned import plane_shape, rounded
from shardwise.numerics.packed import Packing, unpack
from shardwise.numerics.scalars import Scalars
from shardwise.plan import memory, nonfinite
from shardwise.plan import plan as plans
from shardwise.plan import problem as plan_problem
from shardwise.plan.plan import Plan
from shardwise.records import ledger, receipts, witness
from shardwise.records.locks import exclusive_lock
from shardwise.records.receipts import ProductReceipt, Witness
from shardwise.reduce import rank_limits
from shardwise.reduce.checkpoint import Checkpoint, CheckpointFolder
from shardwise.reduce.comm import Comm
from shardwise.reduce.layout import Layout, Run, portion, remaining, share, teams
from shardwise.reduce.peers import Peers
from shardwise.reduce.results import ResultFiles
from shardwise.reduce.scan import Part, Scan
from shardwise.reduce.stripe import StripeSum, adds_planes, element_type, number_parts
from shardwise.units import count, human_bytes

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0
_SEARCH_SECONDS = 60.0  # for the product that is not finite
_NAME_BYTES = 256  # more than any host name has


def run(
    comm: Comm, plan_file: Path, names: list[str],
    limit: float = memory.REDUCE_LIMIT_SECONDS, save_every: float = memory.REDUCE_SAVE_SECONDS,
) -> Plan:  # fmt: skip
    """Compute statistics over all products and commit them, then ``summary.json``.

    Every rank of ``comm`` calls this. A rank that gives no sign of life for ``limit`` seconds, or
    waits so long for one file, ends all. Every ``save_every`` seconds unfinished work is committed.

    Raises
    ------
    IntegrityError, InputError, TryAgain
        On every rank: where a shard is not what its receipt says; where a result overflows, or
        cannot be had from what the shards keep; where a file cannot be read, or another reduce
        works on these results.
    """
    started = time.time()
    peers = Peers(comm, limit)
    plan = peers.agree(lambda: _load(plan_file, names), "the plan")
    with contextlib.ExitStack() as stack:
        peers.agree(
            lambda: stack.enter_context(exclusive_lock(plan.results)) if peers.rank == 0 else None,
            "the lock",
        )
        job = _Job(peers, plan, names, save_every)
        try:
            job.read_all()
            job.publish(started)
        except (InputError, IntegrityError):
            if peers.rank == 0:
                job.partial.clear()  # what is wrong may stand in there
            raise
    peers.close()
    return plan


def _load(plan_file: Path, names: list[str]) -> Plan:
    """The plan, if these statistics can be had of it."""
    plan = plans.load(plan_file)
    plan_problem.check_statistics(names, plan.settings.keep, plan.problem.product_dtype)
    return plan


def layout_of(plan: Plan) -> Layout:
    """How the files of a plan's shards are read; how many rows planes have, receipts say."""
    problem = plan.problem
    elements = problem.product_shape[0] * problem.product_shape[1]
    numbers, item, rows = elements, problem.product_item, None
    planes = adds_planes(plan)
    if planes:
        numbers, item, rows = elements * number_parts(problem.product_dtype), 2, 1
    elif plan.settings.keep == "sum":
        item, rows = problem.sum_item, 1
    counts = [rows or shard.stop - shard.start for shard in plan.shards.values()]
    return Layout(counts, numbers, item, *piecess.checksum_pieces(numbers * item, item), planes)


def most_ranks(plan: Plan) -> rank_limits.Limit:
    """How many ranks the sum can make use of: each has a part of the rows of a stripe."""
    layout = layout_of(plan)
    pieces = layout.stripes * layout.units
    products, parts = plan.problem.matrices, count(pieces, "piece")
    return rank_limits.limit_by_work(pieces, f"{count(products, 'product')} to sum, in {parts}")


class _Job:
    """One reduce, as one of its ranks sees it."""

    def __init__(self, peers: Peers, plan: Plan, names: list[str], save_every: float) -> None:
        self._peers, self._plan, self._names = peers, plan, names
        self._save_every, self._saved = save_every, time.monotonic()
        self._layout = layout_of(plan)
        self._shards = list(plan.shards.values())
        found = self._receipts()
        self._ledger = plans.file_digest(plan.results.ledger) if peers.rank == 0 else ""
        checksums = "".join(receipt.file.checksum for receipt in found)
        own = np.frombuffer(bytes.fromhex(checksums), np.uint8)
        # Known on rank 0:
        self._makers, self._energy = receipts.count_makers(found), telemetry.energy(found)
        self._expected = peers.broadcast(own).reshape(-1, 16)
        if self._layout.planes:
            packings = np.array([r.file.planes.to_row() for r in found if r.file.planes], np.int64)
            table = peers.broadcast(packings.reshape(-1).view(np.uint8)).view(np.int64)
            self._packings = table.reshape(len(self._shards), -1)
            self._layout = replace(self._layout, rows=self._packings[:, 1:].sum(axis=1).tolist())
        self._accounts = [witness.read(receipt, plan.problem) for receipt in found]
        facts = [
            plan.facts.digest, names, ALGORITHM["reduce"], self._expected.tobytes().hex(),
            reference.SEED,
        ]  # fmt: skip
        self.partial = CheckpointFolder(plan.results.partial, plans.digest(facts))
        self._outputs = ResultFiles(self.partial, plan.problem, names)
        self._digests = np.zeros_like(self._expected)
        self._finished: list[int] = []
        self._begun: set[int] = set()  # stripes with a record of this rank
        self._scalars = Scalars(plan.problem.matrices, plan.problem.product_shape[1])
        self._form = reference.SumForm(plan.problem.product_shape, plan.problem.sum_dtype)
        self._resume()

    def _receipts(self) -> list[ProductReceipt]:
        """The receipts of all shards, on rank 0; each rank asks the judge about a part of them."""
        peers, plan = self._peers, self._plan
        own = list(plan.shards)[slice(*share(len(plan.shards), peers.rank, peers.size))]
        judged = peers.agree(lambda: ledger.judge_part(plan, own), "the receipts")
        others: list[np.ndarray] = []  # of the ranks behind this one, in their order

        def dump() -> list[np.ndarray]:
            return [np.frombuffer(msgspec.msgpack.encode(judged), np.uint8), *others]

        def read() -> list[ProductReceipt]:
            for raw in others:
                judged.extend(msgspec.msgpack.decode(raw, type=list[ProductReceipt]))
            # Where a rank found a bad one, all are looked at here, so that one error names them.
            found = ledger.read(plan, judged if len(judged) == len(plan.shards) else None)
            self._refuse_other_arrays(found)
            return found

        first = peers.merged(range(peers.size), dump, others.extend)
        return peers.agree(lambda: read() if first else [], "the receipts")

    def _refuse_other_arrays(self, found: list[ProductReceipt]) -> None:
        """Refuse what is whole by its receipt, but not what the plan makes."""
        layout, dtype = self._layout, element_type(self._plan)
        planes = memory.plane_count(self._plan.problem)
        for shard, receipt in enumerate(found):
            shape, rows, packing = receipt.file.shape, layout.rows[shard], receipt.file.planes
            if layout.planes:
                rows = shape[0] if packing and packing.fits(planes, shape) else -1
            planned = rows * layout.numbers
            if (math.prod(shape), receipt.file.dtype) != (planned, dtype):
                raise self._damaged(
                    [shard], f"{receipt.file.name} holds {shape} of {receipt.file.dtype}, which "
                    "the plan does not make it"
                )  # fmt: skip

    def _resume(self) -> None:
        """Find what an earlier reduce has left; rank 0 answers for the stripes it has finished."""
        peers = self._peers
        found = peers.agree(lambda: self._outputs.prepare() if peers.rank == 0 else [], "old work")
        facts = [
            f"{time.time_ns():x}",
            [[r.stripe, r.runs, r.finished, str(r.path)] for r in found],
        ]
        raw = peers.broadcast(np.frombuffer(json.dumps(facts).encode(), np.uint8))
        self._token, rows = json.loads(raw.tobytes())
        records = [
            Checkpoint([(first, last) for first, last in runs], stripe, done, Path(path))
            for stripe, runs, done, path in rows
        ]
        self._records = [record for record in records if not record.finished]
        self._before = {stripe for record in records for stripe in record.finished}
        if records and peers.rank == 0:
            log.info("reduce: goes on from what an earlier one has left in %s", self.partial.folder)
            for record in records:
                if record.finished:
                    digests, *state = record.arrays()
                    self._digests ^= digests
                    self._merge(state)
            self._finished = sorted(self._before)

    # Reading.

    def read_all(self) -> None:
        """Read this rank's share, and write what it comes to, or pass it on."""
        peers, layout = self._peers, self._layout
        todo = [stripe for stripe in range(layout.stripes) if stripe not in self._before]
        members = peers.size // teams(len(todo), peers.size)
        own, place = divmod(peers.rank, members)
        team = range(peers.rank - place, peers.rank - place + members)
        low, high = share(len(todo), own, peers.size // members)
        work = {stripe: portion(self._left(stripe), place, members) for stripe in todo[low:high]}
        self._progress = _ReadProgress(peers.rank == 0, layout, work)
        batches = (
            layout.batches(stripe, runs, memory.REDUCE_BATCH_BYTES) for stripe, runs in work.items()
        )
        dtype = element_type(self._plan)
        scan = Scan(layout, chain.from_iterable(batches), self._path, dtype)
        with peers.sharing_errors(), scan:
            for stripe in work:
                self._reduce(stripe, team, scan)
        peers.agree(self._outputs.close, "the result's files")

    def _left(self, stripe: int) -> list[Run]:
        """The units of a stripe that no record holds."""
        done = (record.runs for record in self._records if record.stripe == stripe)
        return remaining(self._layout.units, chain.from_iterable(done))

    def _path(self, shard: int) -> Path:
        return self._plan.results.product(self._shards[shard].shard)

    def _reduce(self, stripe: int, team: range, scan: Scan) -> None:
        """Add this rank's part of the rows of a stripe, and merge it with those of its team."""
        work = StripeSum(
            self._plan, self._shards, self._names, self._layout, self._packing_of, stripe
        )
        if self._peers.rank == team.start:
            for record in self._records:
                if record.stripe == stripe:
                    work.merge(record.arrays())
        while scan.stripe == stripe:
            part = scan.take(lambda future: self._peers.result(future, "a shard's file"))
            with np.errstate(all="ignore"):  # what overflows is found and named at the end
                work.add(part)
            self._progress.add(part)
            scan.give_back(part)
            self._peers.beat()
            if time.monotonic() - self._saved >= self._save_every:
                self._peers.during(lambda: self._save(work), "unfinished work to be written")
        # State by state, so that no rank holds all that another one has.
        if all([self._peers.merged(team, *way) for way in work.ways()]):
            self._finish(work)

    def _finish(self, work: "StripeSum") -> None:
        """Write the results of a stripe that is whole."""
        with np.errstate(all="ignore"):
            results = work.results()
        if self._plan.settings.nonfinite == "error":
            self._refuse_nonfinite(results, work.low)
        self._outputs.write(results, work.low)
        self._scalars.add(results, work.low)
        if "sum" in results:
            self._form.add(results["sum"], work.low)
        self._digests ^= work.digests
        self._finished.append(work.stripe)

    def _refuse_nonfinite(self, results: dict[str, np.ndarray], low: int) -> None:
        for name, array in results.items():
            finite = np.isfinite(array)
            if not finite.all():
                wild = int(finite.argmin())
                element, value = low + wild, array[wild]
                where = list(divmod(element, self._plan.problem.product_shape[1]))
                told = self._peers.during(
                    lambda element=element: self._origin(element), "products to be searched"
                )
                what = f"is {value}" if told.startswith(": so is") else f"overflows {array.dtype}"
                raise InputError(f"the {name} {what} at element {where}{told}")

    def _origin(self, element: int) -> str:
        """Which product makes an element NaN or Inf, and where its matrix lies."""
        until = time.monotonic() + _SEARCH_SECONDS
        for number, shard in enumerate(self._shards):
            wild = np.flatnonzero(~np.isfinite(self._element_of(number, element)))
            if wild.size and self._plan.settings.keep == "products":
                matrix = shard.start + int(wild[0])
                return self._cause(f"the product of matrix {matrix}", matrix, matrix + 1)
            if wild.size:
                return self._cause(f"the sum of shard {shard.shard}", shard.start, shard.stop)
            if time.monotonic() > until:
                return f"; of which product, was not found in {_SEARCH_SECONDS:.0f} s"
        return (
            ", although all products are finite there; scale the input, leave this statistic out, "
            "or set nonfinite: allow"
        )

    def _cause(self, what: str, start: int, stop: int) -> str:
        """Where the input of some products is NaN or Inf, or that it is finite."""
        plan = self._plan
        for key in ("input", "right") if plan.problem.right else ("input",):
            low, high = (0, 1) if key == "right" and plan.problem.shared_right else (start, stop)
            try:
                place = nonfinite.find(plan, key, low, high)
            except (OSError, IntegrityError) as error:
                return f": so is {what}; why, cannot be told: {error}"
            if place:
                return (
                    f": so is {what}, which was computed under nonfinite: allow. {key}: {place}; "
                    "correct it, or set nonfinite: allow"
                )
        where = nonfinite.files_of(plan, "input", start, stop)
        return (
            f": so does {what}, although the input ({where}) is finite; scale the input, or set "
            "nonfinite: allow"
        )

    def _element_of(self, number: int, element: int) -> np.ndarray:
        """One element of all products of a shard, or of their sum."""
        rows = self._rows(number)
        if adds_planes(self._plan):
            return self._round(number, rows, element, element + 1)
        return np.array(rows[:, element])

    def _packing_of(self, shard: int) -> Packing:
        """How the planes of a shard's sum lie in its file."""
        return Packing.from_row(self._packings[shard].tolist())

    def _rows(self, number: int) -> np.ndarray:
        """The rows of a shard's file."""
        array = np.load(self._path(number), "r", allow_pickle=False)
        return array.reshape(self._layout.rows[number], -1)

    def _round(self, shard: int, rows: np.ndarray, low: int, high: int) -> np.ndarray:
        """Some elements of the sum of a shard."""
        dtype = self._plan.problem.product_dtype
        parts = number_parts(dtype)
        planes = unpack(rows[:, parts * low : parts * high], self._packing_of(shard))
        return rounded(planes.reshape(plane_shape((high - low,), dtype)), dtype)

    def _save(self, work: "StripeSum") -> None:
        """Commit what this rank has: stripes that are finished, and the one it works on."""
        if self._finished:
            self._outputs.sync()
            arrays = [self._digests, *self._dump()]
            record = Checkpoint(finished=self._finished)
            self.partial.save(f"{self._token}-{self._peers.rank}-done", record, arrays)
        record = Checkpoint(work.runs, work.stripe)
        self.partial.save(self._record_name(work.stripe), record, work.dump())
        for stripe in self._begun & set(self._finished):  # their results are on the disk now
            self.partial.remove(self._record_name(stripe))
        self._begun = self._begun - set(self._finished) | {work.stripe}
        self._saved = time.monotonic()

    def _record_name(self, stripe: int) -> str:
        return f"{self._token}-{self._peers.rank}-{stripe}"

    def _dump(self) -> list[np.ndarray]:
        """What is known of the stripes that this rank has finished."""
        return [self._form.dump(), *self._scalars.dump()]

    def _merge(self, dump: list[np.ndarray]) -> None:
        form, *scalars = dump
        self._form.merge(form)
        self._scalars.merge(scalars)

    # What it has come to.

    def publish(self, started: float) -> None:
        """Compare all checksums and the sum, then commit the results and ``summary.json``."""
        peers = self._peers
        found = peers.xor(self._digests)
        wrong = np.flatnonzero((found != self._expected).any(axis=1)).tolist()
        if wrong:
            raise self._damaged(wrong, "checksums differ from their receipts")
        checksums = self._outputs.checksums(peers)
        first = peers.merged(range(peers.size), self._dump, self._merge)
        self._prove(first)
        nodes = self._nodes()
        peers.agree(
            lambda: self._commit(checksums, nodes, started) if first else None, "the results"
        )

    def _prove(self, first: bool) -> None:
        """Compare the sum with what the receipts say of it; where they differ, find out why."""
        peers, self._end = self._peers, {}
        if first:
            self._end = self._end_to_end()
        state = np.frombuffer(json.dumps(self._end).encode(), np.uint8)
        told = json.loads(peers.broadcast(state).tobytes())
        if told["end_to_end"] is None:
            return
        if told["wrong"]:
            raise self._damaged(
                told["wrong"], "its products, by its receipt, do not come to what its factors do"
            )
        if not told["end_to_end"]["off"] <= 1:
            self._blame(told["accounts"])

    def _end_to_end(self) -> dict[str, Any]:
        """The verdict on rank 0, and what other ranks need where it is a bad one."""
        why = next((own for own in self._accounts if isinstance(own, str)), None)
        if "sum" not in self._names and "mean" not in self._names:
            why = "there is no sum among the statistics"
        found = self._form.value()
        if why is None and not np.isfinite(found).all():
            why = "the sum is not finite"
        if why is not None:
            return {"end_to_end": None, "no_end_to_end": why}
        own = witness.compare_sum(self._plan.problem, self._accounts, found, self._plain())
        if math.isnan(own.off):
            return {"end_to_end": None, "no_end_to_end": "its numbers are too large for float64"}
        facts = {"shards": own.shards, "off": own.off, "host": own.host}
        told = [] if own.off <= 1 else [account.to_json() for account in self._accounts]
        return {"end_to_end": facts, "wrong": own.wrong, "accounts": told}

    def _plain(self) -> bool:
        """Whether the shards have added products in double precision, not in bins."""
        return self._plan.settings.keep == "sum" and not adds_planes(self._plan)

    def _blame(self, told: list[dict[str, Any]]) -> None:
        """Read all files again, and name those that do not come to what their receipts say."""
        problem, peers = self._plan.problem, self._peers
        wrong = np.zeros(len(self._shards), np.uint8)
        if peers.rank == 0:
            log.error("reduce: the sum does not come to what the receipts say; reading all again")
        with peers.sharing_errors():
            for i in range(peers.rank, len(wrong), peers.size):
                own = witness.parse(msgspec.convert(told[i], Witness), problem)
                wrong[i] = not witness.matches(problem, own, self._form_of(i), self._plain())
        found = np.flatnonzero(peers.xor(wrong)).tolist()
        if found:
            raise self._damaged(found, "its file does not come to what its receipt says")
        raise IntegrityError(
            "the sum does not come to what the receipts say, and all files of shards do: a rank "
            "went wrong, in its memory or on the network; nothing was written. Run snakemake again"
        )

    def _form_of(self, shard: int) -> np.ndarray:
        """What the file of a shard comes to."""
        problem, planes = self._plan.problem, adds_planes(self._plan)
        rows, elements = self._rows(shard), math.prod(problem.product_shape)
        total = reference.SumForm(problem.product_shape, problem.sum_dtype)
        step = memory.REDUCE_BATCH_BYTES // 8 // (memory.plane_count(problem) if planes else 1)
        for row in [rows] if planes else rows:
            for low in range(0, elements, step):
                high = min(low + step, elements)
                part = self._round(shard, row, low, high) if planes else np.array(row[low:high])
                total.add(part, low)
                self._peers.beat()
        return total.value()

    def _nodes(self) -> dict[str, int]:
        """How many ranks each node has, by its name."""
        names = np.zeros((self._peers.size, _NAME_BYTES), np.uint8)
        own = np.frombuffer(host.node().encode()[:_NAME_BYTES], np.uint8)
        names[self._peers.rank, : len(own)] = own
        rows = self._peers.xor(names)
        return dict(Counter(row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in rows))

    def _commit(self, checksums: dict[str, str], nodes: dict[str, int], started: float) -> None:
        plan = self._plan
        former = small.read_json(plan.results.summary) or {}
        plan.results.summary.unlink(missing_ok=True)  # it vouches for the files before
        files = self._outputs.publish(plan.results, checksums)
        for name in set(STATISTICS) & set(former.get("files", ())) - set(files):
            plan.results.statistic(name).unlink(missing_ok=True)  # no summary speaks of it now
        summary = {
            "matrices": plan.problem.matrices,
            "shards": len(self._shards),
            "product": plan.problem.product,
            "keep": plan.settings.keep,
            "proven": plan.settings.verify and plan.problem.result is None,
            **{key: self._end[key] for key in ("end_to_end", "no_end_to_end") if key in self._end},
            "notes": plan.facts.notes,
            "plan": plan.facts.digest,
            "ledger": self._ledger,
            "config": plan.facts.config_digest,
            "made_by": self._makers,
            "ranks": self._peers.size,
            "nodes": nodes,
            "scalars": self._scalars.summary(),
            "files": files,
            **self._energy,
            "quarantined": [asdict(entry) for entry in quarantine.entries(plan.results)],
            **receipts.describe_origin("reduce", started, {"mpi": _mpi_version()}),
        }
        receipts.write(plan.results.summary, summary)
        self.partial.clear()

    def _damaged(self, shards: list[int], what: str) -> IntegrityError:
        """An error that names shards, and the command that repairs them."""
        ids = [self._shards[shard].shard for shard in shards]
        return IntegrityError(
            f"shard {some(ids)}: {what}; compute {'it' if len(ids) == 1 else 'them'} again: "
            f"{ledger.build_repair(self._plan, ids)}, then snakemake as before"
        )


class _ReadProgress:
    """Says on one rank, now and then, how far it is."""

    def __init__(self, speaks: bool, layout: Layout, work: dict[int, list[Run]]) -> None:
        self._speaks, self._layout, self._done = speaks, layout, 0
        self._all = sum(last - first for runs in work.values() for first, last in runs)  # units
        self._bytes, self._began = 0, time.monotonic()
        self._told = self._began

    def add(self, part: Part) -> None:
        """Count a part."""
        for first, last in map(self._layout.units_of, part.batches):
            self._done += last - first
        self._bytes += sum(rows.n * rows.width * rows.flat.itemsize for rows in part.rows)
        now = time.monotonic()
        if self._speaks and now - self._told > _PROGRESS_SECONDS:
            self._told, seconds = now, now - self._began
            log.info(
                "reduce: rank 0 has read %.0f %% of its part, %s/s; about %.0f s to go",
                100 * self._done / self._all,
                human_bytes(int(self._bytes / seconds)),
                seconds * (self._all - self._done) / self._done,
            )


def _mpi_version() -> str:
    from mpi4py import MPI

    line = MPI.Get_library_version().split("\n")[0].split(",")[0].rstrip("\0")
    return " ".join(line.split())
