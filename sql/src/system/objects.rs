//! What of PostgreSQL's catalog is always the same here.

use super::relations::{BTREE, C_COLLATION, DEFAULT_COLLATION};
use super::roles::{DEFAULT_TABLESPACE, ENCODING};
use super::tables::{Rows, int, text};
use super::{BOOTSTRAP_ROLE, PG_CATALOG, types};
use crate::types::datum::Datum;

/// Of any encoding.
const ANY_ENCODING: i64 = -1;

pub(super) fn pg_am(mut rows: Rows) -> Rows {
    for (oid, name, kind) in [(2u32, "heap", "t"), (BTREE, "btree", "i")] {
        rows.add(&[("oid", int(oid)), ("amname", text(name)), ("amtype", text(kind))]);
    }
    rows
}

pub(super) fn pg_collation(mut rows: Rows) -> Rows {
    let collations = [
        (DEFAULT_COLLATION, "default", "d", ANY_ENCODING),
        (C_COLLATION, "C", "c", ANY_ENCODING),
        (951, "POSIX", "c", ANY_ENCODING),
        (12_341, "ucs_basic", "c", ENCODING.into()),
    ];
    for (oid, name, provider, encoding) in collations {
        let locale = if provider == "d" { Datum::Null } else { text("C") };
        rows.add(&[
            ("oid", int(oid)),
            ("collname", text(name)),
            ("collnamespace", int(PG_CATALOG)),
            ("collowner", int(BOOTSTRAP_ROLE)),
            ("collprovider", text(provider)),
            ("collisdeterministic", Datum::Bool(true)),
            ("collencoding", int(encoding)),
            ("collcollate", locale.clone()),
            ("collctype", locale),
        ]);
    }
    rows
}

pub(super) fn pg_language(mut rows: Rows) -> Rows {
    for (oid, name, is_trusted) in [(types::INTERNAL, "internal", false), (14, "sql", true)] {
        rows.add(&[
            ("oid", int(oid)),
            ("lanname", text(name)),
            ("lanowner", int(BOOTSTRAP_ROLE)),
            ("lanpltrusted", Datum::Bool(is_trusted)),
        ]);
    }
    rows
}

pub(super) fn pg_tablespace(mut rows: Rows) -> Rows {
    for (oid, name) in [(DEFAULT_TABLESPACE, "pg_default"), (1_664, "pg_global")] {
        rows.add(&[("oid", int(oid)), ("spcname", text(name)), ("spcowner", int(BOOTSTRAP_ROLE))]);
    }
    rows
}
