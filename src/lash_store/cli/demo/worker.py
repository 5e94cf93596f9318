"""A worker: an operating system process that does what a line on its standard input says, and tells how it goes.

    python -m lash_store.cli.demo.worker

The first line is where the store is, so that no password is ever an argument. When standard input ends, so does the worker,
whatever it is doing: none outlives the demo. Told to stop at a point, it hangs there until the kill.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from lash_store import Append, Commit, LeaseLost, NodeDraft, StatementEvent, Store
from lash_store.cli.demo import agent

DEMO_IS_GONE = 3  # the exit code of a worker whose demo ended first
CONNECTIONS = 2  # of each worker to a PostgreSQL: one for calls, one spare


class Place(Struct, frozen=True):
    """Where the store is, and what this worker is called."""

    url: str
    schema: str
    name: str


class Order(Struct, frozen=True, kw_only=True):
    """What to do next. `pace_ms`: how long each thought seems to take, so that people can follow."""

    do: str
    lease_ms: int = 30_000
    stop_at: str | None = None
    pace_ms: int = 0
    session_id: str = ""
    turn_id: str = ""
    revision: int = 0


def main() -> None:
    """Work until standard input ends."""
    orders = Orders()
    place = msgspec.json.decode(orders.next(), type=Place)
    voice = Voice()
    options: dict[str, Any] = {"schema": place.schema, "migrate": False, "pool_size": CONNECTIONS}
    with Store.open(place.url, on_statement=voice.statement, **options) as store:
        voice.note("ready")
        while True:
            order = msgspec.json.decode(orders.next(), type=Order)
            voice.begin(order)
            DO[order.do](store, place.name, order, voice)


class Orders:
    """Standard input, read beside the work: its end must be noticed in the middle of anything."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        # No cleaning up, as after a kill: what is half done must not matter.
        os._exit(DEMO_IS_GONE)

    def next(self) -> str:
        """The next line, once there is one."""
        return self._lines.get()


class Voice:
    """Tells the demo what happens, one JSON object a line, and hangs where it was told to."""

    def __init__(self) -> None:
        self._order = Order(do="nothing")

    def begin(self, order: Order) -> None:
        """From now on we follow this order."""
        self._order = order

    def note(self, kind: str, **facts: object) -> None:
        """Something happened."""
        if kind == "thought":
            time.sleep(self._order.pace_ms / 1000)
        sys.stdout.write(msgspec.json.encode({"kind": kind, **facts}).decode() + "\n")
        sys.stdout.flush()

    def reach(self, point: str) -> None:
        """We are at a point. If it is the one to be killed at, tell and wait for the end."""
        if point == self._order.stop_at:
            self.note("point", point=point)
            threading.Event().wait()

    def statement(self, event: StatementEvent) -> None:
        """After each statement, inside the open transaction: nodes, usage and receipt are written, nothing is committed."""
        if "INSERT INTO {commits}" in event.sql:
            self.reach("committing")


def serve(store: Store, owner: str, order: Order, voice: Voice) -> None:
    """Answer one message, whichever session has one."""
    served = agent.serve(store, owner, lease_ms=order.lease_ms, watch=voice)
    voice.note("served", served=served)


def job(store: Store, owner: str, order: Order, voice: Voice) -> None:
    """Run one process to its end. Whoever loses the lease takes it again, under a higher fence."""
    incarnation = secrets.token_hex(8)
    while True:
        try:
            leased = agent.run_job(store, owner, incarnation=incarnation, lease_ms=order.lease_ms, watch=voice)
        except LeaseLost:
            continue
        voice.note("worked", process=leased.process.process_id, fence=leased.lease.fence)
        return


def race(store: Store, owner: str, order: Order, voice: Voice) -> None:
    """Commit a turn that another worker commits at the same moment, on the same revision."""
    body = {"role": "agent", "text": f"Both of us say: {order.turn_id}."}
    turn = Commit(expected_revision=order.revision, turn_id=order.turn_id, graph=Append([NodeDraft(body=body)]))
    receipt = store.sessions.commit(order.session_id, turn)
    voice.note("raced", receipt=receipt)


def tick(store: Store, owner: str, order: Order, voice: Voice) -> None:
    """Fire what the schedules say, as every worker may."""
    report = store.triggers.tick()
    voice.note("ticked", fired=report.fired, started=report.started)


DO: dict[str, Callable[[Store, str, Order, Voice], None]] = {
    "serve": serve,
    "job": job,
    "race": race,
    "tick": tick,
}

if __name__ == "__main__":
    main()
