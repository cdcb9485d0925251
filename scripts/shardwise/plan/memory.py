"""Sizes of batches and calls, and the bytes that a task holds: known before the task starts.

A *batch* is the matrices in one slot of the ring: they are read, multiplied and written at once. A
*call* is the matrices that one routine multiplies. Its size follows from dtype and shapes alone, as
it decides the bits of the products. Slots and batches change no bits, so they may shrink.
"""

import math
from collections.abc import Iterable, Sequence

from shardwise.files import pieces
from shardwise.plan.cut import count_nodes, most_held
from shardwise.plan.problem import ITEM_BYTES, Problem, Shape
from shardwise.units import MIB

# Bytes of a row and of a piece in the checksum of the matrices that a task reads.
SHARD_PIECES = pieces.CHECKSUM_PIECE_BYTES, pieces.CHECKSUM_PIECE_BYTES
# Bytes of the factors, or of the products, in a batch on a device: enough to keep the gaps between
# calls small, and to add up several large products per write of their sum.
BATCH_BYTES = 256 * MIB
CALL_BYTES, MOST_IN_CALL = 128 * MIB, 2**20  # of a call; a batch has one call or more
LARGE_BYTES = 32 * MIB  # from this size on a matrix fills a device, and a call multiplies only one
CONJUGATED_BYTES = MIB  # of small matrices that a thread conjugates at once, on NumPy
HOST_BATCH_BYTES = 8 * MIB  # of a batch of small matrices on NumPy: they should stay in a cache
# Large matrices in a batch on NumPy, as each thread multiplies one, and the most bytes of such.
HOST_BATCH_MATRICES, HOST_LARGE_BYTES = 8, 128 * MIB
HOST_LONE_BYTES = 1024 * MIB  # from this size of a batch on, NumPy gets one slot
SLOTS, RING_BYTES = 6, 1536 * MIB  # of the ring on a device: some are read into meanwhile
REPORT_BYTES = 80  # what a report holds per matrix of a batch: moduli, ratio, forms, weight
OUTS = 4  # batches of products on a device: some are written while one is computed
READERS = 4  # threads that read and write on NumPy, and that copy a shard
IO_THREADS, IO_BYTES = 16, 8 * MIB  # of KvikIO: each moves so many bytes through pinned memory
STEP_BYTES = 32 * MIB  # of matrices converted at once while read, or searched at once for NaN
HUGE_BYTES = 2048 * MIB  # padded copies of larger factors or products cost too much memory
CONVERTED_BYTES = 256 * MIB  # of rows of a large matrix that are brought into C order at once
DECODERS = 4  # chunks that are decompressed at once
# From this many rows on, a rank-k update beats a whole product (measured: docs/performance.md).
SYMMETRIC_ROWS = 2048
PYTHON_BYTES = 512 * MIB  # host: the interpreter, NumPy and two Snakemake processes around a job
CUDA_BYTES = 768 * MIB  # host: a CUDA context and its libraries
DEVICE_BYTES = 768 * MIB  # device: the same, and the libraries' own workspace
FUNCTION_COPIES = 8  # a guess at a user's function: multiples of its input and its result
REDUCE_BATCH_BYTES = 4 * MIB  # what a rank of the reduce reads at once
REDUCE_RANK_BYTES = 256 * MIB  # of such a rank: Python, batches, and the states of one stripe
PLAN_ROW_BYTES = 1024  # of a shard in a process that reads the whole plan (measured: 0.7 KB)
_ALIGNED_BYTES = 16  # tensor cores load rows that begin at multiples of this
_WORTH_PADDING = 64 * 1024  # from this size on a matrix of other rows is copied to longer ones
_PROOF_ITEMS = 10  # float64 numbers per row in a proof: vectors and moduli, of both factors

Spans = Sequence[range]
"""A shard's matrices; with labels, one range per label: places among all matrices of the label."""


