"""Keeping a store healthy: doctor, migrate, sql, stats, gc, backup."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lash_store import Examination, Finding, SchemaMismatch, Severity, Stats, TableSize, __version__, schema_sql
from lash_store.cli.complete import session_names
from lash_store.cli.context import (
    StorelessVerb,
    Verb,
    confirm,
    destructive_options,
    named_schema,
    named_target,
    opened,
    out,
    safe_url,
)
from lash_store.cli.failures import NO, Missing
from lash_store.cli.output import Column, Output, Size, Span, Styled, counted
from lash_store.store.url import DEFAULT_SCHEMA, SCHEMA_VARIABLE

STYLES = {Severity.PROBLEM: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
ATTACHMENTS_SUFFIX = ".attachments"

# What makes a table smaller again. The others hold what was said and done: they only shrink when a session is deleted.
SHRINKS = {
    "meta": None,
    "counters": None,
    "subscriptions": "triggers.cancel",
    "schedules": "triggers.cancel",
    "grants": "process prune",
    "versions": "gc --keep-checkpoints",
    "configs": "gc --keep-checkpoints",
    "frames": "gc --keep-checkpoints",
    "settled_keys": "gc",
    "nodes": "session rm; sessions.tombstone and vacuum",
    "batches": "workers; inbox cancel",
    "attachments": "attachment sweep",
    "digests": "attachment sweep",
    "chunks": "attachment sweep",
    "events": "process prune",
    "registrations": "process prune",
    "processes": "process prune",
    "occurrences": "triggers.prune",
    "deliveries": "triggers.prune",
    "artifacts": "artifacts.collect",
}


# --- doctor ---------------------------------------------------------------------------------------------------------------


@click.command("doctor", cls=Verb)
@click.option(
    "--sample", type=click.IntRange(0, 1000), default=20, show_default=True, help="Verify so many sessions and processes."
)
@click.pass_context
def doctor(ctx: click.Context, sample: int) -> None:
    """Examine a store and say what to do. It only reads.

    Looks at the schema, the engine's version and settings, the digests of a sample, and work that lies around. Exits with 1 when
    something is wrong now; warnings and notes alone are fine.
    """
    found = _examined(ctx, sample)
    answer = out(ctx)
    if answer.as_json:
        answer.document({"store": safe_url(named_target(ctx)), "library_version": __version__, **_document(found)})
    else:
        _show_examination(ctx, answer, found)
    if not found.healthy:
        ctx.exit(NO)


def _examined(ctx: click.Context, sample: int) -> Examination:
    try:
        with opened(ctx, read_only=True) as store:
            return store.maintenance.examine(sample=sample)
    except SchemaMismatch as error:
        # Nothing else can be read then, and that is the finding.
        return Examination(
            engine=named_target(ctx).engine,
            engine_version="",
            schema_version=error.found,
            settings={},
            verified={},
            findings=(_other_schema(error),),
        )


def _other_schema(error: SchemaMismatch) -> Finding:
    behind = error.found < error.expected
    other = f"the schema is at version {error.found}, this library needs {error.expected}"
    return Finding(
        severity=Severity.PROBLEM,
        what=other if error.found else "the database has no lash-store in it",
        advice="Look with `lash-store migrate --plan`, then run `lash-store migrate`." if behind else "Upgrade lash-store.",
    )


def _document(found: Examination) -> dict[str, object]:
    names = ("engine", "engine_version", "schema_version", "settings", "verified", "findings")
    return {"healthy": found.healthy, **{name: getattr(found, name) for name in names}}


def _show_examination(ctx: click.Context, answer: Output, found: Examination) -> None:
    verified = ", ".join(counted(count, what) for what, count in found.verified.items() if count)
    facts: dict[str, object] = {
        "store": safe_url(named_target(ctx)),
        "lash-store": __version__,
        found.engine: found.engine_version or None,
        "schema": found.schema_version,
        **found.settings,
        "verified": verified or "nothing",
    }
    answer.record(None, facts)
    if found.findings:
        answer.table(("", "what", "what to do"), [_finding_row(finding) for finding in found.findings])
    answer.note("Nothing is wrong." if found.healthy else "Something is wrong: see above.")


def _finding_row(finding: Finding) -> tuple[object, ...]:
    return Styled(finding.severity, STYLES[finding.severity]), finding.what, finding.advice


# --- the schema -----------------------------------------------------------------------------------------------------------


@click.command("migrate", cls=Verb)
@click.option("--plan", is_flag=True, help="Only print the SQL that would run.")
@click.pass_context
def migrate(ctx: click.Context, plan: bool) -> None:
    """Create the schema, or bring it up to date. Forward only, in one transaction.

    A SQLite file that does not exist is made, unless it is only planned.
    """
    if plan:
        _plan(ctx)
        return
    before = _version(ctx)
    with opened(ctx, migrate=True, create=True) as store:
        after = store.maintenance.schema_version()
    answer = {"store": safe_url(named_target(ctx)), "from": before, "to": after}
    sentence = f"The schema is at version {after} already." if before == after else f"Migrated from version {before} to {after}."
    out(ctx).done(sentence, answer)


def _plan(ctx: click.Context) -> None:
    target, before, answer = named_target(ctx), _version(ctx), out(ctx)
    script = schema_sql(target.engine, schema=target.schema, since=before)
    if answer.as_json:
        answer.document({"store": safe_url(target), "from": before, "sql": script})
    elif not script:
        answer.note(f"The schema is at version {before} already: nothing to do.")
    else:
        answer.lines(script.rstrip("\n"))


def _version(ctx: click.Context) -> int:
    """The schema version of the named store; 0 where there is none yet."""
    try:
        with opened(ctx, read_only=True) as store:
            return store.maintenance.schema_version()
    except Missing:
        return 0
    except SchemaMismatch as error:
        if error.found > error.expected:
            raise
        return error.found


@click.command("sql", cls=StorelessVerb)
@click.option("--engine", type=click.Choice(["postgresql", "sqlite"]), default="postgresql", show_default=True, help="For which.")
@click.option("--schema", metavar="NAME", help=f"PostgreSQL's schema. Otherwise {SCHEMA_VARIABLE}, or {DEFAULT_SCHEMA}.")
@click.option("--since", metavar="VERSION", type=click.IntRange(0), default=0, help="Only what came after this version.")
@click.pass_context
def sql(ctx: click.Context, engine: str, schema: str | None, since: int) -> None:
    """Print the schema as a script for psql or sqlite3. No store is needed.

    It does what `migrate` does, for those whose administrator runs the SQL.
    """
    name, answer = schema or named_schema(ctx), out(ctx)
    script = schema_sql(engine, schema=name, since=since)
    if answer.as_json:
        answer.document({"engine": engine, "schema": name, "since": since, "sql": script})
    elif script:
        answer.lines(script.rstrip("\n"))
    else:
        answer.note(f"There is nothing after version {since}.")


# --- stats ----------------------------------------------------------------------------------------------------------------


@click.command("stats", cls=Verb)
@click.pass_context
def stats(ctx: click.Context) -> None:
    """Sizes, depths, ages, the oldest lease, and what grows.

    Counts stop at a bound, shown as `100000+`: looking never costs much.
    """
    with opened(ctx, read_only=True) as store:
        found = store.maintenance.stats()
    answer = out(ctx)
    if answer.as_json:
        answer.document(found)
        return
    answer.record(None, dict(_overview(found)))
    by_size = sorted(found.tables, key=lambda table: (table.size or 0, table.rows), reverse=True)
    columns = _table_columns(found)
    rows = [[column.value(table) for column in columns] for table in by_size if table.rows]
    answer.table([column.heading for column in columns], rows)


def _overview(found: Stats) -> Iterator[tuple[str, object]]:
    inbox, processes, many = found.inbox, found.processes, partial(_many, found)
    yield "size", Size(found.size)
    yield "free", Size(found.free)
    yield "sessions", many(found.sessions_live)
    yield "sessions being removed", many(found.sessions_purging)
    yield "nodes tombstoned", many(found.nodes_tombstoned)
    yield "inbox ready", many(inbox.ready)
    yield "inbox delayed", many(inbox.delayed)
    yield "inbox claimed", many(inbox.claimed)
    yield "inbox claims expired", many(inbox.expired)
    yield "inbox parked", many(inbox.parked)
    yield "oldest ready work", _age(found, inbox.oldest_ready_ms)
    yield "processes running", many(processes.running)
    yield "processes waiting", many(processes.waiting)
    yield "processes leased", many(processes.leased)
    yield "process leases expired", many(processes.expired)
    yield "processes ended", many(processes.ended)
    yield "oldest running process", _age(found, processes.oldest_running_ms)
    yield "oldest ended process", _age(found, processes.oldest_ended_ms)
    yield "oldest lease", _age(found, found.oldest_lease_ms)
    yield "deliveries undelivered", many(found.undelivered)
    yield "oldest undelivered", _age(found, found.oldest_undelivered_ms)
    yield "schedules overdue", many(found.schedules_overdue)
    yield "most overdue", _age(found, found.oldest_due_ms)
    yield "attachments uncommitted", many(found.attachments_uncommitted)
    yield "oldest uncommitted", _age(found, found.oldest_uncommitted_ms)
    yield "attachments released", many(found.attachments_released)
    yield "oldest settled key", _age(found, found.oldest_settled_key_ms)


def _table_columns(found: Stats) -> tuple[Column[TableSize], ...]:
    return (
        Column("table", lambda table: table.table),
        Column("rows", lambda table: _many(found, table.rows)),
        Column("size", lambda table: Size(table.size)),
        Column("what makes it smaller", lambda table: SHRINKS.get(table.table, "session rm")),
    )


def _many(found: Stats, count: int) -> str:
    return f"{count}+" if count >= found.counted_to else str(count)


def _age(found: Stats, since_ms: int | None) -> Span:
    return Span(None if since_ms is None else found.now_ms - since_ms)


# --- gc and backup --------------------------------------------------------------------------------------------------------


@click.command("gc", cls=Verb, short_help="Drop old checkpoint states, finish deletions.")
@click.option("--keep-checkpoints", type=click.IntRange(1), default=1, show_default=True, help="States to keep of each session.")
@click.option("--session", "session_id", metavar="ID", shell_complete=session_names, help="Only the checkpoints of this session.")
@destructive_options
@click.pass_context
def gc(ctx: click.Context, keep_checkpoints: int, session_id: str | None, yes: bool, dry_run: bool) -> None:
    """Drop old checkpoint states, finish deletions, forget old settled keys.

    The newest states of each session stay; loading an earlier revision is impossible afterwards.
    """
    with opened(ctx, read_only=dry_run) as store:
        if not dry_run:
            confirm(ctx, f"Keep only the newest {counted(keep_checkpoints, 'checkpoint states')} of each session?", yes=yes)
        report = store.maintenance.collect(keep_checkpoints=keep_checkpoints, session_id=session_id, dry_run=dry_run)
    shown: dict[str, object] = {name.replace("_", " "): getattr(report, name) for name in report.__struct_fields__}
    if dry_run:
        shown = {"dry run": True} | {name: shown[name] for name in ("sessions scanned", "versions scanned", "versions deleted")}
    out(ctx).record({"dry_run": dry_run, "report": report}, shown)


@click.command("backup", cls=Verb, short_help="Copy a SQLite store to a new file, while in use.")
@click.argument("path", type=click.Path(dir_okay=False))
@click.pass_context
def backup(ctx: click.Context, path: str) -> None:
    """Copy a SQLite store to a new file while others write it; for PostgreSQL, say what to use.

    One snapshot, checked before it gets its name. Attachments in a folder are copied afterwards, with `cp -r`.
    """
    answer = out(ctx)
    columns = (TextColumn("copying"), BarColumn(), TextColumn("{task.completed}/{task.total} pages"), TimeRemainingColumn())
    with opened(ctx, read_only=True) as store, Progress(*columns, console=answer.progress_console, transient=True) as bar:
        task = bar.add_task("copy", total=None)
        report = store.maintenance.backup(path, progress=lambda done, pages: bar.update(task, completed=done, total=pages))
    folder = Path(f"{named_target(ctx).path}{ATTACHMENTS_SUFFIX}")
    attachments = str(folder) if folder.is_dir() else None
    answer.done(f"{report.path} has {report.size} bytes and was read again.", {"backup": report, "attachments": attachments})
    if attachments is not None:
        command = shlex.join(["cp", "-r", attachments, f"{report.path}{ATTACHMENTS_SUFFIX}"])
        answer.note(f"Attachments are not in it. Now: {command}")
