"""Laws of artifacts: refs bound to their bytes, three namespaces, environments that go when nothing names them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from lash_store.encode import stable_hash
from lash_store.errors import Corrupt, InvalidArgument, LimitExceeded, NotFound, ReplayConflict, StoreError, Unstorable
from lash_store.model.artifact import ArtifactRef, Namespace
from lash_store.model.limits import MIB, Limits
from lash_store.testing.backend import Backend
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, of_type, outcomes, refused, stored, watched

if TYPE_CHECKING:
    from lash_store import AsyncStore

MODULE, RAW, ENV = Namespace.MODULE, Namespace.RAW, Namespace.PROCESS_ENV
SEMANTIC = "lashlang:v1:sha256:" + "ab" * 32


async def bytes_come_back_from_another_handle(backend: Backend) -> None:
    """Content, length, descriptor and times round-trip in every namespace, also empty and large, also after a reopen."""
    store = await backend.open()
    for namespace in Namespace:
        for name, data in {"empty": b"", "all": bytes(range(256)), "large": b"0123456789abcdef" * (2 * MIB // 16)}.items():
            ref = await store.artifacts.put(namespace, data, ref=name, descriptor=f"a {name} one")
            assert ref == ArtifactRef(namespace=namespace, ref=name, byte_len=len(data))
            other = await backend.open()
            assert await other.artifacts.get(namespace, name) == data
            entry = await other.artifacts.entry(namespace.value, name)
            assert (entry.ref, entry.descriptor) == (ref, f"a {name} one")
            assert 0 < entry.created_ms <= entry.updated_ms
            await other.close()


async def a_ref_is_minted_from_its_bytes(backend: Backend) -> None:
    """Without a ref, modules and environments are named by their sha256; raw bytes need a name."""
    store = await backend.open()
    digest = hashlib.sha256(b"code").hexdigest()
    for namespace, prefix in ((MODULE, "module"), (ENV, "process-env")):
        ref = await store.artifacts.put(namespace, b"code")
        assert ref.ref == f"{prefix}:sha256:{digest}"
        assert await store.artifacts.put(namespace, bytearray(b"code")) == ref
        assert await store.artifacts.get(namespace, ref.ref) == b"code"
    with refused(InvalidArgument, argument="ref"):
        await store.artifacts.put(RAW, b"code")


async def namespaces_never_meet(backend: Backend) -> None:
    """One ref is a different artifact in each namespace, and deleting one leaves the others."""
    store = await backend.open()
    for namespace in Namespace:
        with refused(NotFound, kind="artifact", id="same"):
            await store.artifacts.get(namespace, "same")
        await store.artifacts.put(namespace, namespace.value.encode(), ref="same")
    for namespace in Namespace:
        assert await store.artifacts.get(namespace, "same") == namespace.value.encode()
        assert [entry.ref.ref for entry in (await store.artifacts.list(namespace)).entries] == ["same"]
    assert await store.artifacts.delete(RAW, "same")
    assert await store.artifacts.get(MODULE, "same") == b"module"


async def a_bound_ref_refuses_other_bytes(backend: Backend) -> None:
    """Modules and environments keep their first bytes and descriptor; the refusal changes nothing."""
    store = await backend.open()
    for namespace in (MODULE, ENV):
        await store.artifacts.put(namespace, b"first", ref="r", descriptor="d")
        before = await stored(backend, "artifacts")
        with refused(ReplayConflict, kind="artifact", key="r", owner=namespace.value):
            await store.artifacts.put(namespace, b"other", ref="r")
        assert await stored(backend, "artifacts") == before
        await store.artifacts.put(namespace, b"first", ref="r", descriptor="another")
        assert (await store.artifacts.entry(namespace, "r")).descriptor == "d"


async def one_of_many_writers_binds_a_ref(backend: Backend) -> None:
    """Of several contents put under one ref at once, one stays and all others are told."""
    handles = [await backend.open() for _ in range(2)]
    calls = [handles[n % 2].artifacts.put(MODULE, b"%d" % (n % 4), ref="r") for n in range(12)]
    results = await outcomes(*calls)
    winner = int(await handles[0].artifacts.get(MODULE, "r"))
    assert len(of_type(results, ArtifactRef)) == 3
    for n, result in enumerate(results):
        assert isinstance(result, ArtifactRef if n % 4 == winner else ReplayConflict)


async def the_same_bytes_again_only_renew_the_age(backend: Backend) -> None:
    """A second put of the same bytes moves updated_ms, and nothing else."""
    store = await backend.open()
    await store.artifacts.put(MODULE, b"code", ref="r")
    first = await store.artifacts.entry(MODULE, "r")
    await backend.advance(HOUR_MS)
    await store.artifacts.put(MODULE, b"code", ref="r")
    again = await store.artifacts.entry(MODULE, "r")
    assert (again.ref, again.created_ms) == (first.ref, first.created_ms)
    assert again.updated_ms >= first.updated_ms + HOUR_MS


async def a_raw_ref_takes_new_bytes(backend: Backend) -> None:
    """Raw bytes are replaced with their descriptor; the ref may look like any hash."""
    store = await backend.open()
    ref = "raw:sha256:" + "0" * 64
    await store.artifacts.put(RAW, b"first", ref=ref, descriptor="one")
    await store.artifacts.put(RAW, b"second, longer", ref=ref, descriptor=None)
    assert await store.artifacts.get(RAW, ref) == b"second, longer"
    entry = await store.artifacts.entry(RAW, ref)
    assert (entry.ref.byte_len, entry.descriptor) == (14, None)


async def a_ref_may_not_state_another_sha256(backend: Backend) -> None:
    """An environment's ref that ends in a sha256, and a module's of the minted form, must state the one of the bytes."""
    store = await backend.open()
    wrong = hashlib.sha256(b"other").hexdigest()
    for namespace, ref in (
        (ENV, f"process-env:sha256:{wrong}"),
        (ENV, f"mine:sha256:{wrong}"),
        (MODULE, f"module:sha256:{wrong}"),
    ):
        with refused(InvalidArgument, argument="ref"):
            await store.artifacts.put(namespace, b"code", ref=ref)
    right = f"mine:sha256:{hashlib.sha256(b'code').hexdigest()}"
    assert (await store.artifacts.put(ENV, b"code", ref=right)).ref == right
    assert (await store.artifacts.put(MODULE, b"code", ref=SEMANTIC)).ref == SEMANTIC
    assert (await store.artifacts.put(ENV, b"code", ref=f"sha256:{wrong}:v2")).ref == f"sha256:{wrong}:v2"


async def a_callers_verification_decides(backend: Backend) -> None:
    """`verify` sees the ref and the bytes: false refuses a put and makes a get Corrupt; what it raises reaches the caller."""
    store = await backend.open()
    seen: list[tuple[str, bytes]] = []

    def verify(ref: str, data: bytes) -> bool:
        seen.append((ref, data))
        return data == b"code"

    def broken(ref: str, data: bytes) -> bool:
        raise ArithmeticError(ref)

    with refused(InvalidArgument, argument="ref"):
        await store.artifacts.put(MODULE, b"forged", ref=SEMANTIC, verify=verify)
    with refused(NotFound):
        await store.artifacts.get(MODULE, SEMANTIC, verify=verify)
    await store.artifacts.put(MODULE, b"code", ref=SEMANTIC, verify=verify)
    assert await store.artifacts.get(MODULE, SEMANTIC, verify=verify) == b"code"
    assert seen == [(SEMANTIC, b"forged"), (SEMANTIC, b"code"), (SEMANTIC, b"code")]
    await store.artifacts.put(MODULE, b"forged", ref="unchecked")
    with refused(Corrupt, table="artifacts", row="module/unchecked"):
        await store.artifacts.get(MODULE, "unchecked", verify=verify)
    with refused(ArithmeticError):
        await store.artifacts.get(MODULE, SEMANTIC, verify=broken)


async def what_cannot_be_stored_is_refused_before_it_is(backend: Backend) -> None:
    """Unknown namespaces, hostile refs, text instead of bytes and too many bytes change nothing."""
    store = await backend.open(limits=Limits(component_bytes=1000))
    put = store.artifacts.put
    anything: Any = store.artifacts
    attempts: list[tuple[type[StoreError], Callable[[], Awaitable[Any]]]] = [
        (InvalidArgument, lambda: put("session", b"x", ref="r")),
        (InvalidArgument, lambda: put("", b"x", ref="r")),
        (InvalidArgument, lambda: anything.put(None, b"x", ref="r")),
        (InvalidArgument, lambda: anything.get(["module"], "r")),
        (Unstorable, lambda: put(RAW, b"x", ref="")),
        (Unstorable, lambda: put(RAW, b"x", ref="a\x00b")),
        (Unstorable, lambda: put(RAW, b"x", ref="\ud800")),
        (LimitExceeded, lambda: put(RAW, b"x", ref="r" * 201)),
        (LimitExceeded, lambda: store.artifacts.get(RAW, "r" * 10**6)),
        (Unstorable, lambda: store.artifacts.delete(RAW, "a\nb")),
        (Unstorable, lambda: anything.put(RAW, "text", ref="r")),
        (Unstorable, lambda: anything.put(RAW, None, ref="r")),
        (Unstorable, lambda: anything.put(RAW, b"x", ref=7)),
        (Unstorable, lambda: anything.put(RAW, b"x", ref="r", descriptor=b"d")),
        (LimitExceeded, lambda: put(RAW, bytes(1001), ref="r")),
        (LimitExceeded, lambda: store.artifacts.list(RAW, limit=0)),
        (LimitExceeded, lambda: store.artifacts.collect(older_than_ms=-1)),
    ]
    for kind, attempt in attempts:
        with refused(kind):
            await attempt()
    assert (await stored(backend, "artifacts"))["artifacts"] == []
    await put(RAW, bytes(1000), ref="../../etc/passwd'; DROP TABLE x; --")


async def pages_follow_the_refs(backend: Backend) -> None:
    """A namespace is listed by ref, byte by byte, a page at a time, and without its neighbours."""
    store = await backend.open()
    refs = ["B", "a", "ab", "b", "é", "\U0001f600"]
    for ref in reversed(refs):
        await store.artifacts.put(RAW, ref.encode(), ref=ref)
        await store.artifacts.put(MODULE, b"", ref="m" + ref)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page = await store.artifacts.list(RAW, limit=2, cursor=cursor)
        seen += [entry.ref.ref for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert (seen, cursor) == (refs, None)


async def a_deleted_artifact_is_gone_and_may_come_back(backend: Backend) -> None:
    """Delete says whether there was one; afterwards the ref is free for other bytes."""
    store = await backend.open()
    await store.artifacts.put(MODULE, b"first", ref="r")
    assert await store.artifacts.delete(MODULE, "r")
    assert not await store.artifacts.delete(MODULE, "r")
    for call in (store.artifacts.get, store.artifacts.entry):
        with refused(NotFound, kind="artifact", id="r"):
            await call(MODULE, "r")
    await store.artifacts.put(MODULE, b"second", ref="r")
    assert await store.artifacts.get(MODULE, "r") == b"second"


async def damaged_rows_are_corrupt(backend: Backend) -> None:
    """Changed bytes, digest, length and a row moved under another ref are found, and named."""
    store = await backend.open()
    table = backend.table("artifacts")
    damages = {
        "data": f"UPDATE {table} SET data = $1 WHERE ref = 'data'",
        "digest": f"UPDATE {table} SET digest = $1 WHERE ref = 'digest'",
        "moved": f"UPDATE {table} SET ref = 'moved' WHERE ref = 'origin' AND digest <> $1",
        "space": f"UPDATE {table} SET namespace = 'module' WHERE ref = 'space' AND digest <> $1",
    }
    for ref in ("data", "digest", "origin", "space", "size"):
        await store.artifacts.put(RAW, b"bytes", ref=ref)
    for sql in damages.values():
        await backend.raw(sql, b"bytez")
    await backend.raw(f"UPDATE {table} SET size = 4 WHERE ref = 'size'")
    for ref in ("data", "digest", "moved", "size"):
        with refused(Corrupt, table="artifacts", row=f"raw/{ref}"):
            await store.artifacts.get(RAW, ref)
    with refused(Corrupt, row="module/space"):
        await store.artifacts.get(MODULE, "space")


async def an_environment_is_named_by_its_value(backend: Backend) -> None:
    """Equal specs have one ref whatever the order of their keys; the value comes back equal, also its oddities."""
    store = await backend.open()
    spec: dict[str, Any] = {
        "policy": {"model": "m", "max_turns": 3},
        "plugin_options": {"é": [1.5, None, True, 10**30], "z": "\ud800"},
    }
    turned = {"plugin_options": {"z": "\ud800", "é": [1.5, None, True, 10**30]}, "policy": {"max_turns": 3, "model": "m"}}
    ref = await store.artifacts.put_env(spec)
    assert ref == await store.artifacts.put_env(turned) == "process-env:sha256:" + stable_hash(spec)
    assert await store.artifacts.get_env(ref) == spec
    plain = await store.artifacts.put_env({"b": 1, "a": "é"})
    assert await store.artifacts.get(ENV, plain) == '{"a":"é","b":1}'.encode()
    assert await store.artifacts.get_env(await store.artifacts.put_env(None)) is None
    for hostile in (float("nan"), {1: 2}, {"a": (1,)}, object()):
        with refused(Unstorable):
            await store.artifacts.put_env(hostile)


async def an_environment_that_is_not_json_is_corrupt(backend: Backend) -> None:
    """get_env of bytes that somebody put by hand decodes them or says that they are no JSON."""
    store = await backend.open()
    for data in (b"", b"{", b"\xff\xfe", b"NaN", b'{"a":1}x'):
        ref = (await store.artifacts.put(ENV, data)).ref
        with refused(Corrupt, table="artifacts", row=f"process_env/{ref}"):
            await store.artifacts.get_env(ref)
    assert await store.artifacts.get_env((await store.artifacts.put(ENV, b'{"a": 1}')).ref) == {"a": 1}
    with refused(NotFound, kind="artifact"):
        await store.artifacts.get_env("process-env:sha256:" + "0" * 64)


# --- collecting -----------------------------------------------------------------------------------------------------------


async def environments_nothing_names_are_collected(backend: Backend) -> None:
    """Old environments without a process or a subscription go; named ones, young ones, modules and raw bytes stay."""
    store = await backend.open()
    refs = {name: await store.artifacts.put_env(name) for name in ("free", "run", "pruned", "watched", "renewed")}
    await store.artifacts.put(MODULE, b"code", ref=refs["free"] + "m")
    await store.artifacts.put(RAW, b"bytes", ref="raw")
    await _process(backend, "p1", refs["run"])
    await _process(backend, "p2", refs["pruned"], pruned_ms=1)
    await _subscription(backend, "s1", refs["watched"])
    await backend.advance(HOUR_MS)
    await store.artifacts.put_env("renewed")
    young = await store.artifacts.put_env("young")
    before = await stored(backend, "artifacts")
    planned = await store.artifacts.collect(older_than_ms=MINUTE_MS, dry_run=True)
    assert await stored(backend, "artifacts") == before
    assert (planned.removed, planned.removed_bytes, planned.complete) == (2, len(b'"free""pruned"'), True)
    assert await store.artifacts.collect(older_than_ms=MINUTE_MS) == planned
    assert await _envs(store) == sorted([refs["run"], refs["watched"], refs["renewed"], young])
    assert await store.artifacts.get(MODULE, refs["free"] + "m") == b"code"
    assert await store.artifacts.get(RAW, "raw") == b"bytes"
    assert (await store.artifacts.collect(older_than_ms=MINUTE_MS)).removed == 0
    with refused(NotFound, kind="artifact"):
        await store.artifacts.get_env(refs["free"])


async def a_ref_is_a_root_only_in_its_namespace_and_whole(backend: Backend) -> None:
    """A process that names another ref, or a part of one, holds nothing."""
    store = await backend.open()
    ref = await store.artifacts.put_env("env")
    await _process(backend, "p1", ref + "x")
    await _process(backend, "p2", ref[:-1])
    await _process(backend, "p3", ref.upper())
    await backend.advance(HOUR_MS)
    assert (await store.artifacts.collect(older_than_ms=MINUTE_MS)).removed == 1


async def a_collection_goes_on_past_what_it_keeps(backend: Backend) -> None:
    """More environments than a page, every third named: all others go, in one call."""
    store = await backend.open()
    refs = await asyncio.gather(*(store.artifacts.put_env(n) for n in range(240)))
    kept = sorted(refs[::3])
    for n, ref in enumerate(kept):
        await _process(backend, f"p{n}", ref)
    await backend.advance(HOUR_MS)
    report = await store.artifacts.collect(older_than_ms=MINUTE_MS)
    assert (report.removed, report.complete) == (160, True)
    assert await _envs(store) == kept


async def an_environment_put_again_survives_a_collection_beside_it(backend: Backend) -> None:
    """Whoever's put returned finds the bytes, however many collections run at the same time."""
    stores = [await backend.open() for _ in range(2)]
    for turn in range(10):
        await stores[0].artifacts.put_env("env")
        await backend.advance(HOUR_MS)
        puts = [store.artifacts.put_env("env") for store in stores]
        collections = [store.artifacts.collect(older_than_ms=MINUTE_MS) for store in stores for _ in range(2)]
        for result in await outcomes(*puts, *collections):
            assert not isinstance(result, StoreError), f"round {turn}: {result}"
        assert await stores[0].artifacts.get_env("process-env:sha256:" + stable_hash("env")) == "env"


