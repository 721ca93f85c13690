//! The fate of a transaction's first run.

use crate::ids::TableId;
use crate::key::Key;

/// The fate of a transaction's first run. Informational: no decision depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FirstRun {
    /// The run was valid.
    #[default]
    Valid,
    /// The transaction had no earlier run: it ran only at its place in the order.
    Absent,
    /// The run was invalidated: the transaction was executed or checked again at its place in the
    /// order. Names the key of a conflicting write, if known.
    Invalidated(Option<(TableId, Key)>),
}
