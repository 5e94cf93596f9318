"""Leases on processes: one owner at a time, fenced, on the database's clock, over at their expiry."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from lash_store.errors import Corrupt, LeaseHeld
from lash_store.model.process import EXTERNAL, Lease, ProcessState
from lash_store.ops.processes import (
    ProcessRow,
    lock_process,
    lock_processes,
    lock_state,
    require_live,
    row_of,
    rows_of,
    verified,
)
from lash_store.ops.statement import Op, database_now, execute, execute_many, fetch, ring


class Found(Struct, frozen=True):
    """What a search leased, and the processes it took out of the search because their registration is damaged."""

    leased: list[tuple[ProcessRow, Lease]]
    corrupt: list[str]


class Wanted(Struct, frozen=True, kw_only=True):
    """A lease somebody asks for. The token is fresh, unless a claim whose answer was lost is repeated."""

    owner: str
    incarnation: str
    token: str
    lease_ms: int


def claim(process_id: str, wanted: Wanted) -> Op[tuple[ProcessRow, Lease]]:
    """Lease a process: free, expired, or held by this very incarnation of this owner, whose earlier token then ends."""
    row = yield from lock_process(process_id)
    now_ms = yield from database_now()
    mine = (row.lease_owner, row.lease_incarnation) == (wanted.owner, wanted.incarnation)
    if row.leased(now_ms) and not mine:
        raise LeaseHeld(process_id, owner=row.lease_owner or "", expires_ms=row.lease_expires_ms or 0)
    if row.leased(now_ms) and row.lease_token == wanted.token:
        return row, _lease_of(row)
    verified(row)
    lease = _lease(row, wanted, now_ms)
    yield from _write([lease])
    return row, lease


def claim_next(wanted: Sequence[Wanted], kinds: Sequence[str] | None, *, wait_for_locks: bool) -> Op[Found | None]:
    """Lease the processes that have been runnable longest and nobody holds; `external` ones are never among them.

    The first look passes over what others are just claiming. Only a look that waits for them may say None; nothing found
    means that it was taken meanwhile. A damaged process must not stop every worker: it is set aside until `break_lease`.
    """
    now_ms = yield from database_now()
    if wait_for_locks:
        ids = yield from _oldest(now_ms, kinds)
        if not ids:
            return None
        yield from lock_processes(ids)
    else:
        ids = yield from _unlocked(now_ms, kinds, len(wanted))
    now_ms = yield from database_now()
    rows = yield from rows_of(ids)
    free = [rows[each] for each in ids if each in rows and _free_to_run(rows[each], now_ms)]
    corrupt = [row.process_id for row in free if _is_damaged(row)]
    yield from _set_aside(corrupt)
    sound = [row for row in free if row.process_id not in corrupt]
    leased = [(row, _lease(row, want, now_ms)) for row, want in zip(sound, wanted, strict=False)]
    yield from _write([lease for _, lease in leased])
    return Found(leased, corrupt)


def _is_damaged(row: ProcessRow) -> bool:
    try:
        verified(row)
    except Corrupt:
        return True
    return False


def _set_aside(process_ids: Sequence[str]) -> Op[None]:
    if process_ids:
        yield from execute(
            "UPDATE {processes} SET runnable_ms = NULL WHERE process_id {any_text:process_ids}",
            process_ids=list(process_ids),
        )


def _free_to_run(row: ProcessRow, now_ms: int) -> bool:
    return row.state == ProcessState.RUNNING and row.kind != EXTERNAL and not row.leased(now_ms)


def _unlocked(now_ms: int, kinds: Sequence[str] | None, limit: int) -> Op[list[str]]:
    rows = yield from fetch(
        """
        SELECT process_id FROM {processes}
        WHERE runnable_ms <= :now_ms AND (CAST(:every AS {int}) = 1 OR kind {any_text:kinds})
        ORDER BY runnable_ms, process_id LIMIT :limit {skip_locked}
        """,
        now_ms=now_ms,
        every=int(kinds is None),
        kinds=list(kinds or ()),
        limit=limit,
    )
    return [row[0] for row in rows]


def _oldest(now_ms: int, kinds: Sequence[str] | None) -> Op[list[str]]:
    """Without a lock: a lock statement that searches would hold one process while it waits for the next, out of order."""
    rows = yield from fetch(
        """
        SELECT process_id FROM {processes}
        WHERE runnable_ms <= :now_ms AND (CAST(:every AS {int}) = 1 OR kind {any_text:kinds})
        ORDER BY runnable_ms, process_id LIMIT 1
        """,
        now_ms=now_ms,
        every=int(kinds is None),
        kinds=list(kinds or ()),
    )
    return [row[0] for row in rows]


def _lease(row: ProcessRow, wanted: Wanted, now_ms: int) -> Lease:
    return Lease(
        process_id=row.process_id,
        owner=wanted.owner,
        incarnation=wanted.incarnation,
        token=wanted.token,
        fence=row.lease_fence + 1,
        claimed_ms=now_ms,
        expires_ms=now_ms + wanted.lease_ms,
    )


def _write(leases: Sequence[Lease]) -> Op[None]:
    """Write leases of locked processes: each fence rises by one from where it was read."""
    count = yield from execute_many(
        """
        UPDATE {processes}
        SET lease_owner = rows.owner, lease_incarnation = rows.incarnation, lease_token = rows.token,
            lease_fence = rows.fence, lease_claimed_ms = rows.claimed_ms, lease_expires_ms = rows.expires_ms,
            runnable_ms = CASE WHEN {processes}.runnable_ms IS NULL THEN NULL ELSE rows.expires_ms END
        FROM {rows(process_id text, owner text, incarnation text, token text, fence int, claimed_ms int, expires_ms int)}
        WHERE {processes}.process_id = rows.process_id AND {processes}.lease_fence = rows.fence - 1
        """,
        [asdict(lease) for lease in leases],
    )
    assert count == len(leases), "a locked process vanished"


def renew(lease: Lease, lease_ms: int) -> Op[Lease]:
    """Extend a live lease; its token and fence stay."""
    row = yield from lock_state(lease.process_id)
    now_ms = yield from database_now()
    require_live(row, lease, now_ms)
    count = yield from execute(
        """
        UPDATE {processes}
        SET lease_expires_ms = :expires_ms,
            runnable_ms = CASE WHEN runnable_ms IS NULL THEN NULL ELSE CAST(:expires_ms AS {int}) END
        WHERE process_id = :process_id AND lease_token = :token AND lease_fence = :fence
        """,
        process_id=lease.process_id,
        token=lease.token,
        fence=lease.fence,
        expires_ms=now_ms + lease_ms,
    )
    assert count == 1, "the locked process vanished"
    return Lease(
        process_id=lease.process_id,
        owner=lease.owner,
        incarnation=lease.incarnation,
        token=lease.token,
        fence=lease.fence,
        claimed_ms=lease.claimed_ms,
        expires_ms=now_ms + lease_ms,
    )


def release(lease: Lease) -> Op[bool]:
    """Give a process back; a lease that is not the present one changes nothing. The fence stays."""
    yield from lock_processes([lease.process_id])
    row = yield from row_of(lease.process_id)
    if row.pruned_ms is not None or row.lease_token != lease.token or row.lease_fence != lease.fence:
        return False
    now_ms = yield from database_now()
    yield from _free(lease.process_id, row.lease_fence, now_ms)
    return True


def break_lease(process_id: str) -> Op[int]:
    """Take a process from whoever holds it; the fence rises, so that the old holder's writes are refused. The new fence."""
    row = yield from lock_state(process_id)
    now_ms = yield from database_now()
    yield from _free(process_id, row.lease_fence + 1, now_ms)
    return row.lease_fence + 1


def _free(process_id: str, fence: int, now_ms: int) -> Op[None]:
    count = yield from execute(
        """
        UPDATE {processes}
        SET lease_owner = NULL, lease_incarnation = NULL, lease_token = NULL, lease_claimed_ms = NULL,
            lease_expires_ms = NULL, lease_fence = :fence,
            runnable_ms = CASE WHEN state = 'running' AND kind <> 'external' THEN CAST(:now_ms AS {int}) END
        WHERE process_id = :process_id
        """,
        process_id=process_id,
        fence=fence,
        now_ms=now_ms,
    )
    assert count == 1, "the locked process vanished"
    yield from ring("runnable", "any")


def _lease_of(row: ProcessRow) -> Lease:
    assert row.lease_owner is not None
    assert row.lease_incarnation is not None
    assert row.lease_token is not None
    assert row.lease_claimed_ms is not None
    assert row.lease_expires_ms is not None
    return Lease(
        process_id=row.process_id,
        owner=row.lease_owner,
        incarnation=row.lease_incarnation,
        token=row.lease_token,
        fence=row.lease_fence,
        claimed_ms=row.lease_claimed_ms,
        expires_ms=row.lease_expires_ms,
    )
