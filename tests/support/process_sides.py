"""Calls about processes, triggers and artifacts as sides of an interleaving, and the states they start from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from lash_store.model.process import (
    Const,
    EventType,
    Lease,
    Output,
    Payload,
    Pointer,
    ProcessInput,
    ProcessState,
    Registration,
    Scope,
    StartGrant,
    Success,
    Terminal,
    Wake,
)
from lash_store.model.trigger import Interval, Missed, OccurrenceRequest, SubscriptionDraft
from lash_store.ops.processes import prepare_registration
from lash_store.payload_schema import Schemas
from lash_store.store import processes as facade
from lash_store.store.artifacts import AsyncArtifacts
from lash_store.store.processes import AsyncProcesses
from lash_store.store.sessions import AsyncSessions
from lash_store.store.triggers import AsyncTriggers
from tests.support.player import Player, Script, steady
from tests.support.sides import ENCODER, LEASE_MS, create
from tests.support.stepper import Stage
from tests.support.triggers import pressed, wish

OLD_MS = 10_000  # what ended or was put this long ago goes
EVERY_MS = 1_000
ENV = {"python": "3.11"}
EVENT_TYPES = (
    EventType(name="note"),
    EventType(name="done", terminal=Terminal(state=ProcessState.COMPLETED)),
    EventType(name="broken", terminal=Terminal(state=ProcessState.FAILED, output=Payload())),
    EventType(name="ping", wake=Wake(input=Pointer("/text"))),
    EventType(name="knock", wake=Wake(input=Pointer("/text"), dedupe=Const("door"))),
)


@contextmanager
def steady_ids() -> Generator[None]:
    """Ids that calls mint on the way are the same in every order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lash_store.ops.events.mint", steady)
        patch.setattr(facade, "mint", steady)
        yield


# --- sides ----------------------------------------------------------------------------------------------------------------


def host(call: Callable[[AsyncProcesses], Awaitable[Any]]) -> Script:
    """A call about processes."""
    return lambda player: call(AsyncProcesses(player.runtime))


def triggers(call: Callable[[AsyncTriggers], Awaitable[Any]]) -> Script:
    """A call about triggers."""
    return lambda player: call(AsyncTriggers(player.runtime))


def artifacts(call: Callable[[AsyncArtifacts], Awaitable[Any]]) -> Script:
    """A call about artifacts."""
    return lambda player: call(AsyncArtifacts(player.runtime))


def delete(session_id: str) -> Script:
    """Delete a session with all it holds."""
    return lambda player: AsyncSessions(player.runtime).delete(session_id)


def in_turn(*scripts: Script) -> Script:
    """One side that makes several calls; a refusal ends it."""

    async def script(player: Player) -> list[Any]:
        return [await each(player) for each in scripts]

    return script


def job(process_id: str = "p", wakes: str | None = None, **fields: Any) -> Registration:
    """A process with an event of every meaning."""
    target = None if wakes is None else Scope(wakes)
    return Registration(process_id=process_id, input=ProcessInput("job"), event_types=EVENT_TYPES, wake_target=target, **fields)


def register(registration: Registration, grant: str | None = None) -> Script:
    """Register, and grant to a session."""
    held = None if grant is None else StartGrant(scope=Scope(grant))
    return host(lambda processes: processes.register(registration, grant=held))


def append(registration: Registration, event_type: str, key: str, text: str = "hello", lease: Lease | None = None) -> Script:
    """Append to a process this worker knows."""
    call = host(
        lambda processes: processes.append(registration.process_id, event_type, {"text": text}, replay_key=key, lease=lease)
    )
    return _knowing(registration, call)


def complete(registration: Registration, output: Output | None = None, lease: Lease | None = None) -> Script:
    """End a process this worker knows."""
    result = Success("done") if output is None else output
    return _knowing(registration, host(lambda processes: processes.complete(registration.process_id, result, lease=lease)))


def _knowing(registration: Registration, script: Script) -> Script:
    """The same side, which need not read the registration first."""
    known = (registration, prepare_registration(registration, ENCODER, Schemas()).hash)

    async def warm(player: Player) -> Any:
        player.registrations.put(registration.process_id, known)
        return await script(player)

    return warm


