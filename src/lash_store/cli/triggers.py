"""Triggers from the command line: list, fire, tick, redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from lash_store import Cron, DeliveryOutcome, OccurrenceRequest, Outcome, Subscription, TriggerDelivery
from lash_store.cli.complete import session_names
from lash_store.cli.context import JSON, Noun, opened, out, page_options
from lash_store.cli.failures import NO
from lash_store.cli.output import Column, Instant, Output, Styled, counted, shown, span
from lash_store.encode import mint

TICK_MAX = 100  # instants of one tick


def _schedule(subscription: Subscription) -> str | None:
    schedule = subscription.schedule
    if schedule is None:
        return None
    return f"{schedule.expression} {schedule.timezone}" if isinstance(schedule, Cron) else f"every {span(schedule.every_ms)}"


SUBSCRIPTIONS: tuple[Column[Subscription], ...] = (
    Column("trigger", lambda s: s.handle),
    Column("enabled", lambda s: Styled(s.enabled, "" if s.enabled else "dim")),
    Column("source type", lambda s: s.source_type),
    Column("source key", lambda s: s.source_key),
    Column("starts", lambda s: s.target.kind),
    Column("schedule", _schedule),
    Column("registrant", lambda s: "host" if s.registrant is None else s.registrant.session_id),
    Column("label", lambda s: s.label or s.name),
)
DELIVERIES: tuple[Column[TriggerDelivery], ...] = (
    Column("occurrence", lambda d: d.occurrence_id),
    Column("subscription", lambda d: d.subscription_id),
    Column("process", lambda d: d.process_id),
    Column("promised", lambda d: Instant(d.created_ms)),
)


@click.group("trigger", cls=Noun)
def trigger() -> None:
    """Look at triggers, and make them fire."""


@trigger.command("list")
@click.option(
    "--session", "session_id", metavar="SESSION", shell_complete=session_names, help="Only what this session registered."
)
@click.option("--source-type", metavar="TYPE", help="Only this source type.")
@click.option("--source-key", metavar="KEY", help="Only this source key.")
@click.option("--enabled/--disabled", default=None, help="Only those that fire, or that do not.")
@page_options
@click.pass_context
def list_(
    ctx: click.Context,
    session_id: str | None,
    source_type: str | None,
    source_key: str | None,
    enabled: bool | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List subscriptions in the order they were made."""
    with opened(ctx, read_only=True) as store:
        page = store.triggers.list(
            session_id=session_id, source_type=source_type, source_key=source_key, enabled=enabled, limit=limit, cursor=cursor
        )
    out(ctx).page(page.subscriptions, SUBSCRIPTIONS, cursor=page.cursor)


@trigger.command("fire", short_help="Record that something happened; start what waits.")
@click.argument("source_type", metavar="SOURCE_TYPE")
@click.argument("source_key", metavar="SOURCE_KEY")
@click.option("--payload", type=JSON, help="JSON, @FILE, or - for stdin; null when absent.")
@click.option("--key", "idempotency_key", metavar="KEY", help="The same key is the same occurrence. A new one when absent.")
@click.pass_context
def fire(ctx: click.Context, source_type: str, source_key: str, payload: Any, idempotency_key: str | None) -> None:
    """Record that something happened, and start every process that waits for it. Exit code 1 when one could not start."""
    request = OccurrenceRequest(
        source_type=source_type,
        source_key=source_key,
        idempotency_key=mint("cli:") if idempotency_key is None else idempotency_key,
        payload=payload,
    )
    with opened(ctx) as store:
        report = store.triggers.emit(request)
    output = out(ctx)
    output.done(f"Occurrence {report.occurrence.occurrence_id}: {_counted(report.outcomes)}.", report)
    _end(ctx, output, report.outcomes)


@trigger.command("tick", short_help="Fire the schedules that are due.")
@click.option("--limit", type=click.IntRange(1, TICK_MAX), default=TICK_MAX, show_default=True, help="At most so many instants.")
@click.pass_context
def tick(ctx: click.Context, limit: int) -> None:
    """Fire the schedules that are due by the database's clock. Exit code 1 when one is broken or could not start."""
    with opened(ctx) as store:
        report = store.triggers.tick(limit=limit)
    output = out(ctx)
    more = " There is more: tick again." if report.more else ""
    output.done(f"{report.fired} fired, {report.passed_over} passed over: {_counted(report.outcomes)}.{more}", report)
    for broken in report.broken:
        output.note(f"Broken: {broken.subscription_id}: {broken.error}")
    _end(ctx, output, report.outcomes, broken=bool(report.broken))


@trigger.command("redrive")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many deliveries.")
@click.option("--dry-run", is_flag=True, help="Only list what was left behind.")
@click.pass_context
def redrive(ctx: click.Context, limit: int, dry_run: bool) -> None:
    """Start what was promised and left behind, oldest first. Exit code 1 when one could not start."""
    output = out(ctx)
    with opened(ctx, read_only=dry_run) as store:
        if dry_run:
            page = store.triggers.undelivered(limit=limit)
            output.page(page.deliveries, DELIVERIES, cursor=page.cursor)
            return
        report = store.triggers.redrive(limit=limit)
    more = " There is more: redrive again." if report.more else ""
    output.done(f"{_counted(report.outcomes)}.{more}", report)
    _end(ctx, output, report.outcomes)


def _counted(outcomes: Sequence[DeliveryOutcome]) -> str:
    counts = {kind: sum(each.outcome is kind for each in outcomes) for kind in Outcome}
    started = counted(counts[Outcome.STARTED], "processes")
    return f"{started} started, {counts[Outcome.FAILED]} failed, {counts[Outcome.ALREADY]} done already"


def _end(ctx: click.Context, output: Output, outcomes: Sequence[DeliveryOutcome], *, broken: bool = False) -> None:
    """Say what failed, and that something did."""
    failed = [each.delivery for each in outcomes if each.outcome is Outcome.FAILED]
    for delivery in failed:
        output.note(f"Failed: {delivery.subscription_id}: {shown(delivery.error)}")
    if failed or broken:
        ctx.exit(NO)
