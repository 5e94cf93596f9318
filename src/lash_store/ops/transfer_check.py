"""Checks rows that travel: every digest is computed again, and what a head counts must be there. Pure work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from lash_store import delta
from lash_store.encode import check
from lash_store.errors import Corrupt
from lash_store.model.artifact import Namespace
from lash_store.ops import artifacts, commits, deliveries, events, frames, occurrences, paths, processes, queue, triggers
from lash_store.ops.checkpoints import Component, checkpoint_digest
from lash_store.ops.sessions import session_digest
from lash_store.ops.transfer_table import Table, Values

S = TypeVar("S", bound=Struct)

COMMIT_COLUMNS = (
    *("session_id", "revision", "incarnation", "kind", "turn_id", "intent", "leaf_id", "current_frame_id"),
    *("checkpoint_digest", "result", "committed_ms", "digest"),
)


class Checker:
    """Takes the rows of one session or process in their order. Corrupt names the first that is not what it was."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._head: Values | None = None
        self._live_nodes = 0
        self._revisions: tuple[int, int] | None = None
        self._events = 0
        self._registered = False
        self._components: dict[str, Component] = {}
        self._newest: dict[str, bytes | None] = {}
        self._chain = _Chain(id)

    def row(self, table: Table, row: Values) -> None:
        """The next row."""
        look = _ROWS.get(table.name)
        if look is not None:
            look(self, row)

    def finish(self) -> None:
        """There are no more rows."""
        head = self._head
        if head is None:
            raise Corrupt("sessions", repr(self._id), "the row is missing")
        if "last_sequence" in head:
            self._finish_process(head)
        elif head["state"] == "live":
            self._finish_session(head)

    def _finish_session(self, head: Values) -> None:
        name = repr(self._id)
        if self._live_nodes != head["node_count"]:
            raise Corrupt("nodes", name, f"{self._live_nodes} live nodes are there, the head counts {head['node_count']}")
        if (missing := self._missing_commit(head)) is not None:
            raise Corrupt("commits", f"{name}@{missing}", "the row is missing")
        for component in self._components.values():
            if self._newest.get(component.component) != component.digest:
                row = f"{name}/{component.component!r}@{component.revision}"
                raise Corrupt("versions", row, "it is not the version the checkpoint names")
        if checkpoint_digest(self._components) != head["checkpoint_digest"]:
            raise Corrupt("versions", f"{name}@{head['revision']}", "a component of the checkpoint is missing")

    def _missing_commit(self, head: Values) -> int | None:
        """A revision without its commit. An earlier life took its commits along, up to where the history now begins."""
        begins = 0 if head["incarnation"] == 1 else head["history_floor"]
        if self._revisions is None:
            return head["revision"] if head["revision"] > begins else None
        first, last = self._revisions
        if first > begins + 1:
            return first - 1
        return None if last == head["revision"] else head["revision"]

    def _finish_process(self, head: Values) -> None:
        if head["pruned_ms"] is None and not self._registered:
            raise Corrupt("registrations", repr(self._id), "the row is missing")
        if head["pruned_ms"] is None and self._events != head["last_sequence"]:
            raise Corrupt("events", f"{self._id!r}#{head['last_sequence']}", "the row is missing")

    # --- of a session

    def session(self, row: Values) -> None:
        """Its names, and what the other rows are compared with."""
        names = (row["session_id"], row["name"], row["model"], row["cwd"], row["parent_session_id"], row["caused_by"])
        check(row["meta_digest"], session_digest(*names), table="sessions", row=repr(row["session_id"]))
        self._head = row

    def node(self, row: Values) -> None:
        """A tombstoned node whose body was erased has nothing left to compare."""
        self._live_nodes += row["tombstone_revision"] is None
        if row["body"] is not None or row["tombstone_revision"] is None:
            paths.verified(self._id, _as(paths.NodeRow, row))

    def commit(self, row: Values) -> None:
        """The history has no gaps."""
        commits.stored_record([row[name] for name in COMMIT_COLUMNS])
        first, last = self._revisions or (row["revision"], row["revision"] - 1)
        if row["revision"] != last + 1:
            raise Corrupt("commits", f"{self._id!r}@{last + 1}", "the row is missing")
        self._revisions = (first, row["revision"])

    def config(self, row: Values) -> None:
        """A config of the session."""
        frames.verified_config(self._id, (row["revision"], row["body"], row["digest"]), None)

    def frame(self, row: Values) -> None:
        """A frame of the session."""
        frames.verified_frame(self._id, [row[name] for name in ("frame_id", "body", "state", "digest", "created_ms", "ordinal")])

    def component(self, row: Values) -> None:
        """What the versions, which come after it, must end in."""
        self._components[row["component"]] = _as(Component, row)

    def version(self, row: Values) -> None:
        """Every version is rebuilt."""
        self._chain.rebuild(row)
        self._newest[row["component"]] = row["digest"]

    def batch(self, row: Values) -> None:
        """Work in the inbox."""
        queue.check_row(_as(queue.StoredBatch, row))

    # --- of a process

    def process(self, row: Values) -> None:
        """A pruned process has lost what could be compared."""
        self._head = row

    def registration(self, row: Values) -> None:
        """What the process is, and with it its output and reference."""
        head = self._head or {}
        if head.get("pruned_ms") is None:
            processes.verified(_as(processes.ProcessRow, {**head, "body": row["body"], "body_digest": row["digest"]}))
        self._registered = True

    def event(self, row: Values) -> None:
        """The log has no gaps, unless a prune is taking it away."""
        events.check_row(_as(events.EventRow, row))
        self._events += 1
        if self._head is not None and self._head["pruned_ms"] is None and row["sequence"] != self._events:
            raise Corrupt("events", f"{self._id!r}#{self._events}", "the row is missing")


