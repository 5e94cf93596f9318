"""Copying between stores, and one session as one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from lash_store.errors import Corrupt, Diverged, NotFound, SessionDeleted, StoreError
from lash_store.model.transfer import CopyReport, TransferReport
from lash_store.ops import transfer
from lash_store.ops.transfer import SESSIONS
from lash_store.store.bundle import Bundle, verify
from lash_store.store.copying import AsyncCopy, Progress, check_versions, digest_of, manifest, place
from lash_store.store.portable import Received, Writer, receive
from lash_store.store.runtime import AsyncRuntime

if TYPE_CHECKING:
    from lash_store.store.store import AsyncStore


class AsyncTransfer:
    """Moves state between stores, on whichever engines they are. Claims and leases stay behind; fences do not."""

    def __init__(self, runtime: AsyncRuntime) -> None:
        self._runtime = runtime

    async def copy_to(self, target: AsyncStore, *, progress: Progress | None = None, verify: bool = True) -> CopyReport:
        """Copy everything into another store, and compare both afterwards. Broken off, the same call goes on.

        What is there already and equal is left alone, an earlier state is brought forward; anything else is Diverged, and
        nothing of it is written. Each session is read in one snapshot and written in one transaction.
        """
        return await AsyncCopy(self._runtime, target.transfer._runtime, progress).run(verify=verify)

    async def export_session(self, session_id: str, file: BinaryIO) -> TransferReport:
        """Write one live session to a binary file, with its inbox and the bytes of its attachments. One snapshot, verified."""
        session_id = self._runtime.encoder.id(session_id, "session_id")
        await check_versions(self._runtime)
        with Bundle(SESSIONS) as bundle:
            if not await self._runtime.read(transfer.read, SESSIONS, session_id, bundle):
                raise NotFound("session", session_id)
            if bundle.head is not None and bundle.head["state"] != "live":
                raise SessionDeleted(session_id, incarnation=bundle.head["incarnation"])
            await self._runtime.offload(verify, bundle, session_id)
            writer = Writer(file)
            await self._runtime.offload(writer.rows, session_id, bundle)
            await self._write_bytes(session_id, bundle, writer)
            end = await self._runtime.offload(writer.end, bundle.rows)
            return _report(session_id, bundle, attachments=end.attachments)

    async def _write_bytes(self, session_id: str, bundle: Bundle, writer: Writer) -> None:
        for row in manifest(bundle):
            try:
                await self._write_one(row["attachment_id"], row["byte_len"], writer)
            except NotFound:
                if row["committed_ms"] is not None:
                    why = "its bytes are missing"
                    raise Corrupt("attachments", f"{session_id!r}/{row['attachment_id']}", why) from None

    async def _write_one(self, attachment_id: str, byte_len: int, writer: Writer) -> None:
        """An empty attachment is one empty piece, so that it differs from a missing one."""
        empty = True
        async for chunk in self._runtime.stream(attachment_id, byte_len):
            await self._runtime.offload(writer.chunk, attachment_id, chunk)
            empty = False
        if empty:
            await self._runtime.offload(writer.chunk, attachment_id, b"")
        writer.attachment()

    async def import_session(self, file: BinaryIO) -> TransferReport:
        """Take in a session that was exported. All of the file is checked before anything is written.

        An id that is there already, live or deleted, is Diverged, unless the session is equal: then nothing is to be done.
        """
        await check_versions(self._runtime)
        received = await self._runtime.offload(receive, file, self._runtime.encoder)
        with received:
            imported = await self._take_in(received)
            bundle = received.bundle
            return _report(received.session_id, bundle, attachments=received.end.attachments, imported=imported)

    async def _take_in(self, received: Received) -> bool:
        session_id, bundle = received.session_id, received.bundle
        there = await digest_of(self._runtime, SESSIONS, session_id)
        if there is not None and there.digest == bundle.digest:
            return False
        if there is None:
            await self._put_bytes(received)
            if await self._place(session_id, bundle):
                return True
            there = await digest_of(self._runtime, SESSIONS, session_id)
            if there is None:
                raise _contradicts(session_id)
        raise Diverged("session", session_id, why="the id is in use")

    async def _place(self, session_id: str, bundle: Bundle) -> bool:
        try:
            return await place(self._runtime, SESSIONS, session_id, bundle, instead_of=None)
        except (StoreError, AssertionError):
            raise
        except Exception as error:
            # Only the database itself knows all its constraints; a file that breaks one was not written by an export.
            raise _contradicts(session_id) from error

    async def _put_bytes(self, received: Received) -> None:
        for attachment_id in sorted(received.attachment_ids):
            with await self._runtime.spool(received.chunks(attachment_id)) as spool:
                await self._runtime.write(transfer.expect_bytes, attachment_id, spool.byte_len)
                await self._runtime.blobs.put(attachment_id, spool)


def _contradicts(session_id: str) -> Corrupt:
    return Corrupt("bundle", repr(session_id), "its rows contradict each other")


def _report(session_id: str, bundle: Bundle, *, attachments: int, imported: bool = False) -> TransferReport:
    assert bundle.head is not None
    return TransferReport(
        session_id=session_id,
        incarnation=bundle.head["incarnation"],
        revision=bundle.head["revision"],
        rows=bundle.rows,
        attachments=attachments,
        digest=bundle.digest,
        imported=imported,
    )
