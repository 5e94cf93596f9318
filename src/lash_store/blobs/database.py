"""Attachment bytes in the database itself, in chunks of 1 MiB: one backup holds everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from lash_store.blobs.protocol import checked_id, checked_source
from lash_store.blobs.spool import CHUNK_BYTES, Spool
from lash_store.errors import NotFound
from lash_store.ops.attachments import chunk, put_chunk, stored_bytes

Run = Callable[..., Awaitable[Any]]


class DatabaseBytes:
    """Reads and writes chunk rows through the store's own operations, one short transaction per chunk.

    A put that was cut off leaves chunks behind; repeating it writes the same rows again.
    """

    def __init__(self, read: Run, write: Run, *, durable: bool = True) -> None:
        self._read = read
        self._write = write
        self.durable = durable

    async def put(self, attachment_id: str, source: Spool) -> None:
        """Write every chunk. An empty attachment is one empty chunk, so that it differs from a missing one."""
        checked_source(attachment_id, source)
        chunks = source.chunks()
        ordinal = 0
        data = await asyncio.to_thread(next, chunks, b"")
        while data or ordinal == 0:
            await self._write(put_chunk, attachment_id, ordinal, data)
            ordinal += 1
            data = await asyncio.to_thread(next, chunks, b"")

    async def exists(self, attachment_id: str, byte_len: int) -> bool:
        """Whether chunks of this total length are there."""
        stored: int = await self._read(stored_bytes, checked_id(attachment_id))
        if stored or byte_len:
            return stored == byte_len
        return await self._chunk(attachment_id, 0) is not None

    async def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        """The chunks in order. A chunk missing in between ends the stream; the reader's verification finds it."""
        data = await self._chunk(checked_id(attachment_id), 0)
        if data is None:
            raise NotFound("attachment", attachment_id)
        ordinal = 0
        while data:
            yield data
            ordinal += 1
            data = await self._chunk(attachment_id, ordinal) if len(data) == CHUNK_BYTES else None

    async def delete(self, attachment_id: str) -> None:
        """Nothing: the sweep deletes the chunks in the transaction that forgets the digest."""
        checked_id(attachment_id)

    async def _chunk(self, attachment_id: str, ordinal: int) -> bytes | None:
        data: bytes | None = await self._read(chunk, attachment_id, ordinal)
        return None if data is None else bytes(data)
