-- Background processes with their logs, leases and grants; triggers; artifacts.
-- Process id leads every process-owned key. A registration never changes; what changes is the small row beside it.

CREATE TABLE {processes} (
    process_id {key} PRIMARY KEY NOT NULL,
    registration_hash {bytes} NOT NULL,
    kind {key} NOT NULL,
    definition_hash {bytes},
    originator_session_id {key},
    originator_frame_id {key},
    env_ref {key},
    wake_session_id {key},
    wake_frame_id {key},
    state TEXT NOT NULL CHECK (state IN ('running', 'completed', 'failed', 'cancelled')),
    output {body},
    output_digest {bytes},
    wait_name {key},
    wait_ordinal {int},
    wait_since_ms {int},
    external_ref {body},
    external_ref_digest {bytes},
    last_sequence {int} NOT NULL CHECK (last_sequence >= 0),
    runnable_ms {int},
    lease_owner {key},
    lease_incarnation {key},
    lease_token {key},
    lease_fence {int} NOT NULL,
    lease_claimed_ms {int},
    lease_expires_ms {int},
    created_ms {int} NOT NULL,
    updated_ms {int} NOT NULL,
    pruned_ms {int},
    prune_pending {int}
){strict};

CREATE INDEX lash_processes_runnable ON {processes} (runnable_ms, process_id) WHERE runnable_ms IS NOT NULL;
CREATE INDEX lash_processes_by_state ON {processes} (state, process_id) WHERE pruned_ms IS NULL;
CREATE INDEX lash_processes_by_originator ON {processes} (originator_session_id, process_id) WHERE pruned_ms IS NULL;
CREATE INDEX lash_processes_by_wake ON {processes} (wake_session_id, process_id) WHERE wake_session_id IS NOT NULL;
CREATE INDEX lash_processes_by_env ON {processes} (env_ref) WHERE env_ref IS NOT NULL AND pruned_ms IS NULL;
CREATE INDEX lash_processes_ended ON {processes} (updated_ms, process_id) WHERE state <> 'running' AND pruned_ms IS NULL;

CREATE INDEX lash_processes_prune_pending ON {processes} (process_id) WHERE prune_pending = 1;

CREATE TABLE {registrations} (
    process_id {key} PRIMARY KEY NOT NULL,
    body {body} NOT NULL,
    digest {bytes} NOT NULL
){strict};

CREATE TABLE {events} (
    process_id {key} NOT NULL,
    sequence {int} NOT NULL,
    event_type {key} NOT NULL,
    payload {body} NOT NULL,
    payload_hash {bytes} NOT NULL,
    replay_key {key},
    terminal_state TEXT,
    wake_id {key},
    wake_dedupe_key TEXT,
    wake_input {body},
    wake_session_id {key},
    wake_frame_id {key},
    wake_batch_id {key},
    wake_coalesced {int},
    wake_acked_ms {int},
    digest {bytes} NOT NULL,
    occurred_ms {int} NOT NULL,
    PRIMARY KEY (process_id, sequence)
){strict};

CREATE UNIQUE INDEX lash_events_by_key ON {events} (process_id, replay_key) WHERE replay_key IS NOT NULL;
CREATE INDEX lash_events_by_type ON {events} (process_id, event_type, sequence);
CREATE INDEX lash_events_unacked ON {events} (process_id, sequence) WHERE wake_id IS NOT NULL AND wake_acked_ms IS NULL;

-- A frame of '' is the session itself.
CREATE TABLE {grants} (
    session_id {key} NOT NULL,
    frame_id {key} NOT NULL,
    process_id {key} NOT NULL,
    kind TEXT,
    label TEXT,
    granted_ms {int} NOT NULL,
    PRIMARY KEY (session_id, frame_id, process_id)
){strict_keyed};

CREATE INDEX lash_grants_by_process ON {grants} (process_id, session_id, frame_id);

CREATE TABLE {counters} (
    name {key} PRIMARY KEY NOT NULL,
    value {int} NOT NULL
){strict_keyed};

-- A registrant of '' is the host.
CREATE TABLE {subscriptions} (
    subscription_id {key} PRIMARY KEY NOT NULL,
    number {int} NOT NULL,
    registrant_session_id {key} NOT NULL,
    registrant_frame_id {key} NOT NULL,
    registration_key {key},
    name TEXT,
    source_type {key} NOT NULL,
    source_key {key} NOT NULL,
    definition_hash {bytes},
    env_ref {key},
    enabled {int} NOT NULL,
    body {body} NOT NULL,
    intent {bytes} NOT NULL,
    digest {bytes} NOT NULL,
    created_ms {int} NOT NULL,
    updated_ms {int} NOT NULL
){strict};

CREATE UNIQUE INDEX lash_subscriptions_by_number ON {subscriptions} (number);
CREATE UNIQUE INDEX lash_subscriptions_by_key ON {subscriptions} (registrant_session_id, registration_key)
    WHERE registration_key IS NOT NULL;
CREATE INDEX lash_subscriptions_by_registrant ON {subscriptions} (registrant_session_id, number);
CREATE INDEX lash_subscriptions_by_source ON {subscriptions} (source_type, source_key, number) WHERE enabled = 1;
CREATE INDEX lash_subscriptions_by_env ON {subscriptions} (env_ref) WHERE env_ref IS NOT NULL;

CREATE TABLE {occurrences} (
    occurrence_id {key} PRIMARY KEY NOT NULL,
    source_type {key} NOT NULL,
    source_key {key} NOT NULL,
    idempotency_key {key} NOT NULL,
    request_hash {bytes} NOT NULL,
    body {body} NOT NULL,
    digest {bytes} NOT NULL,
    occurred_ms {int} NOT NULL
){strict};

CREATE INDEX lash_occurrences_by_age ON {occurrences} (occurred_ms, occurrence_id);

-- Each delivery keeps the subscription as it was when the delivery was reserved.
CREATE TABLE {deliveries} (
    occurrence_id {key} NOT NULL,
    subscription_id {key} NOT NULL,
    number {int} NOT NULL,
    process_id {key} NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'started', 'failed')),
    error TEXT,
    snapshot {body} NOT NULL,
    digest {bytes} NOT NULL,
    created_ms {int} NOT NULL,
    updated_ms {int} NOT NULL,
    PRIMARY KEY (occurrence_id, subscription_id)
){strict};

CREATE INDEX lash_deliveries_unfinished ON {deliveries} (created_ms, occurrence_id, subscription_id) WHERE state = 'reserved';
CREATE INDEX lash_deliveries_by_process ON {deliveries} (process_id);
CREATE INDEX lash_deliveries_by_subscription ON {deliveries} (subscription_id, occurrence_id);

-- When each schedule is next due. `done_ms` is the last instant that was fired or passed over.
CREATE TABLE {schedules} (
    subscription_id {key} PRIMARY KEY NOT NULL,
    next_ms {int},
    done_ms {int} NOT NULL
){strict_keyed};

CREATE INDEX lash_schedules_due ON {schedules} (next_ms, subscription_id) WHERE next_ms IS NOT NULL;

CREATE TABLE {artifacts} (
    namespace {key} NOT NULL,
    ref {key} NOT NULL,
    descriptor TEXT,
    data {bytes} NOT NULL,
    digest {bytes} NOT NULL,
    size {int} NOT NULL,
    created_ms {int} NOT NULL,
    updated_ms {int} NOT NULL,
    PRIMARY KEY (namespace, ref)
){strict};

CREATE INDEX lash_artifacts_by_age ON {artifacts} (namespace, updated_ms, ref);
