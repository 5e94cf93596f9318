"""Laws of corruption: stored bytes come back bit-exact, or Corrupt names the table and the row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from lash_store.errors import Corrupt
from lash_store.model.graph import active_path
from lash_store.model.process import ExternalRef, Scope, StartGrant, Success
from lash_store.model.queue import Depth
from lash_store.model.session import Frame, Relation
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import NOTE, WAKE, job, lease_of, next_of, process_ids, registered
from lash_store.testing.steps import append, commit, nothing_changes, quiet, refused, work

if TYPE_CHECKING:
    from lash_store import AsyncStore


async def a_changed_node_is_corrupt(backend: Backend) -> None:
    """Another body, kind, frame, cause or parent than was stored is never returned."""
    await _session(backend)
    for column in ("body", "kind", "frame_id", "caused_by"):
        await _damaged(backend, "nodes", column, '"tampered"', where="node_id = 'b'", read=lambda s: s.sessions.load("s"))
        await _damaged(backend, "nodes", column, '"tampered"', where="node_id = 'b'", read=lambda s: s.sessions.node("s", "b"))
        await _damaged(
            backend, "nodes", column, '"tampered"', where="node_id = 'b'", read=lambda s: s.sessions.load("s", active_path())
        )
    await _damaged(backend, "nodes", "parent_id", "c", where="node_id = 'c'", read=lambda s: s.sessions.load("s", active_path()))
    await _damaged(backend, "nodes", "parent_id", "a", where="node_id = 'c'", read=lambda s: s.sessions.load("s", active_path()))


async def a_body_that_does_not_decode_is_corrupt(backend: Backend) -> None:
    """Text that is no JSON is not skipped and not empty."""
    await _session(backend)
    await _damaged(backend, "nodes", "body", "{", where="node_id = 'b'", read=lambda s: s.sessions.load("s"))
    await _damaged(backend, "nodes", "body", None, where="node_id = 'b'", read=lambda s: s.sessions.load("s"))


async def a_missing_ancestor_is_corrupt_not_a_shorter_path(backend: Backend) -> None:
    """A hole in the path is reported, wherever it is."""
    for missing in ("a", "b", "c"):
        store = await _session(backend, f"s-{missing}")
        await backend.raw(f"DELETE FROM {backend.table('nodes')} WHERE session_id = $1 AND node_id = $2", f"s-{missing}", missing)
        with refused(Corrupt):
            await store.sessions.load(f"s-{missing}", active_path())


async def a_cycle_of_parents_is_corrupt_and_ends(backend: Backend) -> None:
    """A path that comes back to itself is reported instead of followed."""
    store = await _session(backend)
    await backend.raw(f"UPDATE {backend.table('nodes')} SET parent_id = 'c' WHERE session_id = 's' AND node_id = 'a'")
    with refused(Corrupt):
        await store.sessions.load("s", active_path())


async def a_changed_checkpoint_is_corrupt(backend: Backend) -> None:
    """A frame that does not restore to its digest, or is gone, is reported by every load of it."""
    await _session(backend)
    await _damaged(backend, "versions", "frame", b"not a frame", where="component = 'c'", read=lambda s: s.sessions.load("s"))
    await _damaged(backend, "versions", "digest", b"\0" * 32, where="component = 'c'", read=lambda s: s.sessions.load("s"))
    store = await backend.open()
    await backend.raw(f"DELETE FROM {backend.table('versions')} WHERE session_id = 's'")
    with refused(Corrupt):
        await store.sessions.load("s")


async def a_swapped_checkpoint_is_corrupt(backend: Backend) -> None:
    """A frame that decodes well but belongs to other content is reported, too."""
    store = await _session(backend)
    await commit(store, "other", 0, checkpoint={"c": b"other content"})
    frame = (await backend.raw(f"SELECT frame FROM {backend.table('versions')} WHERE session_id = 'other'"))[0][0]
    await _damaged(backend, "versions", "frame", bytes(frame), where="component = 'c'", read=lambda s: s.sessions.load("s"))


async def a_changed_batch_is_corrupt(backend: Backend) -> None:
    """Work whose payloads or options changed is neither listed nor handed out."""
    await _session(backend)
    everywhere = "session_id = 's'"
    await _damaged(backend, "batches", "payloads", '["tampered"]', where=everywhere, read=lambda s: s.queue.list("s"))
    await _damaged(backend, "batches", "payloads", "[", where=everywhere, read=lambda s: s.queue.pending("s"))
    await _damaged(backend, "batches", "merge_key", "x", where=everywhere, read=lambda s: s.queue.claim("s", "w", lease_ms=1))
    await _damaged(backend, "batches", "slot", "exclusive", where=everywhere, read=lambda s: s.queue.list("s"))


async def a_corrupt_batch_is_not_leased(backend: Backend) -> None:
    """Finding corrupt work changes nothing: no lease, no attempt, no fence is spent on what cannot be handed out."""
    await _session(backend)
    await backend.raw(f"UPDATE {backend.table('batches')} SET payloads = '[2]' WHERE session_id = 's'")
    store = await backend.open()
    (row,) = await backend.raw(f"SELECT batch_id FROM {backend.table('batches')} WHERE session_id = 's'")
    async with nothing_changes(backend):
        with refused(Corrupt, table="batches"):
            await store.queue.claim("s", "w", lease_ms=1000)
        with refused(Corrupt, table="batches"):
            await store.queue.cancel("s", row[0])
        with refused(Corrupt, table="batches"):
            await store.queue.park("s", row[0], reason="r")


async def one_corrupt_batch_does_not_stop_the_workers_of_other_sessions(backend: Backend) -> None:
    """A search over all sessions takes damaged work out of delivery, where operators look, and goes on."""
    await _session(backend)
    await backend.raw(f"UPDATE {backend.table('batches')} SET payloads = '[2]' WHERE session_id = 's'")
    store = await backend.open()
    await store.sessions.create("later")
    await store.queue.enqueue("later", [1])
    claim = await store.queue.claim_next("w", lease_ms=1000)
    assert claim is not None
    assert claim.session_id == "later"
    rows = await backend.raw(f"SELECT batch_id, parked_reason FROM {backend.table('batches')} WHERE session_id = 's'")
    assert [row[1] for row in rows] == ["corrupt"]
    assert await store.queue.discard("s", rows[0][0])
    assert await store.queue.depth("s") == Depth(ready=0, delayed=0, claimed=0, parked=0)


async def a_changed_receipt_is_corrupt(backend: Backend) -> None:
    """A commit's row answers retries and history only when it is what was stored."""
    await _session(backend)
    where = "turn_id = 't'"
    for column, value in (("leaf_id", "a"), ("committed_ms", 1), ("intent", b"\0" * 32), ("result", "{}")):
        await _damaged(backend, "commits", column, value, where=where, read=lambda s: s.sessions.receipt("s", "t"))
        await _damaged(backend, "commits", column, value, where=where, read=lambda s: s.sessions.commits("s"))
    await _damaged(backend, "commits", "result", "{}", where=where, read=_retry)
    await _damaged(backend, "commits", "intent", b"\0" * 32, where=where, read=_retry)


