"""What every command shares: the options it may carry, the store it opens, and the question before it destroys."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from lash_store import Store
from lash_store.cli.failures import Declined, Missing
from lash_store.cli.output import Output, clean
from lash_store.errors import InvalidArgument
from lash_store.store.url import DEFAULT_SCHEMA, SCHEMA_VARIABLE, URL_VARIABLE, Target, parse

F = TypeVar("F", bound=Callable[..., Any])
BLOBS_VARIABLE = "LASH_STORE_BLOBS"
ACQUIRE_MS = 30_000  # how long a server may take to let us in
HIDDEN = "***"
YES = ("y", "yes")
DURATION_UNITS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Invocation:
    """What the options said, wherever they stood: before the verb or after it."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.schema: str | None = None
        self.blobs: str | None = None
        self.pooler = False
        self.json = False
        self.no_color = False


def invocation(ctx: click.Context) -> Invocation:
    """The options of this run."""
    return ctx.find_root().ensure_object(Invocation)


def out(ctx: click.Context) -> Output:
    """Where this command's answer goes. Ask when the options are parsed: inside the command."""
    said = invocation(ctx)
    return Output(as_json=said.json, color=not said.no_color)


class Verb(click.Command):
    """A command that takes the shared options after its name too, so that nobody needs to remember where they belong."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [*store_options(), *output_options()]


class StorelessVerb(click.Command):
    """A command that opens no store, or names its stores itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += output_options()


class Noun(click.Group):
    """A group of verbs. The shared options may stand here as well."""

    command_class = Verb
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [*store_options(), *output_options()]


def store_options() -> list[click.Parameter]:
    """Where the store is."""
    return [
        _shared(
            "--url",
            metavar="URL",
            shell_complete=files,
            help=f"A SQLite file or a postgresql:// url. Otherwise {URL_VARIABLE}.",
        ),
        _shared("--schema", metavar="NAME", help=f"PostgreSQL's schema. Otherwise {SCHEMA_VARIABLE}, or {DEFAULT_SCHEMA}."),
        _shared(
            "--blobs",
            metavar="DIR",
            shell_complete=folders,
            help=f"Where attachments are: a folder, or `database`. Otherwise {BLOBS_VARIABLE}.",
        ),
        pooler_option(),
    ]


def pooler_option() -> click.Option:
    """For a server that is reached through somebody else."""
    return _shared("--pooler", is_flag=True, default=None, help="The url leads to PgBouncer or the like.")


def output_options() -> list[click.Parameter]:
    """How the answer looks."""
    return [
        _shared("--json", is_flag=True, default=None, help="Print one JSON document."),
        _shared("--no-color", is_flag=True, default=None, help="No colours; NO_COLOR does the same."),
    ]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a file."""
    return [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a folder."""
    return [CompletionItem(incomplete, type="dir")]


def _shared(name: str, **kwargs: Any) -> click.Option:
    return click.Option([name], expose_value=False, callback=_remember, **kwargs)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value == "":  # it must not lead to the store the environment names
        raise click.BadParameter("it is empty. Is a variable of the shell not set?", ctx, param)
    if value is not None:
        setattr(invocation(ctx), str(param.name), value)


# --- the store ------------------------------------------------------------------------------------------------------------


@contextmanager
def opened(
    ctx: click.Context,
    *,
    read_only: bool = False,
    migrate: bool = False,
    create: bool = False,
    acquire_ms: int = ACQUIRE_MS,
) -> Generator[Store]:
    """The store the options name, closed at the end. It is neither created nor migrated unless asked for."""
    said = invocation(ctx)
    blobs = said.blobs or _environment(BLOBS_VARIABLE)
    with open_target(
        named_target(ctx),
        blobs=blobs,
        pooler=said.pooler,
        read_only=read_only,
        migrate=migrate,
        create=create,
        acquire_ms=acquire_ms,
    ) as store:
        yield store


def open_target(
    target: Target,
    *,
    blobs: str | None = None,
    pooler: bool = False,
    read_only: bool = False,
    migrate: bool = False,
    create: bool = False,
    acquire_ms: int = ACQUIRE_MS,
) -> Store:
    """The store at a target, with the same care. Whoever asks closes it."""
    if not create:
        check_exists(target)
    return Store.open(
        target.dsn if target.dsn is not None else target.path,
        schema=target.schema,
        migrate=migrate,
        read_only=read_only,
        blobs=blobs,
        pooler=pooler,
        acquire_ms=acquire_ms,
    )


