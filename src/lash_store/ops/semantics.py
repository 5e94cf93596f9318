"""What an event means: selectors over its payload, the output it ends a process with, the wake it asks for. All pure."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from lash_store.encode import stable_hash
from lash_store.errors import InvalidArgument, InvalidPayload
from lash_store.model.process import (
    Cancelled,
    Const,
    EventType,
    Failure,
    Output,
    Payload,
    Pointer,
    Present,
    ProcessState,
    Scope,
    Selector,
    Success,
    Template,
    Terminal,
    Wake,
)

OUTPUT_POINTER = "/output"  # where the core terminal events carry their output

CORE_EVENT_TYPES: tuple[EventType, ...] = (
    EventType(name="process.cancel_requested"),
    EventType(name="process.waiting"),
    EventType(name="process.resumed"),
    EventType(name="process.completed", terminal=Terminal(state=ProcessState.COMPLETED, output=Pointer(OUTPUT_POINTER))),
    EventType(name="process.failed", terminal=Terminal(state=ProcessState.FAILED, output=Pointer(OUTPUT_POINTER))),
    EventType(name="process.cancelled", terminal=Terminal(state=ProcessState.CANCELLED, output=Pointer(OUTPUT_POINTER))),
)
CORE_NAMES = frozenset(event_type.name for event_type in CORE_EVENT_TYPES)
KEYED_NAMES = frozenset({"process.cancel_requested"})  # besides terminal events: they must be repeatable without effect

_MISSING = object()
_PLACE = re.compile(r"\{([^{}]*)\}")


def select(selector: Selector, payload: Any, what: str) -> Any:
    """The value a selector finds; a pointer that does not match refuses the event."""
    if isinstance(selector, Payload):
        return payload
    if isinstance(selector, Const):
        return selector.value
    if isinstance(selector, Present):
        return resolve(selector.path, payload) is not _MISSING
    if isinstance(selector, Template):
        return _fill(selector, payload, what)
    value = resolve(selector.path, payload)
    if value is _MISSING:
        raise InvalidPayload(what, path=selector.path, why="is missing, and the event type selects it")
    return value


def resolve(pointer: str, document: Any) -> Any:
    """RFC 6901, without the array index `-`; `_MISSING` when nothing is there."""
    if pointer == "":
        return document
    if not pointer.startswith("/"):
        return _MISSING
    value = document
    for part in pointer[1:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        value = _step(value, key)
        if value is _MISSING:
            return _MISSING
    return value


def _step(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key, _MISSING)
    index = isinstance(value, list) and key.isascii() and key.isdigit() and (key == "0" or not key.startswith("0"))
    if not index or len(key) > 18 or int(key) >= len(value):
        return _MISSING
    return value[int(key)]


def _fill(template: Template, payload: Any, what: str) -> str:
    """Fill every place at once, so that a filled-in text is never filled in again. Unknown places stay as they are."""
    values = {name: as_text(select(selector, payload, what)) for name, selector in template.fields.items()}
    return _PLACE.sub(lambda place: values.get(place.group(1), place.group(0)), template.text)


def as_text(value: Any) -> str:
    """A string as it is, anything else as compact JSON with sorted keys."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def truthy(value: Any) -> bool:
    """Null, false and empty things are false; every number is true, also 0."""
    if isinstance(value, bool) or value is None:
        return bool(value)
    return True if isinstance(value, int | float) else len(value) > 0


def terminal_output(event_type: EventType, payload: Any, what: str) -> Output | None:
    """The output a terminal event ends its process with; what does not read as an output is wrapped as one."""
    spec = event_type.terminal
    if spec is None:
        return None
    value = payload if spec.output is None else select(spec.output, payload, what)
    try:
        return msgspec.convert(value, Output, strict=True)
    except msgspec.ValidationError:
        return _wrapped(spec.state, value)


def _wrapped(state: ProcessState, value: Any) -> Output:
    if state is ProcessState.COMPLETED:
        return Success(value)
    if state is ProcessState.FAILED:
        return Failure(code="process_failed", message=as_text(value), raw=value)
    return Cancelled(message=as_text(value), raw=value)


def output_state(output: Output) -> ProcessState:
    """The state an output implies."""
    if isinstance(output, Success):
        return ProcessState.COMPLETED
    return ProcessState.FAILED if isinstance(output, Failure) else ProcessState.CANCELLED


def wake_input(event_type: EventType, payload: Any, what: str) -> str | None:
    """The text a wake carries, or None when this event wakes nobody."""
    wake = event_type.wake
    if wake is None or (wake.when is not None and not truthy(select(wake.when, payload, what))):
        return None
    return as_text(select(wake.input, payload, what))


def wake_dedupe(event_type: EventType, payload: Any, what: str) -> str | None:
    """The declared dedupe key; None is the event's own identity."""
    wake = event_type.wake
    if wake is None or wake.dedupe is None:
        return None
    return as_text(select(wake.dedupe, payload, what))


def scope_id(scope: Scope) -> str:
    """A scope as text, for hashes only: columns keep session and frame apart."""
    return f"session:{scope.session_id}" + (f"/frame:{scope.frame_id}" if scope.frame_id else "")


def wake_id(target: Scope, dedupe_key: str) -> str:
    """The identity of a wake: while one of this id is pending, the next one coalesces with it."""
    return "wake:" + stable_hash([scope_id(target), dedupe_key])


def payload_hash(event_type: str, payload: Any) -> str:
    """What a replay key is compared by."""
    return stable_hash([event_type, payload])


def signal_type(name: object) -> str:
    """The event type of a signal."""
    if not isinstance(name, str) or not name or not name.isascii() or not all(c.isalnum() or c in "_-" for c in name):
        raise InvalidArgument("name", "must be ASCII letters, digits, '_' and '-'")
    return f"signal.{name}"


def constants(event_type: EventType) -> list[Any]:
    """The fixed values a declaration carries: free JSON, to be walked like any other."""
    terminal, wake = event_type.terminal, event_type.wake
    selectors: list[Any] = [terminal.output] if isinstance(terminal, Terminal) else []
    if isinstance(wake, Wake):
        selectors += [wake.when, wake.input, wake.dedupe]
    for selector in list(selectors):
        if isinstance(selector, Template) and isinstance(selector.fields, dict):
            selectors += list(selector.fields.values())
    return [selector.value for selector in selectors if isinstance(selector, Const)]


def check_event_type(event_type: EventType, path: str) -> None:
    """Refuse declarations that could not work."""
    if event_type.name in CORE_NAMES:
        raise InvalidArgument(f"{path}.name", f"{event_type.name!r} is a core event type and cannot be redeclared")
    terminal = event_type.terminal
    if terminal is not None and terminal.state is ProcessState.RUNNING:
        raise InvalidArgument(f"{path}.terminal.state", "must be completed, failed or cancelled")
    if terminal is not None and terminal.output is None and terminal.state is not ProcessState.COMPLETED:
        raise InvalidArgument(f"{path}.terminal.output", "is required unless the state is completed")