async def a_changed_config_is_corrupt(backend: Backend) -> None:
    """A config with another body, or none where the head names one, is reported."""
    store = await _session(backend)
    await _damaged(backend, "configs", "body", '{"v":2}', where="session_id = 's'", read=lambda s: s.sessions.load("s"))
    await backend.raw(f"DELETE FROM {backend.table('configs')} WHERE session_id = 's'")
    with refused(Corrupt, table="configs"):
        await store.sessions.load("s")


async def a_changed_frame_is_corrupt(backend: Backend) -> None:
    """Body and state of an agent frame are verified."""
    await _session(backend)
    await _damaged(backend, "frames", "body", "2", where="frame_id = 'f'", read=lambda s: s.sessions.load("s"))
    await _damaged(backend, "frames", "state", b"vn", where="frame_id = 'f'", read=lambda s: s.sessions.load("s"))


async def changed_metadata_is_corrupt(backend: Backend) -> None:
    """Name, model, parent and cause of a session are verified."""
    await _session(backend)
    for column, value in (("name", "x"), ("model", "x"), ("cwd", "x"), ("parent_session_id", "x"), ("caused_by", '"x"')):
        await _damaged(backend, "sessions", column, value, where="session_id = 's'", read=lambda s: s.sessions.get("s"))
    await _damaged(backend, "sessions", "name", "x", where="session_id = 's'", read=lambda s: s.sessions.list(order="id"))


async def a_leaf_that_is_gone_is_corrupt(backend: Backend) -> None:
    """A head that names a node without a row is reported by the path load."""
    store = await _session(backend)
    await backend.raw(f"UPDATE {backend.table('sessions')} SET leaf_id = 'nowhere' WHERE session_id = 's'")
    with refused(Corrupt):
        await store.sessions.load("s", active_path())


# --- processes ------------------------------------------------------------------------------------------------------------


