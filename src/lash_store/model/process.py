"""Processes: durable background work, its event log, its leases, and who may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

EXTERNAL = "external"  # the kind of work that somebody else does: no worker ever claims it


class Scope(Struct, frozen=True):
    """A session, or one frame of it. A frame belongs to its session everywhere."""

    session_id: str
    frame_id: str | None = None


# --- selectors: how an event type finds a value in a payload ------------------------------------------------------------


class Payload(Struct, frozen=True, tag="payload"):
    """The whole payload."""


class Pointer(Struct, frozen=True, tag="pointer"):
    """The value at an RFC 6901 pointer; one that does not match refuses the event."""

    path: str


class Const(Struct, frozen=True, tag="const"):
    """A fixed value."""

    value: Any


class Present(Struct, frozen=True, tag="present"):
    """Whether a pointer matches."""

    path: str


class Template(Struct, frozen=True, tag="template"):
    """A text whose `{name}` places are filled with selected values, all at once."""

    text: str
    fields: Mapping[str, Payload | Pointer | Const | Present]


Selector = Payload | Pointer | Const | Present | Template


# --- registration ---------------------------------------------------------------------------------------------------------


class ProcessState(StrEnum):
    """Where a process is in its life."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Terminal(Struct, frozen=True, kw_only=True):
    """An event type that ends its process. `output` None is the whole payload, and only for a completion."""

    state: ProcessState
    output: Selector | None = None


class Wake(Struct, frozen=True, kw_only=True):
    """An event type that wakes the process's session. `dedupe` None is the event's own identity."""

    input: Selector
    when: Selector | None = None
    dedupe: Selector | None = None


class EventType(Struct, frozen=True, kw_only=True):
    """A kind of event a process may emit: its payload's JSON Schema (draft 2020-12), and what it means."""

    name: str
    schema: Any = True
    terminal: Terminal | None = None
    wake: Wake | None = None


class ProcessInput(Struct, frozen=True):
    """What is to be run: a kind that workers know, and its payload."""

    kind: str
    payload: Any = None


class ProcessIdentity(Struct, frozen=True, kw_only=True):
    """What a process is called, for people and filters."""

    kind: str
    label: str | None = None
    definition: Any = None


class Registration(Struct, frozen=True, kw_only=True):
    """A process as it is registered; it never changes. `originator` None is the host.

    * `process_id`: yours; the same id and content again is the same process, other content is `RegistrationConflict`.
    * `input`: the kind that workers claim by, and its payload.
    * `identity`: what it is called, for people and filters; None follows from the input.
    * `event_types`: the events it may emit, with their schemas and what they mean.
    * `originator`: the session, or frame, that started it.
    * `caused_by`: a JSON value that says what caused it.
    * `env_ref`: the environment it runs in, an artifact.
    * `wake_target`: whose inbox its wakes go to; None wakes nobody.

    `store.session(id).processes.start` fills in its session as originator and wake target where they are None.
    """

    process_id: str
    input: ProcessInput
    identity: ProcessIdentity | None = None
    event_types: Sequence[EventType] = ()
    originator: Scope | None = None
    caused_by: Any = None
    env_ref: str | None = None
    wake_target: Scope | None = None


class Descriptor(Struct, frozen=True, kw_only=True):
    """How a session that holds a process names it."""

    kind: str | None = None
    label: str | None = None


class StartGrant(Struct, frozen=True, kw_only=True):
    """A grant made in the same transaction as the registration."""

    scope: Scope
    descriptor: Descriptor = Descriptor()


# --- output ---------------------------------------------------------------------------------------------------------------


class Success(Struct, frozen=True, tag_field="type", tag="success"):
    """A process that completed."""

    value: Any = None
    control: Any = None


class Failure(Struct, frozen=True, kw_only=True, tag_field="type", tag="failure"):
    """A process that failed. `kind` is a class of failure such as `execution`, `timeout` or `unavailable`."""

    kind: str = "execution"
    code: str
    message: str
    raw: Any = None
    control: Any = None


