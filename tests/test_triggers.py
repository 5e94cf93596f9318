"""Triggers: subscriptions, occurrences, deliveries. Each name is a promise, kept on both engines by both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lash_store import (
    AsyncStore,
    Busy,
    Corrupt,
    DeliveryState,
    EventBinding,
    FixedBinding,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    OccurrenceConflict,
    OccurrenceRequest,
    Outcome,
    ProcessIdentity,
    ProcessInput,
    Registration,
    RegistrationConflict,
    Scope,
    SessionDeleted,
    Unstorable,
)
from lash_store.encode import Encoder
from lash_store.model.limits import DEFAULT_LIMITS
from lash_store.ops import deliveries
from lash_store.ops.deliveries import FANOUT_MAX, delivery_process_id
from lash_store.ops.drafts import source_key
from lash_store.ops.occurrences import prepare_occurrence
from lash_store.ops.statement import Op
from lash_store.testing import Backend
from lash_store.testing.steps import refused, stored, watched
from tests.support.backends import VARIANTS, backend_of, kept
from tests.support.triggers import (
    BLUE,
    BUTTON,
    TABLES,
    Killed,
    killed_at,
    outcomes_of,
    pressed,
    replaced,
    rows_of,
    size_of,
    subscribed,
    wish,
)

STARTED, FAILED, ALREADY = Outcome.STARTED, Outcome.FAILED, Outcome.ALREADY
HASH = "93e835cc58c043e45895883a41ffa460ab70a2372d57b8b6c23920025601c479"
OCCURRENCE = "trigger:6afdfa6994a29e10641199b3c53f3e9cf8668f0d65da23c95c8ba454769ad4f3"


@pytest.fixture(params=VARIANTS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return backend_of(request, tmp_path)


# --- names ----------------------------------------------------------------------------------------------------------------


def test_golden_vectors() -> None:
    encoder = Encoder(DEFAULT_LIMITS)
    key = source_key(BUTTON, {})
    assert key == f"source:{BUTTON}:sha256:{HASH}"
    request = OccurrenceRequest(
        source_type=BUTTON, source_key=key, idempotency_key="button-blue-1", payload={"button": "Blue"}, source={}
    )
    made = prepare_occurrence(request, encoder)
    assert made.occurrence_id == OCCURRENCE
    assert made.request_hash.hex() == "a103c1fceedb515dfddfaf0ce9254867725c11a4ecfe940a28dfec33892bf3c3"
    absent = prepare_occurrence(replace(request, source=None), encoder)
    assert absent.request_hash.hex() == "b02bcddce410a874ac10380ace573ed1b4a7e498d06669169b820427970cddf9"
    process_id = "process:trigger:e4f30cc8f0d340e3058a22af55b1f4b8ae5ebbe7f490c99bd99b1af3200995de"
    assert delivery_process_id(OCCURRENCE, "subscription:1") == process_id


@kept
async def test_a_source_key_is_stable(backend: Backend) -> None:
    """Equal sources have equal keys, whatever the order of their fields; other types and sources have others."""
    store = await backend.open()
    first = await subscribed(store, source_key=None, source={"expr": "0 8 * * *", "tz": "UTC"})
    again = await subscribed(store, source_key=None, source={"tz": "UTC", "expr": "0 8 * * *"})
    assert first.source_key == again.source_key == source_key(BUTTON, {"expr": "0 8 * * *", "tz": "UTC"})
    assert (await subscribed(store, source_key=None, source={})).source_key == f"source:{BUTTON}:sha256:{HASH}"
    assert (await subscribed(store, source_key=None, source_type="other", source={})).source_key != first.source_key


# --- subscriptions --------------------------------------------------------------------------------------------------------


@kept
async def test_subscriptions_are_registered_listed_and_cancelled_by_their_session(backend: Backend) -> None:
    """Handles are unique, the first is trigger:1; a foreign session cannot cancel; a cancelled one stays listed."""
    store = await backend.open()
    a, b = await subscribed(store, "session-a"), await subscribed(store, "session-b")
    assert (a.subscription_id, a.handle, b.handle) == ("subscription:1", "trigger:1", "trigger:2")
    assert (await store.triggers.list(session_id="session-a")).subscriptions == (a,)
    both = await store.triggers.list(source_type=BUTTON, source_key=BLUE, enabled=True)
    assert both.subscriptions == (a, b)
    assert not await store.triggers.cancel("session-b", a.handle)
    assert await store.triggers.cancel("session-a", a.handle)
    assert not await store.triggers.cancel("session-a", a.handle)
    kept_row = (await store.triggers.list(session_id="session-a", handle=a.handle)).subscriptions[0]
    assert not kept_row.enabled
    assert (await store.triggers.list(enabled=True)).subscriptions == (b,)


@kept
async def test_a_subscription_comes_back_as_it_was_made(backend: Backend) -> None:
    """Every field survives, by id and by handle, for another store too."""
    store = await backend.open()
    await store.sessions.create("s")
    draft = wish(
        registrant=Scope("s", "frame-1"),
        registration_key="k",
        name="blue",
        source={"z": 1, "a": [None, "é", 2**70]},
        payload_schema={"type": "object"},
        target=ProcessInput("engine", {"module": "m", "args": "replaced"}),
        identity=ProcessIdentity(kind="script", label="Blue", definition={"module": "m"}),
        input_template={"event": EventBinding(), "mode": FixedBinding(["x"])},
        env_ref="process-env:1",
        wake_target=Scope("s"),
        label="Blue",
    )
    made = await store.triggers.subscribe(draft)
    for name in ("registrant", "name", "source", "payload_schema", "target", "identity", "env_ref", "wake_target", "label"):
        assert getattr(made, name) == getattr(draft, name)
    assert dict(made.input_template) == dict(draft.input_template)
    other = await backend.open()
    assert await other.triggers.get("subscription:1") == await other.triggers.get("trigger:1") == made
    assert (await other.triggers.list(name="blue", definition={"module": "m"})).subscriptions == (made,)
    assert (await other.triggers.list(definition={"module": "n"})).subscriptions == ()
    for unknown in ("trigger:2", "trigger:01", "trigger:", "nonsense", "trigger:99999999999999999999"):
        assert (await other.triggers.list(handle=unknown)).subscriptions == ()
        with refused(NotFound, kind="subscription"):
            await other.triggers.get(unknown)


@kept
async def test_subscriptions_are_listed_by_number_not_by_text(backend: Backend) -> None:
    """The tenth comes after the second, across pages too."""
    store = await backend.open()
    for _ in range(11):
        await subscribed(store)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.triggers.list(limit=4, cursor=cursor)
        seen += [each.handle for each in page.subscriptions]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"trigger:{number}" for number in range(1, 12)]


@kept
async def test_concurrent_subscribers_get_numbers_without_gaps(backend: Backend) -> None:
    """Eight at once over two stores: eight handles, none twice, none lost."""
    stores = [await backend.open(), await backend.open()]
    made = await asyncio.gather(*(stores[i % 2].triggers.subscribe(wish()) for i in range(8)))
    assert sorted(each.number for each in made) == list(range(1, 9))


@kept
async def test_a_registration_key_subscribes_once(backend: Backend) -> None:
    """The same key and content is one subscription, also concurrently; other content is refused; registrants have their own."""
    stores = [await backend.open(), await backend.open()]
    draft = wish(registration_key="k", source={"a": 1, "b": 2})
    made = await asyncio.gather(*(stores[i % 2].triggers.subscribe(draft) for i in range(6)))
    assert {each.handle for each in made} == {"trigger:1"}
    assert await stores[0].triggers.subscribe(replace(draft, source={"b": 2, "a": 1})) == made[0]
    for change in ({"name": "n"}, {"source": 1}, {"label": "l"}, {"target": ProcessInput("job", {"x": 1})}):
        with refused(RegistrationConflict, kind="subscription", id="k"):
            await stores[0].triggers.subscribe(wish(registration_key="k", **{"source": {"a": 1, "b": 2}, **change}))
    assert (await subscribed(stores[0], "s", registration_key="k")).handle == "trigger:2"
    assert await stores[0].triggers.cancel_host("trigger:1")
    assert not (await stores[0].triggers.subscribe(draft)).enabled


@kept
async def test_what_a_session_registered_in_a_frame_is_its_own(backend: Backend) -> None:
    """A registrant with a frame is listed, cancelled and deleted by its session id."""
    store = await backend.open()
    await store.sessions.create("s")
    framed = await subscribed(store, registrant=Scope("s", "frame-1"))
    plain = await subscribed(store, registrant=Scope("s"))
    host = await subscribed(store)
    assert (await store.triggers.list(session_id="s")).subscriptions == (framed, plain)
    assert await store.triggers.cancel("s", framed.handle)
    assert not await store.triggers.cancel("s", host.handle)
    assert not await store.triggers.cancel_host(plain.handle)
    assert await store.triggers.delete_for_session("s") == 2
    assert (await store.triggers.list()).subscriptions == (host,)


@kept
async def test_deleting_a_session_deletes_its_subscriptions_and_their_deliveries(backend: Backend) -> None:
    """In any frame; nothing of them fires afterwards, neither a new occurrence nor one reserved before."""
    store = await backend.open()
    await store.sessions.create("s")
    await subscribed(store, registrant=Scope("s", "frame-1"))
    host = await subscribed(store)
    before = await store.triggers.record_occurrence(pressed("before"))
    assert len(await store.triggers.reserve(before.occurrence_id)) == 2
    await store.sessions.delete("s")
    assert (await store.triggers.list()).subscriptions == (host,)
    assert [each.delivery.subscription_id for each in (await store.triggers.redrive()).outcomes] == [host.subscription_id]
    report = await store.triggers.emit(pressed("after"))
    assert outcomes_of(report) == [(host.subscription_id, STARTED)]
    assert await rows_of(backend, "deliveries", "subscription_id") == [(host.subscription_id,)] * 2


@kept
async def test_a_fenced_session_starts_nothing_before_its_rows_are_gone(backend: Backend) -> None:
    """A deletion that was interrupted after its first step leaves subscriptions that match nobody."""
    store = await backend.open()
    await subscribed(store, "s")
    await backend.raw(f"UPDATE {backend.table('sessions')} SET state = 'purging'")
    report = await store.triggers.emit(pressed())
    assert report.outcomes == ()
    assert await store.triggers.reserve(report.occurrence.occurrence_id) == ()


@kept
async def test_deleting_goes_in_bounded_steps(backend: Backend) -> None:
    """However much a session registered, it all goes, and only its own."""
    store = await backend.open()
    other = await subscribed(store, "other")
    for number in range(3):
        await subscribed(store, "s")
        await store.triggers.emit(pressed(f"press-{number}"))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("lash_store.store.triggers", "lash_store.store._sync.triggers"):
            patch.setattr(f"{module}.COLLECT_ROWS_PER_TRANSACTION", 2)
        assert await store.triggers.delete_for_session("s") == 3
    assert (await store.triggers.list()).subscriptions == (other,)
    assert {row[0] for row in await rows_of(backend, "deliveries", "subscription_id")} == {other.subscription_id}


@kept
async def test_a_subscription_needs_sessions_that_are_there(backend: Backend) -> None:
    """Neither an unknown nor a deleted session can register, or be woken."""
    store = await backend.open()
    await store.sessions.create("gone")
    await store.sessions.delete("gone")
    for scope, error in ((Scope("gone"), SessionDeleted), (Scope("unknown"), NotFound)):
        with refused(error):
            await store.triggers.subscribe(wish(registrant=scope))
        with refused(error):
            await store.triggers.subscribe(wish(wake_target=scope))
    assert await size_of(backend, "subscriptions") == 0


@kept
async def test_bad_drafts_are_refused_before_any_statement(backend: Backend) -> None:
    """What could never start a process is never stored."""
    store, statements = await watched(backend)
    statements.clear()
    bad: list[tuple[type[BaseException], dict[str, Any]]] = [
        (InvalidArgument, {"source_type": "  "}),
        (InvalidArgument, {"source_key": "\u2003"}),
        (Unstorable, {"source_key": ""}),
        (LimitExceeded, {"source_type": "x" * 121}),
        (InvalidArgument, {"target": ProcessInput("job", None)}),
        (InvalidArgument, {"target": ProcessInput("job", [])}),
        (Unstorable, {"target": "job"}),
        (InvalidArgument, {"target": ProcessInput("engine", {})}),
        (InvalidArgument, {"label": "a", "identity": ProcessIdentity(kind="k", label="b")}),
        (InvalidArgument, {"payload_schema": {"type": "nonsense"}}),
        (InvalidArgument, {"payload_schema": {"$ref": "https://example.com/schema"}}),
        (Unstorable, {"source": float("nan")}),
        (Unstorable, {"input_template": {"x": "event"}}),
        (Unstorable, {"input_template": {"x": FixedBinding({1})}}),
        (Unstorable, {"registrant": "session"}),
        (Unstorable, {"registrant": Scope("")}),
        (Unstorable, {"event_types": ["x"]}),
        (Unstorable, {"registration_key": ""}),
        (Unstorable, {"schedule": "0 8 * * *"}),
    ]
    for error, fields in bad:
        with refused(error):
            await store.triggers.subscribe(wish(**fields))
    assert statements == []


# --- occurrences ----------------------------------------------------------------------------------------------------------


@kept
async def test_an_occurrence_is_recorded_and_reserved_once(backend: Backend) -> None:
    """The first reservation has the derived process id; repeating anything reserves nothing more; cancelled ones get none."""
    store = await backend.open()
    subscription = await subscribed(store, "s")
    occurrence = await store.triggers.record_occurrence(pressed())
    assert (occurrence.source_type, occurrence.source_key, occurrence.payload) == (BUTTON, BLUE, {"button": "Blue"})
    (reserved,) = await store.triggers.reserve(occurrence.occurrence_id)
    assert reserved.subscription == subscription
    assert reserved.process_id == delivery_process_id(occurrence.occurrence_id, subscription.subscription_id)
    assert reserved.state is DeliveryState.RESERVED
    assert await store.triggers.reserve(occurrence.occurrence_id) == ()
    assert await store.triggers.record_occurrence(pressed()) == occurrence
    assert await store.triggers.reserve(occurrence.occurrence_id) == ()
    assert await store.triggers.cancel("s", subscription.handle)
    after = await store.triggers.record_occurrence(pressed("press-2"))
    assert await store.triggers.reserve(after.occurrence_id) == ()
    with refused(NotFound, kind="occurrence"):
        await store.triggers.reserve("trigger:unknown")


@kept
async def test_triggers_survive_reopening(backend: Backend) -> None:
    """Another store, later, finds the subscription, the occurrence and the reservation."""
    first = await backend.open()
    subscription = await subscribed(first, "s")
    occurrence = await first.triggers.record_occurrence(pressed())
    await first.triggers.reserve(occurrence.occurrence_id)
    await first.close()
    second = await backend.open()
    assert (await second.triggers.list(source_type=BUTTON, enabled=True)).subscriptions == (subscription,)
    assert await second.triggers.record_occurrence(pressed()) == occurrence
    assert await second.triggers.occurrence(occurrence.occurrence_id) == occurrence
    assert await second.triggers.reserve(occurrence.occurrence_id) == ()
    fresh = await second.triggers.record_occurrence(pressed("press-2"))
    assert [each.subscription for each in await second.triggers.reserve(fresh.occurrence_id)] == [subscription]


@kept
async def test_a_key_belongs_to_its_source(backend: Backend) -> None:
    """Two sources may use one key; one source may not use it for two things; a missing source is a null one."""
    store = await backend.open()
    first = await store.triggers.record_occurrence(pressed("tick-1"))
    second = await store.triggers.record_occurrence(pressed("tick-1", source_key="button:red"))
    third = await store.triggers.record_occurrence(pressed("tick-1", source_type="timer"))
    assert len({first.occurrence_id, second.occurrence_id, third.occurrence_id}) == 3
    for change in ({"payload": {"button": "Red"}}, {"source": {}}):
        with refused(OccurrenceConflict, idempotency_key="tick-1", source_key=BLUE):
            await store.triggers.record_occurrence(pressed("tick-1", **change))
        with refused(OccurrenceConflict):
            await store.triggers.emit(pressed("tick-1", **change))
    assert await store.triggers.record_occurrence(pressed("tick-1", source=None)) == first


@kept
async def test_concurrent_recorders_of_one_key_get_one_occurrence(backend: Backend) -> None:
    """The loser of a race gets the winner's record, not an error."""
    stores = [await backend.open(), await backend.open()]
    for key in ("a", "b", "c"):
        made = await asyncio.gather(*(stores[i % 2].triggers.record_occurrence(pressed(key)) for i in range(8)))
        assert len({(each.occurrence_id, each.occurred_ms) for each in made}) == 1
    assert await size_of(backend, "occurrences") == 3


