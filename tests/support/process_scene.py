"""What processes that get killed do: calls that anybody can make again with the same keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, Protocol

from msgspec import Struct

from lash_store import (
    Append,
    AsyncStore,
    Claim,
    ClaimLost,
    Commit,
    Const,
    EventDraft,
    EventType,
    Interval,
    Lease,
    Missed,
    NodeDraft,
    OccurrenceRequest,
    Pointer,
    ProcessInput,
    ProcessState,
    Registration,
    Scope,
    StartGrant,
    Store,
    SubscriptionDraft,
    Success,
    Terminal,
    Usage,
    Wake,
)
from lash_store.testing import Backend

HOUR_MS = 3_600_000
NOTE = EventType(name="note")
STEP = EventType(name="step", wake=Wake(input=Pointer("/text")))
NAG = EventType(name="nag", wake=Wake(input=Pointer("/text"), dedupe=Pointer("/about")))
DONE = EventType(name="done", terminal=Terminal(state=ProcessState.COMPLETED), wake=Wake(input=Const("done")))

Kind = Literal[
    "append", "append-many", "complete", "finish", "register", "emit", "tick", "commit", "enqueue", "claim", "settle"
]  # fmt: skip
OF_PROCESSES: tuple[Kind, ...] = ("append", "append-many", "complete", "finish", "register", "emit", "tick")
WITH_FUNCTION: tuple[Kind, ...] = ("append", "append-many", "commit", "enqueue", "claim", "settle")  # on PostgreSQL


class Deed(Struct, frozen=True, kw_only=True):
    """One call in a session of its own."""

    kind: Kind
    session_id: str
    process_id: str
    lease: Lease | None = None
    claim: Claim | None = None


class Trace(Struct, frozen=True, kw_only=True):
    """What of a deed can be seen in the tables, counted on one snapshot."""

    processes: int = 0
    ended: int = 0
    leased: int = 0
    events: int = 0
    sequences: int = 0
    batches: int = 0
    grants: int = 0
    occurrences: int = 0
    started: int = 0
    failed: int = 0
    reserved: int = 0
    commits: int = 0
    nodes: int = 0
    claimed: int = 0
    settled: int = 0


HELD = Trace(processes=1, leased=1)
NOTHING: dict[Kind, Trace] = {
    "append": HELD,
    "append-many": HELD,
    "complete": HELD,
    "finish": HELD,
    "register": Trace(),
    "emit": Trace(),
    "tick": Trace(),
    "commit": Trace(commits=1, nodes=1, batches=1, claimed=1),
    "enqueue": Trace(),
    "claim": Trace(batches=1),
    "settle": Trace(batches=1, claimed=1),
}
WHOLE: dict[Kind, Trace] = {
    "append": Trace(processes=1, leased=1, events=1, sequences=1, batches=1),
    "append-many": Trace(processes=1, leased=1, events=4, sequences=4, batches=2),
    "complete": Trace(processes=1, ended=1, events=1, sequences=1),
    "finish": Trace(processes=1, ended=1, events=1, sequences=1, batches=1),
    "register": Trace(processes=1, grants=1),
    "emit": Trace(processes=1, grants=1, occurrences=1, started=1, failed=1),
    "tick": Trace(processes=1, grants=1, occurrences=1, started=1),
    "commit": Trace(commits=2, nodes=3, settled=1),
    "enqueue": Trace(batches=1),
    "claim": Trace(batches=1, claimed=1),
    "settle": Trace(settled=1),
}


def job_of(process_id: str, session_id: str, *, kind: str = "job") -> Registration:
    """A process that wakes its session."""
    return Registration(
        process_id=process_id,
        input=ProcessInput(kind),
        event_types=[NOTE, STEP, NAG, DONE],
        originator=Scope(session_id),
        wake_target=Scope(session_id),
    )


def wish_of(session_id: str, key: str, **fields: Any) -> SubscriptionDraft:
    """A subscription of a session to a source of its own, whose process wakes it."""
    return SubscriptionDraft(
        source_type="test",
        source_key=session_id,
        target=ProcessInput("job", {}),
        registrant=Scope(session_id),
        registration_key=key,
        wake_target=Scope(session_id),
        **fields,
    )


# --- before the deed --------------------------------------------------------------------------------------------------------


class Movable(Protocol):
    """A clock that tests move."""

    async def advance(self, ms: int) -> None: ...


async def arranged(clock: Movable, store: AsyncStore, kind: Kind, name: str) -> Deed:
    """Everything that must be there before the deed can be done."""
    session_id, process_id = f"s {name}", f"p {name}"
    await store.sessions.create(session_id)
    lease: Lease | None = None
    claim: Claim | None = None
    if NOTHING[kind] == HELD:
        await store.processes.register(job_of(process_id, session_id))
        lease = await store.processes.claim(process_id, "worker", incarnation="1", lease_ms=HOUR_MS)
    elif kind == "emit":
        await store.triggers.subscribe(wish_of(session_id, "any"))
        await store.triggers.subscribe(wish_of(session_id, "fussy", payload_schema={"type": "string"}))
    elif kind == "tick":
        schedule = Interval(HOUR_MS, missed=Missed.ALL)
        await store.triggers.subscribe(wish_of(session_id, "hourly", schedule=schedule))
        await clock.advance(HOUR_MS + 1)
    elif NOTHING[kind].batches:
        await store.queue.enqueue(session_id, ["work"], source_key="work")
    if NOTHING[kind].commits:
        await store.sessions.commit(session_id, Commit(expected_revision=0, graph=Append([NodeDraft(body="first")])))
    if NOTHING[kind].claimed:
        claim = await store.queue.claim(session_id, "worker", lease_ms=HOUR_MS)
    return Deed(kind=kind, session_id=session_id, process_id=process_id, lease=lease, claim=claim)


async def put_away(store: AsyncStore, deed: Deed) -> None:
    """A schedule goes on for ever unless it is cancelled."""
    if deed.kind == "tick":
        for subscription in (await store.triggers.list(session_id=deed.session_id)).subscriptions:
            await store.triggers.cancel(deed.session_id, subscription.handle)


# --- the deed ---------------------------------------------------------------------------------------------------------------


def do(store: Store, deed: Deed) -> Any:
    """Make the call, and tell what came of it."""
    return _CALLS[deed.kind](store, deed)


def _append(store: Store, deed: Deed) -> Any:
    done = store.processes.append(deed.process_id, "step", {"text": "one"}, replay_key="one", lease=deed.lease)
    return done.event.sequence


def _append_many(store: Store, deed: Deed) -> Any:
    nag = {"text": "again", "about": deed.process_id}
    drafts = [
        EventDraft(event_type="step", payload={"text": "one"}, replay_key="one"),
        EventDraft(event_type="nag", payload=nag, replay_key="two"),
        EventDraft(event_type="note", replay_key="three"),
        EventDraft(event_type="nag", payload=nag),
    ]
    done = store.processes.append_many(deed.process_id, drafts, lease=deed.lease, key="call")
    return [each.event.sequence for each in done]


def _complete(store: Store, deed: Deed) -> Any:
    return store.processes.complete(deed.process_id, Success({"n": 1}), lease=deed.lease).state


def _finish(store: Store, deed: Deed) -> Any:
    done = store.processes.append(deed.process_id, "done", {"n": 1}, replay_key="end", lease=deed.lease)
    return done.event.sequence


def _register(store: Store, deed: Deed) -> Any:
    registration = job_of(deed.process_id, deed.session_id)
    return store.processes.register(registration, grant=StartGrant(scope=Scope(deed.session_id))).process_id


def _emit(store: Store, deed: Deed) -> Any:
    report = store.triggers.emit(
        OccurrenceRequest(source_type="test", source_key=deed.session_id, idempotency_key="once", payload={"n": 1})
    )
    return sorted(each.delivery.state for each in report.outcomes)


def _tick(store: Store, deed: Deed) -> Any:
    store.triggers.tick()  # how many it fired depends on whether the victim did


def _commit(store: Store, deed: Deed) -> Any:
    commit = Commit(
        expected_revision=1,
        turn_id="turn",
        graph=Append([NodeDraft(body="one"), NodeDraft(body="two")]),
        checkpoint={"state": b"state"},
        usage=[Usage(source="kills", model="m", input=1)],
        completes=[_held(deed)],
    )
    return store.sessions.commit(deed.session_id, commit).revision


def _enqueue(store: Store, deed: Deed) -> Any:
    return store.queue.enqueue(deed.session_id, ["work"], source_key="work").enqueue_seq


def _claim(store: Store, deed: Deed) -> Any:
    claim = store.queue.claim(deed.session_id, "worker", lease_ms=HOUR_MS, token="token")
    return claim and [batch.source_key for batch in claim.batches]


def _settle(store: Store, deed: Deed) -> Any:
    with suppress(ClaimLost):  # who settles again is refused; whether it is settled is seen in the tables
        store.queue.settle(_held(deed))


def _held(deed: Deed) -> Claim:
    assert deed.claim is not None, "this deed needs a claim"
    return deed.claim


_CALLS: dict[Kind, Callable[[Store, Deed], Any]] = {
    "append": _append,
    "append-many": _append_many,
    "complete": _complete,
    "finish": _finish,
    "register": _register,
    "emit": _emit,
    "tick": _tick,
    "commit": _commit,
    "enqueue": _enqueue,
    "claim": _claim,
    "settle": _settle,
}
ANSWERS: dict[Kind, Any] = {
    "append": 1,
    "append-many": [1, 2, 3, 4],
    "complete": "completed",
    "finish": 1,
    "emit": ["failed", "started"],
    "tick": None,
    "commit": 2,
    "enqueue": 1,
    "claim": ["work"],
    "settle": None,
}


def answer_of(deed: Deed) -> Any:
    """What everybody is told who makes the call, the first time and ever after."""
    return ANSWERS.get(deed.kind, deed.process_id)


# --- after the deed ---------------------------------------------------------------------------------------------------------


async def trace_of(backend: Backend, deed: Deed) -> Trace:
    """All of it with one statement: a commit that a dead process asked for may still be on its way."""
    t = backend.table
    mine = f"FROM {t('processes')} WHERE wake_session_id = $1"
    log = f"FROM {t('events')} e JOIN {t('processes')} p ON p.process_id = e.process_id WHERE p.wake_session_id = $1"
    own = f"JOIN {t('subscriptions')} s ON s.subscription_id = d.subscription_id WHERE s.registrant_session_id = $1"
    delivered = f"SELECT COUNT(*) FROM {t('deliveries')} d {own} AND d.state ="
    counts = {
        "processes": f"SELECT COUNT(*) {mine}",
        "ended": f"SELECT COUNT(*) {mine} AND state <> 'running'",
        "leased": f"SELECT COUNT(*) {mine} AND lease_token IS NOT NULL",
        "events": f"SELECT COUNT(*) {log}",
        "sequences": f"SELECT CAST(COALESCE(SUM(last_sequence), 0) AS BIGINT) {mine}",
        "batches": f"SELECT COUNT(*) FROM {t('batches')} WHERE session_id = $1",
        "grants": f"SELECT COUNT(*) FROM {t('grants')} WHERE session_id = $1",
        "occurrences": f"SELECT COUNT(*) FROM {t('occurrences')} WHERE source_key = $1",
        "commits": f"SELECT COUNT(*) FROM {t('commits')} WHERE session_id = $1",
        "nodes": f"SELECT COUNT(*) FROM {t('nodes')} WHERE session_id = $1",
        "claimed": f"SELECT COUNT(*) FROM {t('batches')} WHERE session_id = $1 AND token IS NOT NULL",
        "settled": f"SELECT COUNT(*) FROM {t('settled_keys')} WHERE session_id = $1",
        **{state: f"{delivered} '{state}'" for state in ("started", "failed", "reserved")},
    }
    [row] = await backend.raw(f"SELECT {', '.join(f'({sql})' for sql in counts.values())}", deed.session_id)
    return Trace(**dict(zip(counts, row, strict=True)))
