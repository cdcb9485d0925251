"""What becomes of the products of a batch: they are kept, or added up."""

from typing import Any, Protocol

from shardwise.files.checksum import raw_bytes
from shardwise.numerics.binned import BinnedSum, plane_shape
from shardwise.plan import memory
from shardwise.plan.plan import Plan
from shardwise.plan.problem import Problem


class Sink(Protocol):
    """Takes the products of one batch after another.

    Attributes
    ----------
    dtype
        Element type of the shard's file.
    """

    dtype: str

    def shape(self, count: int) -> tuple[int, ...]:
        """Shape of the file of a shard of ``count`` matrices."""

    def buffers(self, batches: int) -> int:
        """How many buffers for products it takes to have so many batches under way."""

    def allocate(self) -> None:
        """Take the memory of the sum, all zeros."""

    def release(self) -> None:
        """Give that memory back."""

    def take(self, products: Any) -> Any:
        """Take the products ``(n, m, p)`` of a batch; the bytes to write, or None."""

    def result(self) -> Any:
        """The bytes of the sum; None where the products themselves are kept."""


class Products:
    """``keep: products``: each batch is written as it is."""

    def __init__(self, problem: Problem) -> None:
        self._shape, self.dtype = problem.product_shape, problem.product_dtype

    def shape(self, count: int) -> tuple[int, ...]:
        """All products, one after the other."""
        return (count, *self._shape)

    def buffers(self, batches: int) -> int:
        """One per batch: products are still being written while the next are computed."""
        return batches

    def allocate(self) -> None:
        """Nothing is added up."""

    def release(self) -> None:
        """Nothing is held."""

    def take(self, products: Any) -> Any:
        """The bytes of the products."""
        return raw_bytes(products)

    def result(self) -> Any:
        """None: all is written already."""


class _Sum:
    """``keep: sum``: products are added up as they come."""

    def __init__(self, xp: Any, problem: Problem) -> None:
        self._xp, self._problem = xp, problem
        self._total: Any = None

    def buffers(self, batches: int) -> int:
        """One: the products are added at once, so the next batch may overwrite them."""
        return 1

    def release(self) -> None:
        """Give the memory of the sum back."""
        self._total = None


class PlanesOfSum(_Sum):
    """The reproducible sum, as the planes of its bins."""

    dtype = "int64"

    def shape(self, count: int) -> tuple[int, ...]:
        """All planes of the sum."""
        return plane_shape(self._problem.product_shape, self._problem.product_dtype)

    def allocate(self) -> None:
        """Take the memory of the bins."""
        problem = self._problem
        self._total = BinnedSum(self._xp, problem.product_shape, problem.product_dtype)

    def take(self, products: Any) -> None:
        """Add the products of a batch."""
        self._total.add(products)

    def result(self) -> Any:
        """The bytes of the planes."""
        return raw_bytes(self._total.planes())


class PlainSum(_Sum):
    """The sum in double precision, ``reproducible: false``."""

    def __init__(self, xp: Any, problem: Problem) -> None:
        super().__init__(xp, problem)
        self.dtype = problem.sum_dtype

    def shape(self, count: int) -> tuple[int, ...]:
        """One matrix."""
        return self._problem.product_shape

    def allocate(self) -> None:
        """Take the memory of the sum."""
        self._total = self._xp.zeros(self._problem.product_shape, self._problem.sum_dtype)

    def take(self, products: Any) -> None:
        """Add the products of a batch, one after the other."""
        for product in products:
            self._total += product

    def result(self) -> Any:
        """The bytes of the sum."""
        return raw_bytes(self._total)


def choose(xp: Any, plan: Plan) -> Sink:
    """The sink that a plan asks for."""
    if plan.settings.keep == "products":
        return Products(plan.problem)
    exact = memory.exact_sum(plan.problem, plan.settings.reproducible)
    return (PlanesOfSum if exact else PlainSum)(xp, plan.problem)