@kept
async def test_bad_occurrences_are_refused_before_any_statement(backend: Backend) -> None:
    """Blank names, values without a stored form, and the keys schedules use."""
    store, statements = await watched(backend)
    statements.clear()
    bad: list[tuple[type[BaseException], dict[str, Any]]] = [
        (InvalidArgument, {"source_type": " "}),
        (InvalidArgument, {"source_key": "  "}),
        (InvalidArgument, {"key": " "}),
        (InvalidArgument, {"key": "schedule:subscription:1:0"}),
        (Unstorable, {"payload": {1, 2}}),
        (LimitExceeded, {"source_key": "x" * 201}),
    ]
    for error, fields in bad:
        for call in (store.triggers.record_occurrence, store.triggers.emit):
            with refused(error):
                await call(pressed(**fields))
    assert statements == []


# --- emitting -------------------------------------------------------------------------------------------------------------


@kept
async def test_emit_starts_a_process_for_every_matching_subscription(backend: Backend) -> None:
    """With its arguments from the template, its cause, its wake target, and a grant for who is to be woken."""
    store = await backend.open()
    await store.sessions.create("s")
    woken = await subscribed(
        store,
        registrant=Scope("s", "f"),
        target=ProcessInput("job", {"keep": 1, "args": "old"}),
        input_template={"event": EventBinding(), "mode": FixedBinding("x")},
        wake_target=Scope("s", "f"),
        label="Blue",
    )
    host = await subscribed(store)
    await subscribed(store, source_key="button:red")
    report = await store.triggers.emit(pressed())
    assert outcomes_of(report) == [(woken.subscription_id, STARTED), (host.subscription_id, STARTED)]
    first, second = [await store.processes.get(process_id) for process_id in report.started]
    assert first.input == ProcessInput("job", {"keep": 1, "args": {"event": {"button": "Blue"}, "mode": "x"}})
    assert first.caused_by == {"type": "trigger_occurrence", "occurrence_id": report.occurrence.occurrence_id}
    assert (first.originator, first.wake_target) == (Scope("s", "f"), Scope("s", "f"))
    assert (second.originator, second.wake_target) == (None, None)
    assert await rows_of(backend, "grants", "session_id, frame_id, process_id, kind, label") == [
        ("s", "f", first.process_id, "job", "Blue")
    ]


