"""Starting a process: its registration and the grant on it, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping

from lash_store.errors import RegistrationConflict
from lash_store.ops.grants import PreparedGrant, insert_grants
from lash_store.ops.heads import Head, live, lock_sessions
from lash_store.ops.processes import PreparedProcess, ProcessRow, find, insert_processes, row_of, stored_registration
from lash_store.ops.statement import Op, database_now


def register(prepared: PreparedProcess, grant: PreparedGrant | None, incarnation: int | None = None) -> Op[ProcessRow]:
    """Register a process, and grant it. The same registration again returns the process as it is now, whoever is first."""
    session_ids = {grant.session_id} if grant is not None else set[str]()
    if prepared.wake_target is not None:
        session_ids.add(prepared.wake_target.session_id)
    heads = yield from _lock(session_ids)
    before = yield from find(prepared.process_id)
    if before is None:
        # A wake target that is gone would make a process nobody hears of; a retry of an old registration may outlive it.
        for session_id in sorted(session_ids):
            live(heads.get(session_id), session_id)
    now_ms = yield from database_now()
    outcome = (yield from insert_processes([prepared], now_ms))[prepared.process_id]
    if outcome == "conflict":
        stored = yield from row_of(prepared.process_id)
        if stored.pruned_ms is None:
            stored_registration(stored)
        raise RegistrationConflict("process", prepared.process_id)
    if grant is not None and outcome == "created":
        # A retry grants nothing again: the handle may have been handed on or given up since.
        live(heads.get(grant.session_id), grant.session_id, incarnation)
        yield from insert_grants([grant], now_ms)
    return (yield from row_of(prepared.process_id))


def _lock(session_ids: set[str]) -> Op[Mapping[str, Head]]:
    if not session_ids:
        return {}
    return (yield from lock_sessions(sorted(session_ids)))
