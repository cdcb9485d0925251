"""The judge: the only code that decides whether a receipt is valid, by its plan and its proof.

All readers ask it, so that none accepts what another refuses. It raises IntegrityError, as does
`receipts.read`; elements are checked by the code that reads them.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import DeviceFailed, InputError, IntegrityError, short
from shardwise.numerics.end_to_end import gap, sum_bound, summed
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem, statistic_dtype, statistic_shape
from shardwise.records import receipts
from shardwise.records.receipts import CopyReceipt, ProductReceipt, SumReceipt, Witness
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
    problem, results = plan.problem, plan.results
    for name, facts in summary.files.items():
        dtype, shape = statistic_dtype(name, problem.product_dtype), statistic_shape(name, problem)
        _expect(facts, {"shape": shape, "dtype": dtype}, results.summary)
        receipts.check_file(results.statistic(name), facts)
    return summary


def check_summary(plan: Plan) -> SumReceipt:
    """Return the receipt of the sum, without a look at the results."""
    path = plan.results.summary
    receipt = receipts.read(path, SumReceipt)
    _expect(receipt, {"plan": plan.facts.digest}, path)
    return receipt


def _expect(record: Any, planned: dict[str, Any], path: Path) -> None:
    stated = {key: getattr(record, key) for key in planned}
    if stated != planned:
        raise IntegrityError(f"{path}: says {short(stated)}, but the plan says {short(planned)}")


def witness(total: np.ndarray, tolerance: float) -> Witness:
    """The witness for a shard's receipt, from the total of its forms and its `product_bound`.

    DeviceFailed if products and factors disagree by more than that tolerance.
    """
    parts = len(total) // 2
    one, other = total[:parts], total[parts : 2 * parts]
    mass = float(total[-1]) if len(total) % 2 else 0.0  # integers have none
    if not gap(one, other) <= tolerance:
        raise DeviceFailed(
            "the products of the shard differ from what their factors give by "
            f"{gap(one, other) / (tolerance or 1):.3g} times the tolerance; suspect the device "
            "and try another",
            suspect=True,
        )
    return Witness(one.tolist(), other.tolist(), mass, float(tolerance))


def compare_sum(problem: Problem, products: Sequence[ProductReceipt], form: np.ndarray) -> float:
    """How far a sum of products is from their receipts, as a fraction of the tolerance.

    ``form`` is ``lᵀ S r`` of the sum S. NaN if a receipt has no witness, or if the sum or its proof
    is not finite in double precision.
    """
    said = [receipt.witness for receipt in products if receipt.witness]
    if len(said) < len(products):
        return math.nan
    dtype = "int64" if "int" in problem.product_dtype else "float64"
    off = gap(form, summed([np.array(own.contribution, dtype) for own in said]))
    bound = sum_bound(problem, sum(own.mass + own.tolerance for own in said))
    if not (np.isfinite(form).all() and math.isfinite(bound)):
        return math.nan
    return off / bound if off else 0.0
