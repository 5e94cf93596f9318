"""Attachment bytes on their way in and in files."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import os
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lash_store.blobs import filesystem
from lash_store.blobs.filesystem import FilesystemBytes
from lash_store.blobs.protocol import ByteStore, verified
from lash_store.blobs.spool import CHUNK_BYTES, SPOOL_MEMORY_BYTES, Spool, spool_async
from lash_store.errors import Corrupt, InvalidArgument, LimitExceeded, NotFound, NotPermitted, StorageFull, StoreError, Unstorable
from lash_store.model.limits import Limits

LIMITS = Limits()
HELLO = hashlib.sha256(b"hello").hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: ByteStore, data: bytes) -> str:
    with Spool.of(data, LIMITS) as source:
        asyncio.run(store.put(source.digest, source))
        return source.digest


async def collect(chunks: AsyncIterator[bytes]) -> list[bytes]:
    return [chunk async for chunk in chunks]


def read(store: ByteStore, attachment_id: str, byte_len: int) -> bytes:
    return b"".join(asyncio.run(collect(verified(store.read(attachment_id), attachment_id, byte_len))))


def file_of(store: FilesystemBytes, attachment_id: str) -> Path:
    return store.root / "sha256" / attachment_id[:2] / attachment_id


@pytest.fixture
def store(tmp_path: Path) -> FilesystemBytes:
    return FilesystemBytes(tmp_path / "deep" / "attachments")


# Files


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7])
def test_bytes_come_back_in_chunks(store: FilesystemBytes, size: int) -> None:
    data = os.urandom(size)
    attachment_id = put(store, data)
    assert read(store, attachment_id, size) == data
    chunks = asyncio.run(collect(store.read(attachment_id)))
    assert [len(chunk) for chunk in chunks[:-1]] == [CHUNK_BYTES] * (len(chunks) - 1)
    assert asyncio.run(store.exists(attachment_id, size))
    assert not asyncio.run(store.exists(attachment_id, size + 1))


def test_files_are_private_and_no_temporary_one_stays(store: FilesystemBytes) -> None:
    path = file_of(store, put(store, b"hello"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for directory in (path.parent, path.parent.parent, store.root, store.root.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert list((store.root / "tmp").iterdir()) == []


def test_putting_twice_keeps_the_first_file(store: FilesystemBytes) -> None:
    path = file_of(store, put(store, b"hello"))
    inode = path.stat().st_ino
    put(store, b"hello")
    assert path.stat().st_ino == inode


@pytest.mark.parametrize("damage", [b"", b"hellO", b"hello!"])
def test_a_damaged_file_is_found_by_readers_and_healed_by_put(store: FilesystemBytes, damage: bytes) -> None:
    path = file_of(store, put(store, b"hello"))
    path.write_bytes(damage)
    with pytest.raises(Corrupt) as caught:
        read(store, HELLO, 5)
    assert caught.value.row == HELLO
    put(store, b"hello")
    assert read(store, HELLO, 5) == b"hello"


def test_delete_is_idempotent_and_missing_bytes_are_not_found(store: FilesystemBytes) -> None:
    asyncio.run(store.delete(HELLO))
    put(store, b"hello")
    asyncio.run(store.delete(HELLO))
    asyncio.run(store.delete(HELLO))
    assert not asyncio.run(store.exists(HELLO, 5))
    with pytest.raises(NotFound):
        read(store, HELLO, 5)


def test_bytes_are_stored_only_under_their_own_digest(store: FilesystemBytes) -> None:
    with Spool.of(b"hello", LIMITS) as source, pytest.raises(InvalidArgument):
        asyncio.run(store.put(sha256(b"other"), source))


HOSTILE = [
    "",
    "../../etc/passwd",
    "/etc/passwd",
    "a" * 63,
    "a" * 65,
    "A" * 64,
    "a" * 63 + "\n",
    "a" * 64 + "\n",
    "é" * 64,
    "٣" * 64,
    "a" * 63 + "/",
    "\x00" * 64,
    "x" * 10**6,
]


@pytest.mark.parametrize("attachment_id", HOSTILE)
def test_nothing_but_64_hex_digits_reaches_a_path(store: FilesystemBytes, attachment_id: str) -> None:
    with Spool.of(b"hello", LIMITS) as source:
        calls = [
            store.put(attachment_id, source),
            store.exists(attachment_id, 5),
            store.delete(attachment_id),
            collect(store.read(attachment_id)),
        ]
        for call in calls:
            with pytest.raises(NotFound) as caught:
                asyncio.run(call)
            assert len(str(caught.value)) < 500
    assert not store.root.exists()


def test_a_link_under_the_name_is_replaced_and_never_followed(store: FilesystemBytes, tmp_path: Path) -> None:
    path = file_of(store, put(store, b"hello"))
    outside = tmp_path / "outside"
    outside.write_bytes(b"hello")
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(Corrupt):
        read(store, HELLO, 5)
    assert not asyncio.run(store.exists(HELLO, 5))
    put(store, b"hello")
    assert not path.is_symlink()
    path.unlink()
    path.symlink_to(outside)
    asyncio.run(store.delete(HELLO))
    assert outside.read_bytes() == b"hello"


@pytest.mark.parametrize("level", ["sha256", HELLO[:2], "tmp"])
def test_a_linked_directory_leads_nowhere(store: FilesystemBytes, tmp_path: Path, level: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = store.root / "sha256" / level if level == HELLO[:2] else store.root / level
    place.parent.mkdir(parents=True)
    place.symlink_to(outside, target_is_directory=True)
    with pytest.raises(Corrupt):
        put(store, b"hello")
    assert list(outside.iterdir()) == []


def test_a_pipe_under_the_name_does_not_hold_the_reader(store: FilesystemBytes) -> None:
    path = file_of(store, put(store, b"hello"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Corrupt):
        read(store, HELLO, 5)
    put(store, b"hello")
    assert read(store, HELLO, 5) == b"hello"


def test_a_file_has_its_name_only_once_it_is_synced(store: FilesystemBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def sync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append(kind)

    real_rename = os.rename

    def rename(*args: Any, **kwargs: Any) -> None:
        steps.append("rename")
        real_rename(*args, **kwargs)

    put(store, b"first")
    monkeypatch.setattr(filesystem, "_sync", sync)
    monkeypatch.setattr(os, "rename", rename)
    put(store, b"hello")
    assert steps == ["file", "rename", "directory", "directory", "directory"]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EACCES, NotPermitted)])
def test_a_failed_write_is_typed_and_leaves_nothing(
    store: FilesystemBytes, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    put(store, b"first")

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "_sync", fail)
        with pytest.raises(kind):
            put(store, b"hello")
    assert list((store.root / "tmp").iterdir()) == []
    assert not asyncio.run(store.exists(HELLO, 5))
    put(store, b"hello")


def test_what_dead_writers_left_is_removed_and_live_ones_are_left_alone(store: FilesystemBytes) -> None:
    put(store, b"first")
    old, fresh = store.root / "tmp" / "old", store.root / "tmp" / "fresh"
    for path in (old, fresh):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    put(FilesystemBytes(store.root), b"hello")
    assert (old.exists(), fresh.exists()) == (False, True)


def test_a_removed_root_is_made_again_by_the_next_call(store: FilesystemBytes, tmp_path: Path) -> None:
    put(store, b"first")
    store.root.rename(tmp_path / "moved")
    with pytest.raises(Exception, match="removed meanwhile"):
        put(store, b"hello")
    put(store, b"hello")
    assert read(store, HELLO, 5) == b"hello"


def test_many_writers_of_the_same_bytes_agree(store: FilesystemBytes) -> None:
    data = os.urandom(300_000)
    failures: list[Exception] = []

    def write() -> None:
        try:
            put(FilesystemBytes(store.root), data)
        except (StoreError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert read(store, sha256(data), len(data)) == data
    assert list((store.root / "tmp").iterdir()) == []


def test_verified_holds_the_last_chunk_until_all_is_proven() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"hel"
        yield b"lO"

    async def seen() -> list[bytes]:
        stream = verified(chunks(), HELLO, 5)
        taken = [await anext(stream)]
        with pytest.raises(Corrupt):
            await anext(stream)
        return taken

    assert asyncio.run(seen()) == [b"hel"]


# Spools


class Files:
    """A file that gives at most three bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._file.read(min(size, 3))


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize(
    "data", [b"hello", bytearray(b"hello"), memoryview(b"hello"), io.BytesIO(b"hello"), Files(b"hello"), [b"he", b"", b"llo"]]
)
def test_every_kind_of_source_gives_the_same_spool(data: Any) -> None:
    with Spool.of(data, LIMITS) as source:
        assert (source.digest, source.byte_len, b"".join(source.chunks())) == (HELLO, 5, b"hello")
        assert b"".join(source.chunks()) == b"hello"


