"""Files a command writes: there whole or not at all, and never in the place of something that is not a file."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from lash_store.cli.context import out
from lash_store.cli.output import PipeClosed

STDIO = "-"
FILE_MODE = 0o600  # what leaves a store is as private as the store
NAME_MAX = 200  # characters of a name that its neighbour's name repeats


def check_target(ctx: click.Context, target: str, *, force: bool) -> None:
    """Whether `target` may be written: a file that is new or may be replaced, or a stdout that somebody reads."""
    if target == STDIO:
        _check_stdout(ctx)
    elif Path(target).exists() and not Path(target).is_file():  # in the place of a device a new file would do harm
        raise click.UsageError(f"{target!r} is no file. For stdout say `-`.", ctx)
    elif Path(target).exists() and not force:
        raise click.UsageError(f"{target!r} is there already. Say --force to replace it.", ctx)


def _check_stdout(ctx: click.Context) -> None:
    if out(ctx).as_json:
        raise click.UsageError("--json and `-` both want stdout: name a file.", ctx)
    if sys.stdout.isatty():
        raise click.UsageError("This would garble the terminal: name a file, or pipe stdout somewhere.", ctx)


@contextmanager
def written(target: str) -> Generator[BinaryIO]:
    """A stream to the file, which appears when all of it is written; or to stdout."""
    if target == STDIO:
        with _stdout() as stream:
            yield stream
        return
    place = Path(target).resolve()
    beside = place.with_name(f".{place.name[:NAME_MAX]}.{secrets.token_hex(6)}.part")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(place)
    except OSError as error:
        if error.filename in (None, os.fspath(beside)):
            error.filename = target  # the name the user knows
        raise
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _stdout() -> Generator[BinaryIO]:
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise PipeClosed from None
