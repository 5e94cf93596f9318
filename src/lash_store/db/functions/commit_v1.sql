-- A commit in one call: `ops.commits.commit` for the straight case, an existing session and nodes that are new.
-- No row means that the case is another one and nothing was written. LS000 says the same after the first write, and undoes it.
-- Whatever is refused is refused by the operation, which then goes its own way; only the two answers of a retry are given here.
CREATE OR REPLACE FUNCTION {schema}.commit_v1(
    p_session_id TEXT, p_incarnation BIGINT, p_expected BIGINT, p_turn_id TEXT, p_repeatable BOOLEAN, p_intent BYTEA,
    p_digest_start BYTEA, p_digest_middle BYTEA, p_assumed_leaf_id TEXT,
    p_leaf_given BOOLEAN, p_leaf_id TEXT, p_frame_given BOOLEAN, p_frame_id TEXT,
    p_nodes_json TEXT, p_node_ids TEXT[], p_parent_given BOOLEAN[], p_parent_ids TEXT[], p_kinds TEXT[], p_bodies TEXT[],
    p_frame_ids TEXT[], p_causes TEXT[], p_digests BYTEA[],
    p_components TEXT[], p_contents BYTEA[], p_sizes BIGINT[], p_frames BYTEA[], p_bases BYTEA[], p_chain_max BIGINT,
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
    node RECORD;
    stored RECORD;
    now_ms BIGINT;
    revision_after BIGINT;
    leaf_after TEXT;
    frame_after TEXT;
    node_total BIGINT := COALESCE(cardinality(p_node_ids), 0);
    -- Where the new nodes go, one element each.
    parents TEXT[] := '{}';
    node_branches BIGINT[] := '{}';
    depths BIGINT[] := '{}';
    -- The branches this commit touches: how far they reach, and which of them are new.
    branch_numbers BIGINT[] := '{}';
    branch_tips BIGINT[] := '{}';
    branch_is_new BOOLEAN[] := '{}';
    fork_branches BIGINT[] := '{}';
    fork_depths BIGINT[] := '{}';
    next_branch_after BIGINT;
    parent TEXT;
    previous TEXT;
    parent_branch BIGINT;
    parent_depth BIGINT;
    place INT;
    -- The checkpoint, one element for each component: as it is stored, then as this commit leaves it.
    names TEXT[] := '{}';
    contents BYTEA[] := '{}';
    revisions BIGINT[] := '{}';
    full_revisions BIGINT[] := '{}';
    chains BIGINT[] := '{}';
    base_revision BIGINT;
    is_sorted BOOLEAN := true;
    chosen INT[] := '{}';
    bases BIGINT[] := '{}';
    counted BIGINT;
    plain BOOLEAN;
    checkpoint BYTEA;
    components_json TEXT;
    result_json TEXT;
    inbox RECORD;
BEGIN
    SELECT s.incarnation, s.state, s.revision, s.leaf_id, s.current_frame_id, s.node_count, s.next_position, s.next_branch
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

    -- Deciding: nothing is written before all of it is known to fit.
    leaf_after := CASE WHEN p_leaf_given THEN p_leaf_id WHEN node_total > 0 THEN p_node_ids[node_total] ELSE head.leaf_id END;
    IF p_leaf_given AND p_leaf_id IS NOT NULL AND array_position(p_node_ids, p_leaf_id) IS NULL THEN
        PERFORM 1 FROM {nodes} n
        WHERE n.session_id = p_session_id AND n.node_id = p_leaf_id AND n.tombstone_revision IS NULL;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    frame_after := CASE WHEN p_frame_given THEN p_frame_id ELSE head.current_frame_id END;

    next_branch_after := head.next_branch;
    previous := head.leaf_id;
    FOR i IN 1 .. node_total LOOP
        parent := CASE WHEN p_parent_given[i] THEN p_parent_ids[i] ELSE previous END;
        previous := p_node_ids[i];
        parents := parents || parent;
        parent_branch := NULL;
        parent_depth := NULL;
        IF parent IS NOT NULL THEN
            place := array_position(p_node_ids, parent);
            IF place >= i THEN
                RETURN;
            ELSIF place IS NOT NULL THEN
                parent_branch := node_branches[place];
                parent_depth := depths[place];
            ELSE
                SELECT n.branch, n.depth, b.tip_depth, n.tombstone_revision INTO node
                FROM {nodes} n JOIN {branches} b ON b.session_id = n.session_id AND b.branch = n.branch
                WHERE n.session_id = p_session_id AND n.node_id = parent;
                IF NOT FOUND OR node.tombstone_revision IS NOT NULL THEN
                    RETURN;
                END IF;
                parent_branch := node.branch;
                parent_depth := node.depth;
                IF array_position(branch_numbers, parent_branch) IS NULL THEN
                    branch_numbers := branch_numbers || node.branch;
                    branch_tips := branch_tips || node.tip_depth;
                    branch_is_new := branch_is_new || false;
                    fork_branches := fork_branches || NULL::bigint;
                    fork_depths := fork_depths || NULL::bigint;
                END IF;
            END IF;
        END IF;
        place := array_position(branch_numbers, parent_branch);
        IF parent_branch IS NOT NULL AND branch_tips[place] = parent_depth THEN
            branch_tips[place] := parent_depth + 1;
            node_branches := node_branches || parent_branch;
            depths := depths || (parent_depth + 1);
        ELSE
            branch_numbers := branch_numbers || next_branch_after;
            branch_tips := branch_tips || COALESCE(parent_depth + 1, 0);
            branch_is_new := branch_is_new || true;
            fork_branches := fork_branches || parent_branch;
            fork_depths := fork_depths || parent_depth;
            node_branches := node_branches || next_branch_after;
            depths := depths || COALESCE(parent_depth + 1, 0);
            next_branch_after := next_branch_after + 1;
        END IF;
    END LOOP;

    FOR stored IN
        SELECT c.component, c.revision, c.full_revision, c.chain, c.digest FROM {components} c
        WHERE c.session_id = p_session_id AND (c.digest IS NOT NULL OR c.component = ANY(p_components))
        ORDER BY c.component
    LOOP
        IF cardinality(names) = 500 THEN
            -- What follows copies its text anew for each name: with so many the operation is faster.
            RETURN;
        END IF;
        names := names || stored.component;
        contents := contents || stored.digest;
        revisions := revisions || stored.revision;
        full_revisions := full_revisions || stored.full_revision;
        chains := chains || stored.chain;
        plain := COALESCE(plain, true) AND octet_length(convert_to(stored.component, 'UTF8')) = char_length(stored.component);
    END LOOP;
    FOR i IN 1 .. COALESCE(cardinality(p_components), 0) LOOP
        place := array_position(names, p_components[i]);
        IF place IS NULL THEN
            CONTINUE WHEN p_contents[i] IS NULL;
            names := names || p_components[i];
            contents := contents || NULL::bytea;
            place := cardinality(names);
            plain := COALESCE(plain, true) AND octet_length(convert_to(p_components[i], 'UTF8')) = char_length(p_components[i]);
            is_sorted := place = 1;
        END IF;
        CONTINUE WHEN contents[place] IS NOT DISTINCT FROM p_contents[i];
        base_revision := NULL;
        IF p_contents[i] IS NULL OR p_bases[i] IS NULL THEN
            full_revisions[place] := revision_after;
            chains[place] := 1;
        ELSIF contents[place] = p_bases[i] AND chains[place] < p_chain_max AND p_frames[i] IS NOT NULL THEN
            base_revision := revisions[place];
            chains[place] := chains[place] + 1;
        ELSE
            RETURN QUERY SELECT 'full'::text, head.incarnation, head.revision, NULL::text, NULL::text, NULL::bytea, NULL::text,
                now_ms, NULL::text, NULL::bytea, NULL::bytea;
            RETURN;
        END IF;
        contents[place] := p_contents[i];
        chosen := chosen || i;
        bases := bases || base_revision;
    END LOOP;
    IF NOT plain THEN
        -- A name this function cannot spell as the operation does.
        RETURN;
    END IF;
    IF NOT is_sorted THEN
        SELECT array_agg(c.name ORDER BY c.name COLLATE "C"), array_agg(c.content ORDER BY c.name COLLATE "C"),
               array_agg(c.full_revision ORDER BY c.name COLLATE "C"), array_agg(c.chain ORDER BY c.name COLLATE "C")
        INTO names, contents, full_revisions, chains
        FROM unnest(names, contents, full_revisions, chains) AS c(name, content, full_revision, chain);
    END IF;

    -- Writing.
    IF node_total > 0 THEN
        IF NOT p_parent_given[1] AND (p_digests[1] IS NULL OR head.leaf_id IS DISTINCT FROM p_assumed_leaf_id) THEN
            p_digests[1] := sha256(
                {schema}.frame_tag('node/1') || {schema}.frame_text(p_node_ids[1]) || {schema}.frame_text(parents[1])
                || {schema}.frame_text(p_kinds[1]) || {schema}.frame_text(p_bodies[1]) || {schema}.frame_text(p_frame_ids[1])
                || {schema}.frame_text(p_causes[1]));
        END IF;
        FOR i IN 1 .. cardinality(branch_numbers) LOOP
            IF branch_is_new[i] THEN
                INSERT INTO {branches} (session_id, branch, parent_branch, parent_depth, first_depth, tip_depth)
                VALUES (p_session_id, branch_numbers[i], fork_branches[i], fork_depths[i], COALESCE(fork_depths[i] + 1, 0),
                        branch_tips[i]);
            ELSE
                UPDATE {branches} b SET tip_depth = branch_tips[i]
                WHERE b.session_id = p_session_id AND b.branch = branch_numbers[i];
                IF NOT FOUND THEN
                    RAISE EXCEPTION 'a branch of the locked session vanished' USING ERRCODE = 'LS000';
                END IF;
            END IF;
        END LOOP;
        INSERT INTO {nodes} (session_id, branch, depth, position, node_id, parent_id, kind, body, frame_id, caused_by, digest,
                             created_ms, created_revision)
        SELECT p_session_id, node_branches[i], depths[i], head.next_position + i - 1, p_node_ids[i], parents[i], p_kinds[i],
               p_bodies[i], p_frame_ids[i], p_causes[i],
               p_digests[i], now_ms, revision_after
        FROM generate_series(1, node_total) AS i;
    END IF;

    FOR i IN 1 .. cardinality(chosen) LOOP
        place := array_position(names, p_components[chosen[i]]);
        INSERT INTO {versions} (session_id, component, revision, full_revision, base_revision, digest, size, frame)
        VALUES (p_session_id, names[place], revision_after, full_revisions[place], bases[i], contents[place],
                CASE WHEN contents[place] IS NULL THEN 0 ELSE p_sizes[chosen[i]] END, p_frames[chosen[i]]);
        UPDATE {components} c
        SET revision = revision_after, full_revision = full_revisions[place], chain = chains[place], digest = contents[place]
        WHERE c.session_id = p_session_id AND c.component = names[place];
        IF NOT FOUND THEN
            INSERT INTO {components} (session_id, component, revision, full_revision, chain, digest)
            VALUES (p_session_id, names[place], revision_after, full_revisions[place], chains[place], contents[place]);
        END IF;
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

    FOR i IN 1 .. cardinality(names) LOOP
        CONTINUE WHEN contents[i] IS NULL;
        checkpoint := COALESCE(checkpoint, {schema}.frame_tag('checkpoint/1'))
            || {schema}.frame_text(names[i]) || {schema}.frame_bytes(contents[i]);
        components_json := COALESCE(components_json || ',', '')
            || to_json(names[i])::text || ':"' || encode(contents[i], 'hex') || '"';
    END LOOP;
    checkpoint := sha256(checkpoint);
    result_json := '{"batch_ids":[],"components":{' || COALESCE(components_json, '') || '},"node_ids":' || p_nodes_json || '}';
    INSERT INTO {commits} (session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id,
                           checkpoint_digest, result, digest, committed_ms)
    VALUES (p_session_id, revision_after, head.incarnation, 'commit', p_turn_id, p_intent, leaf_after, frame_after, checkpoint,
            result_json,
            sha256(p_digest_start || {schema}.frame_int(revision_after) || {schema}.frame_int(head.incarnation)
                   || p_digest_middle || {schema}.frame_text(leaf_after) || {schema}.frame_text(frame_after)
                   || {schema}.frame_bytes(checkpoint) || {schema}.frame_text(result_json) || {schema}.frame_int(now_ms)),
            now_ms);

    IF p_batch_ids IS NOT NULL THEN
        SELECT * INTO inbox FROM {schema}.inbox_ready_v1(p_session_id);
        UPDATE {sessions} s SET ready_ms = inbox.ready_ms, open_ms = inbox.open_ms WHERE s.session_id = p_session_id;
    END IF;
    UPDATE {sessions} s
    SET revision = revision_after, leaf_id = leaf_after, current_frame_id = frame_after, checkpoint_digest = checkpoint,
        node_count = head.node_count + node_total, next_position = head.next_position + node_total,
        next_branch = next_branch_after, updated_ms = now_ms
    WHERE s.session_id = p_session_id;
    outcome := 'done';
    incarnation := head.incarnation;
    revision := revision_after;
    leaf_id := leaf_after;
    checkpoint_digest := checkpoint;
    result := result_json;
    committed_ms := now_ms;
    RETURN NEXT;
END
$lash$
