"""Rows on their way: lines of JSON in memory or in a temporary file, with one digest over all of them.

The same rows give the same lines whichever engine they come from, so that two stores are compared by this digest.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, BinaryIO, Self, cast

import msgspec
from msgspec import Meta

from lash_store.blobs.spool import SPOOL_MEMORY_BYTES, typed
from lash_store.errors import Corrupt
from lash_store.model.limits import INT_MAX
from lash_store.ops.transfer import PAGE_BYTES, PAGE_ROWS, Kind
from lash_store.ops.transfer_check import Checker
from lash_store.ops.transfer_table import Table, Values

_Int = Annotated[int, Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_TYPES: dict[str, Any] = {"text": str, "int": _Int, "bytes": bytes}
_LINE = msgspec.json.Decoder(tuple[str, msgspec.Raw])


class Digest:
    """Takes rows and keeps only their digest, their number and the head, which is the first of them."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._state = hashlib.sha256()
        self.head: Values | None = None
        self.rows = 0

    def add(self, table: Table, rows: Sequence[Values]) -> None:
        """The next rows."""
        for row in rows:
            self.head = row if self.head is None else self.head
            line = encode_row(table, row)
            self._state.update(line)
            self.rows += 1
            self.keep(line)

    def keep(self, line: bytes) -> None:
        """Nothing is kept."""

    @property
    def digest(self) -> str:
        """sha256 over all lines."""
        return self._state.hexdigest()


class Bundle(Digest):
    """The same, and keeps the rows: small ones in memory, large ones in a temporary file. Closing it frees them."""

    def __init__(self, kind: Kind) -> None:
        self._tables = {table.name: table for table in kind.tables}
        self._file = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=SPOOL_MEMORY_BYTES))  # noqa: SIM115  closed by close
        super().__init__()

    def restart(self) -> None:
        """Forget everything."""
        super().restart()
        self._file.seek(0)
        self._file.truncate()

    def keep(self, line: bytes) -> None:
        """Write a line."""
        with typed():
            self._file.write(line)

    def lines(self) -> Iterator[bytes]:
        """The lines from the start. One iterator at a time."""
        self._file.seek(0)
        return iter(self._file)

    def pages(self) -> Iterator[tuple[Table, list[Values]]]:
        """The rows from the start, in pages of one table each."""
        return pages(decode_rows(self._tables, self.lines()))

    def rows_of(self, table: Table) -> Iterator[Values]:
        """The rows of one table."""
        start = f'["{table.name}",'.encode()
        return (row for _, row, _ in decode_rows(self._tables, (line for line in self.lines() if line.startswith(start))))

    def close(self) -> None:
        """Free the memory or the temporary file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def verify(bundle: Bundle, id: str) -> None:
    """Compute every digest again; Corrupt names the row."""
    checker = Checker(id)
    for table, rows in bundle.pages():
        for row in rows:
            checker.row(table, row)
    checker.finish()


def encode_row(table: Table, row: Values) -> bytes:
    """One row as a line: `["nodes",[…]]`, values in the order of the columns, bytes as base64."""
    return msgspec.json.encode([table.name, [row[name] for name in table.columns]]) + b"\n"


def decode_rows(tables: dict[str, Table], lines: Iterable[bytes]) -> Iterator[tuple[Table, Values, int]]:
    """The rows behind lines, each with the length of its line. Corrupt where a line is not a row of these tables."""
    for number, line in enumerate(lines, start=1):
        try:
            name, raw = _LINE.decode(line)
            table = tables[name]
            values = _decoder(table).decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            why = "it names no table" if isinstance(error, KeyError) else str(error)
            raise Corrupt("bundle", f"line {number}", why) from None
        yield table, dict(zip(table.columns, values, strict=True)), len(line)


@cache
def _decoder(table: Table) -> msgspec.json.Decoder[Any]:
    empty = table.nulls.split()
    kinds = (_TYPES[kind] | None if name in empty else _TYPES[kind] for name, kind in table.types.items())
    return msgspec.json.Decoder(tuple.__class_getitem__(tuple(kinds)))


def pages(rows: Iterable[tuple[Table, Values, int]]) -> Iterator[tuple[Table, list[Values]]]:
    """Rows gathered into pages of one table, bounded like those that are read."""
    current: Table | None = None
    gathered: list[Values] = []
    size = 0
    for table, row, length in rows:
        full = len(gathered) >= PAGE_ROWS or size + length > PAGE_BYTES
        if current is not None and gathered and (table is not current or full):
            yield current, gathered
            gathered, size = [], 0
        current = table
        gathered.append(row)
        size += length
    if current is not None and gathered:
        yield current, gathered
