//! Constraints: `pg_constraint`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tables::{Rows, int, ints, text};
use super::{Entry, Kind, SystemCatalog, definitions, numbered, primary_key, stored};
use crate::catalog::{Action, Table};
use crate::types::datum::Datum;

/// A constraint of a table.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub table: Arc<Table>,
    /// OID of the table.
    pub of: u32,
    pub kind: ConstraintKind,
}

/// The constraint among those of the table.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConstraintKind {
    PrimaryKey,
    /// Unique, check and foreign key constraints: position in the table's list of their kind.
    Unique(usize),
    Check(usize),
    ForeignKey(usize),
}

/// Returns all constraints by OID. A constraint with an index has the OID of the index.
pub(super) fn all(relations: &BTreeMap<u32, Entry>) -> BTreeMap<u32, Constraint> {
    let mut found = BTreeMap::new();
    let mut named = Vec::new();
    for (&of, entry) in relations {
        let Kind::Table(table) = &entry.kind else { continue };
        let one = |kind| Constraint { table: table.clone(), of, kind };
        if !table.primary_key.is_empty() {
            found.insert(primary_key(table), one(ConstraintKind::PrimaryKey));
        }
        for (at, index) in table.indexes.iter().enumerate().filter(|(_, it)| it.is_constraint) {
            found.insert(stored(index.id.0), one(ConstraintKind::Unique(at)));
        }
        let name = |name: &str| format!("{of} {name}");
        let checks = table.checks.iter().enumerate();
        named.extend(checks.map(|(at, it)| (name(&it.name), one(ConstraintKind::Check(at)))));
        let keys = table.foreign_keys.iter().enumerate();
        named.extend(keys.map(|(at, it)| (name(&it.name), one(ConstraintKind::ForeignKey(at)))));
    }
    found.extend(numbered(named));
    found
}

impl Constraint {
    fn name(&self) -> &str {
        match self.kind {
            ConstraintKind::PrimaryKey => &self.table.primary_key_name,
            ConstraintKind::Unique(at) => &self.table.indexes[at].name,
            ConstraintKind::Check(at) => &self.table.checks[at].name,
            ConstraintKind::ForeignKey(at) => &self.table.foreign_keys[at].name,
        }
    }

    fn letter(&self) -> &'static str {
        match self.kind {
            ConstraintKind::PrimaryKey => "p",
            ConstraintKind::Unique(_) => "u",
            ConstraintKind::Check(_) => "c",
            ConstraintKind::ForeignKey(_) => "f",
        }
    }
}

fn letter(action: Action) -> &'static str {
    match action {
        Action::NoAction => "a",
        Action::Restrict => "r",
        Action::Cascade => "c",
        Action::SetNull => "n",
        Action::SetDefault => "d",
    }
}

/// Returns columns as attribute numbers.
fn numbers(columns: &[usize]) -> Datum {
    ints(columns.iter().map(|at| *at as i64 + 1))
}

impl SystemCatalog {
    pub(super) fn pg_constraint(&self, mut rows: Rows) -> Rows {
        for (oid, constraint) in &self.constraints {
            let table = &constraint.table;
            let mut values = vec![
                ("oid", int(*oid)),
                ("conname", text(constraint.name())),
                ("connamespace", int(self.namespace(table.name.schema()).unwrap_or_default())),
                ("contype", text(constraint.letter())),
                ("convalidated", Datum::Bool(true)),
                ("conrelid", int(constraint.of)),
                ("confupdtype", text(" ")),
                ("confdeltype", text(" ")),
                ("confmatchtype", text(" ")),
                ("conislocal", Datum::Bool(true)),
                ("connoinherit", Datum::Bool(!matches!(constraint.kind, ConstraintKind::Check(_)))),
            ];
            match constraint.kind {
                ConstraintKind::PrimaryKey => {
                    values.push(("conindid", int(*oid)));
                    values.push(("conkey", numbers(&table.primary_key)));
                }
                ConstraintKind::Unique(at) => {
                    values.push(("conindid", int(*oid)));
                    values.push(("conkey", numbers(&definitions::columns(&table.indexes[at]))));
                }
                ConstraintKind::Check(at) => {
                    let condition = &table.checks[at].condition;
                    values.push(("conbin", text(condition)));
                    values.push(("conkey", numbers(&definitions::named_in(table, condition))));
                }
                ConstraintKind::ForeignKey(at) => {
                    let key = &table.foreign_keys[at];
                    let parent = self.named(&key.parent).unwrap_or(0);
                    let index = self.key_of(parent, &key.parent_columns);
                    let (is_deferrable, is_deferred) = key.deferral;
                    values.extend([
                        ("confrelid", int(parent)),
                        ("conindid", int(index)),
                        ("conkey", numbers(&key.columns)),
                        ("confkey", numbers(&key.parent_columns)),
                        ("confupdtype", text(letter(key.on_update))),
                        ("confdeltype", text(letter(key.on_delete))),
                        ("confmatchtype", text(if key.is_full { "f" } else { "s" })),
                        ("condeferrable", Datum::Bool(is_deferrable)),
                        ("condeferred", Datum::Bool(is_deferred)),
                    ]);
                }
            }
            rows.add(&values);
        }
        rows
    }

    /// Returns the unique index over some columns of a table, which a foreign key references.
    pub(super) fn key_of(&self, table: u32, columns: &[usize]) -> u32 {
        let Some(Entry { kind: Kind::Table(table), .. }) = self.relations.get(&table) else {
            return 0;
        };
        let is_same = |other: &[usize]| {
            other.len() == columns.len() && columns.iter().all(|at| other.contains(at))
        };
        if is_same(&table.primary_key) {
            return primary_key(table);
        }
        let mut unique = table.indexes.iter().filter(|index| index.is_unique);
        let found = unique.find(|index| is_same(&definitions::columns(index)));
        found.map_or(0, |index| stored(index.id.0))
    }
}
