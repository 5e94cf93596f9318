"""The environments of the peers, one each under .venv-bench, made when they are first needed.

A peer is one file in bench/peers with four constants, read here without importing it: NAME, REQUIREMENTS, VARIANTS, SEMANTICS.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.child import PROJECT, Member

HOME = PROJECT / ".venv-bench"
PEERS = Path(__file__).resolve().parent / "peers"
INSTALL_S = 600


@dataclass(frozen=True)
class Peer:
    """What a peer's file says about it."""

    module: str
    name: str
    requirements: tuple[str, ...]
    variants: dict[str, Any]
    semantics: dict[str, str]

    @property
    def python(self) -> Path:
        return HOME / self.module / "bin" / "python"

    def members(self) -> list[Member]:
        """Its variants as those who are measured."""
        return [
            Member(
                name=name,
                engine=variant["engine"],
                module=f"bench.peers.{self.module}",
                role=variant["role"],
                python=str(self.python),
                arguments=tuple(variant["arguments"]),
                semantics=self.semantics,
            )
            for name, variant in self.variants.items()
        ]


def peers() -> list[Peer]:
    """Every file of bench/peers."""
    return [read(path) for path in sorted(PEERS.glob("*.py")) if path.name != "__init__.py"]


def read(path: Path) -> Peer:
    """The constants of one file."""
    found: dict[str, Any] = {}
    for line in ast.parse(path.read_text()).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and line.targets[0].id.isupper():
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                continue
    return Peer(path.stem, found["NAME"], found["REQUIREMENTS"], found["VARIANTS"], found["SEMANTICS"])


def ready(peer: Peer) -> str | None:
    """Make its environment if need be; the reason if it cannot be had."""
    stamp = HOME / peer.module / "installed.json"
    if stamp.exists() and json.loads(stamp.read_text()) == list(peer.requirements):
        return None
    print(f"installing {peer.name} into {stamp.parent.relative_to(PROJECT)} …", file=sys.stderr, flush=True)
    folder = HOME / peer.module
    try:
        for command in commands(folder, peer.requirements):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"it could not be installed: {said.strip().splitlines()[-1][:200]}"
    stamp.write_text(json.dumps(list(peer.requirements)))
    return None


def commands(folder: Path, requirements: Sequence[str]) -> list[list[str]]:
    """With uv when it is there."""
    python = str(folder / "bin" / "python")
    if shutil.which("uv"):
        return [
            ["uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
            ["uv", "pip", "install", "--quiet", "--python", python, *requirements],
        ]
    return [
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
    ]
