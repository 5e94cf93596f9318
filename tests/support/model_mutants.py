"""Bugs to plant in the operations: each breaks one promise, and the machine must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from lash_store.ops import (
    attachments,
    checkpoints,
    claims,
    collect,
    commits,
    forks,
    frames,
    graph,
    paths,
    queue,
    sessions,
    tree,
    usage,
)
from lash_store.ops.statement import Op, execute

Mutant = Callable[[pytest.MonkeyPatch], None]


def nothing(*_: Any, **__: Any) -> Op[Any]:
    """An operation that does nothing."""
    yield from ()


def answering(value: Any) -> Callable[..., Op[Any]]:
    """An operation that looks nowhere and answers this."""

    def op(*_: Any, **__: Any) -> Op[Any]:
        yield from ()
        return value

    return op


def a_commit_forgets_to_compare_the_revision(patch: pytest.MonkeyPatch) -> None:
    true = commits.commit

    def commit(prepared: Any, **kw: Any) -> Op[Any]:
        return true(replace(prepared, expected_revision=None), **kw)

    patch.setattr(commits, "commit", commit)


def a_turn_id_replays_whatever_is_said(patch: pytest.MonkeyPatch) -> None:
    true = commits._receipt_of_turn  # pyright: ignore[reportPrivateUsage]

    def receipt(prepared: Any) -> Op[Any]:
        row = yield from commits._row_of_turn(prepared.session_id, prepared.turn_id)  # pyright: ignore[reportPrivateUsage]
        return (yield from true(prepared if row is None else replace(prepared, intent=bytes(row[5]))))

    patch.setattr(commits, "_receipt_of_turn", receipt)


def a_replay_leaves_its_claims_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "still_owned", answering([]))


def a_commit_loses_carried_components(patch: pytest.MonkeyPatch) -> None:
    true = checkpoints.plan_versions

    def plan(prepared: Sequence[Any], current: Any, revision: int) -> tuple[Any, Any]:
        versions, after = true(prepared, current, revision)
        return versions, {new.component: after[new.component] for new in prepared if new.component in after}

    patch.setattr(checkpoints, "plan_versions", plan)


def a_delta_is_made_against_any_base(patch: pytest.MonkeyPatch) -> None:
    true = checkpoints.plan_versions

    def plan(prepared: Sequence[Any], current: Any, revision: int) -> tuple[Any, Any]:
        based = [replace(new, base_digest=current[new.component].digest) if _fits(new, current) else new for new in prepared]
        return true(based, current, revision)

    patch.setattr(checkpoints, "plan_versions", plan)


def _fits(new: Any, current: Any) -> bool:
    before = current.get(new.component)
    return new.base_digest is not None and new.frame is not None and before is not None and before.digest is not None


def settling_asks_for_no_token(patch: pytest.MonkeyPatch) -> None:
    def owned(session_id: str, completions: Sequence[Any]) -> Op[Any]:
        wanted = [batch_id for completion in completions for batch_id in completion.batch_ids]
        found = yield from queue.batches_by_id(session_id, wanted)
        return [row for row in found.values() if row.token is not None]

    patch.setattr(claims, "require_owned", owned)


def a_claim_takes_whatever_is_ready(patch: pytest.MonkeyPatch) -> None:
    def select(ready: Sequence[Any], boundary: Any, limit: int) -> tuple[Any, ...]:
        return tuple(ready[:limit])

    patch.setattr(claims, "select_prefix", select)


def a_claim_does_not_raise_the_fence(patch: pytest.MonkeyPatch) -> None:
    true = claims._stamp  # pyright: ignore[reportPrivateUsage]

    def stamp(head: Any, chosen: Any, **kw: Any) -> Op[Any]:
        return true(replace(head, fence=0), chosen, **kw)

    patch.setattr(claims, "_stamp", stamp)


def attempts_are_not_limited(patch: pytest.MonkeyPatch) -> None:
    def exhausted(_: Any) -> bool:
        return False

    patch.setattr(claims, "_exhausted", exhausted)


def an_expired_lease_still_holds(patch: pytest.MonkeyPatch) -> None:
    def held(self: Any, _: int) -> bool:
        return self.token is not None

    patch.setattr(queue.StoredBatch, "held", held)


def ready_work_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    true = queue._advance  # pyright: ignore[reportPrivateUsage]

    def advance(fresh: Any, next_seq: Any) -> Op[None]:
        yield from true(fresh, next_seq)
        yield from execute("UPDATE {sessions} SET ready_ms = NULL, open_ms = NULL")

    patch.setattr(queue, "_advance", advance)


def settled_keys_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue, "_settled_by_key", answering({}))


def a_replacement_miscounts_live_nodes(patch: pytest.MonkeyPatch) -> None:
    true = graph.tombstone_absent

    def absent(*args: Any, **kw: Any) -> Op[int]:
        died = yield from true(*args, **kw)
        return max(0, died - 1)

    patch.setattr(graph, "tombstone_absent", absent)


def a_node_is_hidden_one_revision_late(patch: pytest.MonkeyPatch) -> None:
    def visible(row: Any, at_revision: int | None) -> bool:
        created_revision, tombstone_revision = row[10], row[11]
        if at_revision is None:
            return tombstone_revision is None
        return created_revision <= at_revision and (tombstone_revision is None or tombstone_revision >= at_revision)

    patch.setattr(paths, "visible", visible)


def other_content_passes_under_a_known_node_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph, "check_matches", nothing)


def vacuum_cuts_off_branches(patch: pytest.MonkeyPatch) -> None:
    true = tree._cuts  # pyright: ignore[reportPrivateUsage]

    def cuts(rows: Sequence[Any]) -> list[dict[str, int]]:
        return true([(row[0], None, None, *row[3:]) for row in rows])

    patch.setattr(tree, "_cuts", cuts)


def usage_overwrites_its_total(patch: pytest.MonkeyPatch) -> None:
    def plus(session_id: str, before: Any, entry: Any) -> Any:
        return usage.entry_total(entry)

    patch.setattr(usage, "_plus", plus)


def a_changed_frame_gets_a_new_birthday(patch: pytest.MonkeyPatch) -> None:
    true = frames._frame_row  # pyright: ignore[reportPrivateUsage]

    def row(ordinal: int, frame: Any, _: Any, now_ms: int) -> dict[str, Any]:
        return true(ordinal, frame, None, now_ms)

    patch.setattr(frames, "_frame_row", row)


def a_fork_leaves_config_and_frames_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forks, "_copy_state", nothing)


def collect_keeps_one_state_too_many(patch: pytest.MonkeyPatch) -> None:
    true = collect.plan

    def plan(session_id: str, known: Any, keep: int) -> Any:
        return true(session_id, known, keep + 1)

    patch.setattr(collect, "plan", plan)


def a_sweep_does_not_ask_who_holds_the_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attachments, "_is_held", answering(False))


def attachments_need_no_intent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "stamp_attachments", nothing)


def delete_keeps_the_settled_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "PURGES", sessions.PURGES[:-1])


MUTANTS: list[Mutant] = [
    a_commit_forgets_to_compare_the_revision,
    a_turn_id_replays_whatever_is_said,
    a_replay_leaves_its_claims_open,
    a_commit_loses_carried_components,
    a_delta_is_made_against_any_base,
    settling_asks_for_no_token,
    a_claim_takes_whatever_is_ready,
    a_claim_does_not_raise_the_fence,
    attempts_are_not_limited,
    an_expired_lease_still_holds,
    ready_work_is_not_noted,
    settled_keys_are_forgotten,
    a_replacement_miscounts_live_nodes,
    a_node_is_hidden_one_revision_late,
    other_content_passes_under_a_known_node_id,
    vacuum_cuts_off_branches,
    usage_overwrites_its_total,
    a_changed_frame_gets_a_new_birthday,
    a_fork_leaves_config_and_frames_behind,
    collect_keeps_one_state_too_many,
    a_sweep_does_not_ask_who_holds_the_bytes,
    attachments_need_no_intent,
    delete_keeps_the_settled_keys,
]