async def a_changed_registration_is_corrupt(backend: Backend) -> None:
    """Another registration than was stored, one that does not decode, or none, is reported by every look at the process."""
    await _process(backend)
    reads: list[Read] = [
        lambda s: s.processes.get("p"),
        lambda s: s.processes.list(state=None),
        lambda s: s.processes.list_grants(Scope("s")),
        lambda s: s.processes.append("p", "note"),
        lambda s: s.processes.register(job("p", NOTE, WAKE, wake_target=Scope("s"))),
    ]
    body = (await backend.raw(f"SELECT body FROM {backend.table('registrations')} WHERE process_id = 'p'"))[0][0]
    for read in reads:
        for value in (body.replace("note", "mote"), "{", "{}"):
            await _broken(backend, "registrations", "body", value, read)
    await backend.raw(f"DELETE FROM {backend.table('registrations')} WHERE process_id = 'p'")
    for read in reads:
        with refused(Corrupt, table="registrations"):
            await read(await backend.open())


async def a_changed_event_is_corrupt(backend: Backend) -> None:
    """Payload, type, key, time, end and delivery of an event are verified by every read, also by a replay."""
    await _process(backend)
    reads: list[Read] = [
        lambda s: s.processes.events("p"),
        lambda s: s.processes.recent("p"),
        lambda s: s.processes.wake_events("p"),
        lambda s: s.processes.wait_event("p", "process.wake", timeout_ms=0),
        lambda s: anext(s.processes.follow("p")),
        lambda s: s.processes.append("p", "process.wake", {"text": "x"}, replay_key="k"),
    ]
    for read in reads:
        for column, value in (("payload", '{"text":"y"}'), ("payload", "{"), ("occurred_ms", 1), ("wake_session_id", "t")):
            await _broken(backend, "events", column, value, read)
    for column, value in (("event_type", "note"), ("replay_key", "l"), ("terminal_state", "failed"), ("wake_batch_id", "b")):
        await _broken(backend, "events", column, value, reads[0])


async def a_hole_in_the_log_is_corrupt_not_a_shorter_log(backend: Backend) -> None:
    """An event that is missing at the beginning, in the middle or at the end is noticed by whoever reads past it."""
    store = await _process(backend)
    for n in range(3):
        await store.processes.append("p", "note", n)
    table = backend.table("events")
    for missing in (2, 1, 4):
        await backend.raw(f"UPDATE {table} SET process_id = 'elsewhere' WHERE process_id = 'p' AND sequence = {missing}")
        with refused(Corrupt, table="events"):
            await store.processes.events("p")
        with refused(Corrupt, table="events"):
            await store.processes.recent("p")
        await backend.raw(f"UPDATE {table} SET process_id = 'p' WHERE process_id = 'elsewhere'")
        assert len((await store.processes.events("p")).events) == 4


async def a_changed_output_is_corrupt(backend: Backend) -> None:
    """An ended process without its output, or with another one, is reported, never taken for one that still runs."""
    store = await _process(backend)
    await store.processes.complete("p", Success({"ok": True}))
    reads: list[Read] = [
        lambda s: s.processes.get("p"),
        lambda s: s.processes.await_output("p", timeout_ms=0),
        lambda s: s.processes.list(state=None),
    ]
    for read in reads:
        for column, value in (
            ("output", '{"type":"success","value":{"ok":false},"control":null}'),
            ("output", "{"),
            ("output", None),
            ("output_digest", None),
            ("output_digest", b"\0" * 32),
        ):
            await _broken(backend, "processes", column, value, read)


async def a_changed_external_reference_is_corrupt(backend: Backend) -> None:
    """Where the work lives is verified; half of it is not none of it."""
    store = await _process(backend)
    await store.processes.set_external_ref("p", ExternalRef(backend="b", id="i"))
    for column, value in (
        ("external_ref", '{"backend":"b","id":"j","metadata":null}'),
        ("external_ref", "{"),
        ("external_ref", None),
        ("external_ref_digest", None),
    ):
        await _broken(backend, "processes", column, value, lambda s: s.processes.get("p"))


async def a_changed_hash_is_corrupt_not_a_conflict(backend: Backend) -> None:
    """A retry is compared with what was stored: a damaged hash is reported, it never makes the retry look wrong."""
    await _process(backend)
    await _broken(
        backend,
        "events",
        "payload_hash",
        b"\0" * 32,
        lambda s: s.processes.append("p", "process.wake", {"text": "x"}, replay_key="k"),
    )
    await backend.raw(f"UPDATE {backend.table('processes')} SET registration_hash = $1 WHERE process_id = 'p'", b"\0" * 32)
    with refused(Corrupt):  # the hash and what it is of live in two tables; which of them is damaged cannot be told
        await (await backend.open()).processes.register(job("p", NOTE, WAKE, wake_target=Scope("s")))


