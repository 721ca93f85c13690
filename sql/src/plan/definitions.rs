//! What statements make, change and drop.

use std::sync::Arc;

use super::Meant;
use super::target::Targets;
use crate::catalog::{QualifiedName, Sequence, Table};
use crate::expr::Expr;

#[derive(Clone, Debug)]
pub(crate) struct CreateTable {
    /// The schema; the number is found when it runs.
    pub table: Table,
    /// What each range of its primary key but the first begins with, where it has ranges.
    pub starts: Vec<Vec<Expr>>,
    /// Sequences that are made with it.
    pub sequences: Vec<(QualifiedName, Sequence)>,
    pub if_not_exists: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct DropTables {
    pub names: Vec<Meant>,
    pub if_exists: bool,
    pub is_cascade: bool,
}

impl DropTables {
    /// What of it is there.
    pub(crate) fn dropped(&self) -> Vec<QualifiedName> {
        self.names.iter().filter_map(|meant| meant.name.clone().ok()).collect()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Truncate {
    pub tables: Vec<Arc<Table>>,
    /// Whether tables that refer to these are emptied too.
    pub is_cascade: bool,
    /// Whether sequences that go with their columns begin anew.
    pub restarts: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct CreateSequence {
    pub name: QualifiedName,
    /// The number is found when it runs.
    pub sequence: Sequence,
    pub if_not_exists: bool,
    /// The column that it goes with, of the table that it says.
    pub column: Option<usize>,
}

/// What becomes of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct AlterSequence {
    pub name: QualifiedName,
    pub before: Sequence,
    pub after: Sequence,
    /// The column that it goes with from then on, of the table that it says; nothing where that
    /// stays as it is.
    pub column: Option<Option<usize>>,
    /// Where it goes on.
    pub restart: Option<i64>,
}

/// ALTER SEQUENCE .. RENAME, and what else renames a sequence.
#[derive(Clone, Debug)]
pub(crate) struct RenameSequence {
    /// What PostgreSQL calls it.
    pub command: &'static str,
    pub name: QualifiedName,
    pub to: QualifiedName,
}

/// ALTER TABLE, CREATE INDEX, DROP INDEX.
#[derive(Clone, Debug)]
pub(crate) struct Alter {
    /// What PostgreSQL calls it.
    pub command: &'static str,
    /// Nothing where it turned out that there is nothing to do.
    pub change: Option<Change>,
    pub notice: Option<String>,
}

/// What becomes of a table.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub before: Arc<Table>,
    /// New indexes have no number yet.
    pub after: Table,
    /// What rows have in columns that are new.
    pub missing: Vec<(usize, Expr)>,
    /// What columns are computed from in each row, over what it was before.
    pub fill: Vec<(usize, Expr)>,
    /// Sequences that columns get.
    pub sequences: Vec<(QualifiedName, Sequence)>,
    /// Columns that get numbers of such a sequence, in the rows that are there too.
    pub numbered: Vec<(usize, QualifiedName)>,
    pub checked: Checked,
}

/// What of a table's constraints is new, so that all rows are held to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checked {
    /// The table, with what is new bound; nothing where nothing is.
    pub targets: Option<Arc<Targets>>,
    /// Columns.
    pub not_null: Vec<usize>,
    /// Checks, by their place among the table's.
    pub checks: Vec<usize>,
    pub has_foreign_keys: bool,
}
