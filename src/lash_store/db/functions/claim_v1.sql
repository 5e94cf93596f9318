-- A claim in one call: `ops.claims.claim`, or `claim_next` where no session is named.
-- No row means that the case is another one (work out of attempts, a damaged row, nothing in any session), and nothing was written.
CREATE OR REPLACE FUNCTION {schema}.claim_v1(
    p_session_id TEXT, p_incarnation BIGINT, p_concurrent BOOLEAN, p_owner TEXT, p_active_turn BOOLEAN, p_lease_ms BIGINT,
    p_max_batches BIGINT, p_token TEXT, p_repeated BOOLEAN
) RETURNS TABLE (
    outcome TEXT, claim_id TEXT, claim_fence BIGINT, now_ms BIGINT,
    session_id TEXT, enqueue_seq BIGINT, batch_id TEXT, source_key TEXT, delivery TEXT, slot TEXT, merge_key TEXT, payloads TEXT,
    digest BYTEA, intent BYTEA, available_ms BIGINT, enqueued_ms BIGINT, attempts BIGINT, max_attempts BIGINT, fence BIGINT,
    parked_ms BIGINT, parked_reason TEXT, token TEXT, expires_ms BIGINT
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $lash$
#variable_conflict use_column
DECLARE
    head RECORD;
    batch RECORD;
    at_ms BIGINT := {now_ms};
    first_delivery TEXT;
    first_merge_key TEXT;
    taking BOOLEAN := true;
    first_seq BIGINT;
    places TID[] := '{}';
    id TEXT;
    fence_after BIGINT;
    counted BIGINT;
BEGIN
    IF p_session_id IS NOT NULL THEN
        SELECT s.session_id, s.incarnation, s.state, s.fence INTO head
        FROM {sessions} s WHERE s.session_id = p_session_id FOR UPDATE;
        at_ms := {now_ms};
    ELSIF p_concurrent THEN
        SELECT s.session_id, s.incarnation, s.state, s.fence INTO head FROM {sessions} s
        WHERE s.open_ms <= at_ms ORDER BY s.open_ms, s.session_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    ELSE
        SELECT s.session_id, s.incarnation, s.state, s.fence INTO head FROM {sessions} s
        WHERE s.ready_ms <= at_ms ORDER BY s.ready_ms, s.session_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND OR head.state <> 'live' OR head.incarnation <> p_incarnation THEN
        RETURN;
    END IF;
    IF p_repeated THEN
        PERFORM 1 FROM {batches} b WHERE b.session_id = head.session_id AND b.token = p_token;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    -- `ops.claims.select_prefix`: the longest run from the head of the queue that may be handed out together.
    FOR batch IN
        -- Batches nobody holds, and those whose lease has passed. Held ones are not read.
        SELECT o.* FROM (
            (SELECT b.ctid AS place, b.enqueue_seq, b.batch_id, b.source_key, b.delivery, b.slot, b.merge_key, b.payloads, b.digest,
                    b.attempts, b.max_attempts
             FROM {batches} b
             WHERE b.session_id = head.session_id AND b.token IS NULL AND b.parked_ms IS NULL AND b.available_ms <= at_ms
             ORDER BY b.enqueue_seq LIMIT p_max_batches)
            UNION ALL
            SELECT b.ctid, b.enqueue_seq, b.batch_id, b.source_key, b.delivery, b.slot, b.merge_key, b.payloads, b.digest,
                   b.attempts, b.max_attempts
            FROM {batches} b
            WHERE b.session_id = head.session_id AND b.token IS NOT NULL AND b.expires_ms <= at_ms AND b.parked_ms IS NULL
              AND b.available_ms <= at_ms
        ) AS o
        ORDER BY o.enqueue_seq LIMIT p_max_batches
    LOOP
        IF batch.attempts >= batch.max_attempts THEN
            RETURN;
        END IF;
        IF NOT taking THEN
            CONTINUE;
        ELSIF first_seq IS NULL THEN
            taking := batch.slot = 'join';
            first_delivery := batch.delivery;
            first_merge_key := batch.merge_key;
            IF p_active_turn AND batch.delivery <> 'earliest_safe_boundary' THEN
                taking := false;
                CONTINUE;
            END IF;
        ELSIF batch.slot <> 'join' OR batch.delivery <> first_delivery OR batch.merge_key <> first_merge_key THEN
            taking := false;
            CONTINUE;
        END IF;
        -- A claim that cannot be read must not cost an attempt.
        IF batch.digest <> {schema}.batch_digest_v1(
            batch.batch_id, batch.source_key, batch.delivery, batch.slot, batch.merge_key, batch.payloads
        ) THEN
            RETURN;
        END IF;
        first_seq := COALESCE(first_seq, batch.enqueue_seq);
        places := places || batch.place;
    END LOOP;
    IF first_seq IS NULL THEN
        IF p_session_id IS NOT NULL THEN
            outcome := 'nothing';
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;

    fence_after := head.fence + 1;
    id := 'qwc:' || first_seq || ':' || fence_after;
    RETURN QUERY
        UPDATE {batches} b
        SET claim_id = id, owner = p_owner, token = p_token, fence = fence_after, attempts = b.attempts + 1, claimed_ms = at_ms,
            expires_ms = at_ms + p_lease_ms
        -- By their place: nobody moves a batch of the locked session.
        WHERE b.ctid = ANY(places)
        RETURNING 'claimed'::text, id, fence_after, at_ms, b.session_id, b.enqueue_seq, b.batch_id, b.source_key, b.delivery,
            b.slot, b.merge_key, b.payloads, b.digest, b.intent, b.available_ms, b.enqueued_ms, b.attempts, b.max_attempts,
            b.fence, b.parked_ms, b.parked_reason, b.token, b.expires_ms;
    GET DIAGNOSTICS counted = ROW_COUNT;
    IF counted <> cardinality(places) THEN
        RAISE EXCEPTION 'a chosen batch was taken' USING ERRCODE = 'LS000';
    END IF;
    UPDATE {sessions} s SET fence = fence_after, ready_ms = i.ready_ms, open_ms = i.open_ms
    FROM {schema}.inbox_ready_v1(head.session_id) AS i
    WHERE s.session_id = head.session_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the locked session vanished' USING ERRCODE = 'LS000';
    END IF;
END
$lash$
