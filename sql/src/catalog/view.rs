//! Views: queries that have a name.

use pangea_core::ids::TableId;
use serde::{Deserialize, Serialize};

use super::QualifiedName;
use super::table::column_type;
use crate::types::ColumnType;

/// A view. Its query is kept as text, and planned as a part of each query that names the view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Its number, like a table's.
    pub id: TableId,
    /// Its name.
    pub name: QualifiedName,
    /// The SQL text of its query, in which names without a schema are those of `public`.
    /// The schema of others stands there.
    pub query: String,
    /// Its columns.
    pub columns: Vec<ViewColumn>,
    /// The tables and views that it names, and how many columns each had: those that came later
    /// are not in the view, whatever `*` says.
    pub reads: Vec<(QualifiedName, usize)>,
    /// Whether its groups show columns that follow from the primary key of such a table.
    pub relies_on_keys: bool,
    /// Where each of its rows is one of the first relation that it names: for each of its columns,
    /// the place of the column there, unless it is computed.
    pub shows: Option<Vec<Option<u32>>>,
    /// What rows are held to that are written by way of it.
    pub check: Option<CheckOption>,
}

/// Which conditions a row must meet that is written by way of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckOption {
    /// Those of the view, and of views below it that say so.
    Local,
    /// Those of all views.
    Cascaded,
}

/// A column of a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(with = "column_type")]
    pub ty: ColumnType,
    /// What a row gets there that is added by way of the view, in place of the table's default.
    pub default: Option<String>,
}

impl CheckOption {
    /// What the catalog calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Cascaded => "cascaded",
        }
    }
}

impl View {
    /// How many columns a relation had that the view names.
    pub(crate) fn width_of(&self, relation: &QualifiedName) -> Option<usize> {
        self.reads.iter().find(|(name, _)| name == relation).map(|(_, width)| *width)
    }
}
