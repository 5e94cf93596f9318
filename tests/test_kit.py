"""The conformance kit tells a backend that is not ours from one that breaks a promise and from one that lacks things."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lash_store.blobs.filesystem import FilesystemBytes
from lash_store.errors import InvalidArgument, Misuse
from lash_store.testing import (
    ByteBackend,
    ByteLaw,
    NotJudged,
    OwnBackend,
    OwnBytes,
    SqliteBackend,
    all_laws,
    byte_laws,
    judge,
    keep,
    law_called,
    law_name,
    laws_for,
    run_laws,
    runner,
)
from lash_store.testing.example import Shelf, ShelfBytes
from lash_store.testing.example.__main__ import shelf_backend, shelf_bytes
from tests.support.broken_stores import BYTES, STORES, Broken

PAGE = Path(__file__).resolve().parents[1] / "docs" / "howto" / "own-backend.md"
BYSTANDERS = ("sessions.concurrent_creates_make_one_session", "artifacts.bytes_come_back_from_another_handle")


def broken_backend(break_it: Callable[[Any], None]) -> OwnBackend:
    """The example, with something broken in every handle."""
    shelf = Shelf()

    async def factory(**options: Any) -> Any:
        store = await shelf.open(**options)
        break_it(store)
        return store

    return OwnBackend(
        factory, engine="shelf", advance=shelf.advance, raw=shelf.raw, table="lash_{}".format, close=shelf.close, lacks={}
    )


def byte_law(name: str) -> ByteLaw:
    return next(law for law in byte_laws() if law_name(law) == name)


# --- a backend that is not ours -------------------------------------------------------------------------------------------


def test_the_example_runs_from_an_empty_folder(tmp_path: Path) -> None:
    # All laws run as the program of docs/howto/own-backend.md; here, that the installed module is a program.
    command = [sys.executable, "-W", "error", "-m", "lash_store.testing.example", "commits", "byte_stores"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    commits = len([law for law in all_laws() if law_name(law).startswith("commits.")])
    assert done.stdout.splitlines() == [f"{commits} laws: {commits} kept", f"{len(byte_laws())} laws: {len(byte_laws())} kept"]


def test_the_programs_of_the_page_are_ten_lines_each() -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(programs) >= 2
    assert all(len([line for line in program.splitlines() if line.strip()]) <= 10 for program in programs)
    assert "run_laws(fresh)" in programs[0]


# --- broken ones ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_a_broken_store_breaks_the_law_that_names_the_promise(name: str) -> None:
    break_it, law = STORES[name]
    verdict = judge(law_called(law), broken_backend(break_it))
    assert (verdict.outcome, verdict.law) == ("broken", law), verdict.trace
    assert f"in {law.partition('.')[2]}" in verdict.trace
    assert [judge(law_called(other), broken_backend(break_it)).outcome for other in BYSTANDERS] == ["kept", "kept"]


@pytest.mark.parametrize("kind", BYTES, ids=lambda kind: kind.__name__)
def test_a_broken_byte_store_breaks_the_law_that_names_the_promise(kind: type[Broken]) -> None:
    shelf: dict[str, bytes] = {}
    verdict = judge(byte_law(BYTES[kind]), OwnBytes(lambda: kind(shelf), damage=shelf.__setitem__))
    assert (verdict.outcome, verdict.law) == ("broken", BYTES[kind]), verdict.trace


def test_every_law_of_byte_stores_is_broken_by_something() -> None:
    assert set(BYTES.values()) == {law_name(law) for law in byte_laws()}


def test_what_is_raised_by_mistake_is_told_from_a_broken_promise() -> None:
    def raises(store: Any) -> None:
        store.sessions.create = None

    verdict = judge(law_called("sessions.concurrent_creates_make_one_session"), broken_backend(raises))
    assert (verdict.outcome, verdict.why) == ("crashed", "TypeError: 'NoneType' object is not callable")


def test_a_law_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LAW_SECONDS", 0.05)
    verdict = judge(law_called("waiting.a_wait_ends_at_its_timeout"), broken_backend(waits_forever))
    assert (verdict.outcome, verdict.why.partition(":")[0]) == ("crashed", "TimeoutError")


def waits_forever(store: Any) -> None:
    wait = store.queue.wait_ready

    async def forever(session_id: str | None = None, *, timeout_ms: int) -> bool:
        return await wait(session_id, timeout_ms=60_000)

    store.queue.wait_ready = forever


# --- byte stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", laws_for("byte_stores"))
def test_files_keep_the_laws_of_byte_stores(law: Callable[[ByteBackend], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    keep(law, OwnBytes(lambda: FilesystemBytes(tmp_path), damage=lambda name, data: file_of(tmp_path, name).write_bytes(data)))


def file_of(root: Path, name: str) -> Path:
    path = root / "sha256" / name[:2] / name
    path.chmod(0o600)
    return path


# --- lacks ----------------------------------------------------------------------------------------------------------------


class Small(Shelf):
    """The example without transactions, statement hooks, and triggers, which it refuses."""

    async def open(self, **options: Any) -> Any:
        if "on_statement" in options:
            raise InvalidArgument("on_statement", "is not reported here")
        store = await super().open(**options)
        store.transaction = no_transaction  # type: ignore[method-assign]
        return store


class no_transaction:  # noqa: N801 - it stands for a verb
    """Refuses when it is entered, as a transaction would."""

    def __init__(self, **_: Any) -> None: ...

    async def __aenter__(self) -> None:
        raise Misuse("transaction", "there are none here")

    async def __aexit__(self, *_: object) -> None: ...


def small_backend(**lacks: str) -> OwnBackend:
    shelf = Small()
    declared = {name.replace("__", "."): why for name, why in lacks.items()}
    doors: dict[str, Any] = {"advance": shelf.advance, "raw": shelf.raw, "table": "lash_{}".format, "close": shelf.close}
    for door, name in (("advance", "clock"), ("raw", "raw")):
        if name in declared:
            del doors[door]
    return OwnBackend(shelf.open, lacks=declared, **doors)


@pytest.mark.parametrize(
    ("law", "lack"),
    [
        ("transactions.an_exception_rolls_everything_back", "transaction"),
        ("costs.a_commit_costs_the_same_for_one_and_for_many", "open__on_statement"),
        ("claims.a_clock_that_steps_back_frees_nothing_early", "clock"),
        ("corruption.a_changed_node_is_corrupt", "raw"),
    ],
)
def test_a_law_that_needs_what_is_lacked_is_not_judged_and_says_so(law: str, lack: str) -> None:
    name = lack.replace("__", ".")
    with pytest.warns(NotJudged, match=f"{law} is not judged: the backend lacks {name}: it is small"):
        keep(law_called(law), small_backend(**{lack: "it is small"}))
    verdict = judge(law_called(law), small_backend(**{lack: "it is small"}))
    assert (verdict.outcome, verdict.why) == ("not judged", f"the backend lacks {name}: it is small")
    assert judge(law_called(BYSTANDERS[0]), small_backend(**{lack: "it is small"})).outcome == "kept"


@pytest.mark.parametrize("lack", ["transaction", "open__on_statement", "sessions", "sessions__load"])
def test_what_is_lacked_and_answers_all_the_same_breaks_the_law(lack: str) -> None:
    laws = {"transaction": "transactions.an_exception_rolls_everything_back"}
    laws |= {"open__on_statement": "costs.a_commit_costs_the_same_for_one_and_for_many"}
    law = laws.get(lack, "frames.frames_round_trip_with_their_state_and_order")
    shelf, name = Shelf(), lack.replace("__", ".")
    backend = OwnBackend(
        shelf.open, advance=shelf.advance, raw=shelf.raw, table="lash_{}".format, close=shelf.close, lacks={name: "?"}
    )
    verdict = judge(law_called(law), backend)
    assert verdict.outcome == "broken"
    assert verdict.why.startswith(f"{name} is declared as lacking, but it answered")


def test_what_is_lacked_and_raises_something_else_breaks_the_law() -> None:
    def bare(store: Any) -> None:
        del store.triggers

    backend = broken_backend(bare)
    backend.lacks["triggers"] = "it has none"

    async def law(backend: Any) -> None:
        await (await backend.open()).triggers.list()

    assert judge(law, backend).why.startswith("triggers is declared as lacking, but it is not there at all")


def test_bytes_that_cannot_be_damaged_are_not_judged_for_it() -> None:
    shelf: dict[str, bytes] = {}
    law = byte_law("byte_stores.damaged_bytes_are_noticed_and_healed_by_a_put")
    verdict = judge(law, OwnBytes(lambda: ShelfBytes(shelf), lacks={"damage": "it is behind a wall"}))
    assert (verdict.outcome, verdict.why) == ("not judged", "the backend lacks damage: it is behind a wall")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give the backend clock, or declare it"),
        ({"advance": print, "raw": print, "lacks": {"clock": "?"}}, "one of the two"),
        ({"advance": print, "raw": print, "lacks": {"clocks": "?"}}, "nothing is called clocks"),
        ({"advance": print, "raw": print, "lacks": {"open.nothing": "?"}}, "nothing is called open.nothing"),
    ],
)
def test_doors_are_given_or_declared_and_names_are_known(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OwnBackend(Shelf().open, **options)


# --- the report -----------------------------------------------------------------------------------------------------------


def test_a_report_prints_what_is_not_kept_and_why() -> None:
    async def kept(backend: Any) -> None: ...

    async def broken(backend: Any) -> None:
        assert not backend, "two and two are five"

    async def lacked(backend: Any) -> None:
        await backend.advance(1)

    out = io.StringIO()
    report = run_laws(lambda: small_backend(clock="it is small"), [kept, broken, lacked], out=out)
    assert str(report) == "3 laws: 1 kept, 1 broken, 1 not judged"
    assert report.exit_code == 1
    text = out.getvalue()
    assert "broken: test_kit.broken\n  two and two are five\nTraceback" in text
    assert "not judged: test_kit.lacked\n  the backend lacks clock: it is small\n" in text
    assert text.endswith("\n3 laws: 1 kept, 1 broken, 1 not judged\n")


def test_nothing_kept_is_no_success() -> None:
    async def lacked(backend: Any) -> None:
        await backend.advance(1)

    backend = lambda: small_backend(clock="it is small")  # noqa: E731
    assert run_laws(backend, [lacked], out=io.StringIO()).exit_code == 1
    assert run_laws(backend, [], out=io.StringIO()).exit_code == 1


def test_the_shipped_engines_are_backends_like_any_other(tmp_path: Path) -> None:
    files = iter(range(10))
    laws = [law_called(name) for name in BYSTANDERS]
    assert run_laws(lambda: SqliteBackend(tmp_path / f"{next(files)}.db"), laws, out=io.StringIO()).exit_code == 0
    assert run_laws(shelf_backend, laws, out=io.StringIO()).exit_code == 0
    assert run_laws(shelf_bytes, byte_laws(), out=io.StringIO()).exit_code == 0
