"""What registrations, payloads and schedules mean, said a second time in plain Python; and the documented identities."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lash_store import (
    Cancelled,
    Const,
    EventType,
    Failure,
    Interval,
    InvalidArgument,
    InvalidPayload,
    Missed,
    Output,
    Payload,
    Pointer,
    Present,
    ProcessIdentity,
    ProcessInput,
    ProcessState,
    Registration,
    Scope,
    Selector,
    Success,
    Terminal,
)

RUNNING = ProcessState.RUNNING
KINDS: dict[str, type] = {"object": dict, "integer": int, "string": str}
NOWHERE = object()

CORE = (
    EventType(name="process.cancel_requested"),
    EventType(name="process.waiting"),
    EventType(name="process.resumed"),
    EventType(name="process.completed", terminal=Terminal(state=ProcessState.COMPLETED, output=Pointer("/output"))),
    EventType(name="process.failed", terminal=Terminal(state=ProcessState.FAILED, output=Pointer("/output"))),
    EventType(name="process.cancelled", terminal=Terminal(state=ProcessState.CANCELLED, output=Pointer("/output"))),
)


# --- identities -----------------------------------------------------------------------------------------------------------


def canonical(value: Any) -> str:
    """One text for equal values: compact JSON, keys sorted."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def hashed(value: Any) -> str:
    """The hash every identity is made of."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def registration_hash(registration: Registration) -> str:
    """What makes two registrations the same."""
    return hashed(msgspec.to_builtins(resolved(registration)))


def resolved(registration: Registration) -> Registration:
    """The registration with the identity it has when none is given."""
    identity = registration.identity or named_after(registration.input)
    return replace(registration, identity=identity, event_types=list(registration.event_types))


def named_after(given: ProcessInput) -> ProcessIdentity:
    """The identity of a process nobody named."""
    payload: dict[str, Any] = given.payload if given.kind == "external" and isinstance(given.payload, dict) else {}
    labels = [payload[key] for key in ("label", "name", "title") if key in payload]
    label = labels[0] if labels and isinstance(labels[0], str) and len(labels[0]) <= 200 else None
    return ProcessIdentity(kind=given.kind, label=label)


def wake_id(target: Scope | None, dedupe: str) -> str:
    """The identity of a wake."""
    scope = "session:" if target is None else f"session:{target.session_id}"
    frame = "" if target is None or not target.frame_id else f"/frame:{target.frame_id}"
    return "wake:" + hashed([scope + frame, dedupe])


# --- selectors ------------------------------------------------------------------------------------------------------------


def select(selector: Selector, payload: Any) -> Any:
    """What a selector finds in a payload."""
    if isinstance(selector, Payload):
        return payload
    if isinstance(selector, Const):
        return selector.value
    if isinstance(selector, Present):
        return at(selector.path, payload) is not NOWHERE
    if isinstance(selector, Pointer):
        found = at(selector.path, payload)
        if found is NOWHERE:
            raise InvalidPayload("event", path=selector.path, why="is missing")
        return found
    fields = {name: spoken(select(field, payload)) for name, field in selector.fields.items()}
    parts = re.split(r"(\{[^{}]*\})", selector.text)
    return "".join(fields.get(part[1:-1], part) if i % 2 else part for i, part in enumerate(parts))


def at(pointer: str, value: Any) -> Any:
    """The value at a pointer; our pointers need no escapes and no indexes."""
    for name in pointer.split("/")[1:]:
        if not isinstance(value, dict) or name not in value:
            return NOWHERE
        value = value[name]
    return value


def spoken(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else canonical(value)


def holds(value: Any) -> bool:
    """Whether a condition is met; every number is something."""
    return value not in (None, "", [], {}) and value is not False


def fits(schema: Any, payload: Any) -> bool:
    """Whether a payload fits one of the schemas these histories use."""
    if isinstance(schema, bool):
        return schema
    kind = KINDS[schema["type"]]
    if not isinstance(payload, kind) or isinstance(payload, bool):
        return False
    fields: dict[str, Any] = payload if isinstance(payload, dict) else {}
    inner = schema.get("properties", {})
    return all(name in fields for name in schema.get("required", ())) and all(
        fits(inner[name], value) for name, value in fields.items() if name in inner
    )


# --- events ---------------------------------------------------------------------------------------------------------------


class Meaning(Struct, frozen=True):
    """What an event does: how it ends its process, and the wake it asks for."""

    output: Output | None
    input: str | None
    dedupe: str | None


def meaning(declared: EventType, payload: Any) -> Meaning:
    """Work out a valid event; refuse one that does not fit its declaration."""
    if not fits(declared.schema, payload):
        raise InvalidPayload("event", path="", why="breaks its schema")
    end, wake = declared.terminal, declared.wake
    output = None if end is None else as_output(end, payload if end.output is None else select(end.output, payload))
    if wake is None or (wake.when is not None and not holds(select(wake.when, payload))):
        return Meaning(output, None, None)
    said = spoken(select(wake.input, payload))
    return Meaning(output, said, None if wake.dedupe is None else spoken(select(wake.dedupe, payload)))


def as_output(end: Terminal, value: Any) -> Output:
    """A value that reads as an output is one; another is wrapped as the state says."""
    try:
        return msgspec.convert(value, Output)
    except msgspec.ValidationError:
        pass
    if end.state is ProcessState.COMPLETED:
        return Success(value)
    if end.state is ProcessState.FAILED:
        return Failure(code="process_failed", message=spoken(value), raw=value)
    return Cancelled(message=spoken(value), raw=value)


def check_registration(registration: Registration) -> None:
    """Refuse what could not run."""
    kind, env = registration.input.kind, registration.env_ref
    if (kind in ("tool_call", "engine") and env is None) or (kind in ("session_turn", "external") and env is not None):
        raise InvalidArgument("env_ref", "does not go with the kind")
    names = [declared.name for declared in registration.event_types]
    if len(set(names)) < len(names) or set(names) & {core.name for core in CORE}:
        raise InvalidArgument("event_types", "a name is taken")
    for end in (declared.terminal for declared in registration.event_types):
        if end is not None and (end.state is RUNNING or (end.output is None and end.state is not ProcessState.COMPLETED)):
            raise InvalidArgument("terminal", "cannot end a process so")


# --- schedules ------------------------------------------------------------------------------------------------------------


def first_instant(schedule: Interval, now_ms: int) -> int:
    """When an interval is first due."""
    instant_ms = now_ms + schedule.every_ms if schedule.anchor_ms is None else schedule.anchor_ms
    while instant_ms <= now_ms:
        instant_ms += schedule.every_ms
    return instant_ms


def to_fire(schedule: Interval, due: Sequence[int], now_ms: int) -> list[int]:
    """The due instants that are not passed over."""
    if schedule.missed == Missed.ALL:
        return list(due)
    if schedule.missed == Missed.ONCE:
        return list(due[-1:])
    return [instant_ms for instant_ms in due if instant_ms >= now_ms - schedule.grace_ms]


def written(instant_ms: int) -> str:
    """An instant as text."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms)).isoformat()
