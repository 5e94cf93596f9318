-- When the inbox of a locked session has work, as `ops.heads.refresh_ready` writes it: `open_ms` is the first instant any batch
-- can be claimed; `ready_ms` waits, too, for the claims that are live now.
-- Not volatile and without settings, so that it becomes part of the statement that reads it. Ordered, because a young database
-- has no statistics: the least of a column would be looked for along any index that begins with the session.
CREATE OR REPLACE FUNCTION {schema}.inbox_ready_v1(p_session_id TEXT) RETURNS TABLE (ready_ms BIGINT, open_ms BIGINT)
LANGUAGE sql STABLE
AS $lash$
    SELECT COALESCE(e.latest, e.opening), LEAST(e.earliest, e.opening)
    FROM (SELECT
        (SELECT b.expires_ms FROM {batches} b WHERE b.session_id = p_session_id AND b.token IS NOT NULL
         ORDER BY b.expires_ms DESC LIMIT 1) AS latest,
        (SELECT b.expires_ms FROM {batches} b WHERE b.session_id = p_session_id AND b.token IS NOT NULL
         ORDER BY b.expires_ms LIMIT 1) AS earliest,
        (SELECT b.available_ms FROM {batches} b WHERE b.session_id = p_session_id AND b.token IS NULL AND b.parked_ms IS NULL
         ORDER BY b.available_ms LIMIT 1) AS opening
    OFFSET 0) AS e
$lash$
