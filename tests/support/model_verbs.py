"""The reference model's verbs on inboxes and attachments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from lash_store import (
    AttachmentEntry,
    AttachmentRef,
    Batch,
    BatchDraft,
    Boundary,
    Claim,
    Completion,
    Depth,
    NotFound,
    ReplayConflict,
    SweepReport,
)
from tests.support.model_inbox import Inbox
from tests.support.model_state import Content, ModelSession, State
from tests.support.model_turns import completion_of


class Verbs(State):
    """What the store does to inboxes and attachments."""

    # --- inbox ----------------------------------------------------------------------------------------------------------

    def inbox(self, session_id: str, incarnation: int | None = None) -> Inbox:
        return self.live(session_id, incarnation).inbox

    def enqueue(
        self, session_id: str, draft: BatchDraft, *, incarnation: int | None = None, learned: Batch | None = None
    ) -> Batch:
        minted = "?" if learned is None else learned.batch_id
        inbox = self.inbox(session_id, incarnation)
        self.check_ids([(session_id, draft)])
        return inbox.enqueue(draft, minted, now_ms=self.now_ms, retention_ms=self.retention_ms)

    def claim(
        self,
        session_id: str,
        owner: str,
        *,
        lease_ms: int,
        boundary: Boundary = Boundary.IDLE,
        max_batches: int = 1,
        token: str | None = None,
        incarnation: int | None = None,
        learned: Claim | None = None,
    ) -> Claim | None:
        inbox = self.inbox(session_id, incarnation)
        before = None if token is None else inbox.claim_of(token)
        own = _token(token, learned)
        return before or inbox.claim(owner, own, boundary=boundary, limit=max_batches, lease_ms=lease_ms, now_ms=self.now_ms)

    def claim_exact(
        self,
        session_id: str,
        owner: str,
        batch_ids: Sequence[str],
        *,
        lease_ms: int,
        boundary: Boundary = Boundary.IDLE,
        token: str | None = None,
        learned: Claim | None = None,
    ) -> Claim | None:
        inbox = self.inbox(session_id)
        before = None if token is None else inbox.claim_of(token)
        own = _token(token, learned)
        return before or inbox.claim_exact(owner, own, batch_ids, boundary=boundary, lease_ms=lease_ms, now_ms=self.now_ms)

    def claim_next(
        self,
        owner: str,
        *,
        lease_ms: int,
        max_batches: int = 1,
        concurrent: bool = False,
        token: str | None = None,
        learned: Claim | None = None,
    ) -> Claim | None:
        inboxes = [s.inbox for s in sorted(self.sessions.values(), key=lambda s: s.session_id.encode()) if not s.deleted]
        held = (None if token is None else inbox.claim_of(token) for inbox in inboxes)
        before = next((claim for claim in held if claim is not None), None)
        while before is None:
            due = [(inbox.due_ms(concurrent=concurrent), i) for i, inbox in enumerate(inboxes)]
            open_now = [(ms, i) for ms, i in due if ms is not None and ms <= self.now_ms]
            if not open_now:
                return None
            before = inboxes[min(open_now)[1]].claim(
                owner,
                _token(token, learned),
                boundary=Boundary.IDLE,
                limit=max_batches,
                lease_ms=lease_ms,
                now_ms=self.now_ms,
            )
        return before

    def renew(self, claim: Claim, *, lease_ms: int) -> Claim:
        return self.inbox(claim.session_id).renew(claim, lease_ms, self.now_ms)

    def abandon(self, claim: Claim | Completion) -> int:
        return self.inbox(claim.session_id).abandon(completion_of(claim))

    def settle(self, claim: Claim | Completion) -> int:
        inbox = self.inbox(claim.session_id)
        return inbox.settle(inbox.owned(completion_of(claim)), self.now_ms)

    def holds(self, claim: Claim) -> bool:
        """Whether a claim's token still holds all its batches."""
        session = self.sessions[claim.session_id]
        return len(session.inbox.still_owned(claim.completion())) == len(claim.batches)

    def cancel(self, session_id: str, batch_id: str) -> Batch | None:
        return self.inbox(session_id).cancel(batch_id, self.now_ms)

    def discard(self, session_id: str, batch_id: str) -> bool:
        return self.cancel(session_id, batch_id) is not None

    def park(self, session_id: str, batch_id: str, *, reason: str) -> Batch:
        return self.inbox(session_id).park(batch_id, reason, self.now_ms)

    def unpark(self, session_id: str, batch_id: str) -> Batch:
        return self.inbox(session_id).unpark(batch_id, self.now_ms)

    def works(self, session_id: str, *, pending: bool) -> tuple[Batch, ...]:
        return self.inbox(session_id).list(self.now_ms, pending=pending)

    def depth(self, session_id: str) -> Depth:
        return self.inbox(session_id).depth(self.now_ms)

    # --- attachments ----------------------------------------------------------------------------------------------------

    def record_intent(self, session_id: str, ref: AttachmentRef) -> AttachmentEntry:
        known = self.contents.get(ref.attachment_id, Content(ref.byte_len))
        self.live(session_id)
        if known.byte_len != ref.byte_len:
            raise ReplayConflict("attachment", key=ref.attachment_id, owner="the byte store")
        return self._announce(session_id, ref, known)

    def put(self, session_id: str, data: bytes, **fields: Any) -> AttachmentRef:
        """Measured bytes correct a length that was only announced."""
        ref = AttachmentRef(attachment_id=hashlib.sha256(data).hexdigest(), byte_len=len(data), **fields)
        self._announce(session_id, ref, Content(len(data), stored=True))
        return ref

    def _announce(self, session_id: str, ref: AttachmentRef, known: Content) -> AttachmentEntry:
        session = self.live(session_id)
        self.contents[ref.attachment_id] = replace(known, released_ms=None)
        before = session.attachments.get(ref.attachment_id)
        if before is not None and before.committed_ms is not None:
            return before
        entry = AttachmentEntry(session_id=session_id, ref=ref, intent_ms=self.now_ms, committed_ms=None)
        session.attachments = {**session.attachments, ref.attachment_id: entry}
        return entry

    def commit_refs(self, session_id: str, attachment_ids: Sequence[str]) -> int:
        ids = sorted(set(attachment_ids))
        self.stamp(self.live(session_id), ids)
        return len(ids)

    def stamp(self, session: ModelSession, ids: Sequence[str]) -> None:
        """Mark announced attachments as named by a commit."""
        for attachment_id in ids:
            if attachment_id not in session.attachments:
                raise NotFound("attachment", attachment_id, within=session.session_id)
        stamped = {i: session.attachments[i] for i in ids if session.attachments[i].committed_ms is None}
        fresh = {i: replace(entry, committed_ms=self.now_ms) for i, entry in stamped.items()}
        session.attachments = {**session.attachments, **fresh}

    def forget(self, session_id: str, attachment_id: str) -> bool:
        session = self.live(session_id)
        if attachment_id not in session.attachments:
            return False
        session.attachments = {i: entry for i, entry in session.attachments.items() if i != attachment_id}
        self.contents[attachment_id] = replace(self.contents[attachment_id], released_ms=self.now_ms)
        return True

    def sweep(self, *, older_than_ms: int, dry_run: bool = False) -> SweepReport:
        """Drop old intents, then every released or abandoned content nobody holds."""
        cutoff_ms = self.now_ms - older_than_ms
        stale = {(e.session_id, e.ref.attachment_id) for e in self.uncommitted(older_than_ms=older_than_ms)}
        released = {i for i, c in self.contents.items() if c.released_ms is not None and c.released_ms <= cutoff_ms}
        looked = released | {attachment_id for _, attachment_id in stale}
        holders = {(s.session_id, i) for s in self.sessions.values() for i in s.attachments} - stale
        gone = looked - {attachment_id for _, attachment_id in holders}
        size = sum(self.contents[attachment_id].byte_len for attachment_id in gone)
        if not dry_run:
            for session_id, attachment_id in stale:
                entries = self.sessions[session_id].attachments
                self.sessions[session_id].attachments = {i: e for i, e in entries.items() if i != attachment_id}
            kept = {i: replace(c, released_ms=None) if i in looked else c for i, c in self.contents.items()}
            self.contents = {i: c for i, c in kept.items() if i not in gone}
        return SweepReport(
            scanned=len(looked), reclaimed=len(gone), kept=len(looked) - len(gone), reclaimed_bytes=size, complete=True
        )

    def uncommitted(self, *, older_than_ms: int) -> list[AttachmentEntry]:
        """Old intents no commit named, oldest first."""
        entries = [entry for session in self.sessions.values() for entry in session.attachments.values()]
        old = [e for e in entries if e.committed_ms is None and e.intent_ms <= self.now_ms - older_than_ms]
        return sorted(old, key=lambda e: (e.intent_ms, e.ref.attachment_id, e.session_id.encode()))

    def entry(self, session_id: str, attachment_id: str) -> AttachmentEntry:
        found = self.live(session_id).attachments.get(attachment_id)
        if found is None:
            raise NotFound("attachment", attachment_id, within=session_id)
        return found

    def manifest(self, session_id: str) -> list[AttachmentEntry]:
        return [entry for _, entry in sorted(self.live(session_id).attachments.items())]

    def check_ids(self, drafts: Sequence[tuple[str, BatchDraft]]) -> None:
        """A batch id names one batch, whatever key it came under."""
        keys = {(target, work.batch_id): work.key for target, _ in drafts for work in self.sessions[target].inbox.works.values()}
        for target, draft in drafts:
            if draft.batch_id is not None:
                key = draft.source_key or draft.batch_id
                if keys.setdefault((target, draft.batch_id), key) != key:
                    raise ReplayConflict("batch", key=draft.batch_id, owner=target)


def _token(token: str | None, learned: Claim | None) -> str:
    return token or ("?" if learned is None else learned.token)
