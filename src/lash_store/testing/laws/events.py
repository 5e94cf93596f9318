"""Laws of the event log: gapless, ordered, append-once per key, validated, and ended once."""

from __future__ import annotations

import asyncio
from typing import Any

from lash_store.errors import (
    AlreadyTerminal,
    InvalidArgument,
    InvalidPayload,
    LeaseLost,
    LimitExceeded,
    ReplayConflict,
    UndeclaredEvent,
    Unstorable,
)
from lash_store.model.limits import INT_MAX
from lash_store.model.process import (
    Cancelled,
    EventDraft,
    EventType,
    Failure,
    Payload,
    Pointer,
    ProcessState,
    Success,
    Terminal,
    Wait,
)
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import LINE, NOTE, OTHER, job, lease_of, log, notes, registered, sequences, types
from lash_store.testing.steps import HOUR_MS, nothing_changes, refused

ENDS = (
    EventType(name="end.plain", terminal=Terminal(state=ProcessState.COMPLETED)),
    EventType(name="end.completed", terminal=Terminal(state=ProcessState.COMPLETED, output=Pointer("/x"))),
    EventType(name="end.failed", terminal=Terminal(state=ProcessState.FAILED, output=Payload())),
    EventType(name="end.cancelled", terminal=Terminal(state=ProcessState.CANCELLED, output=Payload())),
)


async def sequences_start_at_one_and_have_no_gaps(backend: Backend) -> None:
    """Each event takes the next sequence of its own process, whoever appends, on the database's clock."""
    store, other = await backend.open(), await backend.open()
    for process_id in ("p", "q"):
        await registered(store, process_id, NOTE)
    for n in range(6):
        appended = await (store if n % 2 else other).processes.append("p", "note", n)
        assert (appended.event.sequence, appended.replayed) == (n + 1, False)
    assert (await store.processes.append("q", "note")).event.sequence == 1
    events = await log(store, "p")
    assert [event.payload for event in events] == list(range(6))
    assert [event.occurred_ms for event in events] == sorted(event.occurred_ms for event in events)
    assert (await store.processes.get("p")).last_sequence == 6


async def concurrent_appends_make_one_gapless_log(backend: Backend) -> None:
    """Appends of several handles at once all succeed, each with its own sequence."""
    handles = [await backend.open() for _ in range(3)]
    await registered(handles[0], "p", NOTE)
    appended = await asyncio.gather(*(handles[n % 3].processes.append("p", "note", n) for n in range(24)))
    assert sorted(each.event.sequence for each in appended) == list(range(1, 25))
    assert sequences(await log(handles[1], "p")) == list(range(1, 25))


