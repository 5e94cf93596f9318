"""Everything the store can be asked, compared with the model."""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from lash_store import FULL, CommitRecord, Corrupt, NotFound, active_path
from tests.support.model_drafts import BYTES, NODES, TURNS, Draw
from tests.support.model_engines import Call
from tests.support.model_steps import Steps

IDS = tuple(hashlib.sha256(data).hexdigest() for data in BYTES)

LAST_REVISIONS = 3  # how far back an audit looks, one load each; a step may look anywhere


class Looks(Steps):
    """Looking at a session from one side, or from all."""

    def look_at(self, draw: Draw, session_id: str) -> None:
        state = self.model.sessions.get(session_id)
        nodes = [*NODES[:2], *(() if state is None else state.graph.nodes)]
        revisions = range((0 if state is None else state.revision) + 2)
        scope = draw.pick((FULL, active_path(), active_path(last=2), active_path(draw.pick(nodes), last=draw.pick((None, 1, 3)))))
        at_revision = draw.pick((None, draw.pick(revisions)))
        self.same("sessions.load", session_id, scope, at_revision=at_revision, checkpoint=draw.below(2) == 0)
        self.same("sessions.node", session_id, draw.pick(nodes))
        self.same("sessions.receipt", session_id, draw.pick(TURNS))
        self.same("sessions.usage_of", session_id, draw.pick(revisions))
        self.pages("sessions.children", "nodes", session_id, draw.pick((None, *nodes)))
        self.look_around(draw, session_id)

    def look_around(self, draw: Draw, session_id: str) -> None:
        attachment_id = draw.pick(IDS)
        self.same("attachments.entry", session_id, attachment_id)
        self.step(Call("attachments.get", (session_id, attachment_id)), lambda _: self.bytes_of(session_id, attachment_id))
        age_ms = draw.pick((0, 3))
        self.pages(
            "attachments.list_uncommitted",
            "entries",
            older_than_ms=age_ms,
            expect=lambda: self.model.uncommitted(older_than_ms=age_ms),
        )
        order, parent = draw.pick(("updated", "id")), draw.pick((None, *self.ids))
        self.pages("sessions.list", "sessions", order=order, parent=parent)

    def bytes_of(self, session_id: str, attachment_id: str) -> bytes:
        entry = self.model.entry(session_id, attachment_id)
        data = BYTES[IDS.index(attachment_id)]
        stored = self.model.contents[attachment_id].stored
        if not stored and entry.committed_ms is None:
            raise NotFound("attachment", attachment_id)
        if not stored or entry.ref.byte_len != len(data):
            raise Corrupt("attachments", attachment_id, "a commit named it, and it is not there as announced")
        return data

    def audit(self, session_id: str) -> None:
        """Everything the store says of a session."""
        self.same("sessions.get", session_id)
        state = self.model.sessions.get(session_id)
        if state is None or state.deleted:
            return
        self.same("sessions.load", session_id)
        self.same("sessions.load", session_id, active_path())
        self.same("sessions.usage", session_id)
        self.same("queue.depth", session_id)
        self.pages("queue.list", "batches", session_id, expect=lambda: self.model.works(session_id, pending=False))
        self.pages("queue.pending", "batches", session_id, expect=lambda: self.model.works(session_id, pending=True))
        self.pages("sessions.children", "nodes", session_id, None)
        self.pages("attachments.list", "entries", session_id, expect=lambda: self.model.manifest(session_id))
        self.history(session_id)
        self.tips(session_id)
        for leaf_id in state.graph.tips()[0]:
            self.same("sessions.load", session_id, active_path(leaf_id))
        for revision in range(max(0, state.revision - LAST_REVISIONS), state.revision):
            self.same("sessions.load", session_id, at_revision=revision)

    def history(self, session_id: str) -> None:
        """The commits; equal turns, and no others, have equal intents."""
        call = Call("sessions.commits", (session_id,), {"after": 1, "limit": 1000})
        outcomes = [engine.call(self.door, call) for engine in self.world.engines]
        state = self.model.sessions.get(session_id)
        said = {} if state is None else {line.record.revision: line.said for line in state.lines}
        for outcome in outcomes:
            if outcome.error is None:
                outcome.value = tuple(self.without_intent(record, said) for record in outcome.value.commits)
        self.agree(call, outcomes, lambda _: self.model.commits(session_id, after=1))

    def without_intent(self, record: CommitRecord, said: dict[int, str]) -> CommitRecord:
        if record.intent is not None and record.revision in said:
            assert self.model.named("turn", said[record.revision], record.intent) == record.intent, "one turn, two intents"
        return replace(record, intent=None)

    def tips(self, session_id: str) -> None:
        """Every branch is a live node without live children; every node with nothing live below it is one."""
        call = Call("sessions.branches", (session_id,))
        outcomes = [self.all_pages(engine, call, "branches") for engine in self.world.engines]
        state = self.model.sessions.get(session_id)
        tips, needed = ({}, set[str]()) if state is None else state.graph.tips()
        for outcome in outcomes:
            if outcome.error is None:
                found = {branch.leaf_id: branch for branch in outcome.value}
                ok = needed <= found.keys() and all(tips.get(i) == branch for i, branch in found.items())
                outcome.value = "the tips" if ok and len(found) == len(outcome.value) else found
        self.agree(call, outcomes, lambda _: "the tips" if self.model.live(session_id) else None)
