"""One session as one file: lines of JSON, each row as it is stored, the bytes of its attachments, and a digest at the end.

    {"format":"lash-store-session","version":1,"session_id":"chat-1"}
    ["sessions",["chat-1",1,"live",…]]            a row: its table, and its columns in their order
    ["bytes",["<attachment id>","<base64>"]]      at most 1 MiB of an attachment; several lines make a large one
    {"rows":12,"attachments":1,"digest":"<sha256 of every line above>"}

Nothing of a file is believed before all of it was checked.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, Self, TypeVar, cast

import msgspec
from msgspec import Struct

from lash_store.blobs.protocol import Verifier, checked_id
from lash_store.blobs.spool import CHUNK_BYTES, SPOOL_MEMORY_BYTES, typed
from lash_store.encode import Encoder
from lash_store.errors import Corrupt, NotFound
from lash_store.model.limits import MIB
from lash_store.ops.transfer import SESSIONS
from lash_store.ops.transfer_rows import settled
from lash_store.ops.transfer_session_tables import ATTACHMENTS, DIGESTS
from lash_store.ops.transfer_table import Table, Values
from lash_store.store.bundle import Bundle, decode_rows, verify

T = TypeVar("T")

FORMAT = "lash-store-session"
VERSION = 1  # a file with other columns is another version
LINE_MAX_BYTES = 512 * MIB  # a line holds one row: the largest component, uncompressible and as base64, and room beside it

_BYTES = b'["bytes",'
_PLACES = {table.name: place for place, table in enumerate(SESSIONS.tables)}
_TABLES = {table.name: table for table in SESSIONS.tables}


class Header(Struct, frozen=True, forbid_unknown_fields=True):
    """The first line."""

    format: str
    version: int
    session_id: str


class End(Struct, frozen=True, forbid_unknown_fields=True):
    """The last line."""

    rows: int
    attachments: int
    digest: str


_END = msgspec.json.Decoder(End)
_HEADER = msgspec.json.Decoder(Header)
_CHUNK = msgspec.json.Decoder(tuple[str, tuple[str, bytes]])


class Writer:
    """Writes the lines of one session to a binary file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._state = hashlib.sha256()
        self._attachments = 0

    def rows(self, session_id: str, bundle: Bundle) -> None:
        """The header and every row."""
        self._line(msgspec.json.encode(Header(FORMAT, VERSION, session_id)) + b"\n")
        for line in bundle.lines():
            self._line(line)

    def chunk(self, attachment_id: str, data: bytes) -> None:
        """A piece of an attachment."""
        self._line(msgspec.json.encode(["bytes", [attachment_id, data]]) + b"\n")

    def attachment(self) -> None:
        """One more attachment is complete."""
        self._attachments += 1

    def end(self, rows: int) -> End:
        """The last line. A file without it is not whole."""
        end = End(rows, self._attachments, self._state.hexdigest())
        self._file.write(msgspec.json.encode(end) + b"\n")
        self._file.flush()
        return end

    def _line(self, line: bytes) -> None:
        self._state.update(line)
        self._file.write(line)


class Received:
    """A file that was read and checked: its rows, and the bytes of its attachments. Closing it frees them."""

    def __init__(self) -> None:
        self.session_id = ""
        self.bundle = Bundle(SESSIONS)
        self.end = End(0, 0, "")
        self._bytes = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=SPOOL_MEMORY_BYTES))  # noqa: SIM115  closed by close
        self._places: dict[str, tuple[int, int]] = {}  # where the bytes of an attachment begin, and how many there are

    @property
    def attachment_ids(self) -> set[str]:
        """The attachments whose bytes came along."""
        return set(self._places)

    def keep(self, attachment_id: str, data: bytes) -> None:
        """Take the next piece of an attachment. The pieces of one follow each other."""
        end = self._bytes.seek(0, 2)
        start, length = self._places.setdefault(attachment_id, (end, 0))
        if start + length != end:
            raise Corrupt("bundle", f"attachment {attachment_id}", "its bytes are not in one place")
        with typed():
            self._bytes.write(data)
        self._places[attachment_id] = (start, length + len(data))

    def chunks(self, attachment_id: str) -> Iterator[bytes]:
        """The bytes of one attachment."""
        start, left = self._places[attachment_id]
        self._bytes.seek(start)
        while left:
            data = self._bytes.read(min(left, CHUNK_BYTES))
            left -= len(data)
            yield data

    def close(self) -> None:
        """Free the memory or the temporary files."""
        self.bundle.close()
        self._bytes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def receive(file: BinaryIO, encoder: Encoder) -> Received:
    """Read a file to its end and check all of it. Corrupt names the line or row that is wrong."""
    received = Received()
    try:
        _read(file, received, encoder)
        verify(received.bundle, received.session_id)
        _check_attachments(received)
    except BaseException:
        received.close()
        raise
    return received


