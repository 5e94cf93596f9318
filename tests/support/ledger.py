"""Holds what killed processes said against what the database holds. Every disagreement is a sentence; none is good."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from lash_store import AsyncStore
from lash_store.testing import Backend
from tests.support.deeds import COMPONENT, TURNS, Answer, Deed, batch_ids
from tests.support.killer import History

LONG_MS = 60_000  # beyond every lease of a victim


class Stored(Struct, frozen=True):
    """The rows of one session, read past the store's own read model."""

    session_id: str
    revision: int
    node_count: int
    commits: dict[int, str]  # revision -> turn id
    nodes: dict[int, list[dict[str, Any]]]  # revision -> bodies, in their order
    usage: dict[int, int]  # revision -> tokens
    usage_total: int
    checkpoints: set[int]  # revisions that wrote one
    waiting: dict[str, str]  # batch id -> source key
    settled: dict[str, str]


class Ledger:
    """What was begun and what was answered, by key."""

    def __init__(self, history: History) -> None:
        self.failures = history.failures
        self.deeds: dict[str, Deed] = {deed.key: deed for deed in history.begun}
        self.answers: dict[str, list[Answer]] = {}
        for answer in history.answers:
            self.answers.setdefault(answer.key, []).append(answer)

    def of(self, session_id: str, *kinds: str) -> Iterator[Deed]:
        return (deed for deed in self.deeds.values() if deed.session_id == session_id and deed.kind in kinds)

    def done(self, deed: Deed) -> list[Answer]:
        """The answers that said yes."""
        return [answer for answer in self.answers.get(deed.key, []) if answer.refused is None]


async def read(backend: Backend, session_id: str) -> Stored:
    """One session as its tables have it."""

    async def rows(columns: str, table: str, order: str) -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM {backend.table(table)} WHERE session_id = $1 ORDER BY {order}"
        return await backend.raw(sql, session_id)

    [(revision, node_count)] = await rows("revision, node_count", "sessions", "1") or [(0, 0)]
    nodes: dict[int, list[dict[str, Any]]] = {}
    for at, body in await rows("created_revision, body", "nodes", "position"):
        nodes.setdefault(at, []).append(json.loads(body))
    usage: Counter[int] = Counter()
    for at, tokens in await rows("revision, input", "usage_entries", "revision, ordinal"):
        usage[at] += tokens
    return Stored(
        session_id,
        revision,
        node_count,
        dict(await rows("revision, turn_id", "commits", "revision")),  # type: ignore[arg-type]
        nodes,
        dict(usage),
        sum(row[0] for row in await rows("input", "usage_totals", "source")),
        {row[0] for row in await rows("revision", "versions", "revision")},
        dict(await rows("batch_id, source_key", "batches", "enqueue_seq")),  # type: ignore[arg-type]
        dict(await rows("batch_id, source_key", "settled_keys", "enqueue_seq")),  # type: ignore[arg-type]
    )


async def audit(backend: Backend, history: History, sessions: Sequence[str]) -> list[str]:
    """Everything that is wrong. Afterwards all work that was left is claimed and settled."""
    ledger = Ledger(history)
    found = [f"a victim failed: {failure}" for failure in ledger.failures]
    all_stored = [await read(backend, session_id) for session_id in sessions]
    await backend.advance(LONG_MS)
    store = await backend.open()
    for stored in all_stored:
        found += complaints(ledger, stored)
        if stored.revision:
            found += [*await undeliverable(store, stored), *await unreadable(store, stored)]
    await store.close()
    if backend.engine == "sqlite":
        found += [f"integrity_check: {row[0]}" for row in await backend.raw("PRAGMA integrity_check") if row[0] != "ok"]
    return found


def complaints(ledger: Ledger, stored: Stored) -> Iterator[str]:
    """What the rows of a session and the words of its victims disagree about."""
    yield from history_gaps(stored)
    yield from lost_or_invented_turns(ledger, stored)
    yield from halved_turns(ledger, stored)
    yield from lost_batches(ledger, stored)
    yield from doubled_settlements(ledger, stored)
    yield from shared_fences(ledger, stored)


def history_gaps(stored: Stored) -> Iterator[str]:
    if sorted(stored.commits) != list(range(1, stored.revision + 1)):
        yield f"{stored.session_id}: revisions are {sorted(stored.commits)}, the head is at {stored.revision}"
    for turn, count in Counter(stored.commits.values()).items():
        if count > 1:
            yield f"{stored.session_id}: turn {turn} was applied {count} times"


def lost_or_invented_turns(ledger: Ledger, stored: Stored) -> Iterator[str]:
    applied = {turn: revision for revision, turn in stored.commits.items()}
    for turn in applied.keys() - {deed.key for deed in ledger.of(stored.session_id, *TURNS)}:
        yield f"turn {turn} was never begun"
    for deed in ledger.of(stored.session_id, *TURNS):
        done = ledger.done(deed)
        for answer in done:
            if answer.revision != applied.get(deed.key):
                yield f"turn {deed.key} was acknowledged at {answer.revision} and is stored at {applied.get(deed.key)}"
        if not done and deed.key in applied:
            yield f"turn {deed.key} was refused, or its retry did not converge, and is stored at {applied[deed.key]}"
        if deed.key not in ledger.answers:
            yield f"turn {deed.key} got no answer from anybody"