async def an_event_comes_back_as_it_was_appended(backend: Backend) -> None:
    """Payload, key and type round-trip through another handle; without a key each append is an event of its own."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p", NOTE)
    payloads: list[Any] = [None, {"z": 1, "a": [2**70, "é\u0000\ud800", 0.5, True]}, "text", [], 2**63]
    appended = [await store.processes.append("p", "note", payload) for payload in payloads]
    assert [each.event for each in appended] == await log(other, "p")
    assert [event.payload for event in await log(other, "p")] == payloads
    assert list((await log(other, "p"))[1].payload) == ["z", "a"]
    keyed = await store.processes.append("p", "note", None, replay_key="k")
    assert keyed.event.replay_key == "k"


async def a_replay_key_appends_once(backend: Backend) -> None:
    """The same key with the same content returns the first event and changes nothing; keys belong to their process."""
    store, other = await backend.open(), await backend.open()
    for process_id in ("p", "q"):
        await registered(store, process_id, NOTE)
    first = await store.processes.append("p", "note", {"a": 1, "b": 2}, replay_key="k")
    async with nothing_changes(backend):
        again = await other.processes.append("p", "note", {"b": 2, "a": 1}, replay_key="k")
    assert (again.event, again.replayed) == (first.event, True)
    assert not (await store.processes.append("q", "note", "other", replay_key="k")).replayed


async def a_replay_key_with_other_content_is_a_conflict(backend: Backend) -> None:
    """Another payload or another type under a used key is refused."""
    store = await backend.open()
    await registered(store, "p", NOTE, OTHER)
    await store.processes.append("p", "note", 1, replay_key="k")
    async with nothing_changes(backend):
        for event_type, payload in (("note", 2), ("other", 1), ("note", 1.0), ("note", True)):
            with refused(ReplayConflict, key="k", owner="p"):
                await store.processes.append("p", event_type, payload, replay_key="k")


async def concurrent_appends_of_one_key_are_one_event(backend: Backend) -> None:
    """Retries at once: one appends, the others get its event."""
    handles = [await backend.open() for _ in range(3)]
    await registered(handles[0], "p", NOTE)
    for n in range(5):
        calls = [handle.processes.append("p", "note", n, replay_key=f"k{n}") for handle in handles]
        appended = await asyncio.gather(*calls)
        assert len({each.event.sequence for each in appended}) == 1
        assert sorted(each.replayed for each in appended) == [False, True, True]
    assert len(await log(handles[0], "p")) == 5


async def only_declared_types_with_fitting_payloads_are_appended(backend: Backend) -> None:
    """An undeclared type, and a payload its schema refuses, leave nothing behind; the error names the place, not the content."""
    store = await backend.open()
    await registered(store, "p", LINE)
    async with nothing_changes(backend):
        with refused(UndeclaredEvent, process_id="p", event_type="note"):
            await store.processes.append("p", "note", {})
        for payload in ({}, {"line": 5}, None, {"line": "secret", "wake_input": 7}):
            with refused(InvalidPayload) as caught:
                await store.processes.append("p", "producer.line", payload)
            assert "secret" not in str(caught.error)
        with refused(UndeclaredEvent):
            await store.processes.append_many("p", [EventDraft(event_type="producer.line", payload={"line": "x"}), *notes(1)])
    assert (await store.processes.append("p", "producer.line", {"line": "x", "more": 1})).event.sequence == 1


async def a_batch_of_events_is_all_or_none_and_in_order(backend: Backend) -> None:
    """Several events take consecutive sequences; one that cannot be appended takes the others with it; none is no work."""
    store = await backend.open()
    await registered(store, "p", NOTE, OTHER)
    drafts = [*notes(3, key="k"), EventDraft(event_type="other", payload="x")]
    appended = await store.processes.append_many("p", drafts)
    assert [each.event for each in appended] == await log(store, "p")
    assert types(await log(store, "p")) == ["note", "note", "note", "other"]
    async with nothing_changes(backend):
        assert await store.processes.append_many("p", []) == ()
        with refused(ReplayConflict):
            await store.processes.append_many("p", [*notes(2), EventDraft(event_type="note", payload="new", replay_key="k0")])
        with refused(Unstorable):
            await store.processes.append_many("p", [*notes(1), "text"])  # type: ignore[list-item]
        with refused(LimitExceeded, limit="EVENTS_PER_APPEND_MAX"):
            await store.processes.append_many("p", notes(1_001))


async def a_batch_may_repeat_what_is_stored_and_itself(backend: Backend) -> None:
    """Keyed events that are stored, or stand twice in the batch, are found; the rest is appended."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    first = await store.processes.append("p", "note", {"n": 0}, replay_key="k0")
    both = await store.processes.append_many("p", [*notes(2, key="k"), *notes(2, key="k")])
    assert [each.replayed for each in both] == [True, False, True, True]
    assert both[0].event == both[2].event == first.event
    assert both[1].event == both[3].event
    assert await log(store, "p") == [first.event, both[1].event]


