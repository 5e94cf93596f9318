"""Laws of grants: who sees a process, moved atomically, gone with their session, and never a reason for it to run or stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lash_store.errors import Misuse, NotFound, NotGranted, Refused, SessionDeleted, StoreError, Unstorable
from lash_store.model.process import Descriptor, EventType, ProcessState, Scope, StartGrant, Success
from lash_store.model.session import Deletion
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import NOTE, WAKE, inbox, inputs, job, log, registered, signal_of
from lash_store.testing.steps import nothing_changes, of_type, outcomes, refused

if TYPE_CHECKING:
    from lash_store import AsyncStore

SESSIONS = ("s1", "s2", "s3")


async def _store(backend: Backend, *process_ids: str) -> AsyncStore:
    store = await backend.open()
    for session_id in SESSIONS:
        await store.sessions.create(session_id)
    for process_id in process_ids:
        await registered(store, process_id, NOTE)
    return store


async def _held(store: AsyncStore, scope: Scope, *, live_only: bool = False) -> list[str]:
    page = await store.processes.list_grants(scope, live_only=live_only)
    assert page.cursor is None
    assert all(entry.grant.scope == scope for entry in page.entries)
    return [entry.process.process_id for entry in page.entries]


async def a_grant_is_given_described_and_taken_away(backend: Backend) -> None:
    """A session holds what it was granted; a later grant replaces the descriptor; revoking twice is no error."""
    store = await _store(backend, "p")
    scope = Scope("s1")
    assert not await store.processes.has_grant(scope, "p")
    grant = await store.processes.grant(scope, "p", descriptor=Descriptor(kind="k", label="l"))
    assert (grant.scope, grant.process_id, grant.descriptor) == (scope, "p", Descriptor(kind="k", label="l"))
    assert await store.processes.has_grant(scope, "p")
    assert (await store.processes.grant(scope, "p")).descriptor == Descriptor()
    assert len(await store.processes.grants_for("p")) == 1
    assert await store.processes.revoke(scope, "p") is True
    assert await store.processes.revoke(scope, "p") is False
    assert await store.processes.revoke(scope, "none") is False
    assert not await store.processes.has_grant(scope, "p")
    assert await _held(store, scope) == []
    assert await log(store, "p") == []


async def grants_need_a_process_and_a_live_session(backend: Backend) -> None:
    """An unknown process, and a session that never was or is gone, are refused; nothing is left behind."""
    store = await _store(backend, "p")
    await store.sessions.delete("s3")
    async with nothing_changes(backend):
        with refused(NotFound, kind="process"):
            await store.processes.grant(Scope("s1"), "none")
        with refused(NotFound, kind="session"):
            await store.processes.grant(Scope("none"), "p")
        with refused(SessionDeleted):
            await store.processes.grant(Scope("s3"), "p")
        for scope in ("s1", None, Scope(5)):  # type: ignore[arg-type]
            with refused(Unstorable):
                await store.processes.grant(scope, "p")  # type: ignore[arg-type]
        with refused(Unstorable):
            await store.processes.grant(Scope("s1"), "p", descriptor="label")  # type: ignore[arg-type]
        with refused(Unstorable):
            await store.processes.register(job("q"), grant=Scope("s1"))  # type: ignore[arg-type]
    assert await store.processes.has_grant(Scope("none"), "none") is False
    assert await _held(store, Scope("none")) == []


async def a_scope_is_exactly_itself(backend: Backend) -> None:
    """A session, each of its frames, and a session whose name looks like a frame of another hold their own grants."""
    store = await _store(backend, "p", "q", "r")
    await store.sessions.create("s1/frame:f")
    scopes = {"p": Scope("s1"), "q": Scope("s1", "f"), "r": Scope("s1/frame:f")}
    for process_id, scope in scopes.items():
        await store.processes.grant(scope, process_id)
    for process_id, scope in scopes.items():
        assert await _held(store, scope) == [process_id]
        for other in scopes:
            assert await store.processes.has_grant(scope, other) is (other == process_id)
    await store.processes.revoke(Scope("s1"), "q")
    assert await _held(store, Scope("s1", "f")) == ["q"]


async def several_sessions_hold_one_process(backend: Backend) -> None:
    """Grants add up, are listed by session and frame, and move one by one; the log knows nothing of them."""
    store = await _store(backend, "p")
    for session_id in ("s2", "s1"):
        await store.processes.grant(Scope(session_id), "p")
    assert [grant.scope.session_id for grant in await store.processes.grants_for("p")] == ["s1", "s2"]
    assert await store.processes.transfer(Scope("s1"), Scope("s3"), ["p"]) == 1
    assert [grant.scope.session_id for grant in await store.processes.grants_for("p")] == ["s2", "s3"]
    assert await log(store, "p") == []


async def a_process_may_be_held_by_nobody(backend: Backend) -> None:
    """Grants never decide whether a process runs."""
    store = await _store(backend, "p")
    assert await store.processes.grants_for("p") == ()
    assert await _held(store, Scope("s1")) == []
    assert (await store.processes.complete("p", Success())).terminal


async def a_transfer_moves_all_or_nothing(backend: Backend) -> None:
    """Descriptors move along, what the target held is replaced, and one id that is not held leaves all where they were."""
    store = await _store(backend, "p", "q", "r")
    source, target = Scope("s1"), Scope("s2", "f")
    for process_id in ("p", "q"):
        await store.processes.grant(source, process_id, descriptor=Descriptor(label=process_id))
    await store.processes.grant(target, "q", descriptor=Descriptor(label="before"))
    async with nothing_changes(backend):
        for ids in (["p", "r"], ["p", "none"]):
            with refused(NotGranted, session_id="s1", process_id=ids[1]):
                await store.processes.transfer(source, target, ids)
        with refused(Refused):
            await store.processes.transfer(source, target, ["p", "p"])
        assert await store.processes.transfer(source, target, []) == 0
        assert await store.processes.transfer(source, source, ["p", "q"]) == 2
        with refused(NotFound, kind="session"):
            await store.processes.transfer(source, Scope("none"), ["p"])
    assert await store.processes.transfer(source, target, ["q", "p"]) == 2
    assert await _held(store, source) == []
    entries = (await store.processes.list_grants(target)).entries
    assert [(entry.process.process_id, entry.grant.descriptor.label) for entry in entries] == [("p", "p"), ("q", "q")]


async def transfers_at_once_move_a_grant_once(backend: Backend) -> None:
    """Of several transfers of one grant one wins; crossing transfers never wait for each other forever."""
    store, other = await _store(backend, "p", "q"), await backend.open()
    for _ in range(4):
        await store.processes.grant(Scope("s1"), "p")
        results = await outcomes(
            store.processes.transfer(Scope("s1"), Scope("s2"), ["p"]), other.processes.transfer(Scope("s1"), Scope("s3"), ["p"])
        )
        assert sorted(type(result).__name__ for result in results) == ["NotGranted", "int"]
        for session_id in ("s2", "s3"):
            await store.processes.revoke(Scope(session_id), "p")
        await store.processes.grant(Scope("s1"), "p")
        await store.processes.grant(Scope("s2"), "q")
        crossing = await outcomes(
            store.processes.transfer(Scope("s1"), Scope("s2"), ["p"]), other.processes.transfer(Scope("s2"), Scope("s1"), ["q"])
        )
        assert crossing == [1, 1]
        await store.processes.revoke(Scope("s2"), "p")
        await store.processes.revoke(Scope("s1"), "q")


async def lists_of_grants_are_pages_and_may_leave_out_what_ended(backend: Backend) -> None:
    """By process id, each with its process; live ones only, on demand."""
    store = await _store(backend, "live", "done", "A")
    for process_id in ("live", "done", "A"):
        await store.processes.grant(Scope("s1"), process_id)
    await store.processes.complete("done", Success(1))
    assert await _held(store, Scope("s1")) == ["A", "done", "live"]
    assert await _held(store, Scope("s1"), live_only=True) == ["A", "live"]
    first = await store.processes.list_grants(Scope("s1"), limit=2)
    assert first.entries[1].process == await store.processes.get("done")
    rest = await store.processes.list_grants(Scope("s1"), limit=2, cursor=first.cursor)
    assert [entry.process.process_id for entry in rest.entries] == ["live"]


# --- through a session ----------------------------------------------------------------------------------------------------


async def a_session_uses_only_what_it_was_granted(backend: Backend) -> None:
    """Through a session's handle every call on another one's process is NotGranted, known or not; the host needs no grant."""
    store = await _store(backend)
    await registered(store, "p", NOTE, signal_of("go"))
    mine, other = store.session("s1").processes, store.session("s2").processes
    await store.processes.grant(Scope("s1", "frame"), "p")
    async with nothing_changes(backend):
        for process_id in ("p", "none"):
            for call in (
                lambda process_id=process_id: other.get(process_id),
                lambda process_id=process_id: other.events(process_id),
                lambda process_id=process_id: other.recent(process_id),
                lambda process_id=process_id: anext(other.follow(process_id)),
                lambda process_id=process_id: other.wait_event(process_id, "note", timeout_ms=0),
                lambda process_id=process_id: other.await_output(process_id, timeout_ms=0),
                lambda process_id=process_id: other.signal(process_id, "go"),
                lambda process_id=process_id: other.cancel(process_id),
                lambda process_id=process_id: other.share(process_id, Scope("s2")),
                lambda process_id=process_id: other.transfer(Scope("s3"), [process_id]),
            ):
                with refused(NotGranted, session_id="s2", process_id=process_id):
                    await call()
    assert (await mine.get("p")).process_id == "p"
    assert (await mine.signal("p", "go")).event.sequence == 1
    assert (await mine.cancel("p")).state is ProcessState.RUNNING
    await mine.share("p", Scope("s2"), descriptor=Descriptor(label="shared"))
    assert len((await other.events("p")).events) == 2
    assert await other.revoke("p") is True
    with refused(NotGranted):
        await other.get("p")


async def a_session_starts_what_it_originates_holds_and_is_woken_by(backend: Backend) -> None:
    """start fills in the session, or the frame, as originator and wake target, and grants it in the same transaction."""
    store = await _store(backend)
    process = await store.session("s1").processes.start(job("p", WAKE), frame_id="f", descriptor=Descriptor(label="mine"))
    assert (process.originator, process.wake_target) == (Scope("s1", "f"), Scope("s1", "f"))
    assert [entry.grant.descriptor.label for entry in (await store.session("s1").processes.list(frame_id="f")).entries] == [
        "mine"
    ]
    assert (await store.session("s1").processes.list()).entries == ()
    await store.processes.append("p", "process.wake", {"text": "hello"})
    assert inputs(await inbox(store, "s1")) == ["hello"]
    moved = await store.session("s1").processes.transfer(Scope("s2"), ["p"], frame_id="f")
    assert (moved, await _held(store, Scope("s2"))) == (1, ["p"])


async def a_handle_of_an_earlier_life_uses_no_processes(backend: Backend) -> None:
    """After its session was deleted and created again, an old handle neither starts nor sees nor signals anything."""
    store = await _store(backend)
    old = store.session("s1")
    await old.get()
    await old.processes.start(job("p", signal_of("go")))
    await store.sessions.delete("s1")
    await store.sessions.create("s1")
    await store.processes.grant(Scope("s1"), "p")
    async with nothing_changes(backend):
        for call in (
            lambda: old.processes.get("p"),
            old.processes.list,
            lambda: old.processes.signal("p", "go"),
            lambda: old.processes.start(job("q")),
            lambda: old.processes.transfer(Scope("s2"), ["p"]),
            lambda: old.processes.revoke("p"),
            lambda: old.processes.share("p", Scope("s2")),
        ):
            with refused(SessionDeleted, session_id="s1"):
                await call()
    assert (await store.session("s1").processes.get("p")).process_id == "p"


# --- a session goes -------------------------------------------------------------------------------------------------------


async def a_deleted_session_lets_go_and_says_of_what(backend: Backend) -> None:
    """Its grants in every frame go; running processes nobody else holds are orphaned, others preserved; none is cancelled."""
    store = await backend.open()
    for session_id in ("gone", "remaining"):
        await store.sessions.create(session_id)
    gone = Scope("gone")
    for process_id in ("sole", "shared", "ended"):
        await store.processes.register(job(process_id, WAKE, wake_target=gone), grant=StartGrant(scope=gone))
    await store.processes.grant(Scope("gone", "frame"), "sole")
    await store.processes.grant(Scope("remaining"), "shared")
    await registered(store, "target only", wake_target=Scope("gone", "frame"))
    await store.processes.complete("ended", Success())
    for process_id in ("sole", "shared"):
        await store.processes.append(process_id, "process.wake", {"text": "x"})
    await store.processes.ack_wake("shared", 1)
    report = await store.sessions.delete("gone")
    assert (report.existed, report.complete, report.revoked_grants) == (True, True, 4)
    assert (report.orphaned, report.preserved) == (("sole",), ("shared",))
    for process_id in ("sole", "shared", "ended", "target only"):
        assert (await store.processes.get(process_id)).wake_target is None
    assert [await _held(store, scope) for scope in (gone, Scope("gone", "frame"))] == [[], []]
    assert await _held(store, Scope("remaining")) == ["shared"]
    assert await store.processes.wake_events("shared") == ()
    assert [len(await log(store, process_id)) for process_id in ("sole", "shared", "ended", "target only")] == [1, 1, 1, 0]
    assert (await store.processes.get("sole")).state is ProcessState.RUNNING


async def deleting_again_reports_nothing_more(backend: Backend) -> None:
    """A second deletion, and one of a session that never was, release nothing."""
    store = await _store(backend, "p")
    await store.processes.grant(Scope("s1"), "p")
    assert (await store.sessions.delete("s1")).orphaned == ("p",)
    for session_id in ("s1", "never"):
        report = await store.sessions.delete(session_id)
        assert (report.revoked_grants, report.orphaned, report.preserved) == (0, (), ())


async def a_process_outlives_its_session(backend: Backend) -> None:
    """Orphaned, it still waits, hears the host's signal, and ends; its registration stays idempotent for a late retry."""
    store = await backend.open()
    await store.sessions.create("s")
    registration = job("p", WAKE, signal_of("go"), wake_target=Scope("s"), originator=Scope("s"))
    first = await store.processes.register(registration)
    waiter = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=20_000))
    await store.sessions.delete("s")
    wake = (await store.processes.append("p", "process.wake", {"text": "to nobody"})).event.wake
    assert wake is not None
    assert wake.target is None
    await store.processes.signal("p", "go", {"from": "host"})
    signal = await waiter
    assert signal is not None
    assert signal.payload == {"from": "host"}
    await store.processes.complete("p", Success())
    late = await store.processes.register(registration)
    assert (late.registration_hash, late.state, late.wake_target) == (first.registration_hash, ProcessState.COMPLETED, None)


