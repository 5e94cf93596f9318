"""Pairs of calls about triggers that may collide, and the state each pair starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lash_store.model.process import Scope, Success
from tests.support.player import Script
from tests.support.process_sides import (
    OLD_MS,
    cancel,
    collect,
    delete,
    emit,
    host,
    in_turn,
    old_env,
    prune,
    put_env,
    redrive,
    reserved,
    scheduled,
    subscribe,
    tick,
    triggers,
    with_sessions,
)
from tests.support.scenarios import Scenario
from tests.support.sides import create
from tests.support.stepper import Stage
from tests.support.triggers import pressed

WOKEN: dict[str, Any] = {"wake_target": Scope("s")}
OF_SESSION: dict[str, Any] = {"registrant": Scope("s", "frame")}

# --- occurrences -------------------------------------------------------------------------------------------------------------


async def emit_emit_same_key(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await made.play(subscribe("one", **WOKEN))
    await made.play(subscribe("two"))
    return [emit(), emit()]


async def emit_emit_same_key_other_payload(made: Stage) -> Sequence[Script]:
    await made.play(subscribe())
    return [emit(pressed(payload=payload)) for payload in ("one", "two")]


async def emit_emit_other_key(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await made.play(subscribe("one", **WOKEN))
    await made.play(subscribe("two"))
    return [emit(pressed(key)) for key in ("one", "two")]


async def emit_cancel(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await made.play(subscribe(**OF_SESSION))
    return [emit(), cancel("s")]


async def emit_delete_wake_target(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await made.play(subscribe(**WOKEN))
    return [emit(), delete("s")]


async def emit_delete_registrant(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await made.play(subscribe(**OF_SESSION))
    return [emit(), delete("s")]


async def emit_create_wake_target(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await made.play(subscribe(**WOKEN))
    await made.play(delete("s"))
    return [emit(), create("s")]


async def emit_subscribe(made: Stage) -> Sequence[Script]:
    await made.play(subscribe("one"))
    return [emit(), subscribe("two")]


async def emit_subscribe_then_cancel(made: Stage) -> Sequence[Script]:
    """The new subscription is there before the old one goes: whoever sees the second change must see the first."""
    await made.play(subscribe("one"))
    return [emit(), in_turn(subscribe("two"), cancel(None))]


async def emit_reserve(made: Stage) -> Sequence[Script]:
    await made.play(subscribe())
    happened = await made.play(triggers(lambda these: these.record_occurrence(pressed())))
    return [emit(), triggers(lambda these: these.reserve(happened.occurrence_id))]


async def emit_redrive(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await reserved(made, [WOKEN, {}])
    return [emit(), redrive()]


async def emit_prune_occurrences(made: Stage) -> Sequence[Script]:
    await made.play(subscribe())
    await made.play(emit())
    await made.advance(2 * OLD_MS)
    return [emit(), triggers(lambda these: these.prune(older_than_ms=OLD_MS))]


async def subscribe_subscribe_same_key(made: Stage) -> Sequence[Script]:
    return [subscribe(), subscribe()]


async def subscribe_subscribe_same_key_other_content(made: Stage) -> Sequence[Script]:
    return [subscribe(name=name) for name in ("one", "two")]


async def subscribe_subscribe_other_key(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    return [subscribe("one"), subscribe("two", **OF_SESSION)]


async def subscribe_delete(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    return [subscribe(**OF_SESSION), delete("s")]


async def tick_tick(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await scheduled(made, "one", **WOKEN)
    return [tick(), tick()]


async def tick_tick_several(made: Stage) -> Sequence[Script]:
    await scheduled(made, "one", "two")
    return [tick(), tick()]


async def tick_cancel(made: Stage) -> Sequence[Script]:
    await scheduled(made, "one")
    return [tick(), cancel(None)]


async def tick_delete_registrant(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await scheduled(made, "one", **OF_SESSION)
    return [tick(), delete("s")]


async def tick_delete_wake_target(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await scheduled(made, "one", **WOKEN)
    return [tick(), delete("s")]


async def redrive_redrive(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await reserved(made, [WOKEN, {}])
    return [redrive(), redrive()]


async def redrive_delete_registrant(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await reserved(made, [OF_SESSION, {}])
    return [redrive(), delete("s")]


# --- maintenance ----------------------------------------------------------------------------------------------------------


async def prune_emit_again(made: Stage) -> Sequence[Script]:
    """The process of a delivery ended long ago, its occurrence is forgotten, and it is emitted again."""
    await with_sessions(made, "s")
    await made.play(subscribe(**WOKEN))
    report = await made.play(emit())
    await made.play(host(lambda these: these.complete(report.started[0], Success())))
    await made.advance(2 * OLD_MS)
    await made.play(triggers(lambda these: these.prune(older_than_ms=OLD_MS)))
    return [prune(), emit()]


async def collect_put_subscribe(made: Stage) -> Sequence[Script]:
    ref = await old_env(made)
    return [collect(), in_turn(put_env(), subscribe(env_ref=ref))]


TRIGGER_SCENARIOS: tuple[Scenario, ...] = (
    emit_emit_same_key,
    emit_emit_same_key_other_payload,
    emit_emit_other_key,
    emit_cancel,
    emit_delete_wake_target,
    emit_delete_registrant,
    emit_create_wake_target,
    emit_subscribe,
    emit_subscribe_then_cancel,
    emit_reserve,
    emit_redrive,
    subscribe_subscribe_same_key,
    subscribe_subscribe_same_key_other_content,
    subscribe_subscribe_other_key,
    subscribe_delete,
    tick_tick,
    tick_tick_several,
    tick_cancel,
    tick_delete_registrant,
    tick_delete_wake_target,
    redrive_redrive,
    redrive_delete_registrant,
    prune_emit_again,
    collect_put_subscribe,
)
