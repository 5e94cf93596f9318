"""Laws of attachments: intent before bytes, stamped by the commit, swept when nobody holds them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lash_store.errors import Corrupt, LimitExceeded, NotFound, SessionDeleted, StoreError
from lash_store.model.attachment import AttachmentRef
from lash_store.model.limits import MIB, Limits
from lash_store.testing.backend import Backend
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, append, commit, nothing_changes, outcomes, refused, say, stored

if TYPE_CHECKING:
    from lash_store import AsyncStore


async def bytes_come_back_as_they_went_in(backend: Backend) -> None:
    """Content, id, length, media type, size and label round-trip, in the database and on the filesystem."""
    async for store in _byte_stores(backend):
        data = bytes(range(256)) * 3
        ref = await store.attachments.put("s", data, media_type="image/png", label="chart", width=3, height=4)
        expected = AttachmentRef(
            attachment_id=hashlib.sha256(data).hexdigest(),
            media_type="image/png",
            byte_len=len(data),
            label="chart",
            width=3,
            height=4,
        )
        assert ref == expected
        entry = await store.attachments.entry("s", ref.attachment_id)
        assert (entry.ref, entry.session_id, entry.committed_ms) == (ref, "s", None)
        assert await store.attachments.get("s", ref.attachment_id) == data
        assert await store.attachments.get("s", (await store.attachments.put("s", b"", media_type="x/y")).attachment_id) == b""


async def files_and_streams_are_stored_in_pieces(backend: Backend) -> None:
    """A file, an iterable and bytes of the same content are one attachment; reading streams it back."""
    data = b"0123456789abcdef" * (3 * MIB // 16 + 5)
    async for store in _byte_stores(backend):
        whole = await store.attachments.put("s", data, media_type="x/y")
        from_file = await store.attachments.put("s", io.BytesIO(data), media_type="x/y")
        pieces = [data[i : i + 100_000] for i in range(0, len(data), 100_000)]
        assert from_file == whole == await store.attachments.put("s", pieces, media_type="x/y")
        chunks = [chunk async for chunk in store.attachments.stream("s", whole.attachment_id)]
        assert len(chunks) > 1
        assert b"".join(chunks) == data


async def an_id_is_its_content(backend: Backend) -> None:
    """The same bytes have the same id, other bytes another one; each session has its own entry."""
    store = await _store(backend)
    await store.sessions.create("t")
    one = await store.attachments.put("s", b"one", media_type="a/b")
    again = await store.attachments.put("t", b"one", media_type="c/d", label="mine")
    two = await store.attachments.put("s", b"two", media_type="a/b")
    assert one.attachment_id == again.attachment_id != two.attachment_id
    assert (await store.attachments.entry("s", one.attachment_id)).ref == one
    assert (await store.attachments.entry("t", one.attachment_id)).ref == again


async def an_attachment_nobody_put_is_not_found(backend: Backend) -> None:
    """Unknown ids, ids that look like paths, and another session's attachments are NotFound."""
    async for store in _byte_stores(backend):
        await store.sessions.create("t")
        foreign = await store.attachments.put("t", b"theirs", media_type="a/b")
        assert not await store.attachments.forget("s", "f" * 64)
        ids = ["sha256:does-not-exist", "../../../etc/passwd", "f" * 64, "F" * 64, "f" * 63, foreign.attachment_id]
        for attachment_id in ids:
            with refused(NotFound, kind="attachment"):
                await store.attachments.get("s", attachment_id)
            with refused(NotFound, kind="attachment"):
                await store.attachments.entry("s", attachment_id)


async def a_session_must_exist_to_hold_bytes(backend: Backend) -> None:
    """Unknown sessions are NotFound and deleted ones SessionDeleted; nothing is stored."""
    store = await _store(backend)
    await store.sessions.delete("s")
    async with nothing_changes(backend):
        with refused(NotFound, kind="session"):
            await store.attachments.put("none", b"x", media_type="a/b")
        with refused(SessionDeleted):
            await store.attachments.put("s", b"x", media_type="a/b")


