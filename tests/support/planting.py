"""How a bug is planted: a function replaced wherever it is known, or other SQL than was written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from lash_store.db.dialect import Dialect

Plant = Callable[[pytest.MonkeyPatch], None]
SQLITE, POSTGRES, BOTH = ("sqlite",), ("postgresql",), ("sqlite", "postgresql")


class Control(NamedTuple):
    """A planted bug, the engines it is planted on, and the laws that must notice."""

    plant: Plant
    laws: tuple[str, ...]
    engines: tuple[str, ...] = SQLITE


def everywhere(patch: pytest.MonkeyPatch, original: object, planted: object) -> None:
    """Replace a function in every module of the library that has it by name."""
    name: str = original.__name__  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    for module in list(sys.modules.values()):
        if module.__name__.startswith("lash_store") and vars(module).get(name) is original:
            patch.setattr(module, name, planted)


def token_reads(patch: pytest.MonkeyPatch, wanted: str, replacement: str) -> None:
    """Make the dialects write other SQL."""
    original = Dialect.compile

    def compile(self: Dialect, sql: Any) -> Any:
        compiled = original(self, sql)
        return structs.replace(compiled, text=compiled.text.replace(wanted, replacement))

    patch.setattr(Dialect, "compile", compile)


def answering(value: object) -> Callable[..., object]:
    """A function that ignores its arguments."""

    def planted(*_: object, **__: object) -> object:
        return value

    return planted
