-- When the inbox of a locked session has work, as `ops.heads.refresh_ready` writes it: `open_ms` is the first instant any batch
-- can be claimed; `ready_ms` waits, too, for the claims that are live now.
CREATE OR REPLACE FUNCTION {schema}.inbox_ready_v1(p_session_id TEXT, OUT ready_ms BIGINT, OUT open_ms BIGINT)
LANGUAGE plpgsql
AS $lash$
DECLARE
    last_expiry BIGINT;
    first_expiry BIGINT;
    first_open BIGINT;
BEGIN
    SELECT pg_catalog.max(b.expires_ms), pg_catalog.min(b.expires_ms) INTO last_expiry, first_expiry
    FROM {batches} b WHERE b.session_id = p_session_id AND b.token IS NOT NULL;
    SELECT pg_catalog.min(b.available_ms) INTO first_open
    FROM {batches} b WHERE b.session_id = p_session_id AND b.token IS NULL AND b.parked_ms IS NULL;
    ready_ms := COALESCE(last_expiry, first_open);
    open_ms := LEAST(first_expiry, first_open);
END
$lash$
