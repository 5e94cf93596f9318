"""The laws, one file per noun. A law is `async def law(backend)`; its name is the promise, its docstring the rule.

Those of `byte_stores` are about a place for bytes, all others about a store.
"""

from lash_store.testing.laws import (
    artifacts,
    attachments,
    byte_stores,
    checkpoints,
    claims,
    commits,
    corruption,
    costs,
    events,
    frames,
    grants,
    graph,
    history,
    leases,
    maintenance,
    processes,
    queue,
    sessions,
    signals,
    transactions,
    usage,
    values,
    waiting,
    waits,
    wakes,
)

__all__ = ["MODULES", "byte_stores"]

MODULES = (
    sessions,
    commits,
    history,
    graph,
    checkpoints,
    frames,
    usage,
    queue,
    claims,
    processes,
    events,
    wakes,
    signals,
    waits,
    leases,
    grants,
    attachments,
    artifacts,
    maintenance,
    corruption,
    values,
    costs,
    transactions,
    waiting,
)
