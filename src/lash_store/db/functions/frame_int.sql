CREATE OR REPLACE FUNCTION {schema}.frame_int(value BIGINT) RETURNS BYTEA
LANGUAGE sql STABLE PARALLEL SAFE
AS $lash$
    SELECT CASE WHEN value IS NULL THEN pg_catalog.decode('6e0000000000000000', 'hex')
                ELSE pg_catalog.decode('69', 'hex') || pg_catalog.int8send(pg_catalog.octet_length(value::text))
                     || pg_catalog.convert_to(value::text, 'UTF8') END
$lash$
