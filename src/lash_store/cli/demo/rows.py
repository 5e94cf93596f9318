"""Raw rows of both engines, read without the store: what verifies the library must not be the library."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw

from lash_store.db.dialect import quoted
from lash_store.store.url import Target

BUSY_MS = 5_000
TABLE = re.compile(r"\{(\w+)\}")
Row = tuple[Any, ...]

# What a turn writes. A turn that did not commit leaves every one of these exactly as it was.
WRITTEN_BY_A_TURN = ("nodes", "commits", "versions", "components", "usage_entries", "usage_totals", "settled_keys", "events")


class Rows(Protocol):
    """A connection that only reads. Tables are written {name}."""

    def fetch(self, sql: str) -> list[Row]:
        """The rows of a query."""
        ...

    def whole(self) -> bool:
        """Whether the engine itself finds nothing wrong with the tables."""
        ...

    def content(self, attachment_id: str) -> bytes | None:
        """The bytes of an attachment, from where they are kept."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class SqliteRows:
    """A file, through the one SQLite library a process may use on it."""

    def __init__(self, path: str) -> None:
        self._path = path
        # A reader of a write-ahead log may have to recover it, which a read-only connection must not.
        self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        self._connection.set_busy_timeout(BUSY_MS)
        self._connection.pragma("query_only", True)

    def fetch(self, sql: str) -> list[Row]:
        """The rows of a query."""
        return [tuple(row) for row in self._connection.execute(TABLE.sub(r"lash_\1", sql))]

    def whole(self) -> bool:
        """SQLite's own check of every page and index."""
        return self.fetch("PRAGMA integrity_check") == [("ok",)]

    def content(self, attachment_id: str) -> bytes | None:
        """From the folder beside the file."""
        place = Path(f"{self._path}.attachments") / "sha256" / attachment_id[:2] / attachment_id
        return place.read_bytes() if place.is_file() else None

    def close(self) -> None:
        """Let go."""
        self._connection.close()


class PostgresRows:
    """A schema, through a connection of its own."""

    def __init__(self, dsn: str, schema: str) -> None:
        import asyncpg  # an extra; only this class needs it

        self._schema = schema
        self._runner = asyncio.Runner()
        self._connection: Any = self._runner.run(asyncpg.connect(dsn, server_settings={"default_transaction_read_only": "on"}))

    def fetch(self, sql: str) -> list[Row]:
        """The rows of a query."""
        query = TABLE.sub(lambda found: f"{quoted(self._schema)}.{found[1]}", sql)
        return [tuple(row) for row in self._runner.run(self._connection.fetch(query))]

    def whole(self) -> bool:
        """Every row of every table can be read, and every index is valid; deeper checks need an extension."""
        tables = [name for schema, name in self.fetch("SELECT schemaname, tablename FROM pg_tables") if schema == self._schema]
        invalid = self.fetch(
            """
            SELECT n.nspname
            FROM pg_index i
            JOIN pg_class c ON c.oid = i.indexrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE NOT i.indisvalid
            """
        )
        return len(fingerprint(self, tables)) > 0 and (self._schema,) not in invalid

    def content(self, attachment_id: str) -> bytes | None:
        """From the table of chunks."""
        rows = self.fetch("SELECT attachment_id, ordinal, data FROM {chunks} ORDER BY attachment_id, ordinal")
        chunks = [bytes(data) for owner, _, data in rows if owner == attachment_id]
        return b"".join(chunks) if chunks else None

    def close(self) -> None:
        """Let go."""
        self._runner.run(self._connection.close())
        self._runner.close()


def open_rows(target: Target) -> Rows:
    """A reader for the engine."""
    if target.path is not None:
        return SqliteRows(target.path)
    assert target.dsn is not None
    return PostgresRows(target.dsn, target.schema)


def fingerprint(rows: Rows, tables: Sequence[str] = WRITTEN_BY_A_TURN) -> dict[str, str]:
    """A hash of everything each table holds, in no particular order."""
    return {table: _hash(rows.fetch(f"SELECT * FROM {{{table}}}")) for table in tables}


def _hash(found: list[Row]) -> str:
    plain = sorted(repr([bytes(cell) if isinstance(cell, memoryview) else cell for cell in row]) for row in found)
    return hashlib.sha256("\n".join(plain).encode()).hexdigest()
