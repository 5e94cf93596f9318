"""A program that runs as a process of its own: it says JSON lines, hears lines, and can be stopped, continued and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600  # far beyond any honest wait; reaching it is a failure

Word = dict[str, Any]


class Actor:
    """A running `python -m MODULE NAME JOB`. Its words are collected as they come."""

    def __init__(self, module: str, name: str, /, **job: Any) -> None:
        command = [sys.executable, "-m", module, name, json.dumps(job)]
        self._process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._words: list[Word] = []
        self._heard = 0
        self._ended = False
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, **order: Any) -> None:
        """Send an order; it waits in the pipe while the process does not read."""
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)

    def hear(self) -> Word:
        """The next word. A program that ends before it is a failure."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._words) > self._heard or self._ended, PATIENCE_S)
            assert len(self._words) > self._heard, f"the program ended or kept silent after {self._words[-3:]}"
            self._heard += 1
            return self._words[self._heard - 1]

    def ask(self, **order: Any) -> Word:
        """Send an order and return the answer."""
        self.tell(**order)
        return self.hear()

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel says that it stands."""
        self._process.send_signal(signal.SIGSTOP)
        self.await_stop()

    def await_stop(self) -> None:
        """Wait until it stands, by whoever's signal."""
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the program ended with {status}"

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # orders it did not live to hear
            self._process.stdin.close()
        if kind is not None:
            self._process.kill()
        status = self._process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        self._stdout.close()
        assert kind is not None or status == 0, f"the program ended with {status}"

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _listen(self) -> None:
        for line in self._stdout:
            self._note(lambda line=line: self._words.append(json.loads(line)))
        self._note(lambda: setattr(self, "_ended", True))

    def _note(self, change: Callable[[], object]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


def say(**word: Any) -> None:
    """In the program: one line, written at once."""
    print(json.dumps(word), flush=True)


def told() -> Word | None:
    """In the program: the next order, or None at the end."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def perform(programs: dict[str, Callable[[Word], None]]) -> None:
    """In the program: run what the command line names."""
    programs[sys.argv[1]](json.loads(sys.argv[2]))
