//! Cursors as statements see them.

/// A cursor as displayed in `pg_cursors`.
#[derive(Clone, Debug)]
pub(crate) struct ShownCursor {
    pub name: String,
    pub statement: String,
    pub is_hold: bool,
    pub is_scroll: bool,
    /// The time of its declaration.
    pub declared: i64,
}
