"""Laws of processes: a registration that never changes, a state that changes once to its end, and what a prune leaves."""

from __future__ import annotations

import asyncio
from typing import Any

from lash_store.errors import (
    AlreadyTerminal,
    InvalidArgument,
    NotFound,
    RegistrationConflict,
    ReplayConflict,
    SessionDeleted,
    Unstorable,
)
from lash_store.model.process import (
    EXTERNAL,
    Cancelled,
    Const,
    EventType,
    ExternalRef,
    Failure,
    Output,
    Payload,
    Pointer,
    Process,
    ProcessIdentity,
    ProcessInput,
    ProcessState,
    Registration,
    Scope,
    StartGrant,
    Success,
    Template,
    Terminal,
    Wait,
    Wake,
)
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import LINE, NOTE, WAKE, inbox, inputs, job, lease_of, log, next_of, notes, registered
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, nothing_changes, of_type, outcomes, refused, stored

IDS_IN_BYTE_ORDER = ("A", "B", "a", "b", "Ä", "ä", "😀")


async def the_same_registration_again_returns_the_process_as_it_is_now(backend: Backend) -> None:
    """Registering twice is registering once; the second answer shows what has happened since."""
    store, other = await backend.open(), await backend.open()
    first = await registered(store, "p", NOTE, payload={"a": 1, "b": [2]})
    assert (first.state, first.last_sequence, first.output) == (ProcessState.RUNNING, 0, None)
    assert await other.processes.register(job("p", NOTE, payload={"a": 1, "b": [2]})) == first
    await store.processes.complete("p", Success({"ok": True}))
    again = await other.processes.register(job("p", NOTE, payload={"a": 1, "b": [2]}))
    assert again == await store.processes.get("p")
    assert (again.registration_hash, again.state) == (first.registration_hash, ProcessState.COMPLETED)


async def another_registration_under_the_same_id_is_a_conflict(backend: Backend) -> None:
    """Each part of a registration belongs to it: one that differs anywhere is refused and changes nothing."""
    store = await backend.open()
    await store.sessions.create("s")
    await registered(store, "p", NOTE)
    others: list[dict[str, Any]] = [
        {"payload": 1},
        {"kind": "other"},
        {"caused_by": {"type": "turn"}},
        {"originator": Scope("s")},
        {"wake_target": Scope("s")},
        {"env_ref": "env"},
        {"identity": ProcessIdentity(kind="job", label="x")},
    ]
    async with nothing_changes(backend):
        for fields in others:
            with refused(RegistrationConflict, kind="process", id="p"):
                await registered(store, "p", NOTE, **fields)
        with refused(RegistrationConflict):
            await registered(store, "p", NOTE, LINE)
        with refused(RegistrationConflict):
            await registered(store, "p")


async def concurrent_registrations_of_one_process_are_one(backend: Backend) -> None:
    """Whoever comes first creates it, and everybody gets it; of two different ones, one wins."""
    handles = [await backend.open() for _ in range(4)]
    for n in range(5):
        same = await outcomes(*(registered(handle, f"p{n}", NOTE) for handle in handles for _ in range(2)))
        assert len(of_type(same, Process)) == len(same), same
        assert len({process.registration_hash for process in of_type(same, Process)}) == 1
        mixed = await outcomes(*(registered(handle, f"q{n}", payload=i % 2) for i, handle in enumerate(handles)))
        assert len(of_type(mixed, Process)) == 2
        assert len(of_type(mixed, RegistrationConflict)) == 2


