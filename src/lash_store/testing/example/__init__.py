"""Backends that are not ours and keep every law, to read and copy: a store on Python's `sqlite3`, and a dictionary of bytes."""

from lash_store.testing.example.engine import Shelf
from lash_store.testing.example.shelf_bytes import ShelfBytes

__all__ = ["Shelf", "ShelfBytes"]