def halved_turns(ledger: Ledger, stored: Stored) -> Iterator[str]:
    """A turn is in all its tables, once, or in none."""
    turns = {key: deed for key, deed in ledger.deeds.items() if deed.kind in TURNS}
    known = {revision: turns[turn] for revision, turn in stored.commits.items() if turn in turns}
    for revision, deed in known.items():
        if stored.nodes.get(revision) != deed.bodies:
            yield f"turn {deed.key} has the nodes {stored.nodes.get(revision)}"
        if stored.usage.get(revision) != 1:
            yield f"turn {deed.key} has usage {stored.usage.get(revision)}"
        if (revision in stored.checkpoints) != (deed.kind == "checkpoint"):
            yield f"turn {deed.key} ({deed.kind}) and its checkpoint disagree"
        if deed.kind == "append" and deed.key not in {*stored.waiting.values(), *stored.settled.values()}:
            yield f"turn {deed.key} is stored and its batch is not"
    if stray := (stored.nodes.keys() | stored.usage.keys() | stored.checkpoints) - stored.commits.keys():
        yield f"rows without a commit at the revisions {sorted(stray)}"
    if stored.node_count != sum(map(len, stored.nodes.values())) or stored.usage_total != stored.revision:
        yield f"{stored.session_id}: the head counts {stored.node_count} nodes, the totals {stored.usage_total} tokens"


def lost_batches(ledger: Ledger, stored: Stored) -> Iterator[str]:
    if both := stored.waiting.keys() & stored.settled.keys():
        yield f"batches {sorted(both)} wait and are settled"
    keys = Counter([*stored.waiting.values(), *stored.settled.values()])
    for key in keys.keys() - {deed.key for deed in ledger.of(stored.session_id, "append", "enqueue")}:
        yield f"batch {key} was never begun"
    for key, count in keys.items():
        if count > 1:
            yield f"batch {key} was enqueued {count} times"
    for deed in ledger.of(stored.session_id, "append", "enqueue"):
        for batch_id in {batch_id for answer in ledger.done(deed) for batch_id in answer.batch_ids}:
            if (stored.waiting | stored.settled).get(batch_id) != deed.key:
                yield f"batch {batch_id} of {deed.key} was acknowledged and is lost"


def doubled_settlements(ledger: Ledger, stored: Stored) -> Iterator[str]:
    """Accepted settlements: acknowledged `settle` calls, and stored turns that complete a claim."""
    accepted: Counter[str] = Counter()
    for deed in ledger.of(stored.session_id, "settle"):
        accepted.update(deed.settles if ledger.done(deed) else ())
    for deed in ledger.of(stored.session_id, "finish"):
        accepted.update(deed.settles if deed.key in stored.commits.values() else ())
    for batch_id, count in accepted.items():
        if count > 1:
            yield f"batch {batch_id} was settled {count} times"
        if batch_id not in stored.settled:
            yield f"batch {batch_id} was settled and is not remembered as such"
    tried = {batch_id for deed in ledger.of(stored.session_id, "settle", "finish") for batch_id in deed.settles}
    for batch_id in stored.settled.keys() - tried:
        yield f"batch {batch_id} is settled, which nobody asked for"


def shared_fences(ledger: Ledger, stored: Stored) -> Iterator[str]:
    """No two claims of a session have the same fence."""
    tokens: dict[int, set[str]] = {}
    for deed in ledger.of(stored.session_id, "claim"):
        for answer in ledger.done(deed):
            if answer.claim is not None:
                tokens.setdefault(answer.claim.fence, set()).add(answer.claim.token)
    for fence, holders in tokens.items():
        if len(holders) > 1:
            yield f"fence {fence} was given to {sorted(holders)}"


async def undeliverable(store: AsyncStore, stored: Stored) -> list[str]:
    """All leases have passed: claim what there is, and settle it. It must be exactly what waits."""
    got: list[str] = []
    while claim := await store.queue.claim(stored.session_id, "auditor", lease_ms=LONG_MS, max_batches=100):
        got += batch_ids(claim)
        await store.queue.settle(claim)
    return [] if got == list(stored.waiting) else [f"{stored.session_id}: waiting {list(stored.waiting)}, delivered {got}"]


async def unreadable(store: AsyncStore, stored: Stored) -> list[str]:
    """The store's own reading, which checks every digest, agrees with the rows."""
    snapshot = await store.sessions.load(stored.session_id)
    bodies = [body for _, group in sorted(stored.nodes.items()) for body in group]
    if snapshot.revision != stored.revision or [node.body for node in snapshot.nodes] != bodies:
        return [f"{stored.session_id}: a load says revision {snapshot.revision} with {len(snapshot.nodes)} nodes"]
    last = max(stored.checkpoints, default=None)
    if last is not None and not snapshot.checkpoint[COMPONENT].startswith(f"{stored.commits[last]} ".encode()):
        return [f"{stored.session_id}: the checkpoint is not that of revision {last}"]
    return []
