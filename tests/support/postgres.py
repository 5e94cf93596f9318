"""The PostgreSQL of one test run: found or started once, shared by all its processes, stopped when the run ends in any way.

The first process that needs it starts it under a lock. A guard process waits for the run's own lock to fall, which the kernel
does even after `kill -9`, and then stops every server of the run and removes its folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import asyncpg

from tests.support.binaries import OLDEST_MAJOR, NoServer, find_binaries
from tests.support.cluster import Cluster, stop

URL_VARIABLE = "LASH_STORE_TEST_POSTGRES_URL"
RUN_VARIABLE = "LASH_STORE_TEST_RUN_DIR"
GOODBYE_SECONDS = 40
PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Server:
    """How to reach the run's PostgreSQL. `tcp_url` carries a password; `origin` says where it came from."""

    url: str
    tcp_url: str
    version: str
    origin: str


class Run:
    """One test run: the folder its processes share, and the lock that says it is alive."""

    def __init__(self) -> None:
        # Not TMPDIR: a socket's path is limited to about 100 bytes, and root's TMPDIR is often closed to other users.
        self.folder = Path(tempfile.mkdtemp(prefix="lash-store-", dir="/tmp"))
        self.folder.chmod(0o711)
        self._alive: IO[str] = (self.folder / "alive").open("w")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        os.environ[RUN_VARIABLE] = str(self.folder)

    def server(self) -> Server | None:
        """The server this run started or was given, if any test asked for it."""
        return _noted(self.folder)

    def end(self) -> None:
        """Let the guard stop the servers, and wait until it has."""
        guarded = (self.folder / "guarded").exists()
        self._alive.close()
        if not guarded:
            shutil.rmtree(self.folder, ignore_errors=True)
        deadline = time.monotonic() + GOODBYE_SECONDS
        while self.folder.exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def provide() -> Server:
    """The run's PostgreSQL, started by whoever asks first. Raises NoServer with what to do."""
    folder = run_folder()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        noted = _noted(folder)
        if noted is not None:
            return noted
        server = _given() or _start(folder)
        (folder / "server.json").write_text(json.dumps(asdict(server)))
        return server


def own_cluster() -> Cluster:
    """A cluster of one test's own, to crash and restart. The caller stops it; the guard does if the caller cannot."""
    folder = run_folder()
    _guard(folder)
    return Cluster.create(find_binaries(), folder / f"own-{secrets.token_hex(4)}")


def run_folder() -> Path:
    """The folder of this run, made by the first pytest process and inherited by the others."""
    return Path(os.environ[RUN_VARIABLE])


def _noted(folder: Path) -> Server | None:
    note = folder / "server.json"
    if (folder / "failure").exists():
        raise NoServer((folder / "failure").read_text())
    return Server(**json.loads(note.read_text())) if note.exists() else None


def _given() -> Server | None:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    try:
        version = asyncio.run(_version(url))
    except (OSError, asyncpg.PostgresError) as error:
        raise NoServer(f"{URL_VARIABLE} is set, but PostgreSQL does not answer there: {type(error).__name__}: {error}") from error
    if int(version.split(".")[0]) < OLDEST_MAJOR:
        raise NoServer(f"{URL_VARIABLE} leads to PostgreSQL {version}; the tests need {OLDEST_MAJOR} or newer")
    return Server(url, url, version, URL_VARIABLE)


async def _version(url: str) -> str:
    connection = await asyncpg.connect(url, timeout=30)
    try:
        return str(await connection.fetchval("SHOW server_version")).split()[0]
    finally:
        await connection.close()


def _start(folder: Path) -> Server:
    _guard(folder)
    try:
        binaries = find_binaries()
        cluster = Cluster.create(binaries, folder / "main")
    except NoServer as error:
        # The other processes of this run need not try again.
        (folder / "failure").write_text(str(error))
        raise
    return Server(cluster.url, cluster.tcp_url, binaries.version, str(binaries.folder))


def _guard(folder: Path) -> None:
    """Start the guard once; it leaves our process group, so that Ctrl-C does not reach it."""
    try:
        (folder / "guarded").touch(exist_ok=False)
    except FileExistsError:
        return
    command = [sys.executable, "-m", "tests.support.postgres", str(folder)]
    subprocess.run(command, cwd=PROJECT, check=True, stdin=subprocess.DEVNULL)


def _watch(folder: Path) -> None:
    """The guard's life: wait for the run to end, stop its servers, remove its folder."""
    with (folder / "alive").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
    for data in folder.glob("*/data"):
        stop(_programs_of(data), data, mode="immediate")
    shutil.rmtree(folder, ignore_errors=True)


def _programs_of(data: Path) -> Path:
    options = data / "postmaster.opts"
    if not options.exists():
        return find_binaries().folder
    return Path(options.read_text().split('"')[0].strip()).parent


def _detach() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    _detach()
    _watch(Path(sys.argv[1]))
