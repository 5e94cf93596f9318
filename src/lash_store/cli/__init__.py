"""The command line, `lash-store`. It needs the extra `[cli]`, and says so where that is missing."""

from __future__ import annotations

import os
import sys

NEEDED = ("click", "rich")


def main() -> int:
    """Run the program with the arguments it was given. Its exit code."""
    try:
        from lash_store.cli.failures import run

        return run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write("lash-store needs its command-line extra: pip install 'lash-store[cli]'\n")
        return 2
    except KeyboardInterrupt:  # while the modules were still loading
        if os.environ.get("LASH_STORE_TRACEBACK"):
            raise
        return 130
