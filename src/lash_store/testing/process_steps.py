"""Small steps that the laws of processes share: a registration, event types, the log, the wakes in an inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lash_store.model.process import (
    Event,
    EventDraft,
    EventType,
    Lease,
    Leased,
    Pointer,
    Present,
    Process,
    ProcessInput,
    Registration,
    Wake,
)
from lash_store.model.queue import Batch
from lash_store.testing.steps import HOUR_MS

if TYPE_CHECKING:
    from lash_store import AsyncStore

NOTE = EventType(name="note")
OTHER = EventType(name="other")
WAKE = EventType(name="process.wake", wake=Wake(input=Pointer("/text")))
LINE = EventType(
    name="producer.line",
    schema={
        "type": "object",
        "required": ["line"],
        "properties": {"line": {"type": "string"}, "wake_input": {"type": "string"}},
    },
    wake=Wake(when=Present("/wake_input"), input=Pointer("/wake_input")),
)


def signal_of(name: str, schema: Any = True) -> EventType:
    """The event type of a signal."""
    return EventType(name=f"signal.{name}", schema=schema)


def job(process_id: str, *event_types: EventType, kind: str = "job", payload: Any = None, **fields: Any) -> Registration:
    """A registration that any worker may run."""
    return Registration(process_id=process_id, input=ProcessInput(kind, payload), event_types=event_types, **fields)


async def registered(store: AsyncStore, process_id: str, *event_types: EventType, **fields: Any) -> Process:
    """Register a job."""
    return await store.processes.register(job(process_id, *event_types, **fields))


async def log(store: AsyncStore, process_id: str) -> list[Event]:
    """The whole log of a process."""
    page = await store.processes.events(process_id, limit=1000)
    assert page.cursor is None, "the log is longer than a page"
    return list(page.events)


def sequences(events: list[Event] | tuple[Event, ...]) -> list[int]:
    """The sequences of events, in order."""
    return [event.sequence for event in events]


def types(events: list[Event] | tuple[Event, ...]) -> list[str]:
    """The types of events, in order."""
    return [event.event_type for event in events]


def notes(number: int, *, event_type: str = "note", key: str | None = None) -> list[EventDraft]:
    """Drafts of one type, with keys when a prefix for them is given."""
    return [
        EventDraft(event_type=event_type, payload={"n": n}, replay_key=None if key is None else f"{key}{n}")
        for n in range(number)
    ]


async def inbox(store: AsyncStore, session_id: str) -> list[Batch]:
    """The work in a session's inbox."""
    return list((await store.queue.list(session_id)).batches)


def inputs(batches: list[Batch]) -> list[str]:
    """What the wakes in an inbox say."""
    return [batch.payloads[0]["input"] for batch in batches]


async def lease_of(store: AsyncStore, process_id: str, owner: str = "worker", **options: Any) -> Lease:
    """A lease of an hour, unless told otherwise."""
    chosen: dict[str, Any] = {"incarnation": "1", "lease_ms": HOUR_MS, **options}
    return await store.processes.claim(process_id, owner, **chosen)


async def next_of(store: AsyncStore, owner: str = "worker", **options: Any) -> tuple[Leased, ...]:
    """What claim_next hands out, for an hour unless told otherwise."""
    chosen: dict[str, Any] = {"incarnation": "1", "lease_ms": HOUR_MS, **options}
    return await store.processes.claim_next(owner, **chosen)


def process_ids(handed: tuple[Leased, ...]) -> list[str]:
    """The ids of what was handed out, in order."""
    return [each.process.process_id for each in handed]