@kept
async def test_emit_without_subscribers_is_a_success(backend: Backend) -> None:
    """The occurrence is recorded; neither a session's head nor its inbox moves."""
    store = await backend.open()
    session = await store.sessions.create("s")
    report = await store.triggers.emit(pressed())
    assert report.outcomes == ()
    assert report.started == ()
    assert await store.triggers.occurrence(report.occurrence.occurrence_id) == report.occurrence
    await subscribed(store, "s", wake_target=Scope("s"))
    await store.triggers.emit(pressed("press-2"))
    assert await store.sessions.get("s") == session
    assert (await store.queue.list("s")).batches == ()


@kept
async def test_emitting_again_starts_nothing_twice(backend: Backend) -> None:
    """A retry says what is done already; a later subscriber gets its own delivery."""
    store = await backend.open()
    first = await subscribed(store)
    report = await store.triggers.emit(pressed())
    again = await store.triggers.emit(pressed())
    assert again.occurrence == report.occurrence
    assert outcomes_of(again) == [(first.subscription_id, ALREADY)]
    assert again.started == ()
    late = await subscribed(store)
    assert outcomes_of(await store.triggers.emit(pressed())) == [
        (first.subscription_id, ALREADY),
        (late.subscription_id, STARTED),
    ]
    assert await size_of(backend, "processes") == 2


