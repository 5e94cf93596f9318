-- A settlement in one call: `ops.claims.settle` for a claim that holds all its batches.
-- No row, or LS000 after the first write, means that the case is another one, and nothing was written.
CREATE OR REPLACE FUNCTION {schema}.settle_v1(
    p_session_id TEXT, p_incarnation BIGINT, p_batch_ids TEXT[], p_token TEXT, p_fence BIGINT
) RETURNS TABLE (settled BIGINT)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $lash$
#variable_conflict use_column
DECLARE
    head RECORD;
    at_ms BIGINT;
    counted BIGINT;
BEGIN
    SELECT s.incarnation, s.state INTO head FROM {sessions} s WHERE s.session_id = p_session_id FOR UPDATE;
    IF NOT FOUND OR head.state <> 'live' OR head.incarnation <> p_incarnation THEN
        RETURN;
    END IF;
    at_ms := {now_ms};
    WITH gone AS (
        DELETE FROM {batches} b
        WHERE b.session_id = p_session_id AND b.batch_id = ANY(p_batch_ids) AND b.token = p_token AND b.fence = p_fence
        RETURNING COALESCE(b.source_key, b.batch_id) AS key, b.batch_id, b.enqueue_seq, b.intent
    )
    INSERT INTO {settled_keys} AS k (session_id, source_key, batch_id, enqueue_seq, intent, settled_ms)
    SELECT p_session_id, g.key, g.batch_id, g.enqueue_seq, g.intent, at_ms FROM gone g
    ON CONFLICT (session_id, source_key) DO UPDATE
    SET batch_id = excluded.batch_id, enqueue_seq = excluded.enqueue_seq, intent = excluded.intent,
        settled_ms = excluded.settled_ms;
    GET DIAGNOSTICS counted = ROW_COUNT;
    IF counted <> cardinality(p_batch_ids) THEN
        RAISE EXCEPTION 'a claim is not held any more' USING ERRCODE = 'LS000';
    END IF;
    UPDATE {sessions} s SET ready_ms = i.ready_ms, open_ms = i.open_ms
    FROM {schema}.inbox_ready_v1(p_session_id) AS i
    WHERE s.session_id = p_session_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the locked session vanished' USING ERRCODE = 'LS000';
    END IF;
    settled := counted;
    RETURN NEXT;
END
$lash$
