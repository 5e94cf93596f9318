"""What a shell offers while somebody types: ids of sessions, when it is known where the store is."""

from __future__ import annotations

import click

from lash_store.cli.context import opened
from lash_store.cli.output import clean

OFFERED_MAX = 50  # more is no help to choose
PATIENCE_MS = 1_500  # for a server that does not answer: somebody waits with a hand on the keyboard
SEARCHED_MAX = 1000  # the newest sessions, of which those that fit are offered


def session_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Sessions whose id begins so, newest first. Nothing is made.

    Whatever fails offers nothing: a prompt is no place to say why.
    """
    try:
        with opened(ctx, read_only=True, acquire_ms=PATIENCE_MS) as store:
            found = store.sessions.list(order="updated", limit=SEARCHED_MAX).sessions
    except Exception:  # noqa: BLE001 - see above
        return []
    names = [each.session_id for each in found if each.session_id.startswith(incomplete)]
    return [name for name in names if clean(name) == name][:OFFERED_MAX]