@kept
async def test_eight_emits_of_one_key_start_one_process_each(backend: Backend) -> None:
    """Over four stores at once: one occurrence, one process per subscription, and one caller that started it."""
    stores = [await backend.open() for _ in range(4)]
    await stores[0].sessions.create("s")
    for _ in range(2):
        await subscribed(stores[0], wake_target=Scope("s"))
    reports = await asyncio.gather(*(stores[i % 4].triggers.emit(pressed()) for i in range(8)))
    started = [process_id for report in reports for process_id in report.started]
    assert len(started) == len(set(started)) == 2
    assert {report.occurrence.occurred_ms for report in reports} == {reports[0].occurrence.occurred_ms}
    assert [await size_of(backend, table) for table in ("occurrences", "deliveries", "processes", "grants")] == [1, 2, 2, 2]


@kept
async def test_a_delivery_that_cannot_start_says_why_and_hinders_no_other(backend: Backend) -> None:
    """A payload its schema refuses fails that delivery for good; the others start; nothing is dropped from the report."""
    store = await backend.open()
    picky = await subscribed(store, payload_schema={"type": "object", "required": ["colour"]})
    easy = await subscribed(store)
    report = await store.triggers.emit(pressed())
    assert outcomes_of(report) == [(picky.subscription_id, FAILED), (easy.subscription_id, STARTED)]
    failed = report.outcomes[0].delivery
    assert failed.state is DeliveryState.FAILED
    assert failed.error is not None
    assert "trigger:1" in failed.error
    assert "required" in failed.error
    again = await store.triggers.emit(pressed())
    assert [each.outcome for each in again.outcomes] == [ALREADY, ALREADY]
    assert again.outcomes[0].delivery == failed
    page = await store.triggers.deliveries(report.occurrence.occurrence_id)
    assert page.deliveries == tuple(each.delivery for each in again.outcomes)
    assert (await store.triggers.undelivered()).deliveries == ()


