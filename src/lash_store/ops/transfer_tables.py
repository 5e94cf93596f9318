"""The tables of a process, and those that belong to the whole store, as they travel."""

from __future__ import annotations

from lash_store.ops.transfer_table import Table

_PROCESSES = (
    "process_id, registration_hash, kind, definition_hash, originator_session_id, originator_frame_id, env_ref, "
    "wake_session_id, wake_frame_id, state, output, output_digest, wait_name, wait_ordinal, wait_since_ms, external_ref, "
    "external_ref_digest, last_sequence, runnable_ms, lease_owner, lease_incarnation, lease_token, lease_fence, "
    "lease_claimed_ms, lease_expires_ms, created_ms, updated_ms, pruned_ms, prune_pending"
)
_PROCESSES_ROWS = (
    "rows.process_id, rows.registration_hash, rows.kind, rows.definition_hash, rows.originator_session_id, "
    "rows.originator_frame_id, rows.env_ref, rows.wake_session_id, rows.wake_frame_id, rows.state, rows.output, "
    "rows.output_digest, rows.wait_name, rows.wait_ordinal, rows.wait_since_ms, rows.external_ref, "
    "rows.external_ref_digest, rows.last_sequence, rows.runnable_ms, rows.lease_owner, rows.lease_incarnation, "
    "rows.lease_token, rows.lease_fence, rows.lease_claimed_ms, rows.lease_expires_ms, rows.created_ms, rows.updated_ms, "
    "rows.pruned_ms, rows.prune_pending"
)
_PROCESSES_TYPED = (
    "process_id text, registration_hash bytes, kind text, definition_hash bytes, originator_session_id text, "
    "originator_frame_id text, env_ref text, wake_session_id text, wake_frame_id text, state text, output text, "
    "output_digest bytes, wait_name text, wait_ordinal int, wait_since_ms int, external_ref text, external_ref_digest "
    "bytes, last_sequence int, runnable_ms int, lease_owner text, lease_incarnation text, lease_token text, lease_fence "
    "int, lease_claimed_ms int, lease_expires_ms int, created_ms int, updated_ms int, pruned_ms int, prune_pending int"
)
_PROCESSES_FROM = " FROM {processes} WHERE process_id = :id"
PROCESSES = Table(
    name="processes",
    typed=_PROCESSES_TYPED,
    nulls=(
        "definition_hash originator_session_id originator_frame_id env_ref wake_session_id wake_frame_id output "
        "output_digest wait_name wait_ordinal wait_since_ms external_ref external_ref_digest runnable_ms lease_owner "
        "lease_incarnation lease_token lease_claimed_ms lease_expires_ms pruned_ms prune_pending "
    ),
    key=(),
    page="SELECT " + _PROCESSES + _PROCESSES_FROM,
    insert="INSERT INTO {processes} (" + _PROCESSES + ") SELECT " + _PROCESSES_ROWS + " FROM {rows(" + _PROCESSES_TYPED + ")}",
    clear="DELETE FROM {processes} WHERE process_id = :id",
)

_REGISTRATIONS = "process_id, body, digest"
_REGISTRATIONS_ROWS = "rows.process_id, rows.body, rows.digest"
_REGISTRATIONS_TYPED = "process_id text, body text, digest bytes"
_REGISTRATIONS_FROM = " FROM {registrations} WHERE process_id = :id"
REGISTRATIONS = Table(
    name="registrations",
    typed=_REGISTRATIONS_TYPED,
    key=(),
    page="SELECT " + _REGISTRATIONS + _REGISTRATIONS_FROM,
    insert="INSERT INTO {registrations} ("
    + _REGISTRATIONS
    + ") SELECT "
    + _REGISTRATIONS_ROWS
    + " FROM {rows("
    + _REGISTRATIONS_TYPED
    + ")}",
    clear="DELETE FROM {registrations} WHERE process_id = :id",
)

