-- Views of the catalog, over its tables. The columns are those of PostgreSQL.

create view pg_catalog.pg_roles as
select rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,
    rolconnlimit, '********'::text as rolpassword, rolvaliduntil, rolbypassrls,
    null::text[] as rolconfig, oid
from pg_authid;

create view pg_catalog.pg_shadow as
select rolname as usename, oid as usesysid, rolcreatedb as usecreatedb, rolsuper as usesuper,
    rolreplication as userepl, rolbypassrls as usebypassrls, null::text as passwd,
    rolvaliduntil as valuntil, null::text[] as useconfig
from pg_authid where rolcanlogin;

create view pg_catalog.pg_user as
select usename, usesysid, usecreatedb, usesuper, userepl, usebypassrls,
    '********'::text as passwd, valuntil, useconfig
from pg_shadow;

create view pg_catalog.pg_group as
select rolname as groname, oid as grosysid,
    array(select member from pg_auth_members where roleid = a.oid) as grolist
from pg_authid a where not rolcanlogin;

create view pg_catalog.pg_tables as
select n.nspname as schemaname, c.relname as tablename,
    pg_get_userbyid(c.relowner) as tableowner, null::name as tablespace,
    c.relhasindex as hasindexes, c.relhasrules as hasrules, c.relhastriggers as hastriggers,
    c.relrowsecurity as rowsecurity
from pg_class c left join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p');

create view pg_catalog.pg_views as
select n.nspname as schemaname, c.relname as viewname,
    pg_get_userbyid(c.relowner) as viewowner, pg_get_viewdef(c.oid) as definition
from pg_class c left join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'v';

create view pg_catalog.pg_indexes as
select n.nspname as schemaname, c.relname as tablename, i.relname as indexname,
    null::name as tablespace, pg_get_indexdef(i.oid) as indexdef
from pg_index x
    join pg_class c on c.oid = x.indrelid
    join pg_class i on i.oid = x.indexrelid
    left join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'm', 'p') and i.relkind in ('i', 'I');

create view pg_catalog.pg_sequences as
select n.nspname as schemaname, c.relname as sequencename,
    pg_get_userbyid(c.relowner) as sequenceowner, s.seqtypid::regtype as data_type,
    s.seqstart as start_value, s.seqmin as min_value, s.seqmax as max_value,
    s.seqincrement as increment_by, s.seqcycle as cycle, s.seqcache as cache_size,
    null::bigint as last_value
from pg_sequence s
    join pg_class c on c.oid = s.seqrelid
    left join pg_namespace n on n.oid = c.relnamespace;

create view information_schema.information_schema_catalog_name as
select current_database()::name as catalog_name;

create view information_schema.enabled_roles as
select a.rolname as role_name from pg_authid a where pg_has_role(a.oid, 'USAGE');

create view information_schema.applicable_roles as
select m.rolname as grantee, r.rolname as role_name,
    (case when a.admin_option then 'YES' else 'NO' end)::varchar as is_grantable
from pg_auth_members a
    join pg_authid m on m.oid = a.member
    join pg_authid r on r.oid = a.roleid
where pg_has_role(m.oid, 'USAGE');

create view information_schema.character_sets as
select null::name as character_set_catalog, null::name as character_set_schema,
    'UTF8'::name as character_set_name, 'UCS'::name as character_repertoire,
    'UTF8'::name as form_of_use, current_database()::name as default_collate_catalog,
    'pg_catalog'::name as default_collate_schema, 'C'::name as default_collate_name;

create view information_schema.collations as
select current_database()::name as collation_catalog, n.nspname as collation_schema,
    c.collname as collation_name, 'NO PAD'::varchar as pad_attribute
from pg_collation c join pg_namespace n on n.oid = c.collnamespace
where c.collencoding in (-1, 6);

create view information_schema.schemata as
select current_database()::name as catalog_name, n.nspname as schema_name,
    pg_get_userbyid(n.nspowner) as schema_owner,
    null::name as default_character_set_catalog, null::name as default_character_set_schema,
    null::name as default_character_set_name, null::varchar as sql_path
