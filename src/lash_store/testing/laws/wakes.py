"""Laws of wakes: enqueued in the append's own transaction, recorded with the event, coalesced while pending, never replayed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lash_store.errors import InvalidPayload, NotFound, StoreError
from lash_store.model.process import (
    Const,
    EventDraft,
    EventType,
    Payload,
    Pointer,
    Present,
    ProcessState,
    Scope,
    Success,
    Template,
    Terminal,
    Wake,
)
from lash_store.model.queue import Delivery, Slot
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import LINE, NOTE, WAKE, inbox, inputs, log, registered, sequences
from lash_store.testing.steps import HOUR_MS, claimed, nothing_changes, refused, stored

if TYPE_CHECKING:
    from lash_store import AsyncStore

STATUS = EventType(name="status", wake=Wake(input=Pointer("/text"), dedupe=Const("status")))
MATRIX = (
    EventType(name="never", wake=Wake(when=Const(False), input=Payload())),
    EventType(name="payload", wake=Wake(input=Payload())),
    EventType(name="const", wake=Wake(input=Const("constant wake"))),
    EventType(name="template", wake=Wake(input=Template("line {line} #{n}", {"line": Pointer("/line"), "n": Pointer("/n")}))),
    EventType(name="selected", wake=Wake(input=Pointer("/text"), dedupe=Pointer("/dedupe"))),
    EventType(name="fixed", wake=Wake(input=Pointer("/text"), dedupe=Const("constant-dedupe"))),
    EventType(name="zero", wake=Wake(when=Pointer("/n"), input=Const("zero is true"))),
    EventType(name="strict", wake=Wake(when=Pointer("/missing"), input=Payload())),
    EventType(name="present", wake=Wake(when=Present("/missing"), input=Payload())),
)


async def _store(backend: Backend, *event_types: EventType, target: Scope | None = None) -> AsyncStore:
    store = await backend.open()
    await store.sessions.create("s")
    await registered(store, "p", *event_types, wake_target=target or Scope("s"), caused_by={"type": "turn", "turn_id": "t"})
    return store


async def _woken(store: AsyncStore, event_type: str, payload: Any, **options: Any) -> Any:
    return (await store.processes.append("p", event_type, payload, **options)).event.wake


async def an_event_that_wakes_is_in_the_inbox_when_it_is_in_the_log(backend: Backend) -> None:
    """The delivery is stored with its event, and the batch it names is in the target session's inbox, exclusive and early."""
    store = await _store(backend, LINE, target=Scope("s", "frame"))
    event = (await store.processes.append("p", "producer.line", {"line": "x", "wake_input": "look"})).event
    assert event.wake is not None
    assert (event.wake.input, event.wake.target, event.wake.coalesced) == ("look", Scope("s", "frame"), False)
    assert event.wake.dedupe_key == "p:1"
    (batch,) = await inbox(await backend.open(), "s")
    assert (batch.batch_id, batch.source_key) == (event.wake.batch_id, event.wake.wake_id)
    assert (batch.delivery, batch.slot, batch.merge_key) == (Delivery.EARLIEST_SAFE_BOUNDARY, Slot.EXCLUSIVE, "never")
    payload = batch.payloads[0]
    assert (payload["type"], payload["process_id"], payload["event_type"]) == ("process_wake", "p", "producer.line")
    assert (payload["input"], payload["frame_id"]) == ("look", "frame")
    assert payload["caused_by"] == {"type": "turn", "turn_id": "t"}
    assert await log(await backend.open(), "p") == [event]


async def a_woken_session_learns_which_event_woke_it(backend: Backend) -> None:
    """The batch's key is the wake's id, and the log tells the events it stands for: a turn can name its cause."""
    store = await _store(backend, NOTE, WAKE)
    await store.processes.append("p", "note")
    wake = await _woken(store, "process.wake", {"text": "a"})
    (batch,) = await inbox(store, "s")
    assert batch.source_key == wake.wake_id
    assert [event.sequence for event in await store.processes.woken_by("p", batch.batch_id)] == [2]


