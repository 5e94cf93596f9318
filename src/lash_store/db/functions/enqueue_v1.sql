-- An enqueue in one call: `ops.queue.enqueue` for a live session, a key that is new, and the retry of one that waits.
-- No row means that the case is another one, and nothing was written.
CREATE OR REPLACE FUNCTION {schema}.enqueue_v1(
    p_session_id TEXT, p_incarnation BIGINT, p_batch_id TEXT, p_source_key TEXT, p_delivery TEXT, p_slot TEXT,
    p_merge_key TEXT, p_payloads TEXT, p_digest BYTEA, p_intent BYTEA, p_delay_ms BIGINT, p_max_attempts BIGINT,
    p_retention_ms BIGINT
) RETURNS TABLE (
    outcome TEXT, now_ms BIGINT,
    session_id TEXT, enqueue_seq BIGINT, batch_id TEXT, source_key TEXT, delivery TEXT, slot TEXT, merge_key TEXT, payloads TEXT,
    digest BYTEA, intent BYTEA, available_ms BIGINT, enqueued_ms BIGINT, attempts BIGINT, max_attempts BIGINT, fence BIGINT,
    parked_ms BIGINT, parked_reason TEXT, token TEXT, expires_ms BIGINT
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $lash$
#variable_conflict use_column
DECLARE
    head RECORD;
    waiting RECORD;
    at_ms BIGINT;
BEGIN
    SELECT s.incarnation, s.state, s.next_enqueue_seq INTO head
    FROM {sessions} s WHERE s.session_id = p_session_id FOR UPDATE;
    IF NOT FOUND OR head.state <> 'live' OR head.incarnation <> p_incarnation THEN
        RETURN;
    END IF;
    at_ms := {now_ms};
    -- First, because a key may be remembered and wait again: stores may differ in how long they remember.
    PERFORM 1 FROM {settled_keys} k
    WHERE k.session_id = p_session_id AND k.source_key = COALESCE(p_source_key, p_batch_id)
      AND k.settled_ms > at_ms - p_retention_ms;
    IF FOUND THEN
        RETURN;
    END IF;
    IF p_source_key IS NOT NULL THEN
        -- A range of one, in order, as in `commit_v1`.
        SELECT b.enqueue_seq, b.intent INTO waiting FROM {batches} b
        WHERE b.session_id = p_session_id AND b.source_key >= p_source_key AND b.source_key <= p_source_key
        ORDER BY b.source_key LIMIT 1;
        IF FOUND THEN
            -- The first one from this id on: sorting the inbox for it would look cheap on a young table.
            PERFORM 1
            FROM (SELECT b.session_id, b.batch_id, b.source_key FROM {batches} b
                  WHERE (b.session_id, b.batch_id) >= (p_session_id, p_batch_id)
                  ORDER BY b.session_id, b.batch_id LIMIT 1) AS n
            WHERE n.session_id = p_session_id AND n.batch_id = p_batch_id AND n.source_key IS DISTINCT FROM p_source_key;
            IF NOT FOUND AND waiting.intent = p_intent THEN
                RETURN QUERY
                    SELECT 'stored'::text, at_ms, b.session_id, b.enqueue_seq, b.batch_id, b.source_key, b.delivery, b.slot,
                        b.merge_key, b.payloads, b.digest, b.intent, b.available_ms, b.enqueued_ms, b.attempts, b.max_attempts,
                        b.fence, b.parked_ms, b.parked_reason, b.token, b.expires_ms
                    FROM {batches} b
                    WHERE b.session_id = p_session_id AND b.enqueue_seq >= waiting.enqueue_seq
                      AND b.enqueue_seq <= waiting.enqueue_seq
                    ORDER BY b.enqueue_seq LIMIT 1;
            END IF;
            RETURN;
        END IF;
    END IF;
    -- A batch id that is there already is refused by its index, and then by the operation.
    INSERT INTO {batches} (session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest,
                           intent, available_ms, enqueued_ms, attempts, max_attempts, fence)
    VALUES (p_session_id, head.next_enqueue_seq, p_batch_id, p_source_key, p_delivery, p_slot, p_merge_key, p_payloads, p_digest,
            p_intent, at_ms + p_delay_ms, at_ms, 0, p_max_attempts, 0);
    UPDATE {sessions} s
    SET next_enqueue_seq = head.next_enqueue_seq + 1, ready_ms = i.ready_ms, open_ms = i.open_ms
    FROM {schema}.inbox_ready_v1(p_session_id) AS i
    WHERE s.session_id = p_session_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the locked session vanished' USING ERRCODE = 'LS000';
    END IF;
    outcome := 'fresh';
    now_ms := at_ms;
    enqueue_seq := head.next_enqueue_seq;
    RETURN NEXT;
END
$lash$
