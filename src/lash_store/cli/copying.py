"""Moving state from the command line: a whole store into another one, one session to a file and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lash_store import CopyDifference, CopyPhase, CopyProgress, CopyReport, Store
from lash_store.cli.complete import session_names
from lash_store.cli.context import (
    StorelessVerb,
    invocation,
    named_schema,
    open_target,
    opened,
    out,
    pooler_option,
    safe_url,
    target_of,
)
from lash_store.cli.failures import NO, Missing
from lash_store.cli.files import STDIO, check_target, written
from lash_store.cli.output import Column, Output, Size, clean, counted
from lash_store.cli.sessions import session
from lash_store.errors import SchemaMismatch
from lash_store.store.url import Target

PLAIN_STEPS = 4  # lines that tell the progress of each phase where no bar can be drawn
MANY = 100  # items: fewer are one line, when they are done
WORDS = {CopyPhase.COPY: "Copying", CopyPhase.VERIFY: "Comparing"}

DIFFERENCES: tuple[Column[CopyDifference], ...] = (
    Column("kind", lambda d: d.kind),
    Column("id", lambda d: d.id),
    Column("difference", lambda d: d.why),
)


@click.command("copy", cls=StorelessVerb, short_help="Copy a store into another one, of either engine.")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--source-schema", metavar="NAME", help="PostgreSQL's schema of SRC.")
@click.option("--target-schema", metavar="NAME", help="PostgreSQL's schema of DST.")
@click.option("--source-blobs", metavar="DIR", help="Where SRC has its attachments: a folder, or `database`.")
@click.option("--target-blobs", metavar="DIR", help="Where DST shall have its attachments: a folder, or `database`.")
@click.option("--verify/--no-verify", default=True, show_default=True, help="Compare both stores afterwards.")
@click.pass_context
def copy(
    ctx: click.Context,
    source: str,
    destination: str,
    source_schema: str | None,
    target_schema: str | None,
    source_blobs: str | None,
    target_blobs: str | None,
    verify: bool,
) -> None:
    """Copy a store into another one: SQLite files and postgresql:// urls, in any direction.

    DST is made when it is not there. What it has already is compared: equal sessions are left alone, earlier states are
    brought forward, and one that was worked on there is refused. Broken off, the same command goes on. Claims and leases
    stay behind. Exit code 1: the comparison found differences.
    """
    here = target_of(source, schema=source_schema or named_schema(ctx))
    there = target_of(destination, schema=target_schema or named_schema(ctx))
    pooler = _behind_pooler(ctx, here, there)
    if _same(here, there):
        raise click.UsageError("SRC and DST are the same store.", ctx)
    with (
        open_target(here, blobs=source_blobs, pooler=pooler and here.dsn is not None, read_only=True) as store,
        _destination(there, target_blobs, pooler=pooler and there.dsn is not None) as target,
        _progress(out(ctx)) as tell,
    ):
        report = store.transfer.copy_to(target, progress=tell, verify=verify)
    _tell_report(ctx, report, place=safe_url(there))


copy.params.append(pooler_option())


def _behind_pooler(ctx: click.Context, here: Target, there: Target) -> bool:
    """Whether a pooler is in between, for the sides that have a server."""
    pooler = invocation(ctx).pooler
    if pooler and here.dsn is None and there.dsn is None:
        raise click.UsageError("--pooler belongs to PostgreSQL, and both stores are SQLite files.", ctx)
    return pooler


def _same(here: Target, there: Target) -> bool:
    """Whether both name one store, as far as their names tell: its copy would be no copy."""
    if here.path is None or there.path is None:
        return here == there
    return os.path.realpath(here.path) == os.path.realpath(there.path)


def _destination(target: Target, blobs: str | None, *, pooler: bool) -> Store:
    """The store to copy into. Only one that is not there yet is made: an old schema is migrated by whoever decides to."""
    try:
        return open_target(target, blobs=blobs, pooler=pooler, create=True)
    except SchemaMismatch as error:
        if error.found != 0:
            raise
        return open_target(target, blobs=blobs, pooler=pooler, create=True, migrate=True)


def _tell_report(ctx: click.Context, report: CopyReport, *, place: str) -> None:
    output = out(ctx)
    cells = {
        "copied": report.copied,
        "brought forward": report.forwarded,
        "unchanged": report.unchanged,
        "rows written": report.rows,
        "attachments": report.attachments,
        "attachment bytes": Size(report.attachment_bytes),
        "compared": _comparison(report),
        "only in the target": report.only_in_target,
    }
    output.record(report, {"target": place, **cells})
    if report.different and not output.as_json:
        output.note(f"{report.different} differ, the first of them:")
        for each in report.differences:
            output.note("  ".join(str(column.value(each)) for column in DIFFERENCES))
    if report.different:
        ctx.exit(NO)


def _comparison(report: CopyReport) -> str:
    if not report.verified:
        return "no"
    return "equal" if report.equal else f"{report.different} differ"


@contextmanager
def _progress(output: Output) -> Generator[Callable[[CopyProgress], None]]:
    """A bar on a terminal, a few lines where there is none, nothing for JSON."""
    if output.as_json or not sys.stderr.isatty():
        yield _Lines(output)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.progress_console, transient=True) as bar:
        task = bar.add_task(WORDS[CopyPhase.COPY])

        def tell(now: CopyProgress) -> None:
            bar.update(task, description=f"{WORDS[now.phase]} {clean(now.kind)}", completed=now.done, total=now.total)

        yield tell


class _Lines:
    """Says now and then how far it is."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._said: tuple[CopyPhase, int] | None = None

    def __call__(self, now: CopyProgress) -> None:
        parts = (PLAIN_STEPS if now.total >= MANY else 1) * now.done // max(1, now.total)
        step = (now.phase, parts)
        if parts and step != self._said:
            self._said = step
            self._output.note(f"{WORDS[now.phase]}: {now.done} of {now.total}")


