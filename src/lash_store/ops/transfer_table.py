"""How a table travels between stores: its columns, its pages in key order, and the statements that write it."""

from __future__ import annotations

from typing import Any, LiteralString

from msgspec import Struct

Values = dict[str, Any]  # one row by column


class Table(Struct, frozen=True, kw_only=True):
    """One table. `page` takes `:id` (of whom the rows are), `:k0`, `:k1` (the key of the row before) and `:limit`.

    `weigh` gives the size of each row of that page, where rows can be large; the caller then asks for as many as it can hold.
    """

    name: str
    typed: str  # its columns as {rows(…)} takes them: `name text`, `name int` or `name bytes`
    nulls: str = ""  # the columns that may be empty
    key: tuple[str, ...]  # the order of its pages, within what `:id` names
    page: LiteralString
    weigh: LiteralString | None = None
    insert: LiteralString
    clear: LiteralString = ""  # removes what `:id` names; of a table that is merged row by row, nothing does
    grows: str = ""  # of a table that is merged row by row: the column that only grows, which tells older from newer

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.split()[0] for column in self.typed.split(", "))

    @property
    def types(self) -> dict[str, str]:
        """`text`, `int` or `bytes` by column."""
        return {column.split()[0]: column.split()[1] for column in self.typed.split(", ")}

    def start(self) -> tuple[str | int, ...]:
        """A key before every row: texts of keys are never empty together, numbers never negative."""
        return tuple(-1 if self.types[name] == "int" else "" for name in self.key)
