"""Attachments: bytes by their digest, held by the sessions that name them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence

from lash_store.blobs.protocol import checked_id
from lash_store.blobs.spool import Source
from lash_store.encode import Encoder
from lash_store.errors import Corrupt, InvalidArgument, NotFound, Unstorable
from lash_store.model.attachment import AttachmentEntry, AttachmentPage, AttachmentRef, SweepReport
from lash_store.ops import attachments
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime

SWEEP_PAGE = 100  # contents looked up per statement of a sweep
SWEEP_MAX_MS = 60_000  # how long one content's bytes may take to delete while its row is locked
SWEEP_CONTENTS_MAX = 10_000  # contents one call looks at: call again for more


class AsyncAttachments:
    """What the store knows of attachments. With an incarnation, every call refuses any other one."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime, incarnation: int | None = None) -> None:
        self._runtime = runtime
        self._encoder = runtime.encoder
        self._incarnation = incarnation

    async def put(
        self,
        session_id: str,
        data: Source | AsyncIterable[bytes],
        *,
        media_type: str,
        label: str | None = None,
        width: int | None = None,
        height: int | None = None,
    ) -> AttachmentRef:
        """Record the intent, then store the bytes, then return the reference; a commit that names it keeps it."""
        session_id = self._id(session_id)
        self._encoder.text(media_type, "media_type")
        with await self._runtime.spool(data) as spool:
            ref = self._ref(
                AttachmentRef(
                    attachment_id=spool.digest,
                    media_type=media_type,
                    byte_len=spool.byte_len,
                    label=label,
                    width=width,
                    height=height,
                )
            )
            await self._runtime.write(attachments.record_intent, session_id, ref, self._incarnation, measured=True)
            await self._runtime.blobs.put(ref.attachment_id, spool)
        return ref

    async def get(self, session_id: str, attachment_id: str) -> bytes:
        """The bytes, verified. For large ones, stream."""
        return b"".join([chunk async for chunk in self.stream(session_id, attachment_id)])

    async def stream(self, session_id: str, attachment_id: str) -> AsyncIterator[bytes]:
        """The bytes in chunks. Corrupt is raised at the end if they do not match; the last chunk leaves only when they do."""
        found = await self.entry(session_id, attachment_id)
        try:
            async for chunk in self._runtime.stream(found.ref.attachment_id, found.ref.byte_len):
                yield chunk
        except NotFound:
            if found.committed_ms is None:
                raise
            # A commit named it, so the bytes were there: their absence is damage, not an answer.
            raise Corrupt("attachments", f"{session_id!r}/{attachment_id}", "its bytes are missing") from None

    async def entry(self, session_id: str, attachment_id: str) -> AttachmentEntry:
        """The manifest row of one attachment."""
        return await self._runtime.read(attachments.entry, self._id(session_id), checked_id(attachment_id), self._incarnation)

    async def list(self, session_id: str, *, limit: int = 100, cursor: str | None = None) -> AttachmentPage:
        """The manifest of a session, by attachment id."""
        after = "" if cursor is None else self._encoder.text(cursor, "cursor")
        return await self._runtime.read(
            attachments.page,
            self._id(session_id),
            limit=self._limit(limit),
            after=after,
            incarnation=self._incarnation,
        )

    async def record_intent(self, session_id: str, ref: AttachmentRef) -> AttachmentEntry:
        """Announce bytes that somebody else stores."""
        return await self._runtime.write(attachments.record_intent, self._id(session_id), self._ref(ref), self._incarnation)

    async def commit_refs(self, session_id: str, attachment_ids: Sequence[str]) -> int:
        """Stamp intents as committed, outside a commit; all of them or none."""
        given = self._encoder.items(attachment_ids, "attachment_ids")
        ids = sorted({checked_id(attachment_id) for attachment_id in given})
        return await self._runtime.write(attachments.commit_refs, self._id(session_id), ids, self._incarnation)

    async def list_uncommitted(self, *, older_than_ms: int = 0, limit: int = 100, cursor: str | None = None) -> AttachmentPage:
        """Intents of this age or more that no commit named, over all sessions, oldest first."""
        age_ms = self._encoder.duration(older_than_ms, "older_than_ms")
        return await self._runtime.read(
            attachments.uncommitted, older_than_ms=age_ms, limit=self._limit(limit), after=_after(cursor, self._encoder)
        )

    async def forget(self, session_id: str, attachment_id: str) -> bool:
        """Drop a session's hold on an attachment; the sweep reclaims the bytes when nobody holds them. False if it had none."""
        return await self._runtime.write(attachments.forget, self._id(session_id), checked_id(attachment_id), self._incarnation)

    async def sweep(self, *, older_than_ms: int, dry_run: bool = False) -> SweepReport:
        """Reclaim bytes nobody holds: intents of this age that no commit named, and contents released that long ago."""
        age_ms = self._encoder.duration(older_than_ms, "older_than_ms")
        scanned = reclaimed = size = 0
        after: str | None = ""
        while after is not None and scanned < SWEEP_CONTENTS_MAX:
            ids = await self._runtime.read(attachments.sweep_candidates, older_than_ms=age_ms, limit=SWEEP_PAGE, after=after)
            for attachment_id in ids:
                gone = await self._reclaim(attachment_id, age_ms, dry_run=dry_run)
                scanned += 1
                reclaimed += gone is not None
                size += gone or 0
            after = ids[-1] if len(ids) == SWEEP_PAGE else None
        return SweepReport(
            scanned=scanned,
            reclaimed=reclaimed,
            kept=scanned - reclaimed,
            reclaimed_bytes=size,
            complete=after is None,
        )

    async def _reclaim(self, attachment_id: str, age_ms: int, *, dry_run: bool) -> int | None:
        """One content, one transaction: its bytes are deleted while its row is locked, so that no put comes in between."""
        if dry_run:
            return await self._runtime.read(attachments.reclaimable, attachment_id, older_than_ms=age_ms)
        if not await self._runtime.write(attachments.drop_stale_intents, attachment_id, older_than_ms=age_ms):
            return None
        async with self._runtime.transaction(max_ms=SWEEP_MAX_MS) as transaction:
            size = await transaction.write(attachments.condemn, attachment_id)
            if size is not None:
                await self._runtime.blobs.delete(attachment_id)
                await transaction.write(attachments.release, attachment_id)
            return size

    def _ref(self, ref: object) -> AttachmentRef:
        if not isinstance(ref, AttachmentRef):
            raise Unstorable("ref", f"must be an AttachmentRef, got {type(ref).__name__}")
        encoder = self._encoder
        return AttachmentRef(
            attachment_id=checked_id(encoder.id(ref.attachment_id, "ref.attachment_id")),
            media_type=encoder.text(ref.media_type, "ref.media_type"),
            byte_len=encoder.counter(
                ref.byte_len, "ref.byte_len", maximum=encoder.limits.attachment_bytes, limit="attachment_bytes"
            ),
            label=encoder.optional_text(ref.label, "ref.label"),
            width=None if ref.width is None else encoder.counter(ref.width, "ref.width"),
            height=None if ref.height is None else encoder.counter(ref.height, "ref.height"),
        )

    def _id(self, session_id: str) -> str:
        return self._encoder.id(session_id, "session_id")

    def _limit(self, limit: int) -> int:
        return self._encoder.counter(limit, "limit", minimum=1, maximum=self._runtime.limits.page_rows, limit="page_rows")


def _after(cursor: str | None, encoder: Encoder) -> tuple[int, str, str]:
    """The (time, attachment, session) a page of intents ended on."""
    if cursor is None:
        return (-1, "", "")
    if not isinstance(cursor, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise InvalidArgument("cursor", "is not one this list returned")
    instant, _, rest = cursor.partition(":")
    attachment_id, separator, session_id = rest.partition(":")
    if not instant.isascii() or not instant.isdigit() or len(instant) > 18 or not separator:
        raise InvalidArgument("cursor", "is not one this list returned")
    return (int(instant), encoder.id(attachment_id, "cursor"), encoder.id(session_id, "cursor"))
