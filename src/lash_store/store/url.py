"""Where a store lives, read from one string. Passwords stay out of every text this module or its values produce.

    agent.db, /var/lib/agent.db         a SQLite file
    sqlite:///agent.db                  the same, relative to the working directory
    sqlite:////var/lib/agent.db         the same, absolute
    sqlite://:memory:  or  :memory:     a SQLite database that ends with the store
    postgresql://user:secret@host/db    PostgreSQL; also postgres:// and postgresql+asyncpg://

Settings are arguments of `open`, not parts of a sqlite url; a postgresql url may carry those PostgreSQL knows.
"""

from __future__ import annotations

import os
import re
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from lash_store.errors import InvalidArgument

URL_VARIABLE, SCHEMA_VARIABLE = "LASH_STORE_URL", "LASH_STORE_SCHEMA"
DEFAULT_SCHEMA = "lash_store"
MEMORY = ":memory:"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_POSTGRES_SCHEMES = frozenset({"postgresql", "postgres", "postgresql+asyncpg"})

Engine = Literal["sqlite", "postgresql"]


class Target(Struct, frozen=True, kw_only=True):
    """A parsed url. `dsn` may hold a password: print `label`, never `dsn`."""

    engine: Engine
    path: str | None = None
    dsn: str | None = None
    schema: str = DEFAULT_SCHEMA

    @property
    def in_memory(self) -> bool:
        """Whether the database ends with the store."""
        return self.path == MEMORY

    @property
    def label(self) -> str:
        """The target for logs and errors: no password, no query."""
        if self.engine == "sqlite":
            return f"sqlite {self.path}"
        return "postgresql (the given pool)" if self.dsn is None else _label(self.dsn)

    def __repr__(self) -> str:
        return f"Target({self.label!r}, schema={self.schema!r})"


def target_of(url: str | os.PathLike[str] | None, *, schema: str = DEFAULT_SCHEMA, pooled: bool = False) -> Target:
    """Parse `url`; None asks the environment. `pooled`: the caller brings an asyncpg pool, and no url is needed."""
    if url is not None:
        return parse(os.fspath(url), schema=schema)
    if pooled:
        return Target(engine="postgresql", schema=schema)
    named = os.environ.get(URL_VARIABLE)
    if not named:
        raise InvalidArgument("url", f"none was given and {URL_VARIABLE} is not set. Give a path or a postgresql:// url")
    if schema == DEFAULT_SCHEMA:
        schema = os.environ.get(SCHEMA_VARIABLE) or schema
    return parse(named, schema=schema)


def parse(url: str, *, schema: str = DEFAULT_SCHEMA) -> Target:
    """The target a url or a path names."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return Target(engine="sqlite", path=_checked_path(url), schema=schema)
    name = scheme.group(1).lower()
    if name == "sqlite":
        return Target(engine="sqlite", path=_sqlite_path(url[scheme.end() :]), schema=schema)
    if name in _POSTGRES_SCHEMES:
        return Target(engine="postgresql", dsn=_postgres_dsn(url), schema=schema)
    raise InvalidArgument("url", f"unknown scheme {name!r}. Use a path, sqlite:/// or postgresql://")


def _sqlite_path(rest: str) -> str:
    if rest in (MEMORY, f"/{MEMORY}"):
        return MEMORY
    if not rest.startswith("/"):
        raise InvalidArgument(
            "url", "sqlite:// takes no host: write sqlite:///relative.db, sqlite:////absolute.db or sqlite://:memory:"
        )
    if "?" in rest or "#" in rest:
        raise InvalidArgument("url", "a sqlite url takes no query and no fragment: settings are arguments of open")
    return _checked_path(unquote(rest[1:]))


def _checked_path(path: str) -> str:
    if not path or "\0" in path:
        raise InvalidArgument("url", "a path must not be empty or hold a NUL")
    if "://" in path or path.lower().startswith(("postgresql:", "postgres:")):
        # Quotes or blanks around a url, or one slash too few. It may hold a password, so it is not a name to print.
        raise InvalidArgument("url", "looks like a url, but does not begin like one; see that nothing stands around it")
    if path.startswith("file:"):
        raise InvalidArgument("url", "SQLite's file: names are not taken: their options would change what the store promises")
    return path


def _postgres_dsn(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port  # it is parsed when asked for
    except ValueError:
        # The parser's own text may quote the part that holds the password.
        raise InvalidArgument(
            "url", "not a valid postgresql:// url; special characters in user and password are percent-encoded"
        ) from None
    if "@" in parts.path and "@" not in parts.netloc:  # a password with a slash in it, which would be printed as a path
        raise InvalidArgument("url", "special characters in user and password are percent-encoded: / is %2F, @ is %40")
    return "postgresql://" + url.partition("://")[2]


def _label(dsn: str) -> str:
    parts = urlsplit(dsn)
    host = parts.hostname or ""
    place = f"[{host}]" if ":" in host else host
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"postgresql://{user}{place}{port}{parts.path}"
