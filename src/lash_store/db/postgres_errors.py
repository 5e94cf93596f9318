"""What an error of PostgreSQL means to us: which of our errors it is, and whether running the operation again may help.

The server's detail, and any text that may quote a value, stays behind: values are the application's secrets.
"""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
from msgspec import Struct

from lash_store.errors import Busy, Corrupt, Misuse, NotPermitted, SchemaMismatch, StorageFull, StoreError, Unavailable

CONFLICT_RETRIES = 5  # a conflict is over in milliseconds; five in a row are a pattern
LOCK_RETRIES = 1  # each try waits a whole lock_timeout
LOST_RETRIES = 1  # on a new connection; a second loss is the server's state

# What asyncpg raises. An InternalClientError is a protocol in an unknown state.
DATABASE_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)

_SCHEMA = {"42P01", "3F000", "42703", "42883"}
_FOREIGN = {"42P07", "42710"}
_DECLINED = {"LS000", "23505"}
_UNPREPARED = {"26000", "42P05"}
_LOST = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25006"}
_BY_STATE: dict[str, tuple[Callable[[str], StoreError], int]] = {
    "40001": (Busy, CONFLICT_RETRIES),
    "40P01": (Busy, CONFLICT_RETRIES),
    "55P03": (Busy, LOCK_RETRIES),
    "57014": (Busy, 0),
    "53100": (StorageFull, 0),
    "53200": (Busy, 0),
    "53300": (Busy, 0),
    "53400": (Busy, 0),
    "42501": (NotPermitted, 0),
    "58030": (Unavailable, 0),
}


class Failure(Struct, frozen=True):
    """Our error; how often the operation may be run again; whether the connection is gone or not to be trusted."""

    error: StoreError
    retries: int = 0
    lost: bool = False


class Versions(Struct, frozen=True):
    """What a SchemaMismatch names."""

    found: int
    expected: int


def understand(error: BaseException, versions: Versions, *, gone: bool) -> Failure:
    """The failure behind an error of asyncpg or of the network. `gone` says that the connection is closed."""
    if isinstance(error, TimeoutError):
        return Failure(Busy("the server did not answer in time"))
    if is_clients(error, gone=gone):
        return Failure(StoreError("the parameters do not fit the statement: their number or a type is wrong."))
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, versions)
    return Failure(Unavailable(f"the connection to PostgreSQL broke ({type(error).__name__})."), LOST_RETRIES, lost=True)


def _from_server(error: asyncpg.PostgresError, versions: Versions) -> Failure:
    state, said = state_of(error), described(error)
    if state in _BY_STATE:
        kind, retries = _BY_STATE[state]
        return Failure(kind(said), retries)
    if state in _LOST or state.startswith("08") or isinstance(error, asyncpg.InvalidCachedStatementError):
        return Failure(Unavailable(f"{said}."), LOST_RETRIES, lost=True)
    return Failure(_refusal(state, said, versions))


def _refusal(state: str, said: str, versions: Versions) -> StoreError:
    if state in _SCHEMA:
        why = f"{said}. Open it once with migrate=True, and see check_schema()"
        return SchemaMismatch(why, found=versions.found, expected=versions.expected)
    if state in _FOREIGN:
        why = f"{said}. The schema holds tables that are not the store's: choose another schema"
        return SchemaMismatch(why, found=versions.found, expected=versions.expected)
    if state in _UNPREPARED:
        return Misuse("pooler", f"{said}. A pooler in transaction mode is in between: open the store with pooler=True.")
    if state.startswith("28"):
        return NotPermitted(said)
    if state.startswith("XX00") and state != "XX000":
        return Corrupt("database", "unknown", said)
    return StoreError(f"unexpected answer of PostgreSQL: {said}.", sqlstate=state)


def described(error: asyncpg.PostgresError) -> str:
    """The condition, its code, and the names of things; the server's own text only where it cannot quote a value."""
    named = [f"{what} {name}" for what in ("table", "column", "constraint") if (name := getattr(error, f"{what}_name", None))]
    state = state_of(error)
    message = getattr(error, "message", None) if _is_quotable(state) else None
    return ", ".join([f"{message or type(error).__name__} ({state})", *named])


def state_of(error: asyncpg.PostgresError) -> str:
    """The five characters that say what happened."""
    return str(getattr(error, "sqlstate", None) or "")


def _is_quotable(state: str) -> bool:
    # Resources, names, rights, connections and interventions: their texts speak of objects, not of rows.
    return state[:2] in {"08", "25", "26", "28", "3D", "3F", "40", "42", "53", "55", "57", "58"}


def is_clients(error: BaseException, *, gone: bool) -> bool:
    """Whether asyncpg refused the parameters before it sent anything. Its text quotes them."""
    return type(error) is asyncpg.DataError or (isinstance(error, asyncpg.InterfaceError) and not gone)


def is_certain(error: BaseException) -> bool:
    """Whether an error at COMMIT says that nothing was committed: only the server's plain ERROR does."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "severity_en", None) == "ERROR"


def is_declined(error: BaseException) -> bool:
    """Whether a function of ours met a case it was not written for: it says so itself, or a unique index does."""
    return isinstance(error, asyncpg.PostgresError) and state_of(error) in _DECLINED


def is_ours(error: BaseException, *, gone: bool) -> bool:
    """Whether an error of the application's own SQL is about the connection, locks, time or room, and not about that SQL."""
    if is_clients(error, gone=gone):
        return False
    if not isinstance(error, asyncpg.PostgresError):
        return True
    state = state_of(error)
    return state in _LOST or (state in _BY_STATE and state != "42501") or state.startswith("08")
