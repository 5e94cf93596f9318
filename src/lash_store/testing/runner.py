"""Every law, and how to keep one: `keep(law, backend)`; with pytest, parametrize over `laws_for()`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

from lash_store.testing.backend import Backend
from lash_store.testing.laws import MODULES

Law = Callable[[Backend], Coroutine[Any, Any, None]]

LAW_SECONDS = 120  # a law that takes longer hangs


def all_laws() -> tuple[Law, ...]:
    """Every law, noun by noun, in the order they are written."""
    return tuple(law for module in MODULES for law in _laws_of(module))


def _laws_of(module: ModuleType) -> list[Law]:
    own = [value for value in vars(module).values() if inspect.iscoroutinefunction(value)]
    return [law for law in own if law.__module__ == module.__name__ and not law.__name__.startswith("_")]


def law_name(law: Law) -> str:
    """`noun.law`, as reports print it."""
    return f"{law.__module__.rpartition('.')[2]}.{law.__name__}"


def law_called(name: str) -> Law:
    """The law of that name."""
    return next(law for law in all_laws() if law_name(law) == name)


def laws_for(*nouns: str) -> list[Any]:
    """Every law as a pytest parameter with its name as id; only those of `nouns` when some are given."""
    import pytest

    chosen = (law for law in all_laws() if not nouns or law_name(law).partition(".")[0] in nouns)
    return [pytest.param(law, id=law_name(law)) for law in chosen]


def keep(law: Law, backend: Backend) -> None:
    """Run a law in an event loop of its own and close the backend. Raises what the law raises."""
    asyncio.run(_keep(law, backend))


async def _keep(law: Law, backend: Backend) -> None:
    try:
        async with asyncio.timeout(LAW_SECONDS):
            await law(backend)
    finally:
        await backend.close()
