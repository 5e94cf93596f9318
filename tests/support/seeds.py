"""Where randomness begins. A failure prints the seed and how to use it again."""

from __future__ import annotations

import os
import secrets

SEED_VARIABLE = "LASH_STORE_TEST_SEED"


def fresh_seed() -> str:
    """The seed given for this run, or a new one; pytest shows the printed line when the test fails."""
    seed = os.environ.get(SEED_VARIABLE) or secrets.token_hex(4)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    print(f"seed {seed}; again with: {SEED_VARIABLE}={seed} make test ARGS='{test}'")
    return seed