def test_async_sources_too() -> None:
    large = os.urandom(SPOOL_MEMORY_BYTES + CHUNK_BYTES + 5)
    with asyncio.run(spool_async(pieces(b"he", b"llo"), LIMITS)) as source:
        assert (source.digest, source.byte_len) == (HELLO, 5)
    with asyncio.run(spool_async(pieces(large[:7], large[7:]), LIMITS)) as source:
        assert source.digest == sha256(large)
        assert b"".join(source.chunks()) == large
    with asyncio.run(spool_async(b"hello", LIMITS)) as source:
        assert source.digest == HELLO


@pytest.mark.parametrize("data", ["hello", 5, None, [1, 2], ["a"], io.StringIO("hello"), io.StringIO(""), Path("/etc/passwd")])
def test_what_is_not_bytes_is_refused(data: Any) -> None:
    with pytest.raises(Unstorable):
        Spool.of(data, LIMITS)


def test_an_endless_source_stops_at_the_limit() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 1000

    async def endless_async() -> AsyncIterator[bytes]:
        for chunk in endless():
            yield chunk

    limits = Limits(attachment_bytes=10_000)
    with pytest.raises(LimitExceeded):
        Spool.of(endless(), limits)
    with pytest.raises(LimitExceeded):
        asyncio.run(spool_async(endless_async(), limits))
    with pytest.raises(LimitExceeded):
        Spool.of(b"x" * 10_001, limits)
    Spool.of(b"x" * 10_000, limits).close()
