"""Sessions and attachments from the command line, as a user drives them, on both engines."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lash_store import (
    Append,
    Commit,
    NotFound,
    Scope,
    SessionDeleted,
    Store,
)
from tests.support.cli import CLI, clean_environment, run
from tests.support.cli_place import ESCAPE, Place, chat, job, node, place_of, sqlite_place

STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each engine."""
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """An empty SQLite store, for what does not depend on the engine."""
    return sqlite_place(tmp_path)


# --- sessions -------------------------------------------------------------------------------------------------------------


def test_sessions_are_listed_in_pages_that_miss_nothing(place: Place) -> None:
    with place.store() as store:
        for n in range(5):
            store.sessions.create(f"s{n}")
    seen: list[str] = []
    cursor: str | None = None
    while True:
        more = () if cursor is None else ("--cursor", cursor)
        page = place.json("session", "list", "--order", "id", "--limit", "2", *more)
        seen += [item["session_id"] for item in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == ["s0", "s1", "s2", "s3", "s4"]
    plain = place.ok("session", "list", "--order", "id", "--limit", "2")
    assert [row[0] for row in plain.rows()] == ["s0", "s1"]
    assert "--cursor" in plain.err


def test_show_tells_usage_frames_components_and_inbox(place: Place) -> None:
    with place.store() as store:
        chat(store)
        store.queue.enqueue("chat", [1])
        store.queue.enqueue("chat", [2], delay_ms=3_600_000)
    value = place.json("session", "show", "chat")
    assert value["session"]["revision"] == 2
    assert value["usage"] == [
        {"source": "agent", "model": "m-1", "input": 5, "output": 7, "cached_input": 0, "reasoning": 1},
    ]
    assert [(c["name"], c["size"], c["revision"]) for c in value["components"]] == [("memory", 2048, 1), ("plan", 1, 1)]
    assert value["inbox"] == {"ready": 1, "delayed": 1, "claimed": 0, "parked": 0}
    assert [(f["frame_id"], f["body"], f["state_bytes"]) for f in value["frames"]] == [("frame-1", {"goal": 1}, 12)]
    plain = dict(place.ok("session", "show", "chat").rows())
    assert plain["name"] == "a [red]name[/red]"
    assert plain["tokens"] == "13"
    assert plain["component memory"] == "2.0 KiB, revision 1"
    assert plain["inbox"] == "1 ready, 1 delayed, 0 claimed, 0 parked"


def test_a_session_that_is_not_there_is_exit_code_4(place: Place) -> None:
    for verb in ("show", "tree", "log"):
        done = place.run("session", verb, "nobody", "--json")
        assert (done.code, done.error()["type"], done.out) == (4, "NotFound", "")


def test_the_piped_tree_is_indented_text_with_the_branch_on_its_node(place: Place) -> None:
    with place.store() as store:
        chat(store)
        store.session("chat").tombstone(["n1"])
    assert place.ok("session", "tree", "chat", "--ends", "2").out.splitlines() == [
        "chat · revision 2 · 21 nodes · head b1",
        "  run 0 (19 nodes, 1 hidden)",
        "    n0  message  user: n0",
        "    … 9 not shown",
        "    n10",
        "      run 1 after n10 (2 nodes)",
        r"        b0  message  user: \x1b[31mboo",
        "        b1  message  user: b1  <- head",
        "    … 7 not shown",
        "    n18  message  user: n18",
        "    n19  message  user: n19",
    ]


def test_the_tree_of_a_terminal_is_drawn_and_fits_it(place: Place) -> None:
    with place.store() as store:
        chat(store)
        store.session("chat").commit(Commit(expected_revision=2, graph=Append([node("long", "word " * 100)])))
    with place.terminal("session", "tree", "chat", "--no-color", columns=60) as screen:
        assert screen.wait() == 0
    lines = STYLE.sub("", screen.seen).replace("\r", "").splitlines()
    assert "└── run 0 (20 nodes)" in lines
    assert any("│" in line and "└── run 1 after n10 (3 nodes)" in line for line in lines)
    assert ESCAPE not in screen.seen
    assert r"\x1b[31mboo" in screen.seen
    assert max(map(len, lines)) <= 60
    assert any(line.endswith("…") for line in lines)


def test_the_json_tree_is_nested(place: Place) -> None:
    with place.store() as store:
        chat(store)
    value = place.json("session", "tree", "chat", "--ends", "1")
    (root,) = value["runs"]
    assert [each["node"]["node_id"] for each in root["nodes"]] == ["n0", "n19"]
    (branch,) = root["branches"]
    assert (branch["parent_id"], [each["depth"] for each in branch["nodes"]], branch["branches"]) == ("n10", [11, 12], [])
    assert (value["cursor"], value["deeper"], value["session"]["leaf_id"]) == (None, 0, "b1")


def test_a_tree_is_cut_at_its_limits_and_says_so(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("deep")
        drafts = [node("r0", parent_id=None), node("r1", parent_id="r0")]
        for n in range(1, 6):  # each second child begins a run that the next one leaves
            drafts += [node(f"x{n}a", parent_id=drafts[-1].node_id), node(f"x{n}b", parent_id=drafts[-1].node_id)]
        store.session("deep").commit(Commit(expected_revision=0, graph=Append(drafts)))
        runs = store.sessions.runs("deep").runs
    assert len(runs) == 6
    cut = place.ok("session", "tree", "deep", "--depth", "2")
    assert "Cut: 4 runs deeper" in cut.err
    assert "run 1 after" in cut.out
    assert "run 2 after" not in cut.out
    paged = place.json("session", "tree", "deep", "--limit", "2")
    assert paged["cursor"] == "1"
    rest = place.json("session", "tree", "deep", "--limit", "2", "--cursor", "1")
    assert [run["number"] for run in rest["runs"]] == [2]
    assert [run["number"] for run in rest["runs"][0]["branches"]] == [3]
    assert "Cut: there may be more runs" in place.ok("session", "tree", "deep", "--limit", "2").err


def test_reading_a_tree_does_not_read_the_middle_of_a_run(place: Place) -> None:
    with place.store() as store:
        chat(store, nodes=3000)
    counted: list[int] = []
    with Store.open(place.url, schema=place.schema, on_statement=lambda event: counted.append(1)) as store:
        counted.clear()
        (first, second) = store.sessions.runs("chat", ends=2).runs
        statements = len(counted)
    assert [each.node.node_id for each in first.nodes] == ["n0", "n1", "n2998", "n2999"]
    assert (first.node_count, first.hidden_count, second.parent, second.parent_id) == (3000, 0, 0, "n1500")
    assert statements <= 5


def test_a_damaged_node_or_component_is_named_not_drawn(place: Place) -> None:
    with place.store() as store:
        chat(store)
        with store.transaction() as transaction:
            transaction.execute(f"UPDATE {place.table('nodes')} SET kind = 'evil' WHERE node_id = 'b1'")
            transaction.execute(f"DELETE FROM {place.table('versions')} WHERE component = 'plan'")
    tree, show = (place.run("session", verb, "chat", "--json") for verb in ("tree", "show"))
    assert (tree.code, tree.error()["fields"]["table"], tree.error()["fields"]["row"]) == (7, "nodes", "'chat'/'b1'")
    assert (show.code, show.error()["fields"]["table"], show.error()["fields"]["row"]) == (7, "versions", "'chat'/'plan'@1")


def test_a_handle_sees_the_same_runs_components_and_batches(place: Place) -> None:
    with place.store() as store:
        chat(store)
        batch = store.queue.enqueue("chat", ["work"])
        handle = store.session("chat")
        assert handle.runs(ends=1) == store.sessions.runs("chat", ends=1)
        assert handle.components() == store.sessions.components("chat")
        assert handle.batch(batch.batch_id) == store.queue.get("chat", batch.batch_id) == batch
        assert [run.nodes for run in handle.runs(ends=0).runs] == [(), ()]
        store.sessions.delete("chat")
        store.sessions.create("chat")
        for call in (handle.runs, handle.components, lambda: handle.batch(batch.batch_id)):
            with pytest.raises(SessionDeleted):
                call()
        assert (store.sessions.runs("chat").runs, store.sessions.components("chat")) == ((), ())


def test_the_log_is_the_commit_history(place: Place) -> None:
    with place.store() as store:
        chat(store)
        for n in range(3):
            store.session("chat").commit(Commit(expected_revision=2 + n, turn_id=f"more-{n}", graph=Append([node(f"m{n}")])))
    rows = place.ok("session", "log", "chat").rows()
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0][1:5] == ["commit", "turn-1", "20", "n19"]
    page = place.json("session", "log", "chat", "--limit", "2", "--cursor", "2")
    assert ([item["turn_id"] for item in page["items"]], page["cursor"]) == (["more-0", "more-1"], "4")
    assert [row[0] for row in place.ok("session", "log", "chat", "--last", "2").rows()] == ["4", "5"]
    assert place.run("session", "log", "chat", "--cursor", "x").code == 2
    assert place.run("session", "log", "chat", "--cursor", "1", "--last", "1").code == 2


def test_fork_takes_the_head_a_node_or_a_revision(place: Place) -> None:
    with place.store() as store:
        chat(store)
    assert place.json("session", "fork", "chat", "copy", "--name", "Copy")["name"] == "Copy"
    assert place.json("session", "fork", "chat", "early", "--at", "n3")["leaf_id"] == "n3"
    assert place.json("session", "fork", "chat", "first", "--at-revision", "1")["leaf_id"] == "n19"
    assert "13 nodes" in place.ok("session", "fork", "chat", "again").out
    assert place.run("session", "fork", "chat", "x", "--at", "n3", "--at-revision", "1").code == 2
    assert place.run("session", "fork", "chat", "x", "--at", "unknown").code == 4
    with place.store() as store:
        assert store.session("early").get().relation.parent_session_id == "chat"
        with pytest.raises(NotFound):
            store.sessions.get("x")


def test_rm_needs_a_yes_and_a_dry_run_changes_nothing(place: Place) -> None:
    with place.store() as store:
        chat(store)
        store.session("chat").processes.start(job())
    refused = place.run("session", "rm", "chat")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    dry = place.json("session", "rm", "chat", "--dry-run")
    assert (dry["would_delete"]["session_id"], dry["holds"]) == ("chat", ["job"])
    assert place.json("session", "show", "chat")["session"]["revision"] == 2
    done = place.json("session", "rm", "chat", "--yes")
    assert (done["existed"], done["orphaned"]) == (True, ["job"])
    with place.store() as store, pytest.raises(SessionDeleted):
        store.sessions.get("chat")
    assert place.run("session", "rm", "chat", "--yes").code == 4
    assert place.run("session", "rm", "nobody", "--yes").code == 4


def test_rm_asks_on_a_terminal(local: Place) -> None:
    with local.store() as store:
        chat(store)
    with local.terminal("session", "rm", "chat") as screen:
        screen.wait_for("Delete session 'chat'")
        screen.type("n\n")
        assert screen.wait() == 1
    assert local.json("session", "show", "chat")["session"]["revision"] == 2
    with local.terminal("session", "rm", "chat") as screen:
        screen.wait_for("Delete session 'chat'")
        screen.type("y\n")
        assert screen.wait() == 0
    assert local.run("session", "show", "chat").code == 4


# --- attachments ----------------------------------------------------------------------------------------------------------


def attached(store: Store, data: bytes = bytes(range(256)) * 10, *, kept: bool = True) -> str:
    store.sessions.create("chat")
    ref = store.attachments.put("chat", data, media_type="application/x-test", label="a file")
    if kept:
        store.attachments.commit_refs("chat", [ref.attachment_id])
    return ref.attachment_id


def test_get_writes_the_bytes_to_a_file_or_to_stdout(place: Place, tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    with place.store() as store:
        name = attached(store, data)
    (row,) = place.ok("attachment", "list", "chat").rows()
    assert row[:5] == [name, "chat", "application/x-test", "2560", "a file"]
    target = tmp_path / "fetched" / "file.bin"
    target.parent.mkdir()
    place.ok("attachment", "get", "chat", name, "-o", str(target))
    assert target.read_bytes() == data
    again = place.run("attachment", "get", "chat", name, "-o", str(target))
    assert (again.code, "--force" in again.err) == (2, True)
    target.write_bytes(b"old")
    assert place.json("attachment", "get", "chat", name, "-o", str(target), "--force")["file"] == str(target)
    assert target.read_bytes() == data
    assert list(target.parent.iterdir()) == [target]
    piped = subprocess.run(
        [*CLI, "attachment", "get", "chat", name, "-o", "-"], env=clean_environment(place.env), capture_output=True, check=False
    )
    assert (piped.returncode, piped.stdout) == (0, data)
    assert place.run("attachment", "get", "chat", "sha256:none", "-o", "-").code != 0
    assert place.run("attachment", "get", "chat", name, "-o", "-", "--json").code == 2


def test_bytes_never_reach_a_terminal(local: Place) -> None:
    with local.store() as store:
        name = attached(store, b"\x1b]0;owned\x07")
    with local.terminal("attachment", "get", "chat", name, "-o", "-") as screen:
        assert screen.wait() == 2
    assert "owned" not in screen.seen
    assert "garble" in screen.seen


def test_a_reader_that_has_enough_is_no_failure(local: Place) -> None:
    with local.store() as store:
        name = attached(store, b"x" * 3_000_000)
    command = [*CLI, "attachment", "get", "chat", name, "-o", "-"]
    with subprocess.Popen(command, env=clean_environment(local.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as pouring:
        assert pouring.stdout is not None
        assert pouring.stderr is not None
        assert pouring.stdout.read(10) == b"x" * 10
        pouring.stdout.close()
        assert (pouring.stderr.read(), pouring.wait(60)) == (b"", 0)


def test_damaged_bytes_leave_the_file_that_was_there(local: Place, tmp_path: Path) -> None:
    with local.store() as store:
        name = attached(store)
    (stored,) = [path for path in Path(local.url + ".attachments").rglob("*") if path.is_file() and path.stat().st_size == 2560]
    stored.chmod(0o600)
    stored.write_bytes(b"x" * 2560)
    target = tmp_path / "out" / "file.bin"
    target.parent.mkdir()
    target.write_bytes(b"old")
    done = local.run("attachment", "get", "chat", name, "-o", str(target), "--force")
    assert (done.code, target.read_bytes(), list(target.parent.iterdir())) == (7, b"old", [target])
    shutil.rmtree(target.parent)
    gone = local.run("attachment", "get", "chat", name, "-o", str(target))
    assert (gone.code, str(target) in gone.err) == (4, True)
    assert local.run("attachment", "get", "chat", name, "-o", "/dev/null", "--force").code == 2


def test_sweep_reclaims_what_nobody_holds(place: Place) -> None:
    with place.store() as store:
        kept = attached(store)
        attached(store, b"never committed", kept=False)
    assert len(place.json("attachment", "list", "--uncommitted")["items"]) == 1
    assert place.run("attachment", "list").code == 2
    assert place.run("attachment", "sweep", "--older-than", "0").code == 2
    assert place.json("attachment", "sweep", "--older-than", "0", "--dry-run")["report"]["reclaimed"] == 1
    assert place.json("attachment", "sweep", "--yes")["report"]["reclaimed"] == 0
    assert place.ok("attachment", "sweep", "--older-than", "0", "--yes").out == "Reclaimed 1 attachment, 15 B.\n"
    assert [item["ref"]["attachment_id"] for item in place.json("attachment", "list", "chat")["items"]] == [kept]
    assert place.json("attachment", "list", "--uncommitted")["items"] == []


# --- all of them ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noun", ["session", "inbox", "process", "trigger", "attachment"])
def test_a_noun_explains_its_verbs(noun: str) -> None:
    done = run(noun, "--help")
    assert (done.code, "Commands:" in done.out) == (0, True)


def test_a_list_is_a_table_on_a_terminal_and_markup_in_it_is_text(local: Place) -> None:
    with local.store() as store:
        chat(store)
        store.processes.register(job(wake_target=Scope("chat")))
    with local.terminal("session", "list", "--no-color") as screen:
        assert screen.wait() == 0
    assert "a [red]name[/red]" in screen.seen
    assert "revision" in screen.seen
    assert local.ok("process", "list").rows()[0][5] == "chat"


def test_looking_leaves_a_sqlite_file_as_it_was(local: Place) -> None:
    with local.store() as store:
        chat(store)
    before = Path(local.url).read_bytes()
    for words in (["session", "list"], ["session", "show", "chat"], ["session", "tree", "chat"], ["inbox", "list", "chat"]):
        local.ok(*words)
    local.ok("session", "rm", "chat", "--dry-run")
    assert Path(local.url).read_bytes() == before
