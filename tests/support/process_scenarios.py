"""Pairs of calls about processes, triggers and artifacts that may collide, and the state each pair starts from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lash_store.model.process import Failure, Scope, Success, Wait
from lash_store.ops import claims
from tests.support import sides
from tests.support.player import Script, one
from tests.support.process_sides import (
    append,
    claim,
    claim_next,
    collect,
    complete,
    delete,
    ended,
    host,
    in_turn,
    job,
    leased,
    old_env,
    prune,
    put_env,
    register,
    renew,
    subscribe,
    transfer,
    with_processes,
    with_sessions,
)
from tests.support.scenarios import Scenario
from tests.support.sides import LEASE_MS, commit, completion, create, say
from tests.support.stepper import Stage

P, Q = job("p"), job("q")
P_WAKES, Q_WAKES = job("p", wakes="s"), job("q", wakes="s")
WOKEN: dict[str, Any] = {"wake_target": Scope("s")}
OF_SESSION: dict[str, Any] = {"registrant": Scope("s", "frame")}

# --- events ---------------------------------------------------------------------------------------------------------------


async def append_append_same_key(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [append(P, "note", "k"), append(P, "note", "k")]


async def append_append_same_key_other_payload(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [append(P, "note", "k", text) for text in ("one", "two")]


async def append_append_other_key(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [append(P, "note", key) for key in ("one", "two")]


async def append_append_both_terminal(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [append(P, "done", "d"), append(P, "broken", "b")]


async def append_append_one_terminal(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [append(P, "done", "d"), append(P, "note", "n")]


async def append_set_wait(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [append(P, "done", "d"), host(lambda these: these.set_wait("p", Wait(name="go", ordinal=1)))]


async def complete_complete_same_output(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [complete(P), complete(P)]


async def complete_complete_other_output(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [complete(P, Success(text)) for text in ("one", "two")]


async def complete_complete_other_state(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [complete(P), complete(P, Failure(code="c", message="m"))]


async def complete_complete_one_lease(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [complete(P, lease=held), complete(P, lease=held)]


async def complete_complete_old_and_new_lease(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    await made.advance(2 * LEASE_MS)
    heir = await made.play(claim("p", "heir"))
    return [complete(P, lease=held), complete(P, Success("of the heir"), lease=heir)]


async def complete_complete_with_and_without_lease(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [complete(P, lease=held), complete(P, Success("by hand"))]


# --- leases ---------------------------------------------------------------------------------------------------------------


async def claim_claim(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [claim("p", owner) for owner in ("anna", "bert")]


async def claim_claim_other_incarnation(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [claim("p", "anna", incarnation=number) for number in ("1", "2")]


async def claim_claim_same_owner(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [claim("p", "anna") for _ in range(2)]


async def claim_claim_same_token(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [claim("p", "anna", token="same") for _ in range(2)]


async def claim_claim_after_expiry(made: Stage) -> Sequence[Script]:
    await leased(made)
    await made.advance(2 * LEASE_MS)
    return [claim("p", owner) for owner in ("anna", "bert")]


async def claim_renew(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [claim("p", "first"), renew(held)]


async def claim_renew_after_expiry(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    await made.advance(2 * LEASE_MS)
    return [claim("p", "anna"), renew(held)]


async def claim_complete(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [claim("p", "anna"), complete(P)]


async def claim_complete_with_lease(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [claim("p", "first"), complete(P, lease=held)]


async def claim_next_claim_next(made: Stage) -> Sequence[Script]:
    await with_processes(made, P, Q)
    return [claim_next(owner) for owner in ("anna", "bert")]


async def claim_next_claim_next_one_process(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [claim_next(owner) for owner in ("anna", "bert")]


async def claim_next_claim_next_several(made: Stage) -> Sequence[Script]:
    await with_processes(made, job("c"), job("b"), job("a"))
    return [claim_next(owner, limit=2) for owner in ("anna", "bert")]


async def claim_next_complete(made: Stage) -> Sequence[Script]:
    await with_processes(made, P)
    return [claim_next("anna"), complete(P)]


async def claim_next_register(made: Stage) -> Sequence[Script]:
    return [claim_next("anna"), register(P)]


async def release_claim(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [host(lambda these: these.release(held)), claim("p", "anna")]


async def release_claim_next(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [host(lambda these: these.release(held)), claim_next("anna")]


async def break_append(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [host(lambda these: these.break_lease("p")), append(P, "note", "n", lease=held)]


async def break_complete(made: Stage) -> Sequence[Script]:
    held = await leased(made)
    return [host(lambda these: these.break_lease("p")), complete(P, lease=held)]


# --- registrations and grants ---------------------------------------------------------------------------------------------


async def register_register_same(made: Stage) -> Sequence[Script]:
    return [register(P), register(P)]


async def register_register_other(made: Stage) -> Sequence[Script]:
    return [register(job("p", caused_by=cause)) for cause in ("one", "two")]


async def register_register_with_grant(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    return [register(P, grant="s"), register(P, grant="s")]


async def register_register_crossed(made: Stage) -> Sequence[Script]:
    """Two processes, each granted to the session that the other one wakes."""
    await with_sessions(made, "s", "t")
    return [register(job("p", wakes="s"), grant="t"), register(job("q", wakes="t"), grant="s")]


async def register_delete(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    return [register(P_WAKES, grant="s"), delete("s")]


async def grant_delete(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P)
    return [host(lambda these: these.grant(Scope("s"), "p")), delete("s")]


async def grant_revoke(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P)
    return [host(lambda these: these.grant(Scope("s"), "p")), host(lambda these: these.revoke(Scope("s"), "p"))]


async def transfer_revoke(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s", "t")
    await with_processes(made, P, Q, grant="s")
    return [transfer("s", "t", "q", "p"), host(lambda these: these.revoke(Scope("s"), "p"))]


async def transfer_transfer_crossed(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s", "t")
    await with_processes(made, P, grant="s")
    await with_processes(made, Q, grant="t")
    return [transfer("s", "t", "p"), transfer("t", "s", "q")]


async def transfer_delete(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s", "t")
    await with_processes(made, P, Q, grant="s")
    return [transfer("s", "t", "q", "p"), delete("s")]


async def transfer_delete_target(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s", "t")
    await with_processes(made, P, Q, grant="s")
    return [transfer("s", "t", "q", "p"), delete("t")]


async def delete_delete(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s", "t")
    await with_processes(made, P_WAKES, grant="s")
    await with_processes(made, Q, grant="s")
    await with_processes(made, Q, grant="t")
    await made.play(subscribe(**OF_SESSION))
    return [delete("s"), delete("s")]


# --- wakes ----------------------------------------------------------------------------------------------------------------


async def pending_wake(made: Stage) -> None:
    """A session that a process woke, and two processes that can wake it again."""
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES, Q_WAKES)
    await made.play(append(P_WAKES, "knock", "first", "first"))


async def wake_delete(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES, grant="s")
    return [append(P_WAKES, "knock", "k"), delete("s")]


async def wake_delete_create(made: Stage) -> Sequence[Script]:
    """The session goes and comes back: the wake belongs to its first life or to nobody."""
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES)
    return [append(P_WAKES, "knock", "k"), in_turn(delete("s"), create("s"))]


async def wake_wake_same_id(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES, Q_WAKES)
    return [append(P_WAKES, "knock", "k", "from p"), append(Q_WAKES, "knock", "k", "from q")]


async def wake_wake_one_process(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES)
    return [append(P_WAKES, "knock", key, key) for key in ("one", "two")]


async def wake_wake_other_id(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES, Q_WAKES)
    return [append(P_WAKES, "ping", "k"), append(Q_WAKES, "ping", "k")]


async def wake_commit(made: Stage) -> Sequence[Script]:
    await pending_wake(made)
    return [append(Q_WAKES, "knock", "k", "again"), commit("s", **say("answer"))]


async def wake_commit_completes_it(made: Stage) -> Sequence[Script]:
    await pending_wake(made)
    held = completion(await made.play(sides.claim("s", "first")))
    return [append(Q_WAKES, "knock", "k", "again"), commit("s", **say("answer", turn_id="turn", completes=[held]))]


async def wake_settle(made: Stage) -> Sequence[Script]:
    await pending_wake(made)
    held = completion(await made.play(sides.claim("s", "first")))
    return [append(Q_WAKES, "knock", "k", "again"), one(partial(claims.settle, held))]


async def wake_settle_after_expiry(made: Stage) -> Sequence[Script]:
    await pending_wake(made)
    held = completion(await made.play(sides.claim("s", "first")))
    await made.advance(2 * LEASE_MS)
    return [append(Q_WAKES, "knock", "k", "again"), one(partial(claims.settle, held))]


async def wake_queue_claim(made: Stage) -> Sequence[Script]:
    await pending_wake(made)
    return [append(Q_WAKES, "knock", "k", "again"), sides.claim("s", "anna")]


async def wake_grant(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES)
    return [append(P_WAKES, "knock", "k"), host(lambda these: these.grant(Scope("s"), "p"))]


async def wake_complete(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await with_processes(made, P_WAKES)
    return [append(P_WAKES, "knock", "k"), complete(P_WAKES)]


# --- maintenance ----------------------------------------------------------------------------------------------------------


async def prune_register(made: Stage) -> Sequence[Script]:
    await ended(made, P)
    return [prune(), register(P)]


async def prune_register_with_grant(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await ended(made, P)
    return [prune(), register(P, grant="s")]


async def prune_append(made: Stage) -> Sequence[Script]:
    await ended(made, P)
    return [prune(), append(P, "note", "late")]


async def prune_claim(made: Stage) -> Sequence[Script]:
    await ended(made, P)
    return [prune(), claim("p", "anna")]


async def prune_grant(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await ended(made, P)
    return [prune(), host(lambda these: these.grant(Scope("s"), "p"))]


async def prune_revoke(made: Stage) -> Sequence[Script]:
    await with_sessions(made, "s")
    await ended(made, P, grant="s")
    return [prune(), host(lambda these: these.revoke(Scope("s"), "p"))]


async def prune_prune(made: Stage) -> Sequence[Script]:
    await ended(made, P)
    return [prune(), prune()]


async def prune_append_transfer(made: Stage) -> Sequence[Script]:
    """Three sides: whoever looks for what has ended must not hold one process while it waits for another."""
    await with_sessions(made, "s", "t")
    await ended(made, Q, grant="s")
    await ended(made, P, grant="s")
    return [prune(), append(Q, "note", "late"), transfer("s", "t", "p", "q")]


async def collect_register(made: Stage) -> Sequence[Script]:
    ref = await old_env(made)
    return [collect(), register(job(env_ref=ref))]


async def collect_put_register(made: Stage) -> Sequence[Script]:
    """An environment that is put again and then named is there for good."""
    ref = await old_env(made)
    return [collect(), in_turn(put_env(), register(job(env_ref=ref)))]


PROCESS_SCENARIOS: tuple[Scenario, ...] = (
    append_append_same_key,
    append_append_same_key_other_payload,
    append_append_other_key,
    append_append_both_terminal,
    append_append_one_terminal,
    append_set_wait,
    complete_complete_same_output,
    complete_complete_other_output,
    complete_complete_other_state,
    complete_complete_one_lease,
    complete_complete_old_and_new_lease,
    complete_complete_with_and_without_lease,
    claim_claim,
    claim_claim_other_incarnation,
    claim_claim_same_owner,
    claim_claim_same_token,
    claim_claim_after_expiry,
    claim_renew,
    claim_renew_after_expiry,
    claim_complete,
    claim_complete_with_lease,
    claim_next_claim_next,
    claim_next_claim_next_one_process,
    claim_next_claim_next_several,
    claim_next_complete,
    claim_next_register,
    release_claim,
    release_claim_next,
    break_append,
    break_complete,
    register_register_same,
    register_register_other,
    register_register_with_grant,
    register_register_crossed,
    register_delete,
    grant_delete,
    grant_revoke,
    transfer_revoke,
    transfer_transfer_crossed,
    transfer_delete,
    transfer_delete_target,
    delete_delete,
    wake_delete,
    wake_delete_create,
    wake_wake_same_id,
    wake_wake_one_process,
    wake_wake_other_id,
    wake_commit,
    wake_commit_completes_it,
    wake_settle,
    wake_settle_after_expiry,
    wake_queue_claim,
    wake_grant,
    wake_complete,
    prune_register,
    prune_register_with_grant,
    prune_append,
    prune_claim,
    prune_grant,
    prune_revoke,
    prune_prune,
    collect_register,
    collect_put_register,
)
