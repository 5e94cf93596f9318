"""The key a caller repeats a call with when its answer was lost."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from lash_store.errors import Disconnected


@contextmanager
def keyed(key: str | None) -> Generator[None]:
    """A lost connection inside names the key: repeating the call with it returns the first result."""
    try:
        yield
    except Disconnected as error:
        raise Disconnected(str(error.fields()["why"]), key=key) from error
