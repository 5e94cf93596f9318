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
    read_only: bool = False

    def target(self) -> Target:
        """The database to open. Raises InvalidArgument for what contradicts itself, before anything is opened."""
        self._check()
        target = target_of(self.url, schema=self.schema, pooled=self.pool is not None)
        if target.engine == "sqlite" and (self.pool is not None or self.pooler or self.listen_url is not None):
            raise InvalidArgument("url", "pool, pooler and listen_url belong to PostgreSQL; the url names a SQLite database")
        if self.read_only and target.in_memory:
            raise InvalidArgument("read_only", "a database in memory is empty when it is opened: there is nothing to read")
        return target

    @property
    def may_migrate(self) -> bool:
        """Whether opening may change the schema."""
        return self.migrate and not self.read_only

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
        if self.durability not in ("full", "relaxed"):
            raise InvalidArgument("durability", 'must be "full" or "relaxed"')
        if not isinstance(self.limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise InvalidArgument("limits", "must be a Limits")
        lowered(self.limits)
        _whole("pool_size", self.pool_size, POOL_MAX)
        for name in ("acquire_ms", "lock_ms", "statement_ms", "settled_key_retention_ms"):
            _whole(name, getattr(self, name), DURATION_MAX_MS)
        for name in ("migrate", "pooler", "in_loop", "read_only"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(name, "must be True or False")
        _check_blobs(self.blobs)

    def __repr__(self) -> str:
        return f"Options(schema={self.schema!r}, migrate={self.migrate}, durability={self.durability!r})"


def _whole(name: str, value: object, maximum: int) -> None:
    if type(value) is not int or not 1 <= value <= maximum:
        raise InvalidArgument(name, f"must be a whole number between 1 and {maximum}")


def _check_blobs(blobs: object) -> None:
    named = blobs is None or isinstance(blobs, str | os.PathLike)
    if not named and not all(callable(getattr(blobs, verb, None)) for verb in ("put", "read", "delete")):
        raise InvalidArgument("blobs", 'must be None, "database", a directory, or a byte store with put, read and delete')
