"""Drafts of subscriptions, from a caller's values to rows: what could never start a process is refused before any SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from lash_store.encode import Encoder, canonical, digest, mint, stable_hash
from lash_store.errors import InvalidArgument, LimitExceeded, Unstorable
from lash_store.model.process import EventType, ProcessIdentity, ProcessInput, Registration, Scope
from lash_store.model.trigger import (
    Cron,
    EventBinding,
    FixedBinding,
    Interval,
    Missed,
    Schedule,
    Subscription,
    SubscriptionDraft,
)
from lash_store.ops.processes import check_scope, default_identity, prepare_registration
from lash_store.payload_schema import Schemas

HOST = ""  # the registrant's session id, and the frame id of a registrant without one
ARGS = "args"  # where a target's payload takes what the template makes
SOURCE_TYPE_MAX_BYTES = 120  # a derived source key holds the type and a hash, and is an id itself
INTERVAL_MIN_MS = 1_000  # ticks come from workers that look around, not from a timer


class Content(Struct, frozen=True, kw_only=True):
    """What a subscription says besides its columns; the shape of its stored body."""

    source: Any
    payload_schema: Any
    target: ProcessInput
    identity: ProcessIdentity
    event_types: tuple[EventType, ...]
    input_template: Mapping[str, EventBinding | FixedBinding]
    wake_target: Scope | None
    label: str | None
    schedule: Cron | Interval | None


class PreparedSubscription(Struct, frozen=True, kw_only=True):
    """A draft after the walk. Equal intents under one registration key are one subscription."""

    registrant_session_id: str
    registrant_frame_id: str
    registration_key: str
    name: str | None
    source_type: str
    source_key: str
    definition_hash: bytes | None
    env_ref: str | None
    wake_session_id: str | None
    schedule: Schedule | None
    body: str
    intent: bytes

    @property
    def session_ids(self) -> list[str]:
        """The sessions that must be there: the registrant's and the one to wake."""
        named = {self.registrant_session_id, self.wake_session_id or HOST} - {HOST}
        return sorted(named)


def source_key(source_type: str, source: Any) -> str:
    """The key of a source nobody named: equal sources have equal keys, whatever the order of their fields."""
    return f"source:{source_type}:sha256:{stable_hash([source_type, source])}"


def prepare_subscription(draft: SubscriptionDraft, encoder: Encoder, schemas: Schemas) -> PreparedSubscription:
    """Refuse what could never start a process; encode the rest."""
    require(draft, SubscriptionDraft, "draft")
    source_type = prepare_source_type(draft.source_type, encoder, "draft.source_type")
    content = _content(draft, encoder, schemas)
    key = draft.source_key
    source = source_key(source_type, content.source) if key is None else named(key, encoder, "draft.source_key")
    registrant = draft.registrant
    _check_target(draft, content, encoder, schemas)
    value = {**msgspec.to_builtins(content), "event_types": [msgspec.to_builtins(each) for each in content.event_types]}
    columns = (
        HOST if registrant is None else registrant.session_id,
        (None if registrant is None else registrant.frame_id) or HOST,
        encoder.optional_text(draft.name, "draft.name"),
        source_type,
        source,
        draft.env_ref,
    )
    definition = content.identity.definition
    registration_key = encoder.optional_id(draft.registration_key, "draft.registration_key")
    return PreparedSubscription(
        registrant_session_id=columns[0],
        registrant_frame_id=columns[1],
        registration_key=mint("srk:") if registration_key is None else registration_key,
        name=columns[2],
        source_type=source_type,
        source_key=source,
        definition_hash=None if definition is None else bytes.fromhex(stable_hash(definition)),
        env_ref=draft.env_ref,
        wake_session_id=None if draft.wake_target is None else draft.wake_target.session_id,
        schedule=content.schedule,
        body=encoder.json(value, "draft"),
        intent=digest("subscription/1", *columns, canonical(value)),
    )


