"""The documentation is true: its programs run, its links lead somewhere, and its names and tables are those of the code."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import secrets
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import click
import pytest

import lash_store
from lash_store import errors
from lash_store.cli.app import cli
from lash_store.db.shape import shipped_shape
from lash_store.errors import StoreError
from lash_store.testing import all_laws, law_name

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
README = PROJECT / "README.md"
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.rglob("*.md"), *(PROJECT / "examples").glob("*.md")])
README_LINES_MAX = 150
EXAMPLE_LINES_MAX = 20
RUNTIME_EXTRAS = ("postgres", "s3", "cron", "cli")
PROGRAM_SECONDS = 180  # a hang, on the busiest machine; one page runs every law

FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
LANGUAGES = {"python", "python postgres", "sql", "shell"}  # another one would be a block that nobody runs
EXAMPLE_URL = "postgresql://user:secret@host/agents"
SHELL_PAGES = [DOCS / "operate" / "README.md", DOCS / "operate" / "backups-and-upgrades.md", DOCS / "howto" / "retention.md"]
ROLES_PAGE = DOCS / "howto" / "least-privilege.md"  # the one page with SQL of its own, and roles


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def program(page: Path, language: str) -> str:
    """The blocks of one language in their order, as one program."""
    return "\n".join(fence["code"] for fence in FENCE.finditer(page.read_text()) if fence["language"] == language)


def pages_with(language: str) -> list[Any]:
    return [pytest.param(page, id=name_of(page)) for page in PAGES if program(page, language)]


def run(code: str, folder: Path) -> None:
    """Run a program in a folder of its own; warnings are errors."""
    (folder / "program.py").write_text(code)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LASH_STORE")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr  # of a thread, or logged by a hook


# --- programs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [param for param in pages_with("python") if param.values[0] not in SHELL_PAGES])
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    run(program(page, "python"), tmp_path)


@pytest.mark.parametrize("page", [param for param in pages_with("python postgres") if param.values[0] != ROLES_PAGE])
def test_the_postgresql_programs_of_a_page_run(page: Path, tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    code = program(page, "python postgres")
    assert EXAMPLE_URL in code
    opened = re.sub(rf'open\(\s*"{re.escape(EXAMPLE_URL)}"', lambda _: f"open({pg_url!r}, schema={pg_schema!r}", code)
    run(opened.replace(f'"{EXAMPLE_URL}"', repr(pg_url)), tmp_path)


def test_the_roles_of_the_page_about_them_can_do_what_it_says(
    tmp_path: Path, pg_url: str, pg_tcp_url: str, pg_schema: str
) -> None:
    roles = {role: f"{role}_{secrets.token_hex(4)}" for role in ("agent_owner", "agent_app", "agent_view")}
    sql, code = program(ROLES_PAGE, "sql"), program(ROLES_PAGE, "python postgres")
    passwords = dict(re.findall(r"CREATE ROLE (\w+) +LOGIN PASSWORD '([^']+)'", sql))
    assert passwords.keys() == roles.keys()
    for role, name in roles.items():
        url = f"postgresql://{name}:{quote(passwords[role])}@{pg_tcp_url.partition('@')[2]}"
        code = code.replace(f'"postgresql://{role}@host/agents"', repr(url))
        sql = sql.replace(role, name)
    code = re.sub(r"Store\.open\((\w+)", rf"Store.open(\1, schema={pg_schema!r}", code)
    try:
        asyncio.run(administer(pg_url, sql.replace("lash_store", pg_schema)))
        run(code.replace("TABLE lash_store.", f"TABLE {pg_schema}."), tmp_path)
    finally:
        for name in reversed(roles.values()):  # one by one: PostgreSQL trips over default privileges of several at once
            asyncio.run(administer(pg_url, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}"))


async def administer(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@pytest.mark.parametrize("page", [README, DOCS / "quickstart.md"], ids=name_of)
def test_the_same_program_runs_on_postgresql(page: Path, tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    # The application's own table goes into the test's schema, too.
    url = f"{pg_url}{'&' if '?' in pg_url else '?'}search_path={pg_schema}"
    code = re.sub(r'"(agent|hello)\.db"', lambda _: f"{url!r}, schema={pg_schema!r}", program(page, "python"))
    assert pg_schema in code
    run(code, tmp_path)


def test_every_block_has_a_language_that_is_run() -> None:
    strange = {(name_of(page), fence["language"]) for page in PAGES for fence in FENCE.finditer(page.read_text())}
    assert {(page, language) for page, language in strange if language not in LANGUAGES} == set()
    assert {page for page, language in strange if language == "sql"} == {name_of(ROLES_PAGE)}


def test_a_program_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("1 / 0", tmp_path)


# --- commands -------------------------------------------------------------------------------------------------------------

COMMAND = re.compile(r"^(?: {4}|\$ |)(?P<line>lash-store .+)$", re.MULTILINE)
INLINE = re.compile(r"`(?P<line>lash-store [^`]+)`")
PLACEHOLDER = re.compile(r"[A-Z_]+|…|\.\.\.|\[|<")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_on_a_page_has_its_verbs_and_options(page: Path) -> None:
    for line in commands_in(page):
        check_command(line)


def test_some_page_shows_the_command_line() -> None:
    assert any(list(commands_in(page)) for page in PAGES)


@pytest.mark.parametrize("page", SHELL_PAGES, ids=name_of)
def test_the_commands_of_a_page_run_after_its_program(page: Path, tmp_path: Path) -> None:
    run(program(page, "python"), tmp_path)
    for line in filter(None, program(page, "shell").splitlines()):
        words = shlex.split(line, comments=True)
        assert words[0] == "lash-store"
        command = [sys.executable, "-m", "lash_store", *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
        assert done.returncode == 0, line + done.stdout + done.stderr


@pytest.mark.parametrize("line", ["lash-store session lits", "lash-store gc --frobnicate", "lash-store sesion list"])
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError, match="no such"):
        check_command(line)


def commands_in(page: Path) -> Iterator[str]:
    """Every call of the program that a page shows: in blocks, and in the middle of a sentence."""
    text = page.read_text()
    shown = "\n".join(fence["code"] for fence in FENCE.finditer(text) if fence["language"] == "shell")
    prose = FENCE.sub("", text)
    indented = "\n".join(line for line in prose.splitlines() if line.startswith("    "))
    for found in [*COMMAND.finditer(shown), *COMMAND.finditer(indented), *INLINE.finditer(prose)]:
        yield found["line"]


def check_command(line: str) -> None:
    """The words up to the first pipe name verbs, options that those know, and the options' values."""
    words = shlex.split(re.split(r" (?:\||>|&&|;)", line)[0], comments=True)[1:]
    command: click.Command = cli
    known = options_of(command)
    while words:
        word = words.pop(0)
        if word.startswith("-") and word != "-":
            name, value, _ = word.partition("=")
            assert name in known, f"no such option in {line!r}: {name!r} of {command.name}"
            if known[name] and not value and words:
                words.pop(0)
        elif isinstance(command, click.Group) and not PLACEHOLDER.match(word):
            assert word in command.commands, f"no such verb in {line!r}: {word!r} of {command.name}"
            command = command.commands[word]
            known |= options_of(command)


