"""What an operation may ask of a database. An operation is a generator that yields these and receives the answers.

It does no input or output, knows no engine, and is neither sync nor async: drivers run it (see `lash_store.db`).
SQL is a constant with `:name` parameters and `{token}` substitutions, which `lash_store.db.dialect` spells for each engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from typing import Any, LiteralString, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")
P = ParamSpec("P")
Row = Sequence[Any]


class Fetch(Struct, frozen=True):
    """Run a statement and receive its rows. `alone`: it is the whole operation, and needs no transaction around it."""

    sql: LiteralString
    params: dict[str, Any]
    alone: bool = False


class Execute(Struct, frozen=True):
    """Run a statement and receive the number of rows it changed."""

    sql: LiteralString
    params: dict[str, Any]


class ExecuteMany(Struct, frozen=True):
    """Run one statement over many rows and receive the number of rows it changed. It counts as one statement."""

    sql: LiteralString
    rows: Sequence[dict[str, Any]]
    params: dict[str, Any]


class Ring(Struct, frozen=True):
    """Tell whoever waits for (kind, id) to look again, once this operation is committed."""

    kind: str
    id: str


class Shortcut(Struct, frozen=True):
    """The whole operation as one call of a function in the database, and its arguments, made when they are needed.

    Only the first statement of an operation can be one. The answer is the function's rows. None: this database has no such
    function, or the case is not the one it was written for, and nothing was written; then the operation goes its own way,
    statement by statement.
    """

    function: LiteralString
    arguments: Callable[[], Sequence[Any]]


Statement = Fetch | Execute | ExecuteMany | Ring | Shortcut
Op = Generator[Statement, Any, T]


def fetch(sql: LiteralString, **params: Any) -> Op[list[Row]]:
    """All rows of a statement that is bounded by its own LIMIT or keys."""
    rows: list[Row] = yield Fetch(sql, params)
    return rows


def fetch_one(sql: LiteralString, **params: Any) -> Op[Row | None]:
    """The row of a statement that has at most one, or None."""
    rows: list[Row] = yield Fetch(sql, params)
    assert len(rows) <= 1, "fetch_one got several rows"
    return rows[0] if rows else None


def execute(sql: LiteralString, **params: Any) -> Op[int]:
    """The number of rows changed."""
    count: int = yield Execute(sql, params)
    return count


def execute_many(sql: LiteralString, rows: Sequence[dict[str, Any]], **params: Any) -> Op[int]:
    """The number of rows changed over all `rows`; no rows, no statement. `params` are the same for every row."""
    if not rows:
        return 0
    count: int = yield ExecuteMany(sql, rows, params)
    return count


def ring(kind: str, id: str) -> Op[None]:
    """Wake those who wait for (kind, id), after the commit."""
    yield Ring(kind, id)


def alone(op: Callable[P, Op[T]]) -> Callable[P, Op[T]]:
    """The same operation, for one that is a single Fetch: it sees one snapshot by itself, and costs one round trip."""

    @wraps(op)
    def single(*args: P.args, **kwargs: P.kwargs) -> Op[T]:
        steps = op(*args, **kwargs)
        statement = next(steps)
        assert isinstance(statement, Fetch), f"{op.__name__} does not begin with a Fetch"
        answer = yield replace(statement, alone=True)
        try:
            steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError(f"{op.__name__} has more than one statement")

    return single


def database_now() -> Op[int]:
    """The database's clock in milliseconds. Read it after the lock, once per operation, and pass it on."""
    row = yield from fetch_one("SELECT {now_ms}")
    assert row is not None
    now_ms: int = row[0]
    return now_ms
