"""A law is worth what it catches: each planted bug below must make the laws it names fail."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import lash_store
from lash_store import delta, encode
from lash_store.db import sqlite_connection
from lash_store.db.postgres import PostgresDriver
from lash_store.db.sqlite_transaction import SqliteTransaction
from lash_store.errors import StoreError
from lash_store.notify.hub import Hub
from lash_store.ops import (
    attachments,
    checkpoints,
    claims,
    collect,
    commits,
    frames,
    graph,
    heads,
    paths,
    queue,
    sessions,
    snapshot,
    statement,
    tree,
)
from lash_store.ops.statement import Op
from lash_store.testing import Backend, PostgresBackend, SqliteBackend, keep, law_called
from lash_store.testing.laws import waiting
from tests.support.planting import BOTH, POSTGRES, Control, Plant, answering, everywhere, token_reads
from tests.support.process_bugs import PROCESS_CONTROLS

assert lash_store  # the package is imported whole, so that every module that holds a patched name is loaded

# --- locks and clocks -----------------------------------------------------------------------------------------------------


def no_session_lock(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "FOR UPDATE", "")


def the_clients_clock(patch: pytest.MonkeyPatch) -> None:
    def client_now() -> Op[int]:
        yield statement.Fetch("SELECT {now_ms}", {})
        return int(time.time() * 1000)

    everywhere(patch, statement.database_now, client_now)


def reads_without_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A head remembered from an earlier look, beside rows of a later one."""
    look, seen = heads.look_session, dict[str, heads.Head]()

    def stale(session_id: str, incarnation: int | None = None) -> Op[heads.Head]:
        head = yield from look(session_id, incarnation)
        return seen.setdefault(session_id, head)

    found, rows_seen = snapshot._head, dict[str, statement.Row]()  # pyright: ignore[reportPrivateUsage]

    def stale_row(session_id: str, rows: Sequence[statement.Row], incarnation: int | None) -> statement.Row:
        return rows_seen.setdefault(session_id, found(session_id, rows, incarnation))

    everywhere(patch, look, stale)
    patch.setattr(snapshot, "_head", stale_row)


