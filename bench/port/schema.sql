CREATE TABLE IF NOT EXISTS lash_blobs (hash TEXT PRIMARY KEY, content BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS lash_sessions (session_id TEXT PRIMARY KEY, head_revision BIGINT NOT NULL, head_json TEXT NOT NULL, checkpoint_ref TEXT);
CREATE TABLE IF NOT EXISTS lash_graph_nodes (
    session_id TEXT NOT NULL, seq BIGSERIAL, node_id TEXT NOT NULL, node_json TEXT NOT NULL,
    tombstoned BOOLEAN NOT NULL DEFAULT FALSE, PRIMARY KEY (session_id, node_id)
);
CREATE INDEX IF NOT EXISTS lash_graph_nodes_seq ON lash_graph_nodes (session_id, seq);
CREATE TABLE IF NOT EXISTS lash_runtime_turn_commits (
    session_id TEXT NOT NULL, turn_id TEXT NOT NULL, turn_commit_hash TEXT NOT NULL, result_json TEXT NOT NULL,
    committed_at_ms BIGINT NOT NULL, PRIMARY KEY (session_id, turn_id)
);
CREATE TABLE IF NOT EXISTS lash_queued_work_batches (
    enqueue_seq BIGSERIAL, batch_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, source_key TEXT,
    available_at_ms BIGINT NOT NULL, enqueued_at_ms BIGINT NOT NULL, claim_id TEXT, claim_owner_id TEXT, claim_token TEXT,
    claim_fencing_token BIGINT NOT NULL DEFAULT 0, claim_expires_at_ms BIGINT NOT NULL DEFAULT 0, UNIQUE (session_id, source_key)
);
CREATE INDEX IF NOT EXISTS lash_queued_work_ready ON lash_queued_work_batches (session_id, available_at_ms, enqueue_seq);
CREATE TABLE IF NOT EXISTS lash_queued_work_items (
    batch_id TEXT NOT NULL REFERENCES lash_queued_work_batches ON DELETE CASCADE, item_index BIGINT NOT NULL,
    item_id TEXT NOT NULL, payload_json TEXT NOT NULL, PRIMARY KEY (batch_id, item_index)
);
CREATE TABLE IF NOT EXISTS lash_process_events (
    process_id TEXT NOT NULL, sequence BIGINT NOT NULL, event_json TEXT NOT NULL, replay_key TEXT,
    PRIMARY KEY (process_id, sequence), UNIQUE (process_id, replay_key)
);
CREATE TABLE IF NOT EXISTS lash_processes (process_id TEXT PRIMARY KEY, record_json TEXT NOT NULL, last_sequence BIGINT NOT NULL);
