//! Dependencies between objects: `pg_depend`.
//!
//! A dependency on a column names its attribute number. The types are `i` if the object is a part
//! of the referenced one, `a` if it is dropped together with it, and `n` if it prevents the drop.

use super::constraints::ConstraintKind;
use super::relations::{default_oid, rule_oid};
use super::tables::{Rows, int, text};
use super::{
    Kind, PANGEA, PANGEA_EXTENSION, PG_EXTENSION, PG_NAMESPACE, SystemCatalog, definitions,
    primary_key, stored,
};
use crate::catalog::{KeyTarget, Table, View};
use crate::syntax::sequences::sequence_of;
use crate::vocabulary::system::PG_CLASS;

/// OIDs of `pg_attrdef`, `pg_constraint` and `pg_rewrite`.
const PG_ATTRDEF: u32 = 2_604;
const PG_CONSTRAINT: u32 = 2_606;
const PG_REWRITE: u32 = 2_618;

/// An object: the OID of its class and its own.
type Object = (u32, u32);

/// The rows of `pg_depend`.
struct Depends {
    rows: Rows,
}

impl Depends {
    /// Adds a dependency on an object, or on the column `part` of it. 0 is the whole object.
    fn on(&mut self, (class, object): Object, on: Object, part: usize, how: &str) {
        self.rows.add(&[
            ("classid", int(class)),
            ("objid", int(object)),
            ("refclassid", int(on.0)),
            ("refobjid", int(on.1)),
            ("refobjsubid", int(part as i64)),
            ("deptype", text(how)),
        ]);
    }

    /// Adds dependencies on columns, by position.
    fn on_columns(&mut self, object: Object, table: u32, columns: &[usize], how: &str) {
        for at in columns {
            self.on(object, (PG_CLASS, table), at + 1, how);
        }
    }
}

impl SystemCatalog {
    pub(super) fn pg_depend(&self, rows: Rows) -> Rows {
        let mut depends = Depends { rows };
        for (&oid, entry) in &self.relations {
            match &entry.kind {
                Kind::Table(table) => self.of_table(oid, table, &mut depends),
                Kind::View(view) => self.of_view(oid, view, &mut depends),
                _ => {}
            }
            match &entry.kind {
                // Objects that exist in every database are members of an extension, so that dumps
                // omit them.
                _ if entry.namespace == PANGEA => {
                    depends.on((PG_CLASS, oid), (PG_EXTENSION, PANGEA_EXTENSION), 0, "e");
                }
                Kind::Table(_) | Kind::View(_) | Kind::Sequence(_) => {
                    depends.on((PG_CLASS, oid), (PG_NAMESPACE, entry.namespace), 0, "n");
                }
                _ => {}
            }
        }
        depends.on((PG_NAMESPACE, PANGEA), (PG_EXTENSION, PANGEA_EXTENSION), 0, "e");
        self.of_constraints(&mut depends);
        depends.rows
    }

    fn of_table(&self, oid: u32, table: &Table, depends: &mut Depends) {
        // The sequence of a `serial` column is dropped with it. That of an identity column is a
        // part of it.
        for (at, name) in &table.sequences {
            let Some(sequence) = self.named(name) else { continue };
            let how = if table.columns[*at].identity.is_some() { "i" } else { "a" };
            depends.on((PG_CLASS, sequence), (PG_CLASS, oid), at + 1, how);
        }
        for (at, column) in table.live_columns() {
            let Some(expr) = column.default.as_ref().or(column.generated.as_ref()) else {
                continue;
            };
            let default = (PG_ATTRDEF, default_oid(oid, at));
            depends.on(default, (PG_CLASS, oid), at + 1, "a");
            // A default that draws from a sequence needs the sequence.
            let sequence = sequence_of(expr).and_then(|written| self.named(&written.kept()));
            if let Some(sequence) = sequence.filter(|_| column.default.is_some()) {
                depends.on(default, (PG_CLASS, sequence), 0, "n");
            }
        }
        for index in table.indexes.iter().filter(|index| !index.is_constraint) {
            let object = (PG_CLASS, stored(index.id.0));
            let columns = definitions::columns(index);
            depends.on_columns(object, oid, &columns, "a");
            if index.keys.iter().any(|key| matches!(key.target, KeyTarget::Expr(_))) {
                depends.on(object, (PG_CLASS, oid), 0, "a");
            }
        }
    }

    /// Adds the dependencies of a view. Its query is a rule, which depends on the relations that it
    /// reads.
    fn of_view(&self, oid: u32, view: &View, depends: &mut Depends) {
        let rule = (PG_REWRITE, rule_oid(oid));
        for how in ["i", "n"] {
            depends.on(rule, (PG_CLASS, oid), 0, how);
        }
        for on in view.reads.iter().filter_map(|(name, _)| self.named(name)) {
            depends.on(rule, (PG_CLASS, on), 0, "n");
            if let Kind::Table(table) = &self.relations[&on].kind
                && view.relies_on_keys
                && !table.primary_key.is_empty()
            {
                depends.on(rule, (PG_CONSTRAINT, primary_key(table)), 0, "n");
            }
        }
    }

    fn of_constraints(&self, depends: &mut Depends) {
        for (&oid, constraint) in &self.constraints {
            let (object, table) = ((PG_CONSTRAINT, oid), &constraint.table);
            match constraint.kind {
                ConstraintKind::PrimaryKey => {
                    depends.on((PG_CLASS, oid), object, 0, "i");
                    depends.on_columns(object, constraint.of, &table.primary_key, "a");
                }
                ConstraintKind::Unique(at) => {
                    depends.on((PG_CLASS, oid), object, 0, "i");
                    let columns = definitions::columns(&table.indexes[at]);
                    depends.on_columns(object, constraint.of, &columns, "a");
                }
                ConstraintKind::Check(at) => {
                    let columns = definitions::named_in(table, &table.checks[at].condition);
                    for how in ["a", "n"] {
                        depends.on_columns(object, constraint.of, &columns, how);
                    }
                }
                ConstraintKind::ForeignKey(at) => {
                    let key = &table.foreign_keys[at];
                    depends.on_columns(object, constraint.of, &key.columns, "a");
                    let Some(parent) = self.named(&key.parent) else { continue };
                    depends.on_columns(object, parent, &key.parent_columns, "n");
                    let index = self.key_of(parent, &key.parent_columns);
                    depends.on((PG_CONSTRAINT, oid), (PG_CLASS, index), 0, "n");
                }
            }
        }
    }
}
