"""LangGraph: a graph of one node with a checkpointer, as its documentation begins."""

# It runs in an environment of its own, so that ours knows none of its packages.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

from bench.load import Turn, random_text
from bench.subject import Place, Subject, serve

NAME = "LangGraph"
REQUIREMENTS = ("langgraph", "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite", "psycopg[binary,pool]")
VARIANTS = {
    "LangGraph": {"engine": "PostgreSQL", "arguments": ["postgres", "sync"], "role": "turns"},
    "LangGraph exit": {"engine": "PostgreSQL", "arguments": ["postgres", "exit"], "role": "turns"},
    "LangGraph delta": {"engine": "PostgreSQL", "arguments": ["postgres", "delta"], "role": "turns"},
    "LangGraph SQLite": {"engine": "SQLite", "arguments": ["sqlite", "sync"], "role": "turns"},
    "LangGraph SQLite exit": {"engine": "SQLite", "arguments": ["sqlite", "exit"], "role": "turns"},
}
SEMANTICS = {
    "stores": "the whole state with every step (durability sync); exit: once per turn; delta: sync with DeltaChannel",
    "atomic": "per step, not per turn (exit: per turn)",
    "compare_and_set": "no: of two writers one silently loses",
    "idempotent": "no turn ids",
}


def state_of(kind: str) -> type:
    """The state: messages, and a memory that is replaced."""
    from langgraph.graph.message import add_messages

    if kind != "delta":
        return TypedDict("State", {"messages": Annotated[list, add_messages], "memory": str})
    from langgraph.channels.delta import DeltaChannel

    def joined(before: list, writes: Any) -> list:
        return [*before, *(message for write in writes for message in (write if isinstance(write, list) else [write]))]

    return TypedDict("State", {"messages": Annotated[list, DeltaChannel(joined)], "memory": str})


class LangGraph(Subject):
    """One invocation per turn; the node answers from what the harness prepared."""

    def __init__(self, engine: str, kind: str) -> None:
        self._engine, self._kind = engine, kind
        self._turns: dict[str, Turn] = {}
        self._pool: Any = None

    async def open(self, place: Place) -> dict[str, str]:
        """Its saver with its own tables, over a pool of the common size."""
        await (self._open_postgres(place) if self._engine == "postgres" else self._open_sqlite(place))
        self._graph = self._compiled()
        names = ("langgraph", f"langgraph-checkpoint-{self._engine}", "psycopg" if self._engine == "postgres" else "aiosqlite")
        return {name: version(name) for name in names}

    async def _open_postgres(self, place: Place) -> None:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        self._pool = AsyncConnectionPool(place.url, min_size=place.pool, max_size=place.pool, kwargs=options, open=False)
        await self._pool.open(wait=True)
        self._saver = AsyncPostgresSaver(self._pool)
        await self._saver.setup()

    async def _open_sqlite(self, place: Place) -> None:
        import aiosqlite
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        self._connection = await aiosqlite.connect(place.url)
        await self._connection.execute("PRAGMA synchronous = FULL")
        self._saver = AsyncSqliteSaver(self._connection)
        await self._saver.setup()

    def _compiled(self) -> Any:
        from langchain_core.messages import AIMessage
        from langchain_core.runnables import RunnableConfig
        from langgraph.graph import END, START, StateGraph

        def reply(state: dict, config: RunnableConfig) -> dict:
            turn = self._turns.pop(config["configurable"]["thread_id"], None)
            if turn is None:
                return {}
            return {"messages": [AIMessage(text) for text in turn.messages[1:]], "memory": turn.memory}

        builder = StateGraph(state_of(self._kind))
        builder.add_node("reply", reply)
        builder.add_edge(START, "reply")
        builder.add_edge("reply", END)
        return builder.compile(checkpointer=self._saver)

    async def turn(self, session: str, turn: Turn) -> None:
        """The user's message in, the answer and the memory out."""
        self._turns[session] = turn
        await self._invoke(session, turn.messages[:1])

    async def _invoke(self, session: str, texts: Any) -> None:
        from langchain_core.messages import HumanMessage

        durability = "exit" if self._kind == "exit" else "sync"
        await self._graph.ainvoke({"messages": [HumanMessage(text) for text in texts]}, config(session), durability=durability)

    async def deepen(self, session: str, turns: int) -> None:
        """All messages in one turn: the state is as large as after so many."""
        await self._invoke(session, [random_text(400) for _ in range(turns * 2)])

    async def resume(self, session: str) -> int:
        """The state of the thread."""
        return len((await self._graph.aget_state(config(session))).values["messages"])

    async def tail(self, session: str) -> int:
        """There is no part of a state."""
        return min(50, await self.resume(session))

    async def fork(self, session: str, new: str, turns: int) -> None:
        """A branch of the same thread, at its end."""
        await self._graph.aupdate_state((await self._graph.aget_state(config(session))).config, {"memory": "forked"})

    async def add(self, session: str, key: str, text: str) -> bool:
        """An invocation beside others on one thread."""
        await self._invoke(session, [text])
        return True

    async def texts(self, session: str) -> list[str]:
        """Every message of the thread."""
        return [message.content for message in (await self._graph.aget_state(config(session))).values["messages"]]

    async def prune(self, session: str) -> None:
        """Keep the latest checkpoint."""
        await self._saver.aprune([session], strategy="keep_latest")

    async def delete(self, session: str) -> None:
        """Delete the thread."""
        await self._saver.adelete_thread(session)

    async def close(self) -> None:
        """Close the pool or the file."""
        await (self._pool.close() if self._pool is not None else self._connection.close())


def config(session: str) -> Any:
    """A thread."""
    return {"configurable": {"thread_id": session}}


if __name__ == "__main__":
    serve(LangGraph(*sys.argv[1:3]))
