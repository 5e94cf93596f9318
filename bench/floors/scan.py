"""The floor of a load: the rows of the path by their key ranges, then a digest over each row and its JSON. Nothing is compared.

`resume` is the scan with digest and decode, `plain` the scan alone.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import apsw
import asyncpg
from msgspec.json import decode

from bench.subject import Place, Subject, serve

COLUMNS = """node_id, parent_id, kind, body, frame_id, caused_by, digest, created_ms, position, depth, created_revision,
tombstone_revision"""
SCAN = f"""
SELECT {COLUMNS} FROM {{nodes}} WHERE session_id = {{one}} AND branch = {{two}} AND depth <= {{three}}
UNION ALL
SELECT {COLUMNS} FROM {{nodes}} WHERE session_id = {{one}} AND branch = {{four}}
"""
RUNS = """
SELECT b.parent_branch, b.parent_depth, b.branch FROM {nodes} n
JOIN {branches} b ON b.session_id = n.session_id AND b.branch = n.branch
JOIN {sessions} s ON s.session_id = n.session_id AND s.leaf_id = n.node_id WHERE n.session_id = {one}
"""


class Scan(Subject):
    """Reads the database the library wrote."""

    async def open(self, place: Place) -> dict[str, str]:
        """A connection of its own."""
        self._postgres = place.url.startswith("postgresql:")
        prefix, mark = ("lash_store.", "$") if self._postgres else ("lash_", "?")
        names = {name: prefix + name for name in ("nodes", "branches", "sessions")}
        marks = dict(zip(("one", "two", "three", "four"), (f"{mark}{number}" for number in (1, 2, 3, 4)), strict=True))
        self._scan, self._runs = SCAN.format(**names, **marks), RUNS.format(**names, **marks)
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._connection: Any = await asyncpg.connect(place.url) if self._postgres else apsw.Connection(place.url)
        return {}

    async def plain(self, session: str) -> int:
        """The scan alone."""
        return len(await self._rows(session))

    async def resume(self, session: str) -> int:
        """The scan, and for each row its digest and its JSON."""
        rows = await self._rows(session)
        for node_id, parent_id, kind, body, *_ in rows:
            sha256("\0".join((node_id, parent_id or "", kind, body)).encode()).digest()
            decode(body)
        return len(rows)

    async def _rows(self, session: str) -> list[Any]:
        if session not in self._keys:
            parent, depth, branch = (await self._ask(self._runs, session))[0]
            self._keys[session] = (parent if parent is not None else -1, depth if depth is not None else -1, branch)
        return await self._ask(self._scan, session, *self._keys[session])

    async def _ask(self, sql: str, *values: object) -> list[Any]:
        if self._postgres:
            return await self._connection.fetch(sql, *values)
        return self._connection.execute(sql, values).fetchall()

    async def close(self) -> None:
        """Close the connection."""
        if self._postgres:
            await self._connection.close()
        else:
            self._connection.close()


if __name__ == "__main__":
    serve(Scan())