@kept
async def test_a_process_id_taken_by_other_work_fails_the_delivery(backend: Backend) -> None:
    """The deterministic id is registered with other content: the delivery says so."""
    store = await backend.open()
    subscription = await subscribed(store)
    occurrence = await store.triggers.record_occurrence(pressed())
    taken = delivery_process_id(occurrence.occurrence_id, subscription.subscription_id)
    await store.processes.register(Registration(process_id=taken, input=ProcessInput("job", {"other": 1})))
    (outcome,) = (await store.triggers.emit(pressed())).outcomes
    assert outcome.outcome is FAILED
    assert "other content" in str(outcome.delivery.error)


@kept
async def test_a_deleted_wake_target_is_not_woken_and_gets_no_grant(backend: Backend) -> None:
    """The process still starts: somebody else registered it."""
    store = await backend.open()
    await store.sessions.create("target")
    await subscribed(store, wake_target=Scope("target"))
    await store.sessions.delete("target")
    (process_id,) = (await store.triggers.emit(pressed())).started
    assert (await store.processes.get(process_id)).wake_target is None
    assert await size_of(backend, "grants") == 0


@kept
async def test_an_emit_that_dies_between_two_statements_leaves_nothing(backend: Backend) -> None:
    """Killed before, between and after its statements, nothing is there; then the same call does everything."""
    store = await backend.open()
    await store.sessions.create("s")
    await subscribed(store, wake_target=Scope("s"))
    await subscribed(store, payload_schema=False)
    before = await stored(backend, *TABLES)
    for step in range(100):
        try:
            with replaced(deliveries, "emit", killed_at(step)):
                report = await store.triggers.emit(pressed())
        except Killed:
            assert await stored(backend, *TABLES) == before, f"step {step} left something behind"
        else:
            break
    else:
        raise AssertionError("the emit never ended")
    assert step > 8
    assert [each.outcome for each in report.outcomes] == [STARTED, FAILED]
    assert [await size_of(backend, table) for table in ("occurrences", "deliveries", "processes", "grants")] == [1, 2, 1, 1]


@kept
async def test_an_emit_costs_the_same_statements_for_one_and_for_many(backend: Backend) -> None:
    """Fan-out is rows, not statements."""
    store, statements = await watched(backend)
    await store.sessions.create("s")
    counts: list[int] = []
    for size in (1, 20):
        for _ in range(size):
            await subscribed(store, source_key=f"button:{size}", wake_target=Scope("s"))
        statements.clear()
        await store.triggers.emit(pressed(source_key=f"button:{size}"))
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 20


