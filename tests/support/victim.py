"""A process that works on a store until it is killed, and tells through a pipe how far it came.

Its lines: `b` and a deed before the call, `f` and the time when the first statement of the call has run, or the function that is
the whole call is about to, `a`, the time and the answer after the call, `x` and a text when something happened that nobody
expects. It is forked by `tests.support.killer`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from lash_store import Claim, NotFound, StatementEvent, Store, Unavailable
from lash_store.db import postgres_session
from tests.support.deeds import Answer, Deed, do
from tests.support.hasty import answer_before_commit
from tests.support.ways import Way, go

Role = Literal["writer", "claimer", "heir"]


class Life(Struct, frozen=True, kw_only=True):
    """What a victim is born with. `redo` are deeds whose answers others did not live to hear; an heir does nothing else."""

    name: str
    role: Role
    seed: str
    url: str
    schema: str
    sessions: Sequence[str]
    redo: Sequence[Deed] = ()
    hasty: bool = False
    way: Way = "short"


class Voice:
    """Writes lines into the pipe; each is one write, so none is torn by a kill."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._waiting_for_first = False

    def begun(self, deed: Deed) -> None:
        self._say(b"b", msgspec.json.encode(deed))
        self._waiting_for_first = True

    def statement(self, _: StatementEvent) -> None:
        self._first()

    def watch_functions(self) -> None:
        """When a function has run, everything is over: what counts is when it is called."""
        publish = postgres_session.Session.publish

        async def heard(session: postgres_session.Session, running: Any, shortcut: Any) -> list[Any] | None:
            self._first()
            return await publish(session, running, shortcut)

        setattr(postgres_session.Session, "publish", heard)  # noqa: B010 - a type checker is right to refuse the plain spelling

    def _first(self) -> None:
        if self._waiting_for_first:
            self._waiting_for_first = False
            self._say(b"f", b"%d" % time.monotonic_ns())

    def answered(self, answer: Answer) -> None:
        self._say(b"a", b"%d " % time.monotonic_ns() + msgspec.json.encode(answer))

    def failed(self, error: BaseException) -> None:
        self._say(b"x", f"{type(error).__name__}: {error}".replace("\n", " ")[:1000].encode())

    def _say(self, kind: bytes, text: bytes) -> None:
        os.write(self._pipe, kind + text + b"\n")


def live(life: Life, pipe: int) -> None:
    """Open the store after the fork, as everybody must, and work."""
    voice = Voice(pipe)
    try:
        go(life.way)
        if life.hasty:
            answer_before_commit()
        voice.watch_functions()
        store = open_patiently(life, voice)
        for deed in life.redo:
            perform(store, deed, voice)
        if life.role == "heir":
            store.close()
        else:
            Worker(life, store, voice).work()
    except BaseException as error:
        voice.failed(error)
        raise


def open_patiently(life: Life, voice: Voice) -> Store:
    while True:
        try:
            return Store.open(life.url, schema=life.schema, pool_size=1, on_statement=voice.statement)
        except Unavailable:
            continue  # it is safe to repeat, and others who open at the same moment finish in bounded time


def perform(store: Store, deed: Deed, voice: Voice) -> Answer:
    """Make the call and tell. What is unavailable is repeated with the same key, as applications do."""
    voice.begun(deed)
    while True:
        try:
            answer = do(store, deed)
        except Unavailable:
            continue
        voice.answered(answer)
        return answer


class Worker:
    """An endless stream of deeds, drawn at random."""

    def __init__(self, life: Life, store: Store, voice: Voice) -> None:
        self._life, self._store, self._voice = life, store, voice
        self._chance = random.Random(life.seed)
        self._keys: Iterator[str] = (f"{life.name}.{n}" for n in range(10**9))

    def work(self) -> None:
        while True:
            session_id = self._chance.choice(self._life.sessions)
            if self._life.role == "writer":
                self._write(session_id)
            else:
                self._serve(session_id)

    def _write(self, session_id: str) -> None:
        kind = self._chance.choice(("append", "append", "checkpoint", "enqueue"))
        if kind == "append" or not self._exists(session_id):
            self._do(Deed(key=next(self._keys), kind="append", session_id=session_id))
        elif kind == "enqueue":
            self._do(Deed(key=next(self._keys), kind="enqueue", session_id=session_id))
        else:
            revision = self._store.sessions.get(session_id).revision
            self._do(Deed(key=next(self._keys), kind="checkpoint", session_id=session_id, expected_revision=revision))

    def _serve(self, session_id: str) -> None:
        if not self._exists(session_id):
            self._write(session_id)
            return
        claim = self._do(Deed(key=next(self._keys), kind="claim", session_id=session_id)).claim
        if claim is None:
            self._do(Deed(key=next(self._keys), kind="enqueue", session_id=session_id))
            return
        if self._chance.random() < 0.3:
            renewed = self._with(claim, "renew").claim
            claim = renewed or claim  # a lost claim is used all the same: it must be refused again
        self._with(claim, self._chance.choice(("settle", "finish", "finish", "abandon")))

    def _with(self, claim: Claim, kind: Literal["renew", "settle", "finish", "abandon"]) -> Answer:
        return self._do(Deed(key=next(self._keys), kind=kind, session_id=claim.session_id, claim=claim))

    def _do(self, deed: Deed) -> Answer:
        return perform(self._store, deed, self._voice)

    def _exists(self, session_id: str) -> bool:
        try:
            self._store.sessions.get(session_id)
        except NotFound:
            return False
        return True
