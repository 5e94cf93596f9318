-- One field of a digest, as `encode.digest` frames it: its kind, its length in eight bytes, its bytes.
CREATE OR REPLACE FUNCTION {schema}.frame_text(value TEXT) RETURNS BYTEA
LANGUAGE sql STABLE PARALLEL SAFE
AS $lash$
    SELECT CASE WHEN value IS NULL THEN pg_catalog.decode('6e0000000000000000', 'hex')
                ELSE pg_catalog.decode('73', 'hex')
                     || pg_catalog.int8send(pg_catalog.octet_length(pg_catalog.convert_to(value, 'UTF8')))
                     || pg_catalog.convert_to(value, 'UTF8') END
$lash$
