"""The demo keeps its own claims, and says so when one does not hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import demo

PROJECT = Path(__file__).resolve().parents[1]
DEMO_SECONDS = 60  # about 5 on an idle machine


def test_every_claim_of_the_demo_holds() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LASH_STORE")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tools.demo"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "FAILED" not in done.stdout
    assert done.stdout.count("was ended by signal 9") == 3


def test_a_file_that_lost_a_row_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lossy(database: str) -> Any:
        found = demo.run(demo.Stage(database), "rows")
        return found | {"texts": found["texts"][:-1]}

    monkeypatch.setattr(demo, "raw", lossy)
    monkeypatch.setattr(demo, "RACES", 1)
    assert demo.play(str(tmp_path / "agent.db")) == 1
    assert "DOES NOT HOLD: the raw rows are these texts and the branch, no more" in capsys.readouterr().out
