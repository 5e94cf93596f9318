"""Laws of sessions: identity, metadata, lists, deletion, incarnations, handles."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from lash_store.errors import Misuse, NotFound, Refused, SessionDeleted, SessionMismatch
from lash_store.model.commit import Commit
from lash_store.model.session import Relation
from lash_store.model.usage import Usage
from lash_store.testing.backend import STATE_TABLES, Backend
from lash_store.testing.steps import append, claimed, commit, count, node_ids, nothing_changes, refused, say, stored, work

if TYPE_CHECKING:
    from lash_store import AsyncStore

SESSION_ROWS = tuple(table for table in STATE_TABLES if table not in ("sessions", "digests", "chunks"))


async def a_new_session_starts_empty_at_revision_zero_and_is_named_after_its_id(backend: Backend) -> None:
    """Creating seeds the metadata: the name is the id unless given, and the head is empty."""
    store = await backend.open()
    relation = Relation(parent_session_id="parent", caused_by={"call": 1})
    created = await store.sessions.create("s", model="large", relation=relation)
    assert (created.name, created.model, created.relation) == ("s", "large", relation)
    assert (created.revision, created.leaf_id, created.node_count) == (0, None, 0)
    assert created.created_ms > 0
    assert await store.sessions.get("s") == created


async def creating_an_existing_session_returns_it_unchanged(backend: Backend) -> None:
    """Create is insert-if-absent: what it was asked the second time is not stored."""
    store = await backend.open()
    first = await store.sessions.create("s", name="first", model="small", config={"a": 1})
    async with nothing_changes(backend):
        second = await store.sessions.create("s", name="second", model="large", cwd="/", relation=Relation(parent_session_id="p"))
    assert second == first
    assert (await store.sessions.load("s")).config == {"a": 1}


async def concurrent_creates_make_one_session(backend: Backend) -> None:
    """Everybody who creates the same id at once gets the same session."""
    stores = [await backend.open() for _ in range(3)]
    made = await asyncio.gather(*(store.sessions.create("s", name=f"n{i}") for i, store in enumerate(stores * 3)))
    assert len({session.name for session in made}) == 1
    assert {session.incarnation for session in made} == {made[0].incarnation}


async def metadata_round_trips_and_only_named_fields_change(backend: Backend) -> None:
    """update_meta changes what it names, None clears, and the head stays."""
    store = await backend.open()
    await store.sessions.create("s", name="n", model="m", cwd="/home", relation=Relation(parent_session_id="p"))
    await say(store, "s", "a")
    changed = await store.sessions.update_meta("s", name="näme\nof two lines", cwd=None)
    assert (changed.name, changed.model, changed.cwd) == ("näme\nof two lines", "m", None)
    assert (changed.revision, changed.leaf_id) == (1, "a")
    assert changed.relation == Relation(parent_session_id="p")
    other = await backend.open()
    assert await other.sessions.get("s") == changed


async def a_session_that_never_was_is_not_found(backend: Backend) -> None:
    """Every read of an unknown session is NotFound, never an empty answer."""
    store = await backend.open()
    reads = store.sessions
    for call in (
        reads.get,
        reads.load,
        reads.commits,
        reads.branches,
        reads.usage,
        reads.update_meta,
        reads.vacuum,
        store.queue.depth,
    ):
        with refused(NotFound, kind="session", id="none", retention=False):
            await call("none")
    with refused(NotFound, kind="session"):
        await store.queue.enqueue("none", [1])
    with refused(NotFound, kind="session"):
        await store.queue.claim("none", "w", lease_ms=1000)


async def a_deleted_session_is_gone_for_reads_and_fenced_for_writes(backend: Backend) -> None:
    """After delete, reads, commits and enqueues of the id are SessionDeleted, also without an expected revision."""
    store = await backend.open()
    await say(store, "s", "a")
    await work(store, "s", "job")
    deletion = await store.sessions.delete("s")
    assert deletion.existed and deletion.complete
    for call in (store.sessions.get, store.sessions.load, store.sessions.commits, store.sessions.usage):
        with refused(SessionDeleted, session_id="s"):
            await call("s")
    async with nothing_changes(backend):
        for revision in (None, 1, 2):
            with refused(SessionDeleted):
                await commit(store, "s", revision, graph=append("b"))
        with refused(SessionDeleted):
            await store.queue.enqueue("s", [1])
        with refused(SessionDeleted):
            await store.sessions.update_meta("s", name="x")


async def deleting_twice_or_what_never_was_is_no_error(backend: Backend) -> None:
    """Delete is idempotent and says whether there was something."""
    store = await backend.open()
    await say(store, "s", "a")
    assert (await store.sessions.delete("s")).existed
    revived = await stored(backend, "sessions")
    assert not (await store.sessions.delete("s")).existed
    assert await stored(backend, "sessions") == revived
    assert not (await store.sessions.delete("never")).existed


async def deleting_removes_every_row_of_the_session_and_none_of_another(backend: Backend) -> None:
    """Nodes, commits, frames, usage, queue, checkpoints and manifest rows go; other sessions keep theirs."""
    store = await backend.open()
    for session_id in ("gone", "kept"):
        await store.sessions.create(session_id)
        ref = await store.attachments.put(session_id, b"same bytes", media_type="text/plain")
        fields = {"checkpoint": {"c": b"1"}, "config": {"c": 1}, "usage": [Usage(source="s", model="m", input=1)]}
        await commit(store, session_id, 0, graph=append("a", "b"), attachments=[ref.attachment_id], turn_id="t", **fields)
        batch = (await work(store, session_id, "settled", source_key="key"))[0]
        claim = await claimed(store, session_id)
        assert claim.batches[0].batch_id == batch.batch_id
        await store.queue.settle(claim)
        await work(store, session_id, "open")
    kept = {table: await count(backend, table, "kept") for table in SESSION_ROWS}
    await store.sessions.delete("gone")
    for table in kept:
        assert await count(backend, table, "gone") == 0, f"{table} still holds rows of the deleted session"
        assert await count(backend, table, "kept") == kept[table], f"{table} lost rows of another session"
    assert node_ids(await store.sessions.load("kept")) == ["a", "b"]


async def creating_a_deleted_id_starts_a_new_incarnation_that_continues_the_revision(backend: Backend) -> None:
    """Deletion takes one revision; the next life starts empty, one incarnation up, at that revision."""
    store = await backend.open()
    await store.sessions.create("s", name="old", model="old")
    await say(store, "s", "a", checkpoint={}, usage=[Usage(source="s", model="m", input=1)])
    first = await say(store, "s", "b")
    await store.sessions.delete("s")
    again = await store.sessions.create("s", model="new")
    assert (again.name, again.model) == ("s", "new")
    assert again.incarnation == first.incarnation + 1
    assert again.revision == first.revision + 1
    snapshot = await store.sessions.load("s")
    assert (snapshot.nodes, snapshot.leaf_id, snapshot.usage, dict(snapshot.checkpoint)) == ((), None, (), {})
    receipt = await commit(store, "s", again.revision, graph=append("a"))
    assert (receipt.revision, receipt.incarnation) == (again.revision + 1, again.incarnation)


async def a_turn_id_is_free_again_in_the_next_incarnation(backend: Backend) -> None:
    """A turn commits once per incarnation; after a re-creation the same turn id is a new turn."""
    store = await backend.open()
    await say(store, "s", "a", turn_id="t")
    await store.sessions.delete("s")
    await store.sessions.create("s")
    again = await say(store, "s", "other", turn_id="t")
    assert not again.replayed
    assert node_ids(await store.sessions.load("s")) == ["other"]


async def a_handle_of_an_earlier_incarnation_changes_nothing(backend: Backend) -> None:
    """A handle remembers the incarnation it first saw; another one is SessionDeleted, with any expected revision."""
    store, other = await backend.open(), await backend.open()
    handle = store.session("s")
    await handle.commit(Commit(expected_revision=None, graph=append("a")))
    await other.sessions.delete("s")
    again = await other.sessions.create("s")
    async with nothing_changes(backend):
        for revision in (None, again.revision):
            with refused(SessionDeleted, session_id="s"):
                await handle.commit(Commit(expected_revision=revision, graph=append("b")))
        with refused(SessionDeleted):
            await handle.enqueue([1])
        with refused(SessionDeleted):
            await handle.load()
        with refused(SessionDeleted):
            await handle.tombstone(["a"])
    assert (await store.session("s").get()).incarnation == again.incarnation


async def a_deleted_session_is_named_by_the_incarnation_that_was_meant(backend: Backend) -> None:
    """A handle's refusal names the incarnation the handle met, whatever became of the id since; a plain call's the last one."""
    store, other = await backend.open(), await backend.open()
    handle = store.session("s")
    await handle.commit(Commit(expected_revision=None, graph=append("a")))
    await other.sessions.delete("s")
    await other.sessions.create("s")
    for _ in ("live again", "deleted again"):
        for call in (handle.get, handle.load, handle.vacuum, partial(handle.tombstone, ["a"]), partial(handle.enqueue, [1])):
            with refused(SessionDeleted, session_id="s", incarnation=1):
                await call()
        await other.sessions.delete("s")
    with refused(SessionDeleted, session_id="s", incarnation=2):
        await other.sessions.get("s")


async def a_claim_of_an_earlier_incarnation_settles_nothing(backend: Backend) -> None:
    """Fences and queue positions continue over a re-creation, so that an old claim never fits new work."""
    store = await backend.open()
    await store.sessions.create("s")
    old = (await work(store, "s", "old", batch_id="qwb:job"))[0]
    claim = await claimed(store, "s")
    await store.sessions.delete("s")
    await store.sessions.create("s")
    new = (await work(store, "s", "new", batch_id="qwb:job"))[0]
    async with nothing_changes(backend):
        with refused(Refused):
            await store.queue.settle(claim)
        with refused(Refused):
            await say(store, "s", "x", completes=[claim])
    assert new.enqueue_seq > old.enqueue_seq
    assert (await claimed(store, "s")).fence > claim.fence


async def a_handle_commits_to_its_own_session_only(backend: Backend) -> None:
    """A commit or claim that belongs to another session is SessionMismatch and changes nothing."""
    store = await backend.open()
    await say(store, "alpha", "a")
    await say(store, "beta", "b")
    await work(store, "beta", "job")
    claim = await claimed(store, "beta")
    handle = store.session("alpha")
    async with nothing_changes(backend):
        with refused(SessionMismatch, bound="alpha", attempted="beta"):
            await handle.commit(Commit(expected_revision=None, graph=append("c"), session_id="beta"))
        with refused(SessionMismatch):
            await store.sessions.commit("alpha", Commit(expected_revision=None, graph=append("c"), session_id="beta"))
        with refused(SessionMismatch):
            await handle.commit(Commit(expected_revision=None, graph=append("c"), completes=[claim]))
        with refused(SessionMismatch):
            await handle.settle(claim)
        with refused(SessionMismatch):
            await handle.renew(claim, lease_ms=1000)


async def a_handle_has_the_verbs_of_its_session(backend: Backend) -> None:
    """What `store.sessions` and `store.queue` do with a session id, the handle does without one."""
    store = await backend.open()
    handle = store.session("s")
    await handle.create(name="n")
    receipt = await handle.commit(Commit(expected_revision=0, graph=append("a"), turn_id="t"))
    assert (await handle.receipt("t")).revision == receipt.revision
    assert (await handle.node("a")).body == {"text": "a"}
    assert node_ids(await handle.load()) == ["a"]
    batch = await handle.enqueue([{"text": "job"}])
    assert (await handle.depth()).ready == 1
    claim = await handle.claim("w", lease_ms=1000)
    assert claim is not None and claim.batches[0].batch_id == batch.batch_id
    assert await handle.settle(claim) == 1
    assert (await handle.delete()).existed


async def lists_are_keyset_pages_newest_first_or_by_id(backend: Backend) -> None:
    """Pages follow each other without gaps or repeats; a touched session moves to the front of `updated`."""
    store = await backend.open()
    for number in range(7):
        await store.sessions.create(f"s{number}")
        await backend.advance(10)
    await say(store, "s2", "a")
    assert await _all_ids(store, order="updated") == ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]
    assert await _all_ids(store, order="id") == [f"s{number}" for number in range(7)]


async def lists_filter_by_parent_and_hide_deleted_sessions(backend: Backend) -> None:
    """`parent` selects children of one session; a deleted session is in no list."""
    store = await backend.open()
    for child in ("c1", "c2", "c3"):
        await store.sessions.create(child, relation=Relation(parent_session_id="p"))
    await store.sessions.create("p")
    await store.sessions.delete("c2")
    for order in ("updated", "id"):
        assert sorted(await _all_ids(store, order=order, parent="p")) == ["c1", "c3"]
    assert sorted(await _all_ids(store, order="id")) == ["c1", "c3", "p"]


async def ids_are_compared_byte_by_byte(backend: Backend) -> None:
    """Case, accents, width and spaces make different ids, and the order of ids is that of their bytes."""
    store = await backend.open()
    ids = ["a", "A", "á", "a\u0301", "a ", " a", "ａ", "Z", "é", "😀", "../weird/session", "x'; DROP TABLE nodes; --", "é" * 100]
    for session_id in ids:
        await store.sessions.create(session_id)
    assert await _all_ids(store, order="id") == sorted(ids, key=str.encode)
    for session_id in ids:
        assert (await store.sessions.get(session_id)).session_id == session_id


async def everything_survives_a_reopen(backend: Backend) -> None:
    """What one handle stored another one reads: metadata, head, checkpoint, queue, manifest."""
    first = await backend.open()
    await first.sessions.create("s", name="named")
    await commit(first, "s", 0, graph=append("a"), checkpoint={"tool_state": b"77"}, turn_id="t")
    batch = (await work(first, "s", "job", source_key="host:1"))[0]
    ref = await first.attachments.put("s", b"bytes", media_type="image/png")
    await first.close()
    second = await backend.open()
    assert (await second.sessions.get("s")).name == "named"
    snapshot = await second.sessions.load("s")
    assert (node_ids(snapshot), dict(snapshot.checkpoint)) == (["a"], {"tool_state": b"77"})
    assert [b.batch_id for b in (await second.queue.list("s")).batches] == [batch.batch_id]
    assert [e.ref for e in (await second.attachments.list_uncommitted()).entries] == [ref]
    assert await second.attachments.get("s", ref.attachment_id) == b"bytes"


async def closing_twice_is_no_error_and_a_closed_store_says_so(backend: Backend) -> None:
    """close is idempotent; calls afterwards are Misuse, not a broken connection."""
    store = await backend.open()
    await store.close()
    await store.close()
    with refused(Misuse, reason="closed"):
        await store.sessions.get("s")


async def _all_ids(store: AsyncStore, **options: Any) -> list[str]:
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.sessions.list(limit=2, cursor=cursor, **options)
        assert len(page.sessions) <= 2
        ids += [session.session_id for session in page.sessions]
        cursor = page.cursor
        if cursor is None:
            return ids
