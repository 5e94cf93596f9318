"""Laws of checkpoints: components by name, versions, deltas, collection."""

from __future__ import annotations

import asyncio
import hashlib
import random

from lash_store.errors import Corrupt, NotFound
from lash_store.model.graph import active_path
from lash_store.model.limits import CHECKPOINT_CHAIN_MAX, MIB
from lash_store.testing.backend import Backend
from lash_store.testing.steps import append, commit, count, nothing_changes, refused, say, stored


async def a_component_not_named_is_carried_forward(backend: Backend) -> None:
    """Bytes set, None removes, silence keeps: also across handles and commits without a checkpoint."""
    store = await backend.open()
    parts = {"turn_state": b"t", "tool_state": b"gen 9", "plugin_snapshot": b"", "execution_state": bytes(range(256))}
    await commit(store, "s", 0, checkpoint=parts)
    await say(store, "s", "a")
    await commit(store, "s", 2, checkpoint={"turn_state": b"t2"})
    other = await backend.open()
    assert dict((await other.sessions.load("s")).checkpoint) == {**parts, "turn_state": b"t2"}
    await commit(other, "s", 3, checkpoint={"tool_state": None, "never there": None})
    assert dict((await store.sessions.load("s")).checkpoint) == {
        "turn_state": b"t2",
        "plugin_snapshot": b"",
        "execution_state": bytes(range(256)),
    }


async def a_removed_component_can_be_set_again(backend: Backend) -> None:
    """Replace, clear, set: each revision shows what was set last."""
    store = await backend.open()
    for revision, value in enumerate([b"1", None, b"2", None, None, b"1"]):
        await commit(store, "s", revision, checkpoint={"c": value})
        assert (await store.sessions.load("s")).checkpoint.get("c") == value
    assert "c" not in (await store.sessions.load("s", at_revision=4)).checkpoint


