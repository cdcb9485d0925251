"""How many matrices go together, and the bytes that a task holds: known before it starts.

Arithmetic only. Three sizes: a *slab* is a piece of a file on its way through host memory; a
*batch* is what the device holds at once; a *call* is what one routine multiplies. A call follows
from dtype and shapes alone, because it decides the bits. Slabs and batches change none, so they
may shrink where memory is short.
"""

import math
from collections.abc import Iterator

from shardwise.files import pieces
from shardwise.plan.nodes import count_nodes, most_held
from shardwise.plan.problem import ITEM_BYTES, Problem, Shape
from shardwise.units import MIB

# Row and piece of the checksum of what a task reads: a slab, as nobody shares its hashing. Each
# piece costs its thread a turn with Python's lock: with 1 MiB a shard in the page cache took 8 %
# longer.
SHARD_PIECES = pieces.SLAB_BYTES, pieces.SLAB_BYTES
READ_SLABS, WRITE_SLABS = 16, 8  # slabs under way at most; with fewer, work waits for files sooner
COPY_SLABS = 8  # slabs under way while a shard is copied
FEWEST_SLABS = 2  # with one slab, nothing would overlap
# Matrices, or products, in a batch on a device: enough to make the gaps between calls small.
BATCH_BYTES = 256 * MIB
HOST_BATCH_BYTES = 16 * MIB  # the same on NumPy, which multiplies one matrix a call anyway
BATCHES = 2  # one is filled while the other is multiplied
# From here on a matrix fills a device by itself, and is multiplied by a call of its own.
LARGE_BYTES = 32 * MIB
MOST_IN_CALL = 2**20

# Where A, B or the product is larger, copies of it would cost more memory than they are worth.
HUGE_BYTES = 2048 * MIB
# From here on a batch is alone on NumPy: it is multiplied for so much longer than it is read.
HOST_LONE_BYTES = 1024 * MIB
# Rows of a large matrix in another order that are brought into C order at once.
CONVERTED_BYTES = 256 * MIB
DECODERS = 4  # chunks that are decompressed at once
# From here on a rank-k update is faster than a whole product (measured: docs/performance.md).
SYMMETRIC_ROWS = 2048
# Host memory of the interpreter, NumPy and the two Snakemake processes around a job.
PYTHON_BYTES = 512 * MIB
CUDA_BYTES = 768 * MIB  # host memory of a CUDA context and its libraries
DEVICE_BYTES = 768 * MIB  # device memory of a CUDA context, its libraries and their own workspace
# A guess: the memory that a user's function takes, in blocks of its input and of its result.
FUNCTION_COPIES = 8
_ALIGNED_BYTES = 16  # tensor cores load rows that begin at multiples of this
# Bytes from which on a matrix with awkward rows is copied to longer ones first.
_WORTH_PADDING = 64 * 1024
_PROOF_ITEMS = 10  # float64 numbers a row that a proof holds: vectors and moduli, of both factors


def padded(problem: Problem) -> bool:
    """Whether factors are copied to longer rows before they are multiplied on a GPU."""
    if problem.result or "int" in problem.dtype or _huge(problem):
        return False
    widths = [problem.left[1], problem.product_shape[1]]
    awkward = any(width * problem.item % _ALIGNED_BYTES for width in widths)
    return awkward and _largest(problem) >= _WORTH_PADDING