async def a_registration_comes_back_as_it_went_in(backend: Backend) -> None:
    """Input, identity, event types, originator, cause, environment and wake target round-trip, in the caller's key order."""
    store = await backend.open()
    await store.sessions.create("s")
    ending = EventType(name="done", schema={"type": "object"}, terminal=Terminal(state=ProcessState.FAILED, output=Payload()))
    waking = EventType(
        name="ping", wake=Wake(input=Template("{a}", {"a": Pointer("/a")}), when=Const(True), dedupe=Const({"k": [1]}))
    )
    registration = Registration(
        process_id="p",
        input=ProcessInput("engine", {"z": 1, "a": [2**70, "é\u0000\ud800", -0.5, None]}),
        identity=ProcessIdentity(kind="k", label="a\nlabel", definition={"name": "d"}),
        event_types=[ending, waking],
        originator=Scope("gone", "f"),
        caused_by={"type": "session_node", "session_id": "s", "node_id": "n"},
        env_ref="process-env:1",
        wake_target=Scope("s", "frame"),
    )
    await store.processes.register(registration)
    found = await (await backend.open()).processes.get("p")
    assert found.input == registration.input
    assert list(found.input.payload) == ["z", "a"]
    assert (found.identity, found.caused_by, found.env_ref) == (registration.identity, registration.caused_by, "process-env:1")
    assert (found.originator, found.wake_target) == (registration.originator, registration.wake_target)
    assert list(found.event_types)[-2:] == [ending, waking]


async def the_order_of_keys_is_no_part_of_a_registrations_identity(backend: Backend) -> None:
    """A retry that writes the same content with its keys in another order is the same registration."""
    store = await backend.open()
    first = await registered(store, "p", payload={"blobs": {"a": [1], "b": [2]}, "x": 1})
    again = await registered(store, "p", payload={"x": 1, "blobs": {"b": [2], "a": [1]}})
    assert again == first


async def core_event_types_are_always_there_and_cannot_be_redeclared(backend: Backend) -> None:
    """Every process can be cancelled, wait and end; no declaration can turn an end into something else."""
    store = await backend.open()
    process = await registered(store, "p")
    core = [event_type.name for event_type in process.event_types]
    assert len(core) == 6
    for name in core:
        with refused(InvalidArgument):
            await registered(store, "q", EventType(name=name))
    with refused(NotFound, kind="process", id="q"):
        await store.processes.get("q")


async def a_registration_that_could_not_run_is_refused_before_any_sql(backend: Backend) -> None:
    """Environments where they do not belong, double types, ends without an output, schemas that are none."""
    store = await backend.open()
    failed = Terminal(state=ProcessState.FAILED)
    bad: list[Registration] = [
        job("p", kind="engine"),
        job("p", kind="tool_call"),
        job("p", kind=EXTERNAL, env_ref="e"),
        job("p", kind="session_turn", env_ref="e"),
        job("p", NOTE, NOTE),
        job("p", EventType(name="end", terminal=failed)),
        job("p", EventType(name="end", terminal=Terminal(state=ProcessState.RUNNING, output=Payload()))),
        job("p", EventType(name="x", schema={"type": "objekt"})),
        job("p", EventType(name="x", schema={"$ref": "https://example.com/schema"})),
        job("p", EventType(name="x", schema="text")),
    ]
    async with nothing_changes(backend):
        for registration in bad:
            with refused(InvalidArgument):
                await store.processes.register(registration)
        for process_id in _any("", "a\nb", 7, None):
            with refused(Unstorable):
                await store.processes.register(job(process_id))


async def what_does_not_fit_its_type_is_refused_before_any_sql(backend: Backend) -> None:
    """Nothing is stored that could not be read back: a wrong part is Unstorable or InvalidArgument, never found corrupt later."""
    store = await backend.open()
    await registered(store, "p")
    async with nothing_changes(backend):
        for registration in _misfits():
            with refused((Unstorable, InvalidArgument)):
                await store.processes.register(registration)
        for ref in _any("x", None, ExternalRef(backend=_any(1)[0], id="i")):
            with refused(Unstorable):
                await store.processes.set_external_ref("p", ref)
        for wait in _any("x", None, Wait(name=_any(5)[0], ordinal=1)):
            with refused((Unstorable, InvalidArgument)):
                await store.processes.set_wait("p", wait)
        for wrong in _any("yes", [1]):
            with refused((Unstorable, InvalidArgument)):
                await store.processes.list(waiting=wrong)
        for wrong in _any([1], None):
            with refused((Unstorable, InvalidArgument)):
                await store.processes.append("p", wrong)


