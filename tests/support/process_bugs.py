"""Bugs to plant in processes, their logs, wakes, leases, grants and waits, and the laws that must notice each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import pytest
from msgspec import structs

from lash_store import encode
from lash_store.model.process import Scope
from lash_store.notify.hub import AsyncSubscription, Hub
from lash_store.ops import events, grants, leases, processes, pruning, queue, semantics
from lash_store.ops.statement import Execute, Op
from lash_store.payload_schema import Schemas
from lash_store.store.processes import AsyncProcesses
from lash_store.store.queue import AsyncQueue
from lash_store.testing.laws import waits
from tests.support.planting import BOTH, POSTGRES, Control, answering, everywhere, token_reads

# --- registrations --------------------------------------------------------------------------------------------------------


def registrations_not_compared(patch: pytest.MonkeyPatch) -> None:
    insert = processes.insert_processes

    def trusting(prepared: Sequence[Any], now_ms: int) -> Op[dict[str, str]]:
        found = yield from insert(prepared, now_ms)
        return {process_id: "existing" if outcome == "conflict" else outcome for process_id, outcome in found.items()}

    everywhere(patch, insert, trusting)


def registrations_raced(patch: pytest.MonkeyPatch) -> None:
    """Two that look at once both insert, and one of them fails."""
    token_reads(patch, "ON CONFLICT (process_id) DO NOTHING", "")


def hashes_of_the_written_order(patch: pytest.MonkeyPatch) -> None:
    def unsorted(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()

    everywhere(patch, encode.stable_hash, unsorted)


def core_types_redeclared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(semantics, "CORE_NAMES", frozenset())


def prunes_what_runs(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "WHERE state <> 'running' AND pruned_ms IS NULL", "WHERE pruned_ms IS NULL")


def prunes_the_identity_too(patch: pytest.MonkeyPatch) -> None:
    hide = pruning._hide  # pyright: ignore[reportPrivateUsage]

    def forgetful(process_id: str, *args: Any) -> Op[None]:
        yield from hide(process_id, *args)
        yield Execute("DELETE FROM {events} WHERE process_id = :process_id", {"process_id": process_id})
        yield Execute("DELETE FROM {processes} WHERE process_id = :process_id", {"process_id": process_id})

    patch.setattr(pruning, "_hide", forgetful)


# --- the log --------------------------------------------------------------------------------------------------------------


def schemas_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Schemas, "validate", answering(None))


def keys_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    def forgetful(call: Any) -> Op[dict[str, Any]]:
        yield from ()
        return {}

    patch.setattr(events, "_by_keys", forgetful)


def replays_not_compared(patch: pytest.MonkeyPatch) -> None:
    plan = events.plan_append

    def trusting(row: Any, drafts: Sequence[Any], stored: Mapping[str, Any], *rest: Any) -> Any:
        alike = [
            structs.replace(draft, payload_hash=bytes(stored[draft.replay_key].payload_hash))
            if draft.replay_key in stored
            else draft
            for draft in drafts
        ]
        return plan(row, alike, stored, *rest)

    patch.setattr(events, "plan_append", trusting)


def appends_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "FOR UPDATE", "")


def no_repair(patch: pytest.MonkeyPatch) -> None:
    plan = events.plan_append

    def lazy(*args: Any) -> Any:
        made = plan(*args)
        return made if made.inserts else structs.replace(made, ended=None)

    patch.setattr(events, "plan_append", lazy)


# --- wakes ----------------------------------------------------------------------------------------------------------------


def wakes_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forgetful(call: Any, inserts: Sequence[Any], heads: Any, now_ms: int) -> Op[list[Any]]:
        yield from ()
        return list(inserts)

    patch.setattr(events, "_wake", forgetful)


def wakes_as_an_afterthought(patch: pytest.MonkeyPatch) -> None:
    """The wake is enqueued in a transaction of its own, after its event was stored."""
    wakes_forgotten(patch)
    append = AsyncProcesses._append  # pyright: ignore[reportPrivateUsage]

    async def late(self: Any, *args: Any, **kwargs: Any) -> Any:
        appended = await append(self, *args, **kwargs)
        for each in appended:
            wake = each.event.wake
            if wake is not None and wake.target is not None:
                queued = AsyncQueue(self._runtime)
                await queued.enqueue(wake.target.session_id, [{"input": wake.input}], source_key=wake.wake_id)
        return appended

    patch.setattr(AsyncProcesses, "_append", late)


def wakes_by_event_only(patch: pytest.MonkeyPatch) -> None:
    """The declared dedupe key suppresses nothing."""
    patch.setattr(semantics, "wake_dedupe", answering(None))


def settled_wakes_hold_the_next(patch: pytest.MonkeyPatch) -> None:
    insert = queue.insert_batches

    def remembering(batches: Sequence[Any], heads: Any, *, now_ms: int, retention_ms: int | None) -> Op[Any]:
        return (yield from insert(batches, heads, now_ms=now_ms, retention_ms=10**12))

    everywhere(patch, insert, remembering)


def replays_wake_again(patch: pytest.MonkeyPatch) -> None:
    """A key is honoured in the log, and its wake is enqueued once more."""
    append, wake = events.append, events._wake  # pyright: ignore[reportPrivateUsage]

    def eager(call: Any) -> Op[Any]:
        results = yield from append(call)
        again = [row for row, replayed in results if replayed and row.wake_session_id is not None]
        if again:
            heads = yield from events.lock_sessions([again[0].wake_session_id or ""])
            now_ms = yield from events.database_now()
            fresh = [structs.replace(row, wake_batch_id=encode.mint("qwb:")) for row in again]
            yield from wake(call, fresh, heads, now_ms)
        return results

    patch.setattr(events, "append", eager)


def wakes_recomputed_on_replay(patch: pytest.MonkeyPatch) -> None:
    """A replay shows today's target instead of the one it had."""
    plan = events.plan_append

    def present(row: Any, drafts: Any, stored: Any, target: Scope | None, now_ms: int) -> Any:
        made = plan(row, drafts, stored, target, now_ms)
        session_id = None if target is None else target.session_id
        results = [
            (events.sealed(structs.replace(each, wake_session_id=session_id)) if replayed else each, replayed)
            for each, replayed in made.results
        ]
        return structs.replace(made, results=tuple(results))

    patch.setattr(events, "plan_append", present)


