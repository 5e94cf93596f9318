"""The floor of a commit on SQLite: apsw inserts the same rows in one transaction, with the same fsync and no checks."""

from __future__ import annotations

import itertools
from typing import Any

import apsw

from bench.floors.rows import TURN, Written, key_of, select, written
from bench.load import CHAT, SHAPES, Talk, Turn
from bench.ours import Ours
from bench.subject import Place, Subject, serve

SAMPLE = "sample-session"
SAMPLES = 48  # commits whose rows are written again and again, full frames among them


class RawSqlite(Subject):
    """Plain inserts on one connection, in the thread that asks."""

    async def open(self, place: Place) -> dict[str, str]:
        """Real commits in one file give the rows; a second file with the same tables takes them."""
        rows = await sample(place)
        self._turns = itertools.cycle(rows)
        self._numbers = itertools.count()
        self._connection = copy_of(place.url, place.url + "-floor")
        return {"apsw": apsw.apsw_version(), "sqlite": apsw.sqlite_lib_version()}

    async def turn(self, session: str, turn: Turn) -> None:
        """One transaction with all rows of one commit."""
        execute = self._connection.execute
        number = next(self._numbers)
        execute("BEGIN IMMEDIATE")
        for each in next(self._turns):
            place = each.columns.index(each.key)
            marks = ", ".join("?" * len(each.columns))
            for row in each.rows:
                fresh = (*row[:place], str(number).zfill(len(row[place])), *row[place + 1 :])
                execute(f"INSERT INTO lash_{each.table} VALUES ({marks})", fresh)
        execute("COMMIT")

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


async def sample(place: Place) -> list[list[Written]]:
    """The rows of some commits; those a commit updates are read as they are after the last."""
    ours = Ours()
    await ours.open(place)
    talk = Talk(SHAPES[CHAT])
    for _ in range(SAMPLES):
        await ours.turn(SAMPLE, talk.turn())
    await ours.close()
    connection = apsw.Connection(place.url)
    found = [rows_of(connection, revision) for revision in range(1, SAMPLES + 1)]
    connection.close()
    return found


def rows_of(connection: Any, revision: int) -> list[Written]:
    """The rows of one commit."""
    found: list[Written] = []
    key = key_of(TURN)
    for table, chosen in TURN.items():
        sql = select(TURN, table, key, lambda name: f"lash_{name}", "?")
        cursor = connection.execute(sql, (SAMPLE, revision) if chosen else (SAMPLE,))
        rows = cursor.fetchall()
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info(lash_{table})")]
        found.append(written(table, key, columns, rows))
    return found


def copy_of(source: str, target: str) -> apsw.Connection:
    """An empty file with the same tables and indexes, the same log and the same fsync."""
    original = apsw.Connection(source)
    statements = [
        row[0] for row in original.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type = 'index'")
    ]
    page_size = original.execute("PRAGMA page_size").get
    original.close()
    connection = apsw.Connection(target)
    connection.execute(f"PRAGMA page_size = {page_size}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
    for statement in statements:
        connection.execute(statement)
    return connection


if __name__ == "__main__":
    serve(RawSqlite())