class Cancelled(Struct, frozen=True, kw_only=True, tag_field="type", tag="cancelled"):
    """A process that was cancelled."""

    message: str
    raw: Any = None
    control: Any = None


Output = Success | Failure | Cancelled


# --- state ----------------------------------------------------------------------------------------------------------------


class ExternalRef(Struct, frozen=True, kw_only=True):
    """Where the work lives in another system."""

    backend: str
    id: str
    metadata: Any = None


class Wait(Struct, frozen=True, kw_only=True):
    """What a process is waiting for: the `ordinal`-th signal of a name."""

    name: str
    ordinal: int
    since_ms: int | None = None


class Process(Struct, frozen=True, kw_only=True):
    """A process as it is now. A pruned one keeps only its identity: it ran, and never runs again."""

    process_id: str
    registration_hash: str
    input: ProcessInput
    identity: ProcessIdentity
    event_types: tuple[EventType, ...]
    originator: Scope | None
    caused_by: Any
    env_ref: str | None
    wake_target: Scope | None
    state: ProcessState
    output: Output | None
    wait: Wait | None
    external_ref: ExternalRef | None
    last_sequence: int
    created_ms: int
    updated_ms: int
    pruned: bool = False

    @property
    def terminal(self) -> bool:
        """Whether the process has ended."""
        return self.state is not ProcessState.RUNNING


class ProcessPage(Struct, frozen=True, kw_only=True):
    """A page of processes by id; pass `cursor` on for the next one, None at the end."""

    processes: tuple[Process, ...]
    cursor: str | None


# --- events ---------------------------------------------------------------------------------------------------------------


class EventDraft(Struct, frozen=True, kw_only=True):
    """An event to append. Terminal events and cancel requests need a replay key."""

    event_type: str
    payload: Any = None
    replay_key: str | None = None


class WakeDelivery(Struct, frozen=True, kw_only=True):
    """A wake as it was recorded with its event. No target: nobody was to be woken. Coalesced: its id was still pending."""

    wake_id: str
    dedupe_key: str
    input: str
    target: Scope | None
    batch_id: str | None
    coalesced: bool


class Event(Struct, frozen=True, kw_only=True):
    """A line of a process's log. Sequences start at 1 and have no gaps."""

    process_id: str
    sequence: int
    event_type: str
    payload: Any
    replay_key: str | None
    terminal: ProcessState | None
    wake: WakeDelivery | None
    occurred_ms: int


class Appended(Struct, frozen=True, kw_only=True):
    """What an append stored, or found stored under the same key (`replayed`)."""

    event: Event
    replayed: bool


class EventPage(Struct, frozen=True, kw_only=True):
    """A page of events in order; pass the last `sequence` on as `after` for the next one, None at the end."""

    events: tuple[Event, ...]
    cursor: int | None


# --- leases and grants ----------------------------------------------------------------------------------------------------


class Lease(Struct, frozen=True, kw_only=True):
    """The right to run a process until it expires. Unlike a claim on queued work it ends at its expiry."""

    process_id: str
    owner: str
    incarnation: str
    token: str
    fence: int
    claimed_ms: int
    expires_ms: int


class Leased(Struct, frozen=True, kw_only=True):
    """A process handed to a worker, with its lease."""

    process: Process
    lease: Lease


class Grant(Struct, frozen=True, kw_only=True):
    """A session's right to see and use a process."""

    scope: Scope
    process_id: str
    descriptor: Descriptor
    granted_ms: int


class GrantEntry(Struct, frozen=True, kw_only=True):
    """A grant and the process it is for."""

    grant: Grant
    process: Process


class GrantPage(Struct, frozen=True, kw_only=True):
    """A page of grants by process id; pass `cursor` on for the next one, None at the end."""

    entries: tuple[GrantEntry, ...]
    cursor: str | None


class PruneReport(Struct, frozen=True, kw_only=True):
    """What a prune removed, or would remove. `complete` is false when its bound was reached first."""

    processes: int
    events: int
    complete: bool