def _any(*values: Any) -> tuple[Any, ...]:
    """Values of no known type: callers are not all typed."""
    return values


def _misfits() -> list[Registration]:
    ends = [Terminal(state=wrong, output=Payload()) for wrong in _any("banana", 7)]
    wakes = [Wake(input=wrong) for wrong in _any(Pointer(_any(5)[0]), Template("{a}", {"a": _any(Template("", {}))[0]}), "x", {})]
    wakes += [Wake(input=Payload(), dedupe=wrong) for wrong in _any("key", 7)]
    return [
        *(job("q", EventType(name="x", terminal=end)) for end in ends),
        *(job("q", EventType(name="x", wake=wake)) for wake in wakes),
        *(job("q", wrong) for wrong in _any("x", None, {"name": "x"})),
        *(job("q", **{name: "x"}) for name in ("identity", "originator", "wake_target")),
        *(Registration(process_id="q", input=wrong) for wrong in _any("x", None, {"kind": "job"})),
    ]


async def a_state_may_be_given_by_its_name(backend: Backend) -> None:
    """The text of a state is the state: in a declaration as in a filter."""
    store = await backend.open()
    ending = EventType(name="done", terminal=Terminal(state=_any("completed")[0]))
    await registered(store, "p", ending)
    await store.processes.append("p", "done", {"x": 1}, replay_key="end")
    assert (await store.processes.get("p")).output == Success({"x": 1})
    assert len((await store.processes.list(state="completed")).processes) == 1


async def work_done_elsewhere_is_labelled_by_its_payload(backend: Backend) -> None:
    """The default identity is the kind; external work also has the first label, name or title its payload offers, if a text."""
    store = await backend.open()
    labels: list[tuple[Any, str | None]] = [
        ({"title": "t", "name": "n"}, "n"),
        ({"label": 5, "name": "n"}, None),
        ({"title": "t"}, "t"),
        (None, None),
    ]
    for n, (payload, label) in enumerate(labels):
        process = await registered(store, f"p{n}", kind=EXTERNAL, payload=payload)
        assert process.identity == ProcessIdentity(kind=EXTERNAL, label=label)
    assert (await registered(store, "q", payload={"label": "x"})).identity == ProcessIdentity(kind="job")


async def a_process_nobody_registered_is_not_found(backend: Backend) -> None:
    """Every call but a register says NotFound for an id that was never used."""
    store = await backend.open()
    processes = store.processes
    calls = (
        lambda: processes.get("none"),
        lambda: processes.append("none", "note"),
        lambda: processes.events("none"),
        lambda: processes.recent("none"),
        lambda: processes.count_through("none", "note", 1),
        lambda: processes.wake_events("none"),
        lambda: processes.ack_wake("none", 1),
        lambda: processes.complete("none", Success()),
        lambda: processes.cancel("none"),
        lambda: processes.signal("none", "go"),
        lambda: processes.set_wait("none", Wait(name="go", ordinal=1)),
        lambda: processes.clear_wait("none"),
        lambda: processes.set_external_ref("none", ExternalRef(backend="b", id="i")),
        lambda: processes.grants_for("none"),
        lambda: processes.break_lease("none"),
        lambda: lease_of(store, "none"),
        lambda: processes.await_output("none", timeout_ms=0),
        lambda: processes.wait_event("none", "note", timeout_ms=0),
        lambda: processes.wait_signal("none", "go", ordinal=1, timeout_ms=0),
    )
    async with nothing_changes(backend):
        for call in calls:
            with refused(NotFound, kind="process", id="none", retention=False):
                await call()