_EVENTS = (
    "process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key, "
    "wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, wake_acked_ms, digest, occurred_ms"
)
_EVENTS_ROWS = (
    "rows.process_id, rows.sequence, rows.event_type, rows.payload, rows.payload_hash, rows.replay_key, "
    "rows.terminal_state, rows.wake_id, rows.wake_dedupe_key, rows.wake_input, rows.wake_session_id, rows.wake_frame_id, "
    "rows.wake_batch_id, rows.wake_coalesced, rows.wake_acked_ms, rows.digest, rows.occurred_ms"
)
_EVENTS_TYPED = (
    "process_id text, sequence int, event_type text, payload text, payload_hash bytes, replay_key text, terminal_state "
    "text, wake_id text, wake_dedupe_key text, wake_input text, wake_session_id text, wake_frame_id text, wake_batch_id "
    "text, wake_coalesced int, wake_acked_ms int, digest bytes, occurred_ms int"
)
_EVENTS_FROM = " FROM {events} WHERE process_id = :id AND sequence > CAST(:k0 AS {int}) ORDER BY sequence LIMIT :limit"
_EVENTS_WEIGHT = (
    "COALESCE(OCTET_LENGTH(payload), 0) + COALESCE(OCTET_LENGTH(wake_dedupe_key), 0) + COALESCE(OCTET_LENGTH(wake_input), 0)"
)
EVENTS = Table(
    name="events",
    typed=_EVENTS_TYPED,
    nulls=(
        "replay_key terminal_state wake_id wake_dedupe_key wake_input wake_session_id wake_frame_id wake_batch_id "
        "wake_coalesced wake_acked_ms "
    ),
    key=("sequence",),
    page="SELECT " + _EVENTS + _EVENTS_FROM,
    weigh="SELECT " + _EVENTS_WEIGHT + _EVENTS_FROM,
    insert="INSERT INTO {events} (" + _EVENTS + ") SELECT " + _EVENTS_ROWS + " FROM {rows(" + _EVENTS_TYPED + ")}",
    clear="DELETE FROM {events} WHERE process_id = :id",
)

_GRANTS = "session_id, frame_id, process_id, kind, label, granted_ms"
_GRANTS_ROWS = "rows.session_id, rows.frame_id, rows.process_id, rows.kind, rows.label, rows.granted_ms"
_GRANTS_TYPED = "session_id text, frame_id text, process_id text, kind text, label text, granted_ms int"
_GRANTS_FROM = (
    " FROM {grants} WHERE process_id = :id AND (session_id, frame_id) > (CAST(:k0 AS TEXT), CAST(:k1 AS TEXT)) ORDER BY "
    "session_id, frame_id LIMIT :limit"
)
GRANTS = Table(
    name="grants",
    typed=_GRANTS_TYPED,
    nulls="kind label",
    key=("session_id", "frame_id"),
    page="SELECT " + _GRANTS + _GRANTS_FROM,
    insert="INSERT INTO {grants} (" + _GRANTS + ") SELECT " + _GRANTS_ROWS + " FROM {rows(" + _GRANTS_TYPED + ")}",
    clear="DELETE FROM {grants} WHERE process_id = :id",
)

PROCESS: tuple[Table, ...] = (PROCESSES, REGISTRATIONS, EVENTS, GRANTS)

_DELIVERIES = "occurrence_id, subscription_id, number, process_id, state, error, snapshot, digest, created_ms, updated_ms"
_DELIVERIES_ROWS = (
    "rows.occurrence_id, rows.subscription_id, rows.number, rows.process_id, rows.state, rows.error, rows.snapshot, "
    "rows.digest, rows.created_ms, rows.updated_ms"
)
_DELIVERIES_TYPED = (
    "occurrence_id text, subscription_id text, number int, process_id text, state text, error text, snapshot text, digest "
    "bytes, created_ms int, updated_ms int"
)
_DELIVERIES_FROM = (
    " FROM {deliveries} WHERE (occurrence_id, subscription_id) > (CAST(:k0 AS TEXT), CAST(:k1 AS TEXT)) ORDER BY "
    "occurrence_id, subscription_id LIMIT :limit"
)
_DELIVERIES_WEIGHT = "COALESCE(OCTET_LENGTH(snapshot), 0)"
_DELIVERIES_CONFLICT = (
    " WHERE true ON CONFLICT (occurrence_id, subscription_id) DO UPDATE SET number = excluded.number, process_id = "
    "excluded.process_id, state = excluded.state, error = excluded.error, snapshot = excluded.snapshot, digest = "
    "excluded.digest, created_ms = excluded.created_ms, updated_ms = excluded.updated_ms"
)
DELIVERIES = Table(
    name="deliveries",
    typed=_DELIVERIES_TYPED,
    nulls="error",
    key=("occurrence_id", "subscription_id"),
    page="SELECT " + _DELIVERIES + _DELIVERIES_FROM,
    weigh="SELECT " + _DELIVERIES_WEIGHT + _DELIVERIES_FROM,
    insert="INSERT INTO {deliveries} ("
    + _DELIVERIES
    + ") SELECT "
    + _DELIVERIES_ROWS
    + " FROM {rows("
    + _DELIVERIES_TYPED
    + ")}"
    + _DELIVERIES_CONFLICT,
    grows="updated_ms",
)

