"""A byte store that is not one of ours: a dictionary. It shows the whole of what a byte store must do."""

from __future__ import annotations

from collections.abc import AsyncIterator

from lash_store.blobs.protocol import checked_id, checked_source
from lash_store.blobs.spool import CHUNK_BYTES, Spool
from lash_store.errors import NotFound


class ShelfBytes:
    """Bytes in a dictionary that the caller keeps."""

    durable = False

    def __init__(self, shelf: dict[str, bytes]) -> None:
        self._shelf = shelf

    async def put(self, attachment_id: str, source: Spool) -> None:
        """Keep the bytes; what was there under the name, damaged or not, is replaced by the same."""
        checked_source(attachment_id, source)
        self._shelf[attachment_id] = b"".join(source.chunks())

    async def exists(self, attachment_id: str, byte_len: int) -> bool:
        """Whether bytes of this name and length are there."""
        data = self._shelf.get(checked_id(attachment_id))
        return data is not None and len(data) == byte_len

    async def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        """The bytes in chunks of 1 MiB."""
        data = self._shelf.get(checked_id(attachment_id))
        if data is None:
            raise NotFound("attachment", attachment_id)
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]

    async def delete(self, attachment_id: str) -> None:
        """Remove the bytes, if they are there."""
        self._shelf.pop(checked_id(attachment_id), None)