# --- leases ---------------------------------------------------------------------------------------------------------------


def leases_that_never_end(patch: pytest.MonkeyPatch) -> None:
    def held(self: processes.ProcessRow, now_ms: int) -> bool:
        return self.lease_token is not None

    patch.setattr(processes.ProcessRow, "leased", held)


def leases_by_token_alone(patch: pytest.MonkeyPatch) -> None:
    require = processes.require_live

    def careless(row: Any, lease: Any, now_ms: int) -> None:
        known = structs.replace(lease, owner=row.lease_owner, incarnation=row.lease_incarnation, fence=row.lease_fence)
        require(row, known, now_ms)

    everywhere(patch, require, careless)


def superseded_workers_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(events, "_check_lease", answering(None))
    patch.setattr(events, "require_live", answering(None))


def fences_start_again(patch: pytest.MonkeyPatch) -> None:
    free = leases._free  # pyright: ignore[reportPrivateUsage]

    def flat(process_id: str, fence: int, now_ms: int) -> Op[None]:
        yield from free(process_id, 0, now_ms)

    patch.setattr(leases, "_free", flat)


def external_work_handed_out(patch: pytest.MonkeyPatch) -> None:
    for module in (leases, processes):
        patch.setattr(module, "EXTERNAL", "nobody's")


def the_youngest_first(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "ORDER BY runnable_ms, process_id", "ORDER BY runnable_ms DESC, process_id")


