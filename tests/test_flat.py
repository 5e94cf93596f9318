"""Nothing grows with history: the work of an operation is counted, not timed, in a small store and in a large one.

SQLite counts the steps of its virtual machine, PostgreSQL the rows it reads. Both are the same on every run and every machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
import pytest

from lash_store import (
    Append,
    BatchDraft,
    Commit,
    EventDraft,
    EventType,
    NodeDraft,
    ProcessInput,
    Registration,
    Store,
    Usage,
    active_path,
)
from lash_store.db import sqlite
from lash_store.store._sync.transaction import Transaction

Nouns = Store | Transaction
Act = Callable[[Nouns], object]

FEW, MANY = 20, 1_000
PER_COMMIT = 20
SLACK = 30  # PostgreSQL reads a table of a page or two whole; a longer one it must not
HOUR_MS = 3_600_000


class Meter(Protocol):
    """A store and the work its operations take."""

    store: Store

    def work(self, act: Act) -> int: ...


class Steps:
    """SQLite: steps of the virtual machine, of all connections."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._taken, connect = 0, sqlite.connect

        def watched(*args: Any, **named: Any) -> apsw.Connection:
            connection = connect(*args, **named)
            connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._add)
            return connection

        monkeypatch.setattr(sqlite, "connect", watched)
        self.store = Store.open(path)

    def work(self, act: Act) -> int:
        before = self._taken
        act(self.store)
        return self._taken - before

    def _add(self, event: dict[str, Any]) -> None:
        self._taken += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


