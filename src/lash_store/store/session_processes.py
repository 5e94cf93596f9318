"""Processes as a session sees them: it starts its own, and uses those it was granted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from lash_store.errors import Unstorable
from lash_store.model.process import (
    Appended,
    Descriptor,
    Event,
    EventPage,
    Grant,
    GrantPage,
    Output,
    Process,
    Registration,
    Scope,
    StartGrant,
)
from lash_store.ops import grants
from lash_store.ops.heads import look_session
from lash_store.store.processes import AsyncProcesses
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime


class AsyncOwner(Protocol):
    """The handle these processes belong to."""

    session_id: str

    async def meet(self) -> int:
        """The incarnation the handle stays with."""
        ...


class AsyncSessionProcesses:
    """The processes of one session. Without a grant to the session, in any frame, a call is NotGranted."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime, owner: AsyncOwner) -> None:
        self._runtime = runtime
        self._host = AsyncProcesses(runtime)
        self._owner = owner
        self._session_id = owner.session_id

    async def start(
        self, registration: Registration, *, frame_id: str | None = None, descriptor: Descriptor | None = None
    ) -> Process:
        """Register a process that this session (or a frame of it) originates, holds, and is woken by."""
        scope = Scope(self._session_id, frame_id)
        if not isinstance(registration, Registration):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Unstorable("registration", f"must be a Registration, got {type(registration).__name__}")
        own = replace(
            registration,
            originator=registration.originator or scope,
            wake_target=registration.wake_target or scope,
        )
        grant = StartGrant(scope=scope, descriptor=Descriptor() if descriptor is None else descriptor)
        return await self._host.start(own, grant, await self._owner.meet())

    async def list(
        self, *, frame_id: str | None = None, live_only: bool = True, limit: int = 100, cursor: str | None = None
    ) -> GrantPage:
        """What this session, or a frame of it, holds: each grant with its process."""
        await self._present()
        scope = Scope(self._session_id, frame_id)
        return await self._host.list_grants(scope, live_only=live_only, limit=limit, cursor=cursor)

    async def get(self, process_id: str) -> Process:
        """A granted process as it is now."""
        await self._require(process_id)
        return await self._host.get(process_id)

    async def events(self, process_id: str, *, after: int = 0, types: Sequence[str] | None = None, limit: int = 100) -> EventPage:
        """Events of a granted process after a sequence."""
        await self._require(process_id)
        return await self._host.events(process_id, after=after, types=types, limit=limit)

    async def recent(self, process_id: str, *, limit: int = 32) -> tuple[Event, ...]:
        """The last events of a granted process."""
        await self._require(process_id)
        return await self._host.recent(process_id, limit=limit)

    async def follow(self, process_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Events of a granted process as they happen."""
        await self._require(process_id)
        async for event in self._host.follow(process_id, after=after):
            yield event

    async def wait_event(
        self, process_id: str, event_type: str, *, after: int = 0, timeout_ms: int | None = None
    ) -> Event | None:
        """The first event of a type after a sequence, of a granted process."""
        await self._require(process_id)
        return await self._host.wait_event(process_id, event_type, after=after, timeout_ms=timeout_ms)

    async def await_output(self, process_id: str, *, timeout_ms: int | None = None) -> Output | None:
        """The output of a granted process, once it has ended."""
        await self._require(process_id)
        return await self._host.await_output(process_id, timeout_ms=timeout_ms)

    async def signal(self, process_id: str, name: str, payload: Any = None, *, signal_id: str | None = None) -> Appended:
        """Send a signal to a granted process."""
        await self._require(process_id)
        return await self._host.signal(process_id, name, payload, signal_id=signal_id)

    async def cancel(self, process_id: str, *, reason: str | None = None) -> Process:
        """Ask a granted process to end."""
        await self._require(process_id)
        return await self._host.cancel(process_id, reason=reason)

    async def share(self, process_id: str, scope: Scope, *, descriptor: Descriptor | None = None) -> Grant:
        """Let another session see and use a process this one holds."""
        await self._require(process_id)
        return await self._host.grant(scope, process_id, descriptor=descriptor)

    async def transfer(self, target: Scope, process_ids: Sequence[str], *, frame_id: str | None = None) -> int:
        """Hand processes over to another session, all or none."""
        await self._present()
        return await self._host.transfer(Scope(self._session_id, frame_id), target, process_ids)

    async def revoke(self, process_id: str, *, frame_id: str | None = None) -> bool:
        """Let go of a process."""
        await self._present()
        return await self._host.revoke(Scope(self._session_id, frame_id), process_id)

    async def _present(self) -> None:
        """The session must be the incarnation the handle stays with."""
        await self._runtime.read(look_session, self._session_id, await self._owner.meet())

    async def _require(self, process_id: str) -> None:
        process_id = self._runtime.encoder.id(process_id, "process_id")
        await self._runtime.read(grants.require, self._session_id, process_id, await self._owner.meet())
