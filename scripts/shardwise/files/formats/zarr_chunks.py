"""What zarr decodes chunks by, with a look at each before: it may decode to gigabytes."""

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import zarr
import zarr.registry
from zarr.core.codec_pipeline import BatchedCodecPipeline

from shardwise.files.formats import streams
from shardwise.units import MIB


class CountedPipeline(BatchedCodecPipeline):  # type: ignore[misc] # zarr has no types here
    """Refuses a chunk, or a chunk inside a shard, that decodes to many more bytes than it has."""

    async def decode_batch(self, chunk_bytes_and_specs: Iterable[tuple[Any, Any]]) -> Any:
        """As that of zarr, after the look."""
        pairs = list(chunk_bytes_and_specs)
        kind = self._outermost()
        if kind in streams.COUNTED:
            await asyncio.to_thread(_refuse_bombs, kind, pairs)
        return await super().decode_batch(pairs)

    def _outermost(self) -> str:
        """The codec by which bytes are decoded first, but for a checksum behind them."""
        codecs = [codec.to_dict()["name"] for codec in self.bytes_bytes_codecs]
        if not codecs:
            own: Any = self.array_bytes_codec  # of version 2: filters and compressor are in it
            parts = (*(getattr(own, "filters", None) or ()), getattr(own, "compressor", None))
            codecs = [part.codec_id for part in parts if part is not None]
        names = [name.removeprefix("numcodecs.") for name in codecs if name != "crc32c"]
        return names[-1] if names else ""


def _refuse_bombs(kind: str, pairs: list[tuple[Any, Any]]) -> None:
    for chunk, spec in pairs:
        if chunk is None:  # it was never written
            continue
        nbytes = math.prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
        most = 2 * nbytes + MIB  # filters may widen numbers
        if streams.decoded_bytes(kind, chunk.to_bytes(), most) > most:
            raise ValueError(f"it decodes to many more than its {nbytes} bytes")


zarr.registry.register_pipeline(CountedPipeline)
# For this process: a setting for some lines would be that of its other threads, too.
zarr.config.set({
    "codec_pipeline.path": f"{__name__}.{CountedPipeline.__qualname__}",
    "async.concurrency": 4,  # chunks that are decoded at once
})  # fmt: skip
