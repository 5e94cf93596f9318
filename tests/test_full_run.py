"""A full run includes PostgreSQL and skips nothing, or it fails: shown on small projects with the same conftest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.binaries import BIN_VARIABLE
from tests.support.postgres import RUN_VARIABLE, URL_VARIABLE

PROJECT = Path(__file__).resolve().parents[1]
PLAIN = "def test_plain(): pass\n"
POSTGRES = "def test_engine(request): assert request.getfixturevalue('pg_schema')\n"
SKIPPED = "import pytest\n@pytest.mark.skip\ndef test_later(): pass\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project with our conftest."""
    shutil.copytree(PROJECT / "tests" / "support", tmp_path / "tests" / "support")
    for name in ("pyproject.toml", "tests/conftest.py", "tests/__init__.py"):
        shutil.copy(PROJECT / name, tmp_path / name)
    return tmp_path


def test_a_full_run_without_postgresql_tests_fails(project: Path) -> None:
    status, said = run(project, PLAIN)
    assert (status, "no PostgreSQL test ran" in said) == (1, True), said


def test_a_full_run_with_a_skipped_test_fails(project: Path, pg_url: str) -> None:
    status, said = run(project, POSTGRES + SKIPPED, url=pg_url)
    assert (status, "no test may be: tests/test_it.py::test_later" in said) == (1, True), said


def test_a_chosen_file_may_be_without_postgresql(project: Path) -> None:
    status, said = run(project, PLAIN, "tests/test_it.py")
    assert status == 0, said


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_a_test_that_asks_late_is_counted(project: Path, pg_url: str, options: tuple[str, ...]) -> None:
    status, said = run(project, PLAIN + POSTGRES, *options, url=pg_url)
    assert (status, f"({URL_VARIABLE}): 1 tests" in said) == (0, True), said


def test_without_a_server_the_tests_fail_and_say_what_to_do(project: Path) -> None:
    status, said = run(project, PLAIN + POSTGRES, "-n", "2")
    assert (status, "PostgreSQL tests are never skipped" in said, "1 failed, 1 passed" in said) == (1, True, True), said


def run(project: Path, tests: str, *options: str, url: str = "") -> tuple[int, str]:
    """Run pytest on a project with these tests; without `url` there is no PostgreSQL to be had."""
    (project / "tests" / "test_it.py").write_text(tests)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", RUN_VARIABLE))}
    environment = inherited | {URL_VARIABLE: url, BIN_VARIABLE: "" if url else "/nonexistent"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr
