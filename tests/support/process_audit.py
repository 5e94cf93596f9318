"""Rules that the tables of processes and triggers keep whoever died when. Every breach is a sentence; none is good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from lash_store.testing import Backend


class LoggedEvent(Struct, frozen=True):
    """What a row of the log says."""

    process_id: str
    sequence: int
    event_type: str
    replay_key: str
    terminal_state: str | None
    wake_id: str | None
    wake_session_id: str | None
    wake_batch_id: str | None
    wake_coalesced: int | None


class ProcessLine(Struct, frozen=True):
    """What the small row of a process says."""

    process_id: str
    state: str
    last_sequence: int
    lease_token: str | None
    lease_fence: int
    runnable_ms: int | None


class Tables(Struct, frozen=True, kw_only=True):
    """The rows, read past the store's own read model, while nobody writes."""

    processes: dict[str, ProcessLine]
    events: list[LoggedEvent]
    batches: dict[str, tuple[str, str]]  # batch id -> session id and source key
    grants: set[tuple[str, str]]  # session id and process id
    deliveries: list[tuple[str, str, str, str]]  # occurrence, subscription, process id and state


async def read(backend: Backend) -> Tables:
    """All rows."""

    async def rows(table: str, columns: str) -> list[tuple[Any, ...]]:
        return await backend.raw(f"SELECT {columns} FROM {backend.table(table)} ORDER BY 1, 2")

    lines = [ProcessLine(*row) for row in await rows("processes", ", ".join(ProcessLine.__struct_fields__))]
    return Tables(
        processes={line.process_id: line for line in lines},
        events=[LoggedEvent(*row) for row in await rows("events", ", ".join(LoggedEvent.__struct_fields__))],
        batches={row[2]: (row[0], row[1]) for row in await rows("batches", "session_id, source_key, batch_id")},
        grants={(row[0], row[1]) for row in await rows("grants", "session_id, process_id")},
        deliveries=[
            (row[0], row[1], row[2], row[3])
            for row in await rows("deliveries", "occurrence_id, subscription_id, process_id, state")
        ],
    )


def breaches(tables: Tables) -> list[str]:
    """Everything that is wrong with the rows alone."""
    return [*gaps(tables), *doubled_keys(tables), *endings(tables), *wakes(tables), *starts(tables)]


def gaps(tables: Tables) -> Iterator[str]:
    logs: dict[str, list[int]] = {process_id: [] for process_id in tables.processes}
    for event in tables.events:
        logs.setdefault(event.process_id, []).append(event.sequence)
    for process_id, log in logs.items():
        line = tables.processes.get(process_id)
        if line is None or sorted(log) != list(range(1, line.last_sequence + 1)):
            yield f"{process_id}: the log has {sorted(log)}, the process says {line and line.last_sequence}"


def doubled_keys(tables: Tables) -> Iterator[str]:
    for (process_id, key), count in Counter((event.process_id, event.replay_key) for event in tables.events).items():
        if count > 1:
            yield f"{process_id}: {count} events under the key {key}"


def endings(tables: Tables) -> Iterator[str]:
    """A process has ended when its log says so, once, and then nobody holds it and nobody may claim it."""
    ends: dict[str, list[str]] = {}
    for event in tables.events:
        if event.terminal_state is not None:
            ends.setdefault(event.process_id, []).append(event.terminal_state)
    for line in tables.processes.values():
        expected = [] if line.state == "running" else [line.state]
        if ends.get(line.process_id, []) != expected:
            yield f"{line.process_id} is {line.state}, and its log ends with {ends.get(line.process_id, [])}"
        if line.state != "running" and (line.lease_token is not None or line.runnable_ms is not None):
            yield f"{line.process_id} has ended and can still be run"


def wakes(tables: Tables) -> Iterator[str]:
    """Each wake has its batch in its session's inbox, and each batch is the wake of one event and those that joined it."""
    firsts: Counter[str] = Counter()
    for event in tables.events:
        if event.wake_session_id is None or event.wake_batch_id is None:
            continue
        firsts[event.wake_batch_id] += event.wake_coalesced == 0
        if tables.batches.get(event.wake_batch_id) != (event.wake_session_id, event.wake_id):
            yield f"{event.process_id}: the wake of event {event.sequence} is lost"
    for batch_id in tables.batches:
        if firsts[batch_id] != 1:
            yield f"batch {batch_id} is the wake of {firsts[batch_id]} events"


def starts(tables: Tables) -> Iterator[str]:
    """Each started delivery has its process, no other has one, and no process has two."""
    for process_id, count in Counter(delivery[2] for delivery in tables.deliveries).items():
        if count > 1:
            yield f"{process_id} is the process of {count} deliveries"
    for occurrence_id, subscription_id, process_id, state in tables.deliveries:
        if (process_id in tables.processes) != (state == "started"):
            yield f"the delivery of {occurrence_id} to {subscription_id} is {state}, and its process disagrees"
