"""The demo keeps its own claims, says so when one does not hold, and leaves nothing behind but what it names."""

from __future__ import annotations

import html
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from lash_store.cli.demo import command, verify
from lash_store.cli.demo.crew import Member
from lash_store.cli.demo.ledger import Claim, Ledger
from lash_store.cli.demo.rows import open_rows
from lash_store.cli.demo.show import Show
from lash_store.store.url import parse
from tests.support.cli import CLI, clean_environment, run, run_process, terminal

PROJECT = Path(__file__).resolve().parents[1]
RECORDING = PROJECT / "docs" / "assets" / "demo.svg"
GONE_S = 60  # for processes to end that were told to
MARK = "LASH_STORE_TEST_MARK"

pytestmark = pytest.mark.xdist_group("demo")  # one run serves many tests


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One whole run: the file it kept, and its report. The store the environment names is not the demo's."""
    folder = tmp_path_factory.mktemp("demo")
    database, other = folder / "agent.db", folder / "production.db"
    environment = {"LASH_STORE_URL": str(other), "PYTHONWARNINGS": "error"}
    ran = run_process("demo", "--json", "--keep", database, env=environment)
    assert (ran.code, ran.err) == (0, ""), ran
    assert not other.exists()
    return database, ran.json()


def test_every_claim_of_the_demo_holds(kept: tuple[Path, dict[str, Any]]) -> None:
    _, report = kept
    assert report["ok"]
    assert len(report["claims"]) == 11
    assert [claim["sentence"] for claim in report["verified"] if not claim["holds"]] == []
    assert len(report["verified"]) == len(verify.CHECKS)
    assert [kill["code"] for kill in report["ledger"]["kills"]] == [-signal.SIGKILL] * 4
    assert len(report["ledger"]["races"]) == 20


