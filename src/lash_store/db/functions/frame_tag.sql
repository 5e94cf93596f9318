CREATE OR REPLACE FUNCTION {schema}.frame_tag(value TEXT) RETURNS BYTEA
LANGUAGE sql STABLE PARALLEL SAFE
AS $lash$
    SELECT pg_catalog.decode('74', 'hex')
           || pg_catalog.int8send(pg_catalog.octet_length(pg_catalog.convert_to(value, 'UTF8')))
           || pg_catalog.convert_to(value, 'UTF8')
$lash$
