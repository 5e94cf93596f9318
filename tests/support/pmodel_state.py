"""What the reference model remembers: sessions with their inboxes, processes with their logs, triggers and artifacts."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lash_store import (
    ArtifactEntry,
    Batch,
    BatchState,
    Claim,
    ClaimLost,
    Completion,
    Deletion,
    Delivery,
    Depth,
    Event,
    ExternalRef,
    Grant,
    Lease,
    LeaseLost,
    NotFound,
    Occurrence,
    Output,
    Process,
    ProcessIdentity,
    ProcessState,
    Registration,
    Relation,
    Scope,
    Session,
    SessionDeleted,
    Slot,
    Subscription,
    TriggerDelivery,
    Wait,
)
from tests.support.pmodel_meaning import CORE, RUNNING, named_after, registration_hash


class Hold(Struct, frozen=True):
    """Who works on a wake, by which token, until when."""

    claim_id: str
    owner: str
    token: str
    claimed_ms: int
    expires_ms: int


class Work(Struct):
    """A wake in an inbox."""

    batch_id: str
    seq: int
    key: str
    payload: Any
    enqueued_ms: int
    attempts: int = 0
    fence: int = 0
    parked: str | None = None
    hold: Hold | None = None

    def held(self, now_ms: int) -> bool:
        return self.hold is not None and self.hold.expires_ms > now_ms

    def state(self, now_ms: int) -> BatchState:
        if self.parked is not None:
            return BatchState.PARKED
        return BatchState.CLAIMED if self.held(now_ms) else BatchState.READY


class Room(Struct):
    """A session, as far as processes and triggers know it."""

    session_id: str
    created_ms: int
    updated_ms: int
    incarnation: int = 1
    revision: int = 0
    deleted: bool = False
    works: dict[str, Work] = {}
    settled: set[str] = set()
    next_seq: int = 1
    fence: int = 0

    def shown(self) -> Session:
        return Session(
            session_id=self.session_id,
            incarnation=self.incarnation,
            revision=self.revision,
            leaf_id=None,
            node_count=0,
            current_frame_id=None,
            checkpoint_digest=None,
            name=self.session_id,
            model=None,
            cwd=None,
            relation=Relation(),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
        )

    def batch(self, work: Work, now_ms: int) -> Batch:
        return Batch(
            batch_id=work.batch_id,
            session_id=self.session_id,
            enqueue_seq=work.seq,
            source_key=work.key,
            delivery=Delivery.EARLIEST_SAFE_BOUNDARY,
            slot=Slot.EXCLUSIVE,
            merge_key="never",
            payloads=(work.payload,),
            available_ms=work.enqueued_ms,
            enqueued_ms=work.enqueued_ms,
            attempts=work.attempts,
            max_attempts=None,
            fence=work.fence,
            state=work.state(now_ms),
            parked_reason=work.parked,
        )


class Running(Struct):
    """A process: its registration, its log, and what changes."""

    registration: Registration
    wake: Scope | None
    created_ms: int
    updated_ms: int
    runnable_ms: int | None
    state: ProcessState = RUNNING
    output: Output | None = None
    wait: Wait | None = None
    external_ref: ExternalRef | None = None
    events: list[Event] = []
    last_sequence: int = 0
    acked: set[int] = set()
    lease: Lease | None = None
    fence: int = 0
    pruned: bool = False

    @property
    def process_id(self) -> str:
        return self.registration.process_id

    @property
    def identity(self) -> ProcessIdentity:
        return self.registration.identity or named_after(self.registration.input)

    def leased(self, now_ms: int) -> bool:
        return self.lease is not None and self.lease.expires_ms > now_ms

    def require(self, lease: Lease, now_ms: int) -> None:
        """The lease must be the live one."""
        mine = self.lease
        names = None if mine is None else (mine.owner, mine.incarnation, mine.token, mine.fence)
        if not self.leased(now_ms) or names != (lease.owner, lease.incarnation, lease.token, lease.fence):
            raise LeaseLost(self.process_id, held_fence=lease.fence, actual_fence=self.fence)

    def free(self, now_ms: int) -> None:
        """Nobody holds it any more."""
        self.lease = None
        if self.state is RUNNING and self.registration.input.kind != "external":
            self.runnable_ms = now_ms

    def shown(self) -> Process:
        said = self.registration
        return Process(
            process_id=self.process_id,
            registration_hash=registration_hash(said),
            input=said.input,
            identity=self.identity,
            event_types=(*CORE, *said.event_types),
            originator=said.originator,
            caused_by=said.caused_by,
            env_ref=said.env_ref,
            wake_target=self.wake,
            state=self.state,
            output=self.output,
            wait=self.wait,
            external_ref=self.external_ref,
            last_sequence=self.last_sequence,
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            pruned=self.pruned,
        )


class Stored(Struct):
    """An artifact."""

    entry: ArtifactEntry
    data: bytes


class State:
    """The whole store. `now_ms` is its clock; only the test moves it."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.rooms: dict[str, Room] = {}
        self.processes: dict[str, Running] = {}
        self.grants: dict[tuple[str, str, str], Grant] = {}
        self.number = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.due_ms: dict[int, int | None] = {}
        self.occurrences: dict[str, Occurrence] = {}
        self.deliveries: dict[tuple[str, int], TriggerDelivery] = {}
        self.artifacts: dict[tuple[str, str], Stored] = {}

    def is_live(self, session_id: str) -> bool:
        return session_id in self.rooms and not self.rooms[session_id].deleted

    def live(self, session_id: str, incarnation: int | None = None) -> Room:
        """A live session, of the incarnation a handle remembers."""
        room = self.rooms.get(session_id)
        if room is None:
            raise NotFound("session", session_id)
        if room.deleted or incarnation not in (None, room.incarnation):
            raise SessionDeleted(session_id, incarnation=incarnation or room.incarnation)
        return room

    def there(self, process_id: str) -> Running:
        """A process that exists and was not pruned."""
        process = self.processes.get(process_id)
        if process is None or process.pruned:
            raise NotFound("process", process_id, retention=process is not None)
        return process

    def hold(self, env_ref: str | None) -> None:
        """An environment that is named now is young again."""
        stored = None if env_ref is None else self.artifacts.get(("process_env", env_ref))
        if stored is not None:
            stored.entry = replace(stored.entry, updated_ms=self.now_ms)

    def drop_subscriptions(self, session_id: str) -> int:
        """Remove what a session registered, in any frame, with its deliveries."""
        gone = [n for n, each in self.subscriptions.items() if each.registrant and each.registrant.session_id == session_id]
        for number in gone:
            del self.subscriptions[number]
            self.due_ms.pop(number, None)
        for key in [key for key in self.deliveries if key[1] in gone]:
            del self.deliveries[key]
        return len(gone)


