"""What becomes of the products of a batch: they are written, or added up."""

from collections.abc import Callable
from typing import Any, Protocol

from shardwise.files.checksum import raw_bytes
from shardwise.multiply.lanes import Lane
from shardwise.numerics.binned import BinnedSum, plane_shape
from shardwise.numerics.packed import Packing
from shardwise.plan import memory
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem


class Sink(Protocol):
    """Takes the products of one batch after another.

    `dtype` is the element type of the file, `packing` that of planes, once they are there.
    """

    dtype: str
    packing: Packing | None

    def shape(self, count: int) -> tuple[int, ...]:
        """Shape of the file of a shard of ``count`` matrices; what a sum has may be shorter."""

    def buffers(self, batches: int) -> int:
        """How many buffers for products it takes to have so many batches under way."""

    def allocate(self) -> None:
        """Take the memory of the sum."""

    def begin(self) -> None:
        """Begin a sum anew, from zero."""

    def release(self) -> None:
        """Give that memory back."""

    def take(self, products: Any) -> Any:
        """Take the products ``(n, m, p)`` of a batch; the bytes to write, or None."""

    def result(self) -> Callable[[Lane], Any] | None:
        """Finish the sum; what returns the array to write, once that work is followed by its lane.

        The array holds until the next `result`; the next sum may begin before. None where the
        products themselves are written.
        """


class Products:
    """``keep: products``: each batch is written as it is."""

    packing = None

    def __init__(self, problem: Problem) -> None:
        self._shape, self.dtype = problem.product_shape, problem.product_dtype

    def shape(self, count: int) -> tuple[int, ...]:
        return (count, *self._shape)

    def buffers(self, batches: int) -> int:
        return batches  # products are still being written while the next are computed

    def allocate(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def release(self) -> None:
        pass

    def take(self, products: Any) -> Any:
        return raw_bytes(products)

    def result(self) -> None:
        return None


class _Sum:
    """``keep: sum``: products are added up as they come."""

    packing: Packing | None = None
    _total: Any = None
    _rows: Any = None  # to be written: apart from the sum, of which the next may begin before

    def __init__(self, xp: Any, problem: Problem) -> None:
        self._xp, self._problem = xp, problem

    def buffers(self, batches: int) -> int:
        return 1  # products are added at once, so the next batch may overwrite them

    def release(self) -> None:
        self._total = self._rows = None


class PlanesOfSum(_Sum):
    """The reproducible sum, as the packed planes of its bins."""

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


class PlainSum(_Sum):
    """The sum in double precision, ``reproducible: false``."""

    def __init__(self, xp: Any, problem: Problem) -> None:
        super().__init__(xp, problem)
        self.dtype = problem.sum_dtype

    def shape(self, count: int) -> tuple[int, ...]:
        return self._problem.product_shape

    def allocate(self) -> None:
        shape = self._problem.product_shape
        self._total, self._rows = (self._xp.empty(shape, self.dtype) for _ in range(2))

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
        return Products(plan.problem)
    exact = memory.exact_sum(plan.problem, plan.settings.reproducible)
    return PlanesOfSum(xp, plan.problem, count) if exact else PlainSum(xp, plan.problem)
