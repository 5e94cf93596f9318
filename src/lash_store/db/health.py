"""What only one engine can tell: its version, its settings, the sizes of its tables, and which of these are known risks."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from lash_store.db.dialect import SQLITE_PREFIX, TABLES, Dialect
from lash_store.model.maintenance import Finding, Severity, TableSize
from lash_store.ops.statement import Op, fetch, fetch_one

DBSTAT_PAGES_MAX = 32_768  # 256 MiB: SQLite tells a table's size only by reading every page
WAL_LARGE_BYTES = 256 * 1024 * 1024  # a log that is not folded back: somebody holds a snapshot open
POSTGRES_OLDEST = 140_000
SQLITE_SAFE = (3, 51, 3)
FREE_SHARE = 0.5  # of a file: from here on, giving room back is worth a VACUUM


class Facts(Struct, frozen=True, kw_only=True):
    """An engine's own words about itself."""

    version: str
    settings: dict[str, str]


class Sizes(Struct, frozen=True, kw_only=True):
    """The bytes of the database, those of them that are free, and its tables."""

    size: int
    free: int | None
    tables: tuple[TableSize, ...]


# --- sizes ----------------------------------------------------------------------------------------------------------------


def sizes(dialect: Dialect, cap: int) -> Op[Sizes]:
    """How large everything is. No table is counted beyond `cap` rows."""
    total, free, by_table = yield from _SIZES[dialect.engine](dialect)
    tables: list[TableSize] = []
    for name in TABLES:
        row = yield from fetch_one(f"SELECT count(*) FROM (SELECT 1 FROM {{{name}}} LIMIT :cap) AS counted", cap=cap)
        assert row is not None
        tables.append(TableSize(table=name, rows=row[0], size=by_table.get(name)))
    return Sizes(size=total, free=free, tables=tuple(tables))


def _sizes_sqlite(_: Dialect) -> Op[tuple[int, int | None, dict[str, int]]]:
    row = yield from fetch_one(
        """
        SELECT c.page_count, s.page_size, f.freelist_count
        FROM pragma_page_count() c, pragma_page_size() s, pragma_freelist_count() f
        """
    )
    assert row is not None
    pages, page_size, free = row
    if pages > DBSTAT_PAGES_MAX:
        return pages * page_size, free * page_size, {}
    rows = yield from fetch(
        """
        SELECT m.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_master m ON m.name = d.name
        WHERE d.aggregate = TRUE GROUP BY m.tbl_name
        """
    )
    return pages * page_size, free * page_size, {name.removeprefix(SQLITE_PREFIX): size for name, size in rows}


def _sizes_postgres(dialect: Dialect) -> Op[tuple[int, int | None, dict[str, int]]]:
    rows = yield from fetch(
        """
        SELECT c.relname, pg_catalog.pg_total_relation_size(c.oid)
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = CAST(:schema AS TEXT) AND c.relkind = 'r'
        """,
        schema=dialect.schema,
    )
    by_table = {name: size for name, size in rows if name in TABLES}
    return sum(by_table.values()), None, by_table


_SIZES: dict[str, Callable[[Dialect], Op[tuple[int, int | None, dict[str, int]]]]] = {
    "sqlite": _sizes_sqlite,
    "postgresql": _sizes_postgres,
}


# --- facts ----------------------------------------------------------------------------------------------------------------

# Settings that change what the store promises, or how it must be run.
_POSTGRES_SETTINGS = [
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "data_checksums",
    "server_encoding",
    "max_connections",
    "default_transaction_read_only",
    "wal_level",
]


def facts(dialect: Dialect) -> Op[Facts]:
    """The engine's version and the settings that matter here."""
    return (yield from _FACTS[dialect.engine]())


def _facts_sqlite() -> Op[Facts]:
    row = yield from fetch_one(
        """
        SELECT sqlite_version(), s.page_size, c.page_count, f.freelist_count
        FROM pragma_page_size() s, pragma_page_count() c, pragma_freelist_count() f
        """
    )
    mode = yield from fetch_one("PRAGMA journal_mode")
    assert row is not None
    assert mode is not None
    version, page_size, pages, free = row
    settings = {"journal_mode": mode[0], "page_size": str(page_size), "pages": str(pages), "free_pages": str(free)}
    return Facts(version=version, settings=settings)


def _facts_postgres() -> Op[Facts]:
    rows = yield from fetch(
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name {any_text:names} ORDER BY name", names=_POSTGRES_SETTINGS
    )
    row = yield from fetch_one(
        "SELECT current_setting('server_version'), current_setting('server_version_num'), pg_catalog.pg_is_in_recovery()"
    )
    assert row is not None
    settings: dict[str, str] = {row[0]: row[1] for row in rows}
    settings |= {"server_version_num": row[1], "in_recovery": "on" if row[2] else "off"}
    return Facts(version=row[0], settings=settings)