@kept
async def test_a_subscription_made_during_an_emit_is_delivered(backend: Backend) -> None:
    """The emit looked before somebody subscribed: it finds out under its locks and looks again."""
    store = await backend.open()
    subscription = await subscribed(store)
    with replaced(deliveries, "match", _blind(times=1)):
        report = await store.triggers.emit(pressed())
    assert outcomes_of(report) == [(subscription.subscription_id, STARTED)]


@kept
async def test_an_emit_that_never_sees_a_quiet_moment_is_busy_and_leaves_nothing(backend: Backend) -> None:
    """Bounded, and safe to repeat."""
    store = await backend.open()
    await subscribed(store)
    with replaced(deliveries, "match", _blind(times=1_000)), refused(Busy):
        await store.triggers.emit(pressed())
    assert await size_of(backend, "occurrences") == 0
    assert len((await store.triggers.emit(pressed())).started) == 1


def _blind(*, times: int) -> Callable[[Callable[..., Op[Any]]], Callable[..., Op[Any]]]:
    """A look that sees no subscription, as if it came just before them, the first few times."""
    left = [times]

    def change(operation: Callable[..., Op[Any]]) -> Callable[..., Op[Any]]:
        def looking(*args: Any) -> Op[Any]:
            found = yield from operation(*args)
            left[0] -= 1
            return replace(found, candidates=()) if left[0] >= 0 else found

        return looking

    return change


@kept
async def test_what_ended_between_the_look_and_the_locks_starts_nothing(backend: Backend) -> None:
    """A subscription cancelled, deleted, or whose wake target went, is not started as it was seen."""
    store = await backend.open()
    for session_id in ("s", "target"):
        await store.sessions.create(session_id)
    cancelled = await subscribed(store, source_key="a")
    await subscribed(store, source_key="b", registrant=Scope("s"))
    unheard = await subscribed(store, source_key="c", wake_target=Scope("target"))
    seen: dict[str, Any] = {}
    with replaced(deliveries, "match", _remembering(seen)):
        for key in ("a", "b", "c"):
            await store.triggers.emit(pressed("look", source_key=key))
    await store.triggers.cancel_host(cancelled.handle)
    await store.triggers.delete_for_session("s")
    await store.sessions.delete("target")
    with replaced(deliveries, "match", _remembered(seen)):
        reports = [await store.triggers.emit(pressed("late", source_key=key)) for key in ("a", "b", "c")]
    assert [outcomes_of(report) for report in reports] == [[], [], [(unheard.subscription_id, STARTED)]]
    assert (await store.processes.get(reports[2].started[0])).wake_target is None
    assert await size_of(backend, "processes") == 4


def _remembering(seen: dict[str, Any]) -> Callable[[Callable[..., Op[Any]]], Callable[..., Op[Any]]]:
    def change(operation: Callable[..., Op[Any]]) -> Callable[..., Op[Any]]:
        def looking(request: Any) -> Op[Any]:
            seen[request.source_key] = yield from operation(request)
            return seen[request.source_key]

        return looking

    return change


def _remembered(seen: dict[str, Any]) -> Callable[[Callable[..., Op[Any]]], Callable[..., Op[Any]]]:
    """A look that sees what was seen before, once per source."""

    def change(operation: Callable[..., Op[Any]]) -> Callable[..., Op[Any]]:
        def looking(request: Any) -> Op[Any]:
            found = yield from operation(request)
            return seen.pop(request.source_key, found)

        return looking

    return change


@kept
async def test_a_fan_out_beyond_one_transaction_is_refused_and_can_be_done_in_steps(backend: Backend) -> None:
    """Recording, reserving and redriving are bounded each, and nobody is left out."""
    store = await backend.open()
    for _ in range(7):
        await subscribed(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries, "FANOUT_MAX", 3)
        with refused(LimitExceeded, limit="FANOUT_MAX"):
            await store.triggers.emit(pressed())
        assert await size_of(backend, "occurrences") == 0
        occurrence = await store.triggers.record_occurrence(pressed())
        sizes = [len(await store.triggers.reserve(occurrence.occurrence_id)) for _ in range(4)]
    assert sizes == [3, 3, 1, 0]
    started = [await store.triggers.redrive(limit=4), await store.triggers.redrive(limit=4)]
    assert [(len(each.started), each.more) for each in started] == [(4, True), (3, False)]
    assert FANOUT_MAX == 1_000


@kept
async def test_an_emit_inside_a_transaction_is_part_of_it(backend: Backend) -> None:
    """Rolled back with it, committed with it."""
    store = await backend.open()
    await subscribed(store)
    with refused(Killed):
        async with store.transaction() as tx:
            assert len((await tx.triggers.emit(pressed())).started) == 1
            raise Killed
    assert await size_of(backend, "occurrences") == 0
    async with store.transaction() as tx:
        await tx.triggers.emit(pressed())
    assert [await size_of(backend, table) for table in ("occurrences", "deliveries", "processes")] == [1, 1, 1]


# --- left behind ----------------------------------------------------------------------------------------------------------