# --- transactions and costs -----------------------------------------------------------------------------------------------


async def a_transaction_takes_artifacts_with_it(backend: Backend) -> None:
    """What a transaction put is there after its commit and never after its rollback; a refusal leaves it usable."""
    store = await backend.open()
    await store.artifacts.put(MODULE, b"first", ref="r")
    async with store.transaction() as tx:
        with refused(ReplayConflict):
            await tx.artifacts.put(MODULE, b"other", ref="r")
        ref = await tx.artifacts.put_env({"a": 1})
        assert await tx.artifacts.get_env(ref) == {"a": 1}
    assert await store.artifacts.get_env(ref) == {"a": 1}
    with refused(ArithmeticError):
        async with store.transaction() as tx:
            await tx.artifacts.put_env("gone")
            raise ArithmeticError
    assert await _envs(store) == [ref]


async def each_call_is_one_statement(backend: Backend) -> None:
    """Put, put again, get, entry, list and delete cost one statement each; a collection of a page costs four."""
    store, statements = await watched(backend)
    await store.artifacts.put_env("warm")
    calls: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
        (1, lambda: store.artifacts.put(MODULE, b"code", ref="r")),
        (1, lambda: store.artifacts.put(MODULE, b"code", ref="r")),
        (1, lambda: store.artifacts.put(RAW, b"code", ref="r")),
        (1, lambda: store.artifacts.get(RAW, "r")),
        (1, lambda: store.artifacts.entry(RAW, "r")),
        (1, lambda: store.artifacts.list(RAW)),
        (1, lambda: store.artifacts.delete(RAW, "r")),
        (4, lambda: store.artifacts.collect(older_than_ms=0)),
        (2, lambda: store.artifacts.collect(older_than_ms=0, dry_run=True)),
    ]
    for expected, call in calls:
        statements.clear()
        await call()
        assert len(statements) == expected, statements


