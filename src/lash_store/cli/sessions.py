"""Sessions from the command line: list, show, draw, tell their history, fork, delete."""

from __future__ import annotations

import click

from lash_store import CommitRecord, Frame, Session, SessionHandle, Snapshot, active_path
from lash_store.cli.complete import session_names
from lash_store.cli.context import Noun, confirm, destructive_options, full_option, opened, out, page_options
from lash_store.cli.output import Brief, Column, Instant, Output, counted, shown, size
from lash_store.cli.tree import Drawing, arranged, document, plain_lines, rich_tree
from lash_store.errors import InvalidArgument

ENDS_MAX = 100  # nodes of each end of a run: the drawing stays a drawing
DEPTH_MAX = 64  # nested branches: what JSON readers and people follow
HELD_SHOWN = 100  # processes a dry run names

SESSIONS: tuple[Column[Session], ...] = (
    Column("session", lambda s: s.session_id),
    Column("name", lambda s: s.name),
    Column("revision", lambda s: s.revision),
    Column("nodes", lambda s: s.node_count),
    Column("parent", lambda s: s.relation.parent_session_id),
    Column("updated", lambda s: Instant(s.updated_ms)),
)
COMMITS: tuple[Column[CommitRecord], ...] = (
    Column("revision", lambda c: c.revision),
    Column("kind", lambda c: c.kind),
    Column("turn", lambda c: c.turn_id),
    Column("nodes", lambda c: len(c.node_ids)),
    Column("leaf", lambda c: c.leaf_id),
    Column("committed", lambda c: Instant(c.committed_ms)),
)
BRIEF_COMMITS: tuple[Column[CommitRecord], ...] = (
    Column("revision", lambda c: c.revision),
    Column("kind", lambda c: c.kind),
    Column("turn", lambda c: Brief(c.turn_id)),
    Column("nodes", lambda c: len(c.node_ids)),
    Column("leaf", lambda c: Brief(c.leaf_id)),
    Column("committed", lambda c: Brief(Instant(c.committed_ms))),
)


@click.group("session", cls=Noun)
def session() -> None:
    """Look at sessions, fork them, delete them."""


@session.command("list")
@click.option(
    "--order", type=click.Choice(["updated", "id"]), default="updated", show_default=True, help="Newest first, or by id."
)
@click.option("--parent", metavar="SESSION", shell_complete=session_names, help="Only the children of this session.")
@page_options
@click.pass_context
def list_(ctx: click.Context, order: str, parent: str | None, limit: int, cursor: str | None) -> None:
    """List sessions."""
    with opened(ctx, read_only=True) as store:
        page = store.sessions.list(order="id" if order == "id" else "updated", parent=parent, limit=limit, cursor=cursor)
    out(ctx).page(page.sessions, SESSIONS, cursor=page.cursor)


# --- show -----------------------------------------------------------------------------------------------------------------


@session.command("show", short_help="Show one session: head, usage, frames, inbox.")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.pass_context
def show(ctx: click.Context, session_id: str) -> None:
    """Show one session: head, usage, frames, checkpoint components, inbox."""
    with opened(ctx, read_only=True) as store:
        handle = store.session(session_id)
        value, fields = _shown(handle)
    out(ctx).record(value, fields)


def _shown(handle: SessionHandle) -> tuple[dict[str, object], dict[str, object]]:
    """Everything about a session but its nodes: as a document, and as lines."""
    found, depth, components = handle.get(), handle.depth(), handle.components()
    snapshot = handle.load(active_path(last=1), checkpoint=False)
    value: dict[str, object] = {
        "session": found,
        "config": snapshot.config,
        "frames": [_frame(frame) for frame in snapshot.frames],
        "usage": snapshot.usage,
        "components": components,
        "inbox": depth,
    }
    fields = {
        **_head(found),
        "inbox": f"{depth.ready} ready, {depth.delayed} delayed, {depth.claimed} claimed, {depth.parked} parked",
        **_details(snapshot),
        **{f"component {c.name}": f"{size(c.size)}, revision {c.revision}" for c in components},
    }
    return value, {shown(name): each for name, each in fields.items()}


def _head(found: Session) -> dict[str, object]:
    return {
        "session": found.session_id,
        "name": found.name,
        "model": found.model,
        "cwd": found.cwd,
        "parent": found.relation.parent_session_id,
        "incarnation": found.incarnation,
        "revision": found.revision,
        "leaf": found.leaf_id,
        "nodes": found.node_count,
        "current frame": found.current_frame_id,
        "checkpoint": found.checkpoint_digest,
        "created": Instant(found.created_ms),
        "updated": Instant(found.updated_ms),
    }


def _details(snapshot: Snapshot) -> dict[str, object]:
    usage = {
        f"usage {u.source} {u.model}": f"{u.total} tokens: {u.input} input ({u.cached_input} cached), {u.output} output, "
        f"{u.reasoning} reasoning"
        for u in snapshot.usage
    }
    frames = {f"frame {f.frame_id}": Instant(f.created_ms) for f in snapshot.frames}
    return {**usage, "tokens": sum(u.total for u in snapshot.usage), **frames, "config": snapshot.config}


