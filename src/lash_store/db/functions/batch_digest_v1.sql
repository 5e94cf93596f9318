-- The digest that ties a batch's content to its id, as `ops.queue.batch_digest` makes it.
CREATE OR REPLACE FUNCTION {schema}.batch_digest_v1(
    p_batch_id TEXT, p_source_key TEXT, p_delivery TEXT, p_slot TEXT, p_merge_key TEXT, p_payloads TEXT
) RETURNS BYTEA
LANGUAGE sql STABLE PARALLEL SAFE
AS $lash$
    SELECT pg_catalog.sha256(
        {schema}.frame_tag('batch-row/1') || {schema}.frame_text(p_batch_id) || {schema}.frame_text(p_source_key)
        || {schema}.frame_text(p_delivery) || {schema}.frame_text(p_slot) || {schema}.frame_text(p_merge_key)
        || {schema}.frame_text(p_payloads))
$lash$
