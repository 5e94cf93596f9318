"""A warm process without threads that forks others on request: they begin in milliseconds, and never share an open store.

`python -m tests.support.process_forge forge {}`. An order names what to `do`; the answer is the child's status
and its words. With `announce`, its pid comes first.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable

from tests.support.actor import Word, perform, say, told
from tests.support.process_hunt import hunt
from tests.support.process_victim import Tell, fork, victim
from tests.support.process_waits import rounds

CHILDREN: dict[str, Callable[[Word, Tell], None]] = {"victim": victim, "hunt": hunt, "rounds": rounds}


def forge(_: Word) -> None:
    """One child after another."""
    gc.freeze()  # the collector of a child would touch, and so copy, every page it shares with us
    while (order := told()) is not None:
        status, words = _child(order)
        say(status=status, words=words)


def _child(order: Word) -> tuple[int, list[Word]]:
    ours, theirs = os.pipe()
    pid = fork(lambda: CHILDREN[order["do"]](order, lambda **word: _write(theirs, word)))
    os.close(theirs)
    if order.get("announce"):
        say(pid=pid)
    with os.fdopen(ours) as voice:
        words = [json.loads(line) for line in voice]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), words


def _write(pipe: int, word: Word) -> None:
    """Unbuffered, so that what was said before a kill is heard."""
    with os.fdopen(pipe, "wb", closefd=False) as voice:
        voice.write(json.dumps(word).encode() + b"\n")


if __name__ == "__main__":
    perform({"forge": forge})