def _frame(frame: Frame) -> dict[str, object]:
    """A frame without its state, which may be large: how many bytes it has."""
    state_bytes = None if frame.state is None else len(frame.state)
    return {"frame_id": frame.frame_id, "body": frame.body, "created_ms": frame.created_ms, "state_bytes": state_bytes}


# --- tree and log ---------------------------------------------------------------------------------------------------------


@session.command("tree", short_help="Draw the graph: runs of nodes, and branches.")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.option("--ends", type=click.IntRange(1, ENDS_MAX), default=5, show_default=True, help="Nodes of each end of a run.")
@click.option("--depth", type=click.IntRange(1, DEPTH_MAX), default=16, show_default=True, help="Branches inside branches.")
@full_option
@page_options
@click.pass_context
def tree(ctx: click.Context, session_id: str, ends: int, depth: int, full: bool, limit: int, cursor: str | None) -> None:
    """Draw the graph: runs of nodes, and the branches that leave them.

    A drawing has at most --limit runs and of each only both ends, however large the session is.
    """
    with opened(ctx, read_only=True) as store:
        handle = store.session(session_id)
        found = handle.get()
        page = handle.runs(ends=ends, limit=limit, cursor=cursor)
    output = out(ctx)
    _draw(output, arranged(found, page.runs, depth=depth, cursor=page.cursor, brief=output.terminal and not full))


def _draw(output: Output, drawing: Drawing) -> None:
    if output.as_json:
        output.document(document(drawing))
    elif output.terminal:
        output.console.print(rich_tree(drawing))
    else:
        output.lines("\n".join(plain_lines(drawing)))
    if drawing.deeper:
        output.note(f"Cut: {counted(drawing.deeper, 'runs')} deeper. See them with a larger --depth.")
    if drawing.cursor is not None:
        output.note(f"Cut: there may be more runs. Go on with --cursor {drawing.cursor}, or take a larger --limit.")


@session.command("log")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.option("--last", type=click.IntRange(1, 1000), help="Only the newest so many, instead of the oldest.")
@full_option
@page_options
@click.pass_context
def log(ctx: click.Context, session_id: str, last: int | None, full: bool, limit: int, cursor: str | None) -> None:
    """Tell the history: one line per commit, oldest first."""
    if last is not None and cursor is not None:
        raise click.UsageError("--last and --cursor contradict each other.", ctx)
    with opened(ctx, read_only=True) as store:
        handle = store.session(session_id)
        after = number(cursor) if last is None else max(0, handle.get().revision - last)
        page = handle.commits(after=after, limit=limit if last is None else last)
    out(ctx).page(page.commits, COMMITS if full else BRIEF_COMMITS, cursor=page.cursor if last is None else None)


# --- change ---------------------------------------------------------------------------------------------------------------


@session.command("fork", short_help="Make a session over a path of another one.")
@click.argument("source", metavar="SESSION", shell_complete=session_names)
@click.argument("new_id", metavar="NEW")
@click.option("--at", "node", metavar="NODE", help="Fork at this node instead of the head.")
@click.option("--at-revision", "revision", type=click.IntRange(0), help="Fork at this commit instead of the head.")
@click.option("--name", help="The new session's name; otherwise its id.")
@click.option("--model", help="The new session's model.")
@click.option("--cwd", help="The new session's working directory.")
@click.pass_context
def fork(
    ctx: click.Context,
    source: str,
    new_id: str,
    node: str | None,
    revision: int | None,
    name: str | None,
    model: str | None,
    cwd: str | None,
) -> None:
    """Make a session over a path of another one, with its checkpoint."""
    if node is not None and revision is not None:
        raise click.UsageError("--at and --at-revision contradict each other.", ctx)
    with opened(ctx) as store:
        made = store.sessions.fork(source, new_id, at=revision if node is None else node, name=name, model=model, cwd=cwd)
    out(ctx).done(f"Forked {source!r} to {new_id!r}: {counted(made.node_count, 'nodes')}, leaf {shown(made.leaf_id)}.", made)


@session.command("rm")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@destructive_options
@click.pass_context
def rm(ctx: click.Context, session_id: str, yes: bool, dry_run: bool) -> None:
    """Delete a session with everything it owns. Its running processes go on."""
    with opened(ctx, read_only=dry_run) as store:
        handle = store.session(session_id)
        found, depth = handle.get(), handle.depth()
        waiting = depth.ready + depth.delayed + depth.claimed + depth.parked
        counts = f"{counted(found.node_count, 'nodes')}, {counted(waiting, 'batches')} in its inbox"
        what = f"session {session_id!r}: revision {found.revision}, {counts}"
        if dry_run:
            held = [entry.process.process_id for entry in handle.processes.list(limit=HELD_SHOWN).entries]
            value = {"would_delete": found, "inbox": depth, "holds": held}
            out(ctx).done(f"Would delete {what}, {counted(len(held), 'running processes')} held.", value)
            return
        confirm(ctx, f"Delete {what}?", yes=yes)
        done = handle.delete()
    sentence = f"Deleted session {session_id!r}: {counted(done.purged_rows, 'rows')}."
    if done.orphaned:
        sentence += f" Running and held by nobody now: {', '.join(done.orphaned)}."
    out(ctx).done(sentence, done)


def number(cursor: str | None) -> int:
    """A cursor that is a number: the revision a page of history ended on."""
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidArgument("cursor", "is not one this list returned")
    return 0 if cursor is None else int(cursor)
