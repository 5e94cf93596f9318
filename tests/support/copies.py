"""Stores to copy between: places that can be opened and read raw, and a store that has something in every table."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import asyncpg
from msgspec import Struct

from lash_store import (
    Append,
    BatchDraft,
    Branch,
    Commit,
    Descriptor,
    EventBinding,
    EventType,
    ExternalRef,
    Frame,
    Interval,
    NodeDraft,
    OccurrenceRequest,
    Pointer,
    ProcessInput,
    Registration,
    Scope,
    Store,
    SubscriptionDraft,
    Success,
    Usage,
    Wait,
    Wake,
)
from lash_store.db.dialect import TABLES

HOUR_MS = 3_600_000
Rows = dict[str, list[dict[str, Any]]]


class Place(Struct, frozen=True):
    """Where a store is."""

    engine: str
    url: str
    schema: str = "lash_store"
    blobs: str | None = None

    def open(self, **options: Any) -> Store:
        """A store on it; no power is lost in these tests."""
        relaxed = {"durability": "relaxed"} if self.engine == "sqlite" else {"pool_size": 2}
        return Store.open(self.url, schema=self.schema, blobs=self.blobs, **relaxed, **options)

    def rows(self) -> Rows:
        """Every raw row, read outside the store, sorted."""
        tables = [name for name in TABLES if name != "meta"]
        found = self._sqlite_rows(tables) if self.engine == "sqlite" else asyncio.run(self._postgres_rows(tables))
        return {name: sorted(rows, key=repr) for name, rows in found.items()}

    def _sqlite_rows(self, tables: list[str]) -> Rows:
        connection = apsw.Connection(self.url)
        try:
            found: Rows = {}
            for name in tables:
                cursor = connection.execute(f"SELECT * FROM lash_{name} WHERE true")
                found[name] = [dict(zip((c[0] for c in cursor.get_description()), row, strict=True)) for row in cursor]
            return found
        finally:
            connection.close()

    async def _postgres_rows(self, tables: list[str]) -> Rows:
        connection: Any = await asyncpg.connect(self.url)
        try:
            return {
                name: [dict(row) for row in await connection.fetch(f'SELECT * FROM "{self.schema}".{name}')] for name in tables
            }
        finally:
            await connection.close()


def expected(rows: Rows) -> Rows:
    """What a copy of these rows is: the same, but for claims and leases, and what follows from them."""
    after = {name: [dict(row) for row in each] for name, each in rows.items()}
    for batch in after["batches"]:
        batch.update(claim_id=None, owner=None, token=None, claimed_ms=None, expires_ms=None)
    for session in after["sessions"]:
        ready = [
            b["available_ms"] for b in after["batches"] if b["session_id"] == session["session_id"] and b["parked_ms"] is None
        ]
        session.update(ready_ms=min(ready, default=None), open_ms=min(ready, default=None))
    for process in after["processes"]:
        if process["lease_token"] is not None:
            process["runnable_ms"] = process["lease_claimed_ms"]
        lease = ("lease_owner", "lease_incarnation", "lease_token", "lease_claimed_ms", "lease_expires_ms")
        process.update(dict.fromkeys(lease))
    held = {row["attachment_id"] for row in after["attachments"]}
    after["digests"] = [{**row, "released_ms": None} for row in after["digests"] if row["attachment_id"] in held]
    return {name: sorted(each, key=repr) for name, each in after.items()}


def fill(store: Store, *, nodes: int = 5, payload: str = "") -> None:
    """Put something into every table, in every state it can be in."""
    _sessions(store, nodes, payload)
    _inbox(store)
    _attachments(store)
    _processes(store)
    _triggers(store)
    _deleted(store)


def _sessions(store: Store, nodes: int, payload: str) -> None:
    chat = store.sessions.create("chat", name="Plän ✈", config={"model": "a", "ü": [1.5, None]})
    assert chat.revision == 0
    base = bytes(range(256)) * 40
    first = Commit(
        expected_revision=0,
        turn_id="first",
        graph=Append([NodeDraft(body={"n": n, "text": payload}, node_id=f"n{n}") for n in range(nodes)]),
        checkpoint={"memory": base, "plan": b"one", "empty": b""},
        frames=[Frame(frame_id="f", body={"a": 1}, state=b"\x00\xff"), Frame(frame_id="g", body=2)],
        current_frame_id="f",
        usage=[Usage(source="s", model="m", input=3), Usage(source="s", model="other", output=4)],
    )
    store.sessions.commit("chat", first)
    second = Commit(
        expected_revision=1, turn_id="second", checkpoint={"memory": base + b"more", "plan": None}, config={"model": "b"}
    )
    store.sessions.commit("chat", second)
    aside = Append([NodeDraft(body="aside", node_id="aside", parent_id="n1")])
    store.sessions.commit(
        "chat", Commit(expected_revision=2, graph=aside, frames=[Frame(frame_id="g", body=3)], current_frame_id="g")
    )
    store.sessions.commit(
        "chat", Commit(expected_revision=3, graph=Append([NodeDraft(body="gone", node_id="gone", parent_id="n0")]))
    )
    store.sessions.tombstone("chat", ["gone"])
    store.sessions.fork("chat", "fork", at=2)
    store.sessions.vacuum("fork")
    store.sessions.create("bare")
    assert any(isinstance(branch, Branch) for branch in store.sessions.branches("chat").branches)


def _inbox(store: Store) -> None:
    store.queue.enqueue("chat", [{"text": "settled"}], source_key="settled")
    settled = store.queue.claim("chat", "worker", lease_ms=HOUR_MS)
    assert settled is not None
    store.queue.settle(settled)
    parked = store.queue.enqueue("chat", ["parked"])
    store.queue.park("chat", parked.batch_id, reason="a look")
    store.queue.enqueue("chat", ["held"], source_key="held")
    assert store.queue.claim("chat", "worker", lease_ms=HOUR_MS) is not None
    store.queue.enqueue("chat", ["later"], delay_ms=HOUR_MS)
    drafts = [BatchDraft(payloads=["from a turn"], source_key="turn")]
    revision = store.sessions.get("fork").revision
    store.sessions.commit("fork", Commit(expected_revision=revision, turn_id="asks", enqueues=drafts))


def _attachments(store: Store) -> None:
    big = store.attachments.put("chat", b"\x01\x02" * 700_000, media_type="image/png", label="größer", width=3, height=4)
    small = store.attachments.put("chat", b"", media_type="text/plain")
    store.attachments.put("fork", b"\x01\x02" * 700_000, media_type="image/png")
    revision = store.sessions.get("chat").revision
    store.sessions.commit("chat", Commit(expected_revision=revision, attachments=[big.attachment_id, small.attachment_id]))
    unswept = store.attachments.put("bare", b"let go", media_type="text/plain")
    store.attachments.forget("bare", unswept.attachment_id)


def _processes(store: Store) -> None:
    env = store.artifacts.put_env({"image": "python"})
    store.artifacts.put("module", b"\x00code", descriptor="a module")
    store.artifacts.put("raw", b"raw" * 100_000, ref="raw/1")
    wake = EventType(name="found", wake=Wake(input=Pointer("/text")))
    for name in ("running", "waiting", "ended", "pruned"):
        store.session("chat").processes.start(
            Registration(process_id=name, input=ProcessInput("job", {"n": name}), event_types=[wake], env_ref=env)
        )
        store.processes.append(name, "found", {"text": f"found by {name}"}, replay_key="found")
    store.processes.ack_wake("running", 1)
    store.processes.grant(Scope("fork", "f"), "running", descriptor=Descriptor(kind="helper", label="läuft"))
    store.processes.set_external_ref("waiting", ExternalRef(backend="ci", id="7", metadata={"url": "x"}))
    store.processes.set_wait("waiting", Wait(name="go", ordinal=1))
    store.processes.claim("running", "worker", incarnation="1", lease_ms=HOUR_MS)
    store.processes.complete("pruned", Success("old"))
    store.processes.prune(older_than_ms=0)
    store.processes.complete("ended", Success({"answer": 42}))


def _triggers(store: Store) -> None:
    mail = SubscriptionDraft(
        registrant=Scope("chat"),
        registration_key="mail",
        source_type="mail",
        source_key="inbox",
        target=ProcessInput("summarize", {}),
        input_template={"mail": EventBinding()},
        payload_schema={"type": "object"},
    )
    store.triggers.subscribe(mail)
    store.triggers.subscribe(SubscriptionDraft(source_type="timer", target=ProcessInput("sweep", {}), schedule=Interval(HOUR_MS)))
    off = store.triggers.subscribe(SubscriptionDraft(source_type="mail", source_key="inbox", target=ProcessInput("never", {})))
    store.triggers.cancel_host(off.handle)
    for key, payload in (("1", {"subject": "Hello"}), ("2", "not an object")):
        store.triggers.emit(OccurrenceRequest(source_type="mail", source_key="inbox", idempotency_key=key, payload=payload))
    promised = store.triggers.record_occurrence(
        OccurrenceRequest(source_type="mail", source_key="inbox", idempotency_key="3", payload={})
    )
    assert store.triggers.reserve(promised.occurrence_id)


def _deleted(store: Store) -> None:
    store.sessions.create("gone")
    store.sessions.commit("gone", Commit(expected_revision=0, turn_id="t", graph=Append([NodeDraft(body=1)])))
    store.sessions.delete("gone")
    store.sessions.create("again")
    store.sessions.commit("again", Commit(expected_revision=0, turn_id="t"))
    store.sessions.delete("again")
    store.sessions.create("again", name="second life")


def sqlite_place(path: Path, *, blobs: str | None = None) -> Place:
    """A SQLite file."""
    return Place("sqlite", str(path), blobs=blobs)
