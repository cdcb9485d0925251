"""Hooks for zarr: check each chunk before it is decoded, and read objects as they were listed.

Imported only when an array is read, since it imports zarr.
"""

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import zarr
import zarr.registry
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.storage import MemoryStore

from shardwise.errors import changed
from shardwise.files import remote
from shardwise.files.formats import streams
from shardwise.units import MIB


class CountedPipeline(BatchedCodecPipeline):  # type: ignore[misc] # zarr has no types here
    """Refuses a chunk, also inside a shard, that decodes to many more bytes than its shape has."""

    async def decode_batch(self, chunk_bytes_and_specs: Iterable[tuple[Any, Any]]) -> Any:
        """Decode as zarr does, after the check."""
        pairs, last = list(chunk_bytes_and_specs), self.bytes_bytes_codecs
        if not last:
            own: Any = self.array_bytes_codec  # of version 2: filters and compressor are in it
            last = (*(getattr(own, "filters", None) or ()), getattr(own, "compressor", None))
        present = [codec for codec in last if codec is not None]
        outermost = streams.plain_names(
            getattr(codec, "codec_id", None) or codec.to_dict()["name"] for codec in present
        )[-1:]
        if streams.COUNTED.keys() & outermost:
            await asyncio.to_thread(_refuse_bombs, outermost[0], pairs)
        return await super().decode_batch(pairs)


def _refuse_bombs(kind: str, pairs: list[tuple[Any, Any]]) -> None:
    for chunk, spec in pairs:
        if chunk is None:  # never written
            continue
        nbytes = math.prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
        most = 2 * nbytes + MIB  # filters may widen numbers
        if streams.COUNTED[kind](chunk.to_bytes(), most) > most:
            raise ValueError(f"it decodes to many more than its {nbytes} bytes")


zarr.registry.register_pipeline(CountedPipeline)
# For the whole process: a temporary setting would also apply to the other threads.
zarr.config.set({
    "codec_pipeline.path": f"{__name__}.{CountedPipeline.__qualname__}",
    "async.concurrency": 4,  # chunks that are decoded at once
})  # fmt: skip


class ListedObjects(MemoryStore):  # type: ignore[misc] # zarr has no types here
    """Objects by their names below an array's folder, as `remote.below` has listed them.

    For an object that is not found, zarr reads fill values. So reading an object that was listed,
    but is gone or has changed since, fails instead.
    """

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The bytes of an object, or a range of them; None if it was not listed."""
        listed = self._store_dict.get(key)
        if listed is None:
            return None
        begin, end = 0, listed.size
        match byte_range:
            case RangeByteRequest(start, stop):
                begin, end = start, stop
            case OffsetByteRequest(start):
                begin = start
            case SuffixByteRequest(length):
                begin = max(0, end - length)
        try:
            raw = await asyncio.to_thread(remote.Object(listed.url, listed).take, begin, end)
        except FileNotFoundError:
            raise changed(listed.url) from None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(raw)