async def a_corrupt_process_is_set_aside_and_stops_nobody(backend: Backend) -> None:
    """It is never leased, the good ones beside it are handed out, and once repaired and broken free it is, too."""
    await _process(backend)
    store, table = await backend.open(), backend.table("registrations")
    await registered(store, "q")
    body = (await backend.raw(f"SELECT body FROM {table} WHERE process_id = 'p'"))[0][0]
    await backend.raw(f"UPDATE {table} SET body = '{{}}' WHERE process_id = 'p'")
    with quiet():
        assert process_ids(await next_of(store, limit=10)) == ["q"]
        assert await next_of(store, limit=10) == ()
    async with nothing_changes(backend):
        with refused(Corrupt, table="registrations"):
            await lease_of(store, "p")
    await backend.raw(f"UPDATE {table} SET body = $1 WHERE process_id = 'p'", body)
    await store.processes.break_lease("p")
    assert process_ids(await next_of(store)) == ["p"]


Read = Callable[["AsyncStore"], Awaitable[object]]


async def _process(backend: Backend) -> AsyncStore:
    store = await backend.open()
    await store.sessions.create("s")
    start = job("p", NOTE, WAKE, wake_target=Scope("s"))
    await store.processes.register(start, grant=StartGrant(scope=Scope("s")))
    await store.processes.append("p", "process.wake", {"text": "x"}, replay_key="k")
    return store


async def _broken(backend: Backend, table: str, column: str, value: object, read: Read) -> None:
    """Change a column of the process's first row, read through a fresh handle, expect Corrupt with the row, put it back."""
    name = backend.table(table)
    where = "process_id = 'p'" + (" AND sequence = 1" if table == "events" else "")
    before = (await backend.raw(f"SELECT {column} FROM {name} WHERE {where}"))[0][0]
    assert before != value
    await backend.raw(f"UPDATE {name} SET {column} = $1 WHERE {where}", value)
    store = await backend.open()
    with refused(Corrupt, table=table) as caught:
        await read(store)
    assert "p" in caught.error.row
    await store.close()
    await backend.raw(f"UPDATE {name} SET {column} = $1 WHERE {where}", before)


async def a_lost_config_or_frame_row_is_corrupt(backend: Backend) -> None:
    """A row that is gone is not an older config or a shorter list of frames."""
    store = await backend.open()
    await commit(store, "s", expected_revision=0, config={"v": 1}, frames=[Frame(frame_id="f"), Frame(frame_id="g")])
    await commit(store, "s", expected_revision=1, config={"v": 2})
    await backend.raw(f"DELETE FROM {backend.table('configs')} WHERE session_id = 's' AND revision = 2")
    with refused(Corrupt, table="configs"):
        await store.sessions.load("s")
    await commit(store, "s", expected_revision=2, config={"v": 3})
    await backend.raw(f"DELETE FROM {backend.table('frames')} WHERE session_id = 's' AND frame_id = 'f'")
    with refused(Corrupt, table="frames"):
        await store.sessions.load("s")


async def _session(backend: Backend, session_id: str = "s") -> AsyncStore:
    store = await backend.open()
    await store.sessions.create(
        session_id, name="n", model="m", cwd="/", relation=Relation(parent_session_id="p", caused_by={"x": 1})
    )
    await _turn(store, session_id)
    await work(store, session_id, "job")
    return await backend.open()


async def _turn(store: AsyncStore, session_id: str) -> object:
    return await commit(
        store,
        session_id,
        0,
        graph=append("a", "b", "c"),
        checkpoint={"c": b"content"},
        config={"v": 1},
        frames=[Frame(frame_id="f", body=1, state=b"vm")],
        turn_id="t",
    )


async def _retry(store: AsyncStore) -> object:
    return await _turn(store, "s")


async def _damaged(
    backend: Backend, table: str, column: str, value: object, *, where: str, read: Callable[[AsyncStore], Awaitable[object]]
) -> None:
    """Change a column, read through a fresh handle, expect Corrupt with the table and the session, and put it back."""
    name = backend.table(table)
    before = (await backend.raw(f"SELECT {column} FROM {name} WHERE session_id = 's' AND {where}"))[0][0]
    assert before != value
    await backend.raw(f"UPDATE {name} SET {column} = $1 WHERE session_id = 's' AND {where}", value)
    store = await backend.open()
    with refused(Corrupt, table=table) as caught:
        await read(store)
    assert "s" in caught.error.row
    await store.close()
    await backend.raw(f"UPDATE {name} SET {column} = $1 WHERE session_id = 's' AND {where}", before)
