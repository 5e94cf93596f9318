"""The command line in the hands of somebody new: short lines, short help, completion, and sentences that count right."""

from __future__ import annotations

import datetime
import re
import shlex
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from lash_store import Append, Commit, NodeDraft, Store, Success
from lash_store.cli.app import cli
from lash_store.cli.complete import OFFERED_MAX
from lash_store.cli.demo.command import commands, place_of
from lash_store.cli.output import brief_instant, counted, short
from lash_store.store._sync import sampling
from lash_store.store.url import parse
from tests.support.cli import CLEARED, run
from tests.support.cli_place import Place, job, sqlite_place
from tests.support.cli_place import place_of as store_place

STYLE = re.compile(r"\x1b\[[0-9;]*m")
SUMMARY_MAX = 55
SHARES = (0.0, 0.5, 0.999)
DAY = datetime.date(2026, 1, 2)
DAY_MS = int(datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC).timestamp() * 1000)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each engine."""
    return store_place(request.param, request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """An empty SQLite store, for what does not depend on the engine."""
    return sqlite_place(tmp_path)


# --- the sample of doctor -------------------------------------------------------------------------------------------------


def aged(place: Place, store: Store, *, ended: int) -> None:
    """Four sessions and four processes, of which some have ended; each was changed at a moment of its own."""
    for n in range(4):
        store.sessions.create(f"s{n}")
        store.processes.register(job(f"p{n}"))
    for n in range(ended):
        store.processes.complete(f"p{n}", Success())
    with store.transaction() as tx:
        for n in range(4):
            tx.execute(f"UPDATE {place.table('sessions')} SET updated_ms = {1000 * n + 1} WHERE session_id = 's{n}'")
            tx.execute(f"UPDATE {place.table('processes')} SET updated_ms = {1000 * n + 1} WHERE process_id = 'p{n}'")


@pytest.mark.parametrize("ended", [0, 1, 3, 4])
def test_a_sample_as_large_as_the_store_reads_all_of_it(place: Place, monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    with place.store() as store:
        aged(place, store, ended=ended)
        for share in SHARES:
            monkeypatch.setattr(sampling.random, "random", lambda share=share: share)
            for size, read in ((100, 4), (4, 4), (3, 3), (1, 1)):
                verified = store.maintenance.examine(sample=size).verified
                assert (verified["sessions"], verified["processes"]) == (read, read), (share, size)


# --- short lines ----------------------------------------------------------------------------------------------------------


def long_names(store: Store) -> tuple[str, str]:
    """A session of one commit, whose turn and node have long ids."""
    turn, leaf = f"turn-{'t' * 40}", f"node-{'n' * 60}"
    store.sessions.create("chat")
    said = NodeDraft(node_id=leaf, body={"role": "user", "text": "what is the weather in Lisbon?"})
    store.session("chat").commit(Commit(expected_revision=0, turn_id=turn, graph=Append([said])))
    return turn, leaf


def screen_of(place: Place, *arguments: str) -> list[str]:
    """The lines that a terminal of 80 columns shows."""
    with place.terminal(*arguments, "--no-color", columns=80) as screen:
        assert screen.wait() == 0, screen.seen
    return STYLE.sub("", screen.seen).replace("\r", "").splitlines()


def test_the_log_of_a_terminal_is_a_line_per_commit_and_a_pipe_gets_whole_ids(local: Place) -> None:
    with local.store() as store:
        turn, leaf = long_names(store)
    [piped] = local.ok("session", "log", "chat").rows()
    assert piped[:5] == ["1", "commit", turn, "1", leaf]
    date, clock = piped[5].split("T")
    [row] = [line for line in screen_of(local, "session", "log", "chat") if line.startswith("│")]
    *cells, committed = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["1", "commit", f"{turn[:10]}…", "1", f"{leaf[:10]}…"]
    assert committed in (f"{clock[:8]}Z", f"{date} {clock[:5]}Z")  # midnight may pass in between
    full = [line.split("│") for line in screen_of(local, "session", "log", "chat", "--full") if line.startswith("│")]
    assert "".join(row[5].strip() for row in full) == leaf
    assert local.json("session", "log", "chat")["items"][0]["turn_id"] == turn


def test_the_tree_of_a_terminal_has_room_for_what_was_said(local: Place) -> None:
    with local.store() as store:
        _, leaf = long_names(store)
    brief = "\n".join(screen_of(local, "session", "tree", "chat"))
    assert f"{leaf[:10]}…  message  user: what is the weather in Lisbon?  <- head" in brief
    assert leaf in "\n".join(screen_of(local, "session", "tree", "chat", "--full"))
    assert leaf in local.ok("session", "tree", "chat").out


def test_an_id_and_a_moment_in_short() -> None:
    assert [short(None), short("x" * 11), short("x" * 12)] == ["-", "x" * 11, f"{'x' * 10}…"]
    assert brief_instant(DAY_MS, today=DAY) == "03:04:05Z"
    assert brief_instant(DAY_MS, today=DAY + datetime.timedelta(days=1)) == "2026-01-02 03:04Z"
    assert [brief_instant(None), brief_instant(10**18)] == ["-", f"{10**18} ms"]


def test_an_empty_list_is_called_that_on_a_terminal_and_is_nothing_in_a_pipe(local: Place) -> None:
    assert screen_of(local, "session", "list") == ["(none)"]
    assert local.ok("session", "list").out == ""


def test_things_are_counted_in_their_number(local: Place) -> None:
    assert [counted(n, "processes") for n in (0, 1, 2)] == ["0 processes", "1 process", "2 processes"]
    assert [counted(1, things) for things in ("batches", "nodes", "turns")] == ["1 batch", "1 node", "1 turn"]
    with local.store() as store:
        long_names(store)
        store.processes.register(job())
    assert ["verified", "1 session, 1 node, 1 process"] in local.ok("doctor").rows()


# --- help and completion --------------------------------------------------------------------------------------------------


def groups(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Group]]:
    below = [each for name, one in group.commands.items() if isinstance(one, click.Group) for each in groups(one, (*path, name))]
    return [(path, group), *below]


def test_no_summary_of_a_command_is_cut() -> None:
    for path, group in groups(cli):
        summaries = {name: command.get_short_help_str(limit=200) for name, command in group.commands.items()}
        assert {name: text for name, text in summaries.items() if not 0 < len(text) <= SUMMARY_MAX} == {}, path
        listed = run(*path, "--help", env={"COLUMNS": "80"}).out.partition("Commands:")[2]
        assert "..." not in listed, path


def completed(place: Place | None, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[tuple[str, str]]:
    """What the shell is offered for the last of the words."""
    for name in CLEARED:
        monkeypatch.delenv(name, raising=False)
    for name, value in ({} if place is None else place.env).items():
        monkeypatch.setenv(name, value)
    offered = ShellComplete(cli, {}, "lash-store", "_LASH_STORE_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [(item.type, item.value) for item in offered]


def test_the_shell_completes_ids_of_sessions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.store() as store:
        for name in ("chat-1", "chat-2", "mail", "chat-\u202ex"):
            store.sessions.create(name)
    assert sorted(completed(place, monkeypatch, "session", "log", "chat")) == [("plain", "chat-1"), ("plain", "chat-2")]
    assert completed(place, monkeypatch, "gc", "--session", "m") == [("plain", "mail")]
    named = ("--url", place.url, "--schema", place.schema)
    assert completed(None, monkeypatch, *named, "inbox", "list", "m") == [("plain", "mail")]


def test_the_shell_is_offered_a_bounded_number(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with local.store() as store:
        for n in range(OFFERED_MAX + 1):
            store.sessions.create(f"s{n}")
    assert len(completed(local, monkeypatch, "session", "show", "")) == OFFERED_MAX


def test_completion_is_silent_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter").write_text("Dear reader")
    for url in (str(tmp_path / "none.db"), str(tmp_path / "letter"), "postgresql://user@127.0.0.1:1/agents", "odd://x"):
        assert completed(None, monkeypatch, "--url", url, "session", "show", "") == []
    assert completed(None, monkeypatch, "session", "show", "") == []
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]
    assert tuple(capfd.readouterr()) == ("", "")


def test_the_shell_completes_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(None, monkeypatch, "doctor", "--url", "ag") == [("file", "ag")]
    assert completed(None, monkeypatch, "--blobs", "fo") == [("dir", "fo")]


# --- what to try after the demo -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["postgresql://ada@db/agents?host=%2Ftmp&port=1", "postgresql:///agents"])
def test_a_url_without_a_password_is_in_the_commands_to_try_next(url: str) -> None:
    target = parse(url, schema="demo")
    assert all(shlex.split(line)[-4:] == ["--url", url, "--schema", "demo"] for line in commands(target))
    assert "export" not in place_of(target).afterwards


@pytest.mark.parametrize("url", ["postgresql://ada:hush@db/agents", "postgresql://db/agents?pass%77ord=hush&user=ada"])
def test_a_password_is_not_in_the_commands_to_try_next(url: str) -> None:
    target = parse(url, schema="demo")
    assert all(line.endswith('--url "$LASH_STORE_URL" --schema demo') for line in commands(target))
    assert "export it first" in place_of(target).afterwards
    assert "hush" not in "".join([*commands(target), place_of(target).afterwards])


# --- copy -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sessions", "most"), [(5, 2), (120, 8)])
def test_a_copy_in_a_pipe_says_little(local: Place, tmp_path: Path, sessions: int, most: int) -> None:
    with local.store() as store:
        for n in range(sessions):
            store.sessions.create(f"s{n}")
    lines = run("copy", local.url, tmp_path / "target.db").err.splitlines()
    assert 2 <= len(lines) <= most
    assert lines[-1].startswith("Comparing: ")
