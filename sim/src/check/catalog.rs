//! Checks that each read of a schema, its table and its index sees a single state.

use pangea_core::workload::catalog::CatalogSnapshot;

use super::Violation;
use crate::history::History;

/// Checks every result of a transaction that read all of them.
///
/// # Errors
/// The first result that is wrong.
pub fn check(history: &History) -> Result<(), Violation> {
    let violation = |story| Violation::new("catalog", "torn schema", story);
    for (id, operation) in history.operations.iter().enumerate() {
        let Some(result) = operation.result() else { continue };
        if operation.call.label != "read" {
            continue;
        }
        let picture = CatalogSnapshot::decode(result)
            .map_err(|error| violation(format!("the answer of T{id} is a {error}")))?;
        if let Some(wrong) = picture.wrong().first() {
            return Err(violation(format!(
                "T{id} (client {}, {:?}, at {}) saw rows of different snapshots: {wrong}",
                operation.client, operation.how, operation.node
            )));
        }
    }
    Ok(())
}
