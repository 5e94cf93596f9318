"""Attachment bytes in a bucket of Amazon S3 or of a server that speaks its protocol: `{prefix}/sha256/ab/abcd…`.

Needs the extra `lash-store[s3]`. Up to 8 MiB are one request, more is a multipart upload of which nothing is visible until
its last request. The role needs GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListBucket: without the last,
S3 answers a question for missing bytes with "forbidden".
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from lash_store.blobs.protocol import checked_id, checked_source
from lash_store.blobs.s3_errors import is_missing, is_unsatisfiable, library, typed
from lash_store.blobs.spool import CHUNK_BYTES, Spool
from lash_store.errors import Corrupt, InvalidArgument, NotFound, Unavailable
from lash_store.model.limits import MIB

if TYPE_CHECKING:
    from hashlib import _Hash as Hash  # pyright: ignore[reportPrivateUsage]  # its only name

log = logging.getLogger("lash_store")

PART_BYTES = 8 * MIB  # one part of an upload and one window of a download: what a stream holds in memory
PREFIX_MAX_BYTES = 512  # a key has 1,024 bytes, and our own part of it 75
ABORT_MAX_S = 10  # what a failed upload may take to remove its parts
_CONTENT_TYPE = "application/octet-stream"  # the bucket does not know what the bytes are; the manifest does


class S3Bytes:
    """Objects below `prefix` in `bucket`. Without keys, the usual places of AWS are searched for credentials.

    One object serves any number of stores and event loops. Its connections end with the loop they were opened on
    (`asyncio.run` and the sync store see to it), or with `close()`.
    """

    durable = True

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint_url: str | None = None,
        region: str | None = None,
        path_style: bool = False,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        connect_ms: int = 10_000,
        read_ms: int = 60_000,
        attempts: int = 4,
    ) -> None:
        library()  # a missing extra is found here, not by the first put
        self.bucket = bucket
        self.prefix = _checked_prefix(prefix)
        self.endpoint_url = _checked_endpoint(endpoint_url)
        self.region = region
        if (access_key is None) != (secret_key is None):
            raise InvalidArgument("access_key", "and secret_key are given together or not at all")
        arguments = {
            "region_name": region,
            "endpoint_url": self.endpoint_url,
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
            "aws_session_token": session_token,
        }
        config = _config(path_style=path_style, connect_ms=connect_ms, read_ms=read_ms, attempts=attempts)
        self._clients = _Clients({**arguments, "config": config})

    def __repr__(self) -> str:
        return f"S3Bytes({self.bucket!r}, prefix={self.prefix!r}, endpoint_url={self.endpoint_url!r}, region={self.region!r})"

    async def put(self, attachment_id: str, source: Spool) -> None:
        """Upload the bytes with their checksum. An object of that length and checksum already there is kept."""
        checked_source(attachment_id, source)
        with typed(self.bucket):
            client = await self._clients.here()
            checksum = await asyncio.to_thread(_checksum, source)
            if await self._holds(client, attachment_id, source.byte_len, checksum):
                return
            if source.byte_len <= PART_BYTES:
                await self._put_whole(client, attachment_id, source, checksum)
            else:
                await self._put_parts(client, attachment_id, source, checksum)

    async def exists(self, attachment_id: str, byte_len: int) -> bool:
        """Whether an object of this name and length is there."""
        checked_id(attachment_id)
        with typed(self.bucket):
            found = await self._head(await self._clients.here(), attachment_id)
            return found is not None and found["ContentLength"] == byte_len

    async def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        """The object's bytes. Each window is a request of its own: a slow or forgotten reader holds no connection."""
        checked_id(attachment_id)
        offset, total, tag = 0, 1, None
        while offset < total:
            window, total, tag = await self._window(attachment_id, offset, tag)
            for start in range(0, len(window), CHUNK_BYTES):
                yield window[start : start + CHUNK_BYTES]
            offset += PART_BYTES

    async def delete(self, attachment_id: str) -> None:
        """Delete the object. One that is missing is fine."""
        checked_id(attachment_id)
        with typed(self.bucket):
            client = await self._clients.here()
            await client.delete_object(**self._place(attachment_id))

    async def close(self) -> None:
        """Close this loop's connections. The next call opens new ones."""
        await self._clients.close()

    def _place(self, attachment_id: str) -> dict[str, str]:
        key = f"sha256/{attachment_id[:2]}/{attachment_id}"
        return {"Bucket": self.bucket, "Key": f"{self.prefix}/{key}" if self.prefix else key}

    async def _head(self, client: Any, attachment_id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await client.head_object(**self._place(attachment_id), ChecksumMode="ENABLED")
        except library().refusal as error:
            if is_missing(error):
                return None
            raise
        return found

    async def _holds(self, client: Any, attachment_id: str, byte_len: int, checksum: str) -> bool:
        """Whether a sound object is there. A server that keeps no checksums gets the bytes again."""
        found = await self._head(client, attachment_id)
        if found is None or found["ContentLength"] != byte_len:
            return False
        # The checksum of a multipart upload ends in the number of its parts.
        stored: str = found.get("ChecksumSHA256", "")
        return stored.partition("-")[0] == checksum

    async def _put_whole(self, client: Any, attachment_id: str, source: Spool, checksum: str) -> None:
        body = await asyncio.to_thread(_whole, attachment_id, source)
        await client.put_object(
            **self._place(attachment_id),
            Body=body,
            ContentType=_CONTENT_TYPE,
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=checksum,
        )

    async def _put_parts(self, client: Any, attachment_id: str, source: Spool, checksum: str) -> None:
        place = self._place(attachment_id)
        begun = await client.create_multipart_upload(**place, ContentType=_CONTENT_TYPE, ChecksumAlgorithm="SHA256")
        upload = {**place, "UploadId": begun["UploadId"]}
        try:
            parts = await _upload_parts(client, attachment_id, source, upload)
            await self._complete(client, upload, parts, (attachment_id, source.byte_len, checksum))
        except BaseException:
            # Parts of an upload that never ends are invisible, and are paid for.
            await _finished(_abort(client, upload))
            raise

    async def _complete(self, client: Any, upload: dict[str, str], parts: list[Any], wanted: tuple[str, int, str]) -> None:
        try:
            await client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except library().refusal as error:
            # The answer to a first attempt may have been lost; the second one finds no upload any more.
            if not is_missing(error) or not await self._holds(client, *wanted):
                raise

    async def _window(self, attachment_id: str, offset: int, tag: str | None) -> tuple[bytes, int, str | None]:
        """The bytes from `offset` on, the length of the object, and its version, which later windows must have too."""
        arguments: dict[str, str] = {**self._place(attachment_id), "Range": f"bytes={offset}-{offset + PART_BYTES - 1}"}
        if tag is not None:
            arguments["IfMatch"] = tag
        with typed(self.bucket):
            client = await self._clients.here()
            try:
                found = await client.get_object(**arguments)
            except library().refusal as error:
                if is_missing(error):
                    raise NotFound("attachment", attachment_id) from None
                if is_unsatisfiable(error) and offset == 0:
                    return b"", 0, None  # an empty object has no range
                raise
            async with found["Body"] as body:
                data: bytes = await body.read()
        total = _total(found, offset, len(data))
        if len(data) != min(PART_BYTES, total - offset):
            raise Unavailable(f"attachment {attachment_id}: its bucket sent a part of what was asked for. Repeat the call.")
        return data, total, found.get("ETag")


class _Clients:
    """One client per event loop: its connections cannot be used on another one."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._lock = threading.Lock()
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, _Client] = WeakKeyDictionary()

    async def here(self) -> Any:
        """The client of the running loop, opened by whoever comes first."""
        client = None
        while client is None:
            client = await self._client(asyncio.get_running_loop()).get()
        return client

    async def close(self) -> None:
        """Close the client of the running loop, if there is one."""
        with self._lock:
            held = self._held.get(asyncio.get_running_loop())
        if held is not None:
            await held.close()

    def _client(self, loop: asyncio.AbstractEventLoop) -> _Client:
        with self._lock:
            held = self._held.get(loop)
            if held is None:
                held = self._held[loop] = _Client(self._lived(loop))
            return held

    async def _lived(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Any]:
        """A client that is open while this generator is: every well-behaved loop ends its generators before it closes."""
        try:
            async with library().session().create_client("s3", **self._arguments) as client:
                yield client
        finally:
            with self._lock:
                self._held.pop(loop, None)


class _Client:
    """The life of one client, begun once however many tasks ask for it at the same time."""

    def __init__(self, life: AsyncGenerator[Any]) -> None:
        self._life = life
        self._opening = asyncio.Lock()
        self._client: Any = None

    async def get(self) -> Any:
        """The client, or None when the task that was opening it failed or was cancelled."""
        async with self._opening:
            if self._client is None:
                self._client = await anext(self._life, None)
            return self._client

    async def close(self) -> None:
        async with self._opening:
            await self._life.aclose()


async def _upload_parts(client: Any, attachment_id: str, source: Spool, upload: dict[str, str]) -> list[dict[str, Any]]:
    state = hashlib.sha256()
    sent: list[dict[str, Any]] = []
    parts = _parts(source)
    while part := await asyncio.to_thread(_next_part, parts, state):
        data, checksum = part
        place = {"PartNumber": len(sent) + 1, "ChecksumSHA256": checksum}
        done = await client.upload_part(**upload, **place, ChecksumAlgorithm="SHA256", Body=data)
        sent.append({**place, "ETag": done["ETag"]})
    _check_source(attachment_id, state)
    return sent


async def _abort(client: Any, upload: dict[str, str]) -> None:
    try:
        async with asyncio.timeout(ABORT_MAX_S):
            await client.abort_multipart_upload(**upload)
    except Exception:  # noqa: BLE001 - the reason for the abort must reach the caller
        log.warning("an unfinished upload stays in bucket %s until its lifecycle rule removes it", upload["Bucket"])


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end; a cancellation that comes meanwhile is raised then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _whole(attachment_id: str, source: Spool) -> bytes:
    data = b"".join(source.chunks())
    _check_source(attachment_id, hashlib.sha256(data))
    return data


def _next_part(parts: Iterator[bytes], state: Hash) -> tuple[bytes, str] | None:
    """The next part and its checksum, taken into the digest of the whole."""
    part = next(parts, None)
    if part is None:
        return None
    state.update(part)
    return part, _base64(hashlib.sha256(part).digest())


def _parts(source: Spool) -> Iterator[bytes]:
    """The bytes in parts of PART_BYTES, the last one shorter."""
    pending: list[bytes] = []
    for chunk in source.chunks():
        pending.append(chunk)
        if len(pending) * CHUNK_BYTES == PART_BYTES:
            yield b"".join(pending)
            pending.clear()
    if pending:
        yield b"".join(pending)


def _checksum(source: Spool) -> str:
    """What S3 keeps as the object's SHA-256: of one request the digest, of several the digest of the parts' digests."""
    if source.byte_len <= PART_BYTES:
        return _base64(bytes.fromhex(source.digest))
    return _base64(hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in _parts(source))).digest())


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _check_source(attachment_id: str, state: Hash) -> None:
    # A spool may have lain on a disk; what it gives back is checked before it gets the name.
    if state.hexdigest() != attachment_id:
        raise Corrupt("attachments", attachment_id, "its bytes changed in the temporary file before they were stored")


def _total(found: dict[str, Any], offset: int, received: int) -> int:
    """The length of the whole object. A server that ignores ranges sends all of it."""
    _, _, total = found.get("ContentRange", "").rpartition("/")
    return int(total) if total.isdigit() else offset + received


def _checked_prefix(prefix: str) -> str:
    plain = prefix.strip("/")
    if not plain.isprintable() or len(plain.encode()) > PREFIX_MAX_BYTES or ".." in plain.split("/"):
        raise InvalidArgument("prefix", f"must be printable text of at most {PREFIX_MAX_BYTES} bytes, without '..'")
    return plain


def _checked_endpoint(endpoint_url: str | None) -> str | None:
    if endpoint_url is None:
        return None
    parts = urlsplit(endpoint_url)
    # A password may hold a slash: an at sign anywhere may end one.
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in endpoint_url:
        raise InvalidArgument("endpoint_url", "must be http(s)://host[:port] without user and password; keys have arguments")
    return endpoint_url


def _config(*, path_style: bool, connect_ms: int, read_ms: int, attempts: int) -> Any:
    return library().config(
        connect_timeout=connect_ms / 1000,
        read_timeout=read_ms / 1000,
        retries={"mode": "standard", "total_max_attempts": attempts},
        s3={"addressing_style": "path" if path_style else "auto"},
        # We send our own checksums; servers other than Amazon's may not know the ones the library would add.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
