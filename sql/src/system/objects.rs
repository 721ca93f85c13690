//! The tables of PostgreSQL's catalog with constant content, and those of comments, cursors and
//! settings.

use super::relations::{BTREE, C_COLLATION, DEFAULT_COLLATION};
use super::roles::DEFAULT_TABLESPACE;
use super::tables::{Rows, int, text};
use super::{
    BOOTSTRAP_ROLE, PANGEA, PANGEA_EXTENSION, PG_CATALOG, PG_DATABASE, SystemCatalog, procedures,
    types,
};
use crate::catalog::comment::Subject;
use crate::expr::Env;
use crate::settings;
use crate::types::datum::Datum;
use crate::vocabulary::system::ENCODING;

/// Marks a collation as valid for any encoding.
const ANY_ENCODING: i64 = -1;

impl SystemCatalog {
    /// Returns the comment on an object.
    pub(crate) fn comment(&self, class: u32, object: u32, part: u32) -> Option<&str> {
        self.comments.get(&Subject { class, object, part }).map(String::as_str)
    }

    pub(super) fn pg_description(&self, mut rows: Rows) -> Rows {
        for (subject, said) in self.comments.iter().filter(|(it, _)| it.class != PG_DATABASE) {
            rows.add(&[
                ("objoid", int(subject.object)),
                ("classoid", int(subject.class)),
                ("objsubid", int(subject.part)),
                ("description", text(said)),
            ]);
        }
        rows
    }

    /// Returns the comments on shared objects, which belong to no single database.
    pub(super) fn pg_shdescription(&self, mut rows: Rows) -> Rows {
        for (subject, said) in self.comments.iter().filter(|(it, _)| it.class == PG_DATABASE) {
            rows.add(&[
                ("objoid", int(subject.object)),
                ("classoid", int(subject.class)),
                ("description", text(said)),
            ]);
        }
        rows
    }
}

/// Returns the extension of the schema `pangea`: dumps omit the members of extensions.
pub(super) fn pg_extension(mut rows: Rows) -> Rows {
    rows.add(&[
        ("oid", int(PANGEA_EXTENSION)),
        ("extname", text("pangea")),
        ("extowner", int(BOOTSTRAP_ROLE)),
        ("extnamespace", int(PANGEA)),
        ("extrelocatable", Datum::Bool(false)),
        ("extversion", text(env!("CARGO_PKG_VERSION"))),
    ]);
    rows
}

/// Returns the cursors of the session.
pub(super) fn pg_cursors(mut rows: Rows, env: &Env) -> Rows {
    for cursor in &env.cursors {
        rows.add(&[
            ("name", text(&cursor.name)),
            ("statement", text(&cursor.statement)),
            ("is_holdable", Datum::Bool(cursor.is_hold)),
            ("is_binary", Datum::Bool(false)),
            ("is_scrollable", Datum::Bool(cursor.is_scroll)),
            ("creation_time", Datum::Timestamp(cursor.declared)),
        ]);
    }
    rows
}

/// Returns the settings of the session.
pub(super) fn pg_settings(mut rows: Rows, env: &Env) -> Rows {
    for setting in env.settings.iter().flat_map(|values| settings::described(values)) {
        let choices = setting.choices.iter().map(|choice| text(choice)).collect::<Vec<_>>();
        rows.add(&[
            ("name", text(setting.name)),
            ("setting", text(&setting.value)),
            ("unit", setting.unit.map_or(Datum::Null, text)),
            ("category", text("Settings")),
            ("short_desc", text("")),
            ("context", text(if setting.is_fixed { "internal" } else { "user" })),
            ("vartype", text(setting.kind)),
            ("source", text(if setting.value == setting.default { "default" } else { "session" })),
            ("enumvals", if choices.is_empty() { Datum::Null } else { Datum::array(choices) }),
            ("boot_val", text(&setting.default)),
            ("reset_val", text(&setting.default)),
            ("pending_restart", Datum::Bool(false)),
        ]);
    }
    rows
}

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
    let languages = [
        (types::INTERNAL, "internal", false),
        (procedures::SQL, "sql", true),
        (procedures::PLPGSQL, "plpgsql", true),
    ];
    for (oid, name, is_trusted) in languages {
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
