"""The tables of a session, as they travel. The order is that of a bundle: the head first."""

from __future__ import annotations

from lash_store.ops.transfer_table import Table

_SESSIONS = (
    "session_id, incarnation, state, name, model, cwd, parent_session_id, caused_by, meta_digest, created_ms, updated_ms, "
    "revision, leaf_id, config_revision, current_frame_id, checkpoint_digest, node_count, next_position, next_branch, "
    "next_enqueue_seq, fence, ready_ms, open_ms, history_floor"
)
_SESSIONS_ROWS = (
    "rows.session_id, rows.incarnation, rows.state, rows.name, rows.model, rows.cwd, rows.parent_session_id, "
    "rows.caused_by, rows.meta_digest, rows.created_ms, rows.updated_ms, rows.revision, rows.leaf_id, rows.config_revision, "
    "rows.current_frame_id, rows.checkpoint_digest, rows.node_count, rows.next_position, rows.next_branch, "
    "rows.next_enqueue_seq, rows.fence, rows.ready_ms, rows.open_ms, rows.history_floor"
)
_SESSIONS_TYPED = (
    "session_id text, incarnation int, state text, name text, model text, cwd text, parent_session_id text, caused_by text, "
    "meta_digest bytes, created_ms int, updated_ms int, revision int, leaf_id text, config_revision int, current_frame_id "
    "text, checkpoint_digest bytes, node_count int, next_position int, next_branch int, next_enqueue_seq int, fence int, "
    "ready_ms int, open_ms int, history_floor int"
)
_SESSIONS_FROM = " FROM {sessions} WHERE session_id = :id"
SESSIONS = Table(
    name="sessions",
    typed=_SESSIONS_TYPED,
    nulls=("model cwd parent_session_id caused_by leaf_id config_revision current_frame_id checkpoint_digest ready_ms open_ms "),
    key=(),
    page="SELECT " + _SESSIONS + _SESSIONS_FROM,
    insert="INSERT INTO {sessions} (" + _SESSIONS + ") SELECT " + _SESSIONS_ROWS + " FROM {rows(" + _SESSIONS_TYPED + ")}",
    clear="DELETE FROM {sessions} WHERE session_id = :id",
)

_BRANCHES = "session_id, branch, parent_branch, parent_depth, first_depth, tip_depth"
_BRANCHES_ROWS = "rows.session_id, rows.branch, rows.parent_branch, rows.parent_depth, rows.first_depth, rows.tip_depth"
_BRANCHES_TYPED = "session_id text, branch int, parent_branch int, parent_depth int, first_depth int, tip_depth int"
_BRANCHES_FROM = " FROM {branches} WHERE session_id = :id AND branch > CAST(:k0 AS {int}) ORDER BY branch LIMIT :limit"
BRANCHES = Table(
    name="branches",
    typed=_BRANCHES_TYPED,
    nulls="parent_branch parent_depth",
    key=("branch",),
    page="SELECT " + _BRANCHES + _BRANCHES_FROM,
    insert="INSERT INTO {branches} (" + _BRANCHES + ") SELECT " + _BRANCHES_ROWS + " FROM {rows(" + _BRANCHES_TYPED + ")}",
    clear="DELETE FROM {branches} WHERE session_id = :id",
)

_NODES = (
    "session_id, branch, depth, position, node_id, parent_id, kind, body, frame_id, caused_by, digest, created_ms, "
    "created_revision, tombstone_revision"
)
_NODES_ROWS = (
    "rows.session_id, rows.branch, rows.depth, rows.position, rows.node_id, rows.parent_id, rows.kind, rows.body, "
    "rows.frame_id, rows.caused_by, rows.digest, rows.created_ms, rows.created_revision, rows.tombstone_revision"
)
_NODES_TYPED = (
    "session_id text, branch int, depth int, position int, node_id text, parent_id text, kind text, body text, frame_id "
    "text, caused_by text, digest bytes, created_ms int, created_revision int, tombstone_revision int"
)
_NODES_FROM = (
    " FROM {nodes} WHERE session_id = :id AND (branch, depth) > (CAST(:k0 AS {int}), CAST(:k1 AS {int})) ORDER BY branch, "
    "depth LIMIT :limit"
)
_NODES_WEIGHT = "COALESCE(OCTET_LENGTH(body), 0) + COALESCE(OCTET_LENGTH(caused_by), 0)"
NODES = Table(
    name="nodes",
    typed=_NODES_TYPED,
    nulls="parent_id body frame_id caused_by tombstone_revision",
    key=("branch", "depth"),
    page="SELECT " + _NODES + _NODES_FROM,
    weigh="SELECT " + _NODES_WEIGHT + _NODES_FROM,
    insert="INSERT INTO {nodes} (" + _NODES + ") SELECT " + _NODES_ROWS + " FROM {rows(" + _NODES_TYPED + ")}",
    clear="DELETE FROM {nodes} WHERE session_id = :id",
)