async def wakes_follow_their_declarations(backend: Backend) -> None:
    """Conditions, inputs, templates and dedupe keys each come from where the event type says."""
    store = await _store(backend, *MATRIX)
    assert await _woken(store, "never", "x") is None
    whole = await _woken(store, "payload", "payload wake")
    assert (whole.input, whole.dedupe_key) == ("payload wake", "p:2")
    assert (await _woken(store, "const", None)).input == "constant wake"
    assert (await _woken(store, "template", {"line": "done", "n": 7})).input == "line done #7"
    selected = [await _woken(store, "selected", {"text": text, "dedupe": "group-a"}) for text in "ab"]
    assert [wake.dedupe_key for wake in selected] == ["group-a"] * 2
    assert selected[0].wake_id == selected[1].wake_id
    fixed = [await _woken(store, "fixed", {"text": text}) for text in "ab"]
    assert [wake.dedupe_key for wake in fixed] == ["constant-dedupe"] * 2
    assert fixed[0].wake_id == fixed[1].wake_id != selected[0].wake_id
    assert (await _woken(store, "zero", {"n": 0})).input == "zero is true"
    assert (await _woken(store, "payload", {"b": 1, "a": [2]})).input == '{"a":[2],"b":1}'
    assert await _woken(store, "present", {}) is None
    assert sequences(await store.processes.wake_events("p")) == [2, 3, 4, 5, 6, 7, 8, 9, 10]


async def a_wake_that_cannot_be_worked_out_refuses_the_event(backend: Backend) -> None:
    """A pointer that does not match, in the condition or the input, leaves neither event nor wake."""
    store = await _store(backend, *MATRIX)
    async with nothing_changes(backend):
        with refused(InvalidPayload):
            await store.processes.append("p", "strict", {})
        with refused(InvalidPayload):
            await store.processes.append("p", "selected", {"dedupe": "x"})
        with refused(InvalidPayload):
            await store.processes.append("p", "selected", {"text": "x"})


async def a_wake_carries_any_text(backend: Backend) -> None:
    """Controls, NUL, lone surrogates and long text reach the inbox and the log as they are, in input and dedupe key."""
    store, reader = await _store(backend, *MATRIX), await backend.open()
    for n, text in enumerate(("a\u0000b", "\ud800x", "é\n😀", "x" * 100_000)):
        wake = await _woken(store, "selected", {"text": text, "dedupe": text})
        assert (wake.input, wake.dedupe_key) == (text, text)
        assert (await log(reader, "p"))[n].wake == wake
        assert inputs(await inbox(reader, "s"))[n] == text


async def without_a_target_a_wake_is_only_recorded(backend: Backend) -> None:
    """Nobody is to be woken: the event says what it would have said, and no inbox is touched."""
    store = await backend.open()
    await registered(store, "p", WAKE)
    event = (await store.processes.append("p", "process.wake", {"text": "x"})).event
    assert event.wake is not None
    assert (event.wake.input, event.wake.target, event.wake.batch_id) == ("x", None, None)
    assert sequences(await store.processes.wake_events("p")) == [1]
    assert (await stored(backend, "batches"))["batches"] == []


async def an_append_whose_wake_cannot_be_enqueued_leaves_nothing(backend: Backend) -> None:
    """Event and wake are one transaction: when the inbox fails, the log does not know the event either."""
    store = await _store(backend, WAKE)
    table = backend.table("batches")
    away = backend.table("away")
    await backend.raw(f"ALTER TABLE {table} RENAME TO {_alone(away)}")
    with refused(StoreError):
        await store.processes.append("p", "process.wake", {"text": "x"}, replay_key="k")
    await backend.raw(f"ALTER TABLE {away} RENAME TO {_alone(table)}")
    again = await backend.open()
    assert (await log(again, "p"), (await again.processes.get("p")).last_sequence) == ([], 0)
    appended = await again.processes.append("p", "process.wake", {"text": "x"}, replay_key="k")
    assert (appended.replayed, inputs(await inbox(again, "s"))) == (False, ["x"])


async def a_pending_wake_holds_the_next_one_of_its_id(backend: Backend) -> None:
    """While a wake waits in the inbox, further ones of its id join it: the first input stays, and none is a conflict."""
    store = await _store(backend, STATUS, WAKE)
    first = await _woken(store, "status", {"text": "first"})
    second = await _woken(store, "status", {"text": "second"})
    assert (second.wake_id, second.batch_id, second.coalesced) == (first.wake_id, first.batch_id, True)
    await _woken(store, "process.wake", {"text": "of its own"})
    assert inputs(await inbox(store, "s")) == ["first", "of its own"]
    assert [event.wake.coalesced for event in await log(store, "p") if event.wake] == [False, True, False]


