//! Reads that must hold when a transaction commits, at every isolation level.

use super::Stop;
use crate::ids::TableId;
use crate::key::KeyRange;

/// Conditions on the database, which must be at the transaction's place in the order as they are
/// where it runs: those of constraints, of locks, and of the schema.
///
/// A level below serializable does not check all reads, so a program names those that it depends
/// on. They are about the committed rows: the program's own writes are not considered.
pub trait Guards {
    /// The row has the same version, or is still absent.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] if the executor requires the run to end.
    fn row(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop>;

    /// The row still exists, whatever its value; or it is still absent.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] if the executor requires the run to end.
    fn existence(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop>;

    /// A range has the same rows with the same versions.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] if the executor requires the run to end.
    fn range(&mut self, table: TableId, range: &KeyRange) -> Result<(), Stop>;
}
