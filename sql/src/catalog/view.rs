//! Views: named queries.

use pangea_core::ids::TableId;
use serde::{Deserialize, Serialize};

use super::QualifiedName;
use super::table::column_type;
use crate::types::ColumnType;

/// A view. Its query is stored as text and planned as part of each query that names the view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Number drawn from the table counter.
    pub id: TableId,
    /// Name.
    pub name: QualifiedName,
    /// SQL text of the query. Unqualified names refer to `public`; names in other schemas are
    /// qualified.
    pub query: String,
    /// Columns.
    pub columns: Vec<ViewColumn>,
    /// The tables and views that the query names, with the number of columns of each at creation.
    /// Columns added later are not part of the view, even if the query contains `*`.
    pub reads: Vec<(QualifiedName, usize)>,
    /// Whether grouping in the query relies on columns being determined by the primary key of one
    /// of these tables.
    pub relies_on_keys: bool,
    /// Present if each row of the view is a row of the first relation that it names. Maps each
    /// column to its position in that relation, or to `None` if the column is computed.
    pub shows: Option<Vec<Option<u32>>>,
    /// The check option for rows written through the view.
    pub check: Option<CheckOption>,
}

/// Which conditions a row written through a view must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckOption {
    /// The conditions of this view, and of underlying views that have a check option.
    Local,
    /// The conditions of this view and of all underlying views.
    Cascaded,
}

/// A column of a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewColumn {
    /// Name.
    pub name: String,
    /// Type.
    #[serde(with = "column_type")]
    pub ty: ColumnType,
    /// Default for rows inserted through the view; takes precedence over the table's default.
    pub default: Option<String>,
}

impl CheckOption {
    /// Returns the option's name in the catalog.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Cascaded => "cascaded",
        }
    }
}

impl View {
    /// Returns the number of columns that a relation named by the view had when the view was
    /// created.
    pub(crate) fn width_of(&self, relation: &QualifiedName) -> Option<usize> {
        self.reads.iter().find(|(name, _)| name == relation).map(|(_, width)| *width)
    }
}