async def an_intent_is_stamped_by_a_commit_or_forgotten(backend: Backend) -> None:
    """Uncommitted intents are listed until commit_refs or a commit stamps them, or forget removes them."""
    store = await _store(backend)
    refs = {name: await store.attachments.put("s", name.encode(), media_type="a/b") for name in ("manual", "runtime", "orphan")}
    assert len((await store.attachments.list_uncommitted()).entries) == 3
    assert await store.attachments.commit_refs("s", [refs["manual"].attachment_id]) == 1
    await say(store, "s", "a", attachments=[refs["runtime"].attachment_id])
    left = (await store.attachments.list_uncommitted()).entries
    assert [(entry.ref, entry.committed_ms) for entry in left] == [(refs["orphan"], None)]
    assert await store.attachments.forget("s", refs["orphan"].attachment_id)
    assert not await store.attachments.forget("s", refs["orphan"].attachment_id)
    assert (await store.attachments.list_uncommitted()).entries == ()
    assert len((await store.attachments.list("s", limit=10, cursor=None)).entries) == 2


async def an_intent_can_be_recorded_before_its_bytes(backend: Backend) -> None:
    """record_intent makes the entry; recording it again keeps the first; the bytes come with put."""
    store = await _store(backend)
    ref = AttachmentRef(attachment_id=hashlib.sha256(b"later").hexdigest(), media_type="a/b", byte_len=5)
    first = await store.attachments.record_intent("s", ref)
    assert (first.ref, first.committed_ms) == (ref, None)
    await backend.advance(1000)
    await store.attachments.record_intent("s", ref)
    with refused(NotFound, kind="attachment"):
        await store.attachments.get("s", ref.attachment_id)
    await store.attachments.put("s", b"later", media_type="a/b")
    assert await store.attachments.get("s", ref.attachment_id) == b"later"


async def the_first_stamp_stays(backend: Backend) -> None:
    """Committing an attachment again, or putting it again, keeps the time it was first committed."""
    store = await _store(backend)
    ref = await store.attachments.put("s", b"x", media_type="a/b")
    await say(store, "s", "a", attachments=[ref.attachment_id])
    stamped = (await store.attachments.entry("s", ref.attachment_id)).committed_ms
    await backend.advance(HOUR_MS)
    await say(store, "s", "b", attachments=[ref.attachment_id])
    await store.attachments.commit_refs("s", [ref.attachment_id])
    await store.attachments.put("s", b"x", media_type="a/b")
    assert stamped is not None
    assert (await store.attachments.entry("s", ref.attachment_id)).committed_ms == stamped


async def a_commit_names_only_attachments_of_its_session(backend: Backend) -> None:
    """An id without an intent row in this session refuses the whole commit."""
    store = await _store(backend)
    await store.sessions.create("t")
    foreign = await store.attachments.put("t", b"theirs", media_type="a/b")
    async with nothing_changes(backend):
        for attachment_id in (foreign.attachment_id, "f" * 64):
            with refused(NotFound, kind="attachment", id=attachment_id):
                await commit(store, "s", 0, graph=append("a"), attachments=[attachment_id])


