"""One session as one file: it comes back as it was, in any store, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from lash_store import AsyncStore, Commit, Corrupt, Diverged, NotFound, SessionDeleted, Store, Unstorable
from lash_store.ops.transfer_session_tables import SESSION
from lash_store.store.portable import VERSION
from tests.support.copies import Place, Rows, expected, fill, sqlite_place

SESSION_TABLES = [table.name for table in SESSION if table.name != "digests"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that has something in every table; copy it, do not change it."""
    folder = tmp_path_factory.mktemp("filled")
    with sqlite_place(folder / "filled.db").open() as store:
        fill(store)
    return folder


@pytest.fixture(scope="module")
def exported(filled: Path) -> bytes:
    """The session `chat` as a file."""
    return exported_by(sqlite_place(filled / "filled.db"))


def exported_by(place: Place, session_id: str = "chat") -> bytes:
    file = io.BytesIO()
    with place.open() as store:
        store.transfer.export_session(session_id, file)
    return file.getvalue()


def of_chat(rows: Rows) -> Rows:
    return {name: [row for row in expected(rows)[name] if row["session_id"] == "chat"] for name in SESSION_TABLES}


def reforged(lines: list[Any]) -> bytes:
    """A file with these lines whose digest and numbers fit: only what the lines say can betray it."""
    *body, _ = lines
    text = b"".join(json.dumps(line).encode() + b"\n" for line in body)
    rows = sum(isinstance(line, list) and line[0] != "bytes" for line in body)
    attachments = len({line[1][0] for line in body if isinstance(line, list) and line[0] == "bytes"})
    end = {"rows": rows, "attachments": attachments, "digest": hashlib.sha256(text).hexdigest()}
    return text + json.dumps(end).encode() + b"\n"


def lines_of(exported: bytes) -> list[Any]:
    return [json.loads(line) for line in exported.splitlines()]


# --- there and back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_session_comes_back_as_it_was(
    filled: Path, exported: bytes, tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    place = sqlite_place(tmp_path / "other.db")
    if engine == "postgresql":
        place = Place("postgresql", request.getfixturevalue("pg_url"), request.getfixturevalue("pg_schema"))
    with place.open() as store:
        report = store.transfer.import_session(io.BytesIO(exported))
        assert (report.session_id, report.revision, report.imported, report.attachments) == ("chat", 5, True, 2)
        again = store.transfer.import_session(io.BytesIO(exported))
        assert (again.imported, again.digest) == (False, report.digest)
        first = store.attachments.list("chat").entries[0].ref
        assert len(store.attachments.get("chat", first.attachment_id)) == first.byte_len
        claim = store.queue.claim("chat", "worker", lease_ms=1000)
        assert claim is not None
    assert exported_by(place) != exported  # it was claimed: the fence has moved
    with sqlite_place(filled / "filled.db").open() as store:
        assert store.sessions.load("chat").checkpoint_digest is not None
    assert without_fences(of_chat(place.rows())) == without_fences(of_chat(sqlite_place(filled / "filled.db").rows()))


def without_fences(rows: Rows) -> Rows:
    """What a claim changes, beside the lease."""
    changed = {"fence": 0, "attempts": 0}
    return {
        name: [{**row, **{key: value for key, value in changed.items() if key in row}} for row in each]
        for name, each in rows.items()
    }


def test_both_engines_write_the_same_file(exported: bytes, pg_url: str, pg_schema: str) -> None:
    place = Place("postgresql", pg_url, pg_schema)
    with place.open() as store:
        store.transfer.import_session(io.BytesIO(exported))
    assert exported_by(place) == exported


def test_the_async_store_exports_and_imports(filled: Path, exported: bytes, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "copy")

    async def move() -> None:
        file = io.BytesIO()
        async with AsyncStore.open(tmp_path / "copy" / "filled.db") as store:
            await store.transfer.export_session("chat", file)
        assert file.getvalue() == exported
        file.seek(0)
        async with AsyncStore.open(tmp_path / "other.db") as other:
            assert (await other.transfer.import_session(file)).imported

    asyncio.run(move())


def test_only_a_live_session_is_exported(filled: Path) -> None:
    with sqlite_place(filled / "filled.db").open() as store:
        with pytest.raises(NotFound):
            store.transfer.export_session("nobody", io.BytesIO())
        with pytest.raises(SessionDeleted):
            store.transfer.export_session("gone", io.BytesIO())


def test_a_damaged_session_is_not_exported(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "copy")
    path = tmp_path / "copy" / "filled.db"
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE lash_nodes SET body = '7' WHERE node_id = 'n1' AND session_id = 'chat'")
    connection.close()
    file = io.BytesIO()
    with sqlite_place(path).open() as store, pytest.raises(Corrupt):
        store.transfer.export_session("chat", file)
    assert file.getvalue() == b""


# --- refusals -------------------------------------------------------------------------------------------------------------


def worked(store: Store) -> None:
    store.sessions.commit("chat", Commit(expected_revision=5))


IN_USE: dict[str, Callable[[Store], object]] = {
    "made on its own": lambda store: store.sessions.create("chat"),
    "deleted": lambda store: (store.sessions.create("chat"), store.sessions.delete("chat")),
}


