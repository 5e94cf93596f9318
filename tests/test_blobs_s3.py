"""Attachment bytes in a bucket, on a real server of the protocol: the laws of files, and what only a network does."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from importlib.abc import MetaPathFinder
from typing import Any

import pytest

from lash_store import AsyncStore, Store
from lash_store.blobs.protocol import ByteStore, verified
from lash_store.blobs.s3 import PART_BYTES, S3Bytes
from lash_store.blobs.s3_errors import library
from lash_store.blobs.spool import CHUNK_BYTES, Spool
from lash_store.errors import Corrupt, InvalidArgument, Misuse, NotFound, NotPermitted, StoreError, Unavailable
from lash_store.model.limits import Limits
from tests.support.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, s3_store

pytestmark = pytest.mark.xdist_group("s3")  # one server, not one per worker

LIMITS = Limits()
HELLO = hashlib.sha256(b"hello").hexdigest()
LARGE = PART_BYTES + 3 * CHUNK_BYTES + 7


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """One server for all of these tests."""
    running = S3Server()
    yield running
    running.end()


@pytest.fixture
def store(server: S3Server) -> S3Bytes:
    """A byte store in a fresh bucket."""
    server.reset()
    server.client.create_bucket(Bucket=BUCKET)
    return server.store(prefix="deep/attachments")


def key_of(attachment_id: str) -> str:
    return f"deep/attachments/sha256/{attachment_id[:2]}/{attachment_id}"


def keys_in(server: S3Server) -> list[str]:
    return [each["Key"] for each in server.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def uploads_in(server: S3Server) -> list[Any]:
    found: list[Any] = server.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    return found


def overwrite(server: S3Server, attachment_id: str, data: bytes) -> None:
    server.client.put_object(Bucket=BUCKET, Key=key_of(attachment_id), Body=data)


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


# The laws of every byte store


SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, LARGE]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_come_back_in_chunks(store: S3Bytes, size: int) -> None:
    data = os.urandom(size)
    attachment_id = put(store, data)
    chunks = asyncio.run(collect(verified(store.read(attachment_id), attachment_id, size)))
    assert b"".join(chunks) == data
    assert [len(chunk) for chunk in chunks[:-1]] == [CHUNK_BYTES] * (len(chunks) - 1)
    assert asyncio.run(store.exists(attachment_id, size))
    assert not asyncio.run(store.exists(attachment_id, size + 1))


def test_an_object_has_its_digest_as_its_name_below_the_prefix(store: S3Bytes, server: S3Server) -> None:
    put(store, b"hello")
    put(server.store(prefix=""), b"hello")
    put(server.store(prefix="/a/b/"), b"hello")
    tail = f"sha256/{HELLO[:2]}/{HELLO}"
    assert keys_in(server) == [f"a/b/{tail}", f"deep/attachments/{tail}", tail]


@pytest.mark.parametrize("size", [5, LARGE])
def test_putting_twice_keeps_the_first_object(store: S3Bytes, size: int) -> None:
    attachment_id = put(store, bytes(size))
    asked: list[str] = []

    async def again() -> None:
        client = await client_of(store)
        client.meta.events.register("before-call.s3", lambda model, **_: asked.append(model.name))  # pyright: ignore
        with Spool.of(bytes(size), LIMITS) as source:
            await store.put(attachment_id, source)

    asyncio.run(again())
    assert asked == ["HeadObject"]


async def client_of(store: S3Bytes) -> Any:
    """The library's client of this loop, to watch it or to break it."""
    return await store._clients.here()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("damage", [b"", b"hellO", b"hello!"])
def test_a_damaged_object_is_found_by_readers_and_healed_by_put(store: S3Bytes, server: S3Server, damage: bytes) -> None:
    put(store, b"hello")
    overwrite(server, HELLO, damage)
    with pytest.raises(Corrupt) as caught:
        read(store, HELLO, 5)
    assert caught.value.row == HELLO
    put(store, b"hello")
    assert read(store, HELLO, 5) == b"hello"


