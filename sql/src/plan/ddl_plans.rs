//! Plans of statements that create, alter and drop objects.

use std::sync::Arc;

use super::DropTarget;
use super::target::Targets;
use crate::catalog::{QualifiedName, Sequence, Table};
use crate::expr::Expr;

#[derive(Clone, Debug)]
pub(crate) struct CreateTable {
    /// The definition; its number is assigned at run time.
    pub table: Table,
    /// The start of each range of its primary key except the first; empty if it has no ranges.
    pub starts: Vec<Vec<Expr>>,
    /// Sequences that are created with it.
    pub sequences: Vec<(QualifiedName, Sequence)>,
    pub if_not_exists: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct DropTables {
    pub names: Vec<DropTarget>,
    pub if_exists: bool,
    pub is_cascade: bool,
}

impl DropTables {
    /// Returns the names of the relations that exist.
    pub(crate) fn dropped(&self) -> Vec<QualifiedName> {
        self.names.iter().filter_map(|meant| meant.name.clone().ok()).collect()
    }
}

/// DROP SEQUENCE.
#[derive(Clone, Debug)]
pub(crate) struct DropSequences(pub DropTables);

/// DROP VIEW.
#[derive(Clone, Debug)]
pub(crate) struct DropViews(pub DropTables);

/// DROP TYPE.
#[derive(Clone, Debug)]
pub(crate) struct DropTypes(pub DropTables);

/// Lists the names of all tables.
#[derive(Clone, Debug)]
pub(crate) struct ShowTables;

#[derive(Clone, Debug)]
pub(crate) struct Truncate {
    pub tables: Vec<Arc<Table>>,
    /// Whether tables that refer to these are truncated too.
    pub is_cascade: bool,
    /// Whether sequences owned by their columns restart.
    pub restarts: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct CreateSequence {
    pub name: QualifiedName,
    /// The number is assigned at run time.
    pub sequence: Sequence,
    pub if_not_exists: bool,
    /// The column that owns it, in the table that `sequence` names.
    pub column: Option<usize>,
}

/// ALTER SEQUENCE.
#[derive(Clone, Debug)]
pub(crate) struct AlterSequence {
    pub name: QualifiedName,
    pub before: Sequence,
    pub after: Sequence,
    /// The column that owns it from now on, in the table that `after` names; the outer `None`
    /// leaves the owner unchanged.
    pub column: Option<Option<usize>>,
    /// The value of RESTART.
    pub restart: Option<i64>,
}

/// ALTER SEQUENCE .. RENAME, and other statements that rename a sequence.
#[derive(Clone, Debug)]
pub(crate) struct RenameSequence {
    /// The command tag.
    pub command: &'static str,
    pub name: QualifiedName,
    pub to: QualifiedName,
}

/// ALTER TABLE, CREATE INDEX, DROP INDEX.
#[derive(Clone, Debug)]
pub(crate) struct Alter {
    /// The command tag.
    pub command: &'static str,
    /// `None` if there is nothing to do.
    pub change: Option<Change>,
    pub notice: Option<String>,
}

/// A change of a table.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub before: Arc<Table>,
    /// New indexes have no number yet.
    pub after: Table,
    /// The values of new columns in existing rows.
    pub missing: Vec<(usize, Expr)>,
    /// Expressions that compute columns of each row, over its old columns.
    pub fill: Vec<(usize, Expr)>,
    /// Sequences that are created for columns.
    pub sequences: Vec<(QualifiedName, Sequence)>,
    /// Columns that take values from these sequences, also in existing rows.
    pub numbered: Vec<(usize, QualifiedName)>,
    pub checked: Checked,
}

/// New constraints of a table, against which all rows are checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checked {
    /// The table with its new constraints bound; `None` if there are none.
    pub targets: Option<Arc<Targets>>,
    /// Columns that are newly NOT NULL.
    pub not_null: Vec<usize>,
    /// New checks, by their positions among the table's.
    pub checks: Vec<usize>,
    pub has_foreign_keys: bool,
}
