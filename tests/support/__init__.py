"""What the tests stand on: a real PostgreSQL, and nothing that decides an outcome."""