def test_a_damaged_object_of_many_parts_is_found_and_healed(store: S3Bytes, server: S3Server) -> None:
    data = os.urandom(LARGE)
    attachment_id = put(store, data)
    overwrite(server, attachment_id, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Corrupt):
        read(store, attachment_id, LARGE)
    put(store, data)
    assert read(store, attachment_id, LARGE) == data


def test_delete_is_idempotent_and_missing_bytes_are_not_found(store: S3Bytes) -> None:
    asyncio.run(store.delete(HELLO))
    put(store, b"hello")
    asyncio.run(store.delete(HELLO))
    asyncio.run(store.delete(HELLO))
    assert not asyncio.run(store.exists(HELLO, 5))
    with pytest.raises(NotFound):
        read(store, HELLO, 5)


def test_bytes_are_stored_only_under_their_own_digest(store: S3Bytes) -> None:
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
    "a" * 61 + "%2f",
    "a" * 63 + "?",
    "\x00" * 64,
    "x" * 10**6,
]


@pytest.mark.parametrize("attachment_id", HOSTILE)
def test_nothing_but_64_hex_digits_reaches_a_key(attachment_id: str) -> None:
    nowhere = s3_store(f"http://127.0.0.1:{closed_port()}")
    with Spool.of(b"hello", LIMITS) as source:
        calls = [
            nowhere.put(attachment_id, source),
            nowhere.exists(attachment_id, 5),
            nowhere.delete(attachment_id),
            collect(nowhere.read(attachment_id)),
        ]
        for call in calls:
            with pytest.raises(NotFound) as caught:
                asyncio.run(call)
            assert len(str(caught.value)) < 500


