"""Operations, gates and child processes for the tests of the SQLite driver."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from lash_store.db.driver import Mode
from lash_store.db.sqlite import SqliteDriver
from lash_store.errors import NotFound
from lash_store.ops.statement import Op, Ring, execute, fetch, fetch_one, ring

CHILD_S = 60  # a hang is a failure; nothing is decided by it
ROOT = Path(__file__).resolve().parents[2]


def create() -> Op[int]:
    return (yield from execute("CREATE TABLE t (k TEXT PRIMARY KEY NOT NULL, v TEXT) STRICT"))


def put(key: str, value: str = "") -> Op[int]:
    yield from ring("t", key)
    return (yield from execute("INSERT INTO t (k, v) VALUES (:k, :v)", k=key, v=value))


def put_then_refuse(key: str) -> Op[int]:
    yield from put(key)
    raise NotFound("thing", key)


def keys() -> Op[list[str]]:
    rows = yield from fetch("SELECT k FROM t ORDER BY k")
    return [row[0] for row in rows]


def count() -> Op[int]:
    row = yield from fetch_one("SELECT count(*) FROM t")
    assert row is not None
    return row[0]


class Gate:
    """An operation that stands still between two statements until the test opens it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def stand(self) -> Op[tuple[int, int]]:
        before = yield from count()
        self.entered.set()
        assert self._opened.wait(CHILD_S)
        after = yield from count()
        return before, after


class Points:
    """Remembers the points the writer passes, and calls `act` at the n-th passing of one of them (from `arm` on)."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self._armed: list[tuple[str, int, Callable[[], None]]] = []

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        nth = self.passed.count(point)
        for at, when, act in self._armed:
            if (at, when) == (point, nth):
                act()

    def arm(self, point: str, act: Callable[[], None], *, nth: int = 1) -> None:
        self._armed.append((point, self.passed.count(point) + nth, act))


def fail_with(code: int) -> Callable[[], None]:
    """Something to do at a point: raise SQLite's error of this code."""

    def act() -> None:
        raise apsw.exception_for(code)

    return act


class Bench:
    """A driver with its table, its rings and its points."""

    def __init__(self, path: Path | str, **options: Any) -> None:
        self.rings: list[Ring] = []
        self.points = Points()
        self.driver = SqliteDriver.open(path, ring=self.rings.extend, faults=self.points, **options)
        if not self.read(tables):
            self.write(create)

    def submit(self, op: Callable[..., Op[Any]], *args: object) -> Future[Any]:
        return self.driver.submit(partial(op, *args), Mode.WRITE)

    def write(self, op: Callable[..., Op[Any]], *args: object) -> Any:
        return self.submit(op, *args).result(CHILD_S)

    def read(self, op: Callable[..., Op[Any]], *args: object) -> Any:
        return self.driver.submit(partial(op, *args), Mode.READ).result(CHILD_S)

    def batch(self, *calls: Callable[[], Op[Any]]) -> list[Future[Any]]:
        """Submit calls while the writer stands still, so that they become one batch."""
        gate = Gate()
        standing = self.submit(gate.stand)
        assert gate.entered.wait(CHILD_S)
        futures = [self.driver.submit(call, Mode.WRITE) for call in calls]
        self.points.passed.clear()
        gate.open()
        standing.result(CHILD_S)
        return futures


def tables() -> Op[list[Sequence[Any]]]:
    return (yield from fetch("SELECT name FROM sqlite_master WHERE name = 't'"))


def python(script: str, *args: object) -> subprocess.Popen[str]:
    """A fresh process that runs `script`."""
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def output(script: str, *args: object, code: int = 0) -> str:
    """What `script` printed, once it ended with `code`."""
    process = python(script, *args)
    out, errors = process.communicate(timeout=CHILD_S)
    assert process.returncode == code, errors
    return out


STORED = """
import sys, apsw
print("\\n".join(row[0] for row in apsw.Connection(sys.argv[1]).execute("SELECT k FROM t ORDER BY k")))
"""


def stored(path: Path) -> list[str]:
    """The keys in the file, as another process sees them."""
    return output(STORED, path).split()
