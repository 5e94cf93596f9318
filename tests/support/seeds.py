"""Where randomness begins: one seed for a run, printed with how to use it again.

`make test` always begins with the same one, so that the same tree gets the same verdict and a red run belongs to the change it
is run for. Looking for what no history has met yet is the work of `make faults`, which begins anew every time.
"""

from __future__ import annotations

import os
import random

from tests.support.effort import is_large

SEED_VARIABLE = "LASH_STORE_SEED"  # a number, or `new`
USUAL_SEED = 1
NEW = "new"


def seed_of_run() -> int:
    """The seed that was asked for; else a new one in `make faults`, and the usual one everywhere else."""
    given = os.environ.get(SEED_VARIABLE) or (NEW if is_large() else str(USUAL_SEED))
    seed = random.SystemRandom().randrange(2**32) if given == NEW else int(given)
    print(f"seed {seed}; again with: {again(seed)}")  # pytest shows it when the test fails
    return seed


def again(seed: int) -> str:
    """The command that repeats this test."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return f"{SEED_VARIABLE}={seed} make {'faults' if is_large() else 'test'} ARGS=\"'{test}'\""
