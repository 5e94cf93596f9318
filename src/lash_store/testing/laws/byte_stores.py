"""Laws of byte stores: bytes named by their sha256, which never change, and are never taken for others."""

from __future__ import annotations

import asyncio
import hashlib

from lash_store.blobs.protocol import ByteStore, verified
from lash_store.blobs.spool import CHUNK_BYTES, Spool
from lash_store.errors import Corrupt, InvalidArgument, NotFound
from lash_store.model.limits import DEFAULT_LIMITS
from lash_store.testing.backend import ByteBackend
from lash_store.testing.steps import refused

SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 7)
NO_IDS = ("", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 63 + "\n", "a/" * 32, "é" * 64)
HELLO, WORLD = b"hello", b"world"


async def bytes_come_back_as_they_went_in(backend: ByteBackend) -> None:
    """Of any length, none included, in chunks of at most 1 MiB."""
    store = await backend.open()
    for size in SIZES:
        data = (b"0123456789abcdef!" * (size // 17 + 1))[:size]
        name = await _put(store, data)
        chunks = [chunk async for chunk in store.read(name)]
        assert b"".join(chunks) == data, f"{size} bytes came back changed"
        assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks), f"a chunk of {size} bytes is empty or longer than 1 MiB"
        assert await store.exists(name, size), f"{size} bytes were put, and do not exist"


async def bytes_are_there_for_another_handle(backend: ByteBackend) -> None:
    """What one handle put, one opened later reads."""
    await _put(await backend.open(), HELLO)
    assert await _has(await backend.open(), HELLO), "another handle does not find them"


async def bytes_are_kept_only_under_their_own_digest(backend: ByteBackend) -> None:
    """A name that is not the sha256 of the bytes is refused, and nothing is kept under it."""
    store = await backend.open()
    other = _name(WORLD)
    with _spooled(HELLO) as source, refused(InvalidArgument):
        await store.put(other, source)
    assert not await store.exists(other, len(HELLO))
    with refused(NotFound):
        await _read(store, other, len(HELLO))


async def only_64_hex_digits_are_a_name(backend: ByteBackend) -> None:
    """Anything else is NotFound to every verb, so that nothing a caller writes becomes a path or a key."""
    store = await backend.open()
    for name in NO_IDS:
        with refused(NotFound):
            await _read(store, name, 1)
        with refused(NotFound):
            await store.exists(name, 1)
        with refused(NotFound):
            await store.delete(name)
        with _spooled(HELLO) as source, refused(NotFound):
            await store.put(name, source)


async def bytes_nobody_put_are_not_found(backend: ByteBackend) -> None:
    """They do not exist, cannot be read, and are not the empty bytes."""
    store = await backend.open()
    for data in (HELLO, b""):
        assert not await store.exists(_name(data), len(data)), f"nobody put {data!r}, and it exists"
        with refused(NotFound):
            await _read(store, _name(data), len(data))


async def bytes_of_another_length_do_not_exist(backend: ByteBackend) -> None:
    """A name is asked for with its length; what was cut off is not there."""
    store = await backend.open()
    name = await _put(store, HELLO)
    assert not await store.exists(name, len(HELLO) - 1)
    assert not await store.exists(name, len(HELLO) + 1)


async def putting_again_changes_nothing(backend: ByteBackend) -> None:
    """A put whose answer was lost is repeated."""
    store = await backend.open()
    assert await _put(store, HELLO) == await _put(store, HELLO)
    assert await _has(store, HELLO)


async def damaged_bytes_are_noticed_and_healed_by_a_put(backend: ByteBackend) -> None:
    """Readers refuse them as corrupt; putting the right ones again repairs them, whatever the damage left."""
    store = await backend.open()
    for damage in (b"hellO", b"hell", b"hello!"):
        name = await _put(store, HELLO)
        await backend.damage(name, damage)
        with refused(Corrupt):
            await _read(store, name, len(HELLO))
        await _put(store, HELLO)
        assert await _has(store, HELLO), f"a put did not repair {damage!r}"


async def deleting_removes_the_named_bytes_and_no_others(backend: ByteBackend) -> None:
    """Twice is once, and what was never there is no error."""
    store = await backend.open()
    gone, _ = await _put(store, HELLO), await _put(store, WORLD)
    for _ in range(2):
        await store.delete(gone)
        assert not await store.exists(gone, len(HELLO)), "deleted bytes exist"
    with refused(NotFound):
        await _read(store, gone, len(HELLO))
    assert await _has(store, WORLD), "other bytes went with them"
    await _put(store, HELLO)
    assert await _has(store, HELLO)


async def many_writers_of_the_same_bytes_agree(backend: ByteBackend) -> None:
    """Puts at once, from two handles, leave the bytes once and whole."""
    stores = [await backend.open(), await backend.open()]
    data = b"x" * (CHUNK_BYTES + 1)
    names = await asyncio.gather(*(_put(stores[i % 2], data) for i in range(8)))
    assert set(names) == {_name(data)}
    assert await _has(stores[0], data)


async def a_reader_that_stops_early_holds_nothing(backend: ByteBackend) -> None:
    """After the first chunk it may go; the bytes can be read again, and deleted."""
    store = await backend.open()
    data = b"y" * (2 * CHUNK_BYTES)
    name = await _put(store, data)
    async for _ in store.read(name):
        break
    assert await _has(store, data)
    await store.delete(name)
    assert not await store.exists(name, len(data))


async def a_store_keeps_its_attachments_there(backend: ByteBackend) -> None:
    """An attachment put through a store is read through another one that has the same bytes."""
    from lash_store import AsyncStore

    bytes_of = await backend.open()
    assert isinstance(bytes_of.durable, bool), "durable must be True or False"
    async with AsyncStore.open("sqlite://:memory:", blobs=bytes_of) as store:
        await store.sessions.create("s")
        ref = await store.attachments.put("s", HELLO, media_type="text/plain")
        assert ref.attachment_id == _name(HELLO)
        assert await store.attachments.get("s", ref.attachment_id) == HELLO
    assert await _has(await backend.open(), HELLO)


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _spooled(data: bytes) -> Spool:
    return Spool.of(data, DEFAULT_LIMITS)


async def _put(store: ByteStore, data: bytes) -> str:
    with _spooled(data) as source:
        await store.put(source.digest, source)
        return source.digest


async def _read(store: ByteStore, name: str, byte_len: int) -> bytes:
    return b"".join([chunk async for chunk in verified(store.read(name), name, byte_len)])


async def _has(store: ByteStore, data: bytes) -> bool:
    """Whether exactly these bytes are there."""
    try:
        return await _read(store, _name(data), len(data)) == data
    except (NotFound, Corrupt):
        return False
