"""Laws of maintenance and of the schema: what it removes, what it reports, what it refuses to open."""

from __future__ import annotations

import asyncio

from lash_store.errors import NotFound, SchemaMismatch
from lash_store.model.graph import Append
from lash_store.model.limits import SETTLED_KEY_RETENTION_MS
from lash_store.testing.backend import PROCESS_TABLES, STATE_TABLES, Backend
from lash_store.testing.steps import HOUR_MS, claimed, commit, count, draft, node_ids, refused, say, stored, work


async def a_store_knows_its_schema_and_finds_it_whole(backend: Backend) -> None:
    """A fresh database is at a version above zero, differs in nothing, and opening it again changes nothing."""
    store = await backend.open()
    version = await store.maintenance.schema_version()
    assert version >= 1
    assert await store.maintenance.check_schema() == ()
    before = await stored(backend, "meta")
    again = await backend.open()
    assert await again.maintenance.schema_version() == version
    assert await stored(backend, "meta") == before


async def every_state_table_exists_once_and_is_empty_at_first(backend: Backend) -> None:
    """A new database has every table the laws compare, and no state."""
    await backend.open()
    assert set((await stored(backend)).keys()) == {*STATE_TABLES, *PROCESS_TABLES}
    assert all(not rows for rows in (await stored(backend)).values())


async def a_missing_index_is_reported(backend: Backend) -> None:
    """check_schema names what differs from the shipped schema, and repairs nothing by itself."""
    store = await backend.open()
    prefix = backend.table("x").removesuffix("x") if backend.engine == "postgresql" else ""
    await backend.raw(f"DROP INDEX {prefix}lash_commits_by_turn")
    differences = await store.maintenance.check_schema()
    assert any("lash_commits_by_turn" in difference for difference in differences)


async def many_first_opens_at_once_all_succeed(backend: Backend) -> None:
    """Sixteen handles that open a new database at once leave one schema at the right version."""
    stores = await asyncio.gather(*(backend.open() for _ in range(16)))
    assert len({await store.maintenance.schema_version() for store in stores}) == 1
    assert await stores[0].maintenance.check_schema() == ()
    await say(stores[15], "s", "a")
    assert node_ids(await stores[0].sessions.load("s")) == ["a"]


async def a_database_of_a_newer_library_is_refused_with_both_versions(backend: Backend) -> None:
    """When the database says that this library is too old, open is SchemaMismatch and names both versions."""
    store = await backend.open()
    version = await store.maintenance.schema_version()
    await backend.raw(f"UPDATE {backend.table('meta')} SET version = 99, compatible_from = 99")
    with refused(SchemaMismatch, found=99, expected=version) as caught:
        await backend.open()
    assert "99" in str(caught.error)
    assert str(version) in str(caught.error)


async def a_newer_database_that_says_it_is_compatible_opens(backend: Backend) -> None:
    """Old and new workers share a database during an upgrade."""
    await backend.open()
    await backend.raw(f"UPDATE {backend.table('meta')} SET version = 99, compatible_from = 1")
    store = await backend.open()
    await say(store, "s", "a")


async def without_migrate_an_empty_database_is_refused(backend: Backend) -> None:
    """open(migrate=False) creates nothing; on a ready database it works."""
    with refused(SchemaMismatch, found=0):
        await backend.open(migrate=False)
    await backend.open()
    store = await backend.open(migrate=False)
    await say(store, "s", "a")


async def collect_finishes_an_interrupted_deletion(backend: Backend) -> None:
    """Rows a crashed delete left behind are purged, session by session, and nothing else is."""
    store = await backend.open()
    for session_id in ("gone", "kept"):
        await commit(store, session_id, 0, graph=Append([draft("a"), draft("b")]), checkpoint={"c": b"1"}, config=1)
        await work(store, session_id, "job")
    await _interrupted_deletion(backend, "gone")
    report = await store.maintenance.collect()
    assert (report.sessions_purged, report.complete) == (1, True)
    for table in ("nodes", "commits", "configs", "components", "versions", "batches"):
        assert await count(backend, table, "gone") == 0
        assert await count(backend, table, "kept") > 0
    assert (await store.sessions.create("gone")).incarnation == 2


