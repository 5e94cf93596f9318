"""A reference model of the store in plain Python: dicts and lists, no SQL, nothing shared with the operations.

Each verb does what the store's verb of the same name promises, returns what it must return and raises what it must raise.
What only the store can know (ids it mints, digests it computes) is taken from the store's own answer, `learned`, once:
the same content must then always have the same digest, and other content another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from lash_store import (
    FULL,
    ActivePath,
    BatchDraft,
    CollectReport,
    Commit,
    CommitRecord,
    Deletion,
    FullGraph,
    LimitExceeded,
    Node,
    NotFound,
    Receipt,
    Relation,
    ReplayConflict,
    RevisionConflict,
    Session,
    Snapshot,
    TurnConflict,
    Unchanged,
    Usage,
    UsageTotal,
    VacuumReport,
)
from tests.support.model_graph import Graph, meaning
from tests.support.model_inbox import Inbox
from tests.support.model_state import Line, ModelSession, Origin, counts
from tests.support.model_turns import check_arguments, completion_of, said
from tests.support.model_verbs import Verbs

COUNT_MAX = 2**53


class Model(Verbs):
    """The whole store. `now_ms` is its clock; only the test moves it."""

    # --- sessions -------------------------------------------------------------------------------------------------------

    def create(
        self,
        session_id: str,
        *,
        name: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
        relation: Relation | None = None,
        config: Any = UNSET,
    ) -> Session:
        before = self.sessions.get(session_id)
        if before is not None and not before.deleted:
            return self.session(before)
        new = ModelSession(
            session_id,
            session_id if name is None else name,
            model,
            cwd,
            relation or Relation(),
            self.now_ms,
            self.now_ms,
            Graph(session_id, {}),
            Inbox(session_id, {}, {}),
        )
        if before is not None:
            new.incarnation, new.revision, new.floor = before.incarnation + 1, before.revision, before.revision
            new.inbox.next_seq, new.inbox.fence = before.inbox.next_seq, before.inbox.fence
        if config is not UNSET:
            new.configs = ((new.revision, config),)
        self.sessions[session_id] = new
        return self.session(new)

    def session(self, session: ModelSession) -> Session:
        """The session as the store returns it."""
        whole = session.checkpoint(session.revision)
        return Session(
            session_id=session.session_id,
            incarnation=session.incarnation,
            revision=session.revision,
            leaf_id=session.graph.leaf_id,
            node_count=session.graph.live_count(),
            current_frame_id=session.frame_id,
            checkpoint_digest=self.checkpoint_name(whole, None),
            name=session.name,
            model=session.model,
            cwd=session.cwd,
            relation=session.relation,
            created_ms=session.created_ms,
            updated_ms=session.updated_ms,
        )

    def checkpoint_name(self, components: Mapping[str, bytes], learned: str | None) -> str | None:
        if not components:
            return None
        return self.named("checkpoint", meaning(_digests(components)), learned)

    def get(self, session_id: str, incarnation: int | None = None) -> Session:
        return self.session(self.live(session_id, incarnation))

    def update_meta(self, session_id: str, *, incarnation: int | None = None, **change: Any) -> Session:
        session = self.live(session_id, incarnation)
        for field, value in change.items():
            setattr(session, field, value)
        session.updated_ms = self.now_ms
        return self.session(session)

    def delete(self, session_id: str, *, incarnation: int | None = None, learned: Deletion | None = None) -> Deletion:
        session = self.sessions.get(session_id)
        existed = session is not None and not session.deleted
        if existed:
            session = self.live(session_id, incarnation)
            for attachment_id in session.attachments:
                self.contents[attachment_id] = replace(self.contents[attachment_id], released_ms=self.now_ms)
            inbox = Inbox(session_id, {}, {}, session.inbox.next_seq, session.inbox.fence)
            self.sessions[session_id] = ModelSession(
                session_id, "", None, None, Relation(), 0, 0, Graph(session_id, {}), inbox, session.incarnation, True
            )
            self.sessions[session_id].revision = session.revision + 1
        rows = learned.purged_rows if existed and learned is not None else 0
        return Deletion(session_id=session_id, existed=existed, purged_rows=rows, complete=True)

    def list(self, *, order: str, parent: str | None) -> list[Session]:
        """All live sessions, newest first or by id."""
        found = [self.session(s) for s in self.sessions.values() if not s.deleted]
        kept = [s for s in found if parent is None or s.relation.parent_session_id == parent]
        if order == "id":
            return sorted(kept, key=lambda s: s.session_id.encode())
        return sorted(kept, key=lambda s: (s.updated_ms, s.session_id.encode()), reverse=True)

    # --- commit ---------------------------------------------------------------------------------------------------------

    def commit(
        self, session_id: str, commit: Commit, *, incarnation: int | None = None, learned: Receipt | None = None
    ) -> Receipt:
        """Check in the order the store promises, then apply everything."""
        drafts = check_arguments(session_id, commit)
        with self.all_or_nothing():
            return self._commit(session_id, commit, drafts, incarnation, learned)

    def _commit(
        self,
        session_id: str,
        commit: Commit,
        drafts: Sequence[tuple[str, BatchDraft]],
        incarnation: int | None,
        learned: Receipt | None,
    ) -> Receipt:
        if session_id not in self.sessions:
            self.create(session_id)
        session = self.live(session_id, incarnation)
        ids = self._node_ids(session_id, commit, learned)
        words = said(commit, ids, drafts)
        done = [completion_of(claim) for claim in commit.completes]
        before = next((line for line in session.lines if line.receipt.turn_id == commit.turn_id), None)
        if before is not None and commit.turn_id is not None:
            if before.said != words:
                raise TurnConflict(session_id, turn_id=commit.turn_id, revision=before.record.revision)
            held = [work for completion in done for work in session.inbox.still_owned(completion)]
            session.inbox.settle(held, self.now_ms)
            return replace(before.receipt, replayed=True)
        for target, _ in drafts:
            self.live(target)
        if commit.expected_revision not in (None, session.revision):
            assert commit.expected_revision is not None
            raise RevisionConflict(session_id, expected=commit.expected_revision, actual=session.revision)
        owned = [work for completion in done for work in session.inbox.owned(completion)]
        revision = session.revision + 1
        session.graph.change(commit.graph, ids, revision=revision, now_ms=self.now_ms)
        self._write_state(session, commit, revision)
        session.inbox.settle(owned, self.now_ms)
        batch_ids = self._enqueue(drafts, learned)
        self.stamp(session, sorted(set(commit.attachments)))
        session.revision, session.updated_ms = revision, self.now_ms
        return self._record(session, commit, words, ids, batch_ids, learned)

    def _node_ids(self, session_id: str, commit: Commit, learned: Receipt | None) -> list[str]:
        """Given ids, ids derived from the turn (the same for the same turn and place), minted ones."""
        nodes = () if isinstance(commit.graph, Unchanged) else commit.graph.nodes
        ids: list[str] = []
        for ordinal, draft in enumerate(nodes):
            told = learned.node_ids[ordinal] if learned is not None and ordinal < len(learned.node_ids) else f"?{ordinal}"
            if draft.node_id is not None:
                told = draft.node_id
            elif commit.turn_id is not None and learned is not None:
                told = self.derived.setdefault((session_id, commit.turn_id, ordinal), told)
            elif commit.turn_id is not None:
                told = self.derived.get((session_id, commit.turn_id, ordinal), told)
            ids.append(told)
        return ids

    def _write_state(self, session: ModelSession, commit: Commit, revision: int) -> None:
        current = session.checkpoint(session.revision)
        changed = [(name, data) for name, data in commit.checkpoint.items() if current.get(name) != data]
        session.versions += tuple((revision, name, data) for name, data in changed)
        session.components = session.components | {name for name, _ in changed}
        self._add_usage(session, commit.usage, revision)
        if commit.config is not UNSET:
            session.configs += ((revision, commit.config),)
        if not isinstance(commit.frames, UnsetType):
            session.set_frames(commit.frames, revision, self.now_ms)
        if not isinstance(commit.current_frame_id, UnsetType):
            session.frame_id = commit.current_frame_id

    def _add_usage(self, session: ModelSession, entries: Sequence[Usage], revision: int) -> None:
        session.usage += tuple((revision, entry) for entry in entries)
        if any(max(counts(total)) > COUNT_MAX for total in session.totals(revision)):
            raise LimitExceeded("COUNTER_MAX", maximum=COUNT_MAX, actual=0, path="")

    def _enqueue(self, drafts: Sequence[tuple[str, BatchDraft]], learned: Receipt | None) -> tuple[str, ...]:
        told = () if learned is None else learned.batch_ids
        minted = [told[i] if i < len(told) else f"?{i}" for i in range(len(drafts))]
        self.check_ids(drafts)
        return tuple(
            self.sessions[target].inbox.enqueue(draft, new, now_ms=self.now_ms, retention_ms=self.retention_ms).batch_id
            for (target, draft), new in zip(drafts, minted, strict=True)
        )

    def _record(
        self,
        session: ModelSession,
        commit: Commit,
        words: str,
        ids: Sequence[str],
        batch_ids: tuple[str, ...],
        learned: Receipt | None,
    ) -> Receipt:
        whole = session.checkpoint(session.revision)
        told = None if learned is None else learned.turn_id
        receipt = Receipt(
            session_id=session.session_id,
            incarnation=session.incarnation,
            revision=session.revision,
            turn_id=told if commit.turn_id is None else commit.turn_id,
            leaf_id=session.graph.leaf_id,
            node_ids=tuple(ids),
            components=_digests(whole),
            checkpoint_digest=self.checkpoint_name(whole, None if learned is None else learned.checkpoint_digest),
            batch_ids=batch_ids,
            committed_ms=self.now_ms,
            replayed=False,
        )
        session.lines += (Line(_record(receipt, session, kind="commit"), receipt, words),)
        return receipt

    # --- graph ----------------------------------------------------------------------------------------------------------

    def tombstone(self, session_id: str, node_ids: Sequence[str], *, incarnation: int | None = None) -> int:
        session = self.live(session_id, incarnation)
        return session.graph.tombstone(node_ids, session.revision)

    def vacuum(self, session_id: str, *, incarnation: int | None = None) -> VacuumReport:
        session = self.live(session_id, incarnation)
        erased = [node.died for node in session.graph.nodes.values() if node.died is not None and not node.erased]
        # What is erased now was shown until it died; no revision before that can be shown again.
        session.floor = max([session.floor, *erased])
        return session.graph.vacuum()

    def fork(self, source: str, new_id: str, *, at: str | int | None = None, name: str | None = None) -> Session:
        """A session of its own over the path to a node, with the state of the commit that ended there."""
        base = self.live(source)
        leaf_id, revision, frame_id = self._fork_point(base, at)
        origin = Origin(source, base.incarnation, leaf_id)
        known = self.sessions.get(new_id)
        if known is not None:
            known = self.live(new_id)
            if known.origin != origin:
                raise ReplayConflict("session", key=new_id, owner=source)
            return self.session(known)
        graph = base.graph.forked(new_id, leaf_id, at if isinstance(at, int) else None)
        cause = None if leaf_id is None else {"type": "session_node", "session_id": source, "node_id": leaf_id}
        self.create(new_id, name=name, relation=Relation(parent_session_id=source, caused_by=cause))
        session = self.sessions[new_id]
        session.graph, session.origin, session.frame_id = graph, origin, frame_id
        held = {i: replace(e, session_id=new_id) for i, e in base.attachments.items() if e.committed_ms is not None}
        session.attachments = held
        session.revision = session.floor = 1
        if revision is not None:
            config = base.config_at(revision)
            had = any(at <= revision for at, _ in base.configs)
            session.configs = ((1, config),) if had else ()
            session.set_frames(base.frames_at(revision), 1, self.now_ms)
            session.versions = tuple((1, part, data) for part, data in base.checkpoint(revision).items())
            session.components = frozenset(base.checkpoint(revision))
        self._record_fork(session)
        return self.session(session)

    def _fork_point(self, base: ModelSession, at: str | int | None) -> tuple[str | None, int | None, str | None]:
        if at is None:
            return base.graph.leaf_id, base.revision, base.frame_id
        if isinstance(at, int):
            _check_shown(base, at)
            line = base.line_at(at)
            if line is None:
                raise NotFound("revision", str(at), within=base.session_id)
        else:
            line = next((line for line in reversed(base.lines) if line.record.leaf_id == at), None)
            if line is None:
                return at, None, None
            _check_shown(base, line.record.revision)
        return line.record.leaf_id, line.record.revision, line.record.current_frame_id

    def _record_fork(self, session: ModelSession) -> None:
        whole = session.checkpoint(1)
        receipt = Receipt(
            session_id=session.session_id,
            incarnation=1,
            revision=1,
            turn_id=None,
            leaf_id=session.graph.leaf_id,
            node_ids=(),
            components=_digests(whole),
            checkpoint_digest=self.checkpoint_name(whole, None),
            batch_ids=(),
            committed_ms=self.now_ms,
            replayed=False,
        )
        session.lines = (Line(_record(receipt, session, kind="fork"), receipt, ""),)

    # --- looking at sessions --------------------------------------------------------------------------------------------

    def load(
        self, session_id: str, scope: FullGraph | ActivePath = FULL, *, at_revision: int | None = None, checkpoint: bool = True
    ) -> Snapshot:
        session = self.live(session_id)
        revision, leaf_id, frame_id = session.revision, session.graph.leaf_id, session.frame_id
        if at_revision is not None and not at_revision == revision == 0:
            _check_shown(session, at_revision)
            line = session.line_at(at_revision)
            revision = at_revision
            leaf_id = None if line is None else line.record.leaf_id
            frame_id = None if line is None else line.record.current_frame_id
        else:
            at_revision = None
        leaf_id = scope.leaf if isinstance(scope, ActivePath) and scope.leaf is not None else leaf_id
        whole = session.checkpoint(revision)
        return Snapshot(
            session_id=session_id,
            incarnation=session.incarnation,
            revision=revision,
            leaf_id=leaf_id,
            nodes=session.graph.in_scope(scope, leaf_id, at_revision),
            config=session.config_at(revision),
            frames=session.frames_at(revision),
            current_frame_id=frame_id,
            checkpoint=whole if checkpoint else {},
            checkpoint_digest=self.checkpoint_name(whole, None),
            usage=session.totals(revision),
        )

    def commits(self, session_id: str, *, after: int) -> tuple[CommitRecord, ...]:
        return tuple(line.record for line in self.live(session_id).lines if line.record.revision > after)

    def receipt(self, session_id: str, turn_id: str) -> Receipt:
        for line in self.live(session_id).lines:
            if line.receipt.turn_id == turn_id:
                return replace(line.receipt, replayed=True)
        raise NotFound("turn", turn_id, within=session_id)

    def node(self, session_id: str, node_id: str) -> Node:
        return self.live(session_id).graph.node(node_id)

    def children(self, session_id: str, node_id: str | None) -> tuple[Node, ...]:
        return self.live(session_id).graph.children(node_id)

    def usage(self, session_id: str) -> tuple[UsageTotal, ...]:
        session = self.live(session_id)
        return session.totals(session.revision)

    def usage_of(self, session_id: str, revision: int) -> tuple[Usage, ...]:
        session = self.live(session_id)
        if revision > session.revision:
            raise NotFound("revision", str(revision), within=session_id)
        return tuple(entry for at, entry in session.usage if at == revision)

    # --- maintenance ----------------------------------------------------------------------------------------------------

    def collect(
        self,
        *,
        keep_checkpoints: int = 1,
        session_id: str | None = None,
        dry_run: bool = False,
        learned: CollectReport | None = None,
    ) -> CollectReport:
        """Raise each session's floor to its n-th newest checkpoint state and drop the versions nothing above it needs."""
        if session_id is not None:
            chosen = [self.live(session_id)]
        else:
            chosen = [s for s in self.sessions.values() if (s.components or s.configs or s.frames) and not s.deleted]
        scanned = kept = 0
        for session in chosen:
            revisions = session.state_revisions()
            floor = max(session.floor, revisions[-keep_checkpoints] if len(revisions) > keep_checkpoints else 0)
            needed = _needed(session.versions, floor)
            scanned, kept = scanned + len(session.versions), kept + len(needed)
            if not dry_run:
                session.floor, session.versions = floor, needed
                session.configs = tuple(
                    (at, value)
                    for at, value in session.configs
                    if at >= max((a for a, _ in session.configs if a <= floor), default=0)
                )
                session.frames = tuple(row for row in session.frames if row.until is None or row.until > floor)
                latest = {name: (at, data) for at, name, data in needed}
                gone = {name for name, (at, data) in latest.items() if data is None and at <= floor}
                session.components = session.components - gone
        keys = 0 if dry_run or session_id is not None else self._forget_keys()
        return CollectReport(
            sessions_scanned=len(chosen),
            sessions_purged=0,
            versions_scanned=scanned,
            versions_kept=kept,
            versions_rewritten=0 if learned is None else min(learned.versions_rewritten, kept),
            versions_deleted=scanned - kept,
            settled_keys_deleted=keys,
            complete=True,
        )

    def _forget_keys(self) -> int:
        forgotten = 0
        for session in self.sessions.values():
            fresh = {k: s for k, s in session.inbox.settled.items() if s.settled_ms > self.now_ms - self.retention_ms}
            forgotten += len(session.inbox.settled) - len(fresh)
            session.inbox.settled = fresh
        return forgotten


def _digests(components: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in components.items()}


def _record(receipt: Receipt, session: ModelSession, *, kind: str) -> CommitRecord:
    return CommitRecord(
        session_id=receipt.session_id,
        incarnation=receipt.incarnation,
        revision=receipt.revision,
        kind=kind,
        turn_id=receipt.turn_id,
        intent=None,
        leaf_id=receipt.leaf_id,
        current_frame_id=session.frame_id,
        checkpoint_digest=receipt.checkpoint_digest,
        node_ids=receipt.node_ids,
        committed_ms=receipt.committed_ms,
    )


def _check_shown(session: ModelSession, revision: int) -> None:
    if revision > session.revision:
        raise NotFound("revision", str(revision), within=session.session_id)
    if revision < session.floor:
        raise NotFound("revision", str(revision), within=session.session_id, retention=True)


def _needed(versions: Sequence[tuple[int, str, bytes | None]], floor: int) -> tuple[tuple[int, str, bytes | None], ...]:
    """The versions the states from the floor on are made of: of each component, the one current then and all after it."""
    base: dict[str, int] = {}
    for revision, name, _ in versions:
        if name not in base or revision <= floor:
            base[name] = revision
    return tuple(version for version in versions if version[0] >= base[version[1]])