async def wakes_of_one_batch_coalesce_with_each_other(backend: Backend) -> None:
    """Several events of one append with one wake id make one wake, and each result is what is stored."""
    store = await _store(backend, STATUS)
    drafts = [EventDraft(event_type="status", payload={"text": f"t{n}"}, replay_key=f"k{n}") for n in range(3)]
    appended = await store.processes.append_many("p", [*drafts, drafts[2]])
    assert [each.event.wake.coalesced for each in appended if each.event.wake] == [False, True, True, True]
    assert inputs(await inbox(store, "s")) == ["t0"]
    assert [each.event for each in appended[:3]] == await log(store, "p")
    assert appended[3].event == appended[2].event


async def after_settlement_the_next_event_wakes_again(backend: Backend) -> None:
    """A settled or cancelled wake holds nothing back, however often, also when the clock has stepped back."""
    store = await _store(backend, STATUS)
    for n in range(3):
        wake = await _woken(store, "status", {"text": f"t{n % 2}"})
        assert not wake.coalesced
        assert inputs(await inbox(store, "s")) == [f"t{n % 2}"]
        await store.queue.settle(await claimed(store, "s"))
        assert await inbox(store, "s") == []
    await backend.advance(-HOUR_MS)
    for text in ("t0", "other"):
        wake = await _woken(store, "status", {"text": text})
        assert (wake.coalesced, inputs(await inbox(store, "s"))) == (False, [text])
        await store.queue.cancel("s", wake.batch_id)


async def a_replay_never_wakes(backend: Backend) -> None:
    """Repeating an event returns the stored delivery; nothing is enqueued, before or after its wake was settled."""
    store = await _store(backend, WAKE)
    first = await store.processes.append("p", "process.wake", {"text": "x"}, replay_key="k")
    async with nothing_changes(backend):
        assert (await store.processes.append("p", "process.wake", {"text": "x"}, replay_key="k")).event == first.event
    await store.queue.settle(await claimed(store, "s"))
    async with nothing_changes(backend):
        again = await (await backend.open()).processes.append("p", "process.wake", {"text": "x"}, replay_key="k")
    assert (again.event, again.replayed) == (first.event, True)


async def a_replay_tells_the_delivery_that_was_made(backend: Backend) -> None:
    """After its session is gone an event still says whom it woke; the target of that time is part of it."""
    store = await _store(backend, WAKE)
    first = await store.processes.append("p", "process.wake", {"text": "x"}, replay_key="k")
    await store.sessions.delete("s")
    again = await store.processes.append("p", "process.wake", {"text": "x"}, replay_key="k")
    assert (again.event, again.replayed) == (first.event, True)
    assert again.event.wake is not None
    assert again.event.wake.target == Scope("s")


async def a_wake_for_a_session_that_is_gone_is_only_recorded(backend: Backend) -> None:
    """A process outlives its session: what it would have said is in its log, and nothing is enqueued for the dead."""
    store = await _store(backend, WAKE)
    await store.sessions.delete("s")
    wake = await _woken(store, "process.wake", {"text": "x"})
    assert (wake.target, wake.batch_id, wake.input) == (None, None, "x")
    await store.sessions.create("s")
    wake = await _woken(store, "process.wake", {"text": "to the next life"})
    assert wake.target is None
    assert await inbox(store, "s") == []


async def a_wake_is_acknowledged_once(backend: Backend) -> None:
    """Acknowledged wakes are no longer listed; again is no error, and what asked for no wake has none to acknowledge."""
    store = await _store(backend, NOTE, WAKE)
    await store.processes.append("p", "note")
    for text in "ab":
        await _woken(store, "process.wake", {"text": text})
    assert sequences(await store.processes.wake_events("p", after=2)) == [3]
    assert sequences(await store.processes.wake_events("p", limit=1)) == [2]
    assert await store.processes.ack_wake("p", 2) is True
    assert await store.processes.ack_wake("p", 2) is False
    assert sequences(await (await backend.open()).processes.wake_events("p")) == [3]
    for sequence in (1, 9):
        with refused(NotFound, kind="wake"):
            await store.processes.ack_wake("p", sequence)


