"""Starts a program of `tests.support.programs` as a process of its own, and talks with it line by line."""

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
PATIENCE_S = 120  # far beyond any honest wait; reaching it is a failure

Word = dict[str, Any]


class Program:
    """A running process. Its words are collected as they come; `until` waits for those that matter."""

    def __init__(self, program: str, /, **job: Any) -> None:
        command = [sys.executable, "-m", "tests.support.programs", program, json.dumps(job)]
        self._process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._words: list[Word] = []
        self._changed = threading.Condition()
        self._ended = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, line: str = "go") -> None:
        """Send a line; it waits in the pipe when the process does not read."""
        print(line, file=self._stdin, flush=True)

    def until(self, enough: Callable[[list[Word]], bool]) -> list[Word]:
        """All words so far, once they are enough; a program that ends before is a failure."""
        with self._changed:
            self._changed.wait_for(lambda: enough(self._words) or self._ended, PATIENCE_S)
            assert enough(self._words), f"the program ended or kept silent after {self._words[-3:]}"
            return list(self._words)

    def next(self, seen: int) -> Word:
        """The word after the first `seen`."""
        return self.until(lambda words: len(words) > seen)[seen]

    def pause(self) -> None:
        """SIGSTOP, and wait until the kernel says that it stands."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> list[Word]:
        """Close its input, which every program takes as the end, and return all it said."""
        self._stdin.close()
        status = self._process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        assert status == 0, f"the program ended with {status}"
        return self._words

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        with suppress(BrokenPipeError):  # words it did not live to hear
            self._stdin.close()
        self._listener.join(PATIENCE_S)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._words.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
