"""From an error to one line and an exit code. This is the only place that decides either.

0 done · 1 the answer is no · 2 wrong usage · 3 the store refused · 4 not found · 5 unreachable or busy · 6 another schema
version · 7 corrupt · 130 interrupted
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lash_store.cli.output import PipeClosed, clean
from lash_store.errors import (
    Corrupt,
    InvalidArgument,
    Misuse,
    NotFound,
    SchemaMismatch,
    SessionDeleted,
    StoreError,
    Unavailable,
)

NO, USAGE, REFUSED, NOT_FOUND, UNREACHABLE, SCHEMA, CORRUPT, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 130
TRACEBACK_VARIABLE = "LASH_STORE_TRACEBACK"

FORESEEN = (click.ClickException, click.Abort, StoreError, OSError, KeyboardInterrupt)

# The first that fits decides.
CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((NotFound, SessionDeleted, FileNotFoundError), NOT_FOUND),
    ((InvalidArgument, Misuse), USAGE),
    ((Unavailable,), UNREACHABLE),
    ((SchemaMismatch,), SCHEMA),
    ((Corrupt,), CORRUPT),
    ((StoreError, PermissionError), REFUSED),
    ((OSError,), UNREACHABLE),
)


class Failed(click.ClickException):
    """What the command line itself finds wrong: a sentence, the next step, and an exit code."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class Missing(Failed):
    """Something that was named does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=NOT_FOUND)


class Declined(Failed):
    """The user said no."""

    def __init__(self) -> None:
        super().__init__("Nothing was changed.", code=NO)


def run(arguments: Sequence[str]) -> int:
    """Run the program. Every failure it foresees ends as one line on stderr; LASH_STORE_TRACEBACK=1 shows where from."""
    from lash_store.cli.app import cli

    as_json = "--json" in arguments
    _stand_in()
    try:
        code: object = cli.main(args=list(arguments), prog_name="lash-store", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, PipeClosed):
        return _pipe_closed()
    except FORESEEN as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        return report(error, as_json=as_json)
    return code if isinstance(code, int) else 0


def report(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong, on stderr, and return the exit code."""
    code, message = exit_code(error), text_of(error)
    if as_json:
        fields = error.fields() if isinstance(error, StoreError) else {}
        shown = {name: value if isinstance(value, int | str | None) else str(value) for name, value in fields.items()}
        document = {"error": {"type": _type(error), "message": message, "exit_code": code, "fields": shown}}
        sys.stderr.write(json.dumps(document) + "\n")
        return code
    if _asks_for_help(error):
        sys.stderr.write(f"{error}\n")
        return code
    if isinstance(error, click.UsageError) and error.ctx is not None:
        sys.stderr.write(error.ctx.get_usage() + "\n")
    sys.stderr.write(f"lash-store: {message}\n")
    return code


def exit_code(error: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(error, Failed):
        return error.code
    if isinstance(error, click.ClickException):
        return error.exit_code
    for kinds, code in CODES:
        if isinstance(error, kinds):
            return code
    return INTERRUPTED


def text_of(error: BaseException) -> str:
    """An error in one line that is safe to print and says what to do next."""
    if _asks_for_help(error):
        return "Missing command."
    if isinstance(error, click.ClickException):
        return clean(error.format_message())
    if isinstance(error, SchemaMismatch) and error.found == 0:
        return "the database has no lash-store in it. Name another one, or create it with `lash-store migrate`."
    if isinstance(error, SchemaMismatch) and error.found < error.expected:
        return (
            f"the database is at schema version {error.found}, this lash-store needs {error.expected}. "
            "Look with `lash-store migrate --plan`, then run `lash-store migrate`."
        )
    if isinstance(error, StoreError):
        return clean(str(error))
    if isinstance(error, OSError):
        return clean(f"{error.filename or 'a file'}: {error.strerror or type(error).__name__}.")
    return "interrupted."


def _asks_for_help(error: BaseException) -> bool:
    """A group without a verb: its help is the answer, in all its lines. Click 8.1 prints it by itself."""
    return isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ()))


def _type(error: BaseException) -> str:
    if isinstance(error, click.UsageError):
        return "Usage"
    return type(error).__name__ if isinstance(error, StoreError | OSError | Failed) else "Interrupted"


def _stand_in() -> None:
    """A program started with stdout or stderr closed has none; what it would say is lost, what it does is not."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  it lives as long as the program


def _pipe_closed() -> int:
    """The reader of our output went away, as `head` does: that is no failure, and there is nobody to tell."""
    # The interpreter flushes stdout once more on its way out; it must find a place where that works.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
