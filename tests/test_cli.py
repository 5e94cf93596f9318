"""The command line as a user meets it: a terminal, a pipe, JSON, wrong arguments, and everything that can go wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lash_store import errors
from lash_store.cli import failures, main
from lash_store.cli.app import cli
from lash_store.cli.context import DURATION, JSON, safe_url, target_of
from lash_store.cli.output import Instant, Output, Size, Span, Styled, clean, instant, shown, size, span, to_json
from tests.support.cli import CLI, clean_environment, run, run_process
from tests.support.cli_place import Place, place_of, sqlite_place

HOUR_MS = 3_600_000
SECRET = "tell-nobody"
UNREACHABLE = f"postgresql://user:{SECRET}@127.0.0.1:1/agents"  # port 1: nobody listens there


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each engine."""
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """An empty SQLite store, for what does not depend on the engine."""
    return sqlite_place(tmp_path)


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            for name, each in command.commands.items():
                walk(each, (*path, name))
        else:
            found.append(path)

    walk(cli, ())
    return found


# --- the program ----------------------------------------------------------------------------------------------------------


def test_every_verb_has_help_and_takes_json_and_every_option_is_explained() -> None:
    assert {("doctor",), ("migrate",), ("sql",), ("stats",), ("gc",), ("backup",)} <= set(every_command())
    assert {("lease", "list"), ("lease", "break")} <= set(every_command())
    for path in every_command():
        command: click.Command = cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert command.help, path
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert "--json" in {name for option in options for name in option.opts}, path
        assert [option.opts for option in options if not option.help] == [], path
        assert run(*path, "--help").code == 0


def test_the_program_runs_as_a_command_and_as_a_module() -> None:
    program = Path(sys.executable).with_name("lash-store")
    for command in ([str(program)], [*CLI]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, env=clean_environment())
        assert done.stdout.startswith("lash-store, version ")


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str, tmp_path: Path) -> None:
    hidden = tmp_path / missing
    hidden.mkdir()
    (hidden / "__init__.py").write_text(f"raise ModuleNotFoundError('no {missing}', name='{missing}')")
    done = run_process("doctor", env={"PYTHONPATH": str(tmp_path)})
    assert (done.code, done.out) == (2, "")
    assert done.err == "lash-store needs its command-line extra: pip install 'lash-store[cli]'\n"


@pytest.mark.parametrize("group", [(), ("session",)])
def test_a_group_without_a_verb_shows_its_help_in_lines(group: tuple[str, ...]) -> None:
    done = run(*group)
    lines = (done.out + done.err).splitlines()
    assert lines[0].startswith("Usage: lash-store")
    assert "Commands:" in lines
    as_json = run(*group, "--json")
    assert (as_json.code, as_json.error()["message"]) == (2, "Missing command.")