class Sessions:
    """`store.sessions`, as far as it matters here."""

    def __init__(self, state: State) -> None:
        self._state = state

    def create(self, session_id: str) -> Session:
        state = self._state
        room = state.rooms.get(session_id)
        if room is None:
            room = state.rooms[session_id] = Room(session_id, state.now_ms, state.now_ms)
        elif room.deleted:
            room.deleted = False
            room.incarnation += 1
            room.created_ms = room.updated_ms = state.now_ms
        return room.shown()

    def get(self, session_id: str) -> Session:
        return self._state.live(session_id).shown()

    def delete(self, session_id: str) -> Deletion:
        state = self._state
        if not state.is_live(session_id):
            return Deletion(session_id=session_id, existed=False, purged_rows=0, complete=True)
        room = state.rooms[session_id]
        held = [key for key in state.grants if key[0] == session_id]
        for key in held:
            del state.grants[key]
        for process in state.processes.values():
            if process.wake is not None and process.wake.session_id == session_id:
                process.wake, process.updated_ms = None, state.now_ms
        lost = sorted({key[2] for key in held if state.processes[key[2]].state is RUNNING})
        kept = {key[2] for key in state.grants}
        rows = state.drop_subscriptions(session_id) + len(room.works) + len(room.settled)
        room.deleted, room.works, room.settled = True, {}, set()
        room.revision += 1
        room.updated_ms = state.now_ms
        return Deletion(
            session_id=session_id,
            existed=True,
            purged_rows=rows,
            complete=True,
            revoked_grants=len(held),
            orphaned=tuple(each for each in lost if each not in kept),
            preserved=tuple(each for each in lost if each in kept),
        )


