"""A copy of a SQLite database while others write it: SQLite's online backup, of one snapshot."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from lash_store.db.sqlite_connection import create_file
from lash_store.db.sqlite_errors import translate
from lash_store.errors import Corrupt, InvalidArgument
from lash_store.model.maintenance import BackupReport

Progress = Callable[[int, int], None]
STEP_PAGES = 512  # between two reports of progress


def back_up(source: apsw.Connection, path: str, progress: Progress | None) -> BackupReport:
    """Copy what `source` sees to a new file. It has another name until it is complete, on the disk, and was read again."""
    target = Path(os.path.abspath(path))  # noqa: PTH100 - a link to nowhere is not followed
    if os.path.lexists(target):
        raise InvalidArgument("path", f"{target} exists already. Name a file that does not")
    partial = create_file(target.with_name(f"{target.name}.partial-{secrets.token_hex(4)}"))
    with _removed_unless_renamed(partial):
        with _translated(), closing(apsw.Connection(partial, flags=apsw.SQLITE_OPEN_READWRITE)) as copy:
            _copy(source, copy, progress)
            _check(copy, partial)
        os.rename(partial, target)  # noqa: PTH104 - both are plain text here
        _sync_folder(target.parent)
    return BackupReport(path=str(target), size=target.stat().st_size)


def _copy(source: apsw.Connection, copy: apsw.Connection, progress: Progress | None) -> None:
    # Inside a read transaction the source stays as it is: otherwise each commit of another would start the copy again.
    source.execute("BEGIN")
    try:
        source.execute("SELECT count(*) FROM sqlite_master").fetchall()
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(STEP_PAGES)
                if progress is not None:
                    progress(backup.page_count - backup.remaining, backup.page_count)
    finally:
        source.execute("ROLLBACK")


def _check(copy: apsw.Connection, path: str) -> None:
    found = copy.execute("PRAGMA quick_check(1)").fetchall()
    if found != [("ok",)]:
        raise Corrupt("backup", path, f"SQLite reports {found[0][0]}")


@contextmanager
def _removed_unless_renamed(partial: str) -> Generator[None]:
    try:
        yield
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(partial + suffix)  # noqa: PTH108 - as above


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