async def creating_again_finishes_an_interrupted_deletion_first(backend: Backend) -> None:
    """Nothing of the former life shows in the next one, also when its rows were not purged yet."""
    store = await backend.open()
    await commit(store, "s", 0, graph=Append([draft("a"), draft("b")]), checkpoint={"c": b"1"}, turn_id="t")
    await work(store, "s", "job")
    await _interrupted_deletion(backend, "s")
    await store.sessions.create("s")
    assert (await store.sessions.load("s")).nodes == ()
    assert (await store.queue.list("s")).batches == ()
    assert not (await say(store, "s", "a", turn_id="t")).replayed
    for table in ("versions", "components"):
        assert await count(backend, table, "s") == 0


async def collect_forgets_settled_keys_after_their_retention(backend: Backend) -> None:
    """Keys past the window are deleted and counted; younger ones stay."""
    store = await backend.open()
    await store.sessions.create("s")
    for key in ("old", "young"):
        await work(store, "s", key, source_key=key)
        await store.queue.settle(await claimed(store, "s"))
        await backend.advance(SETTLED_KEY_RETENTION_MS - HOUR_MS)
    report = await store.maintenance.collect()
    assert report.settled_keys_deleted == 1
    sql = f"SELECT source_key FROM {backend.table('settled_keys')}"
    assert await backend.raw(sql) == [("young",)]


async def collect_on_an_empty_store_reports_nothing_done(backend: Backend) -> None:
    """An empty report says that it is complete."""
    store = await backend.open()
    report = await store.maintenance.collect()
    assert (report.sessions_scanned, report.versions_deleted, report.complete) == (0, 0, True)


async def collecting_an_unknown_session_is_not_found(backend: Backend) -> None:
    """A collection that was told what to collect and cannot find it does not report success."""
    store = await backend.open()
    with refused(NotFound, kind="session"):
        await store.maintenance.collect(session_id="none")


async def maintenance_keeps_everything_a_head_can_reach(backend: Backend) -> None:
    """collect, vacuum and sweep in a row leave every live session exactly as it was."""
    store = await backend.open()
    for session_id in ("a", "b"):
        await store.sessions.create(session_id)
        ref = await store.attachments.put(session_id, b"bytes", media_type="a/b")
        await commit(store, session_id, 0, graph=Append([draft("n")]), checkpoint={"c": b"1"}, attachments=[ref.attachment_id])
        await commit(store, session_id, 1, graph=Append([draft("m")]), checkpoint={"c": b"2"}, config={"v": 1})
    await store.sessions.fork("a", "f")
    await store.sessions.delete("a")
    before = [await store.sessions.load(session_id) for session_id in ("b", "f")]
    await backend.advance(1000 * HOUR_MS)
    await store.maintenance.collect()
    for session_id in ("b", "f"):
        await store.sessions.vacuum(session_id)
    await store.attachments.sweep(older_than_ms=0)
    assert [await store.sessions.load(session_id) for session_id in ("b", "f")] == before
    assert await store.attachments.get("b", ref.attachment_id) == b"bytes"


async def _interrupted_deletion(backend: Backend, session_id: str) -> None:
    """The session as a process leaves it that dies after the deletion was acknowledged and before its rows are gone."""
    cleared = ("leaf_id", "config_revision", "current_frame_id", "checkpoint_digest", "ready_ms", "open_ms")
    columns = ", ".join(f"{column} = NULL" for column in cleared)
    sql = f"UPDATE {backend.table('sessions')} SET state = 'purging', revision = revision + 1, node_count = 0, {columns}"
    await backend.raw(f"{sql} WHERE session_id = $1", session_id)
