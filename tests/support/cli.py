"""Runs the command line as a user would: in this process (fast), as a program with pipes, and in a real terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from lash_store.cli.failures import run as run_program

CLI = (sys.executable, "-m", "lash_store")
CLEARED = ("LASH_STORE_URL", "LASH_STORE_SCHEMA", "LASH_STORE_BLOBS", "LASH_STORE_TRACEBACK", "NO_COLOR", "FORCE_COLOR")
# A session leader owns the first terminal it opens; only an owned one turns a typed Ctrl-C into a signal.
OWN_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
TERMINAL_S = 60  # far more than a verb needs: a hang fails with what was seen so far


@dataclass(frozen=True)
class Ran:
    """What a run of the program left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    def error(self) -> dict[str, Any]:
        """The one document on stderr, of a failure with --json."""
        return json.loads(self.err)["error"]

    def rows(self) -> list[list[str]]:
        """The tab-separated lines."""
        return [line.split("\t") for line in self.out.splitlines()]


def run(*arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Ran:
    """Run a command in this process, as if piped. Nobody can answer its questions."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, dict(env or {})), mock.patch.object(sys, "stdin", io.StringIO()):
        for name in CLEARED:
            if name not in (env or {}):
                os.environ.pop(name, None)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_program([os.fspath(argument) for argument in arguments])
    return Ran(code, out.getvalue(), err.getvalue())


def run_process(*arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """Run the program with its output piped."""
    done = subprocess.run(
        [*CLI, *(os.fspath(argument) for argument in arguments)],
        env=clean_environment(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would change the program's mind."""
    return {name: value for name, value in os.environ.items() if name not in CLEARED} | dict(more or {})


class Terminal:
    """The program in a pseudo-terminal: what it shows, what is typed into it."""

    def __init__(self, process: subprocess.Popen[bytes], leader: int) -> None:
        self.process = process
        self.seen = ""
        self._leader = leader
        self._deadline = time.monotonic() + TERMINAL_S

    def type(self, text: str) -> None:
        """Type as a user does; "\x03" is Ctrl-C."""
        os.write(self._leader, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until the screen has shown `text`."""
        while text not in self.seen:
            assert self._read(), f"the program ended without showing {text!r}: {self.seen!r}"

    def wait(self) -> int:
        """Read to the end. The exit code."""
        while self._read():
            pass
        return self.process.wait(TERMINAL_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._leader], [], [], max(0.0, self._deadline - time.monotonic()))
        assert ready, f"the program hangs: {self.seen!r}"
        try:
            data = os.read(self._leader, 65536)
        except OSError:  # EIO: the last one who had the terminal open has closed it
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def terminal(
    *arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None, command: Sequence[str] = CLI, columns: int = 120
) -> Generator[Terminal]:
    """Start the program in a terminal of its own, ended at the end whatever happens."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *command, *(os.fspath(argument) for argument in arguments)],
        env=clean_environment({"TERM": "xterm-256color", "COLUMNS": str(columns), **(env or {})}),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        yield Terminal(process, leader)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(leader)