async def old_intents_are_listed_by_age_across_sessions(backend: Backend) -> None:
    """list_uncommitted takes an age, pages in order of intent, and sees every session."""
    store = await _store(backend)
    await store.sessions.create("t")
    for n, session_id in enumerate(("s", "t", "s", "t")):
        await store.attachments.put(session_id, b"%d" % n, media_type="a/b")
        await backend.advance(HOUR_MS)
    assert [
        len((await store.attachments.list_uncommitted(older_than_ms=hours * HOUR_MS)).entries) for hours in (0, 2, 4, 99)
    ] == [
        4,
        3,
        1,
        0,
    ]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.attachments.list_uncommitted(limit=3, cursor=cursor)
        seen += [entry.session_id for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ["s", "t", "s", "t"]


async def a_sweep_removes_only_old_orphans(backend: Backend) -> None:
    """Old uncommitted attachments go, with their bytes; young ones and committed ones stay; the report says so."""
    async for store in _byte_stores(backend):
        committed = await store.attachments.put("s", b"committed", media_type="a/b")
        await say(store, "s", "a", attachments=[committed.attachment_id])
        orphan = await store.attachments.put("s", b"orphan", media_type="a/b")
        await backend.advance(2 * HOUR_MS)
        young = await store.attachments.put("s", b"young", media_type="a/b")
        before = await stored(backend)
        dry = await store.attachments.sweep(older_than_ms=HOUR_MS, dry_run=True)
        assert await stored(backend) == before
        report = await store.attachments.sweep(older_than_ms=HOUR_MS)
        assert (report.reclaimed, report.reclaimed_bytes, report.complete) == (1, 6, True)
        assert dry.reclaimed == 1
        with refused(NotFound, kind="attachment"):
            await store.attachments.get("s", orphan.attachment_id)
        assert await store.attachments.get("s", committed.attachment_id) == b"committed"
        assert await store.attachments.get("s", young.attachment_id) == b"young"


async def putting_again_makes_an_old_intent_young(backend: Backend) -> None:
    """A put that finds the bytes already there counts from now: a sweep right after it takes nothing."""
    async for store in _byte_stores(backend):
        ref = await store.attachments.put("s", b"again", media_type="a/b")
        await backend.advance(2 * HOUR_MS)
        await store.attachments.put("s", b"again", media_type="a/b")
        assert (await store.attachments.sweep(older_than_ms=HOUR_MS)).reclaimed == 0
        assert await store.attachments.get("s", ref.attachment_id) == b"again"


async def a_sweep_keeps_bytes_another_session_holds(backend: Backend) -> None:
    """Two sessions put the same bytes: sweeping one's orphan, or deleting one, leaves the other's bytes."""
    async for store in _byte_stores(backend):
        await store.sessions.create("t")
        ref = await store.attachments.put("s", b"shared", media_type="a/b")
        await store.attachments.put("t", b"shared", media_type="a/b")
        await say(store, "t", "a", attachments=[ref.attachment_id])
        await backend.advance(2 * HOUR_MS)
        await store.attachments.sweep(older_than_ms=HOUR_MS)
        with refused(NotFound):
            await store.attachments.get("s", ref.attachment_id)
        assert await store.attachments.get("t", ref.attachment_id) == b"shared"
        await store.sessions.delete("s")
        await backend.advance(2 * HOUR_MS)
        await store.attachments.sweep(older_than_ms=HOUR_MS)
        assert await store.attachments.get("t", ref.attachment_id) == b"shared"


async def bytes_of_a_deleted_session_are_swept(backend: Backend) -> None:
    """After delete nobody holds the bytes, committed or not; a sweep reclaims them."""
    async for store in _byte_stores(backend):
        ref = await store.attachments.put("s", b"mine alone", media_type="a/b")
        await say(store, "s", "a", attachments=[ref.attachment_id])
        await store.sessions.delete("s")
        await backend.advance(2 * HOUR_MS)
        report = await store.attachments.sweep(older_than_ms=HOUR_MS)
        assert (report.reclaimed, report.reclaimed_bytes) == (1, 10)
        assert (await store.attachments.sweep(older_than_ms=0)).reclaimed == 0
        assert await _stored_digests(backend) == []


async def forgotten_bytes_are_swept(backend: Backend) -> None:
    """forget drops the entry; the bytes go with the next sweep unless somebody put them again."""
    async for store in _byte_stores(backend):
        gone = await store.attachments.put("s", b"gone", media_type="a/b")
        back = await store.attachments.put("s", b"back", media_type="a/b")
        for ref in (gone, back):
            await store.attachments.forget("s", ref.attachment_id)
        await store.attachments.put("s", b"back", media_type="a/b")
        await backend.advance(MINUTE_MS)
        await store.attachments.sweep(older_than_ms=HOUR_MS)
        assert await store.attachments.get("s", back.attachment_id) == b"back"
        await backend.advance(2 * HOUR_MS)
        await store.attachments.sweep(older_than_ms=HOUR_MS)
        assert await _stored_digests(backend) == []


async def a_put_that_races_a_sweep_is_readable(backend: Backend) -> None:
    """Bytes whose put was acknowledged are there, whatever sweeps ran at the same time."""
    async for store in _byte_stores(backend):
        ref = await store.attachments.put("s", b"contended", media_type="a/b")
        for _ in range(5):
            await store.attachments.forget("s", ref.attachment_id)
            await backend.advance(2 * HOUR_MS)
            calls = (store.attachments.sweep(older_than_ms=HOUR_MS), store.attachments.put("s", b"contended", media_type="a/b"))
            assert not [result for result in await outcomes(*calls) if isinstance(result, StoreError)]
            assert await store.attachments.get("s", ref.attachment_id) == b"contended"


async def concurrent_puts_of_the_same_bytes_are_one_attachment(backend: Backend) -> None:
    """Everybody gets the same reference, and the bytes are whole."""
    async for store in _byte_stores(backend):
        data = b"together" * 50_000
        refs = await asyncio.gather(*(store.attachments.put("s", data, media_type="a/b") for _ in range(5)))
        assert len(set(refs)) == 1
        assert await store.attachments.get("s", refs[0].attachment_id) == data


async def damaged_bytes_are_corrupt_never_returned(backend: Backend) -> None:
    """A changed or missing byte of a stored attachment is Corrupt when read, in the database and in files."""
    async with _folder() as folder:
        files = await backend.open(blobs=folder)
        await files.sessions.create("f")
        kept = await files.attachments.put("f", b"on disk", media_type="a/b")
        path = next(path for path in folder.rglob("*") if path.name == kept.attachment_id)
        path.write_bytes(b"on dusk")
        with refused(Corrupt):
            await files.attachments.get("f", kept.attachment_id)
        again = await files.attachments.put("f", b"on disk", media_type="a/b")
        assert await files.attachments.get("f", again.attachment_id) == b"on disk"
    rows = await backend.open(blobs="database")
    await rows.sessions.create("d")
    ref = await rows.attachments.put("d", b"in a row", media_type="a/b")
    await backend.raw(f"UPDATE {backend.table('chunks')} SET data = $1 WHERE attachment_id = $2", b"in a raw", ref.attachment_id)
    with refused(Corrupt):
        await rows.attachments.get("d", ref.attachment_id)
    with refused(Corrupt):
        [chunk async for chunk in rows.attachments.stream("d", ref.attachment_id)]


async def an_attachment_has_a_bounded_size(backend: Backend) -> None:
    """One byte more than the limit is LimitExceeded, also from a stream, and leaves nothing readable."""
    store = await backend.open(limits=Limits(attachment_bytes=1000), blobs="database")
    await store.sessions.create("s")
    for data in (b"x" * 1001, io.BytesIO(b"x" * 1001), [b"x" * 500] * 3):
        with refused(LimitExceeded, limit="attachment_bytes"):
            await store.attachments.put("s", data, media_type="a/b")
    assert (await store.attachments.list("s", limit=10, cursor=None)).entries == ()
    assert (await store.attachments.put("s", b"x" * 1000, media_type="a/b")).byte_len == 1000


async def attachments_of_a_session_are_pages(backend: Backend) -> None:
    """Pages follow each other without gaps or repeats."""
    store = await _store(backend)
    put = {(await store.attachments.put("s", b"%d" % n, media_type="a/b")).attachment_id for n in range(5)}
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.attachments.list("s", limit=2, cursor=cursor)
        seen += [entry.ref.attachment_id for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == 5
    assert set(seen) == put


async def a_committed_attachment_whose_bytes_are_gone_is_corrupt(backend: Backend) -> None:
    """What a commit named was there: its absence is damage, not "does not exist"."""
    store = await backend.open(blobs="database")
    await store.sessions.create("s")
    ref = await store.attachments.put("s", b"abc", media_type="text/plain")
    await commit(store, "s", 0, graph=append("a"), attachments=[ref.attachment_id])
    await backend.raw(f"DELETE FROM {backend.table('chunks')}")
    with refused(Corrupt, table="attachments"):
        await store.attachments.get("s", ref.attachment_id)


async def a_later_put_does_not_change_what_a_commit_named(backend: Backend) -> None:
    """The description of a committed attachment stays; a length that was only announced is corrected by a put."""
    store = await backend.open()
    await store.sessions.create("s")
    await store.sessions.create("liar")
    name = hashlib.sha256(b"abc").hexdigest()
    await store.attachments.record_intent("liar", AttachmentRef(attachment_id=name, media_type="x/y", byte_len=9))
    ref = await store.attachments.put("s", b"abc", media_type="text/plain", label="mine")
    await commit(store, "s", 0, graph=append("a"), attachments=[ref.attachment_id])
    await store.attachments.put("s", b"abc", media_type="image/png", label="other")
    assert (await store.attachments.entry("s", name)).ref == ref
    assert await store.attachments.get("s", name) == b"abc"


async def _store(backend: Backend) -> AsyncStore:
    store = await backend.open(blobs="database")
    await store.sessions.create("s")
    return store


async def _byte_stores(backend: Backend) -> AsyncIterator[AsyncStore]:
    """A store with its bytes in the database, then one with its bytes in a folder; each with a new session "s"."""
    async with _folder() as folder:
        for blobs in ("database", folder):
            store = await backend.open(blobs=blobs)
            for session_id in ("s", "t"):
                await store.sessions.delete(session_id)
            await store.sessions.create("s")
            yield store
            await store.attachments.sweep(older_than_ms=0)


@asynccontextmanager
async def _folder() -> AsyncGenerator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def _stored_digests(backend: Backend) -> list[str]:
    sql = f"SELECT attachment_id FROM {backend.table('digests')} UNION SELECT attachment_id FROM {backend.table('chunks')}"
    return [row[0] for row in await backend.raw(sql)]
