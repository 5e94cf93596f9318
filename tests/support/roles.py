"""Roles of PostgreSQL with few rights, made for one test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

USE_TABLES = (
    'GRANT USAGE ON SCHEMA "{schema}" TO {role};'
    ' GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO {role}'
)


@asynccontextmanager
async def role(url: str, tcp_url: str, *, schema: str, grants: str = "SELECT 1") -> AsyncGenerator[str]:
    """The url of a new role that may do nothing but what it is granted."""
    name, password = f"r_{secrets.token_hex(6)}", secrets.token_hex(8)
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        await admin.execute(grants.format(role=name, schema=schema))
        yield f"postgresql://{name}:{password}@{tcp_url.partition('@')[2]}"
    finally:
        await admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
        await admin.close()
