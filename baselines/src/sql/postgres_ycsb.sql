-- YCSB in PostgreSQL. Three rows to a page, so that a new version has room beside the old one.

CREATE TABLE ycsb (id bigint PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 50);
-- Random bytes can't be compressed, so nobody tries.
ALTER TABLE ycsb ALTER COLUMN value SET STORAGE EXTERNAL;

CREATE FUNCTION ycsb(reads bigint[], writes bigint[], written bytea[], OUT values_read bytea[])
LANGUAGE plpgsql AS $$
DECLARE
    one bigint; seen bytea;
BEGIN
    FOREACH one IN ARRAY reads LOOP
        SELECT value INTO seen FROM ycsb WHERE id = one;
        values_read := values_read || seen;
    END LOOP;
    FOR i IN 1 .. cardinality(writes) LOOP
        UPDATE ycsb SET value = written[i] WHERE id = writes[i];
    END LOOP;
END $$;
