"""The conformance kit: every promise of the store as a law that runs on any backend.

@pytest.mark.parametrize("law", laws_for())
def test_law(law, tmp_path):
    keep(law, SqliteBackend(tmp_path / "store.db"))
"""

from lash_store.testing.backend import Backend
from lash_store.testing.engines import PostgresBackend, SqliteBackend
from lash_store.testing.runner import Law, all_laws, keep, law_called, law_name, laws_for

__all__ = ["Backend", "Law", "PostgresBackend", "SqliteBackend", "all_laws", "keep", "law_called", "law_name", "laws_for"]