class _Chain:
    """The version rebuilt last: the one after it may be a difference from it."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._last: tuple[str, int] | None = None
        self._data = b""

    def rebuild(self, row: Values) -> None:
        """The bytes of the next version, compared with their digest. A version without one removed the component."""
        name = f"{self._session_id!r}/{row['component']!r}@{row['revision']}"
        if row["digest"] is None:
            self._last = None
            return
        base = row["base_revision"]
        if row["frame"] is None or (base is not None and self._last != (row["component"], base)):
            raise Corrupt("versions", name, "a frame of its chain is missing")
        try:
            data = delta.expand(row["frame"], size=row["size"], base=b"" if base is None else self._data)
        except ValueError as error:
            raise Corrupt("versions", name, str(error)) from error
        if hashlib.sha256(data).digest() != row["digest"]:
            raise Corrupt("versions", name, "its bytes do not match their digest")
        self._last, self._data = (row["component"], row["revision"]), data


_ROWS: dict[str, Callable[[Checker, Values], None]] = {
    "sessions": Checker.session,
    "nodes": Checker.node,
    "commits": Checker.commit,
    "configs": Checker.config,
    "frames": Checker.frame,
    "components": Checker.component,
    "versions": Checker.version,
    "batches": Checker.batch,
    "processes": Checker.process,
    "registrations": Checker.registration,
    "events": Checker.event,
}


def check_shared(table: Table, row: Values) -> None:
    """A row of a table that belongs to the whole store."""
    look = _SHARED.get(table.name)
    if look is not None:
        look(row)


def _artifact(row: Values) -> None:
    try:
        namespace = Namespace(row["namespace"])
    except ValueError:
        raise Corrupt("artifacts", f"{row['namespace']}/{row['ref']}", "there is no such namespace") from None
    stored = artifacts.StoredArtifact(
        namespace=namespace, ref=row["ref"], data=row["data"], digest=row["digest"], byte_len=row["size"]
    )
    artifacts.verified(stored)


_SHARED: dict[str, Callable[[Values], Any]] = {
    "artifacts": _artifact,
    "deliveries": lambda row: deliveries.verified(_as(deliveries.StoredDelivery, row)),
    "occurrences": lambda row: occurrences.verified(_as(occurrences.StoredOccurrence, row)),
    "subscriptions": lambda row: triggers.verified(_as(triggers.StoredSubscription, row)),
}


def _as(kind: type[S], row: Values) -> S:
    return kind(**{name: row[name] for name in kind.__struct_fields__})