def a_statement_per_lease(patch: pytest.MonkeyPatch) -> None:
    write = leases._write  # pyright: ignore[reportPrivateUsage]

    def one_by_one(wanted: Sequence[Any]) -> Op[None]:
        for lease in wanted:
            yield from write([lease])

    patch.setattr(leases, "_write", one_by_one)


# --- grants ---------------------------------------------------------------------------------------------------------------


def anybody_may_use_anything(patch: pytest.MonkeyPatch) -> None:
    def open_door(*_: Any, **__: Any) -> Op[None]:
        yield from ()

    patch.setattr(grants, "require", open_door)


def transfers_of_what_is_there(patch: pytest.MonkeyPatch) -> None:
    transfer = grants.transfer

    def partial(source: Scope, target: Scope, process_ids: Sequence[str]) -> Op[int]:
        held = dict[str, bool]()
        for process_id in process_ids:
            held[process_id] = yield from grants.has(source, process_id)
        return (yield from transfer(source, target, [process_id for process_id in process_ids if held[process_id]]))

    patch.setattr(grants, "transfer", partial)


def frames_outlive_their_session(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "DELETE FROM lash_grants WHERE session_id", "DELETE FROM lash_grants WHERE frame_id = '' AND session_id")


def targets_outlive_their_session(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "SET wake_session_id = NULL, wake_frame_id = NULL, updated_ms", "SET updated_ms")


# --- signals and waits ----------------------------------------------------------------------------------------------------


def every_wait_gets_the_first_signal(patch: pytest.MonkeyPatch) -> None:
    nth = events.nth

    def first(process_id: str, event_type: str, ordinal: int) -> Op[Any]:
        return (yield from nth(process_id, event_type, 1))

    patch.setattr(events, "nth", first)


def rings_before_the_sleep_are_lost(patch: pytest.MonkeyPatch) -> None:
    """Check, then subscribe: what happens in between wakes nobody."""
    wait = AsyncSubscription.wait

    async def deaf(self: AsyncSubscription, timeout_ms: float | None) -> bool:
        self._rung.clear()  # pyright: ignore[reportPrivateUsage]
        return await wait(self, timeout_ms)

    patch.setattr(AsyncSubscription, "wait", deaf)
    patch.setattr(Hub, "found", answering(None))
    _impatient(patch)


def processes_ring_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hub, "ring", answering(None))
    patch.setattr(Hub, "rouse", answering([]))
    patch.setattr(Hub, "found", answering(None))
    _impatient(patch)


def waiters_that_poll(patch: pytest.MonkeyPatch) -> None:
    wait = AsyncSubscription.wait

    async def restless(self: AsyncSubscription, timeout_ms: float | None) -> bool:
        return await wait(self, 50.0 if timeout_ms is None else min(50.0, timeout_ms))

    patch.setattr(AsyncSubscription, "wait", restless)
    patch.setattr(waits, "IDLE_WAITERS", 20)
    _impatient(patch)


def _impatient(patch: pytest.MonkeyPatch) -> None:
    soon = waits.soon

    async def sooner(call: Awaitable[Any], *, seconds: float = 1.0) -> Any:
        return await soon(call, seconds=min(seconds, 1.0))

    async def at_once(statements: list[str], at_least: int) -> None:
        return None

    patch.setattr(waits, "soon", sooner)
    patch.setattr(waits, "_quiet", at_once)


