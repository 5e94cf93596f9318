"""Where processes of a test work: the url and schema they open, and the backend through which the test looks at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from lash_store.testing import Backend, PostgresBackend, SqliteBackend

ENGINES = ["sqlite", "postgresql"]


class Ground(Struct, frozen=True):
    """A database that does not exist yet. Nobody has opened it before the test or its processes do."""

    url: str
    schema: str
    backend: Backend

    @property
    def place(self) -> dict[str, Any]:
        """For a process that opens it."""
        return {"url": self.url, "schema": self.schema}


def ground_of(engine: str, request: pytest.FixtureRequest, folder: Path) -> Ground:
    """Fresh ground on an engine; what a server keeps is removed after the test."""
    if engine == "sqlite":
        path = folder / "agent.db"
        return Ground(str(path), "main", SqliteBackend(path))
    url: str = request.getfixturevalue("pg_url")
    schema: str = request.getfixturevalue("pg_schema")
    return Ground(url, schema, PostgresBackend(url, schema=schema))