def an_answer_without_a_commit(patch: pytest.MonkeyPatch) -> None:
    """Acknowledged, and rolled back."""
    control = sqlite_connection.Engine.control

    def forgetful(self: sqlite_connection.Engine, sql: str) -> Any:
        return control(self, "ROLLBACK" if sql == "COMMIT" and settled["open"] else sql)

    settled = {"open": False}
    begin = sqlite_connection.Engine.begin

    def counted(self: sqlite_connection.Engine, sql: str) -> Any:
        # The schema may be made; what comes after it is lost.
        settled["open"] = bool(list(self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'lash_meta'")))
        return begin(self, sql)

    patch.setattr(sqlite_connection.Engine, "control", forgetful)
    patch.setattr(sqlite_connection.Engine, "begin", counted)


# --- commits --------------------------------------------------------------------------------------------------------------


def no_receipt_lookup(patch: pytest.MonkeyPatch) -> None:
    def forgetful(prepared: Any) -> Op[None]:
        yield from ()

    patch.setattr(commits, "_receipt_of_turn", forgetful)


def receipt_without_comparing(patch: pytest.MonkeyPatch) -> None:
    original = commits._receipt_of_turn  # pyright: ignore[reportPrivateUsage]

    def trusting(prepared: Any) -> Op[Any]:
        row = yield from commits._row_of_turn(prepared.session_id, prepared.turn_id)  # pyright: ignore[reportPrivateUsage]
        return (yield from original(prepared if row is None else structs.replace(prepared, intent=bytes(row[5]))))

    patch.setattr(commits, "_receipt_of_turn", trusting)


def replay_without_settling(patch: pytest.MonkeyPatch) -> None:
    def lazy(prepared: Any, receipt: Any, now_ms: int) -> Op[Any]:
        yield from ()
        return receipt

    patch.setattr(commits, "_replay", lazy)


def replay_of_lost_claims(patch: pytest.MonkeyPatch) -> None:
    def greedy(session_id: str, completions: Sequence[Any]) -> Op[list[Any]]:
        wanted = [batch_id for completion in completions for batch_id in completion.batch_ids]
        return list((yield from queue.batches_by_id(session_id, wanted)).values())

    patch.setattr(claims, "still_owned", greedy)


def incarnations_ignored(patch: pytest.MonkeyPatch) -> None:
    live = heads.live

    def any_life(head: Any, session_id: str, incarnation: int | None = None) -> Any:
        return live(head, session_id)

    everywhere(patch, live, any_life)


def attachments_unchecked(patch: pytest.MonkeyPatch) -> None:
    def trusting(session_id: str, attachment_ids: Sequence[str], now_ms: int) -> Op[None]:
        yield from ()

    everywhere(patch, attachments.stamp_attachments, trusting)


def nodes_overwritten(patch: pytest.MonkeyPatch) -> None:
    """The same id with other content is taken for the same node."""

    def trusting(*args: Any, **kwargs: Any) -> bytes:
        return b"\0" * 32

    everywhere(patch, graph.node_digest, trusting)


# --- the inbox ------------------------------------------------------------------------------------------------------------


def no_token_predicate(patch: pytest.MonkeyPatch) -> None:
    def trusting(session_id: str, completions: Sequence[Any]) -> Op[list[Any]]:
        wanted = [batch_id for completion in completions for batch_id in completion.batch_ids]
        return list((yield from queue.batches_by_id(session_id, wanted)).values())

    patch.setattr(claims, "require_owned", trusting)


def fences_that_stand_still(patch: pytest.MonkeyPatch) -> None:
    stamp = claims._stamp  # pyright: ignore[reportPrivateUsage]

    def flat(head: Any, chosen: Any, **lease: Any) -> Op[Any]:
        return (yield from stamp(structs.replace(head, fence=0), chosen, **lease))

    patch.setattr(claims, "_stamp", flat)


def live_leases_ignored(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "AND (token IS NULL OR expires_ms <=", "AND (true OR expires_ms <=")
    token_reads(patch, "AND b.token IS NOT NULL AND b.expires_ms <=", "AND b.token IS NOT NULL AND 0 * b.expires_ms <=")


def keys_not_compared(patch: pytest.MonkeyPatch) -> None:
    insert = queue.insert_batches

    def trusting(batches: Sequence[Any], *args: Any, **kwargs: Any) -> Op[Any]:
        return (yield from insert([structs.replace(batch, intent=b"same") for batch in batches], *args, **kwargs))

    everywhere(patch, insert, trusting)


def settled_keys_forgotten(patch: pytest.MonkeyPatch) -> None:
    token_reads(patch, "AND settled_ms >", "AND settled_ms < 0 AND 0 <>")


def the_head_overtaken(patch: pytest.MonkeyPatch) -> None:
    select = claims.select_prefix

    def hasty(ready: Sequence[Any], boundary: Any, max_batches: int) -> tuple[Any, ...]:
        return select(ready, boundary, max_batches) or select(ready[1:], boundary, max_batches)

    everywhere(patch, select, hasty)


def busy_sessions_not_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "_next_ready", claims._next_open)  # pyright: ignore[reportPrivateUsage]


# --- what is stored -------------------------------------------------------------------------------------------------------


def digests_unchecked(patch: pytest.MonkeyPatch) -> None:
    def trusting(expected: bytes, actual: bytes, *, table: str, row: str) -> None:
        return None

    everywhere(patch, encode.check, trusting)


def components_dropped(patch: pytest.MonkeyPatch) -> None:
    plan = checkpoints.plan_versions

    def forgetful(prepared: Sequence[Any], current: Any, revision: int) -> Any:
        versions, after = plan(prepared, current, revision)
        return versions, {new.component: after[new.component] for new in prepared if new.component in after}

    patch.setattr(checkpoints, "plan_versions", forgetful)


def deltas_on_any_base(patch: pytest.MonkeyPatch) -> None:
    version = checkpoints._version  # pyright: ignore[reportPrivateUsage]

    def careless(new: Any, before: Any, revision: int) -> Any:
        fitting = new if before is None or new.base_digest is None else structs.replace(new, base_digest=before.digest)
        return version(fitting, before, revision)

    patch.setattr(checkpoints, "_version", careless)


def endless_chains(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "CHECKPOINT_CHAIN_MAX", 10**6)


def collection_by_age_alone(patch: pytest.MonkeyPatch) -> None:
    def nothing(plan: Any, frames_: Any) -> Op[bool]:
        yield statement.Execute(
            "UPDATE {sessions} SET history_floor = :floor WHERE session_id = :session_id",
            {"floor": plan.floor, "session_id": plan.session_id},
        )
        yield statement.Execute(
            "DELETE FROM {versions} WHERE session_id = :session_id AND revision < :floor",
            {"floor": plan.floor, "session_id": plan.session_id},
        )
        return True

    patch.setattr(collect, "apply", nothing)


def a_table_forgotten_by_delete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "PURGES", tuple(sql for sql in sessions.PURGES if "{usage_entries}" not in sql))


