"""Inboxes, processes and triggers from the command line, as a user drives them, on both engines."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from lash_store import (
    Interval,
    Missed,
    OccurrenceRequest,
    ProcessInput,
    ProcessState,
    SubscriptionDraft,
    Success,
)
from tests.support.cli import CLI, clean_environment
from tests.support.cli_place import ESCAPE, Place, job, place_of, sqlite_place, subscription


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each engine."""
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """An empty SQLite store, for what does not depend on the engine."""
    return sqlite_place(tmp_path)


# --- inbox ----------------------------------------------------------------------------------------------------------------


def test_send_puts_one_batch_into_the_inbox_once_per_source_key(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("chat")
    sent = place.json("inbox", "send", "chat", '{"text": "hi"}', "2", "--source-key", "k", "--exclusive", "--after-turn")
    again = place.json("inbox", "send", "chat", '{"text": "hi"}', "2", "--source-key", "k", "--exclusive", "--after-turn")
    assert sent["batch_id"] == again["batch_id"]
    (batch,) = place.json("inbox", "list", "chat")["items"]
    assert (batch["payloads"], batch["slot"], batch["delivery"]) == (
        [{"text": "hi"}, 2],
        "exclusive",
        "after_current_turn_commit",
    )
    assert place.run("inbox", "send", "chat", '"other"', "--source-key", "k").code == 3
    assert place.run("inbox", "send", "chat", "no json").code == 2
    assert place.run("inbox", "send", "chat").code == 2
    assert place.run("inbox", "send", "nobody", "1").code == 4
    assert place.json("inbox", "send", "chat", "1", "--delay", "2h")["state"] == "delayed"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_whole_ids_and_times(local: Place, columns: int) -> None:
    with local.store() as store:
        store.sessions.create("chat")
        batch = store.queue.enqueue("chat", ["x" * 60])
    with local.terminal("inbox", "list", "chat", "--no-color", columns=columns) as screen:
        assert screen.wait() == 0
    cells = [line.split("│")[1:-1] for line in screen.seen.splitlines() if line.startswith("│")]
    assert "".join(row[0].strip() for row in cells) == batch.batch_id
    assert len("".join(row[3].strip() for row in cells)) == len("2026-01-0100:00:00.000Z")
    assert "…" not in screen.seen


def test_a_payload_comes_from_a_file(local: Place, tmp_path: Path) -> None:
    with local.store() as store:
        store.sessions.create("chat")
    file = tmp_path / "payload.json"
    file.write_text('{"from": "file"}')
    local.ok("inbox", "send", "chat", f"@{file}")
    assert [item["payloads"] for item in local.json("inbox", "list", "chat")["items"]] == [[{"from": "file"}]]
    assert local.run("inbox", "send", "chat", f"@{file}.none").code == 2


def test_cancel_removes_what_no_worker_holds(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("chat")
        held, free = (store.queue.enqueue("chat", [n]) for n in range(2))
        assert store.queue.claim("chat", "worker", lease_ms=600_000) is not None
    assert place.run("inbox", "cancel", "chat", free.batch_id).code == 2
    assert place.json("inbox", "cancel", "chat", free.batch_id, "--dry-run")["would_cancel"]["batch_id"] == free.batch_id
    assert len(place.json("inbox", "list", "chat")["items"]) == 2
    assert place.run("inbox", "cancel", "chat", held.batch_id, "--yes").code == 3
    assert place.run("inbox", "cancel", "chat", held.batch_id, "--yes", "--damaged").code == 3
    assert place.run("inbox", "cancel", "chat", "qwb:none", "--yes").code == 4
    place.ok("inbox", "cancel", "chat", free.batch_id, "--yes")
    assert [item["batch_id"] for item in place.json("inbox", "list", "chat")["items"]] == [held.batch_id]
    assert place.json("inbox", "list", "chat", "--pending")["items"] == []


def test_a_damaged_batch_is_named_and_can_be_removed_unread(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("chat")
        batch = store.queue.enqueue("chat", ["good"])
        with store.transaction() as transaction:
            transaction.execute(f"UPDATE {place.table('batches')} SET payloads = '[\"evil\"]'")
    listed = place.run("inbox", "list", "chat", "--json")
    assert (listed.code, listed.error()["type"]) == (7, "Corrupt")
    assert place.run("inbox", "cancel", "chat", batch.batch_id, "--yes").code == 7
    place.ok("inbox", "cancel", "chat", batch.batch_id, "--yes", "--damaged")
    assert place.json("inbox", "list", "chat")["items"] == []


def test_unpark_puts_a_batch_back(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("chat")
        batch = store.queue.enqueue("chat", [1])
        store.queue.park("chat", batch.batch_id, reason="three strikes")
    (row,) = place.ok("inbox", "list", "chat").rows()
    assert (row[0], row[1], row[5]) == (batch.batch_id, "parked", "three strikes")
    assert place.json("inbox", "unpark", "chat", batch.batch_id)["state"] == "ready"
    assert place.run("inbox", "unpark", "chat", "qwb:none").code == 4


# --- processes ------------------------------------------------------------------------------------------------------------


def test_processes_are_listed_by_state(place: Place) -> None:
    with place.store() as store:
        for n in range(3):
            store.processes.register(job(f"job-{n}"))
        store.processes.complete("job-1", Success({"n": 1}))
    assert [row[:3] for row in place.ok("process", "list").rows()] == [["job-0", "running", "work"], ["job-2", "running", "work"]]
    assert [item["process_id"] for item in place.json("process", "list", "--state", "completed")["items"]] == ["job-1"]
    page = place.json("process", "list", "--state", "all", "--limit", "2")
    assert ([item["process_id"] for item in page["items"]], page["cursor"]) == (["job-0", "job-1"], "job-1")
    assert place.json("process", "list", "--kind", "other")["items"] == []
    assert place.run("process", "list", "--state", "asleep").code == 2


def test_show_tells_what_a_process_is_and_did(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("chat")
        store.session("chat").processes.start(job())
        store.processes.append("job", "note", {"text": f"{ESCAPE}hi"})
        store.processes.complete("job", Success({"n": 1}))
    value = place.json("process", "show", "job")
    assert (value["process"]["state"], value["grants"][0]["scope"]["session_id"]) == ("completed", "chat")
    assert [event["event_type"] for event in value["recent"]] == ["note", "process.completed"]
    plain = place.ok("process", "show", "job")
    fields = dict(plain.rows())
    assert (fields["state"], fields["granted to"], fields["wakes"]) == ("completed", "chat", "chat")
    assert r"note  \x1b[31mhi" in fields["event 1"]
    assert ESCAPE not in plain.out
    assert place.run("process", "show", "none").code == 4


def test_events_are_pages_of_the_log(place: Place) -> None:
    with place.store() as store:
        store.processes.register(job())
        for n in range(5):
            store.processes.append("job", "note", n)
        store.processes.signal("job", "approve", {"n": 1})
    page = place.json("process", "events", "job", "--limit", "2", "--cursor", "2")
    assert ([item["sequence"] for item in page["items"]], page["cursor"]) == ([3, 4], "4")
    assert [row[2] for row in place.ok("process", "events", "job", "--type", "signal.approve").rows()] == ["signal.approve"]
    assert place.run("process", "events", "job", "--cursor", "-1").code == 2


def test_a_signal_is_sent_once_per_id_and_checked(place: Place) -> None:
    with place.store() as store:
        store.processes.register(job())
    sent = place.json("process", "signal", "job", "approve", "--payload", '{"n": 1}', "--signal-id", "one")
    again = place.json("process", "signal", "job", "approve", "--payload", '{"n": 1}', "--signal-id", "one")
    assert (sent["replayed"], again["replayed"], sent["event"]) == (False, True, again["event"])
    assert place.run("process", "signal", "job", "approve", "--payload", "{}").code == 3
    assert place.run("process", "signal", "job", "undeclared").code == 3
    assert place.run("process", "signal", "none", "approve").code == 4


def test_cancel_is_a_request_that_needs_a_yes(place: Place) -> None:
    with place.store() as store:
        store.processes.register(job())
        store.processes.register(job("ended"))
        store.processes.complete("ended", Success())
    assert place.run("process", "cancel", "job").code == 2
    assert place.json("process", "cancel", "job", "--dry-run")["would_cancel"]["last_sequence"] == 0
    assert place.json("process", "cancel", "job", "--yes", "--reason", "enough")["last_sequence"] == 1
    assert place.json("process", "events", "job")["items"][0]["payload"] == {"reason": "enough"}
    ended = place.run("process", "cancel", "ended", "--dry-run", "--json")
    assert (ended.code, ended.error()["type"]) == (3, "AlreadyTerminal")


def test_prune_removes_what_has_ended(place: Place) -> None:
    with place.store() as store:
        for name in ("job", "ended"):
            store.processes.register(job(name))
        store.processes.complete("ended", Success())
    assert place.run("process", "prune", "--older-than", "0").code == 2
    assert place.json("process", "prune", "--older-than", "0", "--dry-run")["report"]["processes"] == 1
    assert place.json("process", "prune", "--older-than", "30d", "--yes")["report"]["processes"] == 0
    assert place.json("process", "prune", "--older-than", "0", "--yes")["report"]["processes"] == 1
    assert place.json("process", "prune", "--older-than", "0", "--dry-run")["report"]["processes"] == 0
    assert place.run("process", "prune").code == 2


def test_follow_prints_lines_until_the_process_ends(place: Place) -> None:
    with place.store() as store:
        store.processes.register(job())
        store.processes.append("job", "note", {"n": 1})
        command = [*CLI, "process", "follow", "job", "--json"]
        with subprocess.Popen(command, env=clean_environment(place.env), stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            first = json.loads(following.stdout.readline())
            assert (first["sequence"], first["payload"]) == (1, {"n": 1})
            store.processes.append("job", "note", {"n": 2})
            assert json.loads(following.stdout.readline())["payload"] == {"n": 2}
            store.processes.complete("job", Success("done"))
            last = json.loads(following.stdout.readline())
            assert (last["terminal"], following.stdout.read(), following.wait(60)) == ("completed", "", 0)
    plain = place.ok("process", "follow", "job", "--after", "2")
    assert [line.split()[::2][:2] for line in plain.out.splitlines()] == [["3", "process.completed"]]


def test_ctrl_c_ends_follow_with_130(place: Place) -> None:
    with place.store() as store:
        store.processes.register(job())
        store.processes.append("job", "note", {"text": "first"})
        with place.terminal("process", "follow", "job") as screen:
            screen.wait_for("first")
            store.processes.append("job", "note", {"text": "second"})
            screen.wait_for("second")
            screen.type("\x03")
            assert screen.wait() == 130
        assert "Traceback" not in screen.seen
        assert store.processes.get("job").state is ProcessState.RUNNING


def test_an_interrupt_ends_a_piped_follow_with_130(local: Place) -> None:
    with local.store() as store:
        store.processes.register(job())
        store.processes.append("job", "note", 1)
    following = subprocess.Popen(
        [*CLI, "process", "follow", "job", "--json"],
        env=clean_environment(local.env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["sequence"] == 1
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=60)
    assert (following.returncode, out, json.loads(err)["error"]["exit_code"]) == (130, "", 130)


# --- triggers -------------------------------------------------------------------------------------------------------------


def test_fire_starts_what_waits_and_once_per_key(place: Place) -> None:
    with place.store() as store:
        store.triggers.subscribe(subscription(label="answers mail"))
    (row,) = place.ok("trigger", "list").rows()
    assert (row[1:5], row[7]) == (["yes", "mail", "mail", "answer"], "answers mail")
    fired = place.json("trigger", "fire", "mail", "mail", "--payload", '{"n": 1}', "--key", "message-1")
    assert [each["outcome"] for each in fired["outcomes"]] == ["started"]
    again = place.json("trigger", "fire", "mail", "mail", "--payload", '{"n": 1}', "--key", "message-1")
    assert [each["outcome"] for each in again["outcomes"]] == ["already"]
    assert len(place.json("process", "list")["items"]) == 1
    assert place.run("trigger", "fire", "mail", "mail", "--payload", '{"n": 2}', "--key", "message-1").code == 3
    assert place.json("trigger", "fire", "mail", "other")["outcomes"] == []
    bad = place.run("trigger", "fire", "mail", "mail", "--payload", "{}")
    assert (bad.code, "1 failed" in bad.out, "Failed:" in bad.err) == (1, True, True)
    assert place.json("trigger", "list", "--disabled")["items"] == []
    assert len(place.json("trigger", "list", "--source-type", "mail", "--limit", "1")["items"]) == 1


def test_the_payload_of_fire_comes_from_stdin(local: Place) -> None:
    with local.store() as store:
        store.triggers.subscribe(subscription())
    done = subprocess.run(
        [*CLI, "trigger", "fire", "mail", "mail", "--payload", "-", "--json"],
        env=clean_environment(local.env),
        input='{"n": 7}',
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)["occurrence"]["payload"] == {"n": 7}


def test_tick_fires_what_is_due(place: Place) -> None:
    with place.store() as store:
        schedule = Interval(every_ms=3_600_000, missed=Missed.ONCE)
        target = ProcessInput("report", {"args": {}})
        store.triggers.subscribe(SubscriptionDraft(source_type="time", target=target, schedule=schedule))
        assert place.json("trigger", "tick")["fired"] == 0
        with store.transaction() as transaction:
            transaction.execute(f"UPDATE {place.table('schedules')} SET next_ms = next_ms - 7200000")
    assert place.ok("trigger", "list").rows()[0][5] == "every 1 h"
    report = place.json("trigger", "tick", "--limit", "1")
    assert (report["fired"], report["passed_over"], report["broken"]) == (1, 1, [])
    assert len(place.json("process", "list", "--kind", "report")["items"]) == 1


def test_redrive_starts_what_was_left_behind(place: Place) -> None:
    with place.store() as store:
        store.triggers.subscribe(subscription())
        request = OccurrenceRequest(source_type="mail", source_key="mail", idempotency_key="k", payload={"n": 1})
        store.triggers.reserve(store.triggers.record_occurrence(request).occurrence_id)
    assert len(place.json("trigger", "redrive", "--dry-run")["items"]) == 1
    assert place.json("process", "list")["items"] == []
    assert [each["outcome"] for each in place.json("trigger", "redrive")["outcomes"]] == ["started"]
    assert place.json("trigger", "redrive", "--dry-run")["items"] == []
    assert place.ok("trigger", "redrive").out == "0 processes started, 0 failed, 0 done already.\n"
