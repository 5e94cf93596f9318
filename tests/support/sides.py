"""Operations and facade calls as sides of an interleaving, and the states they start from."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from lash_store.delta import Held
from lash_store.encode import Encoder
from lash_store.model.commit import Commit
from lash_store.model.graph import Append, NodeDraft
from lash_store.model.limits import DEFAULT_LIMITS, SETTLED_KEY_RETENTION_MS
from lash_store.model.queue import BatchDraft, Boundary, Completion
from lash_store.ops import checkpoints, claims, commits, queue, sessions
from lash_store.ops.claims import Claimed
from lash_store.ops.prepare import prepare_batch, prepare_commit
from lash_store.store.attachments import AsyncAttachments
from lash_store.store.maintenance import AsyncMaintenance
from lash_store.store.sessions import AsyncSessions
from tests.support.player import Player, Script, one
from tests.support.stepper import Stage

ENCODER = Encoder(DEFAULT_LIMITS)
LEASE_MS = 60_000
STALE_MS = 10_000  # intents of this age are swept
DATA, OTHER_DATA = b"data", b"other data"
CONTENT, OTHER_CONTENT = (hashlib.sha256(data).hexdigest() for data in (DATA, OTHER_DATA))


# --- sides -----------------------------------------------------------------------------------------------------------------


def commit(session_id: str, held: Held | None = None, **fields: Any) -> Script:
    """A commit, prepared once: every order runs the same values."""
    given = Commit(expected_revision=fields.pop("expected_revision", None), **fields)
    prepared = prepare_commit(session_id, given, ENCODER, None)
    components = checkpoints.prepare(session_id, given.checkpoint, held or Held(), full=held is None)
    prepared = replace(prepared, components=components)
    return one(partial(commits.commit, prepared, retention_ms=SETTLED_KEY_RETENTION_MS))


def say(text: str, *, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    """The fields of a commit that appends one node named by its text."""
    draft = NodeDraft(node_id=text, body={"text": text}, parent_id=UNSET if parent is None else parent)
    return {"graph": Append([draft]), **fields}


def create(session_id: str, **fields: Any) -> Script:
    """Create, finishing the purge of an earlier incarnation first."""
    return lambda player: AsyncSessions(player.runtime).create(session_id, **fields)


def delete(session_id: str, step: int = 100) -> Script:
    """Delete, then purge in steps of so many rows."""

    async def script(player: Player) -> bool:
        existed = await player.write(sessions.delete, session_id)
        complete = not existed
        while not complete:
            complete = (await player.write(sessions.purge_step, session_id, step)).complete
        return existed

    return script


def enqueue(session_id: str, text: str, source_key: str | None = None) -> Script:
    """Work with an id of its own."""
    draft = BatchDraft(payloads=[text], source_key=source_key, batch_id=f"qwb:{text}")
    prepared = prepare_batch(session_id, draft, ENCODER, "batch")
    return one(partial(queue.enqueue, prepared, retention_ms=SETTLED_KEY_RETENTION_MS))


def claim(session_id: str, owner: str, *, token: str | None = None, max_batches: int = 1) -> Script:
    """A claim; a token that is given makes it a repeatable one."""
    return one(
        partial(
            claims.claim,
            session_id,
            owner,
            boundary=Boundary.IDLE,
            lease_ms=LEASE_MS,
            max_batches=max_batches,
            token=token or f"token of {owner}",
            repeated=token is not None,
        )
    )


def claim_next(owner: str, *, concurrent: bool = False, waits: bool = False) -> Script:
    """Look past locked sessions first, unless that look is over; only a look that waits for them may find nothing."""

    async def script(player: Player) -> Claimed | None:
        patient = waits
        search = partial(claims.claim_next, owner, lease_ms=LEASE_MS, max_batches=1, concurrent=concurrent)
        while True:
            found = await player.write(search, token=f"token of {owner}", wait_for_locks=patient)
            if isinstance(found, Claimed) or (found is None and patient):
                return found
            patient = patient or found is None

    return script


def completion(claimed: Claimed) -> Completion:
    """The proof of ownership of a whole claim."""
    return Completion(
        session_id=claimed.session_id,
        claim_id=claimed.claim_id,
        token=claimed.token,
        fence=claimed.fence,
        batch_ids=tuple(row.batch_id for row in claimed.rows),
    )


def renew(held: Completion) -> Script:
    """Extend a lease; the new expiry is an instant, which is not compared."""
    return one(partial(claims.renew, held, lease_ms=LEASE_MS), show=lambda _: "renewed")


def fork(source_id: str, new_id: str) -> Script:
    """Look where the source is, restore its checkpoint, copy."""
    return lambda player: AsyncSessions(player.runtime).fork(source_id, new_id)


def collect(session_id: str) -> Script:
    """Retention of one session: look, rebuild what is cut off from its base, apply, delete."""
    return lambda player: AsyncMaintenance(player.runtime).collect(session_id=session_id)


def put(session_id: str, data: bytes = DATA) -> Script:
    """The intent, and then the bytes, outside of every transaction."""
    return lambda player: AsyncAttachments(player.runtime).put(session_id, data, media_type="text/plain")


def sweep() -> Script:
    """Reclaim what nobody holds, one content per transaction; its bytes go while its row is locked."""
    return lambda player: AsyncAttachments(player.runtime).sweep(older_than_ms=STALE_MS)


def work(session_id: str, text: str = "follow-up") -> BatchDraft:
    """Work a commit enqueues; its key is the same whoever enqueues it."""
    return BatchDraft(session_id=session_id, payloads=[text], source_key=text, batch_id=f"qwb:{text} for {session_id}")


# --- states to start from -------------------------------------------------------------------------------------------------


async def started(made: Stage, *session_ids: str) -> None:
    """Sessions with one commit each."""
    for session_id in session_ids:
        await made.play(commit(session_id, **say(f"first of {session_id}")))


async def claimed_work(made: Stage, session_id: str = "s", count: int = 1) -> Completion:
    """A session with so many batches, all claimed by one worker."""
    await started(made, session_id)
    for number in range(count):
        await made.play(enqueue(session_id, f"work {number} of {session_id}", source_key=f"key {number}"))
    return completion(await made.play(claim(session_id, "first", max_batches=count)))


async def checkpointed(made: Stage, session_id: str = "s") -> Held:
    """A session whose checkpoint is a full frame and two deltas."""
    held, text = Held(), b"state " * 50
    for revision in range(3):
        data = text + bytes([revision])
        await made.play(commit(session_id, held, expected_revision=revision, checkpoint={"state": data}, config=revision))
        digest = checkpoints.prepare(session_id, {"state": data}, Held(), full=True)[0].digest
        assert digest is not None
        held.put(session_id, "state", digest=digest, data=data)
    return held


async def stale_content(made: Stage, *session_ids: str) -> None:
    """Bytes that only old intents of these sessions name."""
    await started(made, *session_ids)
    for session_id in session_ids:
        await made.play(put(session_id))
    await made.advance(2 * STALE_MS)