# --- one session ----------------------------------------------------------------------------------------------------------


@session.command("export", short_help="Write one session to a file or to stdout.")
@click.argument("session_id", metavar="SESSION", shell_complete=session_names)
@click.argument("file", metavar="FILE", default=STDIO)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.pass_context
def export(ctx: click.Context, session_id: str, file: str, force: bool) -> None:
    """Write one session to FILE, or to stdout for `-`: its rows, inbox and attachments as lines of JSON, with digests.

    Claims stay behind, and so do its processes and subscriptions, which belong to the store.
    """
    output = out(ctx)
    check_target(ctx, file, force=force)
    with opened(ctx, read_only=True) as store, written(file) as stream:
        report = store.transfer.export_session(session_id, stream)
    what = f"{counted(report.rows, 'rows')}, {counted(report.attachments, 'attachments')}"
    sentence = f"Exported session {session_id!r} at revision {report.revision}: {what}."
    if file == STDIO:
        output.note(sentence)
    else:
        output.done(sentence, report)


@session.command("import", short_help="Take in a session that was exported.")
@click.argument("file", metavar="FILE")
@click.pass_context
def import_(ctx: click.Context, file: str) -> None:
    """Take in a session that was exported to FILE, or from stdin for `-`. All of it is checked before anything is written.

    An id that is in use is refused, unless the session there is equal; a deleted session's id counts as in use.
    """
    with opened(ctx) as store, _read(file) as stream:
        report = store.transfer.import_session(stream)
    name = f"session {report.session_id!r} at revision {report.revision}"
    sentence = f"Imported {name}: {counted(report.rows, 'rows')}, {counted(report.attachments, 'attachments')}."
    out(ctx).done(sentence if report.imported else f"There is nothing to do: {name} is there already.", report)


@contextmanager
def _read(file: str) -> Generator[BinaryIO]:
    if file == STDIO:
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115  closed below
    except FileNotFoundError:
        raise Missing(f"There is no file {file!r}.") from None
    with stream:
        yield stream
