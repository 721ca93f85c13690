//! Types and their entries in PostgreSQL's catalog: operator classes, and the functions that read
//! and write values.

use std::sync::OnceLock;

use super::tables::{Rows, int, text};
use super::{BOOTSTRAP_ROLE, PG_CATALOG};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// One line for each type: OID, name, length, by value?, type, category, preferred?, delimiter,
/// element, array, alignment, storage, collation; then the OIDs of the functions for text input,
/// text output, binary input, binary output, and subscripts.
const TYPES: &str = include_str!("data/types.txt");
/// One line for each of those functions: OID, name.
const PROCEDURES: &str = include_str!("data/procedures.txt");
/// One line for each default operator class of btree: OID, name, family, name of the family, type.
const OPERATOR_CLASSES: &str = include_str!("data/operator_classes.txt");

/// OID of the language of built-in functions.
pub(super) const INTERNAL: u32 = 12;
/// OID of the type of the operator class for arrays.
const ANY_ARRAY: u32 = 2_277;
/// OID of the type of the operator class for enums.
const ANY_ENUM: u32 = 3_500;

/// A row of `pg_type`.
#[derive(Debug)]
pub(super) struct TypeRow {
    pub oid: u32,
    pub name: String,
    length: i64,
    pub is_by_value: bool,
    kind: String,
    category: String,
    is_preferred: bool,
    delimiter: String,
    pub element: u32,
    array: u32,
    pub align: String,
    pub storage: String,
    collation: u32,
    functions: Vec<u32>,
}

fn number(word: &str) -> u32 {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

/// Returns all types.
fn all() -> &'static [TypeRow] {
    static ALL: OnceLock<Vec<TypeRow>> = OnceLock::new();
    ALL.get_or_init(|| {
        let row = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            TypeRow {
                oid: number(words[0]),
                name: words[1].to_owned(),
                length: words[2].parse().expect("a length"),
                is_by_value: words[3] == "t",
                kind: words[4].to_owned(),
                category: words[5].to_owned(),
                is_preferred: words[6] == "t",
                delimiter: words[7].to_owned(),
                element: number(words[8]),
                array: number(words[9]),
                align: words[10].to_owned(),
                storage: words[11].to_owned(),
                collation: number(words[12]),
                functions: words[13..].iter().map(|word| number(word)).collect(),
            }
        };
        TYPES.lines().map(row).collect()
    })
}

/// Returns a type by OID.
pub(super) fn row(oid: u32) -> Option<&'static TypeRow> {
    all().iter().find(|row| row.oid == oid)
}

/// Returns the type of a name in `pg_type`.
pub(super) fn named(name: &str) -> Option<&'static TypeRow> {
    all().iter().find(|row| row.name == name)
}

/// Returns the functions by OID.
pub(super) fn procedures() -> impl Iterator<Item = (u32, &'static str)> {
    let line = |line: &'static str| line.split_once(' ').expect("a number and a name");
    PROCEDURES.lines().map(line).map(|(oid, name)| (number(oid), name))
}

/// Returns the name of a function.
pub(super) fn procedure_name(oid: u32) -> Option<&'static str> {
    procedures().find(|(of, _)| *of == oid).map(|(_, name)| name)
}

/// Returns the OID of a function.
pub(super) fn procedure_named(name: &str) -> Option<u32> {
    procedures().find(|(_, of)| *of == name).map(|(oid, _)| oid)
}

/// Returns the words of the line for each operator class.
fn classes() -> impl Iterator<Item = Vec<&'static str>> {
    OPERATOR_CLASSES.lines().map(|line| line.split(' ').collect())
}

/// Returns the default operator class of a type.
pub(super) fn class(base: SqlType) -> u32 {
    let of = match base {
        SqlType::Array(_) => ANY_ARRAY,
        SqlType::Enum(_) => ANY_ENUM,
        SqlType::Varchar => SqlType::Text.oid(),
        base => base.oid(),
    };
    classes().find(|words| number(words[4]) == of).map_or(0, |words| number(words[0]))
}

/// Returns whether an operator class of this name exists.
pub(crate) fn is_operator_class(name: &str) -> bool {
    name == "varchar_ops" || classes().any(|words| words[1] == name)
}

/// Returns whether an operator class accepts a type.
pub(crate) fn is_class_of(name: &str, base: SqlType) -> bool {
    let is_string = base.is_string() && base != SqlType::Bpchar;
    match name {
        "varchar_ops" => is_string,
        "text_ops" if is_string => true,
        name => classes().any(|words| words[1] == name && number(words[0]) == class(base)),
    }
}

/// Adds the built-in types to `pg_type`.
pub(super) fn add_all(rows: &mut Rows) {
    for row in all() {
        let function = |at: usize| int(row.functions[at]);
        rows.add(&[
            ("oid", int(row.oid)),
            ("typname", text(&row.name)),
            ("typnamespace", int(PG_CATALOG)),
            ("typowner", int(BOOTSTRAP_ROLE)),
            ("typlen", int(row.length)),
            ("typbyval", Datum::Bool(row.is_by_value)),
            ("typtype", text(&row.kind)),
            ("typcategory", text(&row.category)),
            ("typispreferred", Datum::Bool(row.is_preferred)),
            ("typisdefined", Datum::Bool(true)),
            ("typdelim", text(&row.delimiter)),
            ("typelem", int(row.element)),
            ("typarray", int(row.array)),
            ("typinput", function(0)),
            ("typoutput", function(1)),
            ("typreceive", function(2)),
            ("typsend", function(3)),
            ("typsubscript", function(4)),
            ("typalign", text(&row.align)),
            ("typstorage", text(&row.storage)),
            ("typtypmod", int(-1)),
            ("typcollation", int(row.collation)),
        ]);
    }
}

pub(super) fn pg_opclass(mut rows: Rows) -> Rows {
    for words in classes() {
        rows.add(&[
            ("oid", int(number(words[0]))),
            ("opcmethod", int(super::relations::BTREE)),
            ("opcname", text(words[1])),
            ("opcnamespace", int(PG_CATALOG)),
            ("opcowner", int(BOOTSTRAP_ROLE)),
            ("opcfamily", int(number(words[2]))),
            ("opcintype", int(number(words[4]))),
            ("opcdefault", Datum::Bool(true)),
        ]);
    }
    rows
}

pub(super) fn pg_opfamily(mut rows: Rows) -> Rows {
    let mut families: Vec<(u32, &str)> = classes().map(|w| (number(w[2]), w[3])).collect();
    families.sort_unstable();
    families.dedup();
    for (oid, name) in families {
        rows.add(&[
            ("oid", int(oid)),
            ("opfmethod", int(super::relations::BTREE)),
            ("opfname", text(name)),
            ("opfnamespace", int(PG_CATALOG)),
            ("opfowner", int(BOOTSTRAP_ROLE)),
        ]);
    }
    rows
}
