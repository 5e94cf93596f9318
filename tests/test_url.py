"""A url names one database, and no text about it holds its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from lash_store.errors import InvalidArgument
from lash_store.model.limits import Limits
from lash_store.store.options import Options
from lash_store.store.url import SCHEMA_VARIABLE, URL_VARIABLE, Target, parse, target_of

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("agent.db", "agent.db"),
        ("/var/lib/agent.db", "/var/lib/agent.db"),
        ("C:\\data\\agent.db", "C:\\data\\agent.db"),
        ("sqlite:///agent.db", "agent.db"),
        ("sqlite:////var/lib/agent.db", "/var/lib/agent.db"),
        ("sqlite:///my%20agent.db", "my agent.db"),
        ("SQLite:///agent.db", "agent.db"),
        (":memory:", ":memory:"),
        ("sqlite://:memory:", ":memory:"),
        ("sqlite:///:memory:", ":memory:"),
    ],
)
def test_a_path_or_sqlite_url_names_a_file(url: str, path: str) -> None:
    target = parse(url)
    assert (target.engine, target.path, target.dsn) == ("sqlite", path, None)
    assert target.in_memory == (path == ":memory:")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg", "PostgreSQL"])
def test_a_postgresql_url_keeps_all_its_parts(scheme: str) -> None:
    target = parse(f"{scheme}://me:{SECRET}@db.example:5433/agents?sslmode=require", schema="mine")
    assert target.dsn == f"postgresql://me:{SECRET}@db.example:5433/agents?sslmode=require"
    assert (target.engine, target.schema) == ("postgresql", "mine")
    assert target.label == "postgresql://me@db.example:5433/agents"


def test_a_postgresql_url_may_name_a_socket_or_an_ipv6_host() -> None:
    assert parse("postgresql:///agents?host=/run/pg").dsn == "postgresql:///agents?host=/run/pg"
    assert parse("postgresql://[::1]:5433/agents").label == "postgresql://[::1]:5433/agents"


@pytest.mark.parametrize(
    "url",
    ["", "a\0b", "file:agent.db?mode=ro", "sqlite://host/agent.db", "sqlite:///", "sqlite:///a.db?mode=ro", "mysql://h/d"],
)
def test_other_names_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host:port/db",
        f"postgresql://me:{SECRET}@[host/db",
        f"postgresql://me:12/{SECRET}@host/db",  # a slash that is not encoded: the rest would be the path
        f'"postgresql://me:{SECRET}@host/db"',  # not a path, which would be printed
        f" postgresql://me:{SECRET}@host/db",
        f"postgresql:me:{SECRET}@host/db",
        f"Postgres:/me:{SECRET}@host/db",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_no_value_prints_a_password() -> None:
    url = f"postgresql://me:{SECRET}@host/db?password={SECRET}"
    options = Options(url=url, listen_url=url)
    for shown in (repr(options), repr(options.target()), options.target().label, f"{options}", repr([options.target()])):
        assert SECRET not in shown


def test_without_a_url_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(InvalidArgument, match=URL_VARIABLE):
        target_of(None)
    monkeypatch.setenv(URL_VARIABLE, "postgresql://host/db")
    monkeypatch.setenv(SCHEMA_VARIABLE, "ours")
    assert target_of(None) == Target(engine="postgresql", dsn="postgresql://host/db", schema="ours")
    assert target_of(None, schema="mine").schema == "mine"
    assert target_of("agent.db").schema == "lash_store"


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    assert target_of(tmp_path / "agent.db").path == str(tmp_path / "agent.db")


def test_a_given_pool_needs_no_url_and_is_not_listened_on() -> None:
    options = Options(pool=object())
    assert options.target() == Target(engine="postgresql")
    assert options.listen_target() is None


def test_listening_goes_around_a_pooler_only_with_its_own_url() -> None:
    direct, pooled = "postgresql://db/agents", "postgresql://pooler/agents"
    assert Options(url=direct).listen_target() == parse(direct)
    assert Options(url=pooled, pooler=True).listen_target() is None
    assert Options(url=pooled, pooler=True, listen_url=direct).listen_target() == parse(direct)


@pytest.mark.parametrize(
    "options",
    [
        Options(url="a.db", pooler=True),
        Options(url="a.db", listen_url="postgresql://h/d"),
        Options(url="a.db", pool=object()),
        Options(url="a.db", pool_size=0),
        Options(url="a.db", acquire_ms=0),
        Options(url="a.db", statement_ms=-1),
        Options(url="a.db", durability="none"),  # pyright: ignore[reportArgumentType]  # what an untyped caller may pass
        Options(url="a.db", limits=Limits(json_depth=65)),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_opened(options: Options) -> None:
    with pytest.raises(InvalidArgument):
        options.target()
