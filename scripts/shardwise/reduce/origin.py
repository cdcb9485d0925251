"""Why an element of a result is NaN or infinite: which product, and which place of the input."""

import time

import numpy as np

from shardwise.errors import IntegrityError
from shardwise.plan import nonfinite
from shardwise.plan.plan import Plan

_SEARCH_SECONDS = 60.0


def find(plan: Plan, element: int) -> tuple[bool, str]:
    """Search the shards' files for what makes an element of the result NaN or infinite.

    Returns
    -------
    tuple[bool, str]
        Whether the input itself is so, and what is to be said, to follow the name of the element.
    """
    until = time.monotonic() + _SEARCH_SECONDS
    for shard in plan.shards.values():
        rows = np.load(plan.results.product(shard.shard), "r", allow_pickle=False)
        wild = np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)[:, element]))
        if wild.size and plan.settings.keep == "products":
            matrix = shard.start + int(wild[0])
            return _cause(plan, f"the product of matrix {matrix}", matrix, matrix + 1)
        if wild.size:
            return _cause(plan, f"the sum of shard {shard.shard}", shard.start, shard.stop)
        if time.monotonic() > until:
            return False, f"; of which product, was not found in {_SEARCH_SECONDS:.0f} s"
    return False, (
        ", although all products are finite there; scale the input, leave this statistic out, "
        "or set nonfinite: allow"
    )


def _cause(plan: Plan, what: str, start: int, stop: int) -> tuple[bool, str]:
    """Where the input of some products is NaN or Inf, or that it is finite."""
    for key in ("input", "right") if plan.problem.right else ("input",):
        low, high = (0, 1) if key == "right" and plan.problem.shared_right else (start, stop)
        try:
            place = nonfinite.find(plan, key, low, high)
        except (OSError, IntegrityError) as error:
            return True, f": so is {what}; why, cannot be told: {error}"
        if place:
            return True, (
                f": so is {what}, which was computed under nonfinite: allow. {key}: {place}; "
                "correct it, or set nonfinite: allow"
            )
    where = nonfinite.files_of(plan, "input", start, stop)
    return False, (
        f": so does {what}, although the input ({where}) is finite; scale the input, or set "
        "nonfinite: allow"
    )
