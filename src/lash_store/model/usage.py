"""Tokens spent: entries a commit records, totals the session keeps."""

from __future__ import annotations

from msgspec import Struct


class Usage(Struct, frozen=True, kw_only=True):
    """One entry of the ledger, recorded by a commit."""

    source: str
    model: str
    input: int = 0
    output: int = 0
    cached_input: int = 0
    reasoning: int = 0


class UsageTotal(Struct, frozen=True, kw_only=True):
    """The sum of all entries of one (source, model)."""

    source: str
    model: str
    input: int
    output: int
    cached_input: int
    reasoning: int

    @property
    def total(self) -> int:
        """Input, output and reasoning tokens; cached input is part of the input, not more of it."""
        return self.input + self.output + self.reasoning