async def a_receipt_names_every_component_by_its_digest(backend: Backend) -> None:
    """components of a receipt are the sha256 of all contents after the commit, carried ones too."""
    store = await backend.open()
    await commit(store, "s", 0, checkpoint={"a": b"1", "b": b"2"})
    receipt = await commit(store, "s", 1, checkpoint={"b": b"3", "c": b"4"})
    contents = {"a": b"1", "b": b"3", "c": b"4"}
    assert dict(receipt.components) == {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    removed = await commit(store, "s", 2, checkpoint={"a": None})
    assert set(removed.components) == {"b", "c"}


async def the_checkpoint_digest_changes_exactly_when_its_content_does(backend: Backend) -> None:
    """Equal components, equal digest, in any order of commits; None before the first component."""
    store = await backend.open()
    assert (await say(store, "s", "a")).checkpoint_digest is None
    first = await commit(store, "s", 1, checkpoint={"a": b"1", "b": b"2"})
    same = await commit(store, "s", 2, checkpoint={"b": b"2"})
    other = await commit(store, "s", 3, checkpoint={"b": b"3"})
    back = await commit(store, "s", 4, checkpoint={"b": b"2"})
    assert first.checkpoint_digest == same.checkpoint_digest == back.checkpoint_digest
    assert other.checkpoint_digest not in (None, first.checkpoint_digest)
    assert (await store.sessions.load("s")).checkpoint_digest == back.checkpoint_digest
    assert (await store.sessions.get("s")).checkpoint_digest == back.checkpoint_digest


async def equal_content_writes_no_version(backend: Backend) -> None:
    """A component sent again with the same bytes stores nothing."""
    store, other = await backend.open(), await backend.open()
    await commit(store, "s", 0, checkpoint={"c": b"state" * 100})
    before = await count(backend, "versions", "s")
    await commit(store, "s", 1, checkpoint={"c": b"state" * 100})
    await commit(other, "s", 2, checkpoint={"c": b"state" * 100})
    assert await count(backend, "versions", "s") == before


async def every_version_of_a_growing_component_is_exact(backend: Backend) -> None:
    """Deltas restore bit by bit at every revision, for the process that wrote them and for one that never saw them."""
    store = await backend.open()
    noise = random.Random(7)
    data, versions = b"", list[bytes]()
    for revision in range(40):
        data += noise.randbytes(300) + b"turn %d" % revision
        versions.append(data)
        await commit(store, "s", revision, checkpoint={"c": data})
    fresh = await backend.open()
    assert (await fresh.sessions.load("s")).checkpoint["c"] == data
    for revision, expected in enumerate(versions, 1):
        assert (await fresh.sessions.load("s", at_revision=revision)).checkpoint["c"] == expected


async def a_chain_of_deltas_is_bounded(backend: Backend) -> None:
    """A full frame comes at least every sixteen versions, so that a load reads a bounded number of rows."""
    store = await backend.open()
    for revision in range(2 * CHECKPOINT_CHAIN_MAX + 3):
        await commit(store, "s", revision, checkpoint={"c": b"x" * 1000 + b"%d" % revision})
    sql = f"SELECT COUNT(*) FROM {backend.table('versions')} WHERE session_id = $1 GROUP BY full_revision"
    chains = [row[0] for row in await backend.raw(sql, "s")]
    assert sum(chains) == 2 * CHECKPOINT_CHAIN_MAX + 3
    assert 1 < max(chains) <= CHECKPOINT_CHAIN_MAX


async def processes_that_take_turns_never_build_on_a_base_they_do_not_hold(backend: Backend) -> None:
    """Handles that alternate on one component, each with an old copy in memory, store exact versions."""
    stores = [await backend.open() for _ in range(2)]
    noise = random.Random(5)
    versions, own = list[bytes](), [b"", b""]
    for revision, turn in enumerate([0, 0, 1, 0, 1, 1, 0, 0, 1, 0]):
        # Each handle goes on from its own last text: a delta against anything else would restore to other bytes.
        own[turn] += noise.randbytes(300)
        versions.append(own[turn])
        await commit(stores[turn], "s", revision, checkpoint={"c": own[turn]})
    fresh = await backend.open()
    for revision, data in enumerate(versions, 1):
        assert (await fresh.sessions.load("s", at_revision=revision)).checkpoint["c"] == data


async def a_large_component_is_stored_whole_and_exact(backend: Backend) -> None:
    """Above the delta limit each version is a full frame."""
    store = await backend.open()
    data = random.Random(3).randbytes(1024) * (9 * 1024)
    assert len(data) == 9 * MIB
    await commit(store, "s", 0, checkpoint={"c": data})
    await commit(store, "s", 1, checkpoint={"c": data + b"!"})
    assert (await store.sessions.load("s")).checkpoint["c"] == data + b"!"
    sql = f"SELECT base_revision FROM {backend.table('versions')} WHERE session_id = $1"
    assert [row[0] for row in await backend.raw(sql, "s")] == [None, None]


async def a_load_may_leave_the_checkpoint_out(backend: Backend) -> None:
    """Without the checkpoint the rest of the snapshot is the same, and its digest is still there."""
    store = await backend.open()
    await commit(store, "s", 0, graph=append("a"), checkpoint={"c": b"1"})
    light, whole = await store.sessions.load("s", checkpoint=False), await store.sessions.load("s")
    assert dict(light.checkpoint) == {}
    assert (light.checkpoint_digest, light.nodes) == (whole.checkpoint_digest, whole.nodes)


async def collect_keeps_the_head_and_removes_older_versions(backend: Backend) -> None:
    """The head's checkpoint stays whole; an earlier one is NotFound by retention; the report adds up."""
    store = await backend.open()
    for revision in range(20):
        await commit(
            store, "s", revision, graph=append(f"n{revision}"), checkpoint={"c": b"grow" * (revision + 1), "d": b"fixed"}
        )
    await say(store, "s", "last")
    expected = await store.sessions.load("s")
    report = await store.maintenance.collect()
    assert (report.versions_scanned, report.versions_deleted, report.versions_kept) == (21, 19, 2)
    assert report.complete
    assert await count(backend, "versions", "s") == 2
    for handle in (store, await backend.open()):
        assert await handle.sessions.load("s") == expected
        with refused(NotFound, retention=True):
            await handle.sessions.load("s", at_revision=3)
    again = await store.maintenance.collect()
    assert again.versions_deleted == 0


async def collect_keeps_as_many_checkpoints_as_it_is_told(backend: Backend) -> None:
    """The last n revisions stay loadable with their checkpoint; what came before does not."""
    store = await backend.open()
    for revision in range(10):
        await commit(store, "s", revision, graph=append(f"n{revision}"), checkpoint={"c": b"v%d" % revision * 10})
    await store.maintenance.collect(keep_checkpoints=3)
    for revision in (8, 9, 10):
        seen = await store.sessions.load("s", active_path(), at_revision=revision)
        assert seen.checkpoint["c"] == b"v%d" % (revision - 1) * 10
    with refused(NotFound, retention=True):
        await store.sessions.load("s", at_revision=6)


async def commits_go_on_after_a_collect(backend: Backend) -> None:
    """Deltas after a collection build on what it kept, in the process that wrote before and in others."""
    stores = [await backend.open() for _ in range(2)]
    data = b""
    for revision in range(18):
        data += b"turn %d;" % revision * 20
        await commit(stores[revision // 3 % 2], "s", revision, checkpoint={"c": data})
        if revision % 4 == 3:
            await stores[(revision // 4) % 2].maintenance.collect()
        if revision % 4 in (1, 3):
            fresh = await backend.open()
            assert (await fresh.sessions.load("s")).checkpoint["c"] == data
            await fresh.close()


async def a_dry_collect_only_reports(backend: Backend) -> None:
    """dry_run says what a collection would do and changes nothing."""
    store = await backend.open()
    for revision in range(5):
        await commit(store, "s", revision, checkpoint={"c": b"%d" % revision})
    async with nothing_changes(backend):
        dry = await store.maintenance.collect(dry_run=True)
    wet = await store.maintenance.collect()
    assert (dry.versions_scanned, dry.versions_deleted, dry.versions_kept) == (
        wet.versions_scanned,
        wet.versions_deleted,
        wet.versions_kept,
    )


async def collect_never_deletes_what_it_cannot_read(backend: Backend) -> None:
    """A head version that does not restore is Corrupt, and every version of that session stays."""
    store = await backend.open()
    for revision in range(6):
        await commit(store, "s", revision, checkpoint={"c": b"long enough to be a delta " * 30 + b"%d" % revision})
    sql = f"UPDATE {backend.table('versions')} SET frame = $1 WHERE session_id = $2 AND revision = full_revision"
    await backend.raw(sql, b"not a frame", "s")
    fresh = await backend.open()
    before = await stored(backend, "versions")
    with refused(Corrupt):
        await fresh.maintenance.collect()
    assert await stored(backend, "versions") == before


async def collect_of_one_session_leaves_others_alone(backend: Backend) -> None:
    """`session_id` bounds a collection; equal bytes in two sessions are two checkpoints."""
    store = await backend.open()
    for session_id in ("one", "two"):
        for revision in range(4):
            await commit(store, session_id, revision, checkpoint={"c": b"same %d" % revision})
    await store.maintenance.collect(session_id="one")
    assert (await count(backend, "versions", "one"), await count(backend, "versions", "two")) == (1, 4)
    await store.sessions.delete("one")
    await store.maintenance.collect()
    assert (await store.sessions.load("two")).checkpoint["c"] == b"same 3"


async def collect_and_commits_at_once_lose_nothing(backend: Backend) -> None:
    """The head's checkpoint is whole at every moment, while collections and commits run together."""
    stores = [await backend.open() for _ in range(2)]
    await stores[0].sessions.create("s")

    async def write() -> None:
        for revision in range(20):
            await commit(stores[0], "s", revision, checkpoint={"c": b"state " * 40 + b"%d" % revision})

    async def sweep() -> None:
        for _ in range(6):
            await stores[1].maintenance.collect()
            seen = await stores[1].sessions.load("s")
            assert seen.revision == 0 or seen.checkpoint["c"] == b"state " * 40 + b"%d" % (seen.revision - 1)

    await asyncio.gather(write(), sweep())
    fresh = await backend.open()
    assert (await fresh.sessions.load("s")).checkpoint["c"] == b"state " * 40 + b"19"
