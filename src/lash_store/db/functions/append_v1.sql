-- An append in one call: `ops.events.append` for events whose keys are new and none of which ends the process.
-- No row means that the case is another one, and nothing was written; LS000 says the same after the first write, and undoes it.
CREATE OR REPLACE FUNCTION {schema}.append_v1(
    p_process_id TEXT, p_registration_hash BYTEA,
    p_lease_owner TEXT, p_lease_incarnation TEXT, p_lease_token TEXT, p_lease_fence BIGINT,
    p_types TEXT[], p_payloads TEXT[], p_hashes BYTEA[], p_keys TEXT[],
    p_target_session_id TEXT, p_target_frame_id TEXT, p_wake_id_start TEXT, p_dedupe_start TEXT,
    p_wake_ids TEXT[], p_dedupe_keys TEXT[], p_wake_inputs TEXT[], p_wake_batch_ids TEXT[], p_wake_payloads TEXT[],
    p_fence_replays BOOLEAN
) RETURNS TABLE (
    outcome TEXT, sequence BIGINT, wake_id TEXT, wake_dedupe_key TEXT, wake_batch_id TEXT, wake_coalesced BIGINT, occurred_ms BIGINT,
    digest BYTEA, rings_inbox BOOLEAN,
    event_type TEXT, payload TEXT, payload_hash BYTEA, replay_key TEXT, terminal_state TEXT, wake_input TEXT,
    wake_session_id TEXT, wake_frame_id TEXT
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $lash$
#variable_conflict use_column
DECLARE
    target RECORD;
    process RECORD;
    pending RECORD;
    now_ms BIGINT;
    first_seq BIGINT;
    next_seq BIGINT;
    woken_by TEXT;
    taken BOOLEAN;
    -- One element for each event: what its wake is called, which batch carries it, and whether that was there before.
    ids TEXT[];
    dedupes TEXT[];
    batch_ids TEXT[];
    coalesced BIGINT[];
    place INT;
BEGIN
    -- Sessions are locked before processes.
    IF p_wake_inputs IS NOT NULL THEN
        SELECT s.state, s.next_enqueue_seq INTO target
        FROM {sessions} s WHERE s.session_id = p_target_session_id FOR UPDATE;
        IF NOT FOUND OR target.state <> 'live' THEN
            RETURN;
        END IF;
        first_seq := target.next_enqueue_seq;
        next_seq := first_seq;
    END IF;
    SELECT p.registration_hash, p.last_sequence, p.pruned_ms, p.wake_session_id, p.wake_frame_id, p.lease_owner,
           p.lease_incarnation, p.lease_token, p.lease_fence, p.lease_expires_ms
    INTO process
    FROM {processes} p WHERE p.process_id = p_process_id FOR UPDATE;
    IF NOT FOUND OR process.pruned_ms IS NOT NULL OR process.registration_hash <> p_registration_hash THEN
        RETURN;
    END IF;
    IF p_wake_inputs IS NOT NULL AND (process.wake_session_id IS DISTINCT FROM p_target_session_id
                                      OR process.wake_frame_id IS DISTINCT FROM p_target_frame_id) THEN
        RETURN;
    END IF;
    now_ms := {now_ms};
    PERFORM 1 FROM unnest(p_keys) AS k(key)
    -- A range of one, in order, as in `commit_v1`.
    CROSS JOIN LATERAL (
        SELECT 1 FROM {events} e WHERE e.process_id = p_process_id AND e.replay_key >= k.key AND e.replay_key <= k.key
        ORDER BY e.replay_key LIMIT 1
    ) AS found;
    IF FOUND THEN
        -- A retry of what the log has already, all of it, is answered from there.
        IF NOT p_fence_replays AND cardinality(p_keys) = (
            SELECT count(*) FROM unnest(p_keys, p_hashes) AS k(key, hash)
            CROSS JOIN LATERAL (SELECT x.payload_hash FROM {events} x
                                WHERE x.process_id = p_process_id AND x.replay_key >= k.key AND x.replay_key <= k.key
                                ORDER BY x.replay_key LIMIT 1) AS e
            WHERE e.payload_hash = k.hash
        ) THEN
            RETURN QUERY
                SELECT 'stored'::text, e.sequence, e.wake_id, e.wake_dedupe_key, e.wake_batch_id, e.wake_coalesced,
                       e.occurred_ms, e.digest, false, e.event_type, e.payload, e.payload_hash, e.replay_key, e.terminal_state,
                       e.wake_input, e.wake_session_id, e.wake_frame_id
                FROM unnest(p_keys) WITH ORDINALITY AS k(key, ordinal)
                CROSS JOIN LATERAL (SELECT * FROM {events} x
                                    WHERE x.process_id = p_process_id AND x.replay_key >= k.key AND x.replay_key <= k.key
                                    ORDER BY x.replay_key LIMIT 1) AS e
                ORDER BY k.ordinal;
        END IF;
        RETURN;
    END IF;
    IF p_lease_token IS NOT NULL AND (process.lease_owner IS DISTINCT FROM p_lease_owner
                                      OR process.lease_incarnation IS DISTINCT FROM p_lease_incarnation
                                      OR process.lease_token IS DISTINCT FROM p_lease_token
                                      OR process.lease_fence IS DISTINCT FROM p_lease_fence
                                      OR process.lease_expires_ms IS NULL OR process.lease_expires_ms <= now_ms) THEN
        RETURN;
    END IF;

    IF p_wake_inputs IS NULL THEN
        UPDATE {processes} p SET last_sequence = process.last_sequence + cardinality(p_types), updated_ms = now_ms
        WHERE p.process_id = p_process_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the locked process vanished' USING ERRCODE = 'LS000';
        END IF;
        RETURN QUERY
            INSERT INTO {events} AS e (process_id, sequence, event_type, payload, payload_hash, replay_key, occurred_ms, digest)
            SELECT p_process_id, process.last_sequence + i, p_types[i], p_payloads[i], p_hashes[i], p_keys[i], now_ms,
                   sha256({schema}.frame_tag('event/1') || {schema}.frame_text(p_process_id)
                          || {schema}.frame_int(process.last_sequence + i) || {schema}.frame_text(p_types[i])
                          || {schema}.frame_text(p_payloads[i]) || {schema}.frame_bytes(p_hashes[i])
                          || {schema}.frame_text(p_keys[i]) || decode(repeat('6e0000000000000000', 8), 'hex')
                          || {schema}.frame_int(now_ms))
            FROM generate_series(1, cardinality(p_types)) AS i
            RETURNING 'done'::text, e.sequence, NULL::text, NULL::text, NULL::text, NULL::bigint, e.occurred_ms, e.digest, false,
                NULL::text, NULL::text, NULL::bytea, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text;
        RETURN;
    END IF;

    ids := array_fill(NULL::text, ARRAY[cardinality(p_types)]);
    dedupes := ids;
    batch_ids := ids;
    coalesced := ids;
    -- A wake whose id still waits to be claimed joins it; one whose id a worker has read already is another case.
    FOR i IN 1 .. cardinality(p_wake_inputs) LOOP
        CONTINUE WHEN p_wake_inputs[i] IS NULL;
        woken_by := COALESCE(p_wake_ids[i], 'wake:' || encode(
            sha256(convert_to(p_wake_id_start || (process.last_sequence + i) || '"]', 'UTF8')), 'hex'));
        dedupes[i] := COALESCE(p_dedupe_keys[i], p_dedupe_start || (process.last_sequence + i) || '"');
        place := array_position(ids, woken_by);
        ids[i] := woken_by;
        IF place IS NOT NULL THEN
            batch_ids[i] := batch_ids[place];
            coalesced[i] := 1;
            CONTINUE;
        END IF;
        coalesced[i] := 0;
        batch_ids[i] := p_wake_batch_ids[i];
        taken := false;
        FOR pending IN
            SELECT b.batch_id, b.token, b.parked_ms FROM {batches} b
            WHERE b.session_id = p_target_session_id AND b.source_key >= woken_by AND b.source_key < woken_by || ';'
            ORDER BY b.enqueue_seq
        LOOP
            IF pending.token IS NOT NULL OR pending.parked_ms IS NOT NULL THEN
                taken := true;
            ELSIF coalesced[i] = 0 THEN
                batch_ids[i] := pending.batch_id;
                coalesced[i] := 1;
            END IF;
        END LOOP;
        CONTINUE WHEN coalesced[i] = 1;
        IF taken THEN
            RAISE EXCEPTION 'a wake of this id was claimed' USING ERRCODE = 'LS000';
        END IF;
        INSERT INTO {batches} (session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest,
                               intent, available_ms, enqueued_ms, attempts, max_attempts, fence)
        VALUES (p_target_session_id, next_seq, batch_ids[i], woken_by, 'earliest_safe_boundary', 'exclusive', 'never',
                p_wake_payloads[i],
                {schema}.batch_digest_v1(batch_ids[i], woken_by, 'earliest_safe_boundary', 'exclusive', 'never',
                                         p_wake_payloads[i]),
                sha256({schema}.frame_tag('wake-batch/1') || {schema}.frame_text(woken_by)
                       || {schema}.frame_text(p_wake_payloads[i])),
                now_ms, now_ms, 0, NULL, 0);
        next_seq := next_seq + 1;
    END LOOP;
    IF next_seq > first_seq THEN
        UPDATE {sessions} s SET next_enqueue_seq = next_seq, ready_ms = i.ready_ms, open_ms = i.open_ms
        FROM {schema}.inbox_ready_v1(p_target_session_id) AS i
        WHERE s.session_id = p_target_session_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the locked session vanished' USING ERRCODE = 'LS000';
        END IF;
    END IF;

    UPDATE {processes} p
    SET last_sequence = process.last_sequence + cardinality(p_types), updated_ms = now_ms
    WHERE p.process_id = p_process_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the locked process vanished' USING ERRCODE = 'LS000';
    END IF;
    RETURN QUERY
        INSERT INTO {events} AS e (
            process_id, sequence, event_type, payload, payload_hash, replay_key, wake_id, wake_dedupe_key, wake_input,
            wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest)
        SELECT p_process_id, d.sequence, d.event_type, d.payload, d.payload_hash, d.replay_key, d.wake_id, d.dedupe,
               d.wake_input, d.session_id, d.frame_id, d.batch_id, d.joined, now_ms,
               sha256({schema}.frame_tag('event/1') || {schema}.frame_text(p_process_id) || {schema}.frame_int(d.sequence)
                      || {schema}.frame_text(d.event_type) || {schema}.frame_text(d.payload)
                      || {schema}.frame_bytes(d.payload_hash) || {schema}.frame_text(d.replay_key)
                      || {schema}.frame_text(NULL) || {schema}.frame_text(d.wake_id) || {schema}.frame_text(d.dedupe)
                      || {schema}.frame_text(d.wake_input) || {schema}.frame_text(d.session_id)
                      || {schema}.frame_text(d.frame_id) || {schema}.frame_text(d.batch_id)
                      || {schema}.frame_int(d.joined) || {schema}.frame_int(now_ms))
        FROM (
            SELECT process.last_sequence + g.ordinal AS sequence, g.event_type, g.payload, g.payload_hash, g.replay_key,
                   g.wake_id, g.dedupe, g.wake_input, g.batch_id, g.joined,
                   CASE WHEN g.wake_id IS NOT NULL THEN p_target_session_id END AS session_id,
                   CASE WHEN g.wake_id IS NOT NULL THEN p_target_frame_id END AS frame_id
            FROM unnest(p_types, p_payloads, p_hashes, p_keys, ids, dedupes, p_wake_inputs, batch_ids, coalesced)
                 WITH ORDINALITY AS g(event_type, payload, payload_hash, replay_key, wake_id, dedupe, wake_input, batch_id, joined,
                                      ordinal)
            OFFSET 0
        ) AS d
        RETURNING 'done'::text, e.sequence, e.wake_id, e.wake_dedupe_key, e.wake_batch_id, e.wake_coalesced, e.occurred_ms,
            e.digest, COALESCE(next_seq > first_seq, false), NULL::text, NULL::text, NULL::bytea, NULL::text, NULL::text,
            NULL::text, NULL::text, NULL::text;
END
$lash$
