"""Who holds what: the claims of all inboxes and the leases of all processes, also those whose time has passed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from lash_store.errors import InvalidArgument
from lash_store.model.maintenance import HeldLease, LeaseKind, LeasePage
from lash_store.model.queue import Completion
from lash_store.ops.statement import Op, Row, database_now, fetch


class After(Struct, frozen=True):
    """Where a page ended: at a claim of a session, or at a process."""

    kind: Literal["claim", "process"] = "claim"
    session_id: str = ""
    id: str = ""

    def text(self) -> str:
        """The cursor that leads back here."""
        return json.dumps([self.kind, self.session_id, self.id], ensure_ascii=False)


def after_cursor(cursor: str | None) -> After:
    """Where the next page begins."""
    if cursor is None:
        return After()
    try:
        kind, session_id, id = json.loads(cursor)
    except (TypeError, ValueError):
        kind, session_id, id = None, "", ""
    if kind not in ("claim", "process") or not isinstance(session_id, str) or not isinstance(id, str):
        raise InvalidArgument("cursor", "is not one this list returned")
    return After(kind, session_id, id)


def page(after: After, limit: int) -> Op[LeasePage]:
    """Claims by session, then processes by id."""
    now_ms = yield from database_now()
    found: list[HeldLease] = []
    if after.kind == "claim":
        found = yield from _claims(after, limit, now_ms)
        after = After("process")
    if len(found) < limit:
        found += yield from _processes(after.id, limit - len(found), now_ms)
    last = found[-1] if len(found) == limit else None
    cursor = None if last is None else After(last.kind.value, last.session_id or "", last.id).text()
    return LeasePage(leases=tuple(found), cursor=cursor, now_ms=now_ms)


def _claims(after: After, limit: int, now_ms: int) -> Op[list[HeldLease]]:
    rows = yield from fetch(
        """
        SELECT session_id, claim_id, min(owner), min(token), max(fence), min(claimed_ms), min(expires_ms)
        FROM {batches}
        WHERE token IS NOT NULL AND (session_id, claim_id) > (:session_id, :claim_id)
        GROUP BY session_id, claim_id
        ORDER BY session_id, claim_id LIMIT :limit
        """,
        session_id=after.session_id,
        claim_id=after.id,
        limit=limit,
    )
    batches = yield from _batches_of(rows)
    return [_claim(row, batches.get((row[0], row[1]), ()), now_ms) for row in rows]


def _batches_of(claims: Sequence[Row]) -> Op[dict[tuple[str, str], tuple[str, ...]]]:
    rows = yield from fetch(
        """
        SELECT session_id, claim_id, batch_id FROM {batches}
        WHERE token IS NOT NULL AND session_id {any_text:session_ids} AND claim_id {any_text:claim_ids}
        ORDER BY session_id, enqueue_seq
        """,
        session_ids=list({row[0] for row in claims}),
        claim_ids=[row[1] for row in claims],
    )
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for session_id, claim_id, batch_id in rows:
        found[session_id, claim_id] = (*found.get((session_id, claim_id), ()), batch_id)
    return found


def _claim(row: Row, batch_ids: tuple[str, ...], now_ms: int) -> HeldLease:
    session_id, claim_id, owner, token, fence, claimed_ms, expires_ms = row
    return HeldLease(
        kind=LeaseKind.CLAIM,
        id=claim_id,
        session_id=session_id,
        owner=owner,
        fence=fence,
        claimed_ms=claimed_ms,
        expires_ms=expires_ms,
        live=expires_ms > now_ms,
        claim=Completion(session_id=session_id, claim_id=claim_id, token=token, fence=fence, batch_ids=batch_ids),
    )


def _processes(after: str, limit: int, now_ms: int) -> Op[list[HeldLease]]:
    rows = yield from fetch(
        """
        SELECT process_id, originator_session_id, lease_owner, lease_fence, lease_claimed_ms, lease_expires_ms
        FROM {processes}
        WHERE state = 'running' AND pruned_ms IS NULL AND lease_token IS NOT NULL AND process_id > :after
        ORDER BY process_id LIMIT :limit
        """,
        after=after,
        limit=limit,
    )
    return [_process(row, now_ms) for row in rows]


def _process(row: Row, now_ms: int) -> HeldLease:
    process_id, session_id, owner, fence, claimed_ms, expires_ms = row
    return HeldLease(
        kind=LeaseKind.PROCESS,
        id=process_id,
        session_id=session_id,
        owner=owner,
        fence=fence,
        claimed_ms=claimed_ms,
        expires_ms=expires_ms,
        live=expires_ms > now_ms,
    )