@kept
async def test_a_reservation_a_crash_left_is_listed_and_started(backend: Backend) -> None:
    """Undelivered shows it, redrive starts it once, as the subscription was when it was reserved."""
    store = await backend.open()
    subscription = await subscribed(store, name="before")
    occurrence = await store.triggers.record_occurrence(pressed())
    (reserved,) = await store.triggers.reserve(occurrence.occurrence_id)
    await store.close()
    store = await backend.open()
    assert (await store.triggers.undelivered()).deliveries == (reserved,)
    assert await store.triggers.cancel_host(subscription.handle)
    report = await store.triggers.redrive()
    assert report.started == (reserved.process_id,)
    assert (await store.processes.get(reserved.process_id)).input.payload == {"args": {"event": {"button": "Blue"}}}
    assert report.outcomes[0].delivery.subscription == subscription
    assert (await store.triggers.undelivered()).deliveries == ()
    assert (await store.triggers.redrive()).outcomes == ()


@kept
async def test_emitting_again_starts_what_was_only_reserved(backend: Backend) -> None:
    """A replay never skips an unfinished delivery."""
    store = await backend.open()
    await subscribed(store)
    occurrence = await store.triggers.record_occurrence(pressed())
    (reserved,) = await store.triggers.reserve(occurrence.occurrence_id)
    assert (await store.triggers.emit(pressed())).started == (reserved.process_id,)
    assert (await store.triggers.undelivered()).deliveries == ()


@kept
async def test_eight_workers_redrive_each_delivery_once(backend: Backend) -> None:
    """However many look at the same leftovers, each is started by one."""
    stores = [await backend.open() for _ in range(4)]
    await stores[0].sessions.create("s")
    for _ in range(3):
        await subscribed(stores[0], wake_target=Scope("s"))
    for key in ("a", "b"):
        await stores[0].triggers.reserve((await stores[0].triggers.record_occurrence(pressed(key))).occurrence_id)
    reports = await asyncio.gather(*(stores[i % 4].triggers.redrive() for i in range(8)))
    started = [process_id for report in reports for process_id in report.started]
    assert len(started) == len(set(started)) == 6
    assert await size_of(backend, "processes") == 6


@kept
async def test_a_redrive_that_dies_leaves_the_delivery_for_the_next(backend: Backend) -> None:
    """All of it or nothing, at every statement."""
    store = await backend.open()
    await store.sessions.create("s")
    await subscribed(store, wake_target=Scope("s"))
    await store.triggers.reserve((await store.triggers.record_occurrence(pressed())).occurrence_id)
    before = await stored(backend, *TABLES)
    for step in range(100):
        try:
            with replaced(deliveries, "redrive", killed_at(step)):
                report = await store.triggers.redrive()
        except Killed:
            assert await stored(backend, *TABLES) == before
        else:
            assert len(report.started) == 1
            return
    raise AssertionError("the redrive never ended")


@kept
async def test_undelivered_is_paged_oldest_first(backend: Backend) -> None:
    """Every leftover is on exactly one page."""
    store = await backend.open()
    for _ in range(2):
        await subscribed(store)
    for key in ("a", "b", "c"):
        await store.triggers.reserve((await store.triggers.record_occurrence(pressed(key))).occurrence_id)
        await backend.advance(1_000)
    seen: list[tuple[int, str]] = []
    cursor: str | None = None
    while True:
        page = await store.triggers.undelivered(limit=4, cursor=cursor)
        seen += [(each.created_ms, each.process_id) for each in page.deliveries]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 6
    assert [at_ms for at_ms, _ in seen] == sorted(at_ms for at_ms, _ in seen)
    with refused(InvalidArgument, argument="cursor"):
        await store.triggers.undelivered(cursor="nonsense")


# --- damage ---------------------------------------------------------------------------------------------------------------


@kept
async def test_a_damaged_subscription_fails_alone(backend: Backend) -> None:
    """Its delivery says which row is damaged; the healthy one starts; a bare reserve does the same."""
    store = await backend.open()
    damaged, healthy = await subscribed(store, "s"), await subscribed(store)
    await _damage(backend, damaged.number)
    report = await store.triggers.emit(pressed())
    assert outcomes_of(report) == [(damaged.subscription_id, FAILED), (healthy.subscription_id, STARTED)]
    assert "subscriptions row 'subscription:1' is corrupt" in str(report.outcomes[0].delivery.error)
    assert report.outcomes[0].delivery.subscription is None
    occurrence = await store.triggers.record_occurrence(pressed("press-2"))
    states = [each.state for each in await store.triggers.reserve(occurrence.occurrence_id)]
    assert states == [DeliveryState.FAILED, DeliveryState.RESERVED]
    for read in (store.triggers.list(), store.triggers.get(damaged.handle)):
        with refused(Corrupt, table="subscriptions"):
            await read


@kept
async def test_a_damaged_subscription_can_be_cancelled_and_deleted(backend: Backend) -> None:
    """Columns decide, not the body."""
    store = await backend.open()
    first, second = await subscribed(store, "s"), await subscribed(store, "s")
    await _damage(backend, first.number)
    await _damage(backend, second.number)
    assert await store.triggers.cancel("s", first.handle)
    assert await store.triggers.delete_for_session("s") == 2
    assert await size_of(backend, "subscriptions") == 0


