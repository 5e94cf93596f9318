"""The engines: they run what operations yield. `dialect` spells the SQL, `sqlite` and `postgres` execute it."""
