"""Sums whose bits do not depend on how the stack was cut: the nodes of one fixed binary tree.

Node ``(level, index)`` is the sum of the products ``index * 2**level`` to the next multiple, by
their places in the whole stack: always the left half plus the right half. Shards, batches and ranks
only decide who adds which node. docs/sums.md has the picture, and derives the error. After
N. J. Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14(4), 1993.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError
from shardwise.plan.nodes import Node, cover, node_span
from shardwise.plan.per_matrix import Key, PerMatrix
from shardwise.plan.problem import sum_dtype

COMPILED_BYTES = 1 << 20
"""From this size on, loops of numba beat NumPy on a CPU; loading them takes most of a second."""

_THREADS = 256
_LEVELS = 5  # that a GPU adds in registers: 32 products are read once
NUMBERS = {"float16": "Half", "float32": "float", "float64": "double"}


class Tree:
    """Nodes by level and index; two halves of a node become that node as soon as both are there.

    The base of :class:`TreeSum` and of the moments in `statistics`. A subclass says how rows become
    a node, and how two nodes become one. On a GPU all work is queued on the current stream.

    Parameters
    ----------
    xp
        ``numpy`` or ``cupy``.
    shape
        Shape of what a node holds.
    dtype
        Its element type.
    spare
        Memory of nodes that it may use, and shares with other trees like it.
    """

    def __init__(
        self, xp: Any, shape: tuple[int, ...], dtype: str, spare: list[Any] | None = None
    ) -> None:
        self._xp, self._shape, self.dtype = xp, tuple(shape), dtype
        self._nodes: dict[Node, Any] = {}
        # Memory of nodes that have become one with another.
        self._spare: list[Any] = [] if spare is None else spare

    def _fold(self, rows: Any, level: int, out: Any, weights: Any = None) -> None:
        """Write the node of ``2**level`` rows, each times its weight, to ``out``."""
        raise NotImplementedError

    def _join(self, level: int, left: Any, right: Any, out: Any) -> None:
        """Write the parent of two nodes of a level to ``out``, which may be one of them."""
        raise NotImplementedError

    def reserve(self, nodes: int) -> None:
        """Take the memory of so many nodes now."""
        while len(self._nodes) + len(self._spare) < nodes:
            self._spare.append(self._xp.empty(self._shape, self.dtype))

    def reset(self) -> None:
        """Forget all nodes, and keep their memory."""
        self._spare += self._nodes.values()
        self._nodes.clear()

    def add(self, block: Any, first: int, weights: Any = None) -> None:
        """Add consecutive products ``(n, …)``, contiguous, the first at place ``first``.

        ``weights`` are float64 ``(n,)`` of NumPy; without them each product counts as it is.
        """
        weights = None if weights is None else self._xp.asarray(weights)
        for level, index in cover(first, first + len(block)):
            low, high = (place - first for place in node_span(level, index))
            node = self._room()
            own = None if weights is None else weights[low:high]
            self._fold(block[low:high], level, node, own)
            self._keep(level, index, node)

    def put(self, level: int, index: int, node: Any) -> None:
        """Add a node that was formed elsewhere; its memory stays the caller's."""
        self._keep(level, index, node, lent=True)

    def _room(self) -> Any:
        return self._spare.pop() if self._spare else self._xp.empty(self._shape, self.dtype)

    def _keep(self, level: int, index: int, node: Any, lent: bool = False) -> None:
        while (sibling := self._nodes.pop((level, index ^ 1), None)) is not None:
            left, right = (sibling, node) if index % 2 else (node, sibling)
            self._join(level, left, right, sibling)
            self._spare += [] if lent else [node]
            level, index, node, lent = level + 1, index // 2, sibling, False
        if (level, index) in self._nodes:
            raise ValueError(f"node {level, index} was added twice")
        if lent:
            own = self._room()
            own[...] = node
            node = own
        self._nodes[level, index] = node

    def nodes(self) -> list[tuple[Node, Any]]:
        """The nodes in the order of their products; their memory is the tree's own."""
        return sorted(self._nodes.items(), key=lambda item: item[0][1] << item[0][0])

    def take(self) -> list[Any]:
        """The same arrays, which leave the tree; :meth:`give` puts their memory back."""
        taken = [array for _, array in self.nodes()]
        self._nodes.clear()
        return taken

    def give(self, arrays: list[Any]) -> None:
        """Let the tree use the memory of arrays that it gave away, or of others like them."""
        self._spare += arrays

    def whole(self) -> list[tuple[int, Any]]:
        """The levels and nodes that hold the products from the first on, in their order.

        Raises
        ------
        ValueError
            Where products are missing between them.
        """
        at = 0
        for node, _ in self.nodes():
            first, behind = node_span(*node)
            if first != at:
                raise ValueError(f"the products {at} to {first - 1} are missing")
            at = behind
        return [(level, array) for (level, _), array in self.nodes()]