async def a_wake_is_claimed_once_and_settled_like_other_work(backend: Backend) -> None:
    """Two retries of one event are one batch, handed to one claimer; settling it empties the inbox."""
    store = await _store(backend, WAKE)
    for _ in range(2):
        await _woken(store, "process.wake", {"text": "x"}, replay_key="k")
    claim = await claimed(store, "s")
    assert inputs(list(claim.batches)) == ["x"]
    assert await store.queue.claim("s", "other", lease_ms=HOUR_MS) is None
    await store.queue.settle(claim)
    assert await inbox(store, "s") == []


async def a_wake_that_arrives_while_its_id_is_being_worked_on_is_not_lost(backend: Backend) -> None:
    """A worker that has read a wake cannot learn of the next one from it, as long as it may still settle it."""
    store = await _store(backend, STATUS)
    await _woken(store, "status", {"text": "first"})
    claim = await claimed(store, "s")
    await _woken(store, "status", {"text": "second"})
    await store.queue.settle(claim)
    assert inputs(await inbox(store, "s")) == ["second"]
    claim = await claimed(store, "s")
    await backend.advance(2 * HOUR_MS)
    await _woken(store, "status", {"text": "third"})
    await store.queue.settle(claim)
    assert inputs(await inbox(store, "s")) == ["third"]


async def wakes_that_arrive_during_the_work_are_one_further_wake(backend: Backend) -> None:
    """However many events come while their wake is being worked on, one wake more waits for the worker, before and after."""
    store = await _store(backend, STATUS)
    await _woken(store, "status", {"text": "first"})
    claim = await claimed(store, "s")
    for n in range(3):
        await _woken(store, "status", {"text": f"during {n}"})
    assert inputs(await inbox(store, "s")) == ["first", "during 0"]
    await store.queue.settle(claim)
    await _woken(store, "status", {"text": "after"})
    assert inputs(await inbox(store, "s")) == ["during 0"]


async def scopes_with_alike_names_share_no_wakes(backend: Backend) -> None:
    """A session whose name looks like another one's frame is another session: wakes reach their own inbox."""
    store = await backend.open()
    for process_id, scope in (("p", Scope("a", "b")), ("q", Scope("a/frame:b")), ("r", Scope("a", "c"))):
        if scope.session_id not in [s.session_id for s in (await store.sessions.list()).sessions]:
            await store.sessions.create(scope.session_id)
        await registered(store, process_id, STATUS, wake_target=scope)
    for process_id in ("p", "q", "r"):
        event = (await store.processes.append(process_id, "status", {"text": process_id})).event
        assert event.wake is not None
        assert not event.wake.coalesced
    assert inputs(await inbox(store, "a")) == ["p", "r"]
    assert inputs(await inbox(store, "a/frame:b")) == ["q"]


async def wakes_beside_deletions_never_deadlock_and_lose_nothing(backend: Backend) -> None:
    """Appends that wake a session while it is deleted all succeed: each wake is in the inbox before it, or recorded after."""
    handles = [await backend.open() for _ in range(2)]
    for n in range(4):
        session_id = f"s{n}"
        await handles[0].sessions.create(session_id)
        for m in range(3):
            await registered(handles[0], f"p{n}-{m}", WAKE, wake_target=Scope(session_id))
        appends = [
            handles[m % 2].processes.append(f"p{n}-{m}", "process.wake", {"text": str(k)}) for m in range(3) for k in range(2)
        ]
        await asyncio.gather(*appends, handles[1].sessions.delete(session_id))
        for m in range(3):
            assert sequences(await log(handles[0], f"p{n}-{m}")) == [1, 2]
            assert (await handles[0].processes.get(f"p{n}-{m}")).wake_target is None
    assert (await stored(backend, "batches"))["batches"] == []


async def an_end_may_wake(backend: Backend) -> None:
    """A terminal event that declares a wake ends its process and wakes its session in one transaction."""
    both = EventType(
        name="end", terminal=Terminal(state=ProcessState.COMPLETED), wake=Wake(input=Template("done: {x}", {"x": Pointer("/x")}))
    )
    store = await _store(backend, both)
    await store.processes.append("p", "end", {"x": 1}, replay_key="end")
    assert (await store.processes.get("p")).output == Success({"x": 1})
    assert inputs(await inbox(store, "s")) == ["done: 1"]


def _alone(table: str) -> str:
    """A table's name without its schema: where it is renamed to, it stays."""
    return table.rpartition(".")[2]