def named_target(ctx: click.Context) -> Target:
    """The database the options or the environment name; wrong usage when neither does."""
    said = invocation(ctx)
    url = said.url or _environment(URL_VARIABLE)
    if not url:
        raise click.UsageError(f"No store is named. Give --url, or set {URL_VARIABLE}.", ctx)
    return target_of(url, schema=named_schema(ctx))


def named_schema(ctx: click.Context) -> str:
    """PostgreSQL's schema: an option, the environment, or the usual one."""
    return invocation(ctx).schema or _environment(SCHEMA_VARIABLE) or DEFAULT_SCHEMA


def target_of(url: str, *, schema: str = DEFAULT_SCHEMA) -> Target:
    """A url as a target. A database in memory is refused: it would be empty, and gone at the end."""
    target = parse(url, schema=schema)
    if target.in_memory:
        raise InvalidArgument("url", "a database in memory ends with its process; name a file")
    if target.path is not None and os.path.isdir(target.path):  # noqa: PTH112 - one that may not be looked at is False
        raise InvalidArgument("url", f"{target.path!r} is a folder; name a file")
    return target


def check_exists(target: Target) -> None:
    """A SQLite file that is not there is a spelling mistake, not a wish for an empty store."""
    if target.path is not None and not os.path.exists(target.path):  # noqa: PTH110 - one that may not be looked at is False
        raise Missing(f"There is no file {target.path!r}. Nothing was created.")


def safe_url(target: Target) -> str:
    """The target as a url or a path that may be printed: no password, no query."""
    if target.path is not None:
        return target.path
    parts = urlsplit(target.dsn or "")
    user, has_user, place = parts.netloc.rpartition("@")
    name, has_password, _ = user.partition(":")
    return f"postgresql://{name}{':' + HIDDEN if has_password else ''}{has_user}{place}{parts.path}"


def _environment(name: str) -> str | None:
    return os.environ.get(name) or None


# --- values ---------------------------------------------------------------------------------------------------------------


def JSON(value: str) -> Any:  # noqa: N802 - it stands where click's own types stand
    """A click type: a JSON value, as text, as `@file`, or as `-` for stdin."""
    try:
        return json.loads(_text(value))
    except OSError as error:
        raise click.BadParameter(f"{value[1:]!r} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}. Text needs its double quotes.") from None
    except RecursionError:
        raise click.BadParameter("it is nested too deep.") from None


def _text(value: str) -> str:
    if value == "-":
        return sys.stdin.read()
    return Path(value[1:]).read_text("utf-8") if value.startswith("@") else value


def DURATION(value: str | int) -> int:  # noqa: N802 - as above
    """A click type: 1500ms, 30s, 5min, 2h or 7d in milliseconds; a bare number is milliseconds already."""
    parts = re.fullmatch(r"(\d+)\s*(ms|s|min|h|d)?", str(value))
    if parts is None:
        raise click.BadParameter(f"{value!r} is no duration. Write 1500ms, 30s, 5min, 2h or 7d.")
    return int(parts[1]) * DURATION_UNITS[parts[2] or "ms"]


# --- options of several verbs ---------------------------------------------------------------------------------------------


def page_options(command: F) -> F:
    """`--limit` and `--cursor` of every list."""
    command = click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended.")(command)
    return click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")(command)


def full_option(command: F) -> F:
    """`--full` of what is shown in short on a terminal."""
    return click.option("--full", is_flag=True, help="Whole ids and times on a terminal too.")(command)


def destructive_options(command: F) -> F:
    """`--yes` and `--dry-run` of every verb that destroys."""
    command = click.option("--dry-run", is_flag=True, help="Only say what would happen.")(command)
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(ctx: click.Context, question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. Where nobody can answer, `--yes` must have been said already."""
    if yes:
        return
    if invocation(ctx).json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("This changes the store and nobody is here to ask: say --yes, or look with --dry-run.", ctx)
    click.echo(f"{clean(question)} [y/N]: ", nl=False, err=True)
    # Not input(): it prints the prompt itself, and a Ctrl-C between that and its read is heard only with the next key.
    answer = sys.stdin.readline()
    if answer.strip().lower() not in YES:
        raise Declined
