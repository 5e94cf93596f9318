-- A commit in one call: `ops.commits.commit` for the straight case, an existing session and a chain of nodes that are new.
-- No row means that the case is another one and nothing was written. LS000 says the same after the first write, and undoes it.
-- Whatever is refused is refused by the operation, which then goes its own way; only the answers of a retry are given here.
CREATE OR REPLACE FUNCTION {schema}.commit_v1(
    p_session_id TEXT, p_incarnation BIGINT, p_expected BIGINT, p_turn_id TEXT, p_repeatable BOOLEAN, p_intent BYTEA,
    p_digest_start BYTEA, p_digest_middle BYTEA, p_assumed_leaf_id TEXT,
    p_leaf_given BOOLEAN, p_leaf_id TEXT, p_frame_given BOOLEAN, p_frame_id TEXT,
    p_nodes_json TEXT, p_node_ids TEXT[], p_parent_given BOOLEAN, p_parent_id TEXT, p_kinds TEXT[], p_bodies TEXT[],
    p_frame_ids TEXT[], p_causes TEXT[], p_digests BYTEA[],
    p_components TEXT[], p_contents BYTEA[], p_sizes BIGINT[], p_frames BYTEA[], p_bases BYTEA[], p_chain_max BIGINT,
    p_assumed_checkpoint BYTEA, p_checkpoint BYTEA, p_components_json TEXT,
    p_sources TEXT[], p_models TEXT[], p_inputs BIGINT[], p_outputs BIGINT[], p_cached BIGINT[], p_reasoning BIGINT[],
    p_counter_max BIGINT,
    p_batch_ids TEXT[], p_tokens TEXT[], p_fences BIGINT[],
    p_attachments TEXT[]
) RETURNS TABLE (
    outcome TEXT, incarnation BIGINT, revision BIGINT, leaf_id TEXT, current_frame_id TEXT, checkpoint_digest BYTEA,
    result TEXT, committed_ms BIGINT, kind TEXT, intent BYTEA, digest BYTEA
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $lash$
#variable_conflict use_column
DECLARE
    head RECORD;
    receipt RECORD;
    place RECORD;
    after RECORD;
    stored RECORD;
    now_ms BIGINT;
    revision_after BIGINT;
    leaf_after TEXT;
    frame_after TEXT;
    node_total BIGINT := COALESCE(cardinality(p_node_ids), 0);
    parent TEXT;
    branches_made BIGINT := 0;
    counted BIGINT;
    result_json TEXT;
BEGIN
    SELECT s.incarnation, s.state, s.revision, s.leaf_id, s.current_frame_id, s.checkpoint_digest, s.next_position,
           s.next_branch
    INTO head
    FROM {sessions} s WHERE s.session_id = p_session_id FOR UPDATE;
    IF NOT FOUND OR head.state <> 'live' OR head.incarnation <> p_incarnation THEN
        RETURN;
    END IF;
    now_ms := {now_ms};

    IF head.revision <> p_expected THEN
        -- A turn that was committed before is answered with its receipt. Where the revision fits, its index finds it.
        SELECT * INTO receipt FROM {commits} c WHERE p_repeatable AND c.session_id = p_session_id AND c.turn_id = p_turn_id;
        IF FOUND THEN
            IF receipt.intent = p_intent AND p_batch_ids IS NULL THEN
                RETURN QUERY SELECT 'replayed'::text, receipt.incarnation, receipt.revision, receipt.leaf_id,
                    receipt.current_frame_id, receipt.checkpoint_digest, receipt.result, receipt.committed_ms, receipt.kind,
                    receipt.intent, receipt.digest;
            END IF;
            RETURN;
        END IF;
        RETURN QUERY SELECT 'moved'::text, head.incarnation, head.revision, NULL::text, NULL::text, NULL::bytea, NULL::text,
            now_ms, NULL::text, NULL::bytea, NULL::bytea;
        RETURN;
    END IF;
    revision_after := head.revision + 1;

    -- Deciding, as far as it goes without writing.
    leaf_after := CASE WHEN p_leaf_given THEN p_leaf_id WHEN node_total > 0 THEN p_node_ids[node_total] ELSE head.leaf_id END;
    IF p_leaf_given AND p_leaf_id IS NOT NULL AND array_position(p_node_ids, p_leaf_id) IS NULL THEN
        PERFORM 1 FROM {nodes} n
        WHERE n.session_id = p_session_id AND n.node_id = p_leaf_id AND n.tombstone_revision IS NULL;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    frame_after := CASE WHEN p_frame_given THEN p_frame_id ELSE head.current_frame_id END;
    IF p_components_json IS NULL OR head.checkpoint_digest IS DISTINCT FROM p_assumed_checkpoint THEN
        -- The caller did not know the checkpoint this one follows.
        SELECT sha256({schema}.frame_tag('checkpoint/1')
                      || string_agg({schema}.frame_text(a.name) || {schema}.frame_bytes(a.content), ''::bytea
                                    ORDER BY a.name COLLATE "C") FILTER (WHERE a.content IS NOT NULL)) AS checkpoint,
               COALESCE(string_agg(to_json(a.name)::text || ':"' || encode(a.content, 'hex') || '"', ','
                                   ORDER BY a.name COLLATE "C") FILTER (WHERE a.content IS NOT NULL), '') AS components,
               -- A name this function cannot spell as the operation does.
               bool_or(octet_length(convert_to(a.name, 'UTF8')) <> char_length(a.name)) AS is_foreign,
               bool_or(a.misfit) AS is_misfit
        INTO after
        FROM (
            SELECT COALESCE(g.component, c.component) AS name,
                   CASE WHEN g.component IS NULL THEN c.digest ELSE g.content END AS content,
                   g.base IS NOT NULL AND g.content IS DISTINCT FROM c.digest
                   AND (c.digest = g.base AND c.chain < p_chain_max AND g.frame IS NOT NULL) IS NOT TRUE AS misfit
            FROM (SELECT o.component, o.digest, o.chain FROM {components} o
                  WHERE o.session_id = p_session_id AND (o.digest IS NOT NULL OR o.component = ANY(p_components))) AS c
            FULL JOIN unnest(p_components, p_contents, p_frames, p_bases) AS g(component, content, frame, base)
            ON g.component = c.component
        ) AS a;
        IF after.is_foreign THEN
            RETURN;
        ELSIF after.is_misfit THEN
            RETURN QUERY SELECT 'full'::text, head.incarnation, head.revision, NULL::text, NULL::text, NULL::bytea, NULL::text,
                now_ms, NULL::text, NULL::bytea, NULL::bytea;
            RETURN;
        END IF;
        p_checkpoint := after.checkpoint;
        p_components_json := '{' || after.components || '}';
    END IF;

    -- Writing. The nodes are a chain: the first hangs on the leaf or on whom it names, each other one on the one before it.
    IF node_total > 0 THEN
        parent := CASE WHEN p_parent_given THEN p_parent_id ELSE head.leaf_id END;
        IF NOT p_parent_given AND (p_digests[1] IS NULL OR head.leaf_id IS DISTINCT FROM p_assumed_leaf_id) THEN
            p_digests[1] := sha256(
                {schema}.frame_tag('node/1') || {schema}.frame_text(p_node_ids[1]) || {schema}.frame_text(parent)
                || {schema}.frame_text(p_kinds[1]) || {schema}.frame_text(p_bodies[1]) || {schema}.frame_text(p_frame_ids[1])
                || {schema}.frame_text(p_causes[1]));
        END IF;
        UPDATE {branches} b SET tip_depth = n.depth + node_total
        -- A range of one, in order: a young database has no statistics, and equality would be looked for along any index
        -- that begins with the session.
        FROM (SELECT l.branch, l.depth, l.tombstone_revision FROM {nodes} l
              WHERE l.session_id = p_session_id AND l.node_id >= parent AND l.node_id <= parent
              ORDER BY l.node_id LIMIT 1) AS n
        WHERE n.tombstone_revision IS NULL
          AND b.session_id = p_session_id AND b.branch = n.branch AND b.tip_depth = n.depth
        RETURNING n.branch, n.depth INTO place;
        IF NOT FOUND THEN
            INSERT INTO {branches} AS b (session_id, branch, parent_branch, parent_depth, first_depth, tip_depth)
            SELECT p_session_id, head.next_branch, n.branch, n.depth, COALESCE(n.depth + 1, 0), COALESCE(n.depth, -1) + node_total
            FROM (SELECT 1) AS one
            LEFT JOIN {nodes} n ON n.session_id = p_session_id AND n.node_id = parent AND n.tombstone_revision IS NULL
            WHERE parent IS NULL OR n.node_id IS NOT NULL
            RETURNING b.branch, b.first_depth - 1 AS depth INTO place;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            branches_made := 1;
        END IF;
        INSERT INTO {nodes} (session_id, branch, depth, position, node_id, parent_id, kind, body, frame_id, caused_by, digest,
                             created_ms, created_revision)
        SELECT p_session_id, place.branch, place.depth + i, head.next_position + i - 1, p_node_ids[i],
               CASE WHEN i = 1 THEN parent ELSE p_node_ids[i - 1] END, p_kinds[i], p_bodies[i], p_frame_ids[i], p_causes[i],
               p_digests[i], now_ms, revision_after
        FROM generate_series(1, node_total) AS i;
    END IF;

    FOR i IN 1 .. COALESCE(cardinality(p_components), 0) LOOP
        CONTINUE WHEN p_contents[i] = p_bases[i];
        UPDATE {components} c
        SET revision = revision_after, digest = p_contents[i],
            full_revision = CASE WHEN p_bases[i] IS NULL THEN revision_after ELSE o.full_revision END,
            chain = CASE WHEN p_bases[i] IS NULL THEN 1 ELSE o.chain + 1 END
        FROM {components} o
        WHERE c.session_id = p_session_id AND c.component = p_components[i]
          AND o.session_id = p_session_id AND o.component = p_components[i] AND o.digest IS DISTINCT FROM p_contents[i]
          AND (p_bases[i] IS NULL OR o.digest = p_bases[i] AND o.chain < p_chain_max)
        RETURNING c.full_revision, CASE WHEN p_bases[i] IS NOT NULL THEN o.revision END AS base_revision INTO stored;
        IF NOT FOUND THEN
            SELECT c.digest IS NOT DISTINCT FROM p_contents[i] AS is_equal INTO stored FROM {components} c
            WHERE c.session_id = p_session_id AND c.component = p_components[i];
            CONTINUE WHEN stored.is_equal OR p_contents[i] IS NULL;
            IF stored.is_equal IS NOT NULL OR p_bases[i] IS NOT NULL THEN
                RAISE EXCEPTION 'the delta does not fit' USING ERRCODE = 'LS000';
            END IF;
            INSERT INTO {components} (session_id, component, revision, full_revision, chain, digest)
            VALUES (p_session_id, p_components[i], revision_after, revision_after, 1, p_contents[i]);
            SELECT revision_after AS full_revision, NULL::bigint AS base_revision INTO stored;
        END IF;
        INSERT INTO {versions} (session_id, component, revision, full_revision, base_revision, digest, size, frame)
        VALUES (p_session_id, p_components[i], revision_after, stored.full_revision, stored.base_revision, p_contents[i],
                p_sizes[i], p_frames[i]);
    END LOOP;

    IF p_sources IS NOT NULL THEN
        INSERT INTO {usage_entries} (session_id, revision, ordinal, source, model, input, output, cached_input, reasoning)
        SELECT p_session_id, revision_after, u.ordinal - 1, u.source, u.model, u.input, u.output, u.cached_input, u.reasoning
        FROM unnest(p_sources, p_models, p_inputs, p_outputs, p_cached, p_reasoning)
             WITH ORDINALITY AS u(source, model, input, output, cached_input, reasoning, ordinal);
        WITH added AS (
            INSERT INTO {usage_totals} AS t (session_id, source, model, first_revision, first_ordinal, input, output,
                                             cached_input, reasoning)
            SELECT p_session_id, u.source, u.model, revision_after, min(u.ordinal) - 1,
                   least(sum(u.input), p_counter_max + 1), least(sum(u.output), p_counter_max + 1),
                   least(sum(u.cached_input), p_counter_max + 1), least(sum(u.reasoning), p_counter_max + 1)
            FROM unnest(p_sources, p_models, p_inputs, p_outputs, p_cached, p_reasoning)
                 WITH ORDINALITY AS u(source, model, input, output, cached_input, reasoning, ordinal)
            GROUP BY u.source, u.model
            ON CONFLICT (session_id, source, model) DO UPDATE
            SET input = t.input + excluded.input, output = t.output + excluded.output,
                cached_input = t.cached_input + excluded.cached_input, reasoning = t.reasoning + excluded.reasoning
            RETURNING greatest(t.input, t.output, t.cached_input, t.reasoning) AS most
        )
        SELECT max(a.most) INTO counted FROM added a;
        IF counted > p_counter_max THEN
            RAISE EXCEPTION 'a counter would pass its limit' USING ERRCODE = 'LS000';
        END IF;
    END IF;

    IF p_batch_ids IS NOT NULL THEN
        WITH gone AS (
            DELETE FROM {batches} b
            USING unnest(p_batch_ids, p_tokens, p_fences) AS w(batch_id, token, fence)
            WHERE b.session_id = p_session_id AND b.batch_id = w.batch_id AND b.token = w.token AND b.fence = w.fence
            RETURNING COALESCE(b.source_key, b.batch_id) AS key, b.batch_id, b.enqueue_seq, b.intent
        )
        INSERT INTO {settled_keys} AS k (session_id, source_key, batch_id, enqueue_seq, intent, settled_ms)
        SELECT p_session_id, g.key, g.batch_id, g.enqueue_seq, g.intent, now_ms FROM gone g
        ON CONFLICT (session_id, source_key) DO UPDATE
        SET batch_id = excluded.batch_id, enqueue_seq = excluded.enqueue_seq, intent = excluded.intent,
            settled_ms = excluded.settled_ms;
        GET DIAGNOSTICS counted = ROW_COUNT;
        IF counted <> cardinality(p_batch_ids) THEN
            RAISE EXCEPTION 'a claim is not held any more' USING ERRCODE = 'LS000';
        END IF;
    END IF;

    IF p_attachments IS NOT NULL THEN
        -- In the order of their ids, as everybody locks them.
        PERFORM 1 FROM {attachments} a
        WHERE a.session_id = p_session_id AND a.attachment_id = ANY(p_attachments) ORDER BY a.attachment_id FOR UPDATE;
        UPDATE {attachments} a SET committed_ms = COALESCE(a.committed_ms, now_ms)
        WHERE a.session_id = p_session_id AND a.attachment_id = ANY(p_attachments);
        GET DIAGNOSTICS counted = ROW_COUNT;
        IF counted <> (SELECT count(DISTINCT g.id) FROM unnest(p_attachments) AS g(id)) THEN
            RAISE EXCEPTION 'an attachment has no intent' USING ERRCODE = 'LS000';
        END IF;
    END IF;

    result_json := '{"batch_ids":[],"components":' || p_components_json || ',"node_ids":' || p_nodes_json || '}';
    INSERT INTO {commits} (session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id,
                           checkpoint_digest, result, digest, committed_ms)
    VALUES (p_session_id, revision_after, head.incarnation, 'commit', p_turn_id, p_intent, leaf_after, frame_after,
            p_checkpoint, result_json,
            sha256(p_digest_start || {schema}.frame_int(revision_after) || {schema}.frame_int(head.incarnation)
                   || p_digest_middle || {schema}.frame_text(leaf_after) || {schema}.frame_text(frame_after)
                   || {schema}.frame_bytes(p_checkpoint) || {schema}.frame_text(result_json) || {schema}.frame_int(now_ms)),
            now_ms);

    UPDATE {sessions} s
    SET revision = revision_after, leaf_id = leaf_after, current_frame_id = frame_after, checkpoint_digest = p_checkpoint,
        node_count = s.node_count + node_total, next_position = s.next_position + node_total,
        next_branch = s.next_branch + branches_made, updated_ms = now_ms
    WHERE s.session_id = p_session_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the locked session vanished' USING ERRCODE = 'LS000';
    END IF;
    IF p_batch_ids IS NOT NULL THEN
        UPDATE {sessions} s SET ready_ms = i.ready_ms, open_ms = i.open_ms
        FROM {schema}.inbox_ready_v1(p_session_id) AS i WHERE s.session_id = p_session_id;
    END IF;
    outcome := 'done';
    incarnation := head.incarnation;
    revision := revision_after;
    leaf_id := leaf_after;
    checkpoint_digest := p_checkpoint;
    result := result_json;
    committed_ms := now_ms;
    RETURN NEXT;
END
$lash$