async def an_external_reference_round_trips_and_is_replaced(backend: Backend) -> None:
    """Where the work lives is kept with its metadata; a later word replaces it, also after the end."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p", kind=EXTERNAL)
    ref = ExternalRef(backend="queue", id="42", metadata={"queue": "critical"})
    assert (await store.processes.set_external_ref("p", ref)).external_ref == ref
    assert (await other.processes.get("p")).external_ref == ref
    await store.processes.complete("p", Success())
    later = ExternalRef(backend="queue", id="43")
    assert (await store.processes.set_external_ref("p", later)).external_ref == later
    assert await log(store, "p") == await log(other, "p")
    assert len(await log(store, "p")) == 1


# --- lists ----------------------------------------------------------------------------------------------------------------


async def lists_filter_by_state_and_wait(backend: Backend) -> None:
    """Running ones by default; by state, by whether they wait, and both; in id order."""
    store = await backend.open()
    for process_id in ("running", "waiting", "done"):
        await registered(store, process_id)
    await store.processes.set_wait("waiting", Wait(name="go", ordinal=1))
    await store.processes.complete("done", Success())
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"state": None}, ["done", "running", "waiting"]),
        ({}, ["running", "waiting"]),
        ({"state": ProcessState.COMPLETED}, ["done"]),
        ({"state": None, "waiting": True}, ["waiting"]),
        ({"waiting": False}, ["running"]),
        ({"state": "failed"}, []),
    ]
    for filters, expected in cases:
        page = await store.processes.list(**filters)
        assert [process.process_id for process in page.processes] == expected, filters
    with refused(InvalidArgument, argument="state"):
        await store.processes.list(state="ended")


async def lists_filter_by_definition_kind_and_session(backend: Backend) -> None:
    """A definition is compared by value; originator and wake target by session, whatever the frame."""
    store = await backend.open()
    await store.sessions.create("s")
    await registered(store, "a", identity=ProcessIdentity(kind="job", definition={"x": 1, "y": [2]}))
    await registered(store, "b", kind="other", originator=Scope("s", "frame"))
    await registered(store, "c", wake_target=Scope("s", "frame"))
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"definition": {"y": [2], "x": 1}}, ["a"]),
        ({"definition": {"x": 1}}, []),
        ({"definition": None}, []),
        ({"kind": "other"}, ["b"]),
        ({"originator_session_id": "s"}, ["b"]),
        ({"wake_session_id": "s"}, ["c"]),
        ({"wake_session_id": "t"}, []),
    ]
    for filters, expected in cases:
        page = await store.processes.list(**filters)
        assert [process.process_id for process in page.processes] == expected, filters


async def lists_are_pages_in_byte_order(backend: Backend) -> None:
    """Ids sort by their bytes on every engine, and pages join without a gap or a repetition."""
    store = await backend.open()
    for process_id in reversed(IDS_IN_BYTE_ORDER):
        await registered(store, process_id)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.processes.non_terminal(limit=2, cursor=cursor)
        seen += [process.process_id for process in page.processes]
        if (cursor := page.cursor) is None:
            break
    assert seen == list(IDS_IN_BYTE_ORDER)


async def what_has_ended_is_not_on_the_work_list(backend: Backend) -> None:
    """Ended processes leave the durable work list; state column and process tell the same."""
    store = await backend.open()
    outputs: dict[str, Output] = {
        "completed": Success(),
        "failed": Failure(code="c", message="m"),
        "cancelled": Cancelled(message="m"),
    }
    await registered(store, "live")
    for process_id, output in outputs.items():
        await registered(store, process_id)
        await store.processes.complete(process_id, output)
        page = await store.processes.list(state=process_id)
        assert [(process.process_id, process.state) for process in page.processes] == [(process_id, process_id)]
    page = await store.processes.non_terminal()
    assert [process.process_id for process in page.processes] == ["live"]


# --- waiting state --------------------------------------------------------------------------------------------------------


async def a_wait_is_shown_until_it_is_cleared_or_the_process_ends(backend: Backend) -> None:
    """Set, replaced, cleared, and gone with the end; the same wait again keeps its time; an ended process cannot wait."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p")
    first = (await store.processes.set_wait("p", Wait(name="go", ordinal=1))).wait
    assert first is not None
    assert (await other.processes.get("p")).wait == first
    await backend.advance(MINUTE_MS)
    assert (await store.processes.set_wait("p", Wait(name="go", ordinal=1))).wait == first
    second = (await store.processes.set_wait("p", Wait(name="go", ordinal=2))).wait
    assert second is not None
    assert (second.ordinal, (second.since_ms or 0) > (first.since_ms or 0)) == (2, True)
    assert (await store.processes.clear_wait("p")).wait is None
    assert (await store.processes.clear_wait("p")).wait is None
    await store.processes.set_wait("p", Wait(name="go", ordinal=3))
    assert (await store.processes.complete("p", Success())).wait is None
    with refused(AlreadyTerminal, process_id="p", state="completed"):
        await store.processes.set_wait("p", Wait(name="go", ordinal=4))
    assert len(await log(store, "p")) == 1