async def a_batch_without_keys_names_its_own(backend: Backend) -> None:
    """Every event has a key, also one that was given none: a call whose answer was lost can be repeated."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    appended = await store.processes.append_many("p", notes(3))
    again = await store.processes.append("p", "note", 1)
    keys = [each.event.replay_key for each in (*appended, again)]
    assert None not in keys
    assert len(set(keys)) == 4


# --- reading --------------------------------------------------------------------------------------------------------------


async def a_log_is_read_after_a_sequence_by_type_and_in_pages(backend: Backend) -> None:
    """Strictly after, in order, of the named types; pages join without a gap."""
    store = await backend.open()
    await registered(store, "p", NOTE, OTHER)
    for event_type in ("note", "other", "note", "note", "other"):
        await store.processes.append("p", event_type)
    assert types((await store.processes.events("p", after=1)).events) == ["other", "note", "note", "other"]
    assert (await store.processes.events("p", after=5)).events == ()
    assert sequences((await store.processes.events("p", after=1, types=["other"])).events) == [2, 5]
    assert sequences((await store.processes.events("p", types=["note", "other"])).events) == [1, 2, 3, 4, 5]
    assert (await store.processes.events("p", types=[])).events == ()
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await store.processes.events("p", after=after, limit=2)
        seen += sequences(page.events)
        after = page.cursor
    assert seen == [1, 2, 3, 4, 5]


async def counts_and_recent_events_match_the_log(backend: Backend) -> None:
    """A count is inclusive, of one type; recent events are the last ones, in order."""
    store = await backend.open()
    await registered(store, "p", NOTE, OTHER)
    for event_type in ("note", "other", "note", "note", "other"):
        await store.processes.append("p", event_type)
    assert await store.processes.count_through("p", "note", 5) == 3
    assert await store.processes.count_through("p", "note", 3) == 2
    assert await store.processes.count_through("p", "note", 0) == 0
    assert await store.processes.count_through("p", "missing", INT_MAX) == 0
    events = await log(store, "p")
    assert list(await store.processes.recent("p", limit=2)) == events[-2:]
    assert list(await store.processes.recent("p", limit=1000)) == events


async def bounds_are_never_taken_for_negative_ones(backend: Backend) -> None:
    """The largest bound means everything; beyond it, and below zero, is refused rather than wrapped around."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    await store.processes.append("p", "note")
    assert await store.processes.count_through("p", "note", INT_MAX) == 1
    assert (await store.processes.events("p", after=INT_MAX)).events == ()
    assert await store.processes.wake_events("p", after=INT_MAX) == ()
    for bound in (2**63, 2**64 - 1, -1):
        for call in (
            lambda bound=bound: store.processes.count_through("p", "note", bound),
            lambda bound=bound: store.processes.events("p", after=bound),
            lambda bound=bound: store.processes.events("p", limit=bound),
            lambda bound=bound: store.processes.recent("p", limit=bound),
            lambda bound=bound: store.processes.wake_events("p", after=bound),
            lambda bound=bound: store.processes.ack_wake("p", bound),
        ):
            with refused(LimitExceeded):
                await call()


# --- ending ---------------------------------------------------------------------------------------------------------------


async def terminal_events_and_cancel_requests_need_a_key(backend: Backend) -> None:
    """What must be repeatable without effect cannot be appended without a key, alone or in a batch."""
    store = await backend.open()
    await registered(store, "p", *ENDS)
    async with nothing_changes(backend):
        for event_type in ("process.cancel_requested", "process.completed", "end.plain"):
            with refused(InvalidArgument):
                await store.processes.append("p", event_type, {"output": 1})
            with refused(InvalidArgument):
                await store.processes.append_many("p", [EventDraft(event_type=event_type, payload={"output": 1})])
    await store.processes.append("p", "process.cancel_requested", {"reason": None}, replay_key="k")
    ended = await store.processes.complete("p", Cancelled(message="stop"))
    assert (ended.state, types(await log(store, "p"))) == ("cancelled", ["process.cancel_requested", "process.cancelled"])


