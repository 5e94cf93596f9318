"""Every law on SQLite and PostgreSQL, through the async store and the sync one, from one body."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lash_store.testing import Backend, Law, PostgresBackend, SqliteBackend, all_laws, keep, law_name, laws_for

VARIANTS = ["sqlite-async", "sqlite-sync", "postgres-async", "postgres-sync"]


@pytest.fixture(params=VARIANTS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """A fresh, empty backing of each engine, behind each of the two stores."""
    engine, _, colour = request.param.partition("-")
    if engine == "sqlite":
        return SqliteBackend(tmp_path / "store.db", sync=colour == "sync")
    schema: str = request.getfixturevalue("pg_schema")
    return PostgresBackend(request.getfixturevalue("pg_url"), schema=schema, sync=colour == "sync")


@pytest.mark.parametrize("law", laws_for())
def test_law(law: Law, backend: Backend) -> None:
    keep(law, backend)


def test_the_conformance_table_names_laws_that_exist() -> None:
    text = (Path(__file__).parent.parent / "docs" / "conformance.md").read_text()
    known = {law_name(law) for law in all_laws()}
    nouns = "|".join({name.partition(".")[0] for name in known})
    named = set(re.findall(rf"`((?:{nouns})\.\w+)`", text))
    assert named <= known
    assert len(named) > 50