class TreeSum(Tree):
    """The sum of products, in float64, complex128 or int64.

    Parameters
    ----------
    xp
        ``numpy`` or ``cupy``.
    shape
        Shape of a product, ``(m, p)``.
    dtype
        Its element type: ``float16/32/64``, ``complex64/128`` or ``int64``.
    spare
        As :class:`Tree` has it.

    Attributes
    ----------
    overflow
        An array ``(1,)`` of ``xp``, other than 0 once a node of integers did not fit int64.
    """

    def __init__(
        self, xp: Any, shape: tuple[int, ...], dtype: str, spare: list[Any] | None = None
    ) -> None:
        super().__init__(xp, shape, sum_dtype(dtype), spare)
        self.overflow = xp.zeros(1, np.int32)

    def reset(self) -> None:
        """Forget all nodes, and that one did not fit."""
        super().reset()
        self.overflow.fill(0)

    def _fold(self, rows: Any, level: int, out: Any, weights: Any = None) -> None:
        if self.dtype == "int64":  # which has no weights
            while len(rows) > 1:
                rows = self._checked(rows[::2], rows[1::2])
            out[...] = rows[0]
            return
        flat, wide = _reals(rows).reshape(1 << level, -1), _reals(out).reshape(-1)
        if self._xp is np and flat.nbytes >= COMPILED_BYTES and weights is None:
            from shardwise.numerics import tree_cpu  # here: tasks on a GPU do without numba

            tree_cpu.fold(flat, wide)
            return
        if self._xp is np:
            step = max(1, COMPILED_BYTES // 8 >> level)  # columns whose copies stay in a cache
            for low in range(0, len(wide), step):
                part = flat[:, low : low + step].astype(wide.dtype)
                if weights is not None:
                    part *= weights[:, None]
                while len(part) > 1:
                    part = part[::2] + part[1::2]
                wide[low : low + step] = part[0]
            return
        while level > _LEVELS:
            level -= _LEVELS
            narrower = self._xp.empty((1 << level, flat.shape[1]), wide.dtype)
            self._launch(_LEVELS, flat, narrower, weights)
            flat, weights = narrower, None
        self._launch(level, flat, wide, weights)

    def _join(self, level: int, left: Any, right: Any, out: Any) -> None:
        if self.dtype == "int64":
            out[...] = self._checked(left, right)
        else:
            self._xp.add(left, right, out=out)

    def _checked(self, left: Any, right: Any) -> Any:
        """The sum of integers; it is noted where one does not fit."""
        total = left + right
        self.overflow |= self._xp.max(((left ^ total) & (right ^ total)) < 0).astype(np.int32)
        return total

    def _launch(self, level: int, rows: Any, out: Any, weights: Any) -> None:
        weighted = weights is not None
        name = _kernel(rows.dtype.name, level, weighted)
        kernel = module(self._xp, weighted).get_function(name)
        sizes = np.int64(out.size), np.int64(rows.shape[1])
        arrays = rows, weights if weighted else out  # which no kernel without weights looks at
        kernel((-(-out.size // _THREADS),), (_THREADS,), (*arrays, *sizes, out))

    def value(self) -> np.ndarray:
        """The sum of all products from the first on, in host memory; NaN comes without a sign.

        It takes the memory of a node: nothing is added, and no node is looked at, before `reset`.

        Raises
        ------
        InputError
            Where a sum of integers does not fit int64.
        """
        refuse_overflow(self.overflow)
        *nodes, (_, total) = self.whole()
        for level, node in reversed(nodes):
            self._join(level, node, total, total)
        refuse_overflow(self.overflow)
        result: np.ndarray = total if self._xp is np else self._xp.asnumpy(total)
        reals = _reals(result)
        if reals.dtype.kind == "f":
            reals[np.isnan(reals)] = np.nan
        return result


class LabelSums:
    """A :class:`TreeSum` for each label of the products, which count times their weights.

    One tree for all where there are no labels. The key of a node is (level, index), with labels
    (label, level, index). All trees take their memory from the same arrays.

    Parameters
    ----------
    xp, shape, dtype
        As :class:`TreeSum` has them.
    said
        The labels and weights of all matrices, by their places.
    """

    def __init__(self, xp: Any, shape: tuple[int, ...], dtype: str, said: PerMatrix) -> None:
        spare: list[Any] = []
        self._xp, self._said = xp, said
        self._trees = [TreeSum(xp, shape, dtype, spare) for _ in said.names or "1"]

    def reserve(self, nodes: int) -> None:
        """Take the memory of so many nodes now, before the first product."""
        self._trees[0].reserve(nodes)

    def reset(self) -> None:
        """Begin new sums, in the same memory."""
        for tree in self._trees:
            tree.reset()

    def add(self, block: Any, first: int) -> None:
        """Add consecutive products ``(n, …)``, contiguous, the first at place ``first``."""
        run = range(first, first + len(block))
        weights = self._said.weights_of(run)
        for label, rank, places in self._said.groups(run):
            own = None if weights is None else weights[places]
            some = places if isinstance(places, slice) else self._xp.asarray(places)
            self._trees[label].add(block[some], rank, own)

    def put(self, key: Key, node: Any) -> None:
        """Add a node that was formed elsewhere; its memory stays the caller's."""
        *label, level, index = key
        self._trees[label[0] if label else 0].put(level, index, node)

    def nodes(self) -> list[tuple[Key, Any]]:
        """The nodes, label by label; their memory is that of the trees."""
        if not self._said.names:
            return list(self._trees[0].nodes())
        trees = enumerate(self._trees)
        return [((label, *node), array) for label, tree in trees for node, array in tree.nodes()]

    def take(self) -> list[Any]:
        """The arrays of these, which leave the trees; :meth:`give` puts their memory back."""
        return [array for tree in self._trees for array in tree.take()]

    def give(self, arrays: list[Any]) -> None:
        """Let the trees use the memory of arrays that they gave away."""
        self._trees[0].give(arrays)

    def overflow(self) -> Any:
        """An array ``(1,)`` of ``xp``, other than 0 once a node of integers did not fit int64."""
        flag = self._trees[0].overflow.copy()
        for tree in self._trees[1:]:
            flag |= tree.overflow
        return flag

    def values(self) -> list[np.ndarray]:
        """`TreeSum.value` of each label, until `reset`; InputError where one does not fit."""
        return [tree.value() for tree in self._trees]


def refuse_overflow(flag: Any) -> None:
    """Refuse sums of integers where :attr:`TreeSum.overflow` says that one does not fit.

    Raises
    ------
    InputError
        With what to do.
    """
    if int(flag[0]):
        raise InputError(
            "the sum of the integer products does not fit int64; save the input as float64"
        )


def _reals(array: Any) -> Any:
    """Complex numbers as pairs of real ones, a view."""
    return array.view(f"f{array.itemsize // 2}") if array.dtype.kind == "c" else array


def _kernel(dtype: str, level: int, weighted: bool) -> str:
    return f"fold<{NUMBERS[dtype]}, {level}, {str(weighted).lower()}>"


@cache
def module(xp: Any, weighted: bool = False) -> Any:
    """The kernels of ``numerics/tree.cu``; those of weighted sums by themselves."""
    source = Path(__file__).with_name("tree.cu").read_text("utf-8")
    names = [_kernel(dtype, k, weighted) for dtype in NUMBERS for k in range(_LEVELS + 1)]
    names += [] if weighted else [f"columns<{number}>" for number in NUMBERS.values()]
    return xp.RawModule(code=source, options=("-std=c++17",), name_expressions=names)
