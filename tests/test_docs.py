"""The documentation is true: its programs run, its links lead somewhere, and its names and tables are those of the code."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import lash_store
from bench.wake import RESULTS, tables
from lash_store import errors
from lash_store.db.shape import shipped_shape
from lash_store.errors import StoreError
from lash_store.testing import all_laws, law_name

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"
README = PROJECT / "README.md"
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.rglob("*.md"), *(PROJECT / "examples").glob("*.md")])
README_LINES_MAX = 150
EXAMPLE_LINES_MAX = 20
RUNTIME_EXTRAS = ("postgres", "s3", "cron")
PROGRAM_SECONDS = 60

FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
LANGUAGES = {"python", "python postgres"}  # another one would be a block that nobody runs
EXAMPLE_URL = "postgresql://user:secret@host/agents"


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


# --- programs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages_with("python"))
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    run(program(page, "python"), tmp_path)


@pytest.mark.parametrize("page", pages_with("python postgres"))
def test_the_postgresql_programs_of_a_page_run(page: Path, tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    code = program(page, "python postgres")
    assert EXAMPLE_URL in code
    run(code.replace(f'"{EXAMPLE_URL}"', f"{pg_url!r}, schema={pg_schema!r}"), tmp_path)


@pytest.mark.parametrize("page", [README, DOCS / "quickstart.md"], ids=name_of)
def test_the_same_program_runs_on_postgresql(page: Path, tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    # The application's own table goes into the test's schema, too.
    url = f"{pg_url}{'&' if '?' in pg_url else '?'}search_path={pg_schema}"
    code = program(page, "python").replace('"agent.db"', f"{url!r}, schema={pg_schema!r}")
    assert pg_schema in code
    run(code, tmp_path)


def test_every_block_has_a_language_that_is_run() -> None:
    strange = {(name_of(page), fence["language"]) for page in PAGES for fence in FENCE.finditer(page.read_text())}
    assert {(page, language) for page, language in strange if language not in LANGUAGES} == set()


def test_a_program_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("1 / 0", tmp_path)


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


# --- numbers --------------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_performance_page_are_those_that_were_measured() -> None:
    text = (DOCS / "performance.md").read_text()
    for table in tables(json.loads(RESULTS.read_text())).split("\n\n"):
        assert table in text