@pytest.mark.parametrize("how", IN_USE)
def test_an_id_that_is_in_use_is_refused(exported: bytes, tmp_path: Path, how: str) -> None:
    place = sqlite_place(tmp_path / "other.db")
    with place.open() as store:
        IN_USE[how](store)
        before = place.rows()
        with pytest.raises(Diverged, match="the id is in use"):
            store.transfer.import_session(io.BytesIO(exported))
    assert place.rows() == before


def test_an_imported_session_that_was_worked_on_is_not_replaced(exported: bytes, tmp_path: Path) -> None:
    place = sqlite_place(tmp_path / "other.db")
    with place.open() as store:
        store.transfer.import_session(io.BytesIO(exported))
        worked(store)
        before = place.rows()
        with pytest.raises(Diverged):
            store.transfer.import_session(io.BytesIO(exported))
    assert place.rows() == before


def edited(table: str, column: int, value: object) -> Callable[[list[Any]], list[Any]]:
    """The first row of a table with another value."""

    def edit(lines: list[Any]) -> list[Any]:
        next(line for line in lines if isinstance(line, list) and line[0] == table)[1][column] = value
        return lines

    return edit


def place_of(lines: list[Any], table: str) -> int:
    return next(place for place, line in enumerate(lines) if isinstance(line, list) and line[0] == table)


def without(table: str) -> Callable[[list[Any]], list[Any]]:
    return lambda lines: [line for place, line in enumerate(lines) if place != place_of(lines, table)]


def twice(lines: list[Any]) -> list[Any]:
    place = place_of(lines, "nodes")
    return [*lines[:place], lines[place], *lines[place:]]


def another_header(**fields: object) -> Callable[[list[Any]], list[Any]]:
    return lambda lines: [{**lines[0], **fields}, *lines[1:]]


FORGED: dict[str, Callable[[list[Any]], list[Any]]] = {
    "another format": another_header(format="cookbook"),
    "another version": another_header(version=VERSION + 1),
    "another session's name": another_header(session_id="other"),
    "another body": edited("nodes", 7, '"other"'),
    "a null where none may be": edited("nodes", 4, None),
    "a number where text belongs": edited("nodes", 4, 7),
    "a number beyond 64 bits": edited("nodes", 3, 2**63),
    "bytes that are no base64": edited("nodes", 10, "?"),
    "a text with a NUL": edited("usage_entries", 3, "a\x00b"),
    "a row of another session": edited("usage_entries", 0, "other"),
    "a claim": edited("batches", 19, "token"),
    "a deleted session": edited("sessions", 2, "deleted"),
    "a node is missing": without("nodes"),
    "a commit is missing": without("commits"),
    "a version is missing": without("versions"),
    "the head is missing": without("sessions"),
    "bytes are missing": without("bytes"),
    "a manifest row is missing": without("attachments"),
    "a content row is missing": without("digests"),
    "a row is there twice": twice,
    "rows in another order": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "an unknown table": lambda lines: [*lines[:-1], ["pets", [1]], lines[-1]],
    "a row too short": lambda lines: [*lines[:-1], ["attachments", ["chat"]], lines[-1]],
    "two nodes of one name": edited("nodes", 4, "n1"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_file_that_says_something_wrong_changes_nothing(exported: bytes, tmp_path: Path, what: str) -> None:
    forged = reforged(FORGED[what](lines_of(exported)))
    place = sqlite_place(tmp_path / "other.db")
    with place.open() as store:
        with pytest.raises((Corrupt, Unstorable)):
            store.transfer.import_session(io.BytesIO(forged))
        assert all(rows == [] for rows in place.rows().values())
        assert store.transfer.import_session(io.BytesIO(reforged(lines_of(exported)))).imported


TORN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "cut in a line": lambda data: data[: len(data) // 2],
    "without its last line": lambda data: b"".join(data.splitlines(keepends=True)[:-1]),
    "without a row": lambda data: b"".join(line for n, line in enumerate(data.splitlines(keepends=True)) if n != 20),
    "one character is another": lambda data: data.replace(b'"text/plain"', b'"text/plaid"', 1),
    "more after its end": lambda data: data + b"more",
    "not JSON": lambda _: b"\x00\xff\n" * 9,
    "a lone surrogate": lambda data: data.replace(b'"text/plain"', b'"\\ud800"', 1),
}


@pytest.mark.parametrize("how", TORN)
def test_a_torn_file_changes_nothing(exported: bytes, tmp_path: Path, how: str) -> None:
    place = sqlite_place(tmp_path / "other.db")
    with place.open() as store, pytest.raises(Corrupt):
        store.transfer.import_session(io.BytesIO(TORN[how](exported)))
    assert all(rows == [] for rows in place.rows().values())


def test_the_columns_of_a_file_are_those_of_its_version() -> None:
    """Whoever changes a table that a file holds gives the file another version, and this test another number."""
    columns = json.dumps([[table.name, table.typed, table.nulls] for table in SESSION])
    assert (VERSION, hashlib.sha256(columns.encode()).hexdigest()[:16]) == (1, "925f0afe5cb2f48d")
