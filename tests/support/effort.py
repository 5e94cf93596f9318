"""How much a test does: a little in every run, a lot in `make faults`."""

from __future__ import annotations

import os

FAULTS_VARIABLE = "LASH_STORE_FAULTS"


def effort(*, test: int, faults: int) -> int:
    """The number for this run. A test that asks carries the mark `faults`, so that `make faults` finds it."""
    return faults if is_large() else test


def is_large() -> bool:
    """Whether this is a run of `make faults`."""
    return os.environ.get(FAULTS_VARIABLE) == "1"
