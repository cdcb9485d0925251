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
    """``keep: sum``: the nodes of the tree that the products of a shard come to.

    Products with labels have a tree for each label; all take nodes out of the same memory.
    """

    def __init__(self, xp: Any, plan: Plan) -> None:
        super().__init__(xp, plan.problem)
        self.dtype, self._said = plan.problem.sum_dtype, plan.per_matrix
        self._written: list[Any] = []  # nodes that are apart from the tree while they are written

    def shape(self, run: range) -> tuple[int, ...]:
        return (len(self._said.keys(run)), *self._problem.product_shape)

    def allocate(self, run: range) -> None:
        shape, dtype = self._problem.product_shape, self._problem.product_dtype
        spare: list[Any] = []
        labels = range(max(1, self._problem.labels))
        self._trees = [TreeSum(self._xp, shape, dtype, spare) for _ in labels]
        ends = [(own.start, own.stop) for _, own in self._said.spans(run)]
        self._trees[0].reserve(sum(most_held(*each) + count_nodes(*each) for each in ends))

    def begin(self) -> None:
        for tree in self._trees:
            tree.reset()

    def release(self) -> None:
        self._trees, self._written = [], []

    def take(self, products: Any, first: int, weights: Any) -> None:
        run = range(first, first + len(products))
        for label, rank, places in self._said.groups(run):
            own = None if weights is None else weights[places]
            some = places if isinstance(places, slice) else self._xp.asarray(places)
            self._trees[label].add(products[some], rank, own)

    def result(self) -> tuple[list[Any], Any]:
        self._trees[0].give(self._written)  # of the shard before, which is done
        self._written = [node for tree in self._trees for node in tree.take()]
        overflow = self._trees[0].overflow.copy()
        for tree in self._trees[1:]:
            overflow |= tree.overflow
        return self._written, overflow


def choose(xp: Any, plan: Plan) -> Products:
    """The sink that a plan asks for."""
    if plan.settings.keep == "products":
        return Products(xp, plan.problem)
    return NodesOfSum(xp, plan)
