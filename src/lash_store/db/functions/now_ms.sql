-- The database's clock: every time the store writes or compares comes from here. Tests shift it.
CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS BIGINT
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT pg_catalog.floor(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint $$
