"""Who holds what, and how to take it back."""

from __future__ import annotations

from collections.abc import Iterator

import click

from lash_store import HeldLease, LeaseKind, LeasePage, Store
from lash_store.cli.complete import session_names
from lash_store.cli.context import Noun, confirm, destructive_options, opened, out, page_options
from lash_store.cli.failures import Missing
from lash_store.cli.output import Column, Instant, Styled

PAGE = 1000  # leases looked at per call while one of them is searched

LEASES: tuple[Column[HeldLease], ...] = (
    Column("kind", lambda lease: lease.kind),
    Column("id", lambda lease: lease.id),
    Column("session", lambda lease: lease.session_id),
    Column("owner", lambda lease: lease.owner),
    Column("fence", lambda lease: lease.fence),
    Column("batches", lambda lease: None if lease.claim is None else len(lease.claim.batch_ids)),
    Column("since", lambda lease: Instant(lease.claimed_ms)),
    Column("until", lambda lease: Instant(lease.expires_ms)),
    Column("live", lambda lease: True if lease.live else Styled(False, "yellow")),
)


@click.group("lease", cls=Noun)
def lease() -> None:
    """Claims of inbox work and leases of processes."""


@lease.command("list", short_help="List who holds what: claims, then processes.")
@page_options
@click.pass_context
def list_(ctx: click.Context, limit: int, cursor: str | None) -> None:
    """List who holds what: claims first, then processes; also those whose time has passed."""
    with opened(ctx, read_only=True) as store:
        page = store.maintenance.leases(limit=limit, cursor=cursor)
    answer = out(ctx)
    if answer.as_json:
        answer.document({"items": [document(each) for each in page.leases], "cursor": page.cursor, "now_ms": page.now_ms})
    else:
        answer.page(page.leases, LEASES, cursor=page.cursor)


@lease.command("break", short_help="Take a claim or a process from its holder.")
@click.argument("id")
@click.option(
    "--session",
    "session_id",
    metavar="ID",
    shell_complete=session_names,
    help="The claim's session: claims of two sessions may have the same id.",
)
@destructive_options
@click.pass_context
def break_(ctx: click.Context, id: str, session_id: str | None, yes: bool, dry_run: bool) -> None:
    """Take a claim or a process from whoever holds it; its work is open to others at once.

    ID is a claim's or a process's, as `lease list` shows it. The old holder's writes are refused from then on.
    """
    with opened(ctx, read_only=dry_run) as store:
        found = held(ctx, store, id, session_id)
        if dry_run:
            out(ctx).done(f"Would take {found.kind} {id} from {found.owner}.", {"dry_run": True, "lease": document(found)})
            return
        confirm(ctx, f"Take {found.kind} {id} from {found.owner}?", yes=yes)
        broken = taken(store, found)
    sentence = f"Took {found.kind} {id} from {found.owner}." if broken else f"{found.owner} let go of {id} meanwhile."
    out(ctx).done(sentence, {"dry_run": False, "broken": broken, "lease": document(found)})


def held(ctx: click.Context, store: Store, id: str, session_id: str | None) -> HeldLease:
    """The one lease of this id."""
    every = (each for page in pages(store) for each in page.leases)
    found = [each for each in every if each.id == id and session_id in (None, each.session_id)]
    if not found:
        raise Missing(f"Nobody holds {id!r}. `lash-store lease list` shows what is held.")
    if len(found) > 1:
        names = ", ".join(repr(each.session_id) for each in found[:5])
        raise click.UsageError(f"{len(found)} leases have the id {id!r}, of sessions {names}. Say which with --session.", ctx)
    return found[0]


def pages(store: Store) -> Iterator[LeasePage]:
    """All leases."""
    cursor: str | None = None
    while True:
        page = store.maintenance.leases(limit=PAGE, cursor=cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


def taken(store: Store, found: HeldLease) -> bool:
    """Give a claim back, or break a process's lease. False when the claim was let go of meanwhile."""
    if found.kind is LeaseKind.PROCESS:
        store.processes.break_lease(found.id)
        return True
    assert found.claim is not None, "a claim knows its batches"
    return store.queue.abandon(found.claim) > 0


def document(found: HeldLease) -> dict[str, object]:
    """A lease as JSON, without the token, which would let anybody settle the work."""
    names = ("kind", "id", "session_id", "owner", "fence", "claimed_ms", "expires_ms", "live")
    batch_ids = None if found.claim is None else found.claim.batch_ids
    return {**{name: getattr(found, name) for name in names}, "batch_ids": batch_ids}
