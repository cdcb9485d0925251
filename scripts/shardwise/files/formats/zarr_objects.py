"""What zarr reads of an array in a store: the objects that were listed, each as it was then."""

import asyncio
from typing import Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from shardwise.errors import changed
from shardwise.files import remote


class ListedObjects(MemoryStore):  # type: ignore[misc] # zarr has no types here
    """Objects by their names below an array's folder, as `remote.below` has listed them.

    zarr takes what is not found for fill values. So an object that was listed and is gone, or is
    another one by now, makes it fail instead.
    """

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The bytes of an object, or a range of them; None if it was not listed."""
        listed = self._store_dict.get(key)
        if listed is None:
            return None
        begin, end = _span(listed.size, byte_range)
        try:
            raw = await asyncio.to_thread(remote.Object(listed.url, listed).take, begin, end)
        except FileNotFoundError:
            raise changed(listed.url) from None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(raw)


def _span(size: int, wanted: Any) -> tuple[int, int]:
    """Where a range of an object begins and ends."""
    if isinstance(wanted, RangeByteRequest):
        return wanted.start, min(wanted.end, size)
    if isinstance(wanted, OffsetByteRequest):
        return wanted.offset, size
    if isinstance(wanted, SuffixByteRequest):
        return max(0, size - wanted.suffix), size
    assert wanted is None
    return 0, size