_OCCURRENCES = "occurrence_id, source_type, source_key, idempotency_key, request_hash, body, digest, occurred_ms"
_OCCURRENCES_ROWS = (
    "rows.occurrence_id, rows.source_type, rows.source_key, rows.idempotency_key, rows.request_hash, rows.body, "
    "rows.digest, rows.occurred_ms"
)
_OCCURRENCES_TYPED = (
    "occurrence_id text, source_type text, source_key text, idempotency_key text, request_hash bytes, body text, digest "
    "bytes, occurred_ms int"
)
_OCCURRENCES_FROM = " FROM {occurrences} WHERE occurrence_id > CAST(:k0 AS TEXT) ORDER BY occurrence_id LIMIT :limit"
_OCCURRENCES_WEIGHT = "COALESCE(OCTET_LENGTH(body), 0)"
_OCCURRENCES_CONFLICT = (
    " WHERE true ON CONFLICT (occurrence_id) DO UPDATE SET source_type = excluded.source_type, source_key = "
    "excluded.source_key, idempotency_key = excluded.idempotency_key, request_hash = excluded.request_hash, body = "
    "excluded.body, digest = excluded.digest, occurred_ms = excluded.occurred_ms"
)
OCCURRENCES = Table(
    name="occurrences",
    typed=_OCCURRENCES_TYPED,
    key=("occurrence_id",),
    page="SELECT " + _OCCURRENCES + _OCCURRENCES_FROM,
    weigh="SELECT " + _OCCURRENCES_WEIGHT + _OCCURRENCES_FROM,
    insert="INSERT INTO {occurrences} ("
    + _OCCURRENCES
    + ") SELECT "
    + _OCCURRENCES_ROWS
    + " FROM {rows("
    + _OCCURRENCES_TYPED
    + ")}"
    + _OCCURRENCES_CONFLICT,
    grows="occurred_ms",
)

_SCHEDULES = "subscription_id, next_ms, done_ms"
_SCHEDULES_ROWS = "rows.subscription_id, rows.next_ms, rows.done_ms"
_SCHEDULES_TYPED = "subscription_id text, next_ms int, done_ms int"
_SCHEDULES_FROM = " FROM {schedules} WHERE subscription_id > CAST(:k0 AS TEXT) ORDER BY subscription_id LIMIT :limit"
_SCHEDULES_CONFLICT = (
    " WHERE true ON CONFLICT (subscription_id) DO UPDATE SET next_ms = excluded.next_ms, done_ms = excluded.done_ms"
)
SCHEDULES = Table(
    name="schedules",
    typed=_SCHEDULES_TYPED,
    nulls="next_ms",
    key=("subscription_id",),
    page="SELECT " + _SCHEDULES + _SCHEDULES_FROM,
    insert="INSERT INTO {schedules} ("
    + _SCHEDULES
    + ") SELECT "
    + _SCHEDULES_ROWS
    + " FROM {rows("
    + _SCHEDULES_TYPED
    + ")}"
    + _SCHEDULES_CONFLICT,
    grows="done_ms",
)

