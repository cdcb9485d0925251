"""Sums whose bits do not depend on how the stack was cut: the nodes of one fixed binary tree.

Node ``(level, index)`` is the sum of the products ``index * 2**level`` to the next multiple, by
their places in the whole stack: always the left half plus the right half. Shards, batches and ranks
only decide who adds which node. docs/sums.md has the picture, and derives the error. After
N. J. Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14(4), 1993.
"""

from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError
from shardwise.plan.cut import cover, node_span
from shardwise.plan.per_matrix import NOTHING, Key, PerMatrix
from shardwise.plan.problem import sum_dtype

# From this size on, a loop of numba beats NumPy on a CPU; loading it takes most of a second.
COMPILED_BYTES = 1 << 20
# As wide.cu takes them.
_NUMBERS = {"float16": "unsigned short", "float32": "float", "float64": "double"}
_THREADS = 256  # of a block
_LEVELS = 5  # of the tree in one kernel: it adds 32 products in registers, each read once


class TreeSum:
    """The sum of products, or one for each label, in float64, complex128 or int64.

    The two halves of a node are joined as soon as both are there. The key of a node is (level,
    index), with labels (label, level, index). A subclass may override how rows become a node
    (``_fold``) and how nodes are joined (``_join``). On a GPU work is queued on the current stream.

    ``shape`` and ``dtype`` are those of a product, ``said`` has labels and weights of all matrices,
    and memory for this many ``nodes`` is allocated at once.
    """

    def __init__(
        self, xp: Any, shape: tuple[int, ...], dtype: str, said: PerMatrix = NOTHING, nodes: int = 0
    ) -> None:
        self._xp, self._shape, self.dtype, self._said = xp, shape, sum_dtype(dtype), said
        self._nodes: dict[Key, Any] = {}
        self._spare = [xp.empty(shape, self.dtype) for _ in range(nodes)]  # memory of nodes to come
        self.overflow = xp.zeros(1, np.int32)  # not 0 once an integer node did not fit int64

    def reset(self) -> None:
        """Begin new sums, in the same memory."""
        self._spare += self.take()
        self.overflow.fill(0)

    def add(self, block: Any, first: int) -> None:
        """Add the products ``(n, …)``, contiguous, of consecutive matrices from ``first`` on.

        Each is multiplied by the weight of its matrix, if there are weights.
        """
        run, asarray = range(first, first + len(block)), self._xp.asarray
        for label, place, which, weights in self._said.groups(run):
            rows = block[which if isinstance(which, slice) else asarray(which)]
            own = None if weights is None else asarray(weights)
            for level, index in cover(place, place + len(rows)):
                part = slice(*(at - place for at in node_span(level, index)))
                node = self._room()
                self._fold(rows[part], node, None if own is None else own[part])
                self.put((*label, level, index), node, own=True)

    def put(self, key: Key, node: Any, own: bool = False) -> None:
        """Add a node. Its memory stays the caller's, or becomes the tree's ``own``."""
        *label, level, index = key
        if (sibling := self._nodes.pop((*label, level, index ^ 1), None)) is not None:
            left, right = (sibling, node) if index % 2 else (node, sibling)
            self._join(left, right, sibling, 1 << level, 1 << level)
            self._spare += [node] if own else []
            self.put((*label, level + 1, index // 2), sibling, own=True)
            return
        if key in self._nodes:
            raise ValueError(f"node {key} was added twice")
        self._nodes[key] = node if own else self._room()
        if not own:
            self._nodes[key][...] = node

    def nodes(self) -> list[tuple[Key, Any]]:
        """The nodes, by label and in the order of their products; the tree owns their memory."""
        return sorted(self._nodes.items(), key=lambda of: (of[0][:-2], node_span(*of[0][-2:])))

    def take(self, back: Iterable[Any] = ()) -> list[Any]:
        """Take the arrays out, in the order of `nodes`; the tree may reuse memory of ``back``."""
        taken = [array for _, array in self.nodes()]
        self._nodes.clear()
        self._spare += back
        return taken

    def values(self) -> list[np.ndarray]:
        """The sum of all products, or that of each label, in host memory; NaN has no sign.

        The results overwrite nodes, so before `reset` neither add products nor read nodes.

        Raises
        ------
        InputError
            If a sum of integers does not fit int64.
        ValueError
            If products are missing between others, or a sum has none.
        """
        labels = groupby(self.nodes(), lambda of: of[0][:-2])
        totals = [self._whole(list(own)) for _, own in labels]
        if len(totals) != max(1, len(self._said.names)):
            raise ValueError("a sum has no products")
        self.check()
        found = [total if self._xp is np else self._xp.asnumpy(total) for total in totals]
        for numbers in map(reals, found):
            if numbers.dtype.kind == "f":
                numbers[np.isnan(numbers)] = np.nan
        return found

    def check(self) -> None:
        """Raise InputError if a sum of integers does not fit int64; its node does not show that.

        On a GPU that work must be done, or queued on the current stream.
        """
        if int(self.overflow[0]):
            raise InputError(
                "the sum of the integer products does not fit int64; save the input as float64, or "
                "let your own function return float64"
            )

    def _room(self) -> Any:
        return self._spare.pop() if self._spare else self._xp.empty(self._shape, self.dtype)

    def _whole(self, nodes: list[tuple[Key, Any]]) -> Any:
        """The sum of all products: joins nodes from the right, in the memory of the last one."""
        end = 0
        for (*_, level, index), _ in nodes:
            first, behind = node_span(level, index)
            if first != end:
                raise ValueError(f"the products {end} to {first - 1} are missing")
            end = behind
        *others, (_, total) = nodes
        for (*_, level, index), node in reversed(others):
            _, behind = node_span(level, index)
            self._join(node, total, total, 1 << level, end - behind)
        return total

    def _join(self, left: Any, right: Any, out: Any, n: int, k: int) -> None:
        """Join the nodes of n products and of k more into ``out``, which may be either node."""
        if self.dtype != "int64":
            self._xp.add(left, right, out=out)
            return
        total = left + right
        self.overflow |= self._xp.max(((left ^ total) & (right ^ total)) < 0).astype(np.int32)
        out[...] = total

    def _fold(self, rows: Any, out: Any, weights: Any) -> None:
        """Write the node of ``2**k`` products, each times its weight, to ``out``."""
        flat, wide = reals(rows).reshape(len(rows), -1), reals(out).reshape(-1)
        floats, on_host = self.dtype != "int64", self._xp is np
        if floats and not on_host:
            _fold_on_gpu(self._xp, flat, weights, wide)
        elif floats and weights is None and flat.nbytes >= COMPILED_BYTES:
            from shardwise.numerics import loops  # only here: tasks on a GPU do not need numba

            loops.fold(flat, wide)
        else:  # some columns at a time, so that their copies stay in a cache
            step = max(1, COMPILED_BYTES * (1 if on_host else 16) // 8 // len(rows))
            for low in range(0, len(wide), step):
                part = flat[:, low : low + step].astype(wide.dtype)
                if weights is not None:
                    part *= weights[:, None]
                while len(part) > 1:
                    self._join(part[::2], part[1::2], part[::2], 1, 1)
                    part = part[::2]
                wide[low : low + step] = part[0]


def reals(array: Any) -> Any:
    """Complex numbers as pairs of real ones, a view."""
    return array.view(f"f{array.itemsize // 2}") if array.dtype.kind == "c" else array


def _fold_on_gpu(xp: Any, rows: Any, weights: Any, out: Any) -> None:
    """Add rows as the tree does, on the current stream of ``xp``, cupy.

    ``rows`` are ``(n * 2**k, width)`` of float16, float32 or float64, contiguous; ``weights`` None,
    or float64 ``(n * 2**k,)``; ``out`` is ``(n, width)`` of float64.
    """
    level = (rows.size // out.size).bit_length() - 1
    if level > _LEVELS:
        narrower = xp.empty((len(rows) >> _LEVELS, rows.shape[1]), out.dtype)
        _fold_on_gpu(xp, rows, weights, narrower)
        _fold_on_gpu(xp, narrower, None, out)
        return
    weighted = weights is not None
    kernel = _kernels(xp, weighted).get_function(_name(rows.dtype.name, level, weighted))
    arrays = rows, weights if weighted else out  # a kernel without weights ignores this argument
    sizes = np.int64(out.size), np.int64(rows.shape[1])
    kernel((-(-out.size // _THREADS),), (_THREADS,), (*arrays, *sizes, out))


def sums_of_columns(xp: Any, block: Any) -> Any:
    """The sum of the rows of each matrix, ``(n, k)``, in float64 or complex128; on a GPU."""
    numbers = reals(block)
    n, rows, columns = numbers.shape
    out = xp.empty((n, columns), "float64")
    number = _NUMBERS[numbers.dtype.name]
    kernel = _kernels(xp, False).get_function(f"columns<{number}>")
    kernel((-(-columns // 32) * n,), (32, 8), (numbers, np.int64(rows), np.int64(columns), out))
    return out.view("complex128") if block.dtype.kind == "c" else out


@cache
def _kernels(xp: Any, weighted: bool) -> Any:
    """The compiled kernels: a module for weighted sums, and one for all others."""
    names = [_name(dtype, k, weighted) for dtype in _NUMBERS for k in range(_LEVELS + 1)]
    names += [] if weighted else [f"columns<{number}>" for number in _NUMBERS.values()]
    return compiled(xp, "tree.cu", name_expressions=names)


def compiled(xp: Any, file: str, *options: str, **more: Any) -> Any:
    """The kernels of a file of this folder, which may use those of wide.cu."""
    folder, options = Path(__file__).parent, ("-std=c++17", *options)
    source = "".join((folder / name).read_text("utf-8") for name in ("wide.cu", file))
    return xp.RawModule(code=source, options=options, **more)


def _name(dtype: str, level: int, weighted: bool) -> str:
    return f"fold<{_NUMBERS[dtype]}, {level}, {str(weighted).lower()}>"
