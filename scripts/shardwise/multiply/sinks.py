"""What becomes of the products of a batch: they are written, or added up."""

from typing import Any

from shardwise.files.checksum import raw_bytes
from shardwise.numerics.tree import TreeSum
from shardwise.plan.nodes import count_nodes, most_held
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem


class Products:
    """``keep: products``: each batch is written as it is."""

    def __init__(self, xp: Any, problem: Problem) -> None:
        self._xp, self._problem = xp, problem
        self.dtype = problem.product_dtype  # of the elements of the file

    def shape(self, run: range) -> tuple[int, ...]:
        """Shape of the file of a shard."""
        return (len(run), *self._problem.product_shape)

    def allocate(self, run: range) -> None:
        """Take the memory of the sum of a shard."""

    def begin(self) -> None:
        """Begin a new sum, from zero."""

    def release(self) -> None:
        """Give that memory back."""

    def take(self, products: Any, first: int) -> Any:
        """Take the products ``(n, m, p)`` of matrix ``first`` on; the bytes to write, or None."""
        return raw_bytes(products)

    def result(self) -> tuple[list[Any], Any]:
        """Finish the sum: the nodes to write, and what `refuse_overflow` looks at, or None.

        They are valid until the next `result`; the next sum may begin before. There are none if
        the products themselves are written.
        """
        return [], None


class NodesOfSum(Products):
    """``keep: sum``: the nodes of the trees that the products of a shard come to."""

    def __init__(self, xp: Any, plan: Plan) -> None:
        super().__init__(xp, plan.problem)
        self.dtype, self._said = plan.problem.sum_dtype, plan.per_matrix
        self._written: list[Any] = []  # nodes that are apart from the tree while they are written

    def shape(self, run: range) -> tuple[int, ...]:
        return (len(self._said.keys(run)), *self._problem.product_shape)

    def allocate(self, run: range) -> None:
        shape, dtype = self._problem.product_shape, self._problem.product_dtype
        ends = [(own.start, own.stop) for _, own in self._said.spans(run)]
        nodes = sum(most_held(*each) + count_nodes(*each) for each in ends)
        self._sums: Any = TreeSum(self._xp, shape, dtype, self._said, nodes)

    def begin(self) -> None:
        self._sums.reset()

    def release(self) -> None:
        self._sums, self._written = None, []

    def take(self, products: Any, first: int) -> None:
        self._sums.add(products, first)

    def result(self) -> tuple[list[Any], Any]:
        self._written = self._sums.take(self._written)  # these are of the shard before
        return self._written, self._sums.overflow


def choose(xp: Any, plan: Plan) -> Products:
    """The sink that a plan asks for."""
    if plan.settings.keep == "products":
        return Products(xp, plan.problem)
    return NodesOfSum(xp, plan)