def options_of(command: click.Command) -> dict[str, bool]:
    """The names of a command's options, each with whether it takes a value."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    named = {name: not option.is_flag for option in options for name in [*option.opts, *option.secondary_opts]}
    return {"--help": False, "-h": False, "--version": False, **named}


# --- form -----------------------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_names_both_commands() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= README_LINES_MAX
    example = FENCE.search(text)
    assert example is not None
    assert len([line for line in example["code"].splitlines() if line.strip()]) <= EXAMPLE_LINES_MAX
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link["target"] for link in LINK.finditer(FENCE.sub("", page.read_text()))]
    missing = [target for target in targets if not target.startswith("https://") and not leads(page, target)]
    assert missing == []


def leads(page: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    found = (page.parent / file).resolve() if file else page
    return found.exists() and (not anchor or anchor in anchors(found))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [README]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [(page.parent / link["target"].partition("#")[0]).resolve() for link in LINK.finditer(page.read_text())]
    assert {name_of(page) for page in PAGES} - {name_of(page) for page in reached if page.is_relative_to(PROJECT)} == set()


# --- names ----------------------------------------------------------------------------------------------------------------


def test_the_guarantees_name_laws_and_tests_that_exist() -> None:
    text = (DOCS / "guarantees.md").read_text()
    known = {law_name(law) for law in all_laws()}
    nouns = "|".join({name.partition(".")[0] for name in known})
    laws = re.findall(rf"`((?:{nouns})\.\w+)`", text)
    tests = re.findall(r"`(tests/\w+\.py)::(\w+)`", text)
    assert set(laws) <= known
    assert [(file, test) for file, test in tests if test not in functions_of(PROJECT / file)] == []
    assert len(laws) > 50


def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_guarantee_names_what_shows_it() -> None:
    sections = re.split(r"^## ", (DOCS / "guarantees.md").read_text(), flags=re.MULTILINE)[1:]
    promises = [section for section in sections if not section.startswith("Not promised")]
    assert len(promises) >= 12
    for promise in promises:
        assert re.search(r"^\*\*", promise, re.MULTILINE), f"no sentence in bold: {promise[:40]}"
        assert re.search(r"^\* ", promise, re.MULTILINE), f"nothing that shows it: {promise[:40]}"


def test_every_name_of_ours_in_the_table_of_names_exists() -> None:
    cells = [row[2] for row in table_rows((DOCS / "names.md").read_text())]
    names = [name for cell in cells for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)*)`", cell)]
    assert [name for name in names if not resolves(name)] == []
    assert len(names) > 80


def table_rows(text: str) -> list[list[str]]:
    """The rows of all tables, without heads and rules; cells stripped, an empty one first."""
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row, following in zip(rows, [*rows[1:], [""]], strict=True) if not is_rule(row) and not is_rule(following)]


def is_rule(row: list[str]) -> bool:
    return len(row) > 1 and set("".join(row)) == {"-"}


def resolves(name: str) -> bool:
    """`store.noun.verb`, `store.verb`, `Type`, `Type.field` or `Type.method`, in both colours."""
    first, *rest = name.split(".")
    if first == "store":
        return all(facade_has(colour, rest) for colour in ("", "Async"))
    value = getattr(lash_store, first, None)
    return value is not None and all(hasattr(value, part) for part in rest)


def facade_has(colour: str, path: list[str]) -> bool:
    store = getattr(lash_store, f"{colour}Store")
    if len(path) == 1:
        return hasattr(store, path[0])
    noun, verb = path
    folder = "lash_store.store" if colour else "lash_store.store._sync"
    facade = getattr(sys.modules[f"{folder}.{noun}"], f"{colour}{noun.capitalize()}")
    return hasattr(facade, verb)


def test_the_quickstart_lists_every_argument_of_open() -> None:
    given = {name for store in (lash_store.Store, lash_store.AsyncStore) for name in inspect.signature(store.open).parameters}
    cells = [row[1] for row in table_rows((DOCS / "quickstart.md").read_text())]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert given == listed


def test_every_error_is_documented_with_its_fields() -> None:
    rows = {row[1].strip("`"): row[3] for row in table_rows((DOCS / "errors.md").read_text()) if len(row) > 4}
    known = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, StoreError)}
    branches = {"StoreError", "Refused", "Unavailable"}
    assert known.keys() - branches <= rows.keys()
    for name in known.keys() - branches:
        fields = set(re.findall(r"`(\w+)`", rows[name]))
        assert set(inspect.get_annotations(known[name])) <= fields, name


def test_the_tables_of_the_schema_page_are_those_of_the_migrations() -> None:
    shape = shipped_shape()
    expected = {
        table: [(name, column.type, column.required) for (owner, name), column in shape.columns.items() if owner == table]
        for table in shape.primary_keys
    }
    assert {table: columns_in(text) for table, text in schema_sections().items()} == expected


def test_the_keys_and_indexes_of_the_schema_page_are_those_of_the_migrations() -> None:
    shape = shipped_shape()
    keys = {table: re.findall(r"^Primary key `([^`]+)`", text, re.MULTILINE) for table, text in schema_sections().items()}
    assert keys == {table: [", ".join(columns)] for table, columns in shape.primary_keys.items()}
    for table, text in schema_sections().items():
        assert set(re.findall(r"`(lash_\w+)`", text)) - {"lash_now_ms"} == {
            name for owner, name in shape.indexes if owner == table
        }


def schema_sections() -> dict[str, str]:
    sections = re.split(r"^## ", (DOCS / "schema.md").read_text(), flags=re.MULTILINE)[1:]
    return {section.partition("\n")[0]: section for section in sections}


def columns_in(section: str) -> list[tuple[str, str, bool]]:
    types = {"key": "key", "text": "text", "int": "bigint", "bytes": "bytea"}
    return [(row[1].strip("`"), types[row[2]], row[3] != "null") for row in table_rows(section)]


def test_every_runtime_dependency_has_its_line_among_the_decisions() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(each for extra in RUNTIME_EXTRAS for each in project["optional-dependencies"][extra])]
    listed = (DOCS / "decisions" / "README.md").read_text()
    for requirement in needed:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None
        assert f"| `{name[0]}` |" in listed


def test_the_developers_extra_holds_the_others() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    others = {requirement for extra, requirements in extras.items() if extra != "dev" for requirement in requirements}
    assert others - set(extras["dev"]) == set()