# --- ending ---------------------------------------------------------------------------------------------------------------


async def a_process_ends_once(backend: Backend) -> None:
    """The same output again changes nothing, another one is a conflict, another state is refused."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p")
    ended = await store.processes.complete("p", Success({"ok": True}))
    assert (ended.state, ended.output, ended.terminal) == (ProcessState.COMPLETED, Success({"ok": True}), True)
    async with nothing_changes(backend):
        assert await other.processes.complete("p", Success({"ok": True})) == ended
        with refused(ReplayConflict):
            await store.processes.complete("p", Success({"ok": False}))
        with refused(AlreadyTerminal, process_id="p", state="completed"):
            await store.processes.complete("p", Failure(code="c", message="m"))
        with refused(AlreadyTerminal):
            await store.processes.complete("p", Cancelled(message="m"))


async def of_concurrent_ends_one_wins(backend: Backend) -> None:
    """Several outputs at once: one is the output, the others are refused, the log has one end."""
    handles = [await backend.open() for _ in range(3)]
    for n in range(5):
        process_id = f"p{n}"
        await registered(handles[0], process_id)
        results = await outcomes(
            handles[0].processes.complete(process_id, Success(1)),
            handles[1].processes.complete(process_id, Success(2)),
            handles[2].processes.complete(process_id, Cancelled(message="m")),
        )
        winners = of_type(results, Process)
        assert len(winners) == 1, results
        assert len(of_type(results, AlreadyTerminal)) + len(of_type(results, ReplayConflict)) == 2
        assert await handles[1].processes.get(process_id) == winners[0]
        assert len(await log(handles[0], process_id)) == 1


async def every_output_round_trips(backend: Backend) -> None:
    """Value, class, code, message, raw and control come back as they went in."""
    store, other = await backend.open(), await backend.open()
    outputs: list[Output] = [
        Success(),
        Success({"z": 1, "a": None}, control={"type": "finish", "value": 1}),
        Failure(kind="timeout", code="c", message="m", raw=[1], control={"type": "fail"}),
        Cancelled(message="m", raw={"by": "host"}),
    ]
    for n, output in enumerate(outputs):
        await registered(store, f"p{n}")
        assert (await store.processes.complete(f"p{n}", output)).output == output
        assert await other.processes.await_output(f"p{n}", timeout_ms=0) == output
    with refused(Unstorable, path="output"):
        await store.processes.complete("p0", _any({"type": "success"})[0])


async def a_process_with_the_longest_id_lives_a_whole_life(backend: Backend) -> None:
    """Derived keys never make an id too long: it can be signalled, cancelled, leased, waited for and ended."""
    store = await backend.open()
    process_id = "x" * 200
    await registered(store, process_id, EventType(name="signal.go"))
    await store.processes.signal(process_id, "go", signal_id="s" * 200)
    assert await store.processes.wait_signal(process_id, "go", ordinal=1, timeout_ms=0) is not None
    await store.processes.cancel(process_id, reason="enough")
    lease = await lease_of(store, process_id)
    assert (await store.processes.complete(process_id, Success(1), lease=lease)).output == Success(1)


async def a_cancellation_is_a_request_and_not_a_state(backend: Backend) -> None:
    """The process still runs; the same reason is one request, another one a second; also an ended process can be asked."""
    store = await backend.open()
    await registered(store, "p")
    assert (await store.processes.cancel("p", reason="stop")).state is ProcessState.RUNNING
    await store.processes.cancel("p", reason="stop")
    await store.processes.cancel("p")
    events = await log(store, "p")
    assert [event.payload for event in events] == [{"reason": "stop"}, {"reason": None}]
    assert {event.event_type for event in events} == {"process.cancel_requested"}
    await store.processes.complete("p", Cancelled(message="stopped"))
    late = await store.processes.cancel("p", reason="late")
    assert (late.state, late.last_sequence) == (ProcessState.CANCELLED, 4)


# --- starting and reopening -----------------------------------------------------------------------------------------------


async def a_start_with_a_grant_is_all_or_nothing(backend: Backend) -> None:
    """Registration and grant are one transaction: a grant that cannot be made leaves no process behind."""
    store = await backend.open()
    for session_id in ("s", "gone"):
        await store.sessions.create(session_id)
    await store.sessions.delete("gone")
    async with nothing_changes(backend):
        with refused(SessionDeleted):
            await store.processes.register(job("p"), grant=StartGrant(scope=Scope("gone")))
        with refused(NotFound, kind="session"):
            await store.processes.register(job("p"), grant=StartGrant(scope=Scope("never")))
        with refused(SessionDeleted):
            await registered(store, "p", wake_target=Scope("gone"))
        with refused(NotFound, kind="session"):
            await registered(store, "p", wake_target=Scope("never"))
    await store.processes.register(job("p"), grant=StartGrant(scope=Scope("s", "f")))
    assert [grant.scope for grant in await store.processes.grants_for("p")] == [Scope("s", "f")]


async def processes_survive_a_reopen(backend: Backend) -> None:
    """Record, log, grant, wake and replay keys are there for another handle after all others are closed."""
    store = await backend.open()
    await store.sessions.create("s")
    await store.processes.register(job("p", WAKE, wake_target=Scope("s")), grant=StartGrant(scope=Scope("s")))
    first = await store.processes.append("p", "process.wake", {"text": "hello"}, replay_key="k")
    await store.close()
    again = await backend.open()
    assert await log(again, "p") == [first.event]
    assert len((await again.processes.list_grants(Scope("s"))).entries) == 1
    replay = await again.processes.append("p", "process.wake", {"text": "hello"}, replay_key="k")
    assert (replay.event, replay.replayed) == (first.event, True)
    assert inputs(await inbox(again, "s")) == ["hello"]


async def an_append_never_rewrites_the_registration(backend: Backend) -> None:
    """Whatever happens to a process, its registration's row stays as it was first written."""
    store = await backend.open()
    await registered(store, "p", NOTE, payload={"large": "x" * 10_000})
    before = await stored(backend, "registrations")
    await store.processes.append("p", "note", 1)
    await store.processes.set_wait("p", Wait(name="go", ordinal=1))
    await store.processes.set_external_ref("p", ExternalRef(backend="b", id="i"))
    await store.processes.complete("p", Success(), lease=await lease_of(store, "p"))
    assert await stored(backend, "registrations") == before


