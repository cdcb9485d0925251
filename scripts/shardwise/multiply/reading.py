"""The bytes of a shard on their way from its files to the device."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from threading import Semaphore
from typing import Any, Self

from shardwise.errors import IntegrityError
from shardwise.files import pieces
from shardwise.files.checksum import PieceChecksum, raw_bytes
from shardwise.files.direct import ExtentReader
from shardwise.multiply.batch import Batches
from shardwise.multiply.copy import Copy, how_to_repair, reference_of
from shardwise.multiply.lanes import Lane
from shardwise.multiply.pipeline import Feed
from shardwise.numerics import reference as references
from shardwise.plan import memory
from shardwise.plan.identity import InputFiles
from shardwise.plan.plan import Plan, Shard, Source
from shardwise.plan.stack import StackReader
from shardwise.records.timeline import Stopwatch


class Reading:
    """Reads a shard ahead, from the moment it is made, in a given number of slabs per factor.

    ``rooms`` come from `Session.rooms`.

    Attributes
    ----------
    copy
        What the receipt of the shard's copy says; None if matrices are read in place.
    right_checksum
        Of their B's, or of the one that serves all matrices; None if there is no B.
    reference
        The CPU's own number of some matrices, where no copy has it of all.

    Raises
    ------
    IntegrityError
        Where an input file is not the one that was planned for.
    """

    def __init__(
        self, plan: Plan, shard: Shard, lane: Lane, slabs: int, rooms: Sequence[Semaphore],
        watch: Stopwatch, copy: Copy | None,
    ) -> None:  # fmt: skip
        self._plan, self._shard, self._lane, self._watch = plan, shard, lane, watch
        self.copy, self.inputs = copy, InputFiles()
        self.checksum = PieceChecksum(shard.bytes, *memory.SHARD_PIECES)
        self.right_checksum = _right_checksum(plan, shard)
        self.reference: references.Reference | None = None
        with ExitStack() as stack:
            self._files = stack.enter_context(ExtentReader(opened=self.inputs.compare))
            if copy is None or copy.reference is None:
                every = references.sample_every(shard.stop - shard.start)
                self.reference = reference_of(plan, shard, every)
            self._feeds: list[Feed] = []
            for feed in self._new_feeds(slabs, rooms):
                self._feeds.append(stack.enter_context(closing(feed)))
                feed.start()
            self._open = stack.pop_all()

    def _new_feeds(self, slabs: int, rooms: Sequence[Semaphore]) -> list[Feed]:
        """The streams of A, and of B where there is one B per matrix."""
        right = self.right_checksum
        feeds = [self._feed(self._left_reader(), slabs, rooms[0], self.checksum, self.reference)]
        if right is not None and not self._plan.problem.shared_right:
            feeds.append(self._feed(self._right_reader(), slabs, rooms[1], right, None))
        return feeds

    def _feed(
        self, reader: StackReader, slabs: int, room: Semaphore, checksum: PieceChecksum,
        witness: references.Reference | None,
    ) -> Feed:  # fmt: skip
        run = self._shard.start * reader.matrix_bytes, self._shard.stop * reader.matrix_bytes
        size = pieces.slab_bytes(self._plan.problem.item)
        return Feed(
            self._lane, reader, self._files, run, size, slabs, room, checksum, witness, self._watch
        )

    def _left_reader(self) -> StackReader:
        plan, shard = self._plan, self._shard
        if plan.settings.materialize:
            path = str(plan.results.shard(shard.shard))
            sources = [Source(path, shard.start, shard.stop - shard.start, "")]
        else:
            sources = plan.sources_of(shard.start, shard.stop)
        return StackReader(sources, plan.problem.left, plan.dtype, self.inputs)

    def _right_reader(self) -> StackReader:
        plan = self._plan
        return StackReader(plan.facts.right_sources, plan.problem.right, plan.dtype, self.inputs)

    def share_right(self, batches: Batches) -> None:
        """Read the one B that serves all matrices, and bring it to the device."""
        reader, watch = self._right_reader(), self._watch
        right = watch.timed("read", lambda: reader.read(0, 1)[0])
        raw = raw_bytes(right.astype(right.dtype.newbyteorder("<"), copy=False))
        watch.timed("read", lambda: self.right_checksum.append(raw))
        watch.note("upload", batches.share(right))

    def fill(self, targets: list[Any]) -> None:
        """Copy the next bytes of each factor into the bytes of a batch."""
        for feed, target in zip(self._feeds, targets, strict=True):
            feed.fill(target)

    def release(self) -> None:
        """Wait until all bytes are copied, and no slab is held any more."""
        for feed in self._feeds:
            feed.settle()

    def __enter__(self) -> Self:
        """Close it at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Close the files, once nothing is read or copied any more."""
        with self._open:
            if kind is not None:
                self._lane.settle()  # before the next shard takes memory that copies write to

    def checked_sum(self) -> str:
        """The checksum of what was read.

        Raises
        ------
        IntegrityError
            Where it is not what the receipt of the copy says: that is damaged.
        """
        checksum = self.checksum.hexdigest()
        if self.copy is not None and self.copy.checksum != checksum:
            raise IntegrityError(
                f"{self._plan.results.shard(self._shard.shard)} is damaged: its checksum differs "
                f"from its receipt; {how_to_repair(self._plan, self._shard)}"
            )
        return checksum


def _right_checksum(plan: Plan, shard: Shard) -> PieceChecksum | None:
    problem = plan.problem
    if problem.right is None:
        return None
    count = 1 if problem.shared_right else shard.stop - shard.start
    return PieceChecksum(count * problem.right_bytes, *memory.SHARD_PIECES)
