"""Moving state between stores: read what one session or process owns in one snapshot, write it as a whole elsewhere.

Pages bound what is in memory, whatever a session holds. A row travels as it is, without the claims and leases on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString, Protocol

from msgspec import Struct

from lash_store.model.limits import MIB
from lash_store.ops import triggers
from lash_store.ops.heads import lock_sessions, refresh_ready
from lash_store.ops.processes import lock_processes
from lash_store.ops.statement import Op, Row, execute, execute_many, fetch, fetch_one, ring
from lash_store.ops.transfer_rows import settled
from lash_store.ops.transfer_session_tables import SESSION
from lash_store.ops.transfer_table import Table, Values
from lash_store.ops.transfer_tables import PROCESS

PAGE_ROWS = 500  # rows read or written by one statement
PAGE_BYTES = 4 * MIB  # and at most so many bytes of them, unless a single row is larger
SUBSCRIPTIONS_PER_STEP = 500  # subscriptions that one statement removes

Key = tuple[str | int, ...]


class Kind(Struct, frozen=True):
    """What travels as a whole: its name, and the tables it owns rows in, the head first."""

    name: str
    tables: tuple[Table, ...]


SESSIONS, PROCESSES = Kind("session", SESSION), Kind("process", PROCESS)


class Sink(Protocol):
    """Takes rows as they are read. `restart` forgets them: a driver may run a read again."""

    def restart(self) -> None: ...
    def add(self, table: Table, rows: Sequence[Values]) -> None: ...


# --- reading --------------------------------------------------------------------------------------------------------------


def read(kind: Kind, id: str, sink: Sink) -> Op[bool]:
    """Everything one session or process owns, in the order of its tables and keys. False when there is no such thing.

    A deleted session owns nothing but its tombstone, even while its rows are still being removed.
    """
    sink.restart()
    head_table, *others = kind.tables
    rows = yield from _rows(head_table.page, id, (), PAGE_ROWS)
    if not rows:
        return False
    head = settled(head_table, dict(zip(head_table.columns, rows[0], strict=True)))
    sink.add(head_table, [head])
    for table in others if head["state"] != "deleted" else ():
        key: Key | None = table.start()
        while key is not None:
            page = yield from page_after(table, id, key)
            sink.add(table, page.rows)
            key = page.next_key
    return True


class Page(Struct, frozen=True):
    """Some rows in key order, and the key to go on after; None at the end."""

    rows: list[Values]
    next_key: Key | None


def page_after(table: Table, id: str, key: Key) -> Op[Page]:
    """The next rows after a key: as many as fit, at least one."""
    limit = PAGE_ROWS
    if table.weigh is not None:
        limit = fitting([row[0] for row in (yield from _rows(table.weigh, id, key, PAGE_ROWS))])
    found = yield from _rows(table.page, id, key, limit)
    rows = [settled(table, dict(zip(table.columns, row, strict=True))) for row in found]
    more = bool(table.key) and len(rows) == limit and limit > 0
    return Page(rows, tuple(rows[-1][name] for name in table.key) if more else None)


def fitting(sizes: Sequence[int]) -> int:
    """How many rows of these sizes fit into one page: at least one, if there is one."""
    total = 0
    for place, size in enumerate(sizes):
        total += size
        if total > PAGE_BYTES:
            return max(1, place)
    return len(sizes)


def _rows(sql: LiteralString, id: str, key: Key, limit: int) -> Op[list[Row]]:
    return (yield from fetch(sql, id=id, **{f"k{place}": value for place, value in enumerate(key)}, limit=limit))


def shared_page(table: Table, key: Key) -> Op[Page]:
    """Some rows of a table that belongs to the whole store."""
    return (yield from page_after(table, "", key))


IDS: dict[str, LiteralString] = {
    "session": "SELECT session_id FROM {sessions} WHERE session_id > :after ORDER BY session_id LIMIT :limit",
    "process": "SELECT process_id FROM {processes} WHERE process_id > :after ORDER BY process_id LIMIT :limit",
}


def ids_after(kind: Kind, after: str, limit: int) -> Op[list[str]]:
    """The ids of all sessions, tombstones too, or of all processes, in their order."""
    rows = yield from fetch(IDS[kind.name], after=after, limit=limit)
    return [row[0] for row in rows]


def total() -> Op[int]:
    """How many sessions, processes and rows of the whole store there are to look at."""
    row = yield from fetch_one(
        """
        SELECT (SELECT COUNT(*) FROM {sessions}) + (SELECT COUNT(*) FROM {processes})
             + (SELECT COUNT(*) FROM {deliveries}) + (SELECT COUNT(*) FROM {occurrences}) + (SELECT COUNT(*) FROM {schedules})
             + (SELECT COUNT(*) FROM {subscriptions}) + (SELECT COUNT(*) FROM {counters}) + (SELECT COUNT(*) FROM {artifacts})
        """
    )
    assert row is not None
    return row[0]


# --- comparing ------------------------------------------------------------------------------------------------------------


def commit_digest(session_id: str, revision: int) -> Op[bytes | None]:
    """The digest of one commit: two stores that have the same one have the same history up to it."""
    row = yield from fetch_one(
        "SELECT digest FROM {commits} WHERE session_id = :session_id AND revision = :revision",
        session_id=session_id,
        revision=revision,
    )
    return None if row is None else bytes(row[0])


def event_digest(process_id: str, sequence: int) -> Op[bytes | None]:
    """The digest of one event."""
    row = yield from fetch_one(
        "SELECT digest FROM {events} WHERE process_id = :process_id AND sequence = :sequence",
        process_id=process_id,
        sequence=sequence,
    )
    return None if row is None else bytes(row[0])


def work(session_id: str, *, after: int, limit: int) -> Op[list[tuple[int, str, bool]]]:
    """Place, id and openness of the messages a session has or remembers, in the order they came."""
    rows = yield from fetch(
        """
        SELECT enqueue_seq, batch_id, 1 FROM {batches} WHERE session_id = :session_id AND enqueue_seq > :after
        UNION ALL
        SELECT enqueue_seq, batch_id, 0 FROM {settled_keys} WHERE session_id = :session_id AND enqueue_seq > :after
        ORDER BY 1
        LIMIT :limit
        """,
        session_id=session_id,
        after=after,
        limit=limit,
    )
    return [(row[0], row[1], row[2] == 1) for row in rows]


def work_at(session_id: str, places: Sequence[int]) -> Op[dict[int, tuple[str, bool]]]:
    """The id and openness of the messages at some places."""
    rows = yield from fetch(
        """
        SELECT enqueue_seq, batch_id, 1 FROM {batches}
        WHERE session_id = :session_id AND enqueue_seq {any_int:places}
        UNION ALL
        SELECT enqueue_seq, batch_id, 0 FROM {settled_keys}
        WHERE session_id = :session_id AND enqueue_seq {any_int:places}
        """,
        session_id=session_id,
        places=list(places),
    )
    return {row[0]: (row[1], row[2] == 1) for row in rows}


# --- writing --------------------------------------------------------------------------------------------------------------


def lock(kind: Kind, id: str) -> Op[None]:
    """Keep others away from what is about to be replaced."""
    if kind is SESSIONS:
        yield from lock_sessions([id])
    else:
        yield from lock_processes([id])


def clear(kind: Kind, id: str) -> Op[None]:
    """Remove everything a locked session or process owns; the contents a session held are left to a sweep."""
    for table in kind.tables:
        yield from _run(table.clear, id)


def _run(sql: LiteralString, id: str) -> Op[int]:
    return (yield from execute(sql, id=id))


def clear_subscriptions(session_id: str) -> Op[None]:
    """Remove what an earlier life of a session subscribed to, as its deletion did in the source."""
    complete = False
    while not complete:
        complete = (yield from triggers.delete_for_session_step(session_id, SUBSCRIPTIONS_PER_STEP)).complete


def insert(table: Table, rows: Sequence[Values]) -> Op[None]:
    """Write rows as they are."""
    yield from _insert(table.insert, rows)


def _insert(sql: LiteralString, rows: Sequence[Values]) -> Op[None]:
    count = yield from execute_many(sql, rows)
    assert count == len(rows), "a row was not written"


def finish(kind: Kind, id: str) -> Op[None]:
    """Compute what follows from the rows, and wake those who wait for them."""
    if kind is SESSIONS:
        yield from refresh_ready([id])
        yield from ring("commits", id)
        yield from ring("inbox", id)
    else:
        yield from ring("process", id)
        yield from ring("runnable", "any")


def expect_bytes(attachment_id: str, byte_len: int) -> Op[None]:
    """Know of a content before its bytes come: if nobody holds it in the end, a sweep takes them."""
    yield from execute(
        """
        INSERT INTO {digests} (attachment_id, byte_len, released_ms) VALUES (:attachment_id, :byte_len, {now_ms})
        ON CONFLICT (attachment_id) DO UPDATE
        SET released_ms = CASE WHEN {digests}.released_ms IS NULL THEN NULL ELSE excluded.released_ms END
        """,
        attachment_id=attachment_id,
        byte_len=byte_len,
    )