async def a_transaction_rolls_processes_back_with_everything_else(backend: Backend) -> None:
    """Registration, events, wakes and leases made inside a transaction that fails never happened."""
    store = await backend.open()
    await store.sessions.create("s")
    async with nothing_changes(backend):
        with refused(RuntimeError):
            async with store.transaction() as tx:
                await tx.processes.register(job("p", WAKE, wake_target=Scope("s")), grant=StartGrant(scope=Scope("s")))
                await tx.processes.append("p", "process.wake", {"text": "x"})
                await tx.processes.claim("p", "w", incarnation="1", lease_ms=HOUR_MS)
                raise RuntimeError("back")
    async with store.transaction() as tx:
        await tx.processes.register(job("p", WAKE, wake_target=Scope("s")))
        await tx.processes.append("p", "process.wake", {"text": "x"})
    assert inputs(await inbox(store, "s")) == ["x"]


# --- pruning --------------------------------------------------------------------------------------------------------------


async def a_prune_removes_what_ended_long_ago_and_nothing_else(backend: Backend) -> None:
    """Age counts from the end, on the database's clock; running processes are never old enough; a dry run changes nothing."""
    store = await backend.open()
    for process_id in ("old", "running", "young"):
        await registered(store, process_id, NOTE)
        await store.processes.append(process_id, "note")
    await store.processes.complete("old", Success())
    await backend.advance(HOUR_MS)
    await store.processes.complete("young", Success())
    async with nothing_changes(backend):
        report = await store.processes.prune(older_than_ms=MINUTE_MS, dry_run=True)
    assert (report.processes, report.events) == (1, 2)
    assert await store.processes.prune(older_than_ms=MINUTE_MS) == report
    page = await store.processes.list(state=None)
    assert [process.process_id for process in page.processes] == ["running", "young"]
    assert (await store.processes.prune(older_than_ms=MINUTE_MS)).processes == 0