async def _envs(store: AsyncStore) -> list[str]:
    return [entry.ref.ref for entry in (await store.artifacts.list(ENV, limit=1000)).entries]


async def _process(backend: Backend, process_id: str, env_ref: str, *, pruned_ms: int | None = None) -> None:
    """A row that names an environment, and nothing more of a process."""
    await backend.raw(
        f"INSERT INTO {backend.table('processes')} (process_id, registration_hash, kind, env_ref, state, last_sequence, "
        "lease_fence, created_ms, updated_ms, pruned_ms) VALUES ($1, $2, 'tool', $3, 'completed', 0, 0, 1, 1, $4)",
        process_id,
        b"hash",
        env_ref,
        pruned_ms,
    )


async def _subscription(backend: Backend, subscription_id: str, env_ref: str) -> None:
    """A row that names an environment, and nothing more of a subscription."""
    await backend.raw(
        f"INSERT INTO {backend.table('subscriptions')} (subscription_id, number, registrant_session_id, registrant_frame_id, "
        "source_type, source_key, env_ref, enabled, body, intent, digest, created_ms, updated_ms) "
        "VALUES ($1, 1, '', '', 't', 'k', $2, 0, '{}', $3, $3, 1, 1)",
        subscription_id,
        env_ref,
        b"hash",
    )
