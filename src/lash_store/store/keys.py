"""The key a caller repeats a call with when its answer was lost."""

from __future__ import annotations

from types import TracebackType

from lash_store.errors import Disconnected


class keyed:  # noqa: N801 - it reads as a verb: `with keyed(turn_id)`
    """A lost connection inside names the key: repeating the call with it returns the first result."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Disconnected):
            raise Disconnected(str(error.fields()["why"]), key=self._key) from error
