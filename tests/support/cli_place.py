"""A store for the command line to look at, on either engine, and what stands in it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lash_store import Append, Commit, EventType, Frame, NodeDraft, ProcessInput, Registration, Store, SubscriptionDraft, Usage
from tests.support.cli import Ran, Terminal, run, terminal

ESCAPE = "\x1b[31m"  # what a hostile body would turn a terminal red with
PAYLOAD_SCHEMA = {"type": "object", "required": ["n"]}


@dataclass(frozen=True)
class Place:
    """A store, and how the command line is told where it is."""

    url: str
    schema: str
    engine: str

    @property
    def env(self) -> dict[str, str]:
        return {"LASH_STORE_URL": self.url, "LASH_STORE_SCHEMA": self.schema}

    def store(self) -> Store:
        return Store.open(self.url, schema=self.schema)

    def table(self, name: str) -> str:
        return f"lash_{name}" if self.engine == "sqlite" else f'"{self.schema}".{name}'

    def run(self, *arguments: str) -> Ran:
        return run(*arguments, env=self.env)

    def ok(self, *arguments: str) -> Ran:
        done = self.run(*arguments)
        assert done.code == 0, done
        return done

    def json(self, *arguments: str) -> Any:
        return self.ok(*arguments, "--json").json()

    def terminal(self, *arguments: str, columns: int = 120) -> contextlib.AbstractContextManager[Terminal]:
        return terminal(*arguments, env=self.env, columns=columns)


def sqlite_place(tmp_path: Path) -> Place:
    """An empty SQLite store."""
    return _made(Place(str(tmp_path / "agent.db"), "lash_store", "sqlite"))


def place_of(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of an engine."""
    if engine == "sqlite":
        return sqlite_place(tmp_path)
    return _made(Place(request.getfixturevalue("pg_url"), request.getfixturevalue("pg_schema"), "postgresql"))


def _made(place: Place) -> Place:
    place.store().close()
    return place


def node(node_id: str, text: str = "", **more: Any) -> NodeDraft:
    """A node that says something."""
    return NodeDraft(node_id=node_id, body={"role": "user", "text": text or node_id}, **more)


def chat(store: Store, session_id: str = "chat", *, nodes: int = 20) -> None:
    """A session with a long run, and a branch of two nodes that leaves it in its middle and carries the head."""
    store.sessions.create(session_id, name="a [red]name[/red]")
    handle = store.session(session_id)
    handle.commit(
        Commit(
            expected_revision=0,
            turn_id="turn-1",
            graph=Append([node(f"n{i}") for i in range(nodes)]),
            checkpoint={"memory": b"m" * 2048, "plan": b"p"},
            usage=[Usage(source="agent", model="m-1", input=5, output=7, reasoning=1)],
            frames=[Frame(frame_id="frame-1", body={"goal": 1}, state=b"secret state")],
            current_frame_id="frame-1",
        )
    )
    branch = [node("b0", f"{ESCAPE}boo", parent_id=f"n{nodes // 2}"), node("b1")]
    handle.commit(Commit(expected_revision=1, graph=Append(branch)))


def job(process_id: str = "job", **more: Any) -> Registration:
    """A process that takes notes and one signal."""
    types = [EventType(name="note"), EventType(name="signal.approve", schema=PAYLOAD_SCHEMA)]
    return Registration(process_id=process_id, input=ProcessInput("work", {"n": 1}), event_types=types, **more)


def subscription(key: str = "mail", **more: Any) -> SubscriptionDraft:
    """A wish to answer mail."""
    target = ProcessInput("answer", {"args": {}})
    return SubscriptionDraft(source_type="mail", source_key=key, target=target, payload_schema=PAYLOAD_SCHEMA, **more)
