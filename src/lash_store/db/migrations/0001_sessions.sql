-- The first schema: sessions, their graph, commits, checkpoints, usage, inbox and attachments.
-- Session id leads every session-owned key. Times are milliseconds of the database's clock. Digests are sha256.

CREATE TABLE {sessions} (
    session_id {key} PRIMARY KEY NOT NULL,
    incarnation {int} NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('live', 'purging', 'deleted')),
    name TEXT NOT NULL,
    model TEXT,
    cwd TEXT,
    parent_session_id {key},
    caused_by {body},
    meta_digest {bytes} NOT NULL,
    created_ms {int} NOT NULL,
    updated_ms {int} NOT NULL,
    revision {int} NOT NULL CHECK (revision >= 0),
    leaf_id {key},
    config_revision {int},
    current_frame_id {key},
    checkpoint_digest {bytes},
    node_count {int} NOT NULL CHECK (node_count >= 0),
    next_position {int} NOT NULL,
    next_branch {int} NOT NULL,
    next_enqueue_seq {int} NOT NULL,
    fence {int} NOT NULL,
    ready_ms {int},
    open_ms {int},
    history_floor {int} NOT NULL
){strict};

CREATE INDEX lash_sessions_by_updated ON {sessions} (updated_ms, session_id) WHERE state = 'live';
CREATE INDEX lash_sessions_by_parent ON {sessions} (parent_session_id, session_id) WHERE parent_session_id IS NOT NULL;
CREATE INDEX lash_sessions_by_ready ON {sessions} (ready_ms, session_id) WHERE ready_ms IS NOT NULL;
CREATE INDEX lash_sessions_by_open ON {sessions} (open_ms, session_id) WHERE open_ms IS NOT NULL;
CREATE INDEX lash_sessions_purging ON {sessions} (session_id) WHERE state = 'purging';

-- A branch is a run of nodes: the first child of its tip continues it, any other child starts a new branch.
CREATE TABLE {branches} (
    session_id {key} NOT NULL,
    branch {int} NOT NULL,
    parent_branch {int},
    parent_depth {int},
    first_depth {int} NOT NULL,
    tip_depth {int} NOT NULL,
    PRIMARY KEY (session_id, branch),
    CHECK (parent_branch < branch)
){strict_keyed};

CREATE INDEX lash_branches_by_parent ON {branches} (session_id, parent_branch, parent_depth);

CREATE TABLE {nodes} (
    session_id {key} NOT NULL,
    branch {int} NOT NULL,
    depth {int} NOT NULL,
    position {int} NOT NULL,
    node_id {key} NOT NULL,
    parent_id {key},
    kind TEXT NOT NULL,
    body {body},
    frame_id {key},
    caused_by {body},
    digest {bytes} NOT NULL,
    created_ms {int} NOT NULL,
    created_revision {int} NOT NULL,
    tombstone_revision {int},
    PRIMARY KEY (session_id, branch, depth)
){strict};

CREATE UNIQUE INDEX lash_nodes_by_id ON {nodes} (session_id, node_id);
CREATE INDEX lash_nodes_tombstoned ON {nodes} (session_id, branch, depth) WHERE tombstone_revision IS NOT NULL;

-- One row per commit: receipt, audit trail and time travel.
CREATE TABLE {commits} (
    session_id {key} NOT NULL,
    revision {int} NOT NULL,
    incarnation {int} NOT NULL,
    kind TEXT NOT NULL,
    turn_id {key},
    intent {bytes},
    leaf_id {key},
    current_frame_id {key},
    checkpoint_digest {bytes},
    result {body} NOT NULL,
    digest {bytes} NOT NULL,
    committed_ms {int} NOT NULL,
    PRIMARY KEY (session_id, revision)
){strict};

CREATE UNIQUE INDEX lash_commits_by_turn ON {commits} (session_id, turn_id) WHERE turn_id IS NOT NULL;

CREATE TABLE {configs} (
    session_id {key} NOT NULL,
    revision {int} NOT NULL,
    body {body} NOT NULL,
    digest {bytes} NOT NULL,
    PRIMARY KEY (session_id, revision)
){strict};

CREATE TABLE {frames} (
    session_id {key} NOT NULL,
    frame_id {key} NOT NULL,
    revision {int} NOT NULL,
    until_revision {int},
    ordinal {int} NOT NULL,
    body {body} NOT NULL,
    state {bytes},
    digest {bytes} NOT NULL,
    created_ms {int} NOT NULL,
    PRIMARY KEY (session_id, frame_id, revision)
){strict};

CREATE INDEX lash_frames_current ON {frames} (session_id, ordinal) WHERE until_revision IS NULL;

-- The current version of each checkpoint component; digest NULL when it was removed.
CREATE TABLE {components} (
    session_id {key} NOT NULL,
    component {key} NOT NULL,
    revision {int} NOT NULL,
    full_revision {int} NOT NULL,
    chain {int} NOT NULL,
    digest {bytes},
    PRIMARY KEY (session_id, component)
){strict_keyed};

