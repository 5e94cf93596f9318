"""Rules of the machine about sessions, registrations, logs, and the wakes in inboxes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from lash_store import (
    Descriptor,
    EventDraft,
    ExternalRef,
    Lease,
    StartGrant,
    Wait,
)
from tests.support.pmodel_drafts import (
    FRAMES,
    KEYS,
    LEASES_MS,
    OUTPUTS,
    OWNERS,
    Draw,
    draw_event,
    draw_registration,
)
from tests.support.pmodel_looks import Looks
from tests.support.pmodel_steps import Bound

DATA = st.data()


class Working(Looks):
    """Sessions, registrations, logs and inboxes."""

    @rule(data=DATA)
    def create(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("sessions.create", draw.pick(self.ids[::-1]))

    @rule(data=DATA)
    def delete(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = draw.pick(self.ids)
        self.same("sessions.delete", session_id)
        for process_id in self.running()[:2]:
            self.same("processes.get", process_id)
        if not draw.rarely(3):
            self.same("sessions.create", session_id)

    @rule(data=DATA)
    def advance(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.tick(draw.pick((5, 20, 1000, 2700, 11_000)))

    @rule(data=DATA)
    def look_at_things(self, data: st.DataObject) -> None:
        self.look_around(self.begin(data))

    # --- registering ----------------------------------------------------------------------------------------------------

    @rule(data=DATA)
    def register(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        unused = [each for each in self.process_ids if each not in self.state.processes]
        process_id = draw.pick(unused) if unused and not draw.rarely(6) else draw.pick(self.process_ids)
        registration = draw_registration(draw, process_id, self.scopes(draw))
        self.same("processes.register", registration, **self.granting(draw))
        self.said.setdefault(process_id, registration)

    def granting(self, draw: Draw) -> dict[str, Any]:
        if not draw.rarely(2):
            return {}
        return {"grant": StartGrant(scope=self.scope(draw), descriptor=self.descriptor(draw))}

    def descriptor(self, draw: Draw) -> Descriptor:
        return draw.pick((Descriptor(), Descriptor(kind="k", label="l"), Descriptor(label="é")))

    @rule(data=DATA)
    def register_again(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        registration = self.said[draw.pick(list(self.said)[::-1])]
        self.same("processes.register", registration, **self.granting(draw))

    @rule(data=DATA)
    def start(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        unused = [each for each in self.process_ids if each not in self.state.processes]
        process_id = draw.pick(unused[:1] or self.process_ids) if not draw.rarely(4) else draw.pick(self.process_ids)
        registration = draw_registration(draw, process_id, self.scopes(draw))
        if draw.rarely(2):
            registration = replace(registration, wake_target=None, originator=None)
        self.on_handle(self.handle(draw), "start", registration, frame_id=draw.pick(FRAMES), descriptor=self.descriptor(draw))

    def handle(self, draw: Draw, session_id: str | None = None) -> Bound:
        """A handle of this history, or a new one of a session."""
        if self.bound and draw.rarely(2):
            return draw.recent(self.bound)
        session_id = session_id or self.session_id(draw)
        handles = [engine.handle(self.door, session_id) for engine in self.world.engines]
        self.bound.append(Bound(self.model.handle(session_id), handles))
        return self.bound[-1]

    # --- the log --------------------------------------------------------------------------------------------------------

    def event(self, draw: Draw, process_id: str, *, ends: bool = True) -> EventDraft:
        """To a pruned process only what every process declares: a door that remembers it would refuse the rest first."""
        process = self.state.processes.get(process_id)
        pruned = process is not None and process.pruned
        return EventDraft(event_type="process.waiting") if pruned else draw_event(draw, ends=ends)

    def lease_on(self, draw: Draw, process_id: str) -> Lease | None:
        """Mostly none; otherwise one of this history, mostly the last of this process."""
        mine = [lease for lease in self.leases if lease.process_id == process_id]
        return draw.recent(mine) if mine and draw.rarely(2) else None

    @rule(data=DATA)
    def append(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        process_id = self.process_id(draw)
        self.appended(draw, process_id, self.event(draw, process_id))

    def appended(self, draw: Draw, process_id: str, event: EventDraft) -> None:
        self.same(
            "processes.append",
            process_id,
            event.event_type,
            event.payload,
            learn=True,
            replay_key=event.replay_key,
            lease=self.lease_on(draw, process_id),
        )
        self.look(process_id)

    @rule(data=DATA)
    def append_to_the_same(self, data: st.DataObject) -> None:
        """One process gets a longer log than the others."""
        draw = self.begin(data)
        if self.running():
            process_id = self.running()[0]
            self.appended(draw, process_id, self.event(draw, process_id, ends=False))

    @rule(data=DATA)
    def append_many(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        process_id = self.process_id(draw)
        drafts = [self.event(draw, process_id) for _ in range(draw.below(4))]
        options = {"lease": self.lease_on(draw, process_id), "key": draw.pick((None, "m1"))}
        self.same("processes.append_many", process_id, drafts, learn=True, **options)
        self.look(process_id)

    @rule(data=DATA)
    def append_again(self, data: st.DataObject) -> None:
        """A call whose answer was lost, mostly with what it said before."""
        draw = self.begin(data)
        said = [process for process in self.state.processes.values() if process.events]
        if not said:
            self.same("processes.append", self.process_ids[0], "note", "first", learn=True)
        else:
            process = draw.pick(said)
            event = draw.pick(process.events[::-1])
            payload = event.payload if not draw.rarely(3) else {"text": "other"}
            again = EventDraft(event_type=event.event_type, payload=payload, replay_key=event.replay_key)
            self.appended(draw, process.process_id, again)

    @rule(data=DATA)
    def complete(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        process_id = self.process_id(draw)
        self.same("processes.complete", process_id, draw.pick(OUTPUTS), lease=self.lease_on(draw, process_id))
        self.look(process_id)

    @rule(data=DATA)
    def cancel(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("processes.cancel", self.process_id(draw), reason=draw.pick((None, "why")))

    @rule(data=DATA)
    def signal(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        process_id = self.process_id(draw)
        process = self.state.processes.get(process_id)
        if process is None or not process.pruned:
            self.same("processes.signal", process_id, *self.signalled(draw), learn=True, signal_id=draw.pick((None, *KEYS)))

    def signalled(self, draw: Draw) -> tuple[str, Any]:
        return draw.pick((("go", 1), ("go", 2), ("go", 2), ("go", "x"), ("stop", 1)))

    @rule(data=DATA)
    def wait_signal(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        process_id = self.process_id(draw)
        if draw.rarely(3):
            self.same("processes.clear_wait", process_id)
        lease = self.lease_on(draw, process_id)
        self.same("processes.wait_signal", process_id, "go", ordinal=1 + draw.below(2), timeout_ms=0, lease=lease)
        self.look(process_id)

    @rule(data=DATA)
    def set_wait(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        process_id, wait = self.process_id(draw), Wait(name=draw.pick(("go", "stop")), ordinal=1)
        self.same("processes.set_wait", process_id, wait)
        if draw.rarely(2):
            self.tick(1)
            self.same("processes.set_wait", process_id, wait)

    @rule(data=DATA)
    def clear_wait(self, data: st.DataObject) -> None:
        self.same("processes.clear_wait", self.process_id(self.begin(data)))

    @rule(data=DATA)
    def set_external_ref(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        ref = ExternalRef(backend="b", id=draw.pick(("1", "2")), metadata=draw.pick((None, {"b": 1, "a": 2})))
        self.same("processes.set_external_ref", self.process_id(draw), ref)

    @rule(data=DATA)
    def ack_wake(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        process_id = self.process_id(draw)
        process = self.state.processes.get(process_id)
        wakes = [] if process is None else [event.sequence for event in process.events if event.wake]
        self.same("processes.ack_wake", process_id, draw.pick(wakes) if wakes and not draw.rarely(6) else 1 + draw.below(3))
        self.same("processes.wake_events", process_id)

    # --- wakes in inboxes -----------------------------------------------------------------------------------------------

    def woken(self, draw: Draw) -> str:
        """Mostly a session that has wakes."""
        some = [id for id, room in self.state.rooms.items() if room.works]
        return draw.pick(some) if some and not draw.rarely(8) else self.session_id(draw)

    @rule(data=DATA)
    def claim_wake(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        session_id = self.woken(draw)
        claim = self.same("queue.claim", session_id, draw.pick(OWNERS), learn=True, lease_ms=draw.pick(LEASES_MS))
        if claim is not None:
            self.claims.append(claim)
            payload = claim.batches[0].payloads[0]
            if not self.state.processes[payload["process_id"]].pruned:
                self.same("processes.woken_by", payload["process_id"], claim.batches[0].batch_id)

    @rule(data=DATA)
    def wake_while_claimed(self, data: st.DataObject) -> None:
        """A wake arrives while one of the same id is being worked on, and another after that."""
        draw = self.begin(data)
        pinging = self.pinging()
        if not pinging:
            return
        process_id = draw.pick(pinging)
        target = self.state.processes[process_id].wake
        for i in range(3):
            self.same("processes.append", process_id, "ping", {"text": f"{i}"}, learn=True)
            if i == 0 and target is not None:
                claim = self.same("queue.claim", target.session_id, "anna", learn=True, lease_ms=draw.pick(LEASES_MS))
                self.claims.extend(() if claim is None else (claim,))
        self.look(process_id)

    def pinging(self) -> list[str]:
        """Running processes that wake somebody and declare how."""
        there = ((id, self.state.processes[id]) for id in self.running())
        return [id for id, process in there if process.wake is not None and process.registration.event_types]

    def has_claim(self, draw: Draw) -> bool:
        """Whether there is a claim of this history; mostly a wake is made and claimed first."""
        pinging = self.pinging()
        if pinging and not draw.rarely(3):
            process = self.state.processes[draw.pick(pinging)]
            self.same("processes.append", process.process_id, "ping", {"text": "up"}, learn=True)
            assert process.wake is not None
            claim = self.same("queue.claim", process.wake.session_id, "bert", learn=True, lease_ms=draw.pick(LEASES_MS))
            self.claims.extend(() if claim is None else (claim,))
        return bool(self.claims)

    @rule(data=DATA)
    def settle_wake(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if self.has_claim(draw):
            self.same("queue.settle", draw.recent(self.claims))

    @rule(data=DATA)
    def abandon_wake(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if self.has_claim(draw):
            claim = draw.recent(self.claims)
            self.same("queue.abandon", claim)
            self.same("queue.depth", claim.session_id)

    @rule(data=DATA)
    def pull_a_lever(self, data: st.DataObject) -> None:
        """Cancel, park or unpark a wake."""
        draw = self.begin(data)
        if self.pinging():
            self.same("processes.append", draw.pick(self.pinging()), "tell", "now", learn=True)
        session_id = self.woken(draw)
        works = list(self.state.rooms[session_id].works) if session_id in self.state.rooms else []
        batch_id = draw.pick(works) if works else "qwb:nobody"
        lever = draw.pick(("park", "unpark", "cancel"))
        options: dict[str, Any] = {"reason": "so"} if lever == "park" else {}
        self.same(f"queue.{lever}", session_id, batch_id, **options)
        self.pages("queue.list", "batches", session_id)
