"""Run every law on the two examples: `python -m lash_store.testing.example [NOUN …]`. Ends with 1 when one is not kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lash_store.testing.example import Shelf, ShelfBytes
from lash_store.testing.own import OwnBackend, OwnBytes
from lash_store.testing.runner import all_laws, byte_laws, law_name, run_laws


def shelf_backend() -> OwnBackend:
    """A fresh shelf, with every door a law can ask for."""
    shelf = Shelf()
    return OwnBackend(
        shelf.open,
        engine="shelf",
        advance=shelf.advance,
        raw=shelf.raw,
        table="lash_{}".format,
        close=shelf.close,
        lacks={"maintenance.backup": "it lives in memory and makes no files"},
    )


def shelf_bytes() -> OwnBytes:
    """An empty dictionary of bytes."""
    shelf: dict[str, bytes] = {}
    return OwnBytes(lambda: ShelfBytes(shelf), damage=shelf.__setitem__)


def main(nouns: Sequence[str]) -> int:
    """The exit code."""
    chosen = [law for law in all_laws() if not nouns or law_name(law).partition(".")[0] in nouns]
    reports = [run_laws(shelf_backend, chosen)] if chosen else []
    if not nouns or "byte_stores" in nouns:
        reports.append(run_laws(shelf_bytes, byte_laws()))
    return max((report.exit_code for report in reports), default=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
