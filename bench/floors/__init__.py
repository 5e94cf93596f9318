"""Floors: what the database does at best for the same rows and bytes, with nothing asked, checked or decided."""
