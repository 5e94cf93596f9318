"""What a command prints, decided in one place: one JSON document, tables for a terminal, or plain lines for a pipe.

Text from the database is data. No markup in it is interpreted, and no control character of it reaches a terminal.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Column as RichColumn
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

# C0 and C1 controls and DEL steer terminals; bidi marks and overrides reorder what is read; surrogates cannot be encoded.
# What is invisible and joins nothing (zero width space, word joiner, BOM, tags) makes two ids look like one.
_INVISIBLE = "\u00ad\u180e\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE = re.compile(f"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff{_INVISIBLE}]")
_UNSAFE_BUT_NEWLINE = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
SHORT_CHARS = 10  # of an id on a terminal
ES = ("sses", "ches")  # plurals that lose two letters
CELL_MIN = 9  # columns of a terminal that a cell should have, with its frame
SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


class Instant(msgspec.Struct, frozen=True):
    """A moment of the database's clock: ISO 8601 in UTC; on a terminal with a blank, where a narrow column breaks it."""

    ms: int | None


class Span(msgspec.Struct, frozen=True):
    """A duration: words on a terminal, milliseconds in a pipe."""

    ms: int | None


class Size(msgspec.Struct, frozen=True):
    """A number of bytes: with a unit on a terminal, the number in a pipe."""

    count: int | None


class Brief(msgspec.Struct, frozen=True):
    """An id or a moment that a terminal shows in short and in one line; a pipe gets all of it."""

    value: str | Instant | None


class Styled(msgspec.Struct, frozen=True):
    """A value with a rich style, which only a terminal sees."""

    value: object
    style: str


class Column(msgspec.Struct, Generic[T], frozen=True):
    """One column of a list: its heading, and how to get its value from an item."""

    heading: str
    value: Callable[[T], object]


class PipeClosed(Exception):
    """Whoever read our output has gone, as `head` does."""


class Output:
    """Where a command's answer goes. Notes go to stderr, so that the answer can be piped."""

    def __init__(self, *, as_json: bool = False, color: bool = True) -> None:
        self.as_json = as_json
        self.terminal = sys.stdout.isatty() and not as_json
        self.console = Console(markup=False, highlight=False, emoji=False, no_color=not color or None, soft_wrap=False)

    def page(self, items: Sequence[T], columns: Sequence[Column[T]], *, cursor: str | None = None, title: str = "") -> None:
        """A list. JSON: {"items": […], "cursor": …} with everything the items hold, not only the columns."""
        if self.as_json:
            self.document({"items": list(items), "cursor": cursor})
            return
        rows = [[column.value(item) for column in columns] for item in items]
        self.table([column.heading for column in columns], rows, title=title)
        if cursor is not None:
            self.note(f"There is more: --cursor {clean(cursor)}")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
        """Rows for people; never call it for JSON, whose document is the command's own."""
        if not self.terminal:
            for row in rows:
                self._write("\t".join(self.plain(value) for value in row))
            return
        made = Table(title=Text(clean(title)) if title else None, title_justify="left", header_style="bold")
        rows = [list(row) for row in rows]
        if not rows:
            self._write("(none)")
            return
        cells = [[self.rich(value) for value in row] for row in rows]
        # Nothing is cut: an id is what the next command is given. Those of the first column stay in one line if there is room.
        left = self.console.width - max((row[0].cell_len for row in cells), default=0)
        for place, heading in enumerate(headings):
            brief = isinstance(rows[0][place], Brief)
            whole = brief or (place == 0 and left >= CELL_MIN * len(headings))
            made.add_column(heading, overflow="ellipsis" if brief else "fold", no_wrap=whole)
        for row in cells:
            made.add_row(*row)
        self.console.print(made)

    def record(self, value: object, fields: Mapping[str, object]) -> None:
        """One thing: `value` is the JSON document, `fields` what people see of it."""
        if self.as_json:
            self.document(value)
        elif not self.terminal:
            for name, each in fields.items():
                self._write(f"{name}\t{self.plain(each)}")
        else:
            grid = Table.grid(RichColumn(overflow="fold"), RichColumn(overflow="fold"), padding=(0, 2))
            for name, each in fields.items():
                grid.add_row(Text(name, style="bold"), self.rich(each))
            self.console.print(grid)

    def done(self, sentence: str, value: object) -> None:
        """What an action did: a sentence for people, `value` as JSON."""
        if self.as_json:
            self.document(value)
        else:
            self._write(clean(sentence))

    def lines(self, text: str) -> None:
        """Text of several lines for people, without its control characters."""
        self._write(_UNSAFE_BUT_NEWLINE.sub(_escape, text))

    def document(self, value: object) -> None:
        """One JSON document: structs as objects, bytes as base64, times as milliseconds."""
        self._write(to_json(value))

    def each(self, sentence: str, value: object) -> None:
        """One of a stream whose end nobody knows: a line of JSON, or a sentence."""
        self._write(to_json(value, indent=None) if self.as_json else clean(sentence))
        sys.stdout.flush()

    @property
    def progress_console(self) -> Console:
        """For progress bars: stderr, and silent unless that is a terminal."""
        return Console(stderr=True, markup=False, highlight=False, emoji=False, quiet=self.as_json or not sys.stderr.isatty())

    def note(self, sentence: str) -> None:
        """A remark beside the answer, on stderr; none for JSON."""
        if not self.as_json:
            click.echo(clean(sentence), err=True)

    def plain(self, value: object) -> str:
        """A value in one line of tab-separated text."""
        match value:
            case Styled(value=inner) | Brief(value=inner):
                return self.plain(inner)
            case None | Instant(ms=None) | Span(ms=None) | Size(count=None):
                return ""
            case Span(ms=number) | Size(count=number):
                return str(number)
            case _:
                return shown(value)

    def rich(self, value: object) -> Text:
        """A value in a terminal's table."""
        if isinstance(value, Styled):
            return Text(shown(value.value), style=value.style)
        if isinstance(value, Brief):
            return Text(brief_instant(value.value.ms) if isinstance(value.value, Instant) else short(value.value))
        return Text(shown(value).replace("T", " ", 1) if isinstance(value, Instant) else shown(value))

    def _write(self, text: str) -> None:
        try:
            click.echo(text, color=False)
        except BrokenPipeError:
            raise PipeClosed from None  # click would end the program with exit code 1


