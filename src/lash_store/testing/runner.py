"""Every law, and how to keep one: `keep(law, backend)`; with pytest, parametrize over `laws_for()`; without, `run_laws`."""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterable
from types import ModuleType
from typing import Any, Literal, Protocol, TextIO, TypeVar

from msgspec import Struct

from lash_store.errors import StoreError
from lash_store.testing.backend import Backend, ByteBackend
from lash_store.testing.lacking import Lacking, NotJudged
from lash_store.testing.laws import MODULES, byte_stores

Law = Callable[[Backend], Coroutine[Any, Any, None]]
ByteLaw = Callable[[ByteBackend], Coroutine[Any, Any, None]]
Outcome = Literal["kept", "broken", "crashed", "not judged"]

LAWS = byte_stores.__name__.rpartition(".")[0]
LAW_SECONDS = 120  # a law that takes longer hangs


class Closable(Protocol):
    """What every backing has."""

    async def close(self) -> None:
        """Let go of it."""
        ...


B = TypeVar("B", bound=Closable)
LawOf = Callable[[B], Coroutine[Any, Any, None]]


def all_laws() -> tuple[Law, ...]:
    """Every law of stores, noun by noun, in the order they are written."""
    return tuple(law for module in MODULES for law in _laws_of(module))


def byte_laws() -> tuple[ByteLaw, ...]:
    """Every law of byte stores."""
    return tuple(_laws_of(byte_stores))


def _laws_of(module: ModuleType) -> list[Any]:
    own = [value for value in vars(module).values() if inspect.iscoroutinefunction(value)]
    return [law for law in own if law.__module__ == module.__name__ and not law.__name__.startswith("_")]


def law_name(law: Callable[..., Any]) -> str:
    """`noun.law`, as reports print it."""
    return f"{law.__module__.rpartition('.')[2]}.{law.__name__}"


def law_called(name: str) -> Law:
    """The law of stores of that name."""
    return next(law for law in all_laws() if law_name(law) == name)


def laws_for(*nouns: str) -> list[Any]:
    """Every law as a pytest parameter with its name as id; only those of `nouns` when some are given.

    `laws_for("byte_stores")` are those of byte stores, which no store can keep.
    """
    import pytest

    known = byte_laws() if nouns == ("byte_stores",) else all_laws()
    chosen = (law for law in known if not nouns or law_name(law).partition(".")[0] in nouns)
    return [pytest.param(law, id=law_name(law)) for law in chosen]


# --- one law --------------------------------------------------------------------------------------------------------------


class Verdict(Struct, frozen=True):
    """What became of one law. `broken`: the answer or the refusal was another one. `crashed`: anything else was raised."""

    law: str
    outcome: Outcome
    why: str = ""
    trace: str = ""


def keep(law: LawOf[B], backend: B) -> None:
    """Run a law in an event loop of its own and close the backend. Raises what the law raises.

    A law that reaches for what the backend declared to lack ends with the warning NotJudged.
    """
    try:
        asyncio.run(_keep(law, backend))
    except Lacking as lack:
        said = f"{law_name(law)} is not judged: {lack}"
    else:
        return
    warnings.warn(said, NotJudged, stacklevel=2)


def judge(law: LawOf[B], backend: B) -> Verdict:
    """The same as a verdict; only what ends a program is raised."""
    name = law_name(law)
    try:
        asyncio.run(_keep(law, backend))
    except Lacking as lack:
        return Verdict(name, "not judged", str(lack))
    except AssertionError as error:
        return Verdict(name, "broken", _line(error) or "it does not hold", traceback.format_exc())
    except StoreError as error:  # a refusal that the law does not expect is a wrong answer, not an accident
        return Verdict(name, "broken", f"{type(error).__name__}: {_line(error)}", traceback.format_exc())
    except Exception as error:  # noqa: BLE001 - whatever a backend raises belongs into the report
        outcome: Outcome = "broken" if _missed(error) else "crashed"
        return Verdict(name, outcome, f"{type(error).__name__}: {_line(error)}", traceback.format_exc())
    return Verdict(name, "kept")


async def _keep(law: LawOf[B], backend: B) -> None:
    try:
        async with asyncio.timeout(LAW_SECONDS):
            await law(backend)
    finally:
        await backend.close()


def _missed(error: Exception) -> bool:
    """Whether a law took an answer apart and found too little or too much in it: `(batch,) = …`, `rows[0]`."""
    if not isinstance(error, ValueError | LookupError):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).startswith(f"{LAWS}.")


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


# --- all of them ----------------------------------------------------------------------------------------------------------


class Report(Struct, frozen=True):
    """What became of every law."""

    verdicts: tuple[Verdict, ...]

    def having(self, *outcomes: Outcome) -> list[Verdict]:
        """The verdicts with one of these outcomes."""
        return [verdict for verdict in self.verdicts if verdict.outcome in outcomes]

    @property
    def exit_code(self) -> int:
        """0 when some law was kept, and none is broken or crashed."""
        return 0 if self.having("kept") and not self.having("broken", "crashed") else 1

    def __str__(self) -> str:
        counts = [(outcome, len(self.having(outcome))) for outcome in ("kept", "broken", "crashed", "not judged")]
        return f"{len(self.verdicts)} laws: " + ", ".join(f"{count} {outcome}" for outcome, count in counts if count)


def run_laws(fresh: Callable[[], B], laws: Iterable[LawOf[B]] | None = None, *, out: TextIO | None = None) -> Report:
    """Run laws (all of a store's by default), each on a fresh backend, and print what is not kept, why, and the counts."""
    stream = sys.stdout if out is None else out
    chosen: Any = all_laws() if laws is None else laws
    verdicts: list[Verdict] = []
    for law in chosen:
        verdict = judge(law, fresh())
        verdicts.append(verdict)
        if verdict.outcome != "kept":
            print(f"{verdict.outcome}: {verdict.law}\n  {verdict.why}\n{verdict.trace}", end="", file=stream, flush=True)
    report = Report(tuple(verdicts))
    print(report, file=stream, flush=True)
    return report