from pg_namespace n
where pg_has_role(n.nspowner, 'USAGE') or has_schema_privilege(n.oid, 'CREATE, USAGE');

create view information_schema.tables as
select current_database()::name as table_catalog, n.nspname as table_schema,
    c.relname as table_name,
    (case c.relkind when 'v' then 'VIEW' else 'BASE TABLE' end)::varchar as table_type,
    null::name as self_referencing_column_name, null::varchar as reference_generation,
    null::name as user_defined_type_catalog, null::name as user_defined_type_schema,
    null::name as user_defined_type_name,
    (case when pg_relation_is_updatable(c.oid::regclass, false) & 8 = 8 then 'YES' else 'NO' end)
        ::varchar as is_insertable_into,
    'NO'::varchar as is_typed, null::varchar as commit_action
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v', 'f', 'p')
    and (pg_has_role(c.relowner, 'USAGE')
        or has_table_privilege(c.oid,
            'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'));

create view information_schema.columns as
select current_database()::name as table_catalog, n.nspname as table_schema,
    c.relname as table_name, a.attname as column_name, a.attnum::int as ordinal_position,
    (case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end)::varchar
        as column_default,
    (case when a.attnotnull then 'NO' else 'YES' end)::varchar as is_nullable,
    (case when t.typelem <> 0 and t.typlen = -1 and t.typcategory = 'A' then 'ARRAY'
        when nt.nspname <> 'pg_catalog' then 'USER-DEFINED'
        else format_type(a.atttypid, null) end)::varchar as data_type,
    case when a.atttypid in (1042, 1043) and a.atttypmod <> -1 then a.atttypmod - 4 end
        as character_maximum_length,
    case when a.atttypid in (25, 1042, 1043) then
        case when a.atttypmod = -1 then 1073741824 else least((a.atttypmod - 4) * 4, 1073741824) end
    end as character_octet_length,
    case a.atttypid when 21 then 16 when 23 then 32 when 20 then 64 when 700 then 24 when 701 then 53
        when 1700 then case when a.atttypmod = -1 then null else ((a.atttypmod - 4) / 65536) end
    end as numeric_precision,
    case when a.atttypid in (21, 23, 20, 700, 701) then 2 when a.atttypid = 1700 then 10 end
        as numeric_precision_radix,
    case when a.atttypid in (21, 23, 20) then 0
        when a.atttypid = 1700 and a.atttypmod <> -1 then (a.atttypmod - 4) % 65536
    end as numeric_scale,
    case when a.atttypid = 1082 then 0
        when a.atttypid in (1083, 1114, 1184) then
            case when a.atttypmod < 0 then 6 else a.atttypmod end
        when a.atttypid = 1186 then
            case when a.atttypmod < 0 or a.atttypmod % 65536 = 65535 then 6
                else a.atttypmod % 65536 end
    end as datetime_precision,
    null::varchar as interval_type, null::int as interval_precision,
    null::name as character_set_catalog, null::name as character_set_schema,
    null::name as character_set_name,
    (case when co.collname <> 'default' then current_database() end)::name as collation_catalog,
    case when co.collname <> 'default' then 'pg_catalog'::name end as collation_schema,
    case when co.collname <> 'default' then co.collname end as collation_name,
    null::name as domain_catalog, null::name as domain_schema, null::name as domain_name,
    current_database()::name as udt_catalog, nt.nspname as udt_schema, t.typname as udt_name,
    null::name as scope_catalog, null::name as scope_schema, null::name as scope_name,
    null::int as maximum_cardinality, a.attnum::text::name as dtd_identifier,
    'NO'::varchar as is_self_referencing,
    (case when a.attidentity in ('a', 'd') then 'YES' else 'NO' end)::varchar as is_identity,
    (case a.attidentity when 'a' then 'ALWAYS' when 'd' then 'BY DEFAULT' end)::varchar
        as identity_generation,
    seq.seqstart::varchar as identity_start, seq.seqincrement::varchar as identity_increment,
    seq.seqmax::varchar as identity_maximum, seq.seqmin::varchar as identity_minimum,
    (case when seq.seqcycle then 'YES' else 'NO' end)::varchar as identity_cycle,
    (case when a.attgenerated <> '' then 'ALWAYS' else 'NEVER' end)::varchar as is_generated,
    (case when a.attgenerated <> '' then pg_get_expr(d.adbin, d.adrelid) end)::varchar
        as generation_expression,
    (case when pg_column_is_updatable(c.oid::regclass, a.attnum, false) then 'YES' else 'NO' end)
        ::varchar as is_updatable
