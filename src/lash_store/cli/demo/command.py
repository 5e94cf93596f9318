"""`lash-store demo`: choose where it takes place, play it, check it, and say what to try next."""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import apsw
import click
from msgspec import Struct

from lash_store import SchemaMismatch, Store
from lash_store.cli.context import StorelessVerb, invocation, safe_url, target_of
from lash_store.cli.demo.crew import Crew, Member
from lash_store.cli.demo.ending import Ending, ending
from lash_store.cli.demo.ledger import TRIP, Claim, Ledger
from lash_store.cli.demo.rows import open_rows
from lash_store.cli.demo.show import Place, Plain, Show, Terminal
from lash_store.cli.demo.story import WORKERS, Story, play
from lash_store.cli.failures import NO
from lash_store.cli.output import Output
from lash_store.db.dialect import quoted
from lash_store.store.url import URL_VARIABLE, Target

PACE_MS = 110  # between two thoughts of the scripted model: slow enough to follow, fast enough to wait for
NEXT = (("session", "tree", TRIP), ("session", "log", TRIP), ("doctor",))


class Report(Struct, frozen=True, kw_only=True):
    """The whole run, for programs."""

    ok: bool
    model: str
    engine: str
    url: str
    schema: str | None
    seconds: float
    claims: Sequence[Claim]
    verified: Sequence[Claim]
    story: Sequence[object]
    ledger: Ledger
    ending: Ending
    next: Sequence[str]


@click.command("demo", cls=StorelessVerb, short_help="Watch an agent survive the death of its workers.")
@click.option("--url", metavar="URL", help="Play on this PostgreSQL, in a schema of its own, or in this new SQLite file.")
@click.option("--schema", metavar="NAME", help="The new schema on PostgreSQL. Otherwise one with a random name.")
@click.option(
    "--keep", metavar="PATH", type=click.Path(path_type=Path), help="The new SQLite file. Otherwise in a temporary folder."
)
@click.option("--fast", is_flag=True, help="Without the pauses that let people read along.")
@click.pass_context
def demo(ctx: click.Context, url: str | None, schema: str | None, keep: Path | None, fast: bool) -> None:
    """Watch an agent whose workers are killed, and check that nothing was lost or done twice.

    A scripted model, without key or network; everything else is real. LASH_STORE_URL is not used: the demo only writes where
    --url or --keep says, or into a temporary folder. It exits with 1 if one of its claims does not hold.
    """
    said = invocation(ctx)
    target = chosen(url or said.url, schema or said.schema, keep)
    out = Output(as_json=said.json, color=not said.no_color)
    report = run(target, stage(out), pace_ms=0 if fast or not out.terminal else PACE_MS)
    if out.as_json:
        out.document(report)
    ctx.exit(0 if report.ok else NO)


def stage(out: Output) -> Show:
    """How this run is watched."""
    if out.as_json:
        return Show()
    return Terminal(out.console) if out.terminal else Plain()


def run(target: Target, show: Show, *, pace_ms: int) -> Report:
    """Play, look again, and say goodbye. Whatever happens, no process is left behind."""
    place = place_of(target)
    began = time.monotonic()
    address = target.dsn or target.path or ""
    show.opening(place)
    with Store.open(address, schema=target.schema) as store, Crew(address, target.schema, size=WORKERS) as crew:
        with show.waiting("workers start"):
            story = Story(store, crew, show, pace_ms=pace_ms)
        play(story)
        end = ending(store, story.ledger, crew.workers, began=story.began, now=time.monotonic())
        show.ending(end)
        verified = second_look(crew.verifier(), story.ledger, show)
    claims = [*story.claims, *verified]
    report = Report(
        ok=all(claim.holds for claim in claims),
        model="scripted",
        engine=place.engine,
        url=place.url,
        schema=None if target.dsn is None else target.schema,
        seconds=round(time.monotonic() - began, 2),
        claims=story.claims,
        verified=verified,
        story=show.happened,
        ledger=story.ledger,
        ending=end,
        next=commands(target),
    )
    show.farewell(last_words(report), place, report.next)
    return report


def second_look(verifier: Member, ledger: Ledger, show: Show) -> list[Claim]:
    """Another process checks everything that was acknowledged against raw rows."""
    with show.waiting("another process reads the raw rows"):
        verified = [Claim(**each) for each in verifier.ask(ledger)]
    show.verdict(verified, pid=verifier.pid)
    return verified


def last_words(report: Report) -> str:
    """How it went."""
    claims = [*report.claims, *report.verified]
    held = sum(claim.holds for claim in claims)
    kills = len(report.ledger.kills)
    return f"{held} of {len(claims)} claims hold. {kills} workers were killed. {report.seconds:.1f} s."


# --- the place ------------------------------------------------------------------------------------------------------------


def chosen(url: str | None, schema: str | None, keep: Path | None) -> Target:
    """Where to play: never in something that is already there."""
    if url is not None and keep is not None:
        raise click.UsageError("--keep and --url both name a place. Give one of them.")
    if url is None and keep is None:
        keep = Path(tempfile.mkdtemp(prefix="lash-store-demo-")) / "agent.db"
    target = target_of(url or str(keep), schema=schema or f"lash_store_demo_{secrets.token_hex(4)}")
    if target.path is not None and Path(target.path).exists():
        raise click.UsageError(f"{target.path!r} exists. The demo writes only to a file it makes itself.")
    if target.dsn is not None and schema is not None and schema_exists(target):
        raise click.UsageError(f"Schema {target.schema!r} exists. The demo writes only into a schema it makes itself.")
    return target


def schema_exists(target: Target) -> bool:
    """Whether somebody may already live there. The store goes first: its errors are those people know."""
    try:
        Store.open(target.dsn, schema=target.schema, migrate=False).close()
    except SchemaMismatch:
        with closing(open_rows(target)) as rows:
            return (target.schema,) in rows.fetch("SELECT nspname FROM pg_namespace")
    return True


def place_of(target: Target) -> Place:
    """The place as people may read it, and what becomes of it."""
    if target.path is not None:
        return Place(f"SQLite {apsw.sqlite_lib_version()}", target.path, f"The file is kept: {target.path}")
    left = f"The schema is left there. To remove it: DROP SCHEMA {quoted(target.schema)} CASCADE"
    if has_password(target):
        left += f"\nThe commands below take the url from {URL_VARIABLE}: export it first."
    return Place("PostgreSQL", f"{safe_url(target)}, schema {target.schema}", left)


def commands(target: Target) -> list[str]:
    """Three commands that show more of what the demo left. A url may hold a password: it is not printed again."""
    url = f'"${URL_VARIABLE}"' if has_password(target) else shlex.quote(target.dsn or target.path or "")
    where = f"--url {url}" + ("" if target.dsn is None else f" --schema {shlex.quote(target.schema)}")
    return [f"{shlex.join([*program(), *verb])} {where}" for verb in NEXT]


def has_password(target: Target) -> bool:
    """Whether the url holds a password, before its host or among its settings."""
    parts = urlsplit(target.dsn or "")
    return ":" in parts.netloc.rpartition("@")[0] or "password" in unquote(parts.query).lower()


def program() -> list[str]:
    """How this very installation is called from the user's shell."""
    folder, found = Path(sys.executable).parent, shutil.which("lash-store")
    if found is not None and Path(found).resolve().parent == folder.resolve():
        return ["lash-store"]
    own = folder / "lash-store"
    here = Path.cwd()
    if own.exists():
        return [str(own.relative_to(here) if own.is_relative_to(here) else own)]
    return [sys.executable, "-m", "lash_store"]
