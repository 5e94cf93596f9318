"""A Hypothesis machine that does the same to the store and to the model. Every public write is a rule."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from lash_store import Append, BatchDraft, Boundary, Claim, Commit, NodeDraft, Relation, active_path
from tests.support.model_drafts import (
    BATCHES,
    BODIES,
    BYTES,
    NAMES,
    NODES,
    OWNERS,
    TOKENS,
    Draw,
    draw_batch,
    draw_branch,
    draw_commit,
    draw_completion,
    draw_ref,
    draw_state_commit,
)
from tests.support.model_engines import Call, leftovers
from tests.support.model_looks import IDS, Looks
from tests.support.model_steps import RETENTION_MS, Bound, Expect, World

LEASES_MS = (1000, 5, 0)
UNKNOWN_ID = "0" * 64
# Two branches from one inner node: root - stem - {left - leaf, right}.
TREE = [
    NodeDraft(node_id=node_id, body=node_id, parent_id=parent_id)
    for node_id, parent_id in (("root", None), ("stem", "root"), ("left", "stem"), ("leaf", "left"), ("right", "stem"))
]
DATA = st.data()


def machine(world: World) -> type[StoreMachine]:
    """The machine for these engines."""
    return type("Machine", (StoreMachine,), {"world": world})


class StoreMachine(Looks):
    """One example: fresh session ids, an empty model, fifty steps, and an audit of everything at the end."""

    # --- sessions -------------------------------------------------------------------------------------------------------

    @rule(data=DATA)
    def create(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        fields: dict[str, Any] = {}
        if draw.rarely(3):
            fields |= {"name": draw.pick(NAMES), "model": draw.pick((None, "m")), "cwd": "/tmp/ü"}
        if draw.rarely(3):
            fields["relation"] = Relation(parent_session_id=draw.pick(self.ids), caused_by=draw.pick(BODIES))
        if draw.rarely(3):
            fields["config"] = draw.pick(BODIES)
        self.same("sessions.create", draw.pick(self.ids), **fields)

    @rule(data=DATA)
    def update_meta(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        change: dict[str, Any] = draw.pick(({"name": "new"}, {"model": None}, {"cwd": "/x", "model": "m2"}, {}))
        self.same("sessions.update_meta", self.session_id(draw), **change)

    @rule(data=DATA)
    def delete(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if draw.rarely(3):
            self.same("sessions.delete", draw.pick(self.ids), learn=True)

    @rule(data=DATA)
    def fork(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        source = self.with_nodes(draw)
        state = self.model.sessions.get(source)
        places: list[str | int] = list(NODES) if state is None else [*state.graph.nodes, *range(state.revision + 2)]
        at = draw.pick((None, draw.pick(places))) if places else None
        unused = [session_id for session_id in self.ids if session_id not in self.model.sessions]
        new_id = draw.pick(unused) if unused and not draw.rarely(4) else draw.pick(self.ids[::-1])
        self.same("sessions.fork", source, new_id, at=at, name=draw.pick((None, "fork")))
        self.same("sessions.load", new_id)

    # --- commits and the graph ------------------------------------------------------------------------------------------

    def committed(self, draw: Draw, session_id: str) -> None:
        self.step(*self.commit_call(session_id, self.commit_for(draw, session_id)))
        self.same("sessions.load", session_id)

    @rule(data=DATA)
    def a_turn(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.committed(draw, self.session_id(draw))

    @rule(data=DATA)
    def a_turn_about_state(self, data: st.DataObject) -> None:
        """Both doors change the same components in turns, so that what one of them remembers is often stale."""
        draw = self.begin(data)
        session_id = self.with_nodes(draw)
        for _ in range(1 + draw.below(3)):
            self.door = draw.below(2)
            state = self.model.sessions.get(session_id)
            if state is not None and not state.deleted:
                self.tick(1)
                self.step(*self.commit_call(session_id, draw_state_commit(draw, state)))
        self.same("sessions.load", session_id)

    @rule(data=DATA)
    def a_turn_on_a_branch(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.with_nodes(draw)
        state = self.model.sessions.get(session_id)
        if state is not None and not state.deleted:
            self.step(*self.commit_call(session_id, Commit(expected_revision=None, graph=draw_branch(draw, state))))
            self.same("sessions.load", session_id, active_path())

    @rule(data=DATA)
    def commit_to_any(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.committed(draw, draw.pick(self.ids))

    @rule(data=DATA)
    def commit_the_first_session(self, data: st.DataObject) -> None:
        """One session gets a longer history than the others."""
        self.committed(self.begin(data), self.ids[0])

    @rule(data=DATA)
    def commit_what_was_claimed(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if self.with_claim(draw):
            claim = draw_completion(draw, self.claims)
            commit = self.commit_for(draw, claim.session_id)
            self.step(*self.commit_call(claim.session_id, replace(commit, completes=[claim])))

    @rule(data=DATA)
    def commit_again(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if not self.said:
            return
        session_id, commit = draw.recent(self.said)
        if draw.rarely(3):
            commit = replace(commit, expected_revision=None if draw.rarely(2) else 99)
        if draw.rarely(4):
            commit = replace(commit, attachments=(*commit.attachments, UNKNOWN_ID))
        if draw.rarely(2):
            # A batch was delivered again, and its worker repeats the turn that is committed already.
            self.step(*self.enqueue_call(session_id, BatchDraft(payloads=["again"])))
            claim = self.same("queue.claim", session_id, OWNERS[0], learn=True, lease_ms=LEASES_MS[0])
            commit = replace(commit, completes=() if claim is None else [claim])
        self.step(
            Call("sessions.commit", (session_id, commit)), lambda learned: self.model.commit(session_id, commit, learned=learned)
        )
        self.same("sessions.load", session_id)

    @rule(data=DATA)
    def tombstone(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.with_nodes(draw)
        state = self.model.sessions.get(session_id)
        known = list(NODES) if state is None or not state.graph.nodes else list(state.graph.nodes)
        self.same("sessions.tombstone", session_id, [*draw.some(known, 2), draw.pick(known)])
        self.same("sessions.load", session_id)

    @rule(data=DATA)
    def vacuum(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.with_nodes(draw)
        state = self.model.sessions.get(session_id)
        if state is not None and state.graph.nodes and draw.rarely(2):
            known = list(state.graph.nodes)
            self.same("sessions.tombstone", session_id, [draw.pick(known) for _ in range(1 + draw.below(3))])
        self.same("sessions.vacuum", session_id)
        self.same("sessions.load", session_id)
        if draw.rarely(4):
            self.same("sessions.fork", session_id, draw.pick(self.ids[::-1]))

    @rule(data=DATA)
    def collect(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = draw.pick((None, None, *self.ids))
        keep, dry_run = 1 + draw.below(3), draw.rarely(4)
        self.same("maintenance.collect", learn=True, keep_checkpoints=keep, session_id=session_id, dry_run=dry_run)

    # --- inbox ----------------------------------------------------------------------------------------------------------

    def batch_id(self, draw: Draw, session_id: str) -> str:
        state = self.model.sessions.get(session_id)
        known = [] if state is None else list(state.inbox.works)
        return draw.pick(known) if known and not draw.rarely(8) else draw.pick(BATCHES)

    @rule(data=DATA)
    def enqueue(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.step(*self.enqueue_call(self.session_id(draw), draw_batch(draw)))

    @rule(data=DATA)
    def enqueue_two(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.session_id(draw)
        for _ in range(2):
            self.step(*self.enqueue_call(session_id, draw_batch(draw)))

    def claim_options(self, draw: Draw) -> dict[str, Any]:
        return {
            "lease_ms": draw.pick(LEASES_MS),
            "max_batches": draw.pick((3, 1, 2)),
            "boundary": Boundary.ACTIVE_TURN_CHECKPOINT if draw.rarely(4) else Boundary.IDLE,
            "token": draw.pick(TOKENS) if draw.rarely(5) else None,
        }

    @rule(data=DATA)
    def claim(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.session_id(draw)
        self.took(self.same("queue.claim", session_id, draw.pick(OWNERS), learn=True, **self.claim_options(draw)))

    @rule(data=DATA)
    def claim_exact(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.session_id(draw)
        state = self.model.sessions.get(session_id)
        ready = [] if state is None else [w.batch_id for w in state.inbox.works.values() if w.ready(self.model.now_ms)]
        options = self.claim_options(draw)
        limit = options.pop("max_batches")
        wanted = ready[:limit] if not draw.rarely(5) else draw.some([*ready, *BATCHES], 2)
        self.took(self.same("queue.claim_exact", session_id, draw.pick(OWNERS), wanted, learn=True, **options))

    @rule(data=DATA)
    def claim_next(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        options = self.claim_options(draw)
        del options["boundary"]
        self.took(self.same("queue.claim_next", draw.pick(OWNERS), learn=True, concurrent=draw.rarely(3), **options))

    @rule(data=DATA)
    def renew(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if self.with_claim(draw):
            self.took(self.same("queue.renew", draw.recent(self.claims), lease_ms=draw.pick(LEASES_MS)))

    @rule(data=DATA)
    def abandon(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if self.with_claim(draw):
            self.same("queue.abandon", draw_completion(draw, self.claims))

    @rule(data=DATA)
    def settle(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if self.with_claim(draw):
            self.same("queue.settle", draw_completion(draw, self.claims))

    @rule(data=DATA)
    def cancel(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.with_work(draw)
        self.same("queue.cancel", session_id, self.batch_id(draw, session_id))

    @rule(data=DATA)
    def discard(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.with_work(draw)
        self.same("queue.discard", session_id, self.batch_id(draw, session_id))

    @rule(data=DATA)
    def park(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.with_work(draw)
        self.same("queue.park", session_id, self.batch_id(draw, session_id), reason=draw.pick(NAMES))

    @rule(data=DATA)
    def unpark(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.session_id(draw)
        state = self.model.sessions.get(session_id)
        parked = [] if state is None else [w.batch_id for w in state.inbox.works.values() if w.parked is not None]
        self.same("queue.unpark", session_id, draw.pick(parked) if parked else self.batch_id(draw, session_id))

    # --- attachments ----------------------------------------------------------------------------------------------------

    @rule(data=DATA)
    def put(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("attachments.put", self.session_id(draw), draw.pick(BYTES), media_type="x/y", label=draw.pick((None, "l")))

    @rule(data=DATA)
    def record_intent(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        which = draw.below(len(BYTES))
        self.same("attachments.record_intent", self.session_id(draw), draw_ref(draw, IDS[which], len(BYTES[which])))

    @rule(data=DATA)
    def commit_refs(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id, known = self.with_attachment(draw)
        self.same("attachments.commit_refs", session_id, [known, *draw.some((*IDS, UNKNOWN_ID), 1)])

    @rule(data=DATA)
    def forget(self, data: st.DataObject) -> None:
        self.same("attachments.forget", *self.with_attachment(self.begin(data)))

    @rule(data=DATA)
    def sweep(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("attachments.sweep", older_than_ms=draw.pick((0, 2, 20)), dry_run=draw.rarely(4))

    # --- time, handles, transactions ------------------------------------------------------------------------------------

    @rule(data=DATA)
    def wait(self, data: st.DataObject) -> None:
        self.tick(self.begin(data).pick((5, 50, 1000, RETENTION_MS)))

    @rule(data=DATA)
    def take_a_handle(self, data: st.DataObject) -> None:
        self.met(self.session_id(self.begin(data)))

    def met(self, session_id: str) -> None:
        """Remember a handle once it has met its session."""
        handles = [engine.handle(self.door, session_id) for engine in self.world.engines]
        call = Call("get")
        outcomes = [engine.on_handle(handle, call) for engine, handle in zip(self.world.engines, handles, strict=True)]
        met = self.agree(call, outcomes, lambda _: self.model.get(session_id))
        if met is not None:
            self.bound.append(Bound(session_id, met.incarnation, handles))

    @rule(data=DATA)
    def use_a_handle(self, data: st.DataObject) -> None:
        """A handle writes to the incarnation it met, and to no later one."""
        draw = self.begin(data)
        if not self.bound or draw.rarely(4):
            self.met(self.session_id(draw))
        if not self.bound:
            return
        bound = draw.recent(self.bound)
        call, expect = self.handle_call(draw, bound.session_id, bound.incarnation)
        pairs = zip(self.world.engines, bound.handles, strict=True)
        self.agree(call, [engine.on_handle(handle, call) for engine, handle in pairs], expect)

    def handle_call(self, draw: Draw, session_id: str, met: int) -> tuple[Call, Expect]:
        model = self.model
        which = draw.below(7)
        if which == 0:
            commit = self.commit_for(draw, session_id)
            return Call("commit", (commit,)), lambda told: model.commit(session_id, commit, incarnation=met, learned=told)
        if which == 1:
            return Call("tombstone", ([NODES[0]],)), lambda _: model.tombstone(session_id, [NODES[0]], incarnation=met)
        if which == 2:
            draft = BatchDraft(payloads=[1])
            return Call("enqueue", ([1],)), lambda told: model.enqueue(session_id, draft, incarnation=met, learned=told)
        if which == 3:
            return Call("update_meta", (), {"name": "h"}), lambda _: model.update_meta(session_id, incarnation=met, name="h")
        if which == 4:
            return Call("claim", (OWNERS[1],), {"lease_ms": 5}), lambda told: model.claim(
                session_id, OWNERS[1], lease_ms=5, incarnation=met, learned=told
            )
        if which == 5:
            return Call("vacuum"), lambda _: model.vacuum(session_id, incarnation=met)
        return Call("delete"), lambda told: model.delete(session_id, incarnation=met, learned=told)

    @rule(data=DATA)
    def together(self, data: st.DataObject) -> None:
        """Several operations in one transaction. A refusal inside it undoes only itself; giving up undoes all."""
        draw = self.begin(data)
        steps = [self.inside(draw) for _ in range(1 + draw.below(3))]
        rollback = draw.rarely(3)
        calls = [call for call, _ in steps]
        answers = [engine.together(self.door, calls, rollback=rollback) for engine in self.world.engines]
        sessions, contents = {i: s.copy() for i, s in self.model.sessions.items()}, dict(self.model.contents)
        for i, (call, expect) in enumerate(steps):
            self.world.done[f"transaction {'given up' if rollback else 'done'}"] += 1
            self.agree(call, [outcomes[i] for outcomes in answers], expect)
        if rollback:
            self.model.sessions, self.model.contents = sessions, contents

    def inside(self, draw: Draw) -> tuple[Call, Expect]:
        session_id = self.session_id(draw)
        which = draw.below(4)
        if which == 0:
            commit = replace(self.commit_for(draw, session_id), enqueues=(), turn_id=None)
            return Call("sessions.commit", (session_id, commit)), lambda told: self.model.commit(session_id, commit, learned=told)
        if which == 1:
            return self.enqueue_call(session_id, BatchDraft(payloads=[2], source_key="k1"))
        if which == 2:
            return Call("sessions.tombstone", (session_id, [NODES[1]])), lambda _: self.model.tombstone(session_id, [NODES[1]])
        return Call("attachments.forget", (session_id, IDS[0])), lambda _: self.model.forget(session_id, IDS[0])

    @rule(data=DATA)
    def look(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.look_at(draw, self.with_nodes(draw))

    # Histories grow best on ground that is not empty: these make a little of what a step is about, if there is none.

    def with_nodes(self, draw: Draw) -> str:
        """A session with a few nodes and a checkpoint."""
        session_id = self.session_id(draw)
        state = self.model.sessions.get(session_id)
        if state is not None and not state.deleted and not state.graph.live_count():
            commit = replace(draw_state_commit(draw, state), graph=Append(TREE))
            self.step(*self.commit_call(session_id, commit))
        return session_id

    def with_work(self, draw: Draw) -> str:
        """A session with a batch in its inbox."""
        session_id = self.session_id(draw)
        state = self.model.sessions.get(session_id)
        if state is None or not state.inbox.works:
            self.step(*self.enqueue_call(session_id, draw_batch(draw)))
        return session_id

    def with_claim(self, draw: Draw) -> bool:
        """Mostly a claim whose token still holds; whether there is any at all."""
        held = self.claims and self.model.holds(self.claims[-1])
        if not held and not draw.rarely(3):
            session_id = self.with_work(draw)
            options = {"lease_ms": draw.pick(LEASES_MS), "max_batches": 3}
            self.took(self.same("queue.claim", session_id, OWNERS[0], learn=True, **options))
        return bool(self.claims)

    def with_attachment(self, draw: Draw) -> tuple[str, str]:
        """A session and an attachment it announced."""
        session_id = self.session_id(draw)
        state = self.model.sessions.get(session_id)
        if state is None or not state.attachments:
            self.same("attachments.put", session_id, draw.pick(BYTES), media_type="x/y")
        state = self.model.sessions.get(session_id)
        return session_id, draw.pick((*(() if state is None else state.attachments), IDS[0]))

    def commit_for(self, draw: Draw, session_id: str) -> Commit:
        state = self.model.sessions.get(session_id)
        known = [*([] if state is None else state.attachments), *([UNKNOWN_ID] if draw.rarely(20) else [])]
        others = [i for i in self.ids if i in self.model.sessions] or list(self.ids)
        return draw_commit(draw, session_id, state, self.claims, others, known, self.model.now_ms)

    def commit_call(self, session_id: str, commit: Commit) -> tuple[Call, Expect]:
        if commit.turn_id is not None:
            self.said.append((session_id, commit))
        return Call("sessions.commit", (session_id, commit)), lambda learned: self.model.commit(
            session_id, commit, learned=learned
        )

    def enqueue_call(self, session_id: str, draft: BatchDraft) -> tuple[Call, Expect]:
        fields = {name: getattr(draft, name) for name in draft.__struct_fields__ if name not in ("payloads", "session_id")}
        return Call("queue.enqueue", (session_id, draft.payloads), fields), lambda learned: self.model.enqueue(
            session_id, draft, learned=learned
        )

    def took(self, claim: Claim | None) -> None:
        if claim is not None:
            self.claims.append(claim)

    # --- the end --------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Look at everything; then delete it, sweep, and find nothing left."""
        if self.in_step:
            return
        for session_id in self.ids:
            self.audit(session_id)
        self.world.at_end()
        self.tick(1)
        for session_id in self.ids:
            self.same("sessions.delete", session_id, learn=True)
        self.same("attachments.sweep", older_than_ms=0)
        for engine in self.world.engines:
            left = leftovers(engine)
            assert not left, f"{engine.name} keeps {left} of deleted sessions\nReplay: {self.world.replay}"
        self.world.dirty = False
