"""Who is waiting for what, and how they are woken.

`hub` keeps the waiters of one store. `doorbell` wakes them across processes on SQLite, `listen` on PostgreSQL.
The rule for every waiter: subscribe, then check, then sleep. A slow look covers what no signal announces.
"""
