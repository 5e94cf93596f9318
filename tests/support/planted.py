"""Bugs to plant into operations: a test that does not notice them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lash_store.db.dialect import PostgresDialect
from lash_store.ops.statement import Execute, ExecuteMany, Fetch, Op, Statement
from tests.support.player import Player, Script, Steps

Rewrite = Callable[[Statement], Op[Any] | None]  # None leaves the statement as it is

LOCK = "{for_update}"
CLOCK = "SELECT {now_ms}"
IF_ABSENT = "ON CONFLICT (session_id) DO NOTHING"
IF_NO_PROCESS = "ON CONFLICT (process_id) DO NOTHING"


class Unlocked(PostgresDialect):
    """A dialect that forgot how to lock."""

    def __init__(self, schema: str) -> None:
        super().__init__(schema)
        self._tokens["for_update"] = ""


def planted(script: Script, bug: Callable[[], Rewrite]) -> Script:
    """The same side, every operation of which has the bug."""

    async def changed(player: Player) -> Any:
        player.change = lambda steps: _steps(steps, bug())
        return await script(player)

    return changed


def _steps(steps: Steps, rewrite: Rewrite) -> Steps:
    answer: Any = None
    while True:
        try:
            statement = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        instead = rewrite(statement)
        answer = (yield statement) if instead is None else (yield from instead)


def descending_locks() -> Rewrite:
    """Sessions are locked one by one, the last id first."""

    def rewrite(statement: Statement) -> Op[Any] | None:
        if not isinstance(statement, Fetch) or LOCK not in statement.sql or "session_ids" not in statement.params:
            return None
        return _one_by_one(statement)

    return rewrite


def _one_by_one(statement: Fetch) -> Op[list[Any]]:
    rows: list[Any] = []
    for session_id in reversed(statement.params["session_ids"]):
        rows += yield Fetch(statement.sql, statement.params | {"session_ids": [session_id]})
    return rows


def read_then_insert() -> Rewrite:
    """A session is inserted because a look did not find it, without ON CONFLICT."""

    def rewrite(statement: Statement) -> Op[Any] | None:
        return _look_and_insert(statement) if isinstance(statement, Execute) and IF_ABSENT in statement.sql else None

    return rewrite


def _look_and_insert(statement: Execute) -> Op[int]:
    key = {"session_id": statement.params["session_id"]}
    found: list[Any] = yield Fetch("SELECT 1 FROM {sessions} WHERE session_id = :session_id", key)
    if found:
        return 0
    count: int = yield Execute(statement.sql.replace(IF_ABSENT, ""), statement.params)
    return count


def clock_before_lock() -> Rewrite:
    """The clock is read before the lock, and what it said is used after it."""
    read: list[Any] = []

    def rewrite(statement: Statement) -> Op[Any] | None:
        if isinstance(statement, Fetch) and LOCK in statement.sql:
            return _clock_first(statement, read)
        return _remembered(read) if isinstance(statement, Fetch) and statement.sql == CLOCK and read else None

    return rewrite


def _clock_first(statement: Fetch, read: list[Any]) -> Op[Any]:
    read[:] = yield Fetch(CLOCK, {})
    return (yield statement)


def _remembered(read: list[Any]) -> Op[Any]:
    yield from ()
    return read


def unlocked_processes() -> Rewrite:
    """Processes are looked at without a lock."""

    def rewrite(statement: Statement) -> Op[Any] | None:
        if not isinstance(statement, Fetch) or LOCK not in statement.sql or "FROM {processes}" not in statement.sql:
            return None
        return _fetch(Fetch(statement.sql.replace(LOCK, ""), statement.params))

    return rewrite


def _fetch(statement: Fetch) -> Op[Any]:
    return (yield statement)


def process_before_session() -> Rewrite:
    """The process that was looked at is locked, and only then the session."""
    seen: list[str] = []

    def rewrite(statement: Statement) -> Op[Any] | None:
        if not isinstance(statement, Fetch):
            return None
        if "process_id" in statement.params:
            seen.append(statement.params["process_id"])
        return _process_first(seen, statement) if seen and LOCK in statement.sql and "FROM {sessions}" in statement.sql else None

    return rewrite


def _process_first(seen: list[str], statement: Fetch) -> Op[Any]:
    yield Fetch("SELECT 1 FROM {processes} WHERE process_id = :process_id {for_update}", {"process_id": seen[-1]})
    return (yield statement)


def process_without_on_conflict() -> Rewrite:
    """A process is inserted because a look did not find it, without ON CONFLICT."""

    def rewrite(statement: Statement) -> Op[Any] | None:
        if not isinstance(statement, ExecuteMany) or "INSERT INTO {processes}" not in statement.sql:
            return None
        return _insert(ExecuteMany(statement.sql.replace(IF_NO_PROCESS, ""), statement.rows, statement.params))

    return rewrite


def _insert(statement: ExecuteMany) -> Op[Any]:
    return (yield statement)


class TrustingSubscriptions:
    """Subscriptions are not looked at again under their lock: what the first look found is taken for what is there."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def __call__(self) -> Rewrite:
        return self._rewrite

    def _rewrite(self, statement: Statement) -> Op[Any] | None:
        if not isinstance(statement, Fetch) or "FROM {subscriptions} s" not in statement.sql:
            return None
        return _remembered(self._found) if LOCK in statement.sql else self._look(statement)

    def _look(self, statement: Fetch) -> Op[Any]:
        self._found = yield statement
        return self._found
