"""The library itself as one who is measured, on either engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import apsw
import asyncpg

from bench.load import Turn, random_text
from bench.subject import Place, Subject, serve
from lash_store import (
    Append,
    AsyncSessionHandle,
    AsyncStore,
    BatchDraft,
    Claim,
    Commit,
    EventType,
    NodeDraft,
    ProcessInput,
    Registration,
    RevisionConflict,
    __version__,
    active_path,
)

ROLES = ("user", "assistant")
INBOXES = 64  # sessions that share the jobs: at most one claim at a time in each
JOB_BYTES = 400
IDLE_MS = 20  # a worker that found nothing looks whether the run is over; its wait must not be counted as work
LEASE_MS = 60_000
NODES_PER_COMMIT = 10_000


class Ours(Subject):
    """Everything through the public API."""

    def __init__(self, *, schema: str = "lash_store", durability: str = "full") -> None:
        self._schema = schema
        self._durability: Any = durability
        self._handles: dict[str, AsyncSessionHandle] = {}
        self._revisions: dict[str, int] = {}
        self._keys = itertools.count()
        self._claims: list[Claim] = []
        self._inboxes_made: asyncio.Future[None] | None = None

    async def open(self, place: Place) -> dict[str, str]:
        """Open the store; it makes its tables."""
        self._place = place
        self.store = await AsyncStore.open(
            place.url, schema=self._schema, pool_size=place.pool, durability=self._durability, blobs="database"
        )
        return {
            "lash-store": __version__,
            "asyncpg": asyncpg.__version__,
            "apsw": apsw.apsw_version(),
            "sqlite": apsw.sqlite_lib_version(),
        }

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()

    # --- turns ------------------------------------------------------------------------------------------------------------

    async def turn(self, session: str, turn: Turn) -> None:
        """Nodes, checkpoint, head and receipt in one commit at the known revision."""
        await self._commit(session, turn.messages, turn_id=turn.key, checkpoint={"memory": turn.memory.encode()})

    async def _commit(self, session: str, messages: tuple[str, ...], **more: Any) -> None:
        drafts = [NodeDraft(body={"role": ROLES[number % 2], "text": text}) for number, text in enumerate(messages)]
        revision = self._revisions.get(session, 0)
        receipt = await self._handle(session).commit(Commit(expected_revision=revision, graph=Append(drafts), **more))
        self._revisions[session] = receipt.revision

    def _handle(self, session: str) -> AsyncSessionHandle:
        if session not in self._handles:
            self._handles[session] = self.store.session(session)
        return self._handles[session]

    async def deepen(self, session: str, turns: int) -> None:
        """Large commits."""
        left = turns * 2
        while left:
            count = min(left, NODES_PER_COMMIT)
            await self._commit(session, tuple(random_text(400) for _ in range(count)))
            left -= count

    async def plant(self, session: str, trunk: int, branches: int, length: int) -> None:
        """A tree: a trunk, and branches that all leave it at its end. The head stands at the end of the last one."""
        await self._commit(session, tuple(random_text(400) for _ in range(trunk)))
        fork = (await self._handle(session).get()).leaf_id
        assert fork is not None
        per_commit = max(1, NODES_PER_COMMIT // length)
        for start in range(0, branches, per_commit):
            drafts: list[NodeDraft] = []
            for _ in range(start, min(branches, start + per_commit)):
                drafts.append(NodeDraft(body={"role": "user", "text": random_text(400)}, parent_id=fork))
                drafts += [NodeDraft(body={"role": "user", "text": random_text(400)}) for _ in range(length - 1)]
            receipt = await self._handle(session).commit(Commit(expected_revision=None, graph=Append(drafts)))
            self._revisions[session] = receipt.revision

    # --- reading ----------------------------------------------------------------------------------------------------------

    async def resume(self, session: str) -> int:
        """The active path, verified, with its checkpoint."""
        return len((await self._handle(session).load(active_path())).nodes)

    async def tail(self, session: str) -> int:
        """The last 50 nodes of the active path."""
        return len((await self._handle(session).load(active_path(last=50))).nodes)

    async def texts(self, session: str) -> list[str]:
        """Every message."""
        return [node.body["text"] for node in (await self._handle(session).load()).nodes]

    async def body_bytes(self, session: str) -> int:
        """What the bodies of its nodes weigh as compact JSON, which is how they are stored."""
        nodes = (await self._handle(session).load()).nodes
        return sum(len(json.dumps(node.body, separators=(",", ":"))) for node in nodes)

    async def recent(self) -> int:
        """The 50 newest sessions."""
        return len((await self.store.sessions.list(limit=50)).sessions)

    # --- sessions ---------------------------------------------------------------------------------------------------------

    async def fork(self, session: str, new: str, turns: int) -> None:
        """A session over the path to one commit."""
        await self._handle(session).fork(new, at=turns)

    async def add(self, session: str, key: str, text: str) -> bool:
        """Look at the head, commit at its revision. A session that is not there yet is made."""
        handle = self._handle(session)
        draft = NodeDraft(body={"role": "user", "text": text})
        revision = (await handle.create()).revision
        try:
            await handle.commit(Commit(expected_revision=revision, turn_id=key, graph=Append([draft])))
        except RevisionConflict:
            return False
        return True

    async def create(self, session: str) -> None:
        """An empty session."""
        await self._handle(session).create()

    async def prune(self, session: str) -> None:
        """Drop all checkpoint versions but the newest."""
        await self.store.maintenance.collect(keep_checkpoints=1, session_id=session)

    async def delete(self, session: str) -> None:
        """Delete it with all its rows."""
        await self._handle(session).delete()

    # --- jobs -------------------------------------------------------------------------------------------------------------

    async def enqueue(self, number: int) -> None:
        """One batch into one of the inboxes."""
        if self._inboxes_made is None or not self._inboxes_made.done():
            await self._inboxes()
        await self.store.queue.enqueue(f"inbox-{number % INBOXES}", [{"text": random_text(JOB_BYTES)}])

    async def _inboxes(self) -> None:
        """Make them once, whoever comes first."""
        if self._inboxes_made is None:
            self._inboxes_made = asyncio.ensure_future(self._make_inboxes())
        await self._inboxes_made

    async def _make_inboxes(self) -> None:
        for number in range(INBOXES):
            await self.store.sessions.create(f"inbox-{number}")

    async def enqueue_many(self, count: int) -> None:
        """Many batches in one commit."""
        await self._inboxes()
        drafts = [
            BatchDraft(session_id=f"inbox-{number % INBOXES}", payloads=[{"text": random_text(JOB_BYTES)}], merge_key="any")
            for number in range(count)
        ]
        await self._handle("inbox-0").commit(Commit(expected_revision=None, graph=Append([]), enqueues=drafts))

    async def work(self, done: Callable[[], bool], ran: Callable[[], None], workers: int) -> None:
        """Claim the job that waits longest, settle it."""
        await self._inboxes()
        await asyncio.gather(*(self._worker(f"worker-{number}", done, ran, 1) for number in range(workers)))

    async def work_many(self, done: Callable[[], bool], ran: Callable[[], None]) -> None:
        """Claim and settle all jobs of one inbox at once."""
        await self._worker("worker", done, ran, 1_000)

    async def _worker(self, owner: str, done: Callable[[], bool], ran: Callable[[], None], most: int) -> None:
        while not done():
            claim = await self.store.queue.claim_next(owner, lease_ms=LEASE_MS, max_batches=most)
            if claim is None:
                await self.store.queue.wait_ready(timeout_ms=IDLE_MS)
                continue
            for _ in claim.batches:
                ran()
            await self.store.queue.settle(claim)

    async def claim(self) -> None:
        """The job that waits longest."""
        claim = await self.store.queue.claim_next("worker", lease_ms=LEASE_MS, concurrent=True)
        assert claim is not None
        self._claims.append(claim)

    async def settle(self) -> None:
        """The job claimed last."""
        await self.store.queue.settle(self._claims.pop())

    async def crowd(self, count: int) -> None:
        """Real work in some sessions, and then younger work in `count` others, written straight into the tables."""
        await self._inboxes()
        for number in range(INBOXES * 4):
            await self.enqueue(number)
        await crowd(self._place.url, count)

    # --- events -----------------------------------------------------------------------------------------------------------

    async def register(self, process: str) -> None:
        """A process that notes things."""
        await self.store.processes.register(
            Registration(process_id=process, input=ProcessInput("bench"), event_types=[EventType(name="note")])
        )

    async def event(self, process: str) -> None:
        """One event."""
        await self.store.processes.append(process, "note", {"text": random_text(400)}, replay_key=f"key-{next(self._keys)}")


# --- a crowd of sessions --------------------------------------------------------------------------------------------------


async def crowd(url: str, count: int) -> None:
    """Copies of one session with one ready batch each, due after everything that is there."""
    if url.startswith("postgresql:"):
        connection = await asyncpg.connect(url)
        names = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'sessions' ORDER BY ordinal_position"
        )
        batch = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'batches' ORDER BY ordinal_position"
        )
        series = f"generate_series(1, {count}) AS g(n)"
        for table, columns in (("lash_store.sessions", names), ("lash_store.batches", batch)):
            await connection.execute(copies(table, [row[0] for row in columns], series))
            await connection.execute(f"ANALYZE {table}")
        await connection.close()
        return
    file = apsw.Connection(url)
    file.set_busy_timeout(10_000)
    series = f"(WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {count}) SELECT n FROM g) AS g"
    for table in ("lash_sessions", "lash_batches"):
        columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
        file.execute(copies(table, columns, series))
    file.close()


def copies(table: str, columns: list[str], series: str) -> str:
    """INSERT … SELECT of one inbox's first row under new session ids, one second younger."""
    fresh = {
        "session_id": "'crowd-' || g.n",
        "ready_ms": "s.updated_ms + 1000",
        "open_ms": "s.updated_ms + 1000",
        "available_ms": "s.available_ms + 1000",
    }
    chosen = ", ".join(fresh.get(column, f"s.{column}") for column in columns)
    order = "enqueue_seq" if "enqueue_seq" in columns else "session_id"
    first = f"(SELECT * FROM {table} WHERE session_id = 'inbox-0' ORDER BY {order} LIMIT 1) AS s"
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM {first} CROSS JOIN {series} WHERE true"


if __name__ == "__main__":
    serve(Ours(durability=sys.argv[1] if len(sys.argv) > 1 else "full"))
