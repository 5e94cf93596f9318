"""The program: its groups and verbs. Every file of this folder brings its own; here they are put together."""

from __future__ import annotations

import click

from lash_store import __version__
from lash_store.cli.attachments import attachment
from lash_store.cli.context import Noun
from lash_store.cli.copying import copy
from lash_store.cli.demo.command import demo
from lash_store.cli.inbox import inbox
from lash_store.cli.leases import lease
from lash_store.cli.maintain import backup, doctor, gc, migrate, sql, stats
from lash_store.cli.processes import process
from lash_store.cli.sessions import session
from lash_store.cli.triggers import trigger


@click.group(cls=Noun, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="lash-store")
def cli() -> None:
    """The durable state of AI agents: look at a store, keep it healthy, move it.

    The store is --url or LASH_STORE_URL: a SQLite file or a postgresql:// url.
    """


cli.add_command(demo)
cli.add_command(session)
cli.add_command(inbox)
cli.add_command(process)
cli.add_command(trigger)
cli.add_command(attachment)
cli.add_command(lease)
cli.add_command(doctor)
cli.add_command(migrate)
cli.add_command(sql)
cli.add_command(stats)
cli.add_command(gc)
cli.add_command(backup)
cli.add_command(copy)
