"""Bugs to plant in processes, triggers and artifacts: each breaks one promise, and the machine must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from lash_store.ops import artifacts, deliveries, events, grants, leases, occurrences, processes, pruning, starts, ticks, triggers
from lash_store.ops.statement import Op
from lash_store.store import instants

Mutant = Callable[[pytest.MonkeyPatch], None]


def nothing(*_: Any, **__: Any) -> Op[Any]:
    """An operation that does nothing."""
    yield from ()


def silently(*_: Any, **__: Any) -> None:
    """A check that finds nothing wrong."""


# --- processes ------------------------------------------------------------------------------------------------------------


def other_content_passes_under_a_known_process_id(patch: pytest.MonkeyPatch) -> None:
    true = starts.insert_processes

    def insert(prepared: Sequence[processes.PreparedProcess], now_ms: int) -> Op[dict[str, str]]:
        made = yield from true(prepared, now_ms)
        return {process_id: "existing" if outcome == "conflict" else outcome for process_id, outcome in made.items()}

    patch.setattr(starts, "insert_processes", insert)


def a_replay_key_replays_whatever_is_said(patch: pytest.MonkeyPatch) -> None:
    true = events.plan_append

    def plan(row: Any, drafts: Sequence[events.PreparedEvent], stored: Any, target: Any, now_ms: int) -> events.EventPlan:
        same = [
            replace(draft, payload_hash=stored[draft.replay_key].payload_hash) if draft.replay_key in stored else draft
            for draft in drafts
        ]
        return true(row, same, stored, target, now_ms)

    patch.setattr(events, "plan_append", plan)


def a_process_ends_twice(patch: pytest.MonkeyPatch) -> None:
    true = events.plan_append

    def plan(row: processes.ProcessRow, *rest: Any) -> events.EventPlan:
        return true(replace(row, state="running"), *rest)

    patch.setattr(events, "plan_append", plan)


def every_wake_gets_a_batch_of_its_own(patch: pytest.MonkeyPatch) -> None:
    true = events._pending_wakes  # pyright: ignore[reportPrivateUsage]

    def pending(wakes: Sequence[events.EventRow]) -> Op[tuple[dict[str, str], set[str]]]:
        found, taken = yield from true(wakes)
        return {}, {*found, *taken}

    patch.setattr(events, "_pending_wakes", pending)


def a_wake_is_lost_in_one_that_is_being_worked_on(patch: pytest.MonkeyPatch) -> None:
    true = events._pending_wakes  # pyright: ignore[reportPrivateUsage]

    def pending(wakes: Sequence[events.EventRow]) -> Op[tuple[dict[str, str], set[str]]]:
        found, taken = yield from true(wakes)
        return {**dict.fromkeys(taken, "lost"), **found}, set()

    patch.setattr(events, "_pending_wakes", pending)


def anybody_ends_a_process_that_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(events, "_check_lease", silently)


def a_lease_holds_beyond_its_end(patch: pytest.MonkeyPatch) -> None:
    true = processes.require_live

    def require(row: processes.ProcessRow, lease: Any, now_ms: int) -> None:
        true(row, lease, now_ms - 1)

    for module in (leases, events, processes):
        patch.setattr(module, "require_live", require)


def a_lease_is_known_by_its_token_alone(patch: pytest.MonkeyPatch) -> None:
    def require(row: processes.ProcessRow, lease: Any, now_ms: int) -> None:
        if row.lease_token != lease.token or not row.leased(now_ms):
            raise processes.LeaseLost(row.process_id, held_fence=lease.fence, actual_fence=row.lease_fence)

    for module in (leases, events, processes):
        patch.setattr(module, "require_live", require)


def breaking_a_lease_does_not_raise_the_fence(patch: pytest.MonkeyPatch) -> None:
    true = leases._free  # pyright: ignore[reportPrivateUsage]

    def break_lease(process_id: str) -> Op[int]:
        row = yield from leases.lock_state(process_id)
        yield from true(process_id, row.lease_fence, (yield from leases.database_now()))
        return row.lease_fence + 1

    patch.setattr(leases, "break_lease", break_lease)


def external_work_is_handed_to_workers(patch: pytest.MonkeyPatch) -> None:
    true = processes._insert_row  # pyright: ignore[reportPrivateUsage]

    def row(each: processes.PreparedProcess, now_ms: int) -> dict[str, Any]:
        return {**true(each, now_ms), "runnable_ms": now_ms}

    patch.setattr(processes, "_insert_row", row)
    patch.setattr(leases, "EXTERNAL", "nothing is")


def the_same_wait_again_starts_anew(patch: pytest.MonkeyPatch) -> None:
    true = processes.write_wait

    def write(process_id: str, wait: Any, since_ms: int | None, now_ms: int) -> Op[None]:
        return (yield from true(process_id, wait, None if wait is None else now_ms, now_ms))

    patch.setattr(processes, "write_wait", write)


def a_transfer_leaves_the_grant_behind(patch: pytest.MonkeyPatch) -> None:
    def transfer(source: Any, target: Any, process_ids: Sequence[str]) -> Op[int]:
        count = yield from true(source, target, process_ids)
        for process_id in process_ids:
            yield from grants.insert_grants([grants.prepared(source, process_id, grants.Descriptor())], 0)
        return count

    true = grants.transfer
    patch.setattr(grants, "transfer", transfer)


def a_deleted_session_is_still_woken(patch: pytest.MonkeyPatch) -> None:
    true_execute, true_release = grants.execute, grants.release_session

    def execute(sql: Any, **params: Any) -> Op[int]:
        return 0 if "wake_session_id = NULL" in sql else (yield from true_execute(sql, **params))

    def release(session_id: str, limit: int) -> Op[grants.Released]:
        return replace((yield from true_release(session_id, 100 * limit)), complete=True)

    patch.setattr(grants, "execute", execute)
    patch.setattr(grants, "release_session", release)


def prune_takes_what_ended_just_now(patch: pytest.MonkeyPatch) -> None:
    true = pruning._ended  # pyright: ignore[reportPrivateUsage]

    def ended(now_ms: int, cutoff_ms: int, process_id: str | None) -> Op[str | None]:
        return (yield from true(now_ms, now_ms, process_id))

    patch.setattr(pruning, "_ended", ended)


def prune_leaves_the_grants(patch: pytest.MonkeyPatch) -> None:
    true = pruning.execute

    def execute(sql: Any, **params: Any) -> Op[int]:
        return (yield from true(sql, **params)) if "DELETE FROM {grants}" not in sql else 0

    patch.setattr(pruning, "execute", execute)


# --- triggers -------------------------------------------------------------------------------------------------------------


def a_cancelled_subscription_starts_processes(patch: pytest.MonkeyPatch) -> None:
    for name in ("UNRESERVED", "UNRESERVED_LOCKED"):
        patch.setattr(deliveries, name, getattr(deliveries, name).replace("s.enabled = 1", "s.enabled >= 0"))


def a_started_process_is_granted_to_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deliveries, "insert_grants", nothing)


def a_delivery_is_promised_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deliveries, "_update", nothing)


def other_content_passes_under_a_known_occurrence(patch: pytest.MonkeyPatch) -> None:
    true = occurrences.lock

    def lock(occurrence_ids: Sequence[str]) -> Op[Any]:
        found = yield from true(occurrence_ids)
        return {id: replace(row, request_hash=Anything()) for id, row in found.items()}

    patch.setattr(occurrences, "lock", lock)
    patch.setattr(occurrences, "check", silently)


class Anything(bytes):
    """Bytes that are like any other."""

    __hash__ = bytes.__hash__

    def __bytes__(self) -> bytes:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def a_payload_is_not_held_against_the_schema(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("lash_store.payload_schema.Schemas.validate", silently)


def late_instants_are_never_passed_over(patch: pytest.MonkeyPatch) -> None:
    def start(schedule: Any, line: Any, next_ms: int, now_ms: int) -> int:
        return next_ms

    patch.setattr(instants, "_start", start)


def a_schedule_does_not_move_on(patch: pytest.MonkeyPatch) -> None:
    true = ticks.schedules.advance

    def advance(subscription_id: str, *, before_ms: int, next_ms: int | None, done_ms: int) -> Op[None]:
        later_ms = None if next_ms is None else next_ms + 1
        return (yield from true(subscription_id, before_ms=before_ms, next_ms=later_ms, done_ms=done_ms))

    patch.setattr(ticks.schedules, "advance", advance)


def a_deleted_session_keeps_its_subscriptions(patch: pytest.MonkeyPatch) -> None:
    true = triggers.delete_for_session_step

    def step(session_id: str, limit: int, *, purging: bool = False) -> Op[triggers.Removed]:
        return triggers.Removed(0, 0, True) if purging else (yield from true(session_id, limit))

    patch.setattr(triggers, "delete_for_session_step", step)


def an_unfinished_occurrence_is_pruned(patch: pytest.MonkeyPatch) -> None:
    true = occurrences._counts  # pyright: ignore[reportPrivateUsage]

    def counts(occurrence_ids: Sequence[str]) -> Op[dict[str, tuple[int, int]]]:
        found = yield from true(occurrence_ids)
        return {id: (count, 0) for id, (count, _) in found.items()}

    patch.setattr(occurrences, "_counts", counts)


# --- artifacts ------------------------------------------------------------------------------------------------------------


def an_environment_is_collected_under_a_subscription(patch: pytest.MonkeyPatch) -> None:
    true = artifacts._UNNAMED_ENVS  # pyright: ignore[reportPrivateUsage]
    patch.setattr(artifacts, "_UNNAMED_ENVS", true.replace("s.env_ref = a.ref", "s.env_ref = ''"))

    def named(refs: list[str]) -> Op[set[str]]:
        yield from ()
        return set()

    patch.setattr(artifacts, "_named", named)


def a_bound_ref_takes_other_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(artifacts, "put_bound", artifacts.put_raw)


MUTANTS: list[Mutant] = [
    other_content_passes_under_a_known_process_id,
    a_replay_key_replays_whatever_is_said,
    a_process_ends_twice,
    every_wake_gets_a_batch_of_its_own,
    a_wake_is_lost_in_one_that_is_being_worked_on,
    anybody_ends_a_process_that_is_held,
    a_lease_holds_beyond_its_end,
    a_lease_is_known_by_its_token_alone,
    breaking_a_lease_does_not_raise_the_fence,
    external_work_is_handed_to_workers,
    the_same_wait_again_starts_anew,
    a_transfer_leaves_the_grant_behind,
    a_deleted_session_is_still_woken,
    prune_takes_what_ended_just_now,
    prune_leaves_the_grants,
    a_cancelled_subscription_starts_processes,
    a_started_process_is_granted_to_nobody,
    a_delivery_is_promised_and_forgotten,
    other_content_passes_under_a_known_occurrence,
    a_payload_is_not_held_against_the_schema,
    late_instants_are_never_passed_over,
    a_schedule_does_not_move_on,
    a_deleted_session_keeps_its_subscriptions,
    an_unfinished_occurrence_is_pruned,
    an_environment_is_collected_under_a_subscription,
    a_bound_ref_takes_other_bytes,
]
