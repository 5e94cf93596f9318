"""What is stored: turns of random text, and a memory that grows with them. Standard library only: peers import it.

Random text, because repeated text compresses and would flatter whoever writes everything again with every turn.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass

MEMORY_BYTES = 12_000
MEMORY_TURNS = 40  # then the agent writes its memory anew: it stays between 12 KB and 44 KB, however long the session


@dataclass(frozen=True)
class Shape:
    """How much one turn says."""

    messages: int
    size: int


SHAPES = {"2 x 400 B": Shape(2, 400), "6 x 2 KB": Shape(6, 2_000)}
CHAT = "2 x 400 B"


@dataclass(frozen=True)
class Turn:
    """One turn of one session: its number from 0, its messages in order, and the whole memory after it."""

    number: int
    key: str
    messages: tuple[str, ...]
    memory: str


def random_text(size: int) -> str:
    """Text of `size` characters that does not compress below its entropy."""
    return base64.b64encode(os.urandom(size * 3 // 4 + 3))[:size].decode()


class Talk:
    """The turns of one session, one after the other."""

    def __init__(self, shape: Shape, number: int = 0) -> None:
        self._shape = shape
        self.number = number
        self._memory = random_text(MEMORY_BYTES)
        self._since = 0

    def turn(self) -> Turn:
        """The next turn. Each appends what it said to the memory."""
        messages = tuple(random_text(self._shape.size) for _ in range(self._shape.messages))
        if self._since == MEMORY_TURNS:
            self._memory, self._since = random_text(MEMORY_BYTES), 0
        self._memory += "".join(messages)[:800]
        self._since += 1
        turn = Turn(self.number, f"turn-{self.number}", messages, self._memory)
        self.number += 1
        return turn