def padded_shapes(problem: Problem) -> dict[str, Shape]:
    """Shapes with both sides rounded up, so that every row is aligned."""
    step = max(1, _ALIGNED_BYTES // problem.item)
    shapes = {"left": problem.left, "out": problem.product_shape}
    if problem.right:
        shapes["right"] = problem.right
    return {key: (-(-m // step) * step, -(-k // step) * step) for key, (m, k) in shapes.items()}


def split_shapes(problem: Problem, precision: str) -> dict[str, tuple[int, int, int]]:
    """Shapes of the stacks of one call that tf32x3 splits in two on a GPU; none where it does not.

    They are padded where :func:`padded` says so. Both parts of a stack are held beside it.
    """
    if precision != "tf32x3" or problem.dtype not in ("float32", "complex64") or problem.result:
        return {}
    call, pads = call_matrices(problem), padded_shapes(problem) if padded(problem) else {}
    shapes = {"left": (call, *pads.get("left", problem.left))}
    if problem.right:
        matrices = 1 if problem.shared_right else call
        shapes["right"] = (matrices, *pads.get("right", problem.right))
    return shapes


def _split_bytes(problem: Problem, precision: str) -> int:
    shapes = split_shapes(problem, precision).values()
    return 2 * problem.item * sum(math.prod(shape) for shape in shapes)


def symmetric(problem: Problem) -> bool:
    """Whether products are symmetric, and so large that half of each is worth computing."""
    large = problem.product_shape[0] >= SYMMETRIC_ROWS
    return large and problem.product in ("A.T @ A", "A @ A.T")


def _huge(problem: Problem) -> bool:
    """Whether a matrix takes so much of a device that there should be no copy of it."""
    largest = max(problem.matrix_bytes, problem.right_bytes, problem.product_bytes)
    return largest > HUGE_BYTES


def call_matrices(problem: Problem) -> int:
    """Matrices that one call multiplies on a GPU."""
    largest = _largest(problem)
    if largest >= LARGE_BYTES:
        return 1
    return min(_power_of_two(BATCH_BYTES // largest), MOST_IN_CALL)


def batch_matrices(problem: Problem, cuda: bool) -> int:
    """Matrices in a batch: whole calls on a GPU, at least one; a power of two, as nodes are."""
    most = _power_of_two((BATCH_BYTES if cuda else HOST_BATCH_BYTES) // _largest(problem))
    return max(most, call_matrices(problem)) if cuda else most


def _power_of_two(most: int) -> int:
    """The largest power of two up to a number, at least 1."""
    return 1 << max(1, most).bit_length() - 1


def _largest(problem: Problem) -> int:
    """Bytes of the largest of A, B and product as they are multiplied."""
    wide = problem.item if "int" not in problem.dtype or problem.result else 8
    right = 0 if problem.shared_right else problem.right_bytes
    factors = max(problem.matrix_bytes, right) // problem.item * wide
    return max(factors, problem.product_bytes)


def batch_bytes(problem: Problem, matrices: int) -> int:
    """Bytes of one batch of A, of B and of products."""
    right = 0 if problem.shared_right else problem.right_bytes
    return matrices * (problem.matrix_bytes + right + problem.product_bytes)


def ladder(problem: Problem, count: int, cuda: bool) -> Iterator[tuple[int, int]]:
    """Numbers of batches and matrices in each, from what is planned to the least that works."""
    most = batch_matrices(problem, cuda)
    call = call_matrices(problem) if cuda else 1
    matrices = min(most, -(-count // call) * call)
    batches = min(_batches(problem, matrices, cuda), -(-count // matrices))
    yield batches, matrices
    while matrices > call:
        matrices = max(1, matrices // call // 2) * call
        yield batches, matrices
    if batches > 1:
        yield 1, matrices


def _batches(problem: Problem, matrices: int, cuda: bool) -> int:
    """Batches of so many matrices that are held at once, at most."""
    return BATCHES if cuda or batch_bytes(problem, matrices) < HOST_LONE_BYTES else 1


def proof_matrices(problem: Problem, matrices: int) -> int:
    """Matrices of a batch whose products are proven at once."""
    return max(1, min(matrices, BATCH_BYTES // _proof_bytes(problem)))


def _proof_bytes(problem: Problem) -> int:
    """Bytes that the proof of one product holds beside it; integers are widened."""
    (m, k), (_, p) = problem.factor_shapes
    vectors = (m + k + p) * _PROOF_ITEMS * 8 * (2 if "complex" in problem.dtype else 1)
    return vectors + (3 * 8 * (m * k + k * p + m * p) if "int" in problem.dtype else 0)


def work_bytes(problem: Problem, matrices: int, run: range, keep: str) -> int:
    """Bytes beside the batches: what a call, the proof and the sum of a shard need."""
    item = problem.item
    if problem.result:
        work = FUNCTION_COPIES * matrices * (problem.matrix_bytes + problem.product_bytes)
    else:
        work = proof_matrices(problem, matrices) * _proof_bytes(problem)
        if padded(problem):
            work += (
                call_matrices(problem)
                * item
                * sum(rows * columns for rows, columns in padded_shapes(problem).values())
            )
    shared = problem.right_bytes if problem.shared_right else 0
    return work + shared + (sum_bytes(problem, matrices, run) if keep == "sum" else 0)


def widened_bytes(problem: Problem) -> int:
    """Bytes of the copies in which NumPy multiplies one matrix of a narrow floating-point type."""
    if problem.result or "int" in problem.dtype:
        return 0  # the widened copies of integers are counted with their proof
    wide = ITEM_BYTES[problem.compute_dtype]
    if wide == problem.item:
        return 0
    (m, k), (_, p) = problem.factor_shapes
    return wide * (m * k + k * p + m * p)


def least_bytes(
    problem: Problem, run: range, keep: str, cuda: bool, precision: str = "ieee"
) -> int:
    """Bytes without which a shard cannot be computed: one call, and nothing beside it.

    What a function of the user takes is a guess, and does not count.
    """
    matrices = call_matrices(problem) if cuda else 1
    work = 0 if problem.result else work_bytes(problem, matrices, run, keep)
    split = _split_bytes(problem, precision)
    base = DEVICE_BYTES + split if cuda else PYTHON_BYTES + widened_bytes(problem)
    return base + batch_bytes(problem, matrices) + work


def node_bytes(problem: Problem) -> int:
    """Bytes of a node of the tree of a sum."""
    return problem.sum_item * math.prod(problem.product_shape)


def sum_bytes(problem: Problem, matrices: int, run: range) -> int:
    """Bytes of the tree of a shard, and of the nodes of the shard before, which are being written.

    A batch is folded in steps of 32 (tree.py); to see that integers fit takes four nodes more.
    """
    nodes = most_held(run.start, run.stop) + count_nodes(run.start, run.stop)
    beside = matrices // 31 + (4 if problem.product_dtype == "int64" else 0)
    return (nodes + beside) * node_bytes(problem)


def result_bytes(problem: Problem, run: range, keep: str) -> int:
    """Bytes of the file that a shard becomes."""
    if keep == "sum":
        return count_nodes(run.start, run.stop) * node_bytes(problem)
    return len(run) * problem.product_bytes


def slabs(total_bytes: int, most: int) -> int:
    """Slabs that a stream of bytes makes use of."""
    return min(most, -(-total_bytes // pieces.SLAB_BYTES))


def slabs_within(
    problem: Problem, run: range, keep: str, cuda: bool, memory: int
) -> tuple[int, int]:
    """Slabs to read into, for each factor, and to write from, within the memory of a task."""
    out = result_bytes(problem, run, keep)
    most = slabs(len(run) * problem.matrix_bytes, READ_SLABS), _write_slabs(out)
    factors = 1 if problem.shared_right or not problem.right else 2
    spare = task_memory(problem, run, keep, cuda) - memory
    if spare <= 0:
        return most
    left = max(0, slab_memory(problem, run, keep) - spare) // (pieces.SLAB_BYTES + MIB)
    read = max(FEWEST_SLABS, left * 2 // 3 // factors)
    return min(most[0], read), min(most[1], max(FEWEST_SLABS, left // 3))


def slab_memory(problem: Problem, run: range, keep: str) -> int:
    """Host bytes of all slabs of a shard."""
    left = len(run) * problem.matrix_bytes
    right = 0 if problem.shared_right else len(run) * problem.right_bytes
    out = result_bytes(problem, run, keep)
    read = slabs(left, READ_SLABS) + slabs(right, READ_SLABS)
    return (read + _write_slabs(out)) * (pieces.SLAB_BYTES + MIB)


def _write_slabs(out: int) -> int:
    """Slabs to write from; two shards share them, so with a single one each could wait for it."""
    return max(FEWEST_SLABS, slabs(out, WRITE_SLABS))


def task_memory(problem: Problem, run: range, keep: str, cuda: bool) -> int:
    """Host bytes that the task of a shard, the matrices ``run`` of the stack, needs at most.

    The slabs; one matrix as it lies in a file in another order; and, because a job that may run
    on a GPU may find none, the larger of what CUDA takes and of the batches on NumPy.
    """
    shared = problem.right_bytes if problem.shared_right else 0
    shared += shared // problem.item  # as it was read, and which of its elements are finite
    matrices = min(len(run), batch_matrices(problem, cuda=False))
    host = _batches(problem, matrices, cuda=False) * batch_bytes(problem, matrices)
    host += work_bytes(problem, matrices, run, keep) + widened_bytes(problem) + shared
    lefts, rights = (
        converted_bytes(shape, problem.item) for shape in (problem.left, problem.right or (0, 0))
    )
    converted = 2 * (pieces.SLAB_BYTES + lefts + rights)
    work = max(host, CUDA_BYTES + shared) if cuda else host
    return PYTHON_BYTES + slab_memory(problem, run, keep) + converted + work


def device_memory(problem: Problem, run: range, keep: str, precision: str = "ieee") -> int:
    """Device bytes that the task of a shard needs at most."""
    matrices = batch_matrices(problem, cuda=True)
    batches = min(BATCHES, -(-len(run) // matrices))
    return (
        DEVICE_BYTES
        + _split_bytes(problem, precision)
        + batches * batch_bytes(problem, matrices)
        + work_bytes(problem, matrices, run, keep)
    )


def synthetic_memory(problem: Problem) -> int:
    """Host bytes that the synthetic stack needs: one matrix as drawn, in pairs, and as stored."""
    return PYTHON_BYTES + 4 * max(16, problem.item) * problem.left[0] * problem.left[1]


def converted_bytes(shape: Shape, item: int) -> int:
    """Bytes of what is held of matrices that lie in a file in another order."""
    row = shape[1] * item
    return min(shape[0] * row, max(CONVERTED_BYTES, row))


def converted_block(chunk: tuple[int, ...], shape: Shape, item: int) -> tuple[int, int]:
    """How many matrices, and rows of each, are converted at once: all rows, or some of one matrix.

    These are whole chunks, unless larger; for an array without chunks, which is in another order,
    the matrices that a slab may touch.
    """
    (rows, row), (deep, tall, _) = (shape[0], shape[1] * item), (1, *(chunk or (1, 1)))[-3:]
    matrix = rows * row
    if matrix > CONVERTED_BYTES:
        most = max(1, CONVERTED_BYTES // row)
        return 1, max(1, most // tall * tall or most)
    if not chunk:
        return -(-pieces.SLAB_BYTES // matrix), rows
    if deep * matrix > CONVERTED_BYTES:  # then a chunk is decoded several times
        return CONVERTED_BYTES // matrix, rows
    return deep * max(1, 2 * pieces.SLAB_BYTES // (deep * matrix)), rows


def decoded_bytes(chunk: tuple[int, ...], shape: Shape, item: int) -> int:
    """Bytes of two decoded blocks, and of the chunks that are being decoded."""
    matrices, rows = converted_block(chunk, shape, item)
    block = matrices * rows * shape[1] * item
    return 2 * block + 2 * max(block, DECODERS * math.prod(chunk) * item)


def copy_memory(problem: Problem) -> int:
    """Host bytes that materializing a shard needs at most: slabs, and matrices being converted."""
    converted = pieces.SLAB_BYTES + 2 * converted_bytes(problem.left, problem.item)
    return PYTHON_BYTES + COPY_SLABS * (pieces.SLAB_BYTES + MIB) + converted


def plan_memory(shards: int) -> int:
    """Host bytes of the plan in a process that reads all of it; 0.7 KB a shard were measured."""
    return 1024 * shards


def reduce_memory(ranks: int, shards: int) -> int:
    """Host bytes of all ranks of the reduce, whatever is summed, and of the jobs around them.

    Rank 0 holds all receipts, the others a part each: 10 KB a shard were measured for all.
    """
    receipts = 12 * 1024 * shards
    return PYTHON_BYTES + ranks * (REDUCE_RANK_BYTES + plan_memory(shards)) + receipts


REDUCE_BATCH_BYTES = 8 * MIB  # what a rank of the reduce reads at once
# What a rank of the reduce takes: Python, batches, and the states of one stripe.
REDUCE_RANK_BYTES = 256 * MIB
# How long a rank of the reduce may give no sign of life, or one of its steps may take.
REDUCE_LIMIT_SECONDS = 300.0
REDUCE_SAVE_SECONDS = 60.0  # a reduce that is killed loses about so much of its work at most
