"""The rows one real operation writes, as the floors write them again under fresh keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Table -> the column that says which operation wrote the row; None: the one row the operation updates.
# A floor inserts the updated rows too: a new version of a row is a row.
TURN = {
    "nodes": "created_revision",
    "commits": "revision",
    "versions": "revision",
    "components": None,
    "branches": None,
    "sessions": None,
}
EVENT = {"events": "sequence", "processes": None}
KEY = {"nodes": "session_id", "events": "process_id"}


@dataclass(frozen=True)
class Written:
    """Rows of one table. The key column leads every key of the table, so that a fresh value makes all of them fresh."""

    table: str
    key: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def bytes(self) -> int:
        """What the values weigh, roughly: text and bytes by their length, numbers as 8."""
        return sum(len(value) if isinstance(value, str | bytes) else 8 for row in self.rows for value in row if value is not None)


def select(tables: dict[str, str | None], table: str, key: str, name: Callable[[str], str], mark: str) -> str:
    """The statement that reads the rows of one operation."""
    chosen = tables[table]
    where = f" AND {chosen} = {mark}2" if chosen else ""
    return f"SELECT * FROM {name(table)} WHERE {key} = {mark}1{where}"


def key_of(tables: dict[str, str | None]) -> str:
    """The column that leads every key of these tables."""
    return KEY[next(iter(tables))]


def written(table: str, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Written:
    """The rows as plain values."""
    assert rows, f"the operation wrote nothing into {table}"
    return Written(table, key, tuple(columns), tuple(tuple(row) for row in rows))
