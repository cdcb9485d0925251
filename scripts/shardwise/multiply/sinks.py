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

    def take(self, products: Any, first: int, weights: Any) -> Any:
        """Take the products ``(n, m, p)`` of matrix ``first`` on; the bytes to write, or None.

        ``weights`` are theirs, ``(n,)``, or None.
        """
        return raw_bytes(products)

    def result(self) -> tuple[list[Any], Any]:
        """Finish the sum: the nodes to write, and what `refuse_overflow` looks at, or None.

        They are valid until the next `result`; the next sum may begin before. There are none if
        the products themselves are written.
        """
        return [], None


class NodesOfSum(Products):
    """``keep: sum``: the nodes of the tree that the products of a shard come to."""

    def __init__(self, xp: Any, problem: Problem) -> None:
        super().__init__(xp, problem)
        self.dtype = problem.sum_dtype
        self._written: list[Any] = []  # nodes that are apart from the tree while they are written

    def shape(self, run: range) -> tuple[int, ...]:
        return (count_nodes(run.start, run.stop), *self._problem.product_shape)

    def allocate(self, run: range) -> None:
        problem = self._problem
        self._total: Any = TreeSum(self._xp, problem.product_shape, problem.product_dtype)
        ends = run.start, run.stop
        self._total.reserve(most_held(*ends) + count_nodes(*ends))

    def begin(self) -> None:
        self._total.reset()

    def release(self) -> None:
        self._total, self._written = None, []

    def take(self, products: Any, first: int, weights: Any) -> None:
        self._total.add(products, first, weights)

    def result(self) -> tuple[list[Any], Any]:
        self._total.give(self._written)  # of the shard before, which is done
        self._written = self._total.take()
        return self._written, self._total.overflow.copy()


def choose(xp: Any, plan: Plan) -> Products:
    """The sink that a plan asks for."""
    kind = Products if plan.settings.keep == "products" else NodesOfSum
    return kind(xp, plan.problem)