_COMMITS = (
    "session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id, checkpoint_digest, result, "
    "digest, committed_ms"
)
_COMMITS_ROWS = (
    "rows.session_id, rows.revision, rows.incarnation, rows.kind, rows.turn_id, rows.intent, rows.leaf_id, "
    "rows.current_frame_id, rows.checkpoint_digest, rows.result, rows.digest, rows.committed_ms"
)
_COMMITS_TYPED = (
    "session_id text, revision int, incarnation int, kind text, turn_id text, intent bytes, leaf_id text, current_frame_id "
    "text, checkpoint_digest bytes, result text, digest bytes, committed_ms int"
)
_COMMITS_FROM = " FROM {commits} WHERE session_id = :id AND revision > CAST(:k0 AS {int}) ORDER BY revision LIMIT :limit"
_COMMITS_WEIGHT = "COALESCE(OCTET_LENGTH(result), 0)"
COMMITS = Table(
    name="commits",
    typed=_COMMITS_TYPED,
    nulls="turn_id intent leaf_id current_frame_id checkpoint_digest",
    key=("revision",),
    page="SELECT " + _COMMITS + _COMMITS_FROM,
    weigh="SELECT " + _COMMITS_WEIGHT + _COMMITS_FROM,
    insert="INSERT INTO {commits} (" + _COMMITS + ") SELECT " + _COMMITS_ROWS + " FROM {rows(" + _COMMITS_TYPED + ")}",
    clear="DELETE FROM {commits} WHERE session_id = :id",
)

_CONFIGS = "session_id, revision, body, digest"
_CONFIGS_ROWS = "rows.session_id, rows.revision, rows.body, rows.digest"
_CONFIGS_TYPED = "session_id text, revision int, body text, digest bytes"
_CONFIGS_FROM = " FROM {configs} WHERE session_id = :id AND revision > CAST(:k0 AS {int}) ORDER BY revision LIMIT :limit"
_CONFIGS_WEIGHT = "COALESCE(OCTET_LENGTH(body), 0)"
CONFIGS = Table(
    name="configs",
    typed=_CONFIGS_TYPED,
    key=("revision",),
    page="SELECT " + _CONFIGS + _CONFIGS_FROM,
    weigh="SELECT " + _CONFIGS_WEIGHT + _CONFIGS_FROM,
    insert="INSERT INTO {configs} (" + _CONFIGS + ") SELECT " + _CONFIGS_ROWS + " FROM {rows(" + _CONFIGS_TYPED + ")}",
    clear="DELETE FROM {configs} WHERE session_id = :id",
)

