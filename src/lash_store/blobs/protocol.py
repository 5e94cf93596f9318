"""What a place for attachment bytes must do. Bytes are named by their sha256 and never change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from typing import Protocol

from lash_store.blobs.spool import Spool
from lash_store.errors import Corrupt, InvalidArgument, NotFound

_ID = re.compile(r"[0-9a-f]{64}")
_ID_SHOWN_CHARS = 80  # an error names a hostile id without repeating all of it


class ByteStore(Protocol):
    """Keeps bytes by their sha256. Every method raises NotFound for an id that is not 64 hex digits."""

    @property
    def durable(self) -> bool:
        """Whether bytes survive the process once `put` has returned."""
        ...

    async def put(self, attachment_id: str, source: Spool) -> None:
        """Keep the bytes. Idempotent: bytes already there are verified, and replaced if they are damaged."""
        ...

    async def exists(self, attachment_id: str, byte_len: int) -> bool:
        """Whether bytes of this name and length are there. Their content is verified by `put` and by readers."""
        ...

    def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        """The bytes in chunks of at most 1 MiB, unverified (see `verified`). NotFound if they are missing."""
        ...

    async def delete(self, attachment_id: str) -> None:
        """Remove the bytes, if they are there."""
        ...


def checked_id(attachment_id: str) -> str:
    """The id, once it is 64 lower-case hex digits. Nothing else may reach a path or a key."""
    if not isinstance(attachment_id, str) or not _ID.fullmatch(attachment_id):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise NotFound("attachment", str(attachment_id)[:_ID_SHOWN_CHARS])
    return attachment_id


def checked_source(attachment_id: str, source: Spool) -> None:
    """Refuse to keep bytes under a name that is not their digest."""
    if source.digest != checked_id(attachment_id):
        raise InvalidArgument("attachment_id", "is not the sha256 of the bytes")


class Verifier:
    """Digest and length of a stream, compared with its name as it passes."""

    def __init__(self, attachment_id: str, byte_len: int) -> None:
        self._attachment_id = attachment_id
        self._byte_len = byte_len
        self._seen_bytes = 0
        self._state = hashlib.sha256()

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk. Corrupt as soon as there are more bytes than there should be."""
        self._seen_bytes += len(chunk)
        if self._seen_bytes > self._byte_len:
            self._refuse(f"it holds more than its {self._byte_len} bytes")
        self._state.update(chunk)

    def finish(self) -> None:
        """Corrupt unless exactly the named bytes passed."""
        if self._seen_bytes != self._byte_len:
            self._refuse(f"it holds {self._seen_bytes} of {self._byte_len} bytes")
        if self._state.hexdigest() != self._attachment_id:
            self._refuse("its content does not match its digest")

    def _refuse(self, why: str) -> None:
        raise Corrupt("attachments", self._attachment_id, why)


async def verified(chunks: AsyncIterator[bytes], attachment_id: str, byte_len: int) -> AsyncIterator[bytes]:
    """The chunks, or Corrupt at their end. The last chunk leaves only after all were verified."""
    verifier = Verifier(attachment_id, byte_len)
    held = b""
    async for chunk in chunks:
        verifier.feed(chunk)
        if held:
            yield held
        held = chunk
    verifier.finish()
    if held:
        yield held
