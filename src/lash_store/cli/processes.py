"""Processes from the command line: list, show, read and follow their logs, signal, cancel, prune."""

from __future__ import annotations

from typing import Any

import click

from lash_store import Event, Grant, Process, ProcessState, Scope
from lash_store.cli.context import DURATION, JSON, Noun, confirm, destructive_options, opened, out, page_options
from lash_store.cli.output import Column, Instant, Styled, counted, instant, shown
from lash_store.cli.sessions import number
from lash_store.cli.tree import preview
from lash_store.errors import AlreadyTerminal

ALL = "all"
RECENT = 10  # events `show` ends with
STATE_STYLES = {ProcessState.RUNNING: "yellow", ProcessState.COMPLETED: "green", ProcessState.FAILED: "red"}


def _wait(found: Process) -> str | None:
    return None if found.wait is None else f"{found.wait.name} #{found.wait.ordinal}"


PROCESSES: tuple[Column[Process], ...] = (
    Column("process", lambda p: p.process_id),
    Column("state", lambda p: Styled(p.state, STATE_STYLES.get(p.state, ""))),
    Column("kind", lambda p: p.identity.kind),
    Column("label", lambda p: p.identity.label),
    Column("waits for", _wait),
    Column("wakes", lambda p: _scope(p.wake_target)),
    Column("events", lambda p: p.last_sequence),
    Column("updated", lambda p: Instant(p.updated_ms)),
)
EVENTS: tuple[Column[Event], ...] = (
    Column("sequence", lambda e: e.sequence),
    Column("occurred", lambda e: Instant(e.occurred_ms)),
    Column("type", lambda e: e.event_type),
    Column("ends as", lambda e: e.terminal),
    Column("wakes", lambda e: None if e.wake is None else _scope(e.wake.target)),
    Column("payload", lambda e: preview(e.payload)),
)


@click.group("process", cls=Noun)
def process() -> None:
    """Look at background processes, and talk to them."""


