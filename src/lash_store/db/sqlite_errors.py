"""What SQLite's errors mean to a caller. Texts hold SQLite's own code and never a value."""

from __future__ import annotations

import errno
from collections.abc import Callable

import apsw

from lash_store.errors import Busy, Corrupt, Misuse, NotPermitted, SchemaMismatch, StorageFull, StoreError, Unavailable

# SQLite may answer these by rolling the whole transaction back, and nobody should go on inside what is left of it.
VOIDING = (apsw.FullError, apsw.IOError, apsw.NoMemError, apsw.InterruptError, apsw.CorruptError, apsw.NotADBError)
# SQLite names only ENOSPC "full"; a quota and a file-size limit arrive as I/O errors.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MISSING = ("no such table", "no such column", "no such function", "has no column named")


class Versions:
    """What a SchemaMismatch names. Whoever migrates or checks the schema fills it in."""

    def __init__(self) -> None:
        self.found = 0
        self.expected = 0


def translate(error: apsw.Error, *, system_errno: int = 0) -> Exception:
    """The store's error for one of SQLite's. What only a mistake in SQL can cause stays as it is."""
    code = code_name(error)
    if isinstance(error, apsw.IOError | apsw.CantOpenError) and system_errno in NO_ROOM:
        return _because(StorageFull(f"SQLite reports {code}, {errno.errorcode[system_errno]}"), error)
    for kinds, build in _MEANINGS:
        if isinstance(error, kinds):
            return _because(build(code), error)
    return error


def translate_ours(error: apsw.Error, versions: Versions, *, system_errno: int = 0) -> Exception:
    """The same for the store's own SQL, which only misses a table or column when the schema is another one."""
    if isinstance(error, apsw.SQLError) and any(text in str(error) for text in MISSING):
        why = f"{error}. Open it once with migrate=True, and see check_schema()"
        return _because(SchemaMismatch(why, found=versions.found, expected=versions.expected), error)
    return translate(error, system_errno=system_errno)


def code_name(error: apsw.Error) -> str:
    """SQLITE_IOERR_WRITE and the like; errors that carry no code are named by their class."""
    extended = getattr(error, "extendedresult", None)
    primary = getattr(error, "result", None)
    name = apsw.mapping_extended_result_codes.get(extended) or apsw.mapping_result_codes.get(primary)  # type: ignore[call-overload]
    return str(name or type(error).__name__)


def _because(meaning: StoreError, error: apsw.Error) -> StoreError:
    meaning.__cause__ = error
    return meaning


def _busy(code: str) -> StoreError:
    return Busy(f"another connection holds the database ({code})")


def _unavailable(code: str) -> StoreError:
    return Unavailable(f"SQLite could not use the database file ({code}). Repeat the same call with the same keys.", code=code)


def _corrupt(code: str) -> StoreError:
    return Corrupt("database file", "unknown", f"SQLite reports {code}")


def _no_database(code: str) -> StoreError:
    return Corrupt("database file", "unknown", f"it is no SQLite database, or its beginning is damaged ({code})")


def _forbidden(code: str) -> StoreError:
    return NotPermitted(f"to write the database file ({code})")


def _refused_sql(code: str) -> StoreError:
    message = f"SQL inside a transaction may not begin, end, attach or configure ({code}). Use the transaction itself."
    return Misuse("in-transaction", message)


_MEANINGS: tuple[tuple[tuple[type[apsw.Error], ...], Callable[[str], StoreError]], ...] = (
    ((apsw.BusyError, apsw.LockedError, apsw.ProtocolError), _busy),
    ((apsw.FullError,), lambda code: StorageFull(f"SQLite reports {code}")),
    ((apsw.IOError, apsw.CantOpenError, apsw.NoMemError, apsw.InterruptError), _unavailable),
    ((apsw.CorruptError,), _corrupt),
    ((apsw.NotADBError,), _no_database),
    ((apsw.ReadOnlyError, apsw.PermissionsError), _forbidden),
    ((apsw.AuthError,), _refused_sql),
)