_FRAMES = "session_id, frame_id, revision, until_revision, ordinal, body, state, digest, created_ms"
_FRAMES_ROWS = (
    "rows.session_id, rows.frame_id, rows.revision, rows.until_revision, rows.ordinal, rows.body, rows.state, rows.digest, "
    "rows.created_ms"
)
_FRAMES_TYPED = (
    "session_id text, frame_id text, revision int, until_revision int, ordinal int, body text, state bytes, digest bytes, "
    "created_ms int"
)
_FRAMES_FROM = (
    " FROM {frames} WHERE session_id = :id AND (frame_id, revision) > (CAST(:k0 AS TEXT), CAST(:k1 AS {int})) ORDER BY "
    "frame_id, revision LIMIT :limit"
)
_FRAMES_WEIGHT = "COALESCE(OCTET_LENGTH(body), 0) + COALESCE(OCTET_LENGTH(state), 0)"
FRAMES = Table(
    name="frames",
    typed=_FRAMES_TYPED,
    nulls="until_revision state",
    key=("frame_id", "revision"),
    page="SELECT " + _FRAMES + _FRAMES_FROM,
    weigh="SELECT " + _FRAMES_WEIGHT + _FRAMES_FROM,
    insert="INSERT INTO {frames} (" + _FRAMES + ") SELECT " + _FRAMES_ROWS + " FROM {rows(" + _FRAMES_TYPED + ")}",
    clear="DELETE FROM {frames} WHERE session_id = :id",
)

_COMPONENTS = "session_id, component, revision, full_revision, chain, digest"
_COMPONENTS_ROWS = "rows.session_id, rows.component, rows.revision, rows.full_revision, rows.chain, rows.digest"
_COMPONENTS_TYPED = "session_id text, component text, revision int, full_revision int, chain int, digest bytes"
_COMPONENTS_FROM = " FROM {components} WHERE session_id = :id AND component > CAST(:k0 AS TEXT) ORDER BY component LIMIT :limit"
COMPONENTS = Table(
    name="components",
    typed=_COMPONENTS_TYPED,
    nulls="digest",
    key=("component",),
    page="SELECT " + _COMPONENTS + _COMPONENTS_FROM,
    insert="INSERT INTO {components} ("
    + _COMPONENTS
    + ") SELECT "
    + _COMPONENTS_ROWS
    + " FROM {rows("
    + _COMPONENTS_TYPED
    + ")}",
    clear="DELETE FROM {components} WHERE session_id = :id",
)

_VERSIONS = "session_id, component, revision, full_revision, base_revision, digest, size, frame"
_VERSIONS_ROWS = (
    "rows.session_id, rows.component, rows.revision, rows.full_revision, rows.base_revision, rows.digest, rows.size, rows.frame"
)
_VERSIONS_TYPED = (
    "session_id text, component text, revision int, full_revision int, base_revision int, digest bytes, size int, frame bytes"
)
_VERSIONS_FROM = (
    " FROM {versions} WHERE session_id = :id AND (component, revision) > (CAST(:k0 AS TEXT), CAST(:k1 AS {int})) ORDER BY "
    "component, revision LIMIT :limit"
)
_VERSIONS_WEIGHT = "COALESCE(OCTET_LENGTH(frame), 0)"
VERSIONS = Table(
    name="versions",
    typed=_VERSIONS_TYPED,
    nulls="base_revision digest frame",
    key=("component", "revision"),
    page="SELECT " + _VERSIONS + _VERSIONS_FROM,
    weigh="SELECT " + _VERSIONS_WEIGHT + _VERSIONS_FROM,
    insert="INSERT INTO {versions} (" + _VERSIONS + ") SELECT " + _VERSIONS_ROWS + " FROM {rows(" + _VERSIONS_TYPED + ")}",
    clear="DELETE FROM {versions} WHERE session_id = :id",
)

_USAGE_ENTRIES = "session_id, revision, ordinal, source, model, input, output, cached_input, reasoning"
_USAGE_ENTRIES_ROWS = (
    "rows.session_id, rows.revision, rows.ordinal, rows.source, rows.model, rows.input, rows.output, rows.cached_input, "
    "rows.reasoning"
)
_USAGE_ENTRIES_TYPED = (
    "session_id text, revision int, ordinal int, source text, model text, input int, output int, cached_input int, reasoning int"
)
_USAGE_ENTRIES_FROM = (
    " FROM {usage_entries} WHERE session_id = :id AND (revision, ordinal) > (CAST(:k0 AS {int}), CAST(:k1 AS {int})) ORDER "
    "BY revision, ordinal LIMIT :limit"
)
USAGE_ENTRIES = Table(
    name="usage_entries",
    typed=_USAGE_ENTRIES_TYPED,
    key=("revision", "ordinal"),
    page="SELECT " + _USAGE_ENTRIES + _USAGE_ENTRIES_FROM,
    insert="INSERT INTO {usage_entries} ("
    + _USAGE_ENTRIES
    + ") SELECT "
    + _USAGE_ENTRIES_ROWS
    + " FROM {rows("
    + _USAGE_ENTRIES_TYPED
    + ")}",
    clear="DELETE FROM {usage_entries} WHERE session_id = :id",
)