_SUBSCRIPTIONS = (
    "subscription_id, number, registrant_session_id, registrant_frame_id, registration_key, name, source_type, source_key, "
    "definition_hash, env_ref, enabled, body, intent, digest, created_ms, updated_ms"
)
_SUBSCRIPTIONS_ROWS = (
    "rows.subscription_id, rows.number, rows.registrant_session_id, rows.registrant_frame_id, rows.registration_key, "
    "rows.name, rows.source_type, rows.source_key, rows.definition_hash, rows.env_ref, rows.enabled, rows.body, "
    "rows.intent, rows.digest, rows.created_ms, rows.updated_ms"
)
_SUBSCRIPTIONS_TYPED = (
    "subscription_id text, number int, registrant_session_id text, registrant_frame_id text, registration_key text, name "
    "text, source_type text, source_key text, definition_hash bytes, env_ref text, enabled int, body text, intent bytes, "
    "digest bytes, created_ms int, updated_ms int"
)
_SUBSCRIPTIONS_FROM = " FROM {subscriptions} WHERE subscription_id > CAST(:k0 AS TEXT) ORDER BY subscription_id LIMIT :limit"
_SUBSCRIPTIONS_WEIGHT = "COALESCE(OCTET_LENGTH(body), 0)"
_SUBSCRIPTIONS_CONFLICT = (
    " WHERE true ON CONFLICT (subscription_id) DO UPDATE SET number = excluded.number, registrant_session_id = "
    "excluded.registrant_session_id, registrant_frame_id = excluded.registrant_frame_id, registration_key = "
    "excluded.registration_key, name = excluded.name, source_type = excluded.source_type, source_key = excluded.source_key, "
    "definition_hash = excluded.definition_hash, env_ref = excluded.env_ref, enabled = excluded.enabled, body = "
    "excluded.body, intent = excluded.intent, digest = excluded.digest, created_ms = excluded.created_ms, updated_ms = "
    "excluded.updated_ms"
)
SUBSCRIPTIONS = Table(
    name="subscriptions",
    typed=_SUBSCRIPTIONS_TYPED,
    nulls="registration_key name definition_hash env_ref",
    key=("subscription_id",),
    page="SELECT " + _SUBSCRIPTIONS + _SUBSCRIPTIONS_FROM,
    weigh="SELECT " + _SUBSCRIPTIONS_WEIGHT + _SUBSCRIPTIONS_FROM,
    insert="INSERT INTO {subscriptions} ("
    + _SUBSCRIPTIONS
    + ") SELECT "
    + _SUBSCRIPTIONS_ROWS
    + " FROM {rows("
    + _SUBSCRIPTIONS_TYPED
    + ")}"
    + _SUBSCRIPTIONS_CONFLICT,
    grows="updated_ms",
)

_ARTIFACTS = "namespace, ref, descriptor, data, digest, size, created_ms, updated_ms"
_ARTIFACTS_ROWS = "rows.namespace, rows.ref, rows.descriptor, rows.data, rows.digest, rows.size, rows.created_ms, rows.updated_ms"
_ARTIFACTS_TYPED = "namespace text, ref text, descriptor text, data bytes, digest bytes, size int, created_ms int, updated_ms int"
_ARTIFACTS_FROM = (
    " FROM {artifacts} WHERE (namespace, ref) > (CAST(:k0 AS TEXT), CAST(:k1 AS TEXT)) ORDER BY namespace, ref LIMIT :limit"
)
_ARTIFACTS_WEIGHT = "COALESCE(OCTET_LENGTH(data), 0)"
_ARTIFACTS_CONFLICT = (
    " WHERE true ON CONFLICT (namespace, ref) DO UPDATE SET descriptor = excluded.descriptor, data = excluded.data, digest "
    "= excluded.digest, size = excluded.size, created_ms = excluded.created_ms, updated_ms = excluded.updated_ms"
)
ARTIFACTS = Table(
    name="artifacts",
    typed=_ARTIFACTS_TYPED,
    nulls="descriptor",
    key=("namespace", "ref"),
    page="SELECT " + _ARTIFACTS + _ARTIFACTS_FROM,
    weigh="SELECT " + _ARTIFACTS_WEIGHT + _ARTIFACTS_FROM,
    insert="INSERT INTO {artifacts} ("
    + _ARTIFACTS
    + ") SELECT "
    + _ARTIFACTS_ROWS
    + " FROM {rows("
    + _ARTIFACTS_TYPED
    + ")}"
    + _ARTIFACTS_CONFLICT,
    grows="updated_ms",
)

_COUNTERS = "name, value"
_COUNTERS_ROWS = "rows.name, rows.value"
_COUNTERS_TYPED = "name text, value int"
_COUNTERS_FROM = " FROM {counters} WHERE name > CAST(:k0 AS TEXT) ORDER BY name LIMIT :limit"
_COUNTERS_CONFLICT = " WHERE true ON CONFLICT (name) DO UPDATE SET value = excluded.value"
COUNTERS = Table(
    name="counters",
    typed=_COUNTERS_TYPED,
    key=("name",),
    page="SELECT " + _COUNTERS + _COUNTERS_FROM,
    insert="INSERT INTO {counters} ("
    + _COUNTERS
    + ") SELECT "
    + _COUNTERS_ROWS
    + " FROM {rows("
    + _COUNTERS_TYPED
    + ")}"
    + _COUNTERS_CONFLICT,
    grows="value",
)

# What refers to something comes before it: what it refers to was there first, and is still to be read.
SHARED: tuple[Table, ...] = (DELIVERIES, OCCURRENCES, SCHEDULES, SUBSCRIPTIONS, COUNTERS, ARTIFACTS)

# Bytes travel through the byte stores, whichever kind each store has; the schema's version is each store's own.
ELSEWHERE = ("chunks", "meta")