_FACTS: dict[str, Callable[[], Op[Facts]]] = {"sqlite": _facts_sqlite, "postgresql": _facts_postgres}


# --- risks ----------------------------------------------------------------------------------------------------------------


def risks(engine: str, known: Facts, path: str | None) -> Iterator[Finding]:
    """What is wrong or risky about an engine that is set up like this."""
    if engine == "postgresql":
        yield from _postgres_version(int(known.settings["server_version_num"]), known.version)
        yield from _postgres_settings(known.settings)
        return
    yield from _sqlite_risks(known)
    if path is not None:
        yield from _file_risks(Path(path))


def _postgres_version(number: int, version: str) -> Iterator[Finding]:
    if number < POSTGRES_OLDEST:
        yield _problem(f"PostgreSQL {version} is older than 14, the oldest that is meant to work", "Upgrade the server.")
    elif number < POSTGRES_OLDEST + 4:
        yield _warning(
            f"PostgreSQL {version}: CREATE INDEX CONCURRENTLY and REINDEX CONCURRENTLY may leave rows out of an index",
            "Upgrade to the newest 14.x, then reindex what was built concurrently.",
        )


def _postgres_settings(settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("fsync") == "off":
        yield _problem("fsync is off: a power cut may lose commits or the whole cluster", "Set fsync = on and reload.")
    if settings.get("synchronous_commit") == "off":
        yield _problem(
            "synchronous_commit is off: a crash may lose commits that were confirmed",
            "Set it to on, or at least local, for the role or the database of the store.",
        )
    if settings.get("full_page_writes") == "off":
        yield _warning(
            "full_page_writes is off: a power cut may tear pages",
            "Set it to on, unless the file system never writes half a page.",
        )
    if settings.get("server_encoding", "UTF8") != "UTF8":
        yield _problem(
            f"the database's encoding is {settings['server_encoding']}: it cannot hold every text",
            "Make a database with encoding UTF8 and copy the store there.",
        )
    if settings.get("in_recovery") == "on":
        yield _note("the server is a standby: it can be read, writes are refused", "Give writers the url of the primary.")
    elif settings.get("default_transaction_read_only") == "on":
        yield _problem("transactions are read-only by default", "Set default_transaction_read_only = off for the store's role.")
    if settings.get("data_checksums") == "off":
        yield _note(
            "data checksums are off: the server does not notice pages that the disk changed",
            "pg_checksums --enable turns them on. The store's own digests notice it when a row is read.",
        )


def _sqlite_risks(known: Facts) -> Iterator[Finding]:
    if tuple(int(part) for part in known.version.split(".")[:3]) < SQLITE_SAFE:
        yield _problem(
            f"SQLite {known.version} can corrupt a database with several writers",
            "Install apsw 3.51.3 or newer, which brings its own SQLite.",
        )
    if known.settings["journal_mode"] != "wal":
        yield _warning(
            f"the file's journal mode is {known.settings['journal_mode']}, not wal",
            "Somebody changed it with another program. Opening the store for writing sets it back.",
        )
    pages, free = int(known.settings["pages"]), int(known.settings["free_pages"])
    if pages > 1000 and free > pages * FREE_SHARE:
        yield _note(
            f"{free} of {pages} pages are free; SQLite fills them again before the file grows",
            "To give the room back, stop the workers and run VACUUM with the sqlite3 program.",
        )


def _file_risks(path: Path) -> Iterator[Finding]:
    # By name: opening the file here would drop the locks that SQLite holds on it.
    status = os.stat(path)  # noqa: PTH116 - as above
    if stat.S_IMODE(status.st_mode) & 0o077:
        yield _warning(
            f"others than its owner may use {path.name} (mode {stat.S_IMODE(status.st_mode):o}); it is not encrypted",
            "chmod 600 takes the right away, unless it is meant.",
        )
    if status.st_nlink > 1:
        yield _problem(
            f"{path.name} has {status.st_nlink} names (hard links); opened by two of them, SQLite does not see the same log",
            "Keep one name and remove the others.",
        )
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size > WAL_LARGE_BYTES:
        yield _warning(
            f"{log.name} has {log.stat().st_size} bytes: it is not folded back into the file",
            "Look for a reader that holds one snapshot open for long, and close it.",
        )


def _problem(what: str, advice: str) -> Finding:
    return Finding(severity=Severity.PROBLEM, what=what, advice=advice)


def _warning(what: str, advice: str) -> Finding:
    return Finding(severity=Severity.WARNING, what=what, advice=advice)


def _note(what: str, advice: str) -> Finding:
    return Finding(severity=Severity.NOTE, what=what, advice=advice)