@process.command("list", short_help="List processes: the running ones, or by --state.")
@click.option(
    "--state",
    type=click.Choice([*(str(state) for state in ProcessState), ALL]),
    default=str(ProcessState.RUNNING),
    show_default=True,
    help="Where it is in its life.",
)
@click.option("--kind", help="Only this kind of input.")
@click.option("--waiting/--not-waiting", default=None, help="Only those that wait for a signal, or that do not.")
@click.option("--originator", metavar="SESSION", help="Only those this session started.")
@click.option("--wakes", metavar="SESSION", help="Only those that wake this session.")
@page_options
@click.pass_context
def list_(
    ctx: click.Context,
    state: str,
    kind: str | None,
    waiting: bool | None,
    originator: str | None,
    wakes: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List processes: the running ones, unless --state says otherwise."""
    with opened(ctx, read_only=True) as store:
        page = store.processes.list(
            state=None if state == ALL else state,
            kind=kind,
            waiting=waiting,
            originator_session_id=originator,
            wake_session_id=wakes,
            limit=limit,
            cursor=cursor,
        )
    out(ctx).page(page.processes, PROCESSES, cursor=page.cursor)


# --- show -----------------------------------------------------------------------------------------------------------------


@process.command("show", short_help="Show one process: state, output, holder, events.")
@click.argument("process_id", metavar="PROCESS")
@click.pass_context
def show(ctx: click.Context, process_id: str) -> None:
    """Show one process: state, output, who holds it, its last events."""
    with opened(ctx, read_only=True) as store:
        found = store.processes.get(process_id)
        grants = store.processes.grants_for(process_id)
        recent = store.processes.recent(process_id, limit=RECENT)
    events = {f"event {event.sequence}": f"{instant(event.occurred_ms)}  {_said(event)}" for event in recent}
    fields = {**_fields(found), "granted to": _holders(grants), **events}
    out(ctx).record({"process": found, "grants": grants, "recent": recent}, fields)


def _fields(found: Process) -> dict[str, object]:
    return {
        "process": found.process_id,
        "state": Styled(found.state, STATE_STYLES.get(found.state, "")),
        "pruned": found.pruned,
        "kind": found.identity.kind,
        "label": found.identity.label,
        "input": found.input.payload,
        "output": found.output,
        "waits for": _wait(found),
        "originator": _scope(found.originator) or "host",
        "wakes": _scope(found.wake_target),
        "environment": found.env_ref,
        "external": None if found.external_ref is None else f"{found.external_ref.backend} {found.external_ref.id}",
        "event types": ", ".join(each.name for each in found.event_types),
        "events": found.last_sequence,
        "created": Instant(found.created_ms),
        "updated": Instant(found.updated_ms),
    }


def _scope(scope: Scope | None) -> str | None:
    if scope is None:
        return None
    return scope.session_id if scope.frame_id is None else f"{scope.session_id}/{scope.frame_id}"


def _holders(grants: tuple[Grant, ...]) -> str:
    return ", ".join(str(_scope(grant.scope)) for grant in grants) or "nobody"


def _said(event: Event) -> str:
    ending = "" if event.terminal is None else f"  ends it: {event.terminal}"
    return f"{event.event_type}  {preview(event.payload)}{ending}"


# --- events ---------------------------------------------------------------------------------------------------------------


@process.command("events")
@click.argument("process_id", metavar="PROCESS")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only events of this type; may be repeated.")
@page_options
@click.pass_context
def events(ctx: click.Context, process_id: str, types: tuple[str, ...], limit: int, cursor: str | None) -> None:
    """List the events of a process, oldest first. A cursor is a sequence."""
    with opened(ctx, read_only=True) as store:
        page = store.processes.events(process_id, after=number(cursor), types=types or None, limit=limit)
    out(ctx).page(page.events, EVENTS, cursor=None if page.cursor is None else str(page.cursor))


@process.command("follow", short_help="Print events as they happen.")
@click.argument("process_id", metavar="PROCESS")
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="Begin after this sequence.")
@click.pass_context
def follow(ctx: click.Context, process_id: str, after: int) -> None:
    """Print events as they happen, until the process ends or you press Ctrl-C.

    With --json every line is a document.
    """
    output = out(ctx)
    with opened(ctx, read_only=True) as store:
        for event in store.processes.follow(process_id, after=after):
            output.each(f"{event.sequence}  {instant(event.occurred_ms)}  {_said(event)}", event)


# --- talk -----------------------------------------------------------------------------------------------------------------


@process.command("signal", short_help="Send a named signal, for example an approval.")
@click.argument("process_id", metavar="PROCESS")
@click.argument("name", metavar="NAME")
@click.option("--payload", type=JSON, help="JSON, @FILE, or - for stdin; null when absent.")
@click.option("--signal-id", metavar="ID", help="The same id again sends nothing.")
@click.pass_context
def signal(ctx: click.Context, process_id: str, name: str, payload: Any, signal_id: str | None) -> None:
    """Send a named signal to a process, for example an approval."""
    with opened(ctx) as store:
        sent = store.processes.signal(process_id, name, payload, signal_id=signal_id)
    was = "was sent before" if sent.replayed else "is sent"
    out(ctx).done(f"Signal {name!r} {was}: event {sent.event.sequence} of process {process_id!r}.", sent)


@process.command("cancel")
@click.argument("process_id", metavar="PROCESS")
@click.option("--reason", help="Why; the worker sees it.")
@destructive_options
@click.pass_context
def cancel(ctx: click.Context, process_id: str, reason: str | None, yes: bool, dry_run: bool) -> None:
    """Ask a process to end. Its worker sees the request and ends it."""
    with opened(ctx, read_only=dry_run) as store:
        found = store.processes.get(process_id)
        if found.terminal:
            raise AlreadyTerminal(process_id, state=found.state)
        what = f"process {process_id!r} ({shown(found.identity.label or found.identity.kind)})"
        if dry_run:
            out(ctx).done(f"Would ask {what} to end.", {"would_cancel": found})
            return
        confirm(ctx, f"Ask {what} to end?", yes=yes)
        asked = store.processes.cancel(process_id, reason=reason)
    out(ctx).done(f"Asked {what} to end. `process follow` shows when it does.", asked)


@process.command("prune")
@click.option("--older-than", "older_than_ms", type=DURATION, required=True, help="Only those that ended this long ago: 7d, 2h.")
@destructive_options
@click.pass_context
def prune(ctx: click.Context, older_than_ms: int, yes: bool, dry_run: bool) -> None:
    """Remove processes that have ended, with their logs. A late retry still finds that they ran."""
    with opened(ctx, read_only=dry_run) as store:
        if not dry_run and not yes:
            found = store.processes.prune(older_than_ms=older_than_ms, dry_run=True)
            confirm(ctx, f"Remove {counted(found.processes, 'processes')} and {counted(found.events, 'events')}?", yes=yes)
        done = store.processes.prune(older_than_ms=older_than_ms, dry_run=dry_run)
    verb = "Would remove" if dry_run else "Removed"
    what = f"{counted(done.processes, 'processes')} and {counted(done.events, 'events')}"
    out(ctx).done(f"{verb} {what}.", {"dry_run": dry_run, "report": done})
