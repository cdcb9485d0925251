"""What becomes of the products of a batch: they are written, or added up."""

from collections.abc import Callable
from typing import Any

from shardwise.files.checksum import raw_bytes
from shardwise.multiply.lanes import Lane
from shardwise.numerics.binned import BinnedSum, plane_shape
from shardwise.numerics.packed import Packing
from shardwise.plan import memory
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem


class Sink:
    """Takes the products of one batch after another; the base of the classes below."""

    dtype: str  # of the elements of the file
    packing: Packing | None = None  # of the planes of a sum, once they are known
    at_once = True  # whether `take` is done with the products when it returns

    def __init__(self, xp: Any, problem: Problem) -> None:
        self._xp, self._problem = xp, problem

    def shape(self, count: int) -> tuple[int, ...]:
        """Shape of the file of a shard of ``count`` matrices; that of a sum may be shorter."""
        raise NotImplementedError

    def allocate(self) -> None:
        """Take the memory of the sum."""

    def begin(self) -> None:
        """Begin a new sum, from zero."""

    def release(self) -> None:
        """Give that memory back."""
        self._total = self._rows = None

    def take(self, products: Any) -> Any:
        """Take the products ``(n, m, p)`` of a batch; the bytes to write, or None."""
        raise NotImplementedError

    def result(self) -> Callable[[Lane], Any] | None:
        """Finish the sum; return a function that, called with the lane, gives the array to write.

        The array is valid until the next `result`; the next sum may begin before. None if the
        products themselves are written.
        """
        return None


class Products(Sink):
    """``keep: products``: each batch is written as it is."""

    at_once = False

    def __init__(self, xp: Any, problem: Problem) -> None:
        super().__init__(xp, problem)
        self.dtype = problem.product_dtype

    def shape(self, count: int) -> tuple[int, ...]:
        return (count, *self._problem.product_shape)

    def take(self, products: Any) -> Any:
        return raw_bytes(products)


class PlanesOfSum(Sink):
    """``keep: sum``: the reproducible sum, as the packed planes of its bins."""

    dtype = "uint16"

    def __init__(self, xp: Any, problem: Problem, count: int) -> None:
        super().__init__(xp, problem)
        self._count = count

    def shape(self, count: int) -> tuple[int, ...]:
        problem = self._problem
        most = memory.most_words(problem, count)
        return (most, *plane_shape(problem.product_shape, problem.product_dtype)[1:])

    def allocate(self) -> None:
        problem = self._problem
        self._total = BinnedSum(self._xp, problem.product_shape, problem.product_dtype)
        self._rows = self._xp.empty(self.shape(self._count), self.dtype)

    def begin(self) -> None:
        self._total.reset()

    def take(self, products: Any) -> None:
        self._total.add(products)

    def result(self) -> Callable[[Lane], Any]:
        facts, rows = self._total.pack(self._rows.reshape(-1)), self._rows

        def written(lane: Lane) -> Any:
            self.packing = Packing.of(lane.fetch(facts))
            return rows[: sum(self.packing.words)]

        return written


class PlainSum(Sink):
    """``keep: sum`` under ``reproducible: false``: the sum in double precision."""

    def __init__(self, xp: Any, problem: Problem) -> None:
        super().__init__(xp, problem)
        self.dtype = problem.sum_dtype

    def shape(self, count: int) -> tuple[int, ...]:
        return self._problem.product_shape

    def allocate(self) -> None:
        # What is written is apart from the sum, of which the next may begin before.
        self._total, self._rows = (self._xp.empty(self.shape(0), self.dtype) for _ in range(2))

    def begin(self) -> None:
        self._total.fill(0)

    def take(self, products: Any) -> None:
        for product in products:
            self._total += product

    def result(self) -> Callable[[Lane], Any]:
        self._rows[...] = self._total
        return lambda lane: self._rows


def choose(xp: Any, plan: Plan, count: int) -> Sink:
    """The sink that a plan asks for, of a shard of ``count`` matrices."""
    if plan.settings.keep == "products":
        return Products(xp, plan.problem)
    exact = memory.exact_sum(plan.problem, plan.settings.reproducible)
    return PlanesOfSum(xp, plan.problem, count) if exact else PlainSum(xp, plan.problem)