-- Every version of a component: a full zstd frame, or a delta against the version before it.
CREATE TABLE {versions} (
    session_id {key} NOT NULL,
    component {key} NOT NULL,
    revision {int} NOT NULL,
    full_revision {int} NOT NULL,
    base_revision {int},
    digest {bytes},
    size {int} NOT NULL,
    frame {bytes},
    PRIMARY KEY (session_id, component, revision)
){strict};

CREATE TABLE {usage_entries} (
    session_id {key} NOT NULL,
    revision {int} NOT NULL,
    ordinal {int} NOT NULL,
    source {key} NOT NULL,
    model {key} NOT NULL,
    input {int} NOT NULL,
    output {int} NOT NULL,
    cached_input {int} NOT NULL,
    reasoning {int} NOT NULL,
    PRIMARY KEY (session_id, revision, ordinal)
){strict_keyed};

CREATE TABLE {usage_totals} (
    session_id {key} NOT NULL,
    source {key} NOT NULL,
    model {key} NOT NULL,
    first_revision {int} NOT NULL,
    first_ordinal {int} NOT NULL,
    input {int} NOT NULL,
    output {int} NOT NULL,
    cached_input {int} NOT NULL,
    reasoning {int} NOT NULL,
    PRIMARY KEY (session_id, source, model)
){strict_keyed};

CREATE TABLE {batches} (
    session_id {key} NOT NULL,
    enqueue_seq {int} NOT NULL,
    batch_id {key} NOT NULL,
    source_key {key},
    delivery TEXT NOT NULL,
    slot TEXT NOT NULL,
    merge_key TEXT NOT NULL,
    payloads {body} NOT NULL,
    digest {bytes} NOT NULL,
    intent {bytes} NOT NULL,
    available_ms {int} NOT NULL,
    enqueued_ms {int} NOT NULL,
    attempts {int} NOT NULL,
    max_attempts {int},
    fence {int} NOT NULL,
    parked_ms {int},
    parked_reason TEXT,
    claim_id {key},
    owner {key},
    token {key},
    claimed_ms {int},
    expires_ms {int},
    PRIMARY KEY (session_id, enqueue_seq)
){strict};

CREATE UNIQUE INDEX lash_batches_by_id ON {batches} (session_id, batch_id);
CREATE UNIQUE INDEX lash_batches_by_key ON {batches} (session_id, source_key) WHERE source_key IS NOT NULL;
CREATE INDEX lash_batches_open ON {batches} (session_id, available_ms) WHERE token IS NULL AND parked_ms IS NULL;
CREATE INDEX lash_batches_claimed ON {batches} (session_id, expires_ms) WHERE token IS NOT NULL;
CREATE INDEX lash_batches_deliverable ON {batches} (session_id, enqueue_seq) WHERE token IS NULL AND parked_ms IS NULL;
CREATE INDEX lash_batches_by_token ON {batches} (token, session_id) WHERE token IS NOT NULL;

-- Keys (and ids) of settled batches, remembered so that a late retry does not run the work again.
CREATE TABLE {settled_keys} (
    session_id {key} NOT NULL,
    source_key {key} NOT NULL,
    batch_id {key} NOT NULL,
    enqueue_seq {int} NOT NULL,
    intent {bytes} NOT NULL,
    settled_ms {int} NOT NULL,
    PRIMARY KEY (session_id, source_key)
){strict_keyed};

CREATE INDEX lash_settled_keys_by_age ON {settled_keys} (settled_ms, session_id, source_key);

CREATE TABLE {attachments} (
    session_id {key} NOT NULL,
    attachment_id {key} NOT NULL,
    media_type TEXT NOT NULL,
    byte_len {int} NOT NULL,
    label TEXT,
    width {int},
    height {int},
    intent_ms {int} NOT NULL,
    committed_ms {int},
    PRIMARY KEY (session_id, attachment_id)
){strict_keyed};

CREATE INDEX lash_attachments_by_digest ON {attachments} (attachment_id, session_id);
CREATE INDEX lash_attachments_uncommitted ON {attachments} (intent_ms, attachment_id, session_id) WHERE committed_ms IS NULL;

-- One row per content: the lock that keeps a put and a sweep of the same bytes apart.
CREATE TABLE {digests} (
    attachment_id {key} PRIMARY KEY NOT NULL,
    byte_len {int} NOT NULL,
    released_ms {int}
){strict_keyed};

CREATE INDEX lash_digests_released ON {digests} (released_ms, attachment_id) WHERE released_ms IS NOT NULL;

-- Bytes of attachments, when the database itself keeps them.
CREATE TABLE {chunks} (
    attachment_id {key} NOT NULL,
    ordinal {int} NOT NULL,
    data {bytes} NOT NULL,
    PRIMARY KEY (attachment_id, ordinal)
){strict};
