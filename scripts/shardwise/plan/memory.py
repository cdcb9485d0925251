"""The bytes that a task takes, and how many matrices it holds at once: known before it starts.

`Run.mib` turns them into the memory that a job asks for.

A *batch* is the matrices in one slot of the ring: they are read, multiplied and written at once.
Slots and batches change no bits, so they may shrink while memory is short.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.files import pieces
from shardwise.plan.cut import count_nodes, most_held, power_of_two
from shardwise.plan.plan import Plan, ShardSettings
from shardwise.plan.problem import ITEM_BYTES, Problem
from shardwise.units import MIB

# Bytes of a row and of a piece in the checksum of the matrices that a task reads.
SHARD_PIECES = pieces.CHECKSUM_PIECE_BYTES, pieces.CHECKSUM_PIECE_BYTES
# Bytes of the factors, or of the products, in a batch on a device: enough to keep the gaps between
# calls small, and to add up several large products per write of their sum.
BATCH_BYTES = 256 * MIB
CONJUGATED_BYTES = MIB  # of small matrices that a thread conjugates at once, on NumPy
HOST_BATCH_BYTES = 8 * MIB  # of a batch of small matrices on NumPy: they should stay in a cache
# Large matrices in a batch on NumPy, as each thread multiplies one, and the most bytes of such.
HOST_BATCH_MATRICES, HOST_LARGE_BYTES = 8, 128 * MIB
HOST_LONE_BYTES = 1024 * MIB  # from this size of a batch on, NumPy gets one slot
SLOTS, RING_BYTES = 6, 1536 * MIB  # of the ring on a device: some are read into meanwhile
REPORT_BYTES = 80  # what a report holds per matrix of a batch: moduli, ratio, forms, weight
OUTS = 4  # batches of products on a device: some are written while one is computed
AHEAD = 2  # batches whose work may be queued on a device before the oldest is looked at
READERS = 4  # threads that read and write on NumPy, and that copy a shard
IO_THREADS, IO_BYTES = 16, 8 * MIB  # of KvikIO: each moves so many bytes through pinned memory
STEP_BYTES = 32 * MIB  # of matrices converted at once while read, or searched at once for NaN
CONVERTED_BYTES = 256 * MIB  # of rows of a large matrix that are brought into C order at once
DECODERS = 4  # chunks that are decompressed at once
PYTHON_BYTES = 512 * MIB  # host: the interpreter, NumPy and two Snakemake processes around a job
CUDA_BYTES = 768 * MIB  # host: a CUDA context and its libraries
DEVICE_BYTES = 768 * MIB  # device: the same, and the libraries' own workspace
FUNCTION_COPIES = 8  # a guess at a user's function: multiples of its input and its result
REDUCE_BATCH_BYTES = 4 * MIB  # what a rank of the reduce reads at once
REDUCE_RANK_BYTES = 256 * MIB  # of such a rank: Python, batches, and the states of one stripe
PLAN_ROW_BYTES = 1024  # of a shard in a process that reads the whole plan (measured: 0.7 KB)


@dataclass(frozen=True)
class Budget:
    """What the task of a shard takes at most, of the host and of a device.

    ``spans`` are the shard's matrices; with labels, one range per label: places among all matrices
    of the label. ``cuda`` says of which machine a figure is: a GPU, or the host with NumPy.
    """

    problem: Problem
    settings: ShardSettings
    spans: Sequence[range]

    @property
    def host_bytes(self) -> int:
        """Bytes of the host, with matrices that are converted.

        A job that may run on a GPU may find none: so the larger need counts, of CUDA or of NumPy.
        """
        problem, work = self.problem, self.work_bytes(cuda=False)
        if self.settings.backend != "numpy":
            work = max(work, PYTHON_BYTES + CUDA_BYTES + IO_THREADS * IO_BYTES)
        shared = problem.right_bytes if problem.shared_right else 0
        shared += shared // problem.item  # B as it was read, and a byte per element: is it finite?
        converted = READERS * pieces.PART_BYTES + 3 * STEP_BYTES
        for height, width in (problem.left, *([problem.right] if problem.right else [])):
            row = width * problem.item
            converted += 2 * min(height * row, max(CONVERTED_BYTES, row))
        return work + shared + converted

    @property
    def device_bytes(self) -> int:
        """Bytes of a device; 0 if the task never takes one."""
        return 0 if self.settings.backend == "numpy" else self.work_bytes(cuda=True)

    @property
    def result_bytes(self) -> int:
        """Bytes of the shard's result file: its products, or the nodes of their sum."""
        if self.settings.keep == "sum":
            nodes = sum(count_nodes(own.start, own.stop) for own in self.spans)
            return nodes * self.problem.node_bytes
        return sum(map(len, self.spans)) * self.problem.product_bytes

    @property
    def nodes(self) -> int:
        """Nodes of the shard's trees, and those of the previous shard, which are being written."""
        return sum(most_held(o.start, o.stop) + count_nodes(o.start, o.stop) for o in self.spans)

    def ladder(self, cuda: bool) -> list[tuple[int, int]]:
        """Slots and matrices per slot, from the planned ones down to the least that works."""
        count, call = sum(map(len, self.spans)), self.problem.call_matrices if cuda else 1
        matrices = min(self.batch(cuda), -(-count // call) * call)
        slots = min(self.slots(matrices, cuda), -(-count // matrices))
        few, half = min(slots, 2), max(1, matrices // call // 2) * call
        steps = (slots, matrices), (few, matrices), (few, half), (few, call), (1, call)
        return list(dict.fromkeys(steps))

    def batch(self, cuda: bool) -> int:
        """Matrices in a batch: a power of two, like nodes; on a GPU whole calls, at least one."""
        largest = self.problem.largest_bytes
        if cuda:
            return max(power_of_two(BATCH_BYTES // largest), self.problem.call_matrices)
        few = min(HOST_BATCH_MATRICES, power_of_two(HOST_LARGE_BYTES // largest))
        return max(power_of_two(HOST_BATCH_BYTES // largest), few)

    def slots(self, matrices: int, cuda: bool) -> int:
        """The most slots that are worth their memory, with this many matrices in each."""
        factors = self.problem.factor_bytes
        if cuda:
            return min(SLOTS, max(2, RING_BYTES // (matrices * factors)))
        return 2 if matrices * (factors + self.problem.product_bytes) < HOST_LONE_BYTES else 1

    def outs(self, slots: int, ahead: int) -> int:
        """Batches of products for this many slots: some are written, or proven, meanwhile."""
        return min(slots, OUTS if self.settings.keep == "products" else 1 + ahead)

    def ring_bytes(self, ahead: int, slots: int, matrices: int) -> int:
        """Bytes of slots with this many A and B each, and of the products."""
        products = self.outs(slots, ahead) * self.problem.product_bytes
        return matrices * (slots * self.problem.factor_bytes + products)

    def work_bytes(self, cuda: bool, step: int = 0) -> int:
        """Bytes that the computation takes, of the device or the host, at a step of the ladder."""
        problem, (slots, matrices) = self.problem, self.ladder(cuda)[step]
        ahead, held = (AHEAD, DEVICE_BYTES) if cuda else (0, PYTHON_BYTES)
        held += self.ring_bytes(ahead, slots, matrices)
        held += problem.right_bytes * problem.shared_right
        if self.settings.keep == "sum":
            # A batch is folded in steps of 32 (tree.py); to check integers takes four nodes.
            beside = matrices // 31 + 4 * (problem.product_dtype == "int64")
            held += (self.nodes + beside) * problem.node_bytes
            # The products of a batch are copied, to bring those of a label together.
            held += matrices * problem.product_bytes * (problem.labels > 0)
        if problem.result:
            guess = FUNCTION_COPIES * matrices * (problem.matrix_bytes + problem.product_bytes)
            return held + guess * (step == 0)
        held += min(matrices, problem.proof_matrices) * problem.proof_bytes
        held += max(0, matrices * REPORT_BYTES - 128 * MIB)  # other figures cover 128 MiB
        held += matrices * problem.matrix_bytes * problem.covariance  # copies of A less the offset
        pads = sum(map(math.prod, problem.padded_shapes.values()))
        held += problem.call_matrices * problem.item * pads
        if cuda:
            halves = sum(map(math.prod, problem.split_shapes(self.settings.precision).values()))
            return held + 2 * problem.item * halves
        if "int" in problem.dtype:  # these were counted with their proof
            return held
        conjugated = any(factor.conjugated for factor in problem.operands)
        copied = conjugated or problem.compute_dtype != problem.dtype
        return held + max(HOST_BATCH_BYTES, problem.widened_bytes) * copied


def reduce_bytes(plan: Plan, ranks: int) -> int:
    """Host bytes of all ranks of the reduce, and of Snakemake.

    Over one stripe the tree of a label has two nodes per level, and a sum.
    """
    problem, shards = plan.problem, len(plan.shards)
    stripe = min(math.prod(problem.product_shape), pieces.CHECKSUM_PIECE_NUMBERS)
    nodes = sum(2 * count.bit_length() + 1 for count in plan.facts.label_counts)
    trees = nodes * stripe * ITEM_BYTES[problem.sum_dtype]
    receipts = 12 * 1024 * shards  # of all ranks together: measured at 10 KB
    return PYTHON_BYTES + ranks * (REDUCE_RANK_BYTES + trees + PLAN_ROW_BYTES * shards) + receipts
