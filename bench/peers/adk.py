"""Google ADK: its database session service, called as its runner calls it: get the session, append each event."""

# It runs in an environment of its own, so that ours knows none of its packages.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from bench.load import Turn, random_text
from bench.subject import Place, Subject, serve

NAME = "Google ADK"
REQUIREMENTS = ("google-adk", "sqlalchemy[asyncio]", "asyncpg")
VARIANTS = {"Google ADK": {"engine": "PostgreSQL", "arguments": [], "role": "turns"}}
SEMANTICS = {
    "stores": "events and a session state",
    "atomic": "per event; a turn is several",
    "compare_and_set": "by time stamp of the session: StaleSessionError",
    "idempotent": "no turn ids",
}
APP, USER = "bench", "somebody"


class ADK(Subject):
    """DatabaseSessionService over asyncpg."""

    async def open(self, place: Place) -> dict[str, str]:
        """The service makes its tables at its first call."""
        from google.adk.sessions import DatabaseSessionService

        url = place.url.replace("postgresql://", "postgresql+asyncpg://")
        self._service = DatabaseSessionService(url, pool_size=place.pool, max_overflow=0)
        self._known: set[str] = set()
        await self._session("first")
        return {name: version(name) for name in ("google-adk", "sqlalchemy", "asyncpg")}

    async def _session(self, session: str) -> Any:
        if session not in self._known:
            self._known.add(session)
            return await self._service.create_session(app_name=APP, user_id=USER, session_id=session)
        return await self._service.get_session(app_name=APP, user_id=USER, session_id=session)

    async def turn(self, session: str, turn: Turn) -> None:
        """The user's event, then the answers; the last one carries the memory as a change of state."""
        store = await self._session(session)
        await self._service.append_event(store, event("user", turn.messages[0]))
        for text in turn.messages[1:-1]:
            await self._service.append_event(store, event("agent", text))
        await self._service.append_event(store, event("agent", turn.messages[-1], memory=turn.memory))

    async def deepen(self, session: str, turns: int) -> None:
        """Event after event on a session that is not read again."""
        if turns > 1_000:
            raise NotImplementedError
        store = await self._session(session)
        for _ in range(turns * 2):
            await self._service.append_event(store, event("user", random_text(400)))

    async def resume(self, session: str) -> int:
        """The session with all its events."""
        return len((await self._session(session)).events)

    async def tail(self, session: str) -> int:
        """Its last events."""
        from google.adk.sessions.base_session_service import GetSessionConfig

        options = GetSessionConfig(num_recent_events=50)
        found = await self._service.get_session(app_name=APP, user_id=USER, session_id=session, config=options)
        return len(found.events)

    async def add(self, session: str, key: str, text: str) -> bool:
        """One writer of several; a stale session is refused."""
        try:
            await self._service.append_event(await self._session(session), event("user", text))
        except Exception as error:
            if "tale" in type(error).__name__ + str(error):
                return False
            raise
        return True

    async def texts(self, session: str) -> list[str]:
        """Every message."""
        return [each.content.parts[0].text for each in (await self._session(session)).events]

    async def create(self, session: str) -> None:
        """An empty session."""
        await self._session(session)

    async def recent(self) -> int:
        """All sessions of the user: there is no limit to ask for."""
        return len((await self._service.list_sessions(app_name=APP, user_id=USER)).sessions)

    async def delete(self, session: str) -> None:
        """Delete it."""
        await self._service.delete_session(app_name=APP, user_id=USER, session_id=session)

    async def close(self) -> None:
        """Close the engine."""
        await self._service.close()


def event(author: str, text: str, memory: str | None = None) -> Any:
    """An event with one text."""
    from google.adk.events import Event, EventActions
    from google.genai import types

    actions = EventActions(state_delta={"memory": memory}) if memory is not None else EventActions()
    return Event(
        author=author, invocation_id="turn", content=types.Content(role=author, parts=[types.Part(text=text)]), actions=actions
    )


if __name__ == "__main__":
    serve(ADK())
