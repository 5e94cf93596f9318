"""One of every call that writes about processes, triggers and artifacts, on a state with some of everything."""

from __future__ import annotations

from functools import partial

from lash_store.model.process import ExternalRef, Scope, Wait
from lash_store.ops import claims
from tests.support import sides
from tests.support.player import Script, one
from tests.support.process_sides import (
    OLD_MS,
    append,
    cancel,
    claim,
    claim_next,
    collect,
    complete,
    delete,
    emit,
    ended,
    host,
    job,
    prune,
    put_env,
    redrive,
    register,
    renew,
    reserved,
    scheduled,
    subscribe,
    tick,
    transfer,
    triggers,
    with_processes,
    with_sessions,
)
from tests.support.sides import LEASE_MS, commit, completion, create, say
from tests.support.stepper import Stage
from tests.support.triggers import pressed

P, Q, R, OLD = job("p", wakes="s"), job("q", wakes="t"), job("r"), job("old")

PASSING_OVER = frozenset({"claim_next", "prune_occurrences"})  # they leave out what is locked just now


async def process_town(made: Stage) -> dict[str, Script]:
    """Two sessions that hold and are woken by processes, promised and due work; and every call that changes it."""
    await with_sessions(made, "s", "t")
    await made.play(put_env())
    await ended(made, OLD, grant="s")
    await with_processes(made, P, R, grant="s")
    await with_processes(made, Q, grant="t")
    await made.play(append(P, "knock", "first", "first"))
    work = completion(await made.play(sides.claim("s", "first")))
    await reserved(made, [{"wake_target": Scope("t")}, {"registrant": Scope("s")}])
    await scheduled(made, "scheduled", registrant=Scope("s"), wake_target=Scope("t"))
    await made.advance(OLD_MS)
    lease = await made.play(claim("p", "first"))
    occurrence_id = (await made.play(triggers(lambda these: these.undelivered()))).deliveries[0].occurrence_id
    return {
        "note": append(P, "note", "n", lease=lease),
        "knock": append(P, "knock", "k"),
        "knock_of_another": append(Q, "knock", "k"),
        "end": append(R, "done", "d"),
        "complete": complete(P, lease=lease),
        "complete_by_hand": complete(R),
        "ask_to_end": host(lambda these: these.cancel("p")),
        "wait": host(lambda these: these.set_wait("p", Wait(name="go", ordinal=1))),
        "wait_no_more": host(lambda these: these.clear_wait("p")),
        "refer": host(lambda these: these.set_external_ref("r", ExternalRef(backend="b", id="1"))),
        "acknowledge": host(lambda these: these.ack_wake("p", 1)),
        "claim": claim("r", "anna"),
        "claim_next": claim_next("anna", limit=2),
        "renew": renew(lease),
        "release": host(lambda these: these.release(lease)),
        "break": host(lambda these: these.break_lease("p")),
        "register": register(job("new", wakes="t"), grant="s"),
        "register_again": register(P, grant="t"),
        "register_old": register(OLD, grant="t"),
        "grant": host(lambda these: these.grant(Scope("t"), "p")),
        "revoke": host(lambda these: these.revoke(Scope("s"), "p")),
        "transfer": transfer("s", "t", "r", "p"),
        "transfer_back": transfer("t", "s", "q"),
        "delete_s": delete("s"),
        "delete_t": delete("t"),
        "create": create("s"),
        "commit": commit("s", **say("answer", turn_id="turn", completes=[work])),
        "settle": one(partial(claims.settle, work)),
        "subscribe": subscribe("new", registrant=Scope("t"), wake_target=Scope("s")),
        "cancel": cancel("s", "trigger:2"),
        "cancel_scheduled": cancel("s", "trigger:3"),
        "emit": emit(pressed("other")),
        "emit_promised": emit(),
        "reserve": triggers(lambda these: these.reserve(occurrence_id)),
        "redrive": redrive(),
        "tick": tick(),
        "prune": prune(),
        "prune_occurrences": triggers(lambda these: these.prune(older_than_ms=OLD_MS)),
        "collect": collect(),
        "put_env": put_env(),
    }


assert LEASE_MS > OLD_MS, "the lease of the town is live"