def require(value: object, kind: type | tuple[type, ...], path: str) -> None:
    """Refuse a value of another type than the one asked for."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise Unstorable(path, f"must be a {' or '.join(each.__name__ for each in kinds)}, got {type(value).__name__}")


def named(value: object, encoder: Encoder, path: str) -> str:
    """An id that is more than spaces."""
    text = encoder.id(value, path)
    if not text.strip():
        raise InvalidArgument(path, "must not be blank")
    return text


def prepare_source_type(value: object, encoder: Encoder, path: str) -> str:
    """A source type, short enough for its keys to be ids."""
    text = named(value, encoder, path)
    size = len(text.encode())
    if size > SOURCE_TYPE_MAX_BYTES:
        raise LimitExceeded("SOURCE_TYPE_MAX_BYTES", maximum=SOURCE_TYPE_MAX_BYTES, actual=f"{size} bytes", path=path)
    return text


def _content(draft: SubscriptionDraft, encoder: Encoder, schemas: Schemas) -> Content:
    require(draft.target, ProcessInput, "draft.target")
    require(draft.identity, (ProcessIdentity, type(None)), "draft.identity")
    encoder.json(draft.source, "draft.source")
    encoder.json(draft.payload_schema, "draft.payload_schema")
    schemas.check(draft.payload_schema, "draft.payload_schema")
    _check_schedule(draft.schedule, encoder)
    unnamed = draft.source is None and draft.schedule is not None
    return Content(
        source=msgspec.to_builtins(draft.schedule) if unnamed else draft.source,
        payload_schema=draft.payload_schema,
        target=draft.target,
        identity=_identity(draft, encoder),
        event_types=_event_types(draft.event_types),
        input_template=_template(draft.input_template, encoder),
        wake_target=draft.wake_target,
        label=draft.label,
        schedule=draft.schedule,
    )


def _identity(draft: SubscriptionDraft, encoder: Encoder) -> ProcessIdentity:
    label = encoder.optional_text(draft.label, "draft.label")
    if draft.identity is None:
        encoder.json(draft.target.payload, "draft.target.payload")
        identity = default_identity(draft.target)
        return identity if label is None else msgspec.structs.replace(identity, label=label)
    if label is not None and draft.identity.label is not None and label != draft.identity.label:
        raise InvalidArgument("draft.label", "must be the label of the identity when both are given")
    return draft.identity


def _event_types(given: Sequence[EventType]) -> tuple[EventType, ...]:
    require(given, (list, tuple), "draft.event_types")
    for i, event_type in enumerate(given):
        require(event_type, EventType, f"draft.event_types[{i}]")
    return tuple(given)


def _template(given: Mapping[str, Any], encoder: Encoder) -> dict[str, EventBinding | FixedBinding]:
    require(given, dict, "draft.input_template")
    for name, binding in given.items():
        require(binding, (EventBinding, FixedBinding), f"draft.input_template[{name!r}]")
    encoder.json({name: getattr(binding, "value", None) for name, binding in given.items()}, "draft.input_template")
    return dict(given)


def _check_target(draft: SubscriptionDraft, content: Content, encoder: Encoder, schemas: Schemas) -> None:
    """Prepare the process an occurrence without payload would start: what it refuses, no occurrence could start."""
    if not isinstance(content.target.payload, dict):
        raise InvalidArgument("draft.target.payload", f"must be an object: its {ARGS!r} are filled from the template")
    for path, scope in (("registrant", draft.registrant), ("wake_target", draft.wake_target)):
        require(scope, (Scope, type(None)), f"draft.{path}")
        check_scope(scope, encoder, f"draft.{path}")
    prepare_registration(
        Registration(
            process_id="process:trigger:draft",
            input=ProcessInput(content.target.kind, fill(content, None)),
            identity=content.identity,
            event_types=list(content.event_types),
            originator=draft.registrant,
            env_ref=draft.env_ref,
            wake_target=draft.wake_target,
        ),
        encoder,
        schemas,
    )


def fill(content: Content | Subscription, payload: Any) -> dict[str, Any]:
    """The target's payload with the arguments the template makes of an occurrence's payload."""
    made: dict[str, Any] = {
        name: binding.value if isinstance(binding, FixedBinding) else payload for name, binding in content.input_template.items()
    }
    return {**content.target.payload, ARGS: made}


def _check_schedule(schedule: object, encoder: Encoder) -> None:
    if schedule is None:
        return
    require(schedule, (Cron, Interval), "draft.schedule")
    if isinstance(schedule, Cron):
        encoder.id(schedule.expression, "draft.schedule.expression")
        encoder.id(schedule.timezone, "draft.schedule.timezone")
    elif isinstance(schedule, Interval):
        encoder.duration(schedule.every_ms, "draft.schedule.every_ms", minimum=INTERVAL_MIN_MS)
        if schedule.anchor_ms is not None:
            encoder.counter(schedule.anchor_ms, "draft.schedule.anchor_ms")
    assert isinstance(schedule, Cron | Interval)
    encoder.duration(schedule.grace_ms, "draft.schedule.grace_ms")
    if schedule.missed not in set(Missed):
        raise InvalidArgument("draft.schedule.missed", f"must be one of {', '.join(Missed)}")
