"""The port, measured like everybody else: asyncpg, BEGIN, one statement per row, COMMIT."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from bench.load import Turn, random_text
from bench.subject import Place, Subject, serve

SCHEMA = (Path(__file__).parent / "schema.sql").read_text()
POLL_S = 0.05
INBOXES = 64
LEASE_MS = 60_000


class Refused(Exception):
    """The head is not where the writer thought."""


class Port(Subject):
    """Sessions, inbox and events of the original design."""

    async def open(self, place: Place) -> dict[str, str]:
        """Make the tables."""
        self._pool: Any = await asyncpg.create_pool(place.url, min_size=place.pool, max_size=place.pool)
        await self._pool.execute(SCHEMA)
        self._heads: dict[str, int] = {}
        self._keys = itertools.count()
        return {"asyncpg": asyncpg.__version__}

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()

    # --- turns ------------------------------------------------------------------------------------------------------------

    async def turn(self, session: str, turn: Turn) -> None:
        """One commit at the known revision."""
        expected = self._heads.get(session, 0)
        self._heads[session] = await self._commit(session, turn.key, turn.messages, turn.memory, expected)

    async def deepen(self, session: str, turns: int) -> None:
        """Whole-graph commits of many nodes."""
        for start in range(0, turns * 2, 1_000):
            texts = tuple(random_text(400) for _ in range(min(1_000, turns * 2 - start)))
            self._heads[session] = await self._commit(session, f"deep-{start}", texts, "", self._heads.get(session, 0))

    async def _commit(self, session: str, turn_id: str, messages: tuple[str, ...], memory: str, expected: int) -> int:
        nodes = node_texts(session, turn_id, messages)
        content = zlib.compress(json.dumps({"memory": memory}).encode())
        digest = hashlib.sha256(content).hexdigest()
        intent = hashlib.sha256(json.dumps([nodes, digest]).encode()).hexdigest()
        async with self._pool.acquire() as connection, connection.transaction():
            head = await connection.fetchrow(
                "SELECT head_revision, head_json FROM lash_sessions WHERE session_id = $1 FOR UPDATE", session
            )
            before = await connection.fetchrow(
                "SELECT turn_commit_hash, result_json FROM lash_runtime_turn_commits WHERE session_id = $1 AND turn_id = $2",
                session,
                turn_id,
            )
            if before is not None:
                return int(json.loads(before["result_json"])["head_revision"])
            revision = 0 if head is None else int(head["head_revision"])
            if revision != expected:
                raise Refused(session)
            await connection.execute(
                "INSERT INTO lash_blobs (hash, content) VALUES ($1, $2) ON CONFLICT (hash) DO NOTHING", digest, content
            )
            await self._write_nodes(connection, session, nodes)
            await self._write_head(connection, session, revision + 1, digest, nodes)
            await self._stamp(connection, session, turn_id, intent, revision + 1, digest)
        return revision + 1

    async def _write_nodes(self, connection: Any, session: str, nodes: list[tuple[str, str]]) -> None:
        for node_id, text in nodes:
            await connection.execute(
                "INSERT INTO lash_graph_nodes (session_id, node_id, node_json) VALUES ($1, $2, $3) "
                "ON CONFLICT (session_id, node_id) DO UPDATE SET node_json = EXCLUDED.node_json, tombstoned = FALSE",
                session,
                node_id,
                text,
            )

    async def _write_head(self, connection: Any, session: str, revision: int, digest: str, nodes: list[tuple[str, str]]) -> None:
        count = await connection.fetchval(
            "SELECT count(*) FROM lash_graph_nodes WHERE session_id = $1 AND NOT tombstoned", session
        )
        head = json.dumps(
            {"session_id": session, "head_revision": revision, "leaf_node_id": nodes[-1][0], "graph_node_count": count}
        )
        done = await connection.execute(
            "INSERT INTO lash_sessions (session_id, head_revision, head_json, checkpoint_ref) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (session_id) DO UPDATE SET head_revision = EXCLUDED.head_revision, head_json = EXCLUDED.head_json, "
            "checkpoint_ref = EXCLUDED.checkpoint_ref WHERE lash_sessions.head_revision = $5",
            session,
            revision,
            head,
            digest,
            revision - 1,
        )
        if done != "INSERT 0 1":
            raise Refused(session)

    async def _stamp(self, connection: Any, session: str, turn_id: str, intent: str, revision: int, digest: str) -> None:
        result = json.dumps({"head_revision": revision, "checkpoint_ref": digest})
        await connection.execute(
            "INSERT INTO lash_runtime_turn_commits VALUES ($1, $2, $3, $4, $5)", session, turn_id, intent, result, now_ms()
        )

    # --- reading ----------------------------------------------------------------------------------------------------------

    async def resume(self, session: str) -> int:
        """Head, the whole graph and the checkpoint, in statements of their own; the path is picked out here."""
        await self._pool.fetchrow(
            "SELECT head_revision, head_json, checkpoint_ref FROM lash_sessions WHERE session_id = $1", session
        )
        rows = await self._pool.fetch(
            "SELECT node_id, node_json FROM lash_graph_nodes WHERE session_id = $1 AND NOT tombstoned ORDER BY seq", session
        )
        await self._pool.fetchrow(
            "SELECT content FROM lash_blobs WHERE hash = (SELECT checkpoint_ref FROM lash_sessions WHERE session_id = $1)",
            session,
        )
        return len([json.loads(row["node_json"]) for row in rows])

    async def tail(self, session: str) -> int:
        """The end of the whole graph: there is no other way to ask for it."""
        return min(50, await self.resume(session))

    async def texts(self, session: str) -> list[str]:
        """Every message."""
        rows = await self._pool.fetch("SELECT node_json FROM lash_graph_nodes WHERE session_id = $1 ORDER BY seq", session)
        return [json.loads(row[0])["text"] for row in rows]

    async def add(self, session: str, key: str, text: str) -> bool:
        """Look at the head, commit at its revision."""
        head = await self._pool.fetchval("SELECT head_revision FROM lash_sessions WHERE session_id = $1", session)
        try:
            await self._commit(session, key, (text,), "", head or 0)
        except (Refused, asyncpg.UniqueViolationError):
            return False
        return True

    # --- jobs -------------------------------------------------------------------------------------------------------------

    async def enqueue(self, number: int) -> None:
        """A batch row and an item row."""
        batch = f"qwb:{os.urandom(32).hex()}"
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(
                "INSERT INTO lash_queued_work_batches (batch_id, session_id, available_at_ms, enqueued_at_ms) "
                "VALUES ($1, $2, $3, $3)",
                batch,
                f"inbox-{number % INBOXES}",
                now_ms(),
            )
            await connection.execute(
                "INSERT INTO lash_queued_work_items VALUES ($1, 0, $2, $3)",
                batch,
                f"{batch}:item:0",
                json.dumps({"text": random_text(400)}),
            )

    async def work(self, done: Callable[[], bool], ran: Callable[[], None], workers: int) -> None:
        """Each worker goes round the inboxes; an empty round is followed by a pause of 50 ms."""
        await asyncio.gather(*(self._worker(number, done, ran) for number in range(workers)))

    async def _worker(self, first: int, done: Callable[[], bool], ran: Callable[[], None]) -> None:
        while not done():
            found = False
            for number in range(INBOXES):
                found = await self._one(f"inbox-{(first + number) % INBOXES}", ran) or found
                if done():
                    return
            if not found:
                await asyncio.sleep(POLL_S)

    async def _one(self, session: str, ran: Callable[[], None]) -> bool:
        claimed = await self._claim(session)
        if claimed is None:
            return False
        batch, token = claimed
        ran()
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT 1 FROM lash_sessions WHERE session_id = $1 FOR UPDATE", session)
            await connection.execute(
                "DELETE FROM lash_queued_work_batches WHERE batch_id = $1 AND claim_token = $2", batch, token
            )
        return True

    async def _claim(self, session: str) -> tuple[str, str] | None:
        token = os.urandom(16).hex()
        async with self._pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(
                "SELECT batch_id FROM lash_queued_work_batches WHERE session_id = $1 AND available_at_ms <= $2 "
                "AND (claim_token IS NULL OR claim_expires_at_ms <= $2) ORDER BY enqueue_seq LIMIT 33 FOR UPDATE SKIP LOCKED",
                session,
                now_ms(),
            )
            if not rows:
                return None
            batch = rows[0]["batch_id"]
            await connection.execute(
                "UPDATE lash_queued_work_batches SET claim_token = $2, claim_expires_at_ms = $3, "
                "claim_fencing_token = claim_fencing_token + 1 WHERE batch_id = $1",
                batch,
                token,
                now_ms() + LEASE_MS,
            )
            await connection.fetch(
                "SELECT payload_json FROM lash_queued_work_items WHERE batch_id = $1 ORDER BY item_index", batch
            )
        return batch, token

    # --- events -----------------------------------------------------------------------------------------------------------

    async def register(self, process: str) -> None:
        """A process row."""
        await self._pool.execute(
            "INSERT INTO lash_processes VALUES ($1, $2, 0)", process, json.dumps({"process_id": process, "kind": "bench"})
        )

    async def event(self, process: str) -> None:
        """Lock, look for the replay key, append, write the record again."""
        key = f"key-{next(self._keys)}"
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(
                "SELECT record_json, last_sequence FROM lash_processes WHERE process_id = $1 FOR UPDATE", process
            )
            await connection.fetchrow("SELECT 1 FROM lash_process_events WHERE process_id = $1 AND replay_key = $2", process, key)
            sequence = row["last_sequence"] + 1
            body = json.dumps({"type": "note", "payload": {"text": random_text(400)}})
            await connection.execute("INSERT INTO lash_process_events VALUES ($1, $2, $3, $4)", process, sequence, body, key)
            await connection.execute(
                "UPDATE lash_processes SET record_json = $2, last_sequence = $3 WHERE process_id = $1",
                process,
                row["record_json"],
                sequence,
            )


def node_texts(session: str, turn_id: str, messages: tuple[str, ...]) -> list[tuple[str, str]]:
    """The nodes of a turn as JSON, each naming its parent."""
    ids = [f"{session}:{turn_id}:{number}" for number in range(len(messages))]
    parents = [None, *ids[:-1]]
    return [
        (node_id, json.dumps({"node_id": node_id, "parent": parent, "text": text}))
        for node_id, parent, text in zip(ids, parents, messages, strict=True)
    ]


def now_ms() -> int:
    """The client's clock, as in the original."""
    return int(time.time() * 1000)


if __name__ == "__main__":
    serve(Port())
