//! Checks that wait for COMMIT.

use super::name::QualifiedName;
use crate::error::SqlError;
use crate::types::datum::Datum;

/// A foreign key check that is deferred until COMMIT. It holds if no row has these values, or if
/// the referenced row exists.
#[derive(Clone, Debug)]
pub(crate) struct Deferred {
    /// The referencing table.
    pub child: QualifiedName,
    pub key: String,
    pub values: Vec<Datum>,
    /// The error if the check fails.
    pub error: SqlError,
}