_USAGE_TOTALS = "session_id, source, model, first_revision, first_ordinal, input, output, cached_input, reasoning"
_USAGE_TOTALS_ROWS = (
    "rows.session_id, rows.source, rows.model, rows.first_revision, rows.first_ordinal, rows.input, rows.output, "
    "rows.cached_input, rows.reasoning"
)
_USAGE_TOTALS_TYPED = (
    "session_id text, source text, model text, first_revision int, first_ordinal int, input int, output int, cached_input "
    "int, reasoning int"
)
_USAGE_TOTALS_FROM = (
    " FROM {usage_totals} WHERE session_id = :id AND (source, model) > (CAST(:k0 AS TEXT), CAST(:k1 AS TEXT)) ORDER BY "
    "source, model LIMIT :limit"
)
USAGE_TOTALS = Table(
    name="usage_totals",
    typed=_USAGE_TOTALS_TYPED,
    key=("source", "model"),
    page="SELECT " + _USAGE_TOTALS + _USAGE_TOTALS_FROM,
    insert="INSERT INTO {usage_totals} ("
    + _USAGE_TOTALS
    + ") SELECT "
    + _USAGE_TOTALS_ROWS
    + " FROM {rows("
    + _USAGE_TOTALS_TYPED
    + ")}",
    clear="DELETE FROM {usage_totals} WHERE session_id = :id",
)

_BATCHES = (
    "session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest, intent, available_ms, "
    "enqueued_ms, attempts, max_attempts, fence, parked_ms, parked_reason, claim_id, owner, token, claimed_ms, expires_ms"
)
_BATCHES_ROWS = (
    "rows.session_id, rows.enqueue_seq, rows.batch_id, rows.source_key, rows.delivery, rows.slot, rows.merge_key, "
    "rows.payloads, rows.digest, rows.intent, rows.available_ms, rows.enqueued_ms, rows.attempts, rows.max_attempts, "
    "rows.fence, rows.parked_ms, rows.parked_reason, rows.claim_id, rows.owner, rows.token, rows.claimed_ms, "
    "rows.expires_ms"
)
_BATCHES_TYPED = (
    "session_id text, enqueue_seq int, batch_id text, source_key text, delivery text, slot text, merge_key text, payloads "
    "text, digest bytes, intent bytes, available_ms int, enqueued_ms int, attempts int, max_attempts int, fence int, "
    "parked_ms int, parked_reason text, claim_id text, owner text, token text, claimed_ms int, expires_ms int"
)
_BATCHES_FROM = " FROM {batches} WHERE session_id = :id AND enqueue_seq > CAST(:k0 AS {int}) ORDER BY enqueue_seq LIMIT :limit"
_BATCHES_WEIGHT = "COALESCE(OCTET_LENGTH(payloads), 0)"
BATCHES = Table(
    name="batches",
    typed=_BATCHES_TYPED,
    nulls="source_key max_attempts parked_ms parked_reason claim_id owner token claimed_ms expires_ms",
    key=("enqueue_seq",),
    page="SELECT " + _BATCHES + _BATCHES_FROM,
    weigh="SELECT " + _BATCHES_WEIGHT + _BATCHES_FROM,
    insert="INSERT INTO {batches} (" + _BATCHES + ") SELECT " + _BATCHES_ROWS + " FROM {rows(" + _BATCHES_TYPED + ")}",
    clear="DELETE FROM {batches} WHERE session_id = :id",
)