def _read(file: BinaryIO, received: Received, encoder: Encoder) -> None:
    state = hashlib.sha256()
    first = _next_line(file, 1)
    received.session_id = _header(first, encoder)
    state.update(first)
    rows = _Rows(received)
    number = 2
    while not (line := _next_line(file, number)).startswith(b"{"):
        state.update(line)
        if line.startswith(_BYTES):
            received.keep(*_decoded(_CHUNK.decode, line, number)[1])
        else:
            rows.take(line, number)
        number += 1
    end = received.end = _decoded(_END.decode, line, number)
    actual = End(received.bundle.rows, len(received.attachment_ids), state.hexdigest())
    if end != actual or file.read(1):
        raise Corrupt("bundle", f"line {number}", "the file is not what was written")


def _next_line(file: BinaryIO, number: int) -> bytes:
    line = file.readline(LINE_MAX_BYTES)
    if not line.endswith(b"\n"):
        raise Corrupt("bundle", f"line {number}", "the file ends before its last line, or the line is too long")
    return line


def _header(line: bytes, encoder: Encoder) -> str:
    header = _decoded(_HEADER.decode, line, 1)
    if header.format != FORMAT:
        raise Corrupt("bundle", "line 1", "it is not an exported session")
    if header.version != VERSION:
        raise Corrupt("bundle", "line 1", f"it is of version {header.version}, this library reads {VERSION}")
    return encoder.id(header.session_id, "session_id")


def _decoded(decode: Callable[[bytes], T], line: bytes, number: int) -> T:
    try:
        return decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt("bundle", f"line {number}", str(error)) from None


class _Rows:
    """Takes rows of one session in the order of their tables and keys: none twice, none of another session."""

    def __init__(self, received: Received) -> None:
        self._received = received
        self._last: tuple[int, tuple[str | int, ...]] = (-1, ())

    def take(self, line: bytes, number: int) -> None:
        """The next row."""
        ((table, row, _),) = decode_rows(_TABLES, [line])
        place = (_PLACES[table.name], tuple(row[name] for name in table.key))
        if place <= self._last:
            raise Corrupt("bundle", f"line {number}", "its row is out of order, or there twice")
        self._last = place
        if not _belongs(table, row, self._received.session_id):
            raise Corrupt("bundle", f"line {number}", "its row is not one that an export writes")
        self._received.bundle.add(table, [row])


def _belongs(table: Table, row: Values, session_id: str) -> bool:
    clean = all("\x00" not in value for value in row.values() if isinstance(value, str))
    live = table.name != "sessions" or row["state"] == "live"
    return clean and live and row.get("session_id", session_id) == session_id and settled(table, dict(row)) == row


def _check_attachments(received: Received) -> None:
    """Every content a commit named is there, and nothing else; every byte of it is right."""
    named = {row["attachment_id"]: row for row in received.bundle.rows_of(ATTACHMENTS)}
    contents = {row["attachment_id"] for row in received.bundle.rows_of(DIGESTS)}
    if contents != set(named) or not received.attachment_ids <= set(named):
        raise Corrupt("bundle", repr(received.session_id), "its attachments are not those its manifest names")
    for attachment_id, row in named.items():
        if attachment_id in received.attachment_ids:
            _check_bytes(received, attachment_id, row["byte_len"])
        elif row["committed_ms"] is not None:
            raise Corrupt("bundle", f"attachment {attachment_id}", "its bytes are missing")


def _check_bytes(received: Received, attachment_id: str, byte_len: int) -> None:
    try:
        verifier = Verifier(checked_id(attachment_id), byte_len)
    except NotFound:
        raise Corrupt("bundle", f"attachment {attachment_id!r}", "its id is not a sha256") from None
    for chunk in received.chunks(attachment_id):
        verifier.feed(chunk)
    verifier.finish()
