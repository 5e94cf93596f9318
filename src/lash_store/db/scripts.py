"""The shipped SQL files: numbered migrations for both engines, functions for PostgreSQL."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from msgspec import Struct

_NAME = re.compile(r"(?P<number>\d{4})_\w+\.sql")
_COMPATIBLE = re.compile(r"^-- compatible_from: (?P<version>\d+)$", re.MULTILINE)
_PIECE = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|(?P<quote>\$\w*\$).*?(?P=quote)|;", re.DOTALL)


class Step(Struct, frozen=True):
    """One migration. Libraries from version `compatible_from` on work with the schema it leaves."""

    version: int
    compatible_from: int
    statements: tuple[str, ...]


@cache
def steps() -> tuple[Step, ...]:
    """All migrations in their order; the last one's number is the library's version."""
    names = sorted(file.name for file in files("lash_store.db").joinpath("migrations").iterdir() if _NAME.fullmatch(file.name))
    found = tuple(parse_step(int(name[:4]), _text("migrations", name)) for name in names)
    assert [step.version for step in found] == list(range(1, len(found) + 1)), f"migrations must be numbered 1, 2, 3 …: {names}"
    return found


def parse_step(version: int, text: str) -> Step:
    """A migration file. Without a line `-- compatible_from: N` no older library may open its schema."""
    declared = _COMPATIBLE.search(text)
    return Step(version, int(declared["version"]) if declared else version, tuple(split(text)))


def library_version() -> int:
    """The schema version this library writes."""
    return steps()[-1].version


@cache
def functions() -> tuple[str, ...]:
    """PostgreSQL's functions, one statement each; those the others are made of come first."""
    return tuple(map(function_text, function_names()))


@cache
def function_names() -> tuple[str, ...]:
    """What they are called, in the same order: each is in a file of its name."""
    found = (file.name for file in files("lash_store.db").joinpath("functions").iterdir() if file.name.endswith(".sql"))
    return tuple(sorted((name.removesuffix(".sql") for name in found), key=lambda name: (not name.startswith("frame_"), name)))


def function_text(name: str) -> str:
    """The statement that creates one function."""
    return _text("functions", f"{name}.sql")


def split(text: str) -> list[str]:
    """The statements of a script. Semicolons in literals, comments and function bodies end nothing."""
    statements, start = [""], 0
    for piece in _PIECE.finditer(text):
        statements[-1] += text[start : piece.start()]
        start = piece.end()
        if piece[0] == ";":
            statements.append("")
        elif not piece[0].startswith("--"):
            statements[-1] += piece[0]
    statements[-1] += text[start:]
    return [statement.strip() for statement in statements if statement.strip()]


def _text(folder: str, name: str) -> str:
    return files("lash_store.db").joinpath(folder, name).read_text(encoding="utf-8")
