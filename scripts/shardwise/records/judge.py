"""The judge: the only code that decides whether a receipt is valid under a plan.

All readers ask it, so that none accepts what another refuses. It raises IntegrityError, as does
`receipts.read`; elements are checked by the code that reads them.
"""

from pathlib import Path
from typing import Any

from shardwise.errors import InputError, IntegrityError, short
from shardwise.files import small
from shardwise.plan import plan as plans
from shardwise.plan.plan import Plan
from shardwise.plan.problem import statistic_dtype, statistic_shape
from shardwise.records import receipts
from shardwise.records.receipts import ArrayFile, CopyReceipt, ProductReceipt, SumReceipt
from shardwise.records.store import Store


def check_product(plan: Plan, shard: str) -> ProductReceipt:
    """Return the receipt of a shard whose product is whole, as far as header and size show."""
    row, nodes, path = plan.shards[shard], plan.nodes_of(shard), plan.results.receipt
    receipt = receipts.read(path(row.name), ProductReceipt)
    _expect(receipt, {"shard": shard, "key": row.key}, path(row.name))
    shape = (len(nodes["nodes"] or row.run), *plan.problem.product_shape)
    facts = {"shape": shape, "dtype": plan.element_type, **nodes}
    _expect(receipt.file, facts, path(row.name))
    receipts.check_file(plan.results.product(row.name), receipt.file)
    return receipt


def check_copy(plan: Plan, shard: str) -> CopyReceipt:
    """Return the receipt of the copy of a shard's matrices, without a look at the copy."""
    row = plan.shards[shard]
    path = plan.results.shard_receipt(row.input_name)
    receipt = receipts.read(path, CopyReceipt)
    _expect(receipt, {"shard": shard, "key": row.input_key}, path)
    shape = (len(row.run), *plan.problem.left)
    _expect(receipt.file, {"shape": shape, "dtype": plan.dtype}, path)
    return receipt


def read_finished(plan: Plan, *names: str) -> SumReceipt:
    """The receipt of the sum of a plan whose run has finished; IntegrityError as in `read_sum`.

    InputError if the run has not finished, or lacks one of the results ``names``.
    """
    summary = read_sum(plan)
    if summary is None:
        raise unfinished(plan)
    for name in names:
        if name not in summary.files:
            raise InputError(
                f"{plan.results.root} has no {name}, but {', '.join(summary.files)}; add it to "
                "reduce.statistics, or set labels (a run with labels has sums instead), and start "
                "the run again"
            )
    return summary


def unfinished(plan: Plan) -> InputError:
    """The error for a run that lacks a file that it would have if it had finished."""
    return InputError(
        f"{plan.results.root}: the run has not finished, or another config or input has run here "
        "since it was opened; start the run again, or open it again"
    )


def read_sum(plan: Plan) -> SumReceipt | None:
    """The receipt of the sum of a plan, if there is one; IntegrityError if it is not whole."""
    if not Store(plan).is_summed(()):
        return None
    summary = check_summary(plan)
    for name, facts in summary.files.items():
        check_statistic(plan, name, facts)
    check_labels(plan)
    return summary


def check_labels(plan: Plan) -> None:
    """Refuse a ``labels.json`` that is not what the plan says."""
    facts, path = plan.facts, plan.results.label_names
    if facts.labels and small.read(path) != plans.label_text(facts.labels, facts.label_counts):
        raise IntegrityError(
            f"{path} is missing, or not what the plan says; remove {plan.results.summary} too, and "
            "start the run again"
        )


def check_summary(plan: Plan) -> SumReceipt:
    """Return the receipt of the sum, without a look at the results."""
    path = plan.results.summary
    receipt = receipts.read(path, SumReceipt)
    _expect(receipt, {"plan": plan.facts.digest}, path)
    return receipt


def check_statistic(plan: Plan, name: str, facts: ArrayFile) -> None:
    """Refuse a result, such as ``sum.npy``, that does not match the plan and its receipt."""
    problem = plan.problem
    dtype, shape = statistic_dtype(name, problem.product_dtype), statistic_shape(name, problem)
    _expect(facts, {"shape": shape, "dtype": dtype}, plan.results.summary)
    receipts.check_file(plan.results.statistic(name), facts)


def _expect(record: Any, planned: dict[str, Any], path: Path) -> None:
    stated = {key: getattr(record, key) for key in planned}
    if stated != planned:
        raise IntegrityError(f"{path}: says {short(stated)}, but the plan says {short(planned)}")
