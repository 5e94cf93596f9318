"""The examples keep their own claims, and say so when one does not hold."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EXAMPLE_SECONDS = 90  # about 3 on an idle machine


def test_the_background_agent_is_woken_hands_over_and_works_by_the_clock(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LASH_STORE")}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "background_agent.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=EXAMPLE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "FAILED" not in done.stdout
    assert "17 of 17 claims hold" in done.stdout


def test_an_agent_whose_worker_finds_something_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("background_agent")
    monkeypatch.setattr(example, "summary_of", lambda question: "something else")  # pyright: ignore[reportUnknownLambdaType]
    assert example.play(str(tmp_path / "agent.db")) == 1
    assert "FAILED  the process ended with what the worker found" in capsys.readouterr().out


def load(name: str) -> ModuleType:
    """An example as a module; its worker is still started from the file, as it is."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
