"""What a backend says it does not have, by name, and how a law that reaches for it ends: not judged, and never silently.

A lack is declared with its reason. Its name is one of

    clock                  the database's clock cannot be moved
    raw                    there are no tables to look into
    open.on_statement      an option of `open`
    transaction            a verb of the store, or a whole noun: `triggers`
    maintenance.backup     a verb of a noun
    session.commit         a verb of a session's handle

What is lacked must be refused with an error of `lash_store.errors`. A backend that answers has not understood its own word,
and the law is broken.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NoReturn

from lash_store.errors import StoreError

NOUNS = frozenset({"sessions", "queue", "processes", "triggers", "attachments", "artifacts", "maintenance"})
CLOCK, RAW, OPTION = "clock", "raw", "open."

Lacks = Mapping[str, str]


class Lacking(BaseException):
    """A law needs what the backend declared to lack. Not an Exception: no law may take it for a refusal it expects."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the backend lacks {name}: {why}")
        self.name = name


class NotJudged(UserWarning):
    """A law was not judged, and why."""


class Part:
    """A store, a noun or a handle without the verbs that are lacked; everything else passes through."""

    def __init__(self, target: Any, lacks: Lacks, path: str = "") -> None:
        self._target = target
        self._lacks = lacks
        self._path = path

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}{name}"
        if path in self._lacks:
            return Missing(getattr(self._target, name, None), path, self._lacks[path])
        value = getattr(self._target, name)
        if name in NOUNS and not self._path:
            return Part(value, self._lacks, f"{name}.")
        if name == "session" and not self._path:
            return lambda session_id: Part(value(session_id), self._lacks, "session.")  # pyright: ignore[reportUnknownLambdaType]
        return value


class Missing:
    """Stands where a verb or a noun is lacked. However a law uses it, the backend must refuse, and the law is not judged."""

    def __init__(self, verb: Any, path: str, why: str) -> None:
        self._verb = verb
        self._lack = (path, why)

    def __getattr__(self, name: str) -> Missing:
        return Missing(getattr(self._verb, name, None), *self._lack)

    def __call__(self, *args: Any, **kwargs: Any) -> Missing:
        if not callable(self._verb):
            _answered(self._lack[0], "is not there at all")
        try:
            return Missing(self._verb(*args, **kwargs), *self._lack)
        except StoreError:
            raise Lacking(*self._lack) from None

    def __await__(self) -> Generator[Any, Any, NoReturn]:
        return self._refused(lambda: self._verb).__await__()

    async def __aenter__(self) -> NoReturn:
        await self._refused(self._entered)

    async def __aexit__(self, *_: object) -> None: ...

    async def _entered(self) -> None:
        async with self._verb:
            pass

    def __aiter__(self) -> Missing:
        return self

    async def __anext__(self) -> NoReturn:
        await self._refused(lambda: anext(aiter(self._verb)))

    async def _refused(self, use: Callable[[], Any]) -> NoReturn:
        await must_refuse(self._lack[0], use)
        raise Lacking(*self._lack)


async def must_refuse(name: str, use: Callable[[], Awaitable[object] | object]) -> None:
    """Do it; anything but an error of the store's kind breaks the law."""
    try:
        answer = use()
        if inspect.isawaitable(answer):
            await answer
    except StoreError:
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no refusal
        _answered(name, f"raised {type(error).__name__} ({error})")
    _answered(name, "answered")


def _answered(name: str, what: str) -> NoReturn:
    raise AssertionError(f"{name} is declared as lacking, but it {what}: it must be refused with an error of lash_store.errors")