def test_the_three_commands_to_try_next_work(kept: tuple[Path, dict[str, Any]]) -> None:
    _, report = kept
    assert len(report["next"]) == 3
    for line in report["next"]:
        ran = subprocess.run(shlex.split(line), env=clean_environment(), capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
        assert ran.stdout


# --- lies -----------------------------------------------------------------------------------------------------------------

LAST = "(SELECT leaf_id FROM lash_sessions WHERE session_id = 'trip')"
LIES = {
    "engine": "PRAGMA ignore_check_constraints = 1; UPDATE lash_processes SET state = 'lost' WHERE kind = 'reminder'",
    "acknowledged": "DELETE FROM lash_commits WHERE turn_id = 'answer:mail-5'",
    "gapless": "UPDATE lash_sessions SET revision = revision + 1 WHERE session_id = 'race'",
    "word_for_word": f"UPDATE lash_nodes SET body = replace(body, '3', '4') WHERE session_id = 'trip' AND node_id = {LAST}",
    "nothing_left_over": f"""
        CREATE TEMP TABLE half AS SELECT * FROM lash_nodes WHERE session_id = 'trip' AND node_id = {LAST};
        UPDATE half SET branch = 99, node_id = 'half';
        INSERT INTO lash_nodes SELECT * FROM half;
        """,
    "answered_once": "DELETE FROM lash_settled_keys WHERE source_key = 'mail-4'",
    "counted_once": "UPDATE lash_usage_totals SET input = input + 1",
    "remembered": "UPDATE lash_components SET digest = zeroblob(32)",
    "one_receipt": "UPDATE lash_commits SET result = replace(result, 'n:', 'm:') WHERE turn_id = 'race-7'",
    "stepped_once": """
        CREATE TEMP TABLE again AS SELECT * FROM lash_events WHERE replay_key = 'held';
        UPDATE again SET sequence = (SELECT COUNT(*) + 1 FROM lash_events WHERE process_id = again.process_id), replay_key = NULL;
        INSERT INTO lash_events SELECT * FROM again;
        """,
    "woken_once": "DELETE FROM lash_events WHERE event_type = 'booking.confirmed'",
    "fired_once": "UPDATE lash_deliveries SET state = 'reserved'",
    "attached": "UPDATE lash_attachments SET committed_ms = NULL WHERE session_id = 'trip'",
    "branched": "UPDATE lash_nodes SET body = replace(body, 'No ship', 'A ship') WHERE body LIKE '%No ship%'",
    "forked": "UPDATE lash_nodes SET body = replace(body, '61B', '62B') WHERE session_id = 'trip-with-ada'",
    "nobody_holds": "UPDATE lash_processes SET lease_token = 'held' WHERE kind = 'booking'",
}


def test_there_is_a_lie_for_every_claim() -> None:
    assert [*LIES] == [check.__name__ for check in verify.CHECKS]


@pytest.mark.parametrize("name", LIES)
def test_a_lie_in_the_database_is_found(kept: tuple[Path, dict[str, Any]], tmp_path: Path, name: str) -> None:
    database, report = kept
    shutil.copytree(database.parent, tmp_path, dirs_exist_ok=True)
    lie(tmp_path / "agent.db", LIES[name])
    wanted = {check.__name__: check.__doc__ for check in verify.CHECKS}
    failed = [claim.sentence for claim in second_look(tmp_path / "agent.db", report) if not claim.holds]
    assert wanted[name] in failed


def test_bytes_that_are_not_what_their_name_says_are_found(kept: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    database, report = kept
    shutil.copytree(database.parent, tmp_path, dirs_exist_ok=True)
    assert all(claim.holds for claim in second_look(tmp_path / "agent.db", report))
    (file,) = [path for path in (tmp_path / "agent.db.attachments" / "sha256").rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes().replace(b"89", b"98"))
    failed = [claim.sentence for claim in second_look(tmp_path / "agent.db", report) if not claim.holds]
    assert failed == [verify.attached.__doc__]


def test_a_run_whose_database_lies_says_so_and_exits_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = command.second_look

    def after_a_lie(verifier: Member, ledger: Ledger, show: Show) -> list[Claim]:
        lie(tmp_path / "agent.db", LIES["word_for_word"])
        return honest(verifier, ledger, show)

    monkeypatch.setattr(command, "second_look", after_a_lie)
    ran = run("demo", "--fast", "--keep", tmp_path / "agent.db")
    assert ran.code == 1
    assert f"FAILED  {verify.word_for_word.__doc__}" in ran.out
    assert "26 of 27 claims hold" in ran.out
    assert "\x1b" not in ran.out


def lie(database: Path, sql: str) -> None:
    """Change rows behind the store's back."""
    with closing(apsw.Connection(str(database))) as connection:
        before = connection.total_changes()
        connection.execute(sql)
        assert connection.total_changes() > before, "the lie changed nothing"


def second_look(database: Path, report: dict[str, Any]) -> list[Claim]:
    """What the verifier says about a file and the ledger of its run."""
    with closing(open_rows(parse(str(database)))) as rows:
        return verify.verified(rows, msgspec.convert(report["ledger"], Ledger))


# --- other places ---------------------------------------------------------------------------------------------------------


def test_the_same_story_holds_on_postgresql_in_a_schema_of_its_own(pg_tcp_url: str, pg_schema: str) -> None:
    ran = run_process("demo", "--fast", "--url", pg_tcp_url, "--schema", pg_schema)
    assert (ran.code, ran.err) == (0, ""), ran
    assert "27 of 27 claims hold" in ran.out
    assert f'DROP SCHEMA "{pg_schema}" CASCADE' in ran.out
    assert "\x1b" not in ran.out
    assert ":***@" in ran.out
    assert pg_tcp_url.partition("://")[2].partition("@")[0].partition(":")[2] not in ran.out
    again = run("demo", "--fast", "--url", pg_tcp_url, "--schema", pg_schema)
    assert again.code == 2
    assert f"Schema '{pg_schema}' exists" in again.err
    assert "from LASH_STORE_URL: export it first." in ran.out
    tries = [line.split("lash-store", 1)[1] for line in ran.out.splitlines() if '--url "$LASH_STORE_URL"' in line]
    assert len(tries) == 3
    for line in tries:
        tried = run(*(pg_tcp_url if word == "$LASH_STORE_URL" else word for word in shlex.split(line)))
        assert tried.code == 0, (line, tried)


def test_a_file_that_is_already_there_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    file.write_bytes(b"mine")
    for option in ("--keep", "--url"):
        ran = run("demo", option, file)
        assert ran.code == 2
        assert "exists" in ran.err
    assert file.read_bytes() == b"mine"
    assert run("demo", "--keep", "a.db", "--url", "b.db").code == 2


def test_a_server_that_is_not_there_is_one_line_and_no_worker(tmp_path: Path) -> None:
    ran = run("demo", "--url", "postgresql://nobody:secret@127.0.0.1:1/none")
    assert ran.code == 5
    assert "secret" not in ran.out + ran.err
    assert len(ran.err.splitlines()) == 1


# --- a terminal, and ends that were not planned ---------------------------------------------------------------------------


def test_ctrl_c_on_a_terminal_ends_it_and_every_worker(tmp_path: Path) -> None:
    with terminal("demo", "--keep", tmp_path / "agent.db", env={MARK: str(tmp_path)}) as screen:
        screen.wait_for("in background work")
        assert any(marked(tmp_path))
        screen.type("\x03")
        assert screen.wait() == 130
        assert "\x1b[" in screen.seen
        assert "✗ kill -9" in screen.seen
        assert "Traceback" not in screen.seen
    assert not any(marked(tmp_path))
    assert run("doctor", "--url", tmp_path / "agent.db").code == 0


def test_no_worker_outlives_a_demo_that_is_killed(tmp_path: Path) -> None:
    program = [*CLI, "demo", "--fast", "--keep", str(tmp_path / "agent.db")]
    with subprocess.Popen(program, env=clean_environment({MARK: str(tmp_path)}), stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any("commits revision 1" in line for line in demo.stdout)
        demo.kill()
    deadline = time.monotonic() + GONE_S
    while any(marked(tmp_path)):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.02)


def marked(folder: Path) -> Iterator[int]:
    """The living processes that carry the mark in their environment."""
    mark = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue  # it ended while we looked, or is not ours


# --- the recording --------------------------------------------------------------------------------------------------------


def test_the_recording_shows_the_demo_as_it_is_and_fetches_nothing() -> None:
    text = html.unescape(RECORDING.read_text()).replace("\xa0", " ")
    for check in verify.CHECKS:
        assert check.__doc__ is not None
        assert check.__doc__ in text, "make recording"
    assert "27 of 27 claims hold" in text
    assert text.count("://") == 1, "only the name of the format"
    assert "docs/assets/demo.svg" in (PROJECT / "README.md").read_text()
