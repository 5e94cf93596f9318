"""The random mix of public calls, with processes, triggers and artifacts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from lash_store.model.process import Appended, Lease, Registration, Scope, StartGrant, Success, Wait
from lash_store.model.trigger import Interval, Missed
from tests.support.mix import LEASE_MS, SESSIONS, Worker
from tests.support.process_sides import job
from tests.support.triggers import pressed, wish

PROCESSES = 8  # alive at a time: each is wanted by several tasks
GENERATION_S = 2  # then others come: a pruned id never runs again
KEYS = 3  # registration keys of a session


class ProcessWorker(Worker):
    """A task that also runs processes, hands them on, and is started by triggers."""

    async def _some(self) -> Registration:
        """A process, registered now if nobody did."""
        number = self._chance.randrange(PROCESSES)
        wakes = SESSIONS[number % len(SESSIONS)]
        registration = job(f"p{number} of {int(time.monotonic()) // GENERATION_S}", wakes=wakes)
        await self._store.processes.register(registration)
        return registration

    async def _append(self, process_id: str, event_type: str, lease: Lease | None = None) -> None:
        self._turns += 1
        key = f"{self._name}/{self._turns}"
        done: Appended = await self._store.processes.append(
            process_id, event_type, {"text": self._name}, replay_key=key, lease=lease
        )
        self.appended.append((process_id, done.event.sequence, key))

    async def start(self, here: str, there: str) -> None:
        number = self._chance.randrange(PROCESSES)
        registration = job(f"started {number} of {int(time.monotonic()) // GENERATION_S}", wakes=there)
        await self._store.processes.register(registration, grant=StartGrant(scope=Scope(here)))

    async def note(self, here: str, there: str) -> None:
        await self._append((await self._some()).process_id, "note")

    async def wake(self, here: str, there: str) -> None:
        await self._append((await self._some()).process_id, self._chance.choice(["knock", "ping"]))

    async def end(self, here: str, there: str) -> None:
        process_id = (await self._some()).process_id
        await self._store.processes.cancel(process_id)
        await self._store.processes.complete(process_id, Success(self._name))

    async def lease(self, here: str, there: str) -> None:
        process_id = (await self._some()).process_id
        held = await self._store.processes.claim(process_id, self._name, incarnation="1", lease_ms=LEASE_MS)
        await self._append(process_id, "knock", held)
        await self._finish(await self._store.processes.renew(held, lease_ms=LEASE_MS))

    async def lease_next(self, here: str, there: str) -> None:
        found = await self._store.processes.claim_next(self._name, incarnation="1", lease_ms=LEASE_MS, limit=3)
        for each in found:
            await self._finish(each.lease)

    async def _finish(self, held: Lease) -> None:
        if self._chance.random() < 0.5:
            await self._store.processes.release(held)
        else:
            await self._store.processes.complete(held.process_id, Success(self._name), lease=held)

    async def levers_of_processes(self, here: str, there: str) -> None:
        process_id = (await self._some()).process_id
        await self._store.processes.break_lease(process_id)
        await self._store.processes.set_wait(process_id, Wait(name="go", ordinal=1))
        await self._store.processes.clear_wait(process_id)

    async def hand_over(self, here: str, there: str) -> None:
        ids = sorted({(await self._some()).process_id for _ in range(3)}, reverse=True)
        for process_id in ids:
            await self._store.processes.grant(Scope(here), process_id)
        await self._store.processes.transfer(Scope(here), Scope(there), ids)
        await self._store.processes.revoke(Scope(there), ids[0])

    async def prune(self, here: str, there: str) -> None:
        await self._store.processes.prune(older_than_ms=self._chance.choice([0, 50]))
        await self._store.triggers.prune(older_than_ms=self._chance.choice([0, 50]))

    async def subscribe(self, here: str, there: str) -> None:
        wanted: dict[str, Any] = {"registration_key": f"k{self._chance.randrange(KEYS)}", "registrant": Scope(here)}
        if self._chance.random() < 0.5:
            wanted |= {"wake_target": Scope(there), "registration_key": f"{wanted['registration_key']} for {there}"}
        if self._chance.random() < 0.3:
            wanted |= {"schedule": Interval(1_000, missed=Missed.ALL), "registration_key": "scheduled", "wake_target": None}
        await self._store.triggers.subscribe(wish(**wanted))

    async def unsubscribe(self, here: str, there: str) -> None:
        found = (await self._store.triggers.list(session_id=here)).subscriptions
        if found and self._chance.random() < 0.1:
            await self._store.triggers.cancel(here, self._chance.choice(found).handle)

    async def emit(self, here: str, there: str) -> None:
        await self._store.triggers.emit(pressed(f"{self._chance.randrange(20)}"))

    async def promise(self, here: str, there: str) -> None:
        happened = await self._store.triggers.record_occurrence(pressed(f"{self._chance.randrange(20)}"))
        await self._store.triggers.reserve(happened.occurrence_id)
        await self._store.triggers.redrive(limit=20)

    async def tick(self, here: str, there: str) -> None:
        await self._store.triggers.tick()

    async def environments(self, here: str, there: str) -> None:
        ref = await self._store.artifacts.put_env({"number": self._chance.randrange(3)})
        await self._store.processes.register(job(f"with {ref}", env_ref=ref))
        await self._store.artifacts.collect(older_than_ms=self._chance.choice([0, 50]))


PROCESS_CALLS: tuple[Callable[[ProcessWorker, str, str], Awaitable[None]], ...] = (
    ProcessWorker.start,
    ProcessWorker.note,
    ProcessWorker.wake,
    ProcessWorker.wake,
    ProcessWorker.end,
    ProcessWorker.lease,
    ProcessWorker.lease_next,
    ProcessWorker.levers_of_processes,
    ProcessWorker.hand_over,
    ProcessWorker.hand_over,
    ProcessWorker.prune,
    ProcessWorker.subscribe,
    ProcessWorker.unsubscribe,
    ProcessWorker.emit,
    ProcessWorker.emit,
    ProcessWorker.promise,
    ProcessWorker.tick,
    ProcessWorker.environments,
)
