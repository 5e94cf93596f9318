"""A Hypothesis machine that does the same to the store and to the model. Every write of processes and triggers is a rule."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from lash_store import (
    Lease,
    OccurrenceRequest,
    ProcessInput,
    Scope,
    Subscription,
)
from tests.support.pmodel_drafts import (
    ENVS,
    FRAMES,
    INTERVALS,
    KEYS,
    LEASES_MS,
    LIVES,
    OUTPUTS,
    OWNERS,
    SPECS,
    Draw,
    draw_occurrence,
    draw_subscription,
)
from tests.support.pmodel_steps import World
from tests.support.pmodel_work import DATA, Working

AGES_MS = (0, 3, 2000)


def machine(world: World) -> type[ProcessMachine]:
    """The machine for these engines."""
    return type("Machine", (ProcessMachine,), {"world": world})


class Holding(Working):
    """Leases, grants and retention."""

    def took(self, lease: Lease | None) -> None:
        if lease is not None:
            self.leases.append(lease)

    @rule(data=DATA)
    def claim(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        options = {
            "incarnation": draw.pick(LIVES),
            "lease_ms": draw.pick(LEASES_MS),
            "token": draw.pick(("T1", "T2")) if draw.rarely(3) else None,
        }
        self.took(self.same("processes.claim", self.process_id(draw), draw.pick(OWNERS), learn=True, **options))

    @rule(data=DATA)
    def claim_next(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        options = {
            "incarnation": draw.pick(LIVES),
            "lease_ms": draw.pick(LEASES_MS),
            "kinds": draw.pick((None, None, ["job"], ["mail", "external"])),
            "limit": draw.pick((1, 2, 5)),
        }
        for leased in self.same("processes.claim_next", draw.pick(OWNERS), learn=True, **options) or ():
            self.took(leased.lease)

    def held(self, draw: Draw) -> Lease | None:
        """A lease of this history, rarely with a forged part."""
        if not self.leases or draw.rarely(2):
            self.took(self.same("processes.claim", self.process_id(draw), "anna", learn=True, incarnation="1", lease_ms=1000))
        if not self.leases:
            return None
        lease = draw.recent(self.leases)
        if draw.rarely(4):
            self.tick(max(0, lease.expires_ms - self.state.now_ms))  # the very end of it
        forged = draw.pick(({"token": "forged"}, {"fence": lease.fence + 1}, {"incarnation": "9"}, {"owner": "eve"}))
        return replace(lease, **forged) if draw.rarely(6) else lease

    @rule(data=DATA)
    def renew(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        lease = self.held(draw)
        if lease is not None:
            self.took(self.same("processes.renew", lease, lease_ms=draw.pick(LEASES_MS)))

    @rule(data=DATA)
    def release(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        lease = self.held(draw)
        if lease is not None:
            self.same("processes.release", lease)

    @rule(data=DATA)
    def break_lease(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("processes.break_lease", self.process_id(draw))

    @rule(data=DATA)
    def complete_leased(self, data: st.DataObject) -> None:
        """A worker ends its process, or somebody else tries to while it is held."""
        draw = self.begin(data)
        lease = self.held(draw)
        if lease is not None:
            mine = lease if draw.rarely(2) else None
            self.same("processes.complete", lease.process_id, draw.pick(OUTPUTS), lease=mine)
            self.look(lease.process_id)

    # --- grants ---------------------------------------------------------------------------------------------------------

    @rule(data=DATA)
    def grant(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("processes.grant", self.scope(draw), self.process_id(draw), descriptor=self.descriptor(draw))

    def granted(self, draw: Draw) -> tuple[Scope, str]:
        """Mostly a grant that there is."""
        some = list(self.state.grants.values())
        if some and not draw.rarely(6):
            grant = draw.pick(some)
            return grant.scope, grant.process_id
        return self.scope(draw), self.process_id(draw)

    @rule(data=DATA)
    def revoke(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        scope, process_id = self.granted(draw)
        if draw.rarely(4):
            self.on_handle(self.handle(draw), "revoke", process_id, frame_id=draw.pick(FRAMES))
        else:
            self.same("processes.revoke", scope, process_id)
        self.same("processes.grants_for", process_id)

    @rule(data=DATA)
    def transfer(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        source, first = self.granted(draw)
        others = [each.process_id for each in self.state.grants.values() if each.scope == source] or [first]
        process_ids = draw.pick(([first], list(dict.fromkeys([first, draw.pick(others)])), [first, first], []))
        if draw.rarely(3):
            self.on_handle(self.handle(draw), "transfer", self.scope(draw), process_ids, frame_id=source.frame_id)
        else:
            self.same("processes.transfer", source, self.scope(draw), process_ids)
        self.same("processes.grants_for", first)

    @rule(data=DATA)
    def use_a_handle(self, data: st.DataObject) -> None:
        """What a session may do with a process it was granted, and may not with another."""
        draw = self.begin(data)
        scope, process_id = self.granted(draw)
        bound = self.handle(draw, scope.session_id)
        verb = draw.pick(("signal", "cancel", "share", "get"))
        if verb == "signal":
            self.on_handle(bound, verb, process_id, *self.signalled(draw), learn=True, signal_id=draw.pick((None, *KEYS)))
        elif verb == "share":
            self.on_handle(bound, verb, process_id, self.scope(draw), descriptor=self.descriptor(draw))
        else:
            self.on_handle(bound, verb, process_id)

    @rule(data=DATA)
    def prune(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("processes.prune", older_than_ms=draw.pick(AGES_MS), dry_run=draw.rarely(3))
        if self.state.processes:
            self.same("processes.get", draw.pick(list(self.state.processes)))


class ProcessMachine(Holding):
    """Triggers and artifacts, and everything before."""

    @rule(data=DATA)
    def subscribe(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("triggers.subscribe", draw_subscription(draw, self.source, self.scopes(draw)), learn=True)

    @rule(data=DATA)
    def subscribe_plainly(self, data: st.DataObject) -> None:
        """Under a key, with little to choose: the same wish comes again, or almost the same."""
        draw = self.begin(data)
        wanted = draw_subscription(Draw(data), self.source, (Scope(self.ids[0]), Scope(self.ids[0])))
        self.same("triggers.subscribe", replace(wanted, registration_key="k1"), learn=True)
        if draw.rarely(2):
            other = replace(wanted, registration_key="k1", name=draw.pick((wanted.name, "other")))
            self.same("triggers.subscribe", other, learn=True)

    def subscription(self, draw: Draw) -> Subscription | None:
        if not self.state.subscriptions:
            self.same("triggers.subscribe", draw_subscription(draw, self.source, self.scopes(draw)), learn=True)
        return draw.pick(list(self.state.subscriptions.values())) if self.state.subscriptions else None

    @rule(data=DATA)
    def unsubscribe(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        found = self.subscription(draw)
        handle = "trigger:99" if found is None else found.handle
        registrant = None if found is None else found.registrant
        if registrant is not None or draw.rarely(5):
            mine = registrant is not None and not draw.rarely(6)
            self.same("triggers.cancel", registrant.session_id if mine and registrant else draw.pick(self.ids), handle)
        else:
            self.same("triggers.cancel_host", handle)
        self.same("triggers.get", handle)
        self.same("triggers.emit", self.happening(draw))

    @rule(data=DATA)
    def unsubscribe_the_host(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        found = self.subscription(draw)
        if found is not None and draw.rarely(2):
            self.same("triggers.cancel_host", found.handle)

    def happening(self, draw: Draw) -> OccurrenceRequest:
        """Something that mostly somebody waits for."""
        request, found = draw_occurrence(draw, self.source), self.subscription(draw)
        return request if found is None or draw.rarely(6) else replace(request, source_key=found.source_key)

    @rule(data=DATA)
    def delete_for_session(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if draw.rarely(3):
            self.same("triggers.delete_for_session", draw.pick(self.ids))
            self.pages("triggers.undelivered", "deliveries", size=2)

    def occurrence_id(self, draw: Draw) -> str:
        known = list(self.state.occurrences)
        return draw.pick(known[::-1]) if known and not draw.rarely(12) else "trigger:nobody"

    @rule(data=DATA)
    def record_and_reserve(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        occurrence = self.same("triggers.record_occurrence", self.happening(draw))
        if occurrence is not None and not draw.rarely(3):
            self.same("triggers.reserve", occurrence.occurrence_id)
        if draw.rarely(2):
            self.same("triggers.prune", older_than_ms=0)

    @rule(data=DATA)
    def reserve(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        occurrence_id = self.occurrence_id(draw)
        self.same("triggers.reserve", occurrence_id)
        self.pages("triggers.deliveries", "deliveries", occurrence_id, size=2)

    @rule(data=DATA)
    def emit(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        report = self.same("triggers.emit", self.happening(draw))
        for process_id in () if report is None else report.started[:2]:
            self.same("processes.get", process_id)
            self.same("processes.grants_for", process_id)

    @rule(data=DATA)
    def emit_again(self, data: st.DataObject) -> None:
        """The same occurrence after its deliveries, its sessions or its processes changed, or were forgotten."""
        draw = self.begin(data)
        request = self.happening(draw)
        self.same("triggers.emit", request)
        if draw.rarely(2):
            self.same("triggers.prune", older_than_ms=0)
        if draw.rarely(4):
            session_id = draw.pick(self.ids)
            self.same("sessions.delete", session_id)
            self.same("sessions.create", session_id)
        self.same("triggers.emit", request)

    @rule(data=DATA)
    def redrive(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if not self.model.triggers.undelivered():
            occurrence = self.same("triggers.record_occurrence", self.happening(draw))
            self.same("triggers.reserve", "trigger:nobody" if occurrence is None else occurrence.occurrence_id)
        self.same("triggers.redrive", limit=draw.pick((3, 1, 100)))
        self.pages("triggers.undelivered", "deliveries", size=2)

    @rule(data=DATA)
    def fire(self, data: st.DataObject) -> None:
        """Some time passes, and the due instants fire."""
        draw = self.begin(data)
        if not self.state.due_ms or draw.rarely(6):
            wanted = draw_subscription(draw, self.source, self.scopes(draw))
            self.same("triggers.subscribe", replace(wanted, schedule=draw.pick(INTERVALS), source_key=None), learn=True)
        for _ in range(2):
            self.tick(draw.pick((500, 0, 1500, 4000)))
            self.same("triggers.tick", limit=draw.pick((100, 1, 3)))

    @rule(data=DATA)
    def prune_occurrences(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        self.same("triggers.prune", older_than_ms=draw.pick(AGES_MS), dry_run=draw.rarely(3))

    # --- artifacts ------------------------------------------------------------------------------------------------------

    @rule(data=DATA)
    def put(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        namespace, ref = draw.pick(("raw", "module", "process_env")), draw.pick((None, "r1", "r1", "r2", ENVS[0]))
        for content in (draw.pick((b"one", b"two")), draw.pick((b"one", b"two"))):
            self.same("artifacts.put", namespace, content, ref=ref, descriptor=draw.pick((None, "d1", "d2")))
        self.same("artifacts.get", namespace, "r1")

    @rule(data=DATA)
    def put_env(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        for spec in draw.most(SPECS):
            self.same("artifacts.put_env", spec)

    @rule(data=DATA)
    def delete_artifact(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        known = [key for key in self.state.artifacts if key[0] == "raw"]
        namespace, ref = draw.pick(known) if known and not draw.rarely(4) else ("process_env", draw.pick(ENVS))
        self.same("artifacts.delete", str(namespace), ref)

    @rule(data=DATA)
    def collect(self, data: st.DataObject) -> None:
        draw = self.begin(data)
        if draw.rarely(2):
            self.name_environments(draw)
        self.same("artifacts.collect", older_than_ms=draw.pick(AGES_MS), dry_run=draw.rarely(3))
        self.pages("artifacts.list", "entries", "process_env", size=2)

    def name_environments(self, draw: Draw) -> None:
        """A subscription and a process name one environment each, and nobody the third."""
        for spec in SPECS:
            self.same("artifacts.put_env", spec)
        wanted = draw_subscription(draw, self.source, self.scopes(draw))
        wanted = replace(wanted, target=ProcessInput("job", {}), registrant=None, registration_key=None, env_ref=ENVS[1])
        self.same("triggers.subscribe", wanted, learn=True)
        self.tick(3)