class Queue:
    """`store.queue`, for inboxes that hold nothing but wakes."""

    def __init__(self, state: State) -> None:
        self._state = state

    def claim(self, session_id: str, owner: str, *, lease_ms: int, learned: Claim | None) -> Claim | None:
        room, now_ms = self._state.live(session_id), self._state.now_ms
        work = next((work for work in room.works.values() if work.state(now_ms) is BatchState.READY), None)
        if work is None:
            return None
        token = "?" if learned is None else learned.token
        room.fence += 1
        work.fence, work.attempts = room.fence, work.attempts + 1
        hold = work.hold = Hold(f"qwc:{work.seq}:{room.fence}", owner, token, now_ms, now_ms + lease_ms)
        return Claim(
            session_id=session_id,
            claim_id=hold.claim_id,
            owner=owner,
            token=token,
            fence=room.fence,
            claimed_ms=now_ms,
            expires_ms=hold.expires_ms,
            batches=(room.batch(work, now_ms),),
        )

    def settle(self, claim: Claim) -> int:
        room, done = self._state.live(claim.session_id), claim.completion()
        works = [self._owned(room, done, batch_id) for batch_id in done.batch_ids]
        for work in works:
            del room.works[work.batch_id]
            room.settled.add(work.key)
        return len(works)

    def _owned(self, room: Room, done: Completion, batch_id: str) -> Work:
        work = room.works.get(batch_id)
        if work is None or work.hold is None or (work.hold.token, work.fence) != (done.token, done.fence):
            actual = None if work is None else work.fence
            raise ClaimLost(room.session_id, batch_id=batch_id, held_fence=done.fence, actual_fence=actual)
        return work

    def abandon(self, claim: Claim) -> int:
        room = self._state.live(claim.session_id)
        works = [room.works[batch.batch_id] for batch in claim.batches if batch.batch_id in room.works]
        mine = [work for work in works if work.hold is not None and work.hold.token == claim.token]
        for work in mine:
            work.hold = None
        return len(mine)

    def cancel(self, session_id: str, batch_id: str) -> Batch | None:
        room, now_ms = self._state.live(session_id), self._state.now_ms
        work = room.works.get(batch_id)
        if work is None or work.held(now_ms):
            return None
        return room.batch(room.works.pop(batch_id), now_ms)

    def park(self, session_id: str, batch_id: str, *, reason: str) -> Batch:
        room, work = self._work(session_id, batch_id)
        work.parked, work.hold = reason, None
        return room.batch(work, self._state.now_ms)

    def unpark(self, session_id: str, batch_id: str) -> Batch:
        room, work = self._work(session_id, batch_id)
        if work.parked is not None:
            work.parked, work.attempts = None, 0
        return room.batch(work, self._state.now_ms)

    def _work(self, session_id: str, batch_id: str) -> tuple[Room, Work]:
        room = self._state.live(session_id)
        if batch_id not in room.works:
            raise NotFound("batch", batch_id, within=session_id)
        return room, room.works[batch_id]

    def list(self, session_id: str) -> tuple[Batch, ...]:
        room = self._state.live(session_id)
        return tuple(room.batch(work, self._state.now_ms) for work in room.works.values())

    def depth(self, session_id: str) -> Depth:
        states = [work.state(self._state.now_ms) for work in self._state.live(session_id).works.values()]
        counts = {state: states.count(state) for state in BatchState}
        return Depth(
            ready=counts[BatchState.READY], delayed=0, claimed=counts[BatchState.CLAIMED], parked=counts[BatchState.PARKED]
        )
