"""What becomes of the products of a batch: they are written, or added up."""

from typing import Any

from shardwise.files.checksum import raw_bytes
from shardwise.numerics.tree import TreeSum
from shardwise.plan.nodes import count_nodes, most_held
from shardwise.plan.plan import Plan


class Sink:
    """Under ``keep: products`` each batch is written as it is; else nodes of the sum of a shard."""

    def __init__(self, xp: Any, plan: Plan) -> None:
        self._xp, self._problem, self._said = xp, plan.problem, plan.per_matrix
        self._adds = plan.settings.keep == "sum"
        self._sums: Any = None
        self.dtype = plan.element_type  # of the file of a shard
        self._written: list[Any] = []  # nodes that are apart from the tree while they are written

    def shape(self, run: range) -> tuple[int, ...]:
        """Shape of the file of a shard."""
        rows = len(self._said.keys(run)) if self._adds else len(run)
        return (rows, *self._problem.product_shape)

    def allocate(self, run: range) -> None:
        """Take the memory of the sum of a shard."""
        if self._adds:
            shape, dtype = self._problem.product_shape, self._problem.product_dtype
            ends = [(own.start, own.stop) for _, own in self._said.spans(run)]
            nodes = sum(most_held(*each) + count_nodes(*each) for each in ends)
            self._sums = TreeSum(self._xp, shape, dtype, self._said, nodes)

    def begin(self) -> None:
        """Begin a new sum, from zero."""
        if self._adds:
            self._sums.reset()

    def release(self) -> None:
        """Give back the memory of the sum."""
        self._sums, self._written = None, []

    def take(self, products: Any, first: int) -> Any:
        """Take the products ``(n, m, p)`` of matrix ``first`` on; the bytes to write, or None."""
        if not self._adds:
            return raw_bytes(products)
        self._sums.add(products, first)
        return None

    def result(self) -> tuple[list[Any], Any]:
        """Finish the sum: the nodes to write, and what `refuse_overflow` looks at, or None.

        They are valid until the next `result`; the next sum may begin before.
        """
        if not self._adds:
            return [], None
        self._written = self._sums.take(self._written)  # these are of the shard before
        return self._written, self._sums.overflow
