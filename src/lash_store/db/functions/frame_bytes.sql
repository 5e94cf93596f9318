CREATE OR REPLACE FUNCTION {schema}.frame_bytes(value BYTEA) RETURNS BYTEA
LANGUAGE sql STABLE PARALLEL SAFE
AS $lash$
    SELECT CASE WHEN value IS NULL THEN pg_catalog.decode('6e0000000000000000', 'hex')
                ELSE pg_catalog.decode('62', 'hex') || pg_catalog.int8send(pg_catalog.octet_length(value)) || value END
$lash$
