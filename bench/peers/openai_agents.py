"""OpenAI Agents SDK: its sessions, called as its runner calls them: read the history, add the input, add the answer."""

# It runs in an environment of its own, so that ours knows none of its packages.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from bench.load import Turn, random_text
from bench.subject import Place, Subject, serve

NAME = "OpenAI Agents"
REQUIREMENTS = ("openai-agents[sqlalchemy]", "asyncpg")
VARIANTS = {
    "OpenAI Agents": {"engine": "PostgreSQL", "arguments": ["postgres"], "role": "turns"},
    "OpenAI Agents SQLite": {"engine": "SQLite", "arguments": ["sqlite"], "role": "turns"},
}
SEMANTICS = {
    "stores": "messages only: no checkpoint",
    "atomic": "per call; a turn is two calls",
    "compare_and_set": "no: items of two writers interleave",
    "idempotent": "no turn ids",
}


class OpenAIAgents(Subject):
    """SQLAlchemySession on PostgreSQL, SQLiteSession on SQLite: the SDK's own choices."""

    def __init__(self, engine: str) -> None:
        self._kind = engine
        self._sessions: dict[str, Any] = {}

    async def open(self, place: Place) -> dict[str, str]:
        """An engine with the common pool size."""
        self._place = place
        if self._kind == "sqlite":
            return {"openai-agents": version("openai-agents")}
        from sqlalchemy.ext.asyncio import create_async_engine

        url = place.url.replace("postgresql://", "postgresql+asyncpg://")
        self._engine = create_async_engine(url, pool_size=place.pool, max_overflow=0)
        await self._session("first").get_items()
        return {name: version(name) for name in ("openai-agents", "sqlalchemy", "asyncpg")}

    def _session(self, session: str) -> Any:
        if session not in self._sessions:
            self._sessions[session] = self._new(session)
        return self._sessions[session]

    def _new(self, session: str) -> Any:
        if self._kind == "sqlite":
            from agents import SQLiteSession

            return SQLiteSession(session, self._place.url)
        from agents.extensions.memory import SQLAlchemySession

        return SQLAlchemySession(session, engine=self._engine, create_tables=not self._sessions)

    async def turn(self, session: str, turn: Turn) -> None:
        """What a run does around the model's answer."""
        store = self._session(session)
        await store.get_items()
        await store.add_items([{"role": "user", "content": turn.messages[0]}])
        await store.add_items([{"role": "assistant", "content": text} for text in turn.messages[1:]])

    async def deepen(self, session: str, turns: int) -> None:
        """Many items in one call."""
        await self._session(session).add_items([{"role": "user", "content": random_text(400)} for _ in range(turns * 2)])

    async def resume(self, session: str) -> int:
        """The whole history."""
        return len(await self._session(session).get_items())

    async def tail(self, session: str) -> int:
        """Its last items."""
        return len(await self._session(session).get_items(limit=50))

    async def add(self, session: str, key: str, text: str) -> bool:
        """One writer of several."""
        store = self._session(session)
        await store.get_items()
        await store.add_items([{"role": "user", "content": text}])
        return True

    async def texts(self, session: str) -> list[str]:
        """Every message."""
        return [item["content"] for item in await self._session(session).get_items()]

    async def delete(self, session: str) -> None:
        """Remove its items."""
        await self._session(session).clear_session()

    async def close(self) -> None:
        """Dispose of the engine."""
        if self._kind != "sqlite":
            await self._engine.dispose()


if __name__ == "__main__":
    serve(OpenAIAgents(sys.argv[1]))
