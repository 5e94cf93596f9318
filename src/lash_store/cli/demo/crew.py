"""The processes of the demo: started, heard, killed, and none of them left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import msgspec

from lash_store.cli.demo.worker import Order, Place
from lash_store.cli.failures import NO, Failed

GRACE_S = 2.0  # for a process to end by itself; it has nothing to clean up
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORKER, VERIFIER = "lash_store.cli.demo.worker", "lash_store.cli.demo.verify"


class Ended(Failed):
    """A process of the demo ended before it was told to. What it said about it is on stderr."""

    def __init__(self, member: Member, code: int) -> None:
        super().__init__(f"The demo cannot go on: process {member.pid} ({member.name}) ended early, with code {code}.", code=NO)


class Member:
    """One process of the demo. It reads orders from its standard input and tells its notes on its standard output."""

    def __init__(self, module: str, place: Place) -> None:
        self.name = place.name
        self.started = time.monotonic()
        self.ended: float | None = None
        # -P: what lies in the working directory is not ours to import. A group of its own: Ctrl-C is for the demo, which then
        # ends its processes in order.
        command = [sys.executable, "-P", "-m", module]
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        self._write(place)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def order(self, order: Order) -> None:
        """Tell it what to do."""
        self._write(order)

    def ask(self, question: object) -> Any:
        """Send a line, and hear the answer."""
        self._write(question)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Its next note, once there is one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Ended(self, self._process.wait())
        return json.loads(line)

    def notes_until(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Its notes as they come, up to and with the first of these kinds."""
        while True:
            note = self.hear()
            yield note
            if note["kind"] in kinds:
                return

    def kill(self) -> int:
        """SIGKILL, and how the operating system says it ended."""
        self._process.send_signal(signal.SIGKILL)
        return self._reap()

    def dismiss(self) -> None:
        """End it: it goes when its standard input does, and is killed if it does not."""
        if self.ended is not None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it ended before it read its last line
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def _reap(self) -> int:
        code = self._process.wait()
        self.ended = time.monotonic()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # an order it did not live to read
        return code

    def _write(self, line: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(line).decode() + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Ended(self, self._process.wait()) from None


class Crew:
    """All processes of the demo. The next one is always starting up, so that nobody waits for an interpreter."""

    def __init__(self, url: str, schema: str, *, size: int) -> None:
        self.url, self.schema = url, schema
        self.members: list[Member] = []
        self.workers: list[Member] = []
        self._names = iter(NAMES[:size])
        self._next = self._start_next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for member in self.members:
            member.dismiss()

    def hire(self) -> Member:
        """A worker that is ready."""
        member = self._next
        note = member.hear()
        assert note["kind"] == "ready"
        self.workers.append(member)
        self._next = self._start_next()
        return member

    def verifier(self) -> Member:
        """The process that checks everything at the end; it starts when the last worker has."""
        return self._next

    def _start_next(self) -> Member:
        name = next(self._names, None)
        return self._start(VERIFIER, "verifier") if name is None else self._start(WORKER, name)

    def observer(self, name: str) -> Member:
        """A process that reads raw rows, and has never opened a store."""
        return self._start(VERIFIER, name)

    def _start(self, module: str, name: str) -> Member:
        member = Member(module, Place(self.url, self.schema, name))
        self.members.append(member)
        return member
