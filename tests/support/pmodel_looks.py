"""Everything the store can be asked about processes, triggers and artifacts, compared with the model."""

from __future__ import annotations

from lash_store import (
    Scope,
)
from tests.support.pmodel_drafts import (
    Draw,
)
from tests.support.pmodel_steps import Steps


class Looks(Steps):
    """Everything the store can be asked, compared with the model."""

    def look(self, process_id: str) -> None:
        """A process and its log."""
        self.same("processes.get", process_id)
        self.pages("processes.events", "events", process_id)

    def look_around(self, draw: Draw) -> None:
        process_id, session_id = self.process_id(draw), self.session_id(draw)
        self.same("processes.recent", process_id, limit=2)
        self.same("processes.count_through", process_id, draw.pick(("ping", "note")), draw.below(6))
        self.same("processes.wake_events", process_id)
        self.same("processes.grants_for", process_id)
        self.same("processes.has_grant", self.scope(draw), process_id)
        where = draw.pick(
            (
                {"kind": "job"},
                {"waiting": True},
                {"state": None, "originator_session_id": session_id},
                {"state": "completed"},
                {"definition": {"v": 1}, "state": None},
                {"wake_session_id": session_id, "waiting": False},
            )
        )
        self.pages("processes.list", "processes", size=2, **where)
        self.pages("processes.list_grants", "entries", self.scope(draw), size=2, live_only=draw.rarely(2))
        self.pages("triggers.list", "subscriptions", size=2, session_id=session_id, enabled=draw.pick((None, True, False)))

    def audit(self) -> None:
        """Everything the store says."""
        self.pages("processes.list", "processes", state=None)
        self.pages("processes.non_terminal", "processes")
        for process_id, process in self.state.processes.items():
            if process.last_sequence or process.pruned:
                self.pages("processes.events", "events", process_id, size=3)
                self.same("processes.wake_events", process_id)
        for session_id in self.ids:
            self.same("sessions.get", session_id)
            self.pages("queue.list", "batches", session_id)
            for frame_id in (None, "f1"):
                self.pages("processes.list_grants", "entries", Scope(session_id, frame_id))
        self.pages("triggers.list", "subscriptions")
        self.pages("triggers.undelivered", "deliveries", size=2)
        for occurrence_id in list(self.state.occurrences)[:8]:
            self.same("triggers.occurrence", occurrence_id)
            self.pages("triggers.deliveries", "deliveries", occurrence_id)
        for namespace in ("module", "raw", "process_env"):
            self.pages("artifacts.list", "entries", namespace)

    def teardown(self) -> None:
        """After the last step: everything is as the model says."""
        if not self.in_step:
            self.door = 0
            self.audit()
            self.world.at_end()