from pg_attribute a
    join pg_class c on c.oid = a.attrelid
    join pg_namespace n on n.oid = c.relnamespace
    join pg_type t on t.oid = a.atttypid
    join pg_namespace nt on nt.oid = t.typnamespace
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    left join pg_collation co on co.oid = a.attcollation
    left join pg_depend dep on dep.refclassid = 1259 and dep.refobjid = c.oid
        and dep.refobjsubid = a.attnum and dep.deptype = 'i'
    left join pg_sequence seq on seq.seqrelid = dep.objid
where a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'v', 'f', 'p')
    and (pg_has_role(c.relowner, 'USAGE')
        or has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES'));

create view information_schema.views as
select current_database()::name as table_catalog, n.nspname as table_schema,
    c.relname as table_name,
    (case when pg_has_role(c.relowner, 'USAGE') then pg_get_viewdef(c.oid) end)::varchar
        as view_definition,
    (case when 'check_option=cascaded' = any (c.reloptions) then 'CASCADED'
        when 'check_option=local' = any (c.reloptions) then 'LOCAL' else 'NONE' end)::varchar
        as check_option,
    (case when pg_relation_is_updatable(c.oid::regclass, false) & 20 = 20 then 'YES' else 'NO' end)
        ::varchar as is_updatable,
    (case when pg_relation_is_updatable(c.oid::regclass, false) & 8 = 8 then 'YES' else 'NO' end)
        ::varchar as is_insertable_into, 'NO'::varchar as is_trigger_updatable,
    'NO'::varchar as is_trigger_deletable, 'NO'::varchar as is_trigger_insertable_into
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'v'
    and (pg_has_role(c.relowner, 'USAGE')
        or has_table_privilege(c.oid,
            'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'));

create view information_schema.sequences as
select current_database()::name as sequence_catalog, n.nspname as sequence_schema,
    c.relname as sequence_name, format_type(s.seqtypid, null)::varchar as data_type,
    case s.seqtypid when 21 then 16 when 23 then 32 else 64 end as numeric_precision,
    2 as numeric_precision_radix, 0 as numeric_scale, s.seqstart::varchar as start_value,
    s.seqmin::varchar as minimum_value, s.seqmax::varchar as maximum_value,
    s.seqincrement::varchar as increment,
    (case when s.seqcycle then 'YES' else 'NO' end)::varchar as cycle_option
from pg_sequence s
    join pg_class c on c.oid = s.seqrelid
    join pg_namespace n on n.oid = c.relnamespace
where not exists (select 1 from pg_depend d
        where d.classid = 1259 and d.objid = c.oid and d.deptype = 'i')
    and (pg_has_role(c.relowner, 'USAGE')
        or has_sequence_privilege(c.oid, 'SELECT, UPDATE, USAGE'));

create view information_schema.table_constraints as
select current_database()::name as constraint_catalog, nc.nspname as constraint_schema,
    c.conname as constraint_name, current_database()::name as table_catalog,
    nr.nspname as table_schema, r.relname as table_name,
    (case c.contype when 'c' then 'CHECK' when 'f' then 'FOREIGN KEY' when 'p' then 'PRIMARY KEY'
        when 'u' then 'UNIQUE' end)::varchar as constraint_type,
    (case when c.condeferrable then 'YES' else 'NO' end)::varchar as is_deferrable,
    (case when c.condeferred then 'YES' else 'NO' end)::varchar as initially_deferred,
    'YES'::varchar as enforced,
    (case when c.contype = 'u' then
        case when i.indnullsnotdistinct then 'NO' else 'YES' end end)::varchar as nulls_distinct
from pg_constraint c
    join pg_namespace nc on nc.oid = c.connamespace
    join pg_class r on r.oid = c.conrelid
    join pg_namespace nr on nr.oid = r.relnamespace
    left join pg_index i on i.indexrelid = c.conindid
where pg_has_role(r.relowner, 'USAGE')
    or has_table_privilege(r.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
union all
select current_database()::name, nr.nspname,
    (nr.oid::text || '_' || r.oid::text || '_' || a.attnum::text || '_not_null')::name,
    current_database()::name, nr.nspname, r.relname, 'CHECK'::varchar, 'NO'::varchar,
    'NO'::varchar, 'YES'::varchar, null::varchar
from pg_attribute a
    join pg_class r on r.oid = a.attrelid
    join pg_namespace nr on nr.oid = r.relnamespace
where a.attnotnull and a.attnum > 0 and not a.attisdropped and r.relkind in ('r', 'p')
    and (pg_has_role(r.relowner, 'USAGE')
        or has_table_privilege(r.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'));

create view information_schema.key_column_usage as
select current_database()::name as constraint_catalog, s.nspname as constraint_schema,
    s.conname as constraint_name, current_database()::name as table_catalog,
    s.nspname as table_schema, s.relname as table_name, a.attname as column_name,
    s.n as ordinal_position,
    case when s.contype = 'f' then array_position(s.referred, s.confkey[s.n]) end
        as position_in_unique_constraint
from (select n.nspname, c.conname, c.contype, c.confkey, r.relname, r.oid as relation,
            (information_schema._pg_expandarray(c.conkey)).x as number,
            (information_schema._pg_expandarray(c.conkey)).n as n,
            (select i.indkey::int2[] from pg_index i where i.indexrelid = c.conindid) as referred
        from pg_constraint c
            join pg_namespace n on n.oid = c.connamespace
            join pg_class r on r.oid = c.conrelid
        where c.contype in ('p', 'u', 'f')
            and (pg_has_role(r.relowner, 'USAGE')
                or has_table_privilege(r.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))) s
    join pg_attribute a on a.attrelid = s.relation and a.attnum = s.number
where not a.attisdropped;

create view information_schema.constraint_column_usage as
select current_database()::name as table_catalog, s.nspname as table_schema,
    s.relname as table_name, a.attname as column_name,
    current_database()::name as constraint_catalog, s.nspname as constraint_schema,
    s.conname as constraint_name
from (select n.nspname, c.conname, r.relname, r.oid as relation,
            unnest(case when c.contype = 'f' then c.confkey else c.conkey end) as number
        from pg_constraint c
            join pg_class r
                on r.oid = case when c.contype = 'f' then c.confrelid else c.conrelid end
            join pg_namespace n on n.oid = r.relnamespace
        where pg_has_role(r.relowner, 'USAGE')) s
    join pg_attribute a on a.attrelid = s.relation and a.attnum = s.number;

create view information_schema.constraint_table_usage as
select current_database()::name as table_catalog, n.nspname as table_schema,
    r.relname as table_name, current_database()::name as constraint_catalog,
    n.nspname as constraint_schema, c.conname as constraint_name
from pg_constraint c
    join pg_class r on r.oid = case when c.contype = 'f' then c.confrelid else c.conrelid end
    join pg_namespace n on n.oid = r.relnamespace
where c.contype in ('f', 'p', 'u') and pg_has_role(r.relowner, 'USAGE');

create view information_schema.referential_constraints as
select current_database()::name as constraint_catalog, n.nspname as constraint_schema,
    c.conname as constraint_name,
    (case when i.oid is null then null else current_database() end)::name
        as unique_constraint_catalog,
    ni.nspname as unique_constraint_schema, i.conname as unique_constraint_name,
    (case c.confmatchtype when 'f' then 'FULL' when 'p' then 'PARTIAL' else 'NONE' end)::varchar
        as match_option,
    (case c.confupdtype when 'c' then 'CASCADE' when 'n' then 'SET NULL' when 'd' then 'SET DEFAULT'
        when 'r' then 'RESTRICT' else 'NO ACTION' end)::varchar as update_rule,
    (case c.confdeltype when 'c' then 'CASCADE' when 'n' then 'SET NULL' when 'd' then 'SET DEFAULT'
        when 'r' then 'RESTRICT' else 'NO ACTION' end)::varchar as delete_rule
from pg_constraint c
    join pg_namespace n on n.oid = c.connamespace
    join pg_class r on r.oid = c.conrelid
    left join pg_constraint i on i.conindid = c.conindid and i.contype in ('p', 'u')
    left join pg_namespace ni on ni.oid = i.connamespace
where c.contype = 'f'
    and (pg_has_role(r.relowner, 'USAGE')
        or has_table_privilege(r.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'));

create view information_schema.check_constraints as
select current_database()::name as constraint_catalog, n.nspname as constraint_schema,
    c.conname as constraint_name,
    substring(pg_get_constraintdef(c.oid) from 7)::varchar as check_clause
from pg_constraint c
    join pg_namespace n on n.oid = c.connamespace
    join pg_class r on r.oid = c.conrelid
where c.contype = 'c' and pg_has_role(r.relowner, 'USAGE')
union all
select current_database()::name, n.nspname,
    (n.oid::text || '_' || r.oid::text || '_' || a.attnum::text || '_not_null')::name,
    (a.attname || ' IS NOT NULL')::varchar
from pg_namespace n
    join pg_class r on r.relnamespace = n.oid
    join pg_attribute a on a.attrelid = r.oid
where a.attnum > 0 and not a.attisdropped and a.attnotnull and r.relkind in ('r', 'p')
    and pg_has_role(r.relowner, 'USAGE');

create view information_schema.table_privileges as
select coalesce(g.rolname, '')::name as grantor, coalesce(t.rolname, 'PUBLIC')::name as grantee,
    current_database()::name as table_catalog, s.nspname as table_schema,
    s.relname as table_name, s.privilege::varchar as privilege_type,
    (case when s.is_grantable or s.relowner = s.grantee then 'YES' else 'NO' end)::varchar
        as is_grantable,
    (case s.privilege when 'SELECT' then 'YES' else 'NO' end)::varchar as with_hierarchy
from (select n.nspname, c.relname, c.relowner, (aclexplode(c.relacl)).grantor as grantor,
            (aclexplode(c.relacl)).grantee as grantee,
            (aclexplode(c.relacl)).privilege_type as privilege,
            (aclexplode(c.relacl)).is_grantable as is_grantable
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'v', 'f', 'p')) s
    left join pg_authid g on g.oid = s.grantor
    left join pg_authid t on t.oid = s.grantee
where s.grantee = 0 or pg_has_role(s.grantor, 'USAGE') or pg_has_role(s.grantee, 'USAGE');

create view information_schema.role_table_grants as
select grantor, grantee, table_catalog, table_schema, table_name, privilege_type, is_grantable,
    with_hierarchy
from information_schema.table_privileges where grantee <> 'PUBLIC';

-- What PostgreSQL counts of tables and indexes, Pangea does not: NULL is unknown.

create view pg_catalog.pg_stat_all_tables as
select
    c.oid as relid, n.nspname as schemaname, c.relname, null::bigint as seq_scan,
    null::bigint as seq_tup_read, null::bigint as idx_scan, null::bigint as idx_tup_fetch,
    null::bigint as n_tup_ins, null::bigint as n_tup_upd, null::bigint as n_tup_del,
    null::bigint as n_tup_hot_upd, null::bigint as n_live_tup, null::bigint as n_dead_tup,
    null::bigint as n_mod_since_analyze, null::bigint as n_ins_since_vacuum,
    null::timestamptz as last_vacuum, null::timestamptz as last_autovacuum,
    null::timestamptz as last_analyze, null::timestamptz as last_autoanalyze,
    null::bigint as vacuum_count, null::bigint as autovacuum_count, null::bigint as analyze_count,
    null::bigint as autoanalyze_count
from pg_class c left join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 't', 'm', 'p');

create view pg_catalog.pg_stat_sys_tables as
select * from pg_stat_all_tables
where schemaname in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_stat_user_tables as
select * from pg_stat_all_tables
where schemaname not in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_statio_all_tables as
select
    c.oid as relid, n.nspname as schemaname, c.relname, null::bigint as heap_blks_read,
    null::bigint as heap_blks_hit, null::bigint as idx_blks_read, null::bigint as idx_blks_hit,
    null::bigint as toast_blks_read, null::bigint as toast_blks_hit,
    null::bigint as tidx_blks_read, null::bigint as tidx_blks_hit
from pg_class c left join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 't', 'm', 'p');

create view pg_catalog.pg_statio_sys_tables as
select * from pg_statio_all_tables
where schemaname in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_statio_user_tables as
select * from pg_statio_all_tables
where schemaname not in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_stat_all_indexes as
select
    c.oid as relid, i.oid as indexrelid, n.nspname as schemaname, c.relname,
    i.relname as indexrelname, null::bigint as idx_scan, null::bigint as idx_tup_read,
    null::bigint as idx_tup_fetch
from pg_index x
    join pg_class c on c.oid = x.indrelid
    join pg_class i on i.oid = x.indexrelid
    left join pg_namespace n on n.oid = c.relnamespace;

create view pg_catalog.pg_stat_sys_indexes as
select * from pg_stat_all_indexes
where schemaname in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_stat_user_indexes as
select * from pg_stat_all_indexes
where schemaname not in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_statio_all_indexes as
select
    c.oid as relid, i.oid as indexrelid, n.nspname as schemaname, c.relname,
    i.relname as indexrelname, null::bigint as idx_blks_read, null::bigint as idx_blks_hit
from pg_index x
    join pg_class c on c.oid = x.indrelid
    join pg_class i on i.oid = x.indexrelid
    left join pg_namespace n on n.oid = c.relnamespace;

create view pg_catalog.pg_statio_sys_indexes as
select * from pg_statio_all_indexes
where schemaname in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_statio_user_indexes as
select * from pg_statio_all_indexes
where schemaname not in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_statio_all_sequences as
select
    c.oid as relid, n.nspname as schemaname, c.relname, null::bigint as blks_read,
    null::bigint as blks_hit
from pg_class c left join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'S';

create view pg_catalog.pg_statio_sys_sequences as
select * from pg_statio_all_sequences
where schemaname in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_statio_user_sequences as
select * from pg_statio_all_sequences
where schemaname not in ('pg_catalog', 'information_schema', 'pangea');

create view pg_catalog.pg_stat_database as
select
    d.oid as datid, d.datname,
    (select count(*) from pg_stat_activity a where a.datid = d.oid)::int as numbackends,
    null::bigint as xact_commit, null::bigint as xact_rollback, null::bigint as blks_read,
    null::bigint as blks_hit, null::bigint as tup_returned, null::bigint as tup_fetched,
    null::bigint as tup_inserted, null::bigint as tup_updated, null::bigint as tup_deleted,
    null::bigint as conflicts, null::bigint as temp_files, null::bigint as temp_bytes,
    null::bigint as deadlocks, null::bigint as checksum_failures,
    null::timestamptz as checksum_last_failure, null::float8 as blk_read_time,
    null::float8 as blk_write_time, null::float8 as session_time, null::float8 as active_time,
    null::float8 as idle_in_transaction_time, null::bigint as sessions,
    null::bigint as sessions_abandoned, null::bigint as sessions_fatal,
    null::bigint as sessions_killed, null::timestamptz as stats_reset
from pg_database d;

create view pg_catalog.pg_stat_gssapi as
select
    pid, false as gss_authenticated, null::text as principal, false as encrypted
from pg_stat_activity;