def shown(value: object) -> str:
    """A value for people, in one line that is safe to print."""
    match value:
        case None | Instant(ms=None) | Span(ms=None) | Size(count=None):
            return "-"
        case bool():
            return "yes" if value else "no"
        case Instant(ms=int(ms)):
            return instant(ms)
        case Span(ms=int(ms)):
            return span(ms)
        case Size(count=int(count)):
            return size(count)
        case Enum():
            return clean(str(value.value))
        case str() | int() | float():
            return clean(str(value))
        case _:
            return clean(to_json(value, indent=None))


def short(id: str | None) -> str:
    """The beginning of an id, enough to tell it from its neighbours."""
    text = shown(id)
    return text if len(text) <= SHORT_CHARS + 1 else f"{text[:SHORT_CHARS]}…"


def brief_instant(ms: int | None, *, today: datetime.date | None = None) -> str:
    """A moment in UTC, to the second; without the date when it is today's."""
    text = shown(Instant(ms))
    date, found, clock = text.partition("T")
    if not found:
        return text
    now = today or datetime.datetime.now(datetime.UTC).date()
    return f"{clock[:8]}Z" if date == now.isoformat() else f"{date} {clock[:5]}Z"


def counted(count: int, things: str) -> str:
    """A number of things, whose plural is given: 1 process, 2 processes."""
    if count != 1:
        return f"{count} {things}"
    return f"1 {things[:-2] if things.endswith(ES) else things[:-1]}"


def to_json(value: object, *, indent: int | None = 2) -> str:
    """JSON that is also safe to print: what could steer a terminal is escaped, other text stays readable."""
    text = json.dumps(msgspec.to_builtins(value, enc_hook=_unknown), indent=indent, ensure_ascii=False)
    return _UNSAFE_BUT_NEWLINE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def clean(text: str) -> str:
    """The text in one line, every control character written as its escape."""
    return _UNSAFE.sub(_escape, text)


def instant(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; those beyond the calendar as the number."""
    try:
        at = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(ms: int) -> str:
    """A duration with the two largest units it has."""
    sign, left = ("-" if ms < 0 else ""), abs(ms)
    for index, (length, unit) in enumerate(SPANS):
        if left >= length:
            rest = left % length // SPANS[index + 1][0] if index + 1 < len(SPANS) else 0
            return f"{sign}{left // length} {unit}" + (f" {rest} {SPANS[index + 1][1]}" if rest else "")
    return f"{sign}{left} ms"


def size(count: int) -> str:
    """A number of bytes with its unit."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {UNITS[unit]}"


def _escape(found: re.Match[str]) -> str:
    return _NAMED.get(found[0]) or found[0].encode("unicode_escape").decode()


def _unknown(value: Any) -> object:
    return str(value)