async def a_pruned_process_never_runs_again(backend: Backend) -> None:
    """A late identical register finds it ended and pruned; another one is a conflict; everything else is gone by retention."""
    store, other = await backend.open(), await backend.open()
    await store.sessions.create("s")
    first = await store.processes.register(job("p", NOTE), grant=StartGrant(scope=Scope("s")))
    await store.processes.append("p", "note")
    await other.processes.append("p", "note")
    await store.processes.complete("p", Success("secret"))
    await store.processes.prune(older_than_ms=0)
    late = await other.processes.register(job("p", NOTE), grant=StartGrant(scope=Scope("s")))
    assert (late.pruned, late.state, late.last_sequence, late.output) == (True, ProcessState.COMPLETED, 3, None)
    assert late.registration_hash == first.registration_hash
    with refused(RegistrationConflict):
        await registered(store, "p")
    assert await next_of(store) == ()
    assert (await store.processes.list_grants(Scope("s"))).entries == ()
    for call in (
        lambda: other.processes.get("p"),
        lambda: other.processes.append("p", "note"),
        lambda: other.processes.events("p"),
        lambda: other.processes.complete("p", Success("secret")),
        lambda: other.processes.await_output("p", timeout_ms=0),
        lambda: lease_of(other, "p"),
    ):
        with refused(NotFound, kind="process", id="p", retention=True):
            await call()
    assert not [row for rows in (await stored(backend)).values() for row in rows if "secret" in row]


async def a_prune_of_a_long_log_takes_several_steps_and_ends(backend: Backend) -> None:
    """More events than one transaction removes are all removed, and counted."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    for _ in range(2):
        await store.processes.append_many("p", notes(1_000))
    await store.processes.complete("p", Success())
    report = await store.processes.prune(older_than_ms=0)
    assert (report.processes, report.events, report.complete) == (1, 2_001, True)
    assert (await stored(backend, "events", "registrations", "grants")) == {"events": [], "registrations": [], "grants": []}


async def prunes_at_once_remove_everything_once(backend: Backend) -> None:
    """Several prunes beside each other neither fail nor count a process twice."""
    handles = [await backend.open() for _ in range(3)]
    for n in range(12):
        await registered(handles[0], f"p{n}")
        await handles[0].processes.complete(f"p{n}", Success())
    reports = await asyncio.gather(*(handle.processes.prune(older_than_ms=0) for handle in handles))
    assert sum(report.processes for report in reports) == 12
    assert sum(report.events for report in reports) == 12
