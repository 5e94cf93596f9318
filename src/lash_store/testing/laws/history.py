"""Laws of history: the list of commits, and a load as of an earlier one."""

from __future__ import annotations

from lash_store.errors import NotFound
from lash_store.model.graph import Append, Replace, Unchanged, active_path
from lash_store.model.session import Frame
from lash_store.testing.backend import Backend
from lash_store.testing.steps import append, commit, draft, node_ids, refused, say


async def the_history_of_a_session_is_gapless_and_in_order(backend: Backend) -> None:
    """commits pages through one record per revision, with the leaf, the turn and the nodes each one made."""
    store = await backend.open()
    for n in range(7):
        await say(store, "s", f"n{n}", turn_id=f"t{n}")
    seen, after = [], 0
    while True:
        page = await store.sessions.commits("s", after=after, limit=3)
        seen += page.commits
        if page.cursor is None:
            break
        after = int(page.cursor)
    assert [record.revision for record in seen] == list(range(1, 8))
    assert [record.leaf_id for record in seen] == [f"n{n}" for n in range(7)]
    assert [record.turn_id for record in seen] == [f"t{n}" for n in range(7)]
    assert [record.node_ids for record in seen] == [(f"n{n}",) for n in range(7)]
    assert {record.kind for record in seen} == {"commit"}
    assert [record.committed_ms for record in seen] == sorted(record.committed_ms for record in seen)


async def a_load_as_of_a_revision_is_what_a_load_then_returned(backend: Backend) -> None:
    """Path, checkpoint, config, frames and leaf come back as they were right after that commit."""
    store = await backend.open()
    changes = [
        {"graph": append("a", "b"), "checkpoint": {"c": b"1", "d": b"x"}, "config": {"v": 1}},
        {"graph": append("c"), "checkpoint": {"c": b"2"}, "frames": [Frame(frame_id="f", body=1, state=b"f1")]},
        {"graph": Append([draft("d", "a")]), "checkpoint": {"d": None}, "config": {"v": 2}, "current_frame_id": "f"},
        {"graph": Unchanged(leaf="c")},
        {"graph": Unchanged(leaf=None), "frames": [Frame(frame_id="g", body=2)], "current_frame_id": "g"},
        {"graph": Append([draft("e", None)]), "checkpoint": {"c": b"3", "d": b"y"}},
    ]
    then = []
    for revision, change in enumerate(changes):
        await commit(store, "s", revision, **change)
        then.append(await store.sessions.load("s", active_path()))
    other = await backend.open()
    for handle in (store, other):
        for revision, expected in enumerate(then, 1):
            seen = await handle.sessions.load("s", active_path(), at_revision=revision)
            assert (seen.revision, seen.leaf_id, seen.nodes) == (revision, expected.leaf_id, expected.nodes)
            assert (seen.checkpoint, seen.checkpoint_digest) == (expected.checkpoint, expected.checkpoint_digest)
            assert (seen.config, seen.frames, seen.current_frame_id) == (
                expected.config,
                expected.frames,
                expected.current_frame_id,
            )


async def a_load_before_a_replace_still_shows_what_was_replaced(backend: Backend) -> None:
    """Replace tombstones with its revision; an earlier revision still reads the nodes of its time."""
    store = await backend.open()
    await say(store, "s", "a", "b", "c")
    await commit(store, "s", 1, graph=Replace([draft("a"), draft("z")]))
    assert node_ids(await store.sessions.load("s")) == ["a", "z"]
    assert node_ids(await store.sessions.load("s", active_path(), at_revision=1)) == ["a", "b", "c"]
    assert node_ids(await store.sessions.load("s", active_path(), at_revision=2)) == ["a", "z"]


async def what_vacuum_erased_is_beyond_retention(backend: Backend) -> None:
    """A revision whose path lost nodes to vacuum is NotFound with `retention`, never a shorter path."""
    store = await backend.open()
    await say(store, "s", "a", "b", "c")
    await commit(store, "s", 1, graph=Replace([draft("a"), draft("z")]))
    await store.sessions.vacuum("s")
    with refused(NotFound, retention=True):
        await store.sessions.load("s", active_path(), at_revision=1)
    assert node_ids(await store.sessions.load("s", active_path(), at_revision=2)) == ["a", "z"]


async def a_revision_that_is_not_there_yet_is_not_found(backend: Backend) -> None:
    """Time travel forward is NotFound, and not because of retention."""
    store = await backend.open()
    await say(store, "s", "a")
    with refused(NotFound, retention=False):
        await store.sessions.load("s", at_revision=2)


async def the_history_of_an_earlier_incarnation_is_not_readable(backend: Backend) -> None:
    """After a re-creation, revisions of the deleted life are NotFound, and commits lists only the new one's."""
    store = await backend.open()
    await say(store, "s", "secret")
    await store.sessions.delete("s")
    await store.sessions.create("s")
    receipt = await say(store, "s", "a")
    with refused(NotFound):
        await store.sessions.load("s", at_revision=1)
    assert [record.revision for record in (await store.sessions.commits("s")).commits] == [receipt.revision]


async def a_fork_at_a_revision_shows_what_that_revision_showed(backend: Backend) -> None:
    """What was replaced later is alive in a fork of the revision that had it."""
    store = await backend.open()
    await say(store, "s", "a", "b")
    await commit(store, "s", 1, graph=Replace([draft("z", None)]))
    await store.sessions.fork("s", "old", at=1)
    assert node_ids(await store.sessions.load("old", active_path())) == ["a", "b"]
    await store.sessions.fork("s", "new", at=2)
    assert node_ids(await store.sessions.load("new", active_path())) == ["z"]