def padded_shapes(problem: Problem) -> dict[str, Shape]:
    """Shapes with aligned rows, to which factors are copied for a GPU; none if they stay."""
    largest = max(problem.matrix_bytes, problem.right_bytes, problem.product_bytes)
    worth = _largest(problem) >= _WORTH_PADDING and largest <= HUGE_BYTES
    widths = problem.left[1], problem.product_shape[1]
    awkward = any(width * problem.item % _ALIGNED_BYTES for width in widths)
    if problem.result or "int" in problem.dtype or not (worth and awkward):
        return {}
    step = _ALIGNED_BYTES // problem.item
    shapes = {"left": problem.left, "out": problem.product_shape, "right": problem.right}
    return {k: (-(-s[0] // step) * step, -(-s[1] // step) * step) for k, s in shapes.items() if s}


def split_shapes(problem: Problem, precision: str) -> dict[str, tuple[int, int, int]]:
    """Shapes of the stacks, perhaps padded, that tf32x3 splits in two for one call on a GPU."""
    if precision != "tf32x3" or problem.dtype not in ("float32", "complex64") or problem.result:
        return {}
    call, pads = call_matrices(problem), padded_shapes(problem)
    shapes = {"left": problem.left, "right": problem.right}
    counts = {"left": call, "right": 1 if problem.shared_right else call}
    return {k: (counts[k], *pads.get(k, shape)) for k, shape in shapes.items() if shape}


def symmetric(problem: Problem) -> bool:
    """Whether it pays to compute half of each product: if large, and symmetric or Hermitian."""
    left, right = problem.operands
    half = left.name == right.name and left.turned != right.turned
    return half and problem.product_shape[1] >= SYMMETRIC_ROWS


def call_matrices(problem: Problem) -> int:
    """Matrices that one call multiplies on a GPU."""
    most = min(CALL_BYTES // _largest(problem), MOST_IN_CALL)
    return 1 if _largest(problem) >= LARGE_BYTES else _power_of_two(most)


def batch_matrices(problem: Problem, cuda: bool) -> int:
    """Matrices in a batch: a power of two, like nodes; on a GPU whole calls, at least one."""
    largest = _largest(problem)
    if cuda:
        return max(_power_of_two(BATCH_BYTES // largest), call_matrices(problem))
    few = min(HOST_BATCH_MATRICES, _power_of_two(HOST_LARGE_BYTES // largest))
    return max(_power_of_two(HOST_BATCH_BYTES // largest), few)


def _power_of_two(most: int) -> int:
    """The largest power of two up to a number, at least 1."""
    return 1 << max(1, most).bit_length() - 1


def _largest(problem: Problem) -> int:
    """Bytes of the largest of A, B and product as they are multiplied."""
    wide = problem.item if "int" not in problem.dtype or problem.result else 8
    right = 0 if problem.shared_right else problem.right_bytes
    factors = max(problem.matrix_bytes, right) // problem.item * wide
    # Without the row of column sums: one row more could halve a batch, which is a power of two.
    return max(factors, math.prod(problem.sum_shape) * ITEM_BYTES[problem.product_dtype])


def outs(slots: int, keep: str) -> int:
    """Batches of products for this many slots: one, or more if products are written."""
    return min(slots, OUTS) if keep == "products" else 1


def ring_bytes(problem: Problem, slots: int, matrices: int, keep: str) -> int:
    """Bytes of a ring of ``slots`` slots with ``matrices`` A and B each, and of its products."""
    products = outs(slots, keep) * problem.product_bytes
    return matrices * (slots * _factor_bytes(problem) + products)


def _factor_bytes(problem: Problem) -> int:
    """Bytes of one A, and of one B where each matrix has its own."""
    return problem.matrix_bytes + (0 if problem.shared_right else problem.right_bytes)


def ladder(problem: Problem, count: int, cuda: bool) -> list[tuple[int, int]]:
    """Slots and matrices per slot, from the planned ones down to the least that works."""
    most = batch_matrices(problem, cuda)
    call = call_matrices(problem) if cuda else 1
    matrices = min(most, -(-count // call) * call)
    slots = min(_slots(problem, matrices, cuda), -(-count // matrices))
    few, half = min(slots, 2), max(1, matrices // call // 2) * call
    steps = (slots, matrices), (few, matrices), (few, half), (few, call), (1, call)
    return list(dict.fromkeys(steps))


def _slots(problem: Problem, matrices: int, cuda: bool) -> int:
    """The most slots that are worth their memory, with this many matrices in each."""
    if cuda:
        return min(SLOTS, max(2, RING_BYTES // (matrices * _factor_bytes(problem))))
    batch = matrices * (_factor_bytes(problem) + problem.product_bytes)
    return 2 if batch < HOST_LONE_BYTES else 1


def proof_matrices(problem: Problem, matrices: int) -> int:
    """Matrices of a batch whose products are proven at once."""
    return max(1, min(matrices, CALL_BYTES // _proof_bytes(problem)))


def _proof_bytes(problem: Problem) -> int:
    """Bytes that the proof of one product needs besides the product; integers are widened."""
    (m, k), (_, p) = problem.factor_shapes
    vectors = (m + k + p) * _PROOF_ITEMS * 8 * (2 if "complex" in problem.dtype else 1)
    return vectors + (3 * 8 * (m * k + k * p + m * p) if "int" in problem.dtype else 0)


def widened_bytes(problem: Problem) -> int:
    """Bytes of one matrix's factors and its product, in the dtype that NumPy multiplies."""
    (m, k), (_, p) = problem.factor_shapes
    return ITEM_BYTES[problem.compute_dtype] * (m * k + k * p + m * p)


def planned_bytes(
    problem: Problem, spans: Spans, keep: str, cuda: bool, precision: str = "ieee", step: int = 0
) -> int:
    """Bytes that the computation of a shard takes at most, at a step of its :func:`ladder`."""
    slots, matrices = ladder(problem, sum(map(len, spans)), cuda)[step]
    held = ring_bytes(problem, slots, matrices, keep) + (DEVICE_BYTES if cuda else PYTHON_BYTES)
    held += problem.right_bytes * problem.shared_right
    if keep == "sum":
        # A batch is folded in steps of 32 (tree.py); to check integers takes four nodes.
        beside = matrices // 31 + 4 * (problem.product_dtype == "int64")
        held += (tree_nodes(spans) + beside) * node_bytes(problem)
        # The products of a batch are copied, to bring those of a label together.
        held += matrices * problem.product_bytes * (problem.labels > 0)
    if problem.result:
        guess = FUNCTION_COPIES * matrices * (problem.matrix_bytes + problem.product_bytes)
        return held + guess * (step == 0)
    held += proof_matrices(problem, matrices) * _proof_bytes(problem)
    held += max(0, matrices * REPORT_BYTES - 128 * MIB)  # other figures cover 128 MiB
    held += matrices * problem.matrix_bytes * problem.covariance  # copies of A less the offset
    pads = sum(map(math.prod, padded_shapes(problem).values()))
    held += call_matrices(problem) * problem.item * pads
    if cuda:
        halves = sum(map(math.prod, split_shapes(problem, precision).values()))
        return held + 2 * problem.item * halves
    if "int" in problem.dtype:  # these were counted with their proof
        return held
    conjugated = any(factor.conjugated for factor in problem.operands)
    copied = conjugated or problem.compute_dtype != problem.dtype
    return held + max(HOST_BATCH_BYTES, widened_bytes(problem)) * copied


def node_bytes(problem: Problem) -> int:
    """Bytes of a node of the tree of a sum."""
    return ITEM_BYTES[problem.sum_dtype] * math.prod(problem.product_shape)


def tree_nodes(spans: Iterable[range]) -> int:
    """Nodes of a shard's trees, and those of the previous shard, which are being written."""
    return sum(most_held(own.start, own.stop) + count_nodes(own.start, own.stop) for own in spans)


def result_bytes(problem: Problem, spans: Spans, keep: str) -> int:
    """Bytes of a shard's result file: its products, or the nodes of their sum."""
    if keep == "sum":
        return sum(count_nodes(own.start, own.stop) for own in spans) * node_bytes(problem)
    return sum(map(len, spans)) * problem.product_bytes


def task_memory(problem: Problem, spans: Spans, keep: str, cuda: bool) -> int:
    """Host bytes that the task of a shard needs at most, with matrices that are converted.

    A job that may run on a GPU may find none: so the larger need counts, that of CUDA or of NumPy.
    """
    work = planned_bytes(problem, spans, keep, cuda=False)
    if cuda:
        work = max(work, PYTHON_BYTES + CUDA_BYTES + IO_THREADS * IO_BYTES)
    shared = problem.right_bytes if problem.shared_right else 0
    shared += shared // problem.item  # B as it was read, and a byte per element: is it finite?
    converted = READERS * pieces.PART_BYTES + 3 * STEP_BYTES
    for height, width in (problem.left, *([problem.right] if problem.right else [])):
        row = width * problem.item
        converted += 2 * min(height * row, max(CONVERTED_BYTES, row))
    return work + shared + converted


def converted_block(chunk: tuple[int, ...], shape: Shape, item: int) -> tuple[int, int]:
    """How many matrices, and rows of each, are converted at once: all rows, or some of one matrix.

    They make up whole chunks, if these fit; without chunks they make up :data:`STEP_BYTES`.
    """
    (rows, row), (deep, tall, _) = (shape[0], shape[1] * item), (1, *(chunk or (1, 1)))[-3:]
    matrix = rows * row
    if matrix > CONVERTED_BYTES:
        most = max(1, CONVERTED_BYTES // row)
        return 1, max(1, most // tall * tall or most)
    if not chunk:
        return -(-STEP_BYTES // matrix), rows
    if deep * matrix > CONVERTED_BYTES:  # then a chunk is decoded several times
        return CONVERTED_BYTES // matrix, rows
    return deep * max(1, 2 * STEP_BYTES // (deep * matrix)), rows


def decoded_bytes(chunk: tuple[int, ...], shape: Shape, item: int) -> int:
    """Bytes of two decoded blocks, and of the chunks that are being decoded."""
    matrices, rows = converted_block(chunk, shape, item)
    block = matrices * rows * shape[1] * item
    return 2 * block + 2 * max(block, DECODERS * math.prod(chunk) * item)


def reduce_memory(problem: Problem, ranks: int, shards: int, counts: Sequence[int]) -> int:
    """Host bytes of all ranks of the reduce, and of Snakemake; with the matrices of each label.

    Over one stripe the tree of a label has two nodes per level, and a sum.
    """
    stripe = min(math.prod(problem.product_shape), pieces.CHECKSUM_PIECE_NUMBERS)
    nodes = sum(2 * count.bit_length() + 1 for count in counts)
    trees = nodes * stripe * ITEM_BYTES[problem.sum_dtype]
    receipts = 12 * 1024 * shards  # of all ranks together: measured at 10 KB
    return PYTHON_BYTES + ranks * (REDUCE_RANK_BYTES + trees + PLAN_ROW_BYTES * shards) + receipts
