"""The ways an operation can go on PostgreSQL. Whoever is killed on one may be succeeded by somebody on another."""

from __future__ import annotations

from typing import Literal, get_args

from lash_store.db import pool, postgres

Way = Literal["short", "wrapped", "long"]
"""A function that commits by itself; the function inside BEGIN and COMMIT; statement by statement."""

WAYS: tuple[Way, ...] = get_args(Way)
FOREVER_MS = 86_400_000


def go(way: Way) -> None:
    """Let every operation of this process that can take this way take it. SQLite knows only the long one."""
    postgres.PostgresDriver.shortcuts = way != "long"
    pool.LATELY_MS = FOREVER_MS if way == "short" else -1  # whether a connection is trusted to be alive