def test_ctrl_c_while_the_program_still_loads_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def loading(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(failures, "run", loading)
    assert main() == 130


def test_a_file_that_is_no_store_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear reader, " * 100)
    (tmp_path / "empty.db").touch()
    letter = run("stats", "--url", tmp_path / "letter")
    assert (letter.code, "no SQLite database" in letter.err) == (7, True)
    empty = run("stats", "--url", tmp_path / "empty.db")
    assert (empty.code, "no lash-store in it" in empty.err) == (6, True)
    folder = run("stats", "--url", tmp_path)
    assert (folder.code, "is a folder" in folder.err) == (2, True)


def test_closed_streams_do_not_change_what_is_done(local: Place) -> None:
    for verb, code in (("list", 0), ("show nobody", 4)):
        for closed in ("1>&-", "2>&-"):
            command = f"{sys.executable} -m lash_store session {verb} {closed}"
            done = subprocess.run(["sh", "-c", command], env=clean_environment(local.env), capture_output=True, check=False)
            assert done.returncode == code, (command, done.stderr)


def test_an_empty_option_does_not_lead_to_the_store_of_the_environment(local: Place) -> None:
    for option in ("--url", "--schema", "--blobs"):
        done = local.run("stats", option, "")
        assert (done.code, option in done.err) == (2, True)


def test_options_may_stand_before_the_verb_and_after_it(local: Place) -> None:
    for arguments in (
        ("--json", "--url", local.url, "lease", "list"),
        ("lease", "--json", "--url", local.url, "list"),
        ("lease", "list", "--url", local.url, "--json"),
        ("--url", "elsewhere.db", "lease", "list", "--url", local.url, "--json"),  # the nearest wins
    ):
        assert run(*arguments).json()["items"] == []
    assert run("lease", "list", "--json", env={"LASH_STORE_URL": local.url}).json()["items"] == []


# --- wrong usage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("--nonsense",),
        ("doctor", "--sample", "many"),
        ("lease", "list", "--limit", "0"),
        ("lease", "break"),
        ("gc", "--keep-checkpoints", "0"),
        ("sql", "--engine", "mysql"),
        ("doctor",),
        ("doctor", "--url", "mysql://host/db"),
        ("doctor", "--url", ":memory:"),
        ("doctor", "--url", "postgresql://[broken"),
        ("inbox", "send", "chat", "[" * 100_000),
    ],
)
def test_wrong_usage_is_exit_code_2_with_one_line_on_stderr(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("lash-store: ")
    assert len(done.err.splitlines()) <= 2
    as_json = run(*arguments, "--json")
    assert as_json.code == 2
    assert as_json.error()["exit_code"] == 2


def test_a_store_that_is_not_named_says_both_ways_to_name_it() -> None:
    done = run("stats")
    assert "--url" in done.err
    assert "LASH_STORE_URL" in done.err


# --- what can go wrong ----------------------------------------------------------------------------------------------------


def test_a_file_that_does_not_exist_is_exit_code_4_and_stays_away(tmp_path: Path) -> None:
    for arguments in (("doctor",), ("stats",), ("gc", "--yes"), ("lease", "list"), ("backup", str(tmp_path / "b.db"))):
        done = run(*arguments, "--url", tmp_path / "none.db")
        assert done.code == 4
        assert "none.db" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_exit_code_5_and_keeps_the_password_to_itself() -> None:
    for arguments in (("doctor",), ("stats", "--json"), ("migrate",), ("migrate", "--plan")):
        done = run(*arguments, "--url", UNREACHABLE)
        assert done.code == 5
        assert SECRET not in done.out + done.err
        assert "Traceback" not in done.err


def test_a_file_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    # Not even root makes files in /sys: it is forbidden, or mounted read-only.
    for path, codes in (("/sys/agent.db", {3, 5}), (tmp_path / "no" / "folder" / "agent.db", {2}), (tmp_path, {2})):
        done = run("migrate", "--url", path)
        assert done.code in codes, done
        assert len(done.err.splitlines()) == 1
        assert "Traceback" not in done.err


def test_a_folder_that_may_not_be_written_takes_no_backup(local: Place) -> None:
    done = local.run("backup", "/sys/backup.db")
    assert done.code in {3, 5}
    assert len(done.err.splitlines()) == 1


def test_what_is_no_database_is_exit_code_7(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("These are not the tables you are looking for. " * 100)
    done = run("doctor", "--url", tmp_path / "notes.txt", "--json")
    assert (done.code, done.error()["type"]) == (7, "Corrupt")


def test_an_older_schema_is_exit_code_6_and_names_migrate(place: Place) -> None:
    with place.store() as store, store.transaction() as tx:
        tx.execute(f"UPDATE {place.table('meta')} SET version = 1")
    done = place.run("stats")
    assert done.code == 6
    assert "lash-store migrate" in done.err
    examined = place.run("doctor", "--json")
    assert examined.code == 1
    (finding,) = examined.json()["findings"]
    assert "lash-store migrate" in finding["advice"]


def test_a_newer_schema_is_exit_code_6(local: Place) -> None:
    with local.store() as store, store.transaction() as tx:
        tx.execute("UPDATE lash_meta SET version = 99, compatible_from = 99")
    for arguments in (("stats",), ("migrate",), ("migrate", "--plan")):
        assert local.run(*arguments).code == 6
    assert "Upgrade" in local.run("doctor", "--json").json()["findings"][0]["advice"]


def test_every_error_of_the_library_has_an_exit_code_and_the_page_lists_the_codes() -> None:
    codes = {
        name: failures.exit_code(kind.__new__(kind))
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.StoreError)
    }
    assert (codes["NotFound"], codes["SessionDeleted"]) == (4, 4)
    assert (codes["RevisionConflict"], codes["LeaseHeld"], codes["LimitExceeded"], codes["NotPermitted"]) == (3, 3, 3, 3)
    assert (codes["InvalidArgument"], codes["Misuse"]) == (2, 2)
    assert (codes["Busy"], codes["Disconnected"], codes["StorageFull"]) == (5, 5, 5)
    assert (codes["SchemaMismatch"], codes["Corrupt"]) == (6, 7)
    page = (Path(__file__).resolve().parents[1] / "docs" / "cli.md").read_text()
    for code in {0, 1, 130, *codes.values()}:
        assert f"| {code} |" in page


def test_a_traceback_is_shown_when_it_is_asked_for(tmp_path: Path) -> None:
    done = run_process("doctor", "--url", tmp_path / "none.db", env={"LASH_STORE_TRACEBACK": "1"})
    assert done.code == 1
    assert "Traceback" in done.err


def test_a_reader_that_goes_away_is_no_failure() -> None:
    program = subprocess.Popen([*CLI, "sql"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert program.wait(60) == 0
    assert program.stderr.read() == b""
    program.stderr.close()


# --- what is printed ------------------------------------------------------------------------------------------------------


def test_two_texts_that_differ_look_different() -> None:
    for hidden in ("\u200b", "\ufeff", "\u2060", "\u00ad", "\U000e0041"):
        assert hidden not in clean(f"a{hidden}b") + to_json(f"a{hidden}b")
        assert json.loads(to_json(f"a{hidden}b")) == f"a{hidden}b"
    assert clean("👩\u200d💻") == "👩\u200d💻"  # what joins a picture stays


def test_no_control_character_of_a_stored_text_reaches_the_screen() -> None:
    hostile = "\x1b]0;owned\x07\r\n\t\x9b31m\u202eabc\ud800[red]x[/red]"
    assert clean(hostile) == "\\x1b]0;owned\\x07\\r\\n\\t\\x9b31m\\u202eabc\\ud800[red]x[/red]"
    text = to_json({"a": hostile})
    assert json.loads(text) == {"a": hostile}
    assert not any((ord(char) < 0x20 and char != "\n") or 0x7F <= ord(char) <= 0x9F for char in text)
    assert "\u202e" not in text


def test_a_terminal_shows_a_table_without_what_the_text_would_do_to_it(local: Place) -> None:
    with local.store() as store:
        store.sessions.create("s")
        store.queue.enqueue("s", [1])
        store.queue.claim("s", "\u202e[reverse]owner[/]", lease_ms=HOUR_MS)
    with local.terminal("lease", "list", columns=160) as screen:
        assert screen.wait() == 0
    assert "━" in screen.seen
    assert "\\u202e[reverse]owner[/]" in screen.seen
    assert "\x1b[7m" not in screen.seen
    assert "\x1b[1m" in screen.seen  # the headings are bold, so colours were possible
    plain = run_process("lease", "list", env=local.env)
    assert "\x1b" not in plain.out
    assert "━" not in plain.out
    assert plain.rows()[0][:4] == ["claim", "qwc:1:1", "s", "\\u202e[reverse]owner[/]"]


def test_colours_can_be_turned_off(local: Place) -> None:
    """`doctor` has a finding in colour here, and none with --no-color."""
    with local.store() as store:
        store.sessions.create("s")
        store.queue.park("s", store.queue.enqueue("s", [1]).batch_id, reason="odd")
    with local.terminal("doctor") as coloured, local.terminal("doctor", "--no-color") as plain:
        assert (coloured.wait(), plain.wait()) == (0, 0)
    assert "\x1b[33m" in coloured.seen
    assert "\x1b[33m" not in plain.seen
    assert "parked" in plain.seen


def test_values_are_words_on_a_terminal_and_plain_in_a_pipe() -> None:
    answer = Output()
    assert [shown(value) for value in (None, True, Instant(0), Span(93_784_000), Size(1536), Styled("x", "red").value)] == [
        "-",
        "yes",
        "1970-01-01T00:00:00.000Z",
        "1 d 2 h",
        "1.5 KiB",
        "x",
    ]
    plain = [answer.plain(value) for value in (None, Instant(None), Span(93_784_000), Size(1536), Styled(Size(2), "red"), "a\tb")]
    assert plain == ["", "", "93784000", "1536", "2", "a\\tb"]
    assert [span(ms) for ms in (0, 999, 1_000, 61_000, 3_660_000, -5_000)] == [
        "0 ms",
        "999 ms",
        "1 s",
        "1 min 1 s",
        "1 h 1 min",
        "-5 s",
    ]
    assert (size(1023), size(1024**4)) == ("1023 B", "1.0 TiB")
    assert instant(10**18) == "1000000000000000000 ms"


def test_a_url_is_shown_without_its_password() -> None:
    for url, expected in {
        f"postgresql://me:{SECRET}@host:5433/db?sslmode=require": "postgresql://me:***@host:5433/db",
        f"postgres://me:{SECRET}%40x@[::1]/db": "postgresql://me:***@[::1]/db",
        f"postgresql:///db?host=/tmp&password={SECRET}": "postgresql:///db",
        "postgresql://me@host/db": "postgresql://me@host/db",
        "sqlite:///agent.db": "agent.db",
    }.items():
        assert safe_url(target_of(url)) == expected


def test_arguments_that_are_json_or_durations(tmp_path: Path) -> None:
    (tmp_path / "value.json").write_text('{"n": 1}')
    assert JSON("[1, null]") == [1, None]
    assert JSON(f"@{tmp_path / 'value.json'}") == {"n": 1}
    for wrong in ("hello", f"@{tmp_path / 'none'}", ""):
        with pytest.raises(click.BadParameter):
            JSON(wrong)
    assert [DURATION(text) for text in ("1500", "1500ms", "30s", "5min", "2h", "7d", "2 h")] == [
        1_500,
        1_500,
        30_000,
        300_000,
        7_200_000,
        604_800_000,
        7_200_000,
    ]
    for wrong in ("", "soon", "-1s", "1.5h", "5m"):
        with pytest.raises(click.BadParameter):
            DURATION(wrong)


# --- asking before something is destroyed ---------------------------------------------------------------------------------


def claimed(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("s")
        store.queue.enqueue("s", [1])
        store.queue.claim("s", "w", lease_ms=HOUR_MS)


def held(place: Place) -> int:
    with place.store() as store:
        return len(store.maintenance.leases().leases)


@pytest.mark.parametrize(("typed", "code", "left"), [("y\n", 0, 0), ("\n", 1, 1), ("\x03", 130, 1)])
def test_a_terminal_is_asked_and_only_yes_is_yes(local: Place, typed: str, code: int, left: int) -> None:
    claimed(local)
    with local.terminal("lease", "break", "qwc:1:1") as screen:
        screen.wait_for("[y/N]")
        screen.type(typed)
        assert screen.wait() == code
    assert held(local) == left


def test_where_nobody_can_answer_yes_must_be_said(place: Place) -> None:
    claimed(place)
    refused = place.run("lease", "break", "qwc:1:1")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert held(place) == 1
    assert place.json("lease", "break", "qwc:1:1", "--dry-run")["lease"]["owner"] == "w"
    assert held(place) == 1
    assert place.json("lease", "break", "qwc:1:1", "--yes")["broken"] is True
    assert held(place) == 0
    assert place.run("lease", "break", "qwc:1:1", "--yes").code == 4


# --- signals and completion -----------------------------------------------------------------------------------------------

HOLD = """
import sys
from lash_store.cli import failures, maintain
def wait(*_):
    print("waiting", flush=True)
    while True:
        pass
maintain._examined = wait
sys.exit(failures.run(["doctor", "--url", sys.argv[1]]))
"""


def test_ctrl_c_ends_with_130_and_one_line(local: Place) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD, local.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert err.strip() == "lash-store: interrupted."


def test_the_shell_can_complete_verbs() -> None:
    assert "_LASH_STORE_COMPLETE" in run_process(env={"_LASH_STORE_COMPLETE": "bash_source"}).out
    done = run_process(env={"_LASH_STORE_COMPLETE": "bash_complete", "COMP_WORDS": "lash-store lease ", "COMP_CWORD": "2"})
    assert {line.partition(",")[2] for line in done.out.splitlines()} == {"list", "break"}
