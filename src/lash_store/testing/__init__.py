"""The conformance kit: every promise of the store as a law that runs on any backend.

    @pytest.mark.parametrize("law", laws_for())
    def test_law(law, tmp_path):
        keep(law, SqliteBackend(tmp_path / "store.db"))

A backend of your own is a factory that returns a store: `OwnBackend`; a byte store likewise: `OwnBytes`, with the laws of
`byte_laws()`. Without pytest, `run_laws` runs them all and prints what is not kept. `lash_store.testing.example` is a backend
that is not one of ours and keeps every law: `python -m lash_store.testing.example`.
"""

from lash_store.testing.backend import Backend, ByteBackend
from lash_store.testing.engines import PostgresBackend, SqliteBackend
from lash_store.testing.lacking import Lacking, NotJudged
from lash_store.testing.own import OwnBackend, OwnBytes
from lash_store.testing.runner import (
    ByteLaw,
    Law,
    Report,
    Verdict,
    all_laws,
    byte_laws,
    judge,
    keep,
    law_called,
    law_name,
    laws_for,
    run_laws,
)

__all__ = [
    "Backend",
    "ByteBackend",
    "ByteLaw",
    "Lacking",
    "Law",
    "NotJudged",
    "OwnBackend",
    "OwnBytes",
    "PostgresBackend",
    "Report",
    "SqliteBackend",
    "Verdict",
    "all_laws",
    "byte_laws",
    "judge",
    "keep",
    "law_called",
    "law_name",
    "laws_for",
    "run_laws",
]
