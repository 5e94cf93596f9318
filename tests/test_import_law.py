"""The shape of the code keeps its laws, and each law is shown to catch a planted breach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.import_law import breaches, breaches_of

SOURCES = Path(__file__).resolve().parents[1] / "src"

PLANTED = {
    "operations know the driver": ("ops/queue.py", "from lash_store.db.sqlite import SqliteDriver"),
    "operations know the driver, through the package": ("ops/queue.py", "from lash_store import db"),
    "operations know the driver, relatively": ("ops/queue.py", "from ..db import sqlite"),
    "operations know the driver, inside a function": ("ops/queue.py", "def f():\n    import lash_store.db.postgres"),
    "operations know the facades": ("ops/queue.py", "from lash_store.store import AsyncStore"),
    "operations know who waits": ("ops/queue.py", "from lash_store.notify import Hub"),
    "operations know the byte stores": ("ops/queue.py", "import lash_store.blobs.filesystem"),
    "operations know the public names": ("ops/queue.py", "from lash_store import Store"),
    "a driver knows an operation": ("db/sqlite.py", "from lash_store.ops.sessions import commit"),
    "a driver knows the operations": ("db/sqlite.py", "from lash_store import ops"),
    "a driver knows the facades": ("db/postgres.py", "from lash_store.store.runtime import AsyncRuntime"),
    "a byte store knows a driver": ("blobs/database.py", "from lash_store.db.driver import Mode"),
    "a value knows an operation": ("model/queue.py", "from lash_store.ops.queue import claim"),
    "the encoder knows an operation": ("encode.py", "from lash_store.ops.statement import Op"),
    "errors know a value": ("errors.py", "from lash_store.model.limits import Limits"),
    "the package loads its tests": ("__init__.py", "from lash_store.testing import laws"),
    "the store knows the command line": ("store/store.py", "from lash_store.cli import main"),
    "stored data is unpickled": ("store/store.py", "import pickle"),
    "stored data is unmarshalled": ("encode.py", "from marshal import loads"),
    "stored data is YAML": ("cli/main.py", "import yaml"),
    "a shelf is opened": ("testing/laws.py", "import shelve"),
    "a second SQLite library opens the file": ("cli/main.py", "import sqlite3"),
    "the kit opens the file with a second SQLite library": ("testing/engines.py", "import sqlite3"),
    "stored data is evaluated": ("encode.py", "value = eval(text)"),
    "stored data is executed": ("store/store.py", "exec(text)"),
    "an operation reads a client's clock": ("ops/queue.py", "from time import time_ns"),
    "an operation reads a client's calendar": ("ops/queue.py", "import datetime"),
    "an operation does input and output": ("ops/queue.py", "import asyncpg"),
    "SQL is formatted": ("ops/queue.py", "def f(t):\n    yield from fetch(f'SELECT {t}')"),
    "SQL is formatted by method": ("ops/queue.py", "SQL = 'SELECT {}'\ndef f(t):\n    yield from execute(SQL.format(t))"),
    "SQL is joined with a value": ("ops/queue.py", "def f(t):\n    yield Fetch('SELECT ' + t, {})"),
    "SQL is an argument": ("ops/queue.py", "def f(sql: str):\n    yield from execute_many(sql, [])"),
    "SQL is taken from a list of values": ("ops/queue.py", "def f(a):\n    for sql in a:\n        yield from fetch(sql)"),
    "SQL is a constant made of a value": ("ops/queue.py", "SQL = make()\ndef f():\n    yield from fetch_one(SQL)"),
}

ALLOWED = {
    "operations use what is below them": (
        "ops/queue.py",
        "from lash_store.encode import digest\nfrom lash_store.ops.heads import live",
    ),
    "a driver knows what operations yield": (
        "db/sqlite.py",
        "from lash_store.ops.statement import Fetch\nimport lash_store.ops.statement",
    ),
    "the facades know everything below": ("store/store.py", "from lash_store.db.sqlite import SqliteDriver"),
    "the laws use the public names": ("testing/laws.py", "from lash_store import Store, errors"),
    "the example backend lives in memory": ("testing/example/engine.py", "import sqlite3"),
    "SQL is literal": ("ops/queue.py", "def f(s):\n    yield from fetch('SELECT 1 WHERE :s', s=s)"),
    "SQL is a sum of constants": ("ops/queue.py", "A = 'SELECT 1'\nB = A + ' LIMIT 1'\ndef f():\n    yield from fetch(B)"),
    "SQL is chosen from a table": (
        "ops/queue.py",
        "A = {'id': 'SELECT 1', 'new': 'SELECT 2'}\ndef f(k):\n    yield from fetch(A[k])",
    ),
    "SQL is taken from a list": (
        "ops/queue.py",
        "A = ('SELECT 1', 'SELECT 2')\ndef f():\n    for sql in A:\n        yield from fetch(sql)",
    ),
    "SQL is proven literal by its type": ("ops/statement.py", "def f(sql: LiteralString):\n    yield Fetch(sql, {})"),
}


def test_the_package_keeps_its_laws() -> None:
    assert [str(breach) for breach in breaches(SOURCES)] == []


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_breach_is_caught(case: str) -> None:
    place, text = PLANTED[case]
    assert breaches_of(text, Path("lash_store", place)) != []


@pytest.mark.parametrize("case", ALLOWED)
def test_what_the_laws_allow_is_not_reported(case: str) -> None:
    place, text = ALLOWED[case]
    assert breaches_of(text, Path("lash_store", place)) == []
