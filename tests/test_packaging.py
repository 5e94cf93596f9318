"""The wheel installs into an empty environment of every Python on this machine, and works there with and without extras."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
QUICKSTART = PROJECT / "docs" / "quickstart.md"
INSTALL_SECONDS = 240

ON_POSTGRES = """
import sys
from lash_store import Append, Commit, NodeDraft, Store

with Store.open(sys.argv[1], schema=sys.argv[2]) as store:
    turn = Commit(expected_revision=0, graph=Append([NodeDraft(body="hello")]), turn_id="t1")
    assert store.sessions.commit("s", turn).revision == store.sessions.commit("s", turn).revision == 1
"""

ABOUT = """
import json, sys, sysconfig
print(json.dumps([sys.executable, *sys.version_info[:4], bool(sysconfig.get_config_var("Py_GIL_DISABLED"))]))
"""


def pythons() -> dict[str, str]:
    """Every released CPython >= 3.11 on PATH and under pyenv: version -> program. Free-threaded builds are left out."""
    found: dict[str, str] = {}
    for candidate in candidates():
        try:
            said = subprocess.run(
                [candidate, "-c", ABOUT], capture_output=True, text=True, check=True, timeout=30, cwd="/"
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        program, major, minor, _, release, unlocked = json.loads(said)
        if (major, minor) >= (3, 11) and release == "final" and not unlocked:
            found.setdefault(f"{major}.{minor}", program)
    return dict(sorted(found.items()))


def candidates() -> Iterator[Path]:
    """Programs that may be a Python: by name on PATH, then pyenv's versions, then the one running the tests."""
    for name in ("python3", *(f"python3.{minor}" for minor in range(11, 20))):
        program = shutil.which(name, path=path_without_environment())
        if program:
            yield Path(program)
    yield from sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))
    yield Path(sys.executable)


def path_without_environment() -> str:
    """PATH without an activated virtual environment, whose packages would hide a missing dependency."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not (Path(folder).parent / "pyvenv.cfg").exists())


PYTHONS = pythons()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution, made from this tree."""
    return build(PROJECT, tmp_path_factory.mktemp("dist"))


def build(tree: Path, target: Path) -> tuple[Path, Path]:
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", target], cwd=tree)
    return next(target.glob("*.whl")), next(target.glob("*.tar.gz"))


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = contents(built[0])
    expected = {str(path.relative_to(PROJECT / "src")) for path in (PROJECT / "src").rglob("*") if is_source(path)}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"lash_store/py.typed", "lash_store/db/migrations/0001_sessions.sql"} <= expected


def test_the_source_distribution_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    again, _ = build(next(tmp_path.iterdir()), tmp_path / "dist")
    assert contents(again) == contents(built[0])


@pytest.mark.parametrize("version", PYTHONS)
def test_every_part_runs_in_an_empty_environment(
    version: str, built: tuple[Path, Path], tmp_path: Path, pg_url: str, pg_schema: str
) -> None:
    run([PYTHONS[version], "-m", "venv", tmp_path / "venv"], cwd=tmp_path)
    programs = tmp_path / "venv" / "bin"
    python, command = programs / "python", programs / "lash-store"

    install(python, str(built[0]), cwd=tmp_path)
    (tmp_path / "quickstart.py").write_text(quickstart_code())
    run([python, "-W", "error", "quickstart.py"], cwd=tmp_path)
    assert "lash-store[cli]" in run([command, "doctor"], cwd=tmp_path, code=2)

    install(python, f"{built[0]}[cli]", cwd=tmp_path)
    assert "27 of 27" in run([command, "demo", "--fast"], cwd=tmp_path)

    install(python, f"{built[0]}[postgres]", cwd=tmp_path)
    run([python, "-W", "error", "-c", ON_POSTGRES, pg_url, pg_schema], cwd=tmp_path)


def test_the_source_distribution_can_be_installed(built: tuple[Path, Path], tmp_path: Path) -> None:
    run([next(iter(PYTHONS.values())), "-m", "venv", tmp_path / "venv"], cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    install(python, str(built[1]), cwd=tmp_path)
    run([python, "-W", "error", "-c", "import lash_store; lash_store.Store.open('sqlite://:memory:').close()"], cwd=tmp_path)


def install(python: Path, what: str, *, cwd: Path) -> None:
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what], cwd=cwd)
    run([python, "-m", "pip", "check"], cwd=cwd)


def quickstart_code() -> str:
    """The ```python blocks of docs/quickstart.md in their order, as one program.

    A block that needs an extra is fenced as ```python postgres (any second word) and is not run here.
    """
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", QUICKSTART.read_text(), flags=re.MULTILINE | re.DOTALL))


def is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def run(command: list[str | Path], *, cwd: Path, code: int = 0) -> str:
    """Run a command outside our own environment: what it said, which is also a failure's text."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "LASH_STORE"))}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    assert done.returncode == code, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