PROCESS_CONTROLS = [
    Control(registrations_not_compared, ("processes.another_registration_under_the_same_id_is_a_conflict",)),
    Control(registrations_raced, ("processes.concurrent_registrations_of_one_process_are_one",), POSTGRES),
    Control(
        hashes_of_the_written_order,
        ("processes.the_order_of_keys_is_no_part_of_a_registrations_identity", "events.a_replay_key_appends_once"),
    ),
    Control(core_types_redeclared, ("processes.core_event_types_are_always_there_and_cannot_be_redeclared",)),
    Control(prunes_what_runs, ("processes.a_prune_removes_what_ended_long_ago_and_nothing_else",), BOTH),
    Control(prunes_the_identity_too, ("processes.a_pruned_process_never_runs_again",)),
    Control(
        schemas_ignored,
        (
            "events.only_declared_types_with_fitting_payloads_are_appended",
            "signals.undeclared_names_and_mistyped_payloads_reach_nobody",
        ),
    ),
    Control(keys_not_looked_up, ("events.a_replay_key_appends_once", "events.concurrent_appends_of_one_key_are_one_event"), BOTH),
    Control(replays_not_compared, ("events.a_replay_key_with_other_content_is_a_conflict", "processes.a_process_ends_once")),
    Control(
        appends_without_a_lock,
        ("events.concurrent_appends_make_one_gapless_log", "leases.of_many_claimers_one_gets_the_process"),
        POSTGRES,
    ),
    Control(no_repair, ("events.a_replayed_end_repairs_a_state_that_does_not_show_it",)),
    Control(
        wakes_forgotten,
        ("wakes.an_event_that_wakes_is_in_the_inbox_when_it_is_in_the_log", "processes.processes_survive_a_reopen"),
    ),
    Control(wakes_as_an_afterthought, ("wakes.an_append_whose_wake_cannot_be_enqueued_leaves_nothing",)),
    Control(wakes_by_event_only, ("wakes.a_pending_wake_holds_the_next_one_of_its_id", "wakes.wakes_follow_their_declarations")),
    Control(settled_wakes_hold_the_next, ("wakes.after_settlement_the_next_event_wakes_again",)),
    Control(replays_wake_again, ("wakes.a_replay_never_wakes",)),
    Control(wakes_recomputed_on_replay, ("wakes.a_replay_tells_the_delivery_that_was_made",)),
    Control(leases_that_never_end, ("leases.a_lease_ends_at_its_expiry_on_the_databases_clock",), BOTH),
    Control(leases_by_token_alone, ("leases.every_part_of_a_lease_is_checked",)),
    Control(
        superseded_workers_write,
        (
            "leases.a_superseded_worker_cannot_end_the_process",
            "leases.without_a_lease_nobody_ends_what_another_one_runs",
            "events.an_append_under_a_lease_is_fenced_by_it",
        ),
    ),
    Control(
        fences_start_again, ("leases.the_fence_grows_across_release_and_expiry", "leases.a_broken_lease_is_lost_to_its_holder")
    ),
    Control(external_work_handed_out, ("leases.external_work_is_never_handed_out",)),
    Control(the_youngest_first, ("leases.the_longest_runnable_process_is_handed_out_first",), BOTH),
    Control(a_statement_per_lease, ("costs.handing_out_processes_costs_the_same_for_one_and_for_many",)),
    Control(anybody_may_use_anything, ("grants.a_session_uses_only_what_it_was_granted",)),
    Control(transfers_of_what_is_there, ("grants.a_transfer_moves_all_or_nothing",)),
    Control(frames_outlive_their_session, ("grants.a_deleted_session_lets_go_and_says_of_what",)),
    Control(
        targets_outlive_their_session,
        ("grants.a_deleted_session_lets_go_and_says_of_what", "wakes.a_wake_for_a_session_that_is_gone_is_only_recorded"),
    ),
    Control(
        every_wait_gets_the_first_signal,
        ("signals.the_nth_wait_gets_the_nth_signal", "signals.two_quick_signals_during_one_wait_are_both_kept"),
    ),
    Control(rings_before_the_sleep_are_lost, ("waits.a_wait_that_begins_beside_the_event_misses_nothing",)),
    Control(
        processes_ring_nobody,
        (
            "waits.an_output_is_awaited_or_there_at_once",
            "waits.an_event_is_awaited_by_type_and_sequence",
            "waits.workers_are_woken_by_new_and_by_released_work",
        ),
    ),
    Control(waiters_that_poll, ("waits.a_thousand_idle_waiters_cost_a_handful_of_statements_a_second",)),
]