def orphans_swept_although_held(patch: pytest.MonkeyPatch) -> None:
    token_reads(
        patch,
        "SELECT 1 FROM lash_attachments WHERE attachment_id =",
        "SELECT 1 FROM lash_attachments WHERE 1 = 0 AND attachment_id =",
    )


def frames_always_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frames, "_same", answering(False))


def tombstones_on_the_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(paths, "visible", answering(True))


def any_session_tombstoned(patch: pytest.MonkeyPatch) -> None:
    tombstone = tree.tombstone

    def wide(session_id: str, node_ids: Sequence[str], incarnation: int | None = None) -> Op[int]:
        count = yield from tombstone(session_id, node_ids, incarnation)
        yield statement.Execute("UPDATE {nodes} SET tombstone_revision = 1 WHERE node_id {any_text:ids}", {"ids": list(node_ids)})
        return count

    patch.setattr(tree, "tombstone", wide)


# --- values, costs, waiting -----------------------------------------------------------------------------------------------


def values_not_walked(patch: pytest.MonkeyPatch) -> None:
    def plain(_: encode.Encoder, value: Any, path: str) -> str:
        return json.dumps(value, default=list, sort_keys=True)

    patch.setattr(encode.Encoder, "json", plain)


def a_statement_per_row(patch: pytest.MonkeyPatch) -> None:
    def one_by_one(sql: Any, rows: Sequence[dict[str, Any]], **params: Any) -> Op[int]:
        count = 0
        for row in rows:
            count += yield statement.ExecuteMany(sql, [row], params)
        return count

    everywhere(patch, statement.execute_many, one_by_one)


def nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hub, "ring", answering(None))
    patch.setattr(Hub, "found", answering(None))
    soon = waiting.soon

    async def sooner(call: Awaitable[Any]) -> Any:
        return await soon(call, seconds=1.0)

    patch.setattr(waiting, "soon", sooner)