async def _damage(backend: Backend, number: int) -> None:
    await backend.raw(f"UPDATE {backend.table('subscriptions')} SET body = '{{broken' WHERE number = $1", number)


@kept
async def test_damage_to_occurrences_and_deliveries_is_named(backend: Backend) -> None:
    """A changed body is never taken for what happened, and a leftover whose snapshot is damaged fails with its reason."""
    store = await backend.open()
    await subscribed(store)
    occurrence = await store.triggers.record_occurrence(pressed())
    await store.triggers.reserve(occurrence.occurrence_id)
    await backend.raw(f"UPDATE {backend.table('deliveries')} SET snapshot = 'null'")
    with refused(Corrupt, table="deliveries"):
        await store.triggers.undelivered()
    await backend.raw(f"UPDATE {backend.table('occurrences')} SET body = '{{}}'")
    for call in (store.triggers.occurrence(occurrence.occurrence_id), store.triggers.record_occurrence(pressed())):
        with refused(Corrupt, table="occurrences"):
            await call


# --- pruning --------------------------------------------------------------------------------------------------------------


@kept
async def test_prune_removes_old_finished_occurrences_only(backend: Backend) -> None:
    """Young ones and those with unfinished deliveries stay; a dry run counts and removes nothing."""
    store = await backend.open()
    await subscribed(store)
    await store.triggers.emit(pressed("finished"))
    open_one = await store.triggers.record_occurrence(pressed("unfinished"))
    await store.triggers.reserve(open_one.occurrence_id)
    await backend.advance(60_000)
    young = (await store.triggers.emit(pressed("young"))).occurrence
    assert (await store.triggers.prune(older_than_ms=30_000, dry_run=True)).occurrences == 1
    assert await size_of(backend, "occurrences") == 3
    report = await store.triggers.prune(older_than_ms=30_000)
    assert (report.occurrences, report.deliveries) == (1, 1)
    left = {row[0] for row in await rows_of(backend, "occurrences", "occurrence_id")}
    assert left == {open_one.occurrence_id, young.occurrence_id}
    assert await size_of(backend, "processes") == 2


@kept
async def test_an_occurrence_emitted_again_after_its_prune_starts_nothing_twice(backend: Backend) -> None:
    """Its processes remember: the ids are the same, and they are registered already."""
    store = await backend.open()
    await subscribed(store)
    first = await store.triggers.emit(pressed())
    await store.triggers.prune(older_than_ms=0)
    again = await store.triggers.emit(pressed())
    assert again.occurrence.occurrence_id == first.occurrence.occurrence_id
    assert [each.outcome for each in again.outcomes] == [ALREADY]
    assert await size_of(backend, "processes") == 1


@kept
async def test_prune_goes_in_bounded_steps(backend: Backend) -> None:
    """However many are old, all go, passing by those that must stay."""
    store = await backend.open()
    for _ in range(2):
        await subscribed(store)
    for number in range(5):
        await store.triggers.emit(pressed(f"press-{number}"))
    await store.triggers.reserve((await store.triggers.record_occurrence(pressed("open"))).occurrence_id)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("lash_store.store.triggers", "lash_store.store._sync.triggers"):
            patch.setattr(f"{module}.COLLECT_ROWS_PER_TRANSACTION", 3)
        counted = await store.triggers.prune(older_than_ms=0, dry_run=True)
        removed = await store.triggers.prune(older_than_ms=0)
    assert counted == removed
    assert (removed.occurrences, removed.deliveries) == (5, 10)


# --- all at once ----------------------------------------------------------------------------------------------------------


@kept
async def test_everything_at_once_keeps_every_promise(backend: Backend) -> None:
    """Emits, subscribes, cancels, redrives, prunes and a session's deletion together: no error, no process twice."""
    stores = [await backend.open() for _ in range(4)]
    for number in range(3):
        await subscribed(stores[0], f"s{number}", wake_target=Scope("s0"))
    await asyncio.gather(*(_mix(stores[i % 4], i) for i in range(8)))
    while (await stores[0].triggers.redrive()).more:
        pass
    states = {row[0] for row in await rows_of(backend, "deliveries", "state")}
    assert states <= {"started", "failed"}
    started = await rows_of(backend, "deliveries", "process_id")
    assert len(started) == len(set(started))
    registered = {row[0] for row in await rows_of(backend, "processes", "process_id")}
    assert {row[0] for row in started} <= registered


async def _mix(store: AsyncStore, worker: int) -> None:
    mine = await subscribed(store, wake_target=Scope("s0"))
    for turn in range(3):
        await store.triggers.emit(pressed(f"shared-{turn}"))
        occurrence = await store.triggers.record_occurrence(pressed(f"own-{worker}-{turn}"))
        await store.triggers.reserve(occurrence.occurrence_id)
        await store.triggers.redrive(limit=5)
    if worker == 3:
        await store.sessions.delete("s2")
    await store.triggers.cancel_host(mine.handle)
    await store.triggers.prune(older_than_ms=3_600_000)