class Reads:
    """PostgreSQL: rows that were read in the transaction of the operation, by scans and through indexes, functions included."""

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self.store = Store.open(url, schema=schema)

    def work(self, act: Act) -> int:
        # As autovacuum does within a minute. Before it, a plan made for a table of a page may still read the table whole.
        asyncio.run(self._analyze())
        return self._rows(act)

    def _rows(self, act: Act) -> int:
        with self.store.transaction() as transaction:
            before = self._read(transaction)
            act(transaction)
            return self._read(transaction) - before

    def _read(self, transaction: Transaction) -> int:
        counts = "coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
        sql = f"SELECT sum({counts})::bigint FROM pg_stat_xact_user_tables WHERE schemaname = $1"
        return transaction.execute(sql, self._schema)[0][0]

    async def _analyze(self) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            for table in ("sessions", "branches", "nodes", "commits", "components", "versions", "batches", "events", "processes"):
                await connection.execute(f'ANALYZE "{self._schema}".{table}')
        finally:
            await connection.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def meter(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    if request.param == "sqlite":
        counted: Meter = Steps(tmp_path / "flat.db", monkeypatch)
    else:
        counted = Reads(request.getfixturevalue("pg_url"), request.getfixturevalue("pg_schema"))
    with counted.store:
        yield counted


def grown(meter: Meter, act: Act, grow: Callable[[Store, int, int], None]) -> tuple[int, int]:
    """The work of `act` after FEW things, and after MANY."""
    grow(meter.store, 0, FEW)
    meter.work(act)  # the first of its kind may have something to set up
    few = meter.work(act)
    grow(meter.store, FEW, MANY)
    return few, meter.work(act)


def assert_flat(meter: Meter, act: Act, grow: Callable[[Store, int, int], None]) -> None:
    few, many = grown(meter, act, grow)
    assert 0 < many <= few * 1.25 + (SLACK if isinstance(meter, Reads) else 0), f"{few} became {many}"


# --- what there is more and more of -----------------------------------------------------------------------------------------


def turns(store: Store, first: int, last: int) -> None:
    """A conversation of one branch, with history, versions and usage."""
    for _ in range(first, last, PER_COMMIT):
        say(store, PER_COMMIT)


def say(nouns: Nouns, nodes: int = 1) -> None:
    """A turn on what is there now."""
    revision = nouns.sessions.load("s", active_path(last=1)).revision if exists(nouns) else 0
    nouns.sessions.commit(
        "s",
        Commit(
            expected_revision=revision,
            turn_id=f"turn-{revision}",
            graph=Append([NodeDraft(body={"text": "word " * 20}) for _ in range(nodes)]),
            checkpoint={"state": b"%d " % revision * 50},
            usage=[Usage(source="chat", model="m", input=1)],
        ),
    )


def exists(nouns: Nouns) -> bool:
    return bool(nouns.sessions.list(limit=1).sessions)


def strangers(store: Store, first: int, last: int) -> None:
    """Branches beside the one of three nodes that is loaded."""
    if first == 0:
        say(store, 3)
    leaf = store.sessions.load("s", active_path()).leaf_id
    for n in range(first, last, PER_COMMIT):
        nodes = [NodeDraft(node_id=f"b{n + i}", parent_id=None, body=n) for i in range(PER_COMMIT)]
        store.sessions.commit("s", Commit(expected_revision=None, graph=Append(nodes, leaf=leaf)))


def backlog(store: Store, first: int, last: int) -> None:
    """Work that waits in one inbox."""
    store.sessions.create("s")
    for n in range(first, last, PER_COMMIT):
        drafts = [BatchDraft(payloads=[n + i], source_key=f"k{n + i}") for i in range(PER_COMMIT)]
        store.sessions.commit("s", Commit(expected_revision=None, graph=Append([]), enqueues=drafts))


def busy_sessions(store: Store, first: int, last: int) -> None:
    """Sessions whose work nobody may take now, because it is held or delayed, and some that are free."""
    for n in range(first // 2, last // 2):
        delayed = BatchDraft(payloads=[2], delay_ms=HOUR_MS)
        enqueues = [delayed] if n % 10 else [BatchDraft(payloads=[1]), delayed]
        store.sessions.commit(f"busy-{n}", Commit(expected_revision=None, graph=Append([]), enqueues=enqueues))
        assert n % 10 or store.queue.claim(f"busy-{n}", "another", lease_ms=HOUR_MS) is not None
    for n in range(10):
        free = [BatchDraft(payloads=[1])]
        store.sessions.commit(f"free-{first}-{n}", Commit(expected_revision=None, graph=Append([]), enqueues=free))


def a_long_log(store: Store, first: int, last: int) -> None:
    """Events of one process."""
    if first == 0:
        note = EventType(name="note")
        store.processes.register(Registration(process_id="p", input=ProcessInput("job", None), event_types=[note]))
    for n in range(first, last, PER_COMMIT):
        store.processes.append_many("p", [EventDraft(event_type="note", payload=n + i) for i in range(PER_COMMIT)])


# --- what costs the same ----------------------------------------------------------------------------------------------------


def test_a_commit_does_not_grow_with_the_conversation(meter: Meter) -> None:
    assert_flat(meter, say, turns)


def test_the_end_of_a_path_does_not_grow_with_the_conversation(meter: Meter) -> None:
    assert_flat(meter, lambda nouns: nouns.sessions.load("s", active_path(last=5), checkpoint=False), turns)


def test_a_checkpoint_does_not_grow_with_its_history(meter: Meter) -> None:
    few, many = grown(meter, lambda nouns: nouns.sessions.load("s", active_path(last=1)), turns)
    # The chain of deltas is between 1 and 16 long, wherever it stands.
    assert 0 < many <= few + 16 * 20 + SLACK


def test_a_path_does_not_grow_with_the_branches_beside_it(meter: Meter) -> None:
    assert_flat(meter, lambda nouns: nouns.sessions.load("s", active_path(), checkpoint=False), strangers)


def test_one_node_does_not_grow_with_the_conversation(meter: Meter) -> None:
    leaf: list[str] = []

    def look(nouns: Nouns) -> object:
        leaf[:] = leaf or [node.node_id for node in nouns.sessions.load("s", active_path(last=1)).nodes]
        return nouns.sessions.node("s", leaf[0])

    assert_flat(meter, look, turns)


def test_an_append_does_not_grow_with_the_log(meter: Meter) -> None:
    assert_flat(meter, lambda nouns: nouns.processes.append("p", "note", 1), a_long_log)


def test_a_claim_does_not_grow_with_the_inbox(meter: Meter) -> None:
    def claim(nouns: Nouns) -> None:
        taken = nouns.queue.claim("s", "worker", lease_ms=HOUR_MS)
        assert taken is not None
        nouns.queue.abandon(taken)

    assert_flat(meter, claim, backlog)


def test_the_next_claim_does_not_grow_with_the_busy_sessions(meter: Meter) -> None:
    def claim(nouns: Nouns) -> None:
        assert nouns.queue.claim_next("worker", lease_ms=HOUR_MS) is not None

    assert_flat(meter, claim, busy_sessions)


def test_a_scan_is_noticed(meter: Meter) -> None:
    """The negative control: a load of everything grows with everything."""
    few, many = grown(meter, lambda nouns: nouns.sessions.load("s"), turns)
    assert many > 20 * few


def test_an_enqueue_does_not_grow_with_the_inbox(meter: Meter) -> None:
    assert_flat(meter, lambda nouns: nouns.queue.enqueue("s", [1]), backlog)


def test_settling_does_not_grow_with_the_inbox(meter: Meter) -> None:
    def work(nouns: Nouns) -> None:
        taken = nouns.queue.claim("s", "worker", lease_ms=HOUR_MS)
        assert taken is not None
        nouns.queue.settle(taken)

    assert_flat(meter, work, backlog)


def test_a_repeated_claim_does_not_grow_with_the_inbox(meter: Meter) -> None:
    def claim(nouns: Nouns) -> None:
        taken = nouns.queue.claim("s", "worker", lease_ms=HOUR_MS, token="lost answer")
        assert taken is not None
        assert nouns.queue.claim("s", "worker", lease_ms=HOUR_MS, token="lost answer") == taken
        nouns.queue.abandon(taken)

    assert_flat(meter, claim, backlog)


def test_a_claim_does_not_grow_with_the_batches_others_hold(meter: Meter) -> None:
    def held(store: Store, first: int, last: int) -> None:
        backlog(store, first, last)
        for _ in range(first, last, PER_COMMIT):
            assert store.queue.claim("s", "another", lease_ms=HOUR_MS, max_batches=PER_COMMIT - 1) is not None

    def claim(nouns: Nouns) -> None:
        taken = nouns.queue.claim("s", "worker", lease_ms=HOUR_MS)
        assert taken is not None
        nouns.queue.abandon(taken)

    assert_flat(meter, claim, held)