async def a_declared_end_gives_its_state_and_output(backend: Backend) -> None:
    """The state is the declaration's, the output the payload's: as it is if it reads as one, else wrapped."""
    store = await backend.open()
    cases: list[tuple[str, Any, str, Any]] = [
        ("end.plain", {"a": 1}, "completed", Success({"a": 1})),
        ("end.completed", {"x": [1]}, "completed", Success([1])),
        ("end.failed", {"a": 1}, "failed", Failure(code="process_failed", message='{"a":1}', raw={"a": 1})),
        ("end.failed", {"type": "success", "value": 1}, "failed", Success(1)),
        ("end.cancelled", "why", "cancelled", Cancelled(message="why", raw="why")),
    ]
    for n, (event_type, payload, state, output) in enumerate(cases):
        process_id = f"p{n}"
        await registered(store, process_id, *ENDS)
        appended = await store.processes.append(process_id, event_type, payload, replay_key="end")
        process = await store.processes.get(process_id)
        assert (appended.event.terminal, process.state, process.output) == (state, state, output)
    async with nothing_changes(backend):
        await store.processes.register(job("p0", *ENDS))
        with refused(InvalidPayload):
            await store.processes.append("p0", "end.completed", {"y": 1}, replay_key="other")


async def after_the_end_only_facts_are_added(backend: Backend) -> None:
    """Ordinary events follow an end and leave state and output alone; a second end is refused."""
    store = await backend.open()
    await registered(store, "p", NOTE, *ENDS)
    await store.processes.append("p", "end.plain", 1, replay_key="end")
    before = await store.processes.get("p")
    assert (await store.processes.append("p", "note", "late")).event.sequence == 2
    after = await store.processes.get("p")
    assert (after.state, after.output, after.last_sequence) == (before.state, before.output, 2)
    async with nothing_changes(backend):
        with refused(AlreadyTerminal, process_id="p"):
            await store.processes.append("p", "end.failed", 1, replay_key="other")
        with refused(AlreadyTerminal):
            drafts = [*notes(1), EventDraft(event_type="end.plain", payload=2, replay_key="second")]
            await store.processes.append_many("p", drafts)


async def a_batch_ends_its_process_once(backend: Backend) -> None:
    """An end inside a batch ends the process; two of them are refused together; facts may follow it."""
    store = await backend.open()
    await registered(store, "p", NOTE, *ENDS)
    end, second = (EventDraft(event_type="end.plain", payload=n, replay_key=f"end{n}") for n in range(2))
    async with nothing_changes(backend):
        with refused(AlreadyTerminal):
            await store.processes.append_many("p", [end, second])
    await store.processes.append_many("p", [*notes(1), end, *notes(1)])
    process = await store.processes.get("p")
    assert (process.state, process.output, process.last_sequence) == ("completed", Success(0), 3)


async def a_replayed_end_repairs_a_state_that_does_not_show_it(backend: Backend) -> None:
    """When the log says a process ended and its row does not, repeating the end brings the row in line."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    await store.processes.set_wait("p", Wait(name="go", ordinal=1))
    ended = await store.processes.complete("p", Success({"ok": True}))
    await backend.raw(
        f"UPDATE {backend.table('processes')} SET state = 'running', output = NULL, output_digest = NULL WHERE process_id = 'p'"
    )
    repaired = await (await backend.open()).processes.complete("p", Success({"ok": True}))
    assert (repaired.state, repaired.output, repaired.last_sequence) == (ended.state, ended.output, 1)
    assert sequences(await log(store, "p")) == [1]


async def an_append_under_a_lease_is_fenced_by_it(backend: Backend) -> None:
    """With a lease only its live holder appends; without one anybody may add facts; a replay needs no lease any more."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    lease = await lease_of(store, "p")
    first = await store.processes.append("p", "note", 1, replay_key="k", lease=lease)
    await store.processes.append("p", "note", 2)
    await backend.advance(2 * HOUR_MS)
    async with nothing_changes(backend):
        with refused(LeaseLost, process_id="p"):
            await store.processes.append("p", "note", 3, lease=lease)
        with refused(LeaseLost):
            await store.processes.append_many("p", notes(2), lease=lease)
        replay = await store.processes.append("p", "note", 1, replay_key="k", lease=lease)
    assert (replay.event, replay.replayed) == (first.event, True)
