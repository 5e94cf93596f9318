"""The laws, one file per noun. A law is `async def law(backend)`; its name is the promise, its docstring the rule."""

from lash_store.testing.laws import (
    attachments,
    checkpoints,
    claims,
    commits,
    corruption,
    costs,
    frames,
    graph,
    history,
    maintenance,
    queue,
    sessions,
    transactions,
    usage,
    values,
    waiting,
)

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
    attachments,
    maintenance,
    corruption,
    values,
    costs,
    transactions,
    waiting,
)