async def grants_and_deletions_at_once_never_deadlock(backend: Backend) -> None:
    """Each grant is either there before the deletion, which revokes it, or refused after it; what is preserved is held."""
    store, other = await backend.open(), await backend.open()
    await store.sessions.create("stays")
    for n in range(5):
        session_id = f"goes{n}"
        names = [f"p{n}-{m}" for m in range(4)]
        await store.sessions.create(session_id)
        for name in names:
            await store.processes.register(job(name, wake_target=Scope(session_id)), grant=StartGrant(scope=Scope(session_id)))
        results = await outcomes(
            *(other.processes.grant(Scope(session_id, "f"), name) for name in names),
            other.sessions.delete(session_id),
            *(store.processes.grant(Scope("stays"), name) for name in names),
            store.processes.transfer(Scope(session_id), Scope("stays"), [names[0]]),
        )
        failures = [result for result in results if isinstance(result, StoreError)]
        assert all(isinstance(failure, SessionDeleted | NotGranted) for failure in failures), failures
        (report,) = of_type(results, Deletion)
        assert not set(report.orphaned) & set(report.preserved)
        for name in names:
            assert {grant.scope.session_id for grant in await store.processes.grants_for(name)} == {"stays"}


async def a_deletion_touches_only_the_processes_of_its_session(backend: Backend) -> None:
    """Other processes are neither changed nor locked: an open transaction on one of them does not hold the deletion up."""
    store = await _store(backend, "p")
    await registered(store, "other", EventType(name="note"), wake_target=Scope("s2"))
    await store.processes.grant(Scope("s1"), "p")
    before = await store.processes.get("other")
    if backend.engine == "postgresql":  # SQLite has one writer: there an open transaction holds everything
        async with store.transaction() as tx:
            await tx.processes.append("other", "note")
            assert (await (await backend.open()).sessions.delete("s1")).orphaned == ("p",)
        assert (await store.processes.get("other")).last_sequence == 1
    else:
        assert (await store.sessions.delete("s1")).orphaned == ("p",)
        assert await store.processes.get("other") == before


async def grants_inside_a_transaction_are_undone_with_it(backend: Backend) -> None:
    """A transfer that is rolled back moved nothing, and waiting is not for transactions."""
    store = await _store(backend, "p")
    await store.processes.grant(Scope("s1"), "p")
    async with nothing_changes(backend):
        with refused(RuntimeError):
            async with store.transaction() as tx:
                await tx.processes.transfer(Scope("s1"), Scope("s2"), ["p"])
                assert await tx.processes.has_grant(Scope("s2"), "p")
                with refused(Misuse):
                    await tx.processes.await_output("p", timeout_ms=0)
                raise RuntimeError("back")
