"""Fixtures every test may use, and the rule that a full run includes PostgreSQL and skips nothing."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

import asyncpg
import pytest

from tests.support.binaries import NoServer
from tests.support.cluster import Cluster
from tests.support.pgbouncer import pgbouncer_line
from tests.support.postgres import Run, Server, own_cluster, provide

T = TypeVar("T")
RUN = pytest.StashKey[Run]()
TALLY = pytest.StashKey["Tally"]()
DROP_LOCK_MS = 10_000


class Tally:
    """What the run did, counted where all reports arrive."""

    def __init__(self) -> None:
        self.postgres = 0
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)
        if report.when == "call" and ("engine", "postgresql") in report.user_properties:
            self.postgres += 1


@pytest.fixture(scope="session")
def pg_server() -> Server:
    """The run's PostgreSQL. Failing to get one fails the test; nothing is skipped."""
    return had(provide)


@pytest.fixture(scope="session")
def pg_url(pg_server: Server) -> str:
    """A superuser's URL of the run's PostgreSQL, over its Unix socket."""
    return pg_server.url


@pytest.fixture(scope="session")
def pg_tcp_url(pg_server: Server) -> str:
    """The same over TCP with a password; for tests about passwords, proxies and broken connections."""
    return pg_server.tcp_url


@pytest.fixture
def pg_schema(pg_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a schema nobody uses, dropped afterwards. The store creates it."""
    note_postgres(request.node)
    name = f"t_{secrets.token_hex(8)}"
    yield name
    asyncio.run(drop_schema(pg_url, name))


@pytest.fixture
def pg_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A PostgreSQL of the test's own, to crash and restart."""
    note_postgres(request.node)
    cluster = had(own_cluster)
    yield cluster
    cluster.crash()


def had(start: Callable[[], T]) -> T:
    """What `start` returns, or a failure whose whole text is what to do."""
    try:
        return start()
    except NoServer as error:
        why = str(error)
    pytest.fail(why, pytrace=False)


async def drop_schema(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"lock_timeout": str(DROP_LOCK_MS), "client_min_messages": "warning"})
    try:
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    finally:
        await connection.close()


def note_postgres(item: pytest.Item) -> None:
    """Say that this test ran on PostgreSQL; the note travels with its report from xdist's workers."""
    if ("engine", "postgresql") not in item.user_properties:
        item.user_properties.append(("engine", "postgresql"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "pg_server" in getattr(item, "fixturenames", ()):
        note_postgres(item)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A run in the background of a shell ignores Ctrl-C, and its children would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.stash[RUN] = Run()
        config.stash[TALLY] = Tally()
        config.pluginmanager.register(config.stash[TALLY])


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN in config.stash:
        config.stash[RUN].end()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and TALLY in session.config.stash and complaints(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(postgres_line(config))
    terminalreporter.write_line(pgbouncer_line())
    for complaint in complaints(config):
        terminalreporter.write_line(complaint, red=True)


def postgres_line(config: pytest.Config) -> str:
    """One line that says which PostgreSQL ran, and how much on it."""
    count = config.stash[TALLY].postgres
    try:
        server = config.stash[RUN].server()
    except NoServer:
        return "PostgreSQL: could not be had"
    return f"PostgreSQL {server.version} ({server.origin}): {count} tests" if server else "PostgreSQL: not asked for"


def complaints(config: pytest.Config) -> list[str]:
    """Why a full run is not a good one although no test failed."""
    if not is_full(config):
        return []
    tally = config.stash[TALLY]
    found = [f"skipped, and no test may be: {name}" for name in tally.skipped]
    return found if tally.postgres else [*found, "no PostgreSQL test ran, and a full run must include them"]


def is_full(config: pytest.Config) -> bool:
    """Whether this run chose nothing: no file, no -k, no -m, no --lf."""
    chosen = config.args_source is pytest.Config.ArgsSource.ARGS
    options = ("keyword", "markexpr", "lf", "collectonly", "stepwise")
    return not chosen and not any(config.getoption(name, default=None) for name in options)
