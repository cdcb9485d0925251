"""Objects of a Zarr array as zarr reads them. Imported only for one, as it imports zarr."""

import asyncio
from typing import Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from shardwise.errors import changed
from shardwise.files import remote


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