_SETTLED_KEYS = "session_id, source_key, batch_id, enqueue_seq, intent, settled_ms"
_SETTLED_KEYS_ROWS = "rows.session_id, rows.source_key, rows.batch_id, rows.enqueue_seq, rows.intent, rows.settled_ms"
_SETTLED_KEYS_TYPED = "session_id text, source_key text, batch_id text, enqueue_seq int, intent bytes, settled_ms int"
_SETTLED_KEYS_FROM = (
    " FROM {settled_keys} WHERE session_id = :id AND source_key > CAST(:k0 AS TEXT) ORDER BY source_key LIMIT :limit"
)
SETTLED_KEYS = Table(
    name="settled_keys",
    typed=_SETTLED_KEYS_TYPED,
    key=("source_key",),
    page="SELECT " + _SETTLED_KEYS + _SETTLED_KEYS_FROM,
    insert="INSERT INTO {settled_keys} ("
    + _SETTLED_KEYS
    + ") SELECT "
    + _SETTLED_KEYS_ROWS
    + " FROM {rows("
    + _SETTLED_KEYS_TYPED
    + ")}",
    clear="DELETE FROM {settled_keys} WHERE session_id = :id",
)

_DIGESTS = "attachment_id, byte_len, released_ms"
_DIGESTS_ROWS = "rows.attachment_id, rows.byte_len, rows.released_ms"
_DIGESTS_TYPED = "attachment_id text, byte_len int, released_ms int"
_DIGESTS_FROM = (
    " FROM {digests} WHERE attachment_id IN (SELECT a.attachment_id FROM {attachments} a WHERE a.session_id = :id) AND "
    "attachment_id > CAST(:k0 AS TEXT) ORDER BY attachment_id LIMIT :limit"
)
_DIGESTS_CONFLICT = " WHERE true ON CONFLICT (attachment_id) DO UPDATE SET released_ms = NULL"
DIGESTS = Table(
    name="digests",
    typed=_DIGESTS_TYPED,
    nulls="released_ms",
    key=("attachment_id",),
    page="SELECT " + _DIGESTS + _DIGESTS_FROM,
    insert="INSERT INTO {digests} ("
    + _DIGESTS
    + ") SELECT "
    + _DIGESTS_ROWS
    + " FROM {rows("
    + _DIGESTS_TYPED
    + ")}"
    + _DIGESTS_CONFLICT,
    clear=(
        "UPDATE {digests} SET released_ms = {now_ms} WHERE attachment_id IN ("
        "SELECT a.attachment_id FROM {attachments} a WHERE a.session_id = :id)"
    ),
)

_ATTACHMENTS = "session_id, attachment_id, media_type, byte_len, label, width, height, intent_ms, committed_ms"
_ATTACHMENTS_ROWS = (
    "rows.session_id, rows.attachment_id, rows.media_type, rows.byte_len, rows.label, rows.width, rows.height, "
    "rows.intent_ms, rows.committed_ms"
)
_ATTACHMENTS_TYPED = (
    "session_id text, attachment_id text, media_type text, byte_len int, label text, width int, height int, intent_ms int, "
    "committed_ms int"
)
_ATTACHMENTS_FROM = (
    " FROM {attachments} WHERE session_id = :id AND attachment_id > CAST(:k0 AS TEXT) ORDER BY attachment_id LIMIT :limit"
)
ATTACHMENTS = Table(
    name="attachments",
    typed=_ATTACHMENTS_TYPED,
    nulls="label width height committed_ms",
    key=("attachment_id",),
    page="SELECT " + _ATTACHMENTS + _ATTACHMENTS_FROM,
    insert="INSERT INTO {attachments} ("
    + _ATTACHMENTS
    + ") SELECT "
    + _ATTACHMENTS_ROWS
    + " FROM {rows("
    + _ATTACHMENTS_TYPED
    + ")}",
    clear="DELETE FROM {attachments} WHERE session_id = :id",
)

# The contents come before the manifest that names them: on the way out they are found through it.
SESSION: tuple[Table, ...] = (
    SESSIONS,
    BRANCHES,
    NODES,
    COMMITS,
    CONFIGS,
    FRAMES,
    COMPONENTS,
    VERSIONS,
    USAGE_ENTRIES,
    USAGE_TOTALS,
    BATCHES,
    SETTLED_KEYS,
    DIGESTS,
    ATTACHMENTS,
)
