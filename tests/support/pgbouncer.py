"""A real PgBouncer in transaction mode, where the machine has one. Nothing is installed at test time."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from tests.support.cluster import unprivileged

START_S = 30
SERVER_CONNECTIONS = 2  # fewer than the clients have, so that every transaction may come to another one

SETTINGS = """
[databases]
pooled = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 200
logfile = {log}
"""


def find_pgbouncer() -> str | None:
    """The program, on PATH or where distributions put it."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def pgbouncer_line() -> str:
    """One line for the end of a run: an absent PgBouncer is said, not skipped."""
    found = find_pgbouncer()
    return f"PgBouncer: {found}" if found else "PgBouncer: not on this machine, its tests do not exist in this run"


@contextmanager
def pooled(program: str, url: str) -> Generator[str]:
    """The url of a PgBouncer in front of `url`."""
    folder = Path(tempfile.mkdtemp(prefix="lash-bouncer-", dir="/tmp"))
    port = _free_port()
    settings = folder / f"{secrets.token_hex(4)}.ini"
    settings.write_text(SETTINGS.format(target=_target(url), port=port, pool=SERVER_CONNECTIONS, log=folder / "log"))
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process: subprocess.Popen[Any] = subprocess.Popen([program, "-q", settings], **silent, **_identity(folder))
    place = f"postgresql://anybody@127.0.0.1:{port}/pooled"
    try:
        _wait_for(place, process, folder / "log")
        yield place
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _target(url: str) -> str:
    """The words by which PgBouncer finds the server of a url."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    words: dict[str, Any] = {
        "host": query.get("host") or parts.hostname or "127.0.0.1",
        "port": query.get("port") or parts.port or 5432,
        "dbname": parts.path.lstrip("/") or "postgres",
        "user": unquote(parts.username or "postgres"),
    }
    if parts.password:
        words["password"] = unquote(parts.password)
    return " ".join(f"{name}='{value}'" for name, value in words.items())


def _identity(folder: Path) -> dict[str, Any]:
    """PgBouncer refuses to be root; the user of the server can reach the server's socket."""
    user = unprivileged()
    if user is None:
        return {}
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _wait_for(url: str, process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not asyncio.run(_answers(url)):
        late = process.poll() is not None or time.monotonic() > deadline
        assert not late, f"PgBouncer does not answer: {log.read_text() if log.exists() else 'no log'}"
        time.sleep(0.02)


async def _answers(url: str) -> bool:
    try:
        await (await asyncpg.connect(url, statement_cache_size=0)).close()
    except (OSError, asyncpg.PostgresError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