def test_many_writers_of_the_same_bytes_agree(store: S3Bytes, server: S3Server) -> None:
    data = os.urandom(LARGE)
    failures: list[Exception] = []

    def write() -> None:
        try:
            put(store, data)
        except (StoreError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert read(store, sha256(data), len(data)) == data
    assert uploads_in(server) == []


def test_bytes_that_changed_on_their_way_are_not_stored(store: S3Bytes, server: S3Server) -> None:
    for size in (5, LARGE):
        with Spool.of(os.urandom(size), LIMITS) as source:
            source.chunks = Spool.of(bytes(size), LIMITS).chunks
            with pytest.raises(Corrupt):
                asyncio.run(store.put(source.digest, source))
    assert (keys_in(server), uploads_in(server)) == ([], [])


# What only a network does


def closed_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def calls_of(store: S3Bytes, source: Spool) -> list[Callable[[], Awaitable[Any]]]:
    return [
        lambda: store.put(HELLO, source),
        lambda: store.exists(HELLO, 5),
        lambda: store.delete(HELLO),
        lambda: collect(store.read(HELLO)),
    ]


def outcomes(store: S3Bytes) -> list[Exception]:
    """What each of the four calls raises."""
    raised: list[Exception] = []
    with Spool.of(b"hello", LIMITS) as source:
        for call in calls_of(store, source):
            with pytest.raises(StoreError) as caught:
                asyncio.run(awaited(call))
            raised.append(caught.value)
    return raised


async def awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    for error in outcomes(s3_store(f"http://127.0.0.1:{closed_port()}")):
        assert isinstance(error, Unavailable)
        assert "Repeat the call" in str(error)
        assert_no_secret(error)


def test_a_server_that_never_answers_is_unavailable() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        store = s3_store(f"http://127.0.0.1:{silent.getsockname()[1]}", read_ms=200)
        for error in outcomes(store):
            assert isinstance(error, Unavailable)


def test_keys_the_server_does_not_know_are_not_permitted_and_not_shown(store: S3Bytes, server: S3Server) -> None:
    server.demand_keys()
    for error in outcomes(store):
        assert isinstance(error, NotPermitted)
        assert "403" in str(error)
        assert "ListBucket" in str(error)
        assert_no_secret(error)
    assert_no_secret(repr(store))


def assert_no_secret(said: object) -> None:
    text = "".join(traceback.format_exception(said)) if isinstance(said, BaseException) else str(said)
    for secret in (SECRET_KEY, ACCESS_KEY, "Signature="):
        assert secret not in text


def test_a_bucket_that_is_not_there_is_named(store: S3Bytes, server: S3Server) -> None:
    elsewhere = server.store(bucket="nobodys")
    for call in (
        lambda: put(elsewhere, b"hello"),
        lambda: read(elsewhere, HELLO, 5),
        lambda: asyncio.run(elsewhere.delete(HELLO)),
    ):
        with pytest.raises(NotFound) as caught:
            call()
        assert (caught.value.kind, caught.value.id) == ("bucket", "nobodys")
    assert not asyncio.run(elsewhere.exists(HELLO, 5))


def test_no_credentials_anywhere_is_said(store: S3Bytes, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(NotPermitted, match="no credentials"):
        put(server.store(access_key=None, secret_key=None), b"hello")


def test_keys_of_the_environment_are_found(store: S3Bytes, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    put(server.store(access_key=None, secret_key=None), b"hello")


def test_arguments_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="together"):
        S3Bytes("bucket", access_key="only")
    for prefix in ("a/../b", "a\nb", "x" * 600):
        with pytest.raises(InvalidArgument, match="prefix"):
            S3Bytes("bucket", prefix=prefix)
    for url in ("ftp://host", "host:9000", "http://", f"http://user:{SECRET_KEY}@host"):
        with pytest.raises(InvalidArgument, match="endpoint_url") as caught:
            S3Bytes("bucket", endpoint_url=url)
        assert_no_secret(caught.value)
    with pytest.raises(InvalidArgument, match="bucket"):
        put(s3_store("http://127.0.0.1:1", bucket="no bucket/../x"), b"hello")


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [NothingOfAmazon(), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiobotocore"]:
        monkeypatch.delitem(sys.modules, name)
    library.cache_clear()
    with pytest.raises(Misuse, match=r"lash-store\[s3\]"):
        S3Bytes("bucket")


class NothingOfAmazon(MetaPathFinder):
    """Finds aiobotocore missing."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "aiobotocore":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


# Cancellation


class Halting(Spool):
    """A spool whose bytes stop coming after the first part, until told to go on."""

    def __init__(self, whole: Spool) -> None:
        self.digest, self.byte_len = whole.digest, whole.byte_len
        self._whole = whole
        self.halted = threading.Event()
        self.go_on = threading.Event()
        self.reads = 0

    def chunks(self) -> Iterator[bytes]:
        self.reads += 1
        for index, chunk in enumerate(self._whole.chunks()):
            # The first reading makes the checksum.
            if self.reads == 2 and (index + 1) * CHUNK_BYTES > PART_BYTES:
                self.halted.set()
                self.go_on.wait(30)
            yield chunk


def test_a_cancelled_upload_leaves_no_parts_and_can_be_repeated(store: S3Bytes, server: S3Server) -> None:
    data = os.urandom(LARGE)

    async def cancelled() -> None:
        with Spool.of(data, LIMITS) as whole:
            source = Halting(whole)
            upload = asyncio.create_task(store.put(source.digest, source))
            await asyncio.to_thread(source.halted.wait, 30)
            assert len(await asyncio.to_thread(uploads_in, server)) == 1
            upload.cancel()
            with pytest.raises(asyncio.CancelledError):
                await upload
            source.go_on.set()

    asyncio.run(cancelled())
    assert (keys_in(server), uploads_in(server)) == ([], [])
    assert read(store, put(store, data), LARGE) == data


def test_an_upload_that_fails_in_the_middle_leaves_no_parts(store: S3Bytes, server: S3Server) -> None:
    class Broken(Halting):
        def chunks(self) -> Iterator[bytes]:
            for chunk in super().chunks():
                if self.halted.is_set():
                    raise OSError("the temporary file is gone")
                yield chunk

    with Spool.of(os.urandom(LARGE), LIMITS) as whole:
        source = Broken(whole)
        source.go_on.set()
        with pytest.raises(Unavailable):
            asyncio.run(store.put(source.digest, source))
    assert (keys_in(server), uploads_in(server)) == ([], [])


def test_an_abort_that_fails_is_logged_and_hides_nothing(
    store: S3Bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing() -> None:
        client = await client_of(store)

        async def fail(**_: object) -> None:
            raise OSError("no network any more")

        monkeypatch.setattr(client, "upload_part", fail)
        monkeypatch.setattr(client, "abort_multipart_upload", fail)
        with Spool.of(bytes(LARGE), LIMITS) as source:
            await store.put(source.digest, source)

    with caplog.at_level(logging.WARNING, "lash_store"), pytest.raises(Unavailable):
        asyncio.run(failing())
    assert "unfinished upload" in caplog.text


def test_a_lost_answer_to_the_last_request_is_no_failure(store: S3Bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(LARGE)

    async def lost() -> None:
        client = await client_of(store)
        complete = client.complete_multipart_upload

        async def twice(**arguments: Any) -> None:
            await complete(**arguments)
            await complete(**arguments)

        monkeypatch.setattr(client, "complete_multipart_upload", twice)
        with Spool.of(data, LIMITS) as source:
            await store.put(source.digest, source)

    asyncio.run(lost())
    assert read(store, sha256(data), LARGE) == data


def test_a_cancelled_or_forgotten_reader_holds_nothing(store: S3Bytes) -> None:
    attachment_id = put(store, os.urandom(LARGE))

    async def forgotten() -> None:
        for _ in range(30):  # more than the client has connections
            await anext(store.read(attachment_id))
        reader = asyncio.create_task(collect(store.read(attachment_id)))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert len(await collect(store.read(attachment_id))) == -(-LARGE // CHUNK_BYTES)

    asyncio.run(forgotten())


def test_an_object_replaced_between_two_windows_is_not_mixed(store: S3Bytes, server: S3Server) -> None:
    attachment_id = put(store, os.urandom(LARGE))

    async def replaced() -> None:
        reader = store.read(attachment_id)
        await anext(reader)
        await asyncio.to_thread(overwrite, server, attachment_id, bytes(LARGE))
        await collect(reader)

    with pytest.raises(Unavailable, match="PreconditionFailed"):
        asyncio.run(replaced())


def test_whoever_waits_for_a_cancelled_opener_opens_for_itself(store: S3Bytes) -> None:
    async def opened() -> list[object]:
        first = asyncio.create_task(store.exists(HELLO, 5))
        others = [asyncio.create_task(store.exists(HELLO, 5)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, *others = asyncio.run(opened())
    assert isinstance(first, asyncio.CancelledError)
    assert others == [False, False, False]


# Through the store


def test_connections_end_with_their_loop(store: S3Bytes, recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(3):
        put(store, b"hello")

    async def closed() -> None:
        await store.exists(HELLO, 5)
        await store.close()
        await store.close()
        assert await store.exists(HELLO, 5)

    asyncio.run(closed())
    gc.collect()
    assert [str(warning.message) for warning in recwarn if issubclass(warning.category, ResourceWarning)] == []
    assert len(store._clients._held) == 0  # pyright: ignore[reportPrivateUsage]


def test_one_byte_store_serves_the_async_store_and_the_sync_one(store: S3Bytes, server: S3Server) -> None:
    data = os.urandom(LARGE)
    with Store.open("sqlite://:memory:", blobs=store) as sync:
        sync.sessions.create("s")
        ref = sync.attachments.put("s", data, media_type="image/png")
        assert sync.attachments.get("s", ref.attachment_id) == data

    async def also() -> None:
        async with AsyncStore.open("sqlite://:memory:", blobs=store) as opened:
            await opened.sessions.create("s")
            assert await opened.attachments.put("s", data, media_type="image/png") == ref
            assert await opened.attachments.get("s", ref.attachment_id) == data
            await opened.attachments.forget("s", ref.attachment_id)
            assert (await opened.attachments.sweep(older_than_ms=0)).reclaimed == 1

    asyncio.run(also())
    assert keys_in(server) == []


def test_a_damaged_object_is_corrupt_through_the_store(store: S3Bytes, server: S3Server) -> None:
    with Store.open("sqlite://:memory:", blobs=store) as opened:
        opened.sessions.create("s")
        opened.attachments.put("s", b"hello", media_type="text/plain")
        overwrite(server, HELLO, b"hellO")
        with pytest.raises(Corrupt):
            opened.attachments.get("s", HELLO)
        opened.attachments.put("s", b"hello", media_type="text/plain")
        assert opened.attachments.get("s", HELLO) == b"hello"