def ring_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Enqueued work is announced and shown by a transaction that has not ended."""
    execute = SqliteTransaction._in_savepoint  # pyright: ignore[reportPrivateUsage]

    def early(self: Any, act: Any, engine: Any) -> Any:
        result = execute(self, act, engine)
        engine.control("COMMIT")
        engine.begin("BEGIN IMMEDIATE")
        return result

    patch.setattr(SqliteTransaction, "_in_savepoint", early)


def full_frames_only(patch: pytest.MonkeyPatch) -> None:
    """Deltas that are really full frames restore to the wrong bytes."""

    def shorter(base: bytes, data: bytes) -> bytes:
        return delta.full(data[:-1])

    patch.setattr(delta, "delta", shorter)


CONTROLS = [
    Control(no_session_lock, ("commits.appends_to_whatever_the_head_is_all_succeed_in_one_line",), POSTGRES),
    Control(
        the_clients_clock,
        (
            "claims.a_lease_lasts_exactly_as_long_as_it_says_on_the_databases_clock",
            "leases.a_lease_ends_at_its_expiry_on_the_databases_clock",
        ),
        BOTH,
    ),
    Control(reads_without_a_snapshot, ("commits.a_reader_never_sees_a_torn_state",), BOTH),
    Control(an_answer_without_a_commit, ("sessions.everything_survives_a_reopen",)),
    Control(
        no_receipt_lookup,
        ("commits.an_identical_retry_returns_the_first_receipt", "commits.concurrent_retries_of_one_turn_commit_it_once"),
        BOTH,
    ),
    Control(receipt_without_comparing, ("commits.a_turn_id_with_other_content_is_a_conflict",)),
    Control(replay_without_settling, ("commits.a_replay_settles_claims_its_token_still_holds",)),
    Control(replay_of_lost_claims, ("commits.a_replay_ignores_claims_that_were_lost",)),
    Control(
        incarnations_ignored,
        (
            "sessions.a_handle_of_an_earlier_incarnation_changes_nothing",
            "grants.a_handle_of_an_earlier_life_uses_no_processes",
        ),
    ),
    Control(
        attachments_unchecked,
        ("commits.a_commit_is_all_or_nothing", "attachments.a_commit_names_only_attachments_of_its_session"),
    ),
    Control(nodes_overwritten, ("graph.a_node_id_is_bound_to_its_first_content",)),
    Control(
        no_token_predicate,
        (
            "claims.a_paused_worker_cannot_settle_after_its_work_was_reclaimed",
            "claims.a_forged_token_settles_nothing",
            "commits.work_re_claimed_before_the_commit_fails_the_whole_commit",
        ),
        BOTH,
    ),
    Control(fences_that_stand_still, ("claims.a_lease_lasts_exactly_as_long_as_it_says_on_the_databases_clock",)),
    Control(live_leases_ignored, ("claims.held_work_is_not_handed_out_and_its_owner_may_renew",)),
    Control(keys_not_compared, ("queue.a_source_key_with_other_content_is_a_conflict",)),
    Control(settled_keys_forgotten, ("queue.a_settled_key_is_remembered_for_its_retention",)),
    Control(the_head_overtaken, ("claims.work_for_after_the_turn_blocks_a_claim_inside_a_turn",)),
    Control(busy_sessions_not_passed_over, ("claims.the_next_claim_leaves_a_session_with_a_live_claim_alone",)),
    Control(
        digests_unchecked,
        (
            "corruption.a_changed_node_is_corrupt",
            "corruption.a_changed_batch_is_corrupt",
            "corruption.a_changed_receipt_is_corrupt",
            "corruption.a_changed_config_is_corrupt",
            "corruption.a_changed_frame_is_corrupt",
            "corruption.changed_metadata_is_corrupt",
            "corruption.a_changed_registration_is_corrupt",
            "corruption.a_changed_event_is_corrupt",
            "corruption.a_changed_output_is_corrupt",
            "corruption.a_changed_external_reference_is_corrupt",
        ),
        BOTH,
    ),
    Control(components_dropped, ("checkpoints.a_receipt_names_every_component_by_its_digest",)),
    Control(deltas_on_any_base, ("checkpoints.processes_that_take_turns_never_build_on_a_base_they_do_not_hold",)),
    Control(endless_chains, ("checkpoints.a_chain_of_deltas_is_bounded",)),
    Control(full_frames_only, ("checkpoints.every_version_of_a_growing_component_is_exact",)),
    Control(
        collection_by_age_alone,
        ("checkpoints.collect_keeps_the_head_and_removes_older_versions", "checkpoints.commits_go_on_after_a_collect"),
    ),
    Control(a_table_forgotten_by_delete, ("sessions.deleting_removes_every_row_of_the_session_and_none_of_another",)),
    Control(orphans_swept_although_held, ("attachments.a_sweep_keeps_bytes_another_session_holds",)),
    Control(frames_always_written, ("frames.only_changed_frames_are_written",)),
    Control(tombstones_on_the_path, ("graph.a_tombstoned_ancestor_ends_the_path",)),
    Control(any_session_tombstoned, ("graph.sessions_share_no_nodes",)),
    Control(
        values_not_walked, ("values.json_comes_back_as_it_went_in", "values.what_has_no_faithful_form_is_refused_before_any_sql")
    ),
    Control(
        a_statement_per_row,
        ("costs.a_commit_costs_the_same_for_one_and_for_many", "costs.an_append_costs_the_same_for_one_and_for_many"),
        BOTH,
    ),
    Control(nobody_is_woken, ("waiting.new_work_wakes_who_waits_for_its_session_and_for_any",)),
    Control(
        ring_before_the_commit,
        ("transactions.an_exception_rolls_everything_back", "transactions.a_transaction_commits_everything_together"),
    ),
]

CASES = [
    pytest.param(control.plant, law, engine, id=f"{control.plant.__name__}-{law}-{engine}")
    for control in [*CONTROLS, *PROCESS_CONTROLS]
    for law in control.laws
    for engine in control.engines
]


@pytest.mark.filterwarnings("ignore")  # a store with a planted bug may leave anything behind
@pytest.mark.parametrize(("plant", "law", "engine"), CASES)
def test_a_planted_bug_breaks_its_law(
    plant: Plant, law: str, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    backend = _backend(engine, tmp_path, request)
    # Bugs are planted in the operations, which a shortcut would pass by; `test_shortcuts` holds the two against each other.
    monkeypatch.setattr(PostgresDriver, "shortcuts", False)
    plant(monkeypatch)
    with pytest.raises(Exception) as failure:  # noqa: PT011 - how it fails is the bug's own affair; that it fails is the point
        keep(law_called(law), backend)
    # A control that is itself broken proves nothing.
    assert isinstance(failure.value, StoreError) or not isinstance(failure.value, TypeError | AttributeError | LookupError)


def _backend(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Backend:
    if engine == "sqlite":
        return SqliteBackend(tmp_path / "store.db")
    return PostgresBackend(request.getfixturevalue("pg_url"), schema=request.getfixturevalue("pg_schema"))