def claim(process_id: str, owner: str, *, incarnation: str = "1", token: str | None = None) -> Script:
    """Lease a process."""
    return host(lambda processes: processes.claim(process_id, owner, incarnation=incarnation, lease_ms=LEASE_MS, token=token))


def claim_next(owner: str, limit: int = 1) -> Script:
    """Lease what is runnable."""
    return host(lambda processes: processes.claim_next(owner, incarnation="1", lease_ms=LEASE_MS, limit=limit))


def renew(lease: Lease) -> Script:
    """Extend a lease."""
    return host(lambda processes: processes.renew(lease, lease_ms=LEASE_MS))


def transfer(source: str, target: str, *process_ids: str) -> Script:
    """Move grants from a session to another."""
    return host(lambda processes: processes.transfer(Scope(source), Scope(target), process_ids))


def prune() -> Script:
    """Remove what ended long ago."""
    return host(lambda processes: processes.prune(older_than_ms=OLD_MS))


def emit(request: OccurrenceRequest | None = None) -> Script:
    """Look who wants it, then start all of it."""
    happened = pressed() if request is None else request
    return triggers(lambda these: these.emit(happened))


def subscribe(key: str = "k", **fields: Any) -> Script:
    """Subscribe to the blue button."""
    draft: SubscriptionDraft = wish(registration_key=key, **fields)
    return triggers(lambda these: these.subscribe(draft))


def cancel(session_id: str | None, handle: str = "trigger:1") -> Script:
    """Disable a subscription of a session, or of the host."""
    if session_id is None:
        return triggers(lambda these: these.cancel_host(handle))
    return triggers(lambda these: these.cancel(session_id, handle))


def tick() -> Script:
    """Fire what is due."""
    return triggers(lambda these: these.tick())


def redrive() -> Script:
    """Start what was promised."""
    return triggers(lambda these: these.redrive())


def collect() -> Script:
    """Remove environments nobody names."""
    return artifacts(lambda these: these.collect(older_than_ms=OLD_MS))


def put_env() -> Script:
    """Store an environment, or renew its age."""
    return artifacts(lambda these: these.put_env(ENV))


# --- states to start from -------------------------------------------------------------------------------------------------


async def with_sessions(made: Stage, *session_ids: str) -> None:
    """Sessions without anything."""
    for session_id in session_ids:
        await made.play(create(session_id))


async def with_processes(made: Stage, *registrations: Registration, grant: str | None = None) -> None:
    """Running processes."""
    for registration in registrations:
        await made.play(register(registration, grant))


async def leased(made: Stage, registration: Registration | None = None) -> Lease:
    """A process that a worker holds."""
    own = job() if registration is None else registration
    await with_processes(made, own)
    return await made.play(claim(own.process_id, "first"))


async def ended(made: Stage, *registrations: Registration, grant: str | None = None) -> None:
    """Processes that ended long ago."""
    await with_processes(made, *registrations, grant=grant)
    for registration in registrations:
        await made.play(complete(registration))
    await made.advance(2 * OLD_MS)


async def scheduled(made: Stage, *keys: str, **fields: Any) -> None:
    """Subscriptions that are due by a schedule, three times each."""
    schedule = Interval(EVERY_MS, missed=Missed.ALL)
    for key in keys:
        await made.play(subscribe(key, schedule=schedule, **fields))
    await made.advance(3 * EVERY_MS + EVERY_MS // 2)


async def reserved(made: Stage, drafts: Sequence[dict[str, Any]]) -> None:
    """An occurrence whose deliveries are promised and not started."""
    for number, fields in enumerate(drafts):
        await made.play(subscribe(f"k{number}", **fields))
    happened = await made.play(triggers(lambda these: these.record_occurrence(pressed())))
    await made.play(triggers(lambda these: these.reserve(happened.occurrence_id)))


async def old_env(made: Stage) -> str:
    """An environment that nobody names and nobody put lately; its ref."""
    ref: str = await made.play(put_env())
    await made.advance(2 * OLD_MS)
    return ref
