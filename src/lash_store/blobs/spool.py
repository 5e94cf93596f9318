"""Bytes on their way in: measured and hashed before anything is stored, small ones in memory, large ones in a temporary file."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import tempfile
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol, Self, cast

from lash_store.errors import LimitExceeded, StorageFull, Unavailable, Unstorable
from lash_store.model.limits import MIB, Limits

CHUNK_BYTES = MIB  # one step of every stream; the database stores chunks of exactly this size
SPOOL_MEMORY_BYTES = 8 * MIB  # above it a spool moves to a temporary file
_PATH = "data"
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Readable(Protocol):
    """A binary file, as far as a spool needs one."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""
        ...


Source = bytes | bytearray | memoryview | Readable | Iterable[bytes]


class Spool:
    """Bytes with their digest and length, readable any number of times. Closing it frees them."""

    def __init__(self, file: BinaryIO, *, digest: str, byte_len: int) -> None:
        self._file = file
        self.digest = digest
        self.byte_len = byte_len

    @classmethod
    def of(cls, data: Source, limits: Limits) -> Spool:
        """Take all of `data`, at most `attachment_bytes`. The caller's file or iterable is used up, not closed."""
        if isinstance(data, bytes | bytearray | memoryview):
            return _in_memory(data, limits)
        with _Filler(limits) as filler:
            for chunk in _pieces(data):
                filler.add(chunk)
            return filler.spool()

    def chunks(self) -> Iterator[bytes]:
        """The bytes from the start, in chunks of 1 MiB, the last one shorter. One iterator at a time."""
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_BYTES):
            yield chunk

    def close(self) -> None:
        """Free the memory or the temporary file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def spool_async(data: Source | AsyncIterable[bytes], limits: Limits) -> Spool:
    """`Spool.of` for async callers, who may also pass an async iterable. Hashing and disk work happen in threads."""
    if not isinstance(data, AsyncIterable):
        return await asyncio.to_thread(Spool.of, data, limits)
    with _Filler(limits) as filler:
        pending = bytearray()
        async for chunk in data:
            pending += filler.admit(chunk, ahead=len(pending))
            # A thread hop per network-sized piece would cost more than the piece.
            if len(pending) >= CHUNK_BYTES:
                await asyncio.to_thread(filler.add, bytes(pending))
                pending.clear()
        await asyncio.to_thread(filler.add, bytes(pending))
        return filler.spool()


class _Filler:
    """A spool being filled. Leaving it without having taken the spool removes the temporary file."""

    def __init__(self, limits: Limits) -> None:
        self._maximum = limits.attachment_bytes
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_MEMORY_BYTES)  # noqa: SIM115  closed by __exit__ or by the spool
        self._state = hashlib.sha256()
        self._byte_len = 0
        self._taken = False

    def admit(self, chunk: object, *, ahead: int = 0) -> bytes:
        """The chunk, if it is bytes and fits after `ahead` more bytes."""
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise Unstorable(_PATH, f"must consist of bytes, got {type(chunk).__name__}")
        data = bytes(cast("bytes", chunk))
        _check_size(self._byte_len + ahead + len(data), self._maximum)
        return data

    def add(self, chunk: object) -> None:
        data = self.admit(chunk)
        self._state.update(data)
        self._byte_len += len(data)
        with typed():
            self._file.write(data)

    def spool(self) -> Spool:
        # A full disk is found here, not by whoever reads the spool.
        with typed():
            self._file.flush()
        self._taken = True
        return Spool(cast("BinaryIO", self._file), digest=self._state.hexdigest(), byte_len=self._byte_len)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._taken:
            self._file.close()


def _in_memory(data: bytes | bytearray | memoryview[Any], limits: Limits) -> Spool:
    _check_size(memoryview(data).nbytes, limits.attachment_bytes)
    # No copy of bytes; of a buffer its owner could still change, yes.
    own = bytes(data)
    return Spool(io.BytesIO(own), digest=hashlib.sha256(own).hexdigest(), byte_len=len(own))


def _pieces(data: object) -> Iterator[object]:
    read = getattr(data, "read", None)
    if callable(read):
        return _file_pieces(read)
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise Unstorable(_PATH, f"must be bytes, a binary file or an iterable of bytes, got {type(data).__name__}")
    return iter(cast("Iterable[Any]", data))


def _file_pieces(read: Callable[[int], object]) -> Iterator[object]:
    # The last, empty piece is passed on too: a text file's "" and a non-blocking file's None are refused, not an end.
    piece: object = read(CHUNK_BYTES)
    while piece:
        yield piece
        piece = read(CHUNK_BYTES)
    yield piece


def _check_size(size: int, maximum: int) -> None:
    if size > maximum:
        raise LimitExceeded("attachment_bytes", maximum=maximum, actual=f"at least {size} bytes", path=_PATH)


@contextmanager
def typed() -> Generator[None]:
    """Failures of a temporary file in the store's terms."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if error.errno in DISK_FULL:
            raise StorageFull(f"the directory for temporary files: {reason}") from error
        raise Unavailable(f"cannot write a temporary file: {reason}. Nothing was stored; repeat the call.") from error
