"""Attachments from the command line: list, get, sweep."""

from __future__ import annotations

import click

from lash_store import AttachmentEntry
from lash_store.cli.complete import session_names
from lash_store.cli.context import DURATION, Noun, confirm, destructive_options, opened, out, page_options
from lash_store.cli.files import STDIO, check_target, written
from lash_store.cli.output import Column, Instant, Size, counted, size

ENTRIES: tuple[Column[AttachmentEntry], ...] = (
    Column("attachment", lambda e: e.ref.attachment_id),
    Column("session", lambda e: e.session_id),
    Column("media type", lambda e: e.ref.media_type),
    Column("size", lambda e: Size(e.ref.byte_len)),
    Column("label", lambda e: e.ref.label),
    Column("committed", lambda e: Instant(e.committed_ms)),
)


@click.group("attachment", cls=Noun, short_help="Look at attachments, fetch them, reclaim some.")
def attachment() -> None:
    """Look at attachments, fetch them, reclaim those nobody holds."""


@attachment.command("list", short_help="List attachments of a session, or uncommitted ones.")
@click.argument("session_id", metavar="[SESSION]", shell_complete=session_names, required=False)
@click.option("--uncommitted", is_flag=True, help="Those of all sessions that no commit named, oldest first.")
@page_options
@click.pass_context
def list_(ctx: click.Context, session_id: str | None, uncommitted: bool, limit: int, cursor: str | None) -> None:
    """List the attachments of a session, or with --uncommitted what waits for a commit anywhere."""
    if uncommitted == (session_id is not None):
        raise click.UsageError("Name a session, or say --uncommitted.", ctx)
    with opened(ctx, read_only=True) as store:
        if session_id is None:
            page = store.attachments.list_uncommitted(limit=limit, cursor=cursor)
        else:
            page = store.attachments.list(session_id, limit=limit, cursor=cursor)
    out(ctx).page(page.entries, ENTRIES, cursor=page.cursor)


# --- get ------------------------------------------------------------------------------------------------------------------


@attachment.command("get", short_help="Write the bytes of an attachment to a file.")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.argument("attachment_id", metavar="ATTACHMENT")
@click.option("-o", "--output", "target", metavar="FILE", required=True, help="Where the bytes go; - is stdout.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_context
def get(ctx: click.Context, session_id: str, attachment_id: str, target: str, force: bool) -> None:
    """Write the bytes of an attachment to a file, or with `-o -` to stdout.

    The file appears whole and verified, or not at all.
    """
    check_target(ctx, target, force=force)
    with opened(ctx, read_only=True) as store:
        entry = store.attachments.entry(session_id, attachment_id)
        with written(target) as file:
            for chunk in store.attachments.stream(session_id, attachment_id):
                file.write(chunk)
    if target == STDIO:
        return
    count = entry.ref.byte_len
    out(ctx).done(f"Wrote {size(count)} to {target!r}.", {"attachment": entry, "file": target})


# --- sweep ----------------------------------------------------------------------------------------------------------------


@attachment.command("sweep")
@click.option(
    "--older-than", "older_than_ms", type=DURATION, default="1d", show_default=True, help="Only what nobody held for this long."
)
@destructive_options
@click.pass_context
def sweep(ctx: click.Context, older_than_ms: int, yes: bool, dry_run: bool) -> None:
    """Reclaim bytes that nobody holds any more.

    It deletes where --blobs says the bytes are: name the same place as your program does.
    """
    with opened(ctx, read_only=dry_run) as store:
        if not dry_run and not yes:
            found = store.attachments.sweep(older_than_ms=older_than_ms, dry_run=True)
            confirm(ctx, f"Reclaim {counted(found.reclaimed, 'attachments')}, {size(found.reclaimed_bytes)}?", yes=yes)
        done = store.attachments.sweep(older_than_ms=older_than_ms, dry_run=dry_run)
    verb = "Would reclaim" if dry_run else "Reclaimed"
    more = "" if done.complete else " There is more: run it again."
    out(ctx).done(
        f"{verb} {counted(done.reclaimed, 'attachments')}, {size(done.reclaimed_bytes)}.{more}",
        {"dry_run": dry_run, "report": done},
    )
