"""Inboxes from the command line: list, send, cancel, unpark."""

from __future__ import annotations

from typing import Any

import click

from lash_store import Batch, BatchState, Delivery, Slot
from lash_store.cli.complete import session_names
from lash_store.cli.context import DURATION, JSON, Noun, confirm, destructive_options, opened, out, page_options
from lash_store.cli.failures import REFUSED, Failed
from lash_store.cli.output import Column, Instant, Styled, counted
from lash_store.cli.tree import preview

STATE_STYLES = {BatchState.PARKED: "red", BatchState.CLAIMED: "yellow", BatchState.READY: "green"}

BATCHES: tuple[Column[Batch], ...] = (
    Column("batch", lambda b: b.batch_id),
    Column("state", lambda b: Styled(b.state, STATE_STYLES.get(b.state, ""))),
    Column("attempts", lambda b: b.attempts),
    Column("available", lambda b: Instant(b.available_ms)),
    Column("source key", lambda b: b.source_key),
    Column("parked because", lambda b: b.parked_reason),
    Column("payloads", lambda b: preview(b.payloads[0]) if len(b.payloads) == 1 else f"{len(b.payloads)} payloads"),
)


@click.group("inbox", cls=Noun, short_help="Look at work that waits for a session; change it.")
def inbox() -> None:
    """Look at the work that waits for a session, and change it."""


@inbox.command("list")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.option("--pending", is_flag=True, help="Only what no worker holds and nobody parked.")
@page_options
@click.pass_context
def list_(ctx: click.Context, session_id: str, pending: bool, limit: int, cursor: str | None) -> None:
    """List the batches of an inbox, in the order they came."""
    with opened(ctx, read_only=True) as store:
        look = store.queue.pending if pending else store.queue.list
        page = look(session_id, limit=limit, cursor=cursor)
    out(ctx).page(page.batches, BATCHES, cursor=page.cursor)


@inbox.command("send")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.argument("payloads", metavar="PAYLOAD...", type=JSON, nargs=-1, required=True)
@click.option("--source-key", metavar="KEY", help="The same key and content is stored once.")
@click.option("--delay", "delay_ms", type=DURATION, default=0, help="Hand it out only after this time: 30s, 5min, 2h.")
@click.option("--after-turn", is_flag=True, help="Not at a checkpoint of a running turn, only after it.")
@click.option("--exclusive", is_flag=True, help="It shares no claim with its neighbours.")
@click.option("--merge-key", metavar="KEY", default="never", show_default=True, help="Neighbours of one key may share a claim.")
@click.option("--max-attempts", type=click.IntRange(1), help="Parked after so many failed attempts.")
@click.pass_context
def send(
    ctx: click.Context,
    session_id: str,
    payloads: tuple[Any, ...],
    source_key: str | None,
    delay_ms: int,
    after_turn: bool,
    exclusive: bool,
    merge_key: str,
    max_attempts: int | None,
) -> None:
    """Put one batch of work into an inbox.

    A PAYLOAD is JSON, @FILE, or - for stdin.
    """
    with opened(ctx) as store:
        batch = store.queue.enqueue(
            session_id,
            payloads,
            source_key=source_key,
            delivery=Delivery.AFTER_CURRENT_TURN_COMMIT if after_turn else Delivery.EARLIEST_SAFE_BOUNDARY,
            slot=Slot.EXCLUSIVE if exclusive else Slot.JOIN,
            merge_key=merge_key,
            delay_ms=delay_ms,
            max_attempts=max_attempts,
        )
    out(ctx).done(f"Batch {batch.batch_id} is {batch.state} in the inbox of {session_id!r}.", batch)


@inbox.command("cancel")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.argument("batch_id", metavar="BATCH")
@click.option("--damaged", is_flag=True, help="Remove it without reading it: the way out for a corrupt one.")
@destructive_options
@click.pass_context
def cancel(ctx: click.Context, session_id: str, batch_id: str, damaged: bool, yes: bool, dry_run: bool) -> None:
    """Remove a batch that no worker holds. Its source key is free again."""
    with opened(ctx, read_only=dry_run) as store:
        found = None if damaged else store.queue.get(session_id, batch_id)
        what = (
            f"batch {batch_id}" if found is None else f"batch {batch_id} ({found.state}, {counted(found.attempts, 'attempts')})"
        )
        if found is not None and found.state is BatchState.CLAIMED:
            raise _held(batch_id)
        if dry_run:
            out(ctx).done(f"Would remove {what} from the inbox of {session_id!r}.", {"would_cancel": found or batch_id})
            return
        confirm(ctx, f"Remove {what} from the inbox of {session_id!r}?", yes=yes)
        gone = store.queue.discard(session_id, batch_id) if damaged else store.queue.cancel(session_id, batch_id) is not None
        if not gone:
            raise _held(batch_id)
    out(ctx).done(f"Removed {what}.", {"cancelled": found or batch_id})


def _held(batch_id: str) -> Failed:
    return Failed(
        f"Batch {batch_id} was not removed: a worker holds it, or it is gone. Wait for its lease to pass; `inbox list` shows it.",
        code=REFUSED,
    )


@inbox.command("unpark", short_help="Put a parked batch back in its place.")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.argument("batch_id", metavar="BATCH")
@click.pass_context
def unpark(ctx: click.Context, session_id: str, batch_id: str) -> None:
    """Put a parked batch back in its place, with all its attempts."""
    with opened(ctx) as store:
        batch = store.queue.unpark(session_id, batch_id)
    out(ctx).done(f"Batch {batch_id} is {batch.state}.", batch)
