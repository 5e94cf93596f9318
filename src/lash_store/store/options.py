"""Everything `open` takes, as one value. The facades fill it, the runtimes read it."""

from __future__ import annotations

import os
from typing import Any, Literal

from msgspec import Struct

from lash_store.db.driver import StatementHook
from lash_store.errors import InvalidArgument
from lash_store.model.limits import DEFAULT_LIMITS, DURATION_MAX_MS, SETTLED_KEY_RETENTION_MS, Limits, lowered
from lash_store.store.url import DEFAULT_SCHEMA, Target, parse, target_of

Durability = Literal["full", "relaxed"]

POOL_MAX = 1_000  # connections of one store: beyond it a server needs a pooler


class Options(Struct, frozen=True, kw_only=True):
    """The arguments of `Store.open` and `AsyncStore.open`. It prints without the urls, which may hold passwords."""

    url: str | os.PathLike[str] | None = None
    schema: str = DEFAULT_SCHEMA
    migrate: bool = True
    durability: Durability = "full"
    blobs: Any = None
    on_statement: StatementHook | None = None
    limits: Limits = DEFAULT_LIMITS
    pool: Any = None
    pool_size: int = 16
    acquire_ms: int = 30_000
    lock_ms: int = 10_000
    statement_ms: int = 30_000
    pooler: bool = False
    listen_url: str | None = None
    settled_key_retention_ms: int = SETTLED_KEY_RETENTION_MS
    in_loop: bool = False

    def target(self) -> Target:
        """The database to open. Raises InvalidArgument for what contradicts itself, before anything is opened."""
        self._check()
        target = target_of(self.url, schema=self.schema, pooled=self.pool is not None)
        if target.engine == "sqlite" and (self.pool is not None or self.pooler or self.listen_url is not None):
            raise InvalidArgument("url", "pool, pooler and listen_url belong to PostgreSQL; the url names a SQLite database")
        return target

    def listen_target(self) -> Target | None:
        """Where to LISTEN: `listen_url`, else the database itself, else nowhere (behind a pooler, or with only a pool)."""
        if self.listen_url is not None:
            target = parse(self.listen_url, schema=self.schema)
            if target.engine != "postgresql":
                raise InvalidArgument("listen_url", "must be a postgresql:// url")
            return target
        target = self.target()
        return None if self.pooler or target.dsn is None else target

    def _check(self) -> None:
        lowered(self.limits)
        if self.durability not in ("full", "relaxed"):
            raise InvalidArgument("durability", 'must be "full" or "relaxed"')
        if not 1 <= self.pool_size <= POOL_MAX:
            raise InvalidArgument("pool_size", f"must be between 1 and {POOL_MAX}")
        for name in ("acquire_ms", "lock_ms", "statement_ms", "settled_key_retention_ms"):
            if not 0 < getattr(self, name) <= DURATION_MAX_MS:
                raise InvalidArgument(name, f"must be between 1 and {DURATION_MAX_MS}")

    def __repr__(self) -> str:
        return f"Options(schema={self.schema!r}, migrate={self.migrate}, durability={self.durability!r})"
