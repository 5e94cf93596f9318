"""One test body on both engines, through the async store and the sync one."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from lash_store.testing import Backend, PostgresBackend, SqliteBackend, keep

VARIANTS = ["sqlite-async", "sqlite-sync", "postgres-async", "postgres-sync"]


def backend_of(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """A fresh, empty backing for the variant a fixture is asked for."""
    variant: str = request.param
    engine, _, colour = variant.partition("-")
    if engine == "sqlite":
        return SqliteBackend(tmp_path / "store.db", sync=colour == "sync")
    schema: str = request.getfixturevalue("pg_schema")
    return PostgresBackend(request.getfixturevalue("pg_url"), schema=schema, sync=colour == "sync")


def kept(law: Callable[[Backend], Coroutine[Any, Any, None]]) -> Callable[[Backend], None]:
    """A law as a test: it runs in a loop of its own, and its backend is closed."""

    @wraps(law)
    def test(backend: Backend) -> None:
        keep(law, backend)

    return test


class Clock:
    """The database's clock of a backend, to be set to an instant. It goes on running."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._offset_ms = 0

    async def set(self, at_ms: int) -> None:
        """Make it this instant, give or take what the call takes."""
        step_ms = at_ms - time.time_ns() // 1_000_000 - self._offset_ms
        self._offset_ms += step_ms
        await self._backend.advance(step_ms)
