//! Isolation levels by their names in SQL.

use pangea_core::guarantee::Isolation;

use crate::error::{SqlError, code};

/// The names, in the order of PostgreSQL. READ UNCOMMITTED is READ COMMITTED, as there.
pub(crate) const LEVELS: &[&str] =
    &["serializable", "repeatable read", "read committed", "read uncommitted"];

/// Returns the level with a name of [`LEVELS`].
pub(crate) fn named(name: &str) -> Option<Isolation> {
    match name {
        "serializable" => Some(Isolation::Serializable),
        // One snapshot for the whole transaction, as in PostgreSQL.
        "repeatable read" => Some(Isolation::Snapshot),
        "read committed" | "read uncommitted" => Some(Isolation::ReadCommitted),
        _ => None,
    }
}

/// Returns the name of a level.
pub(crate) fn name_of(level: Isolation) -> &'static str {
    match level {
        Isolation::Serializable => "serializable",
        Isolation::Snapshot | Isolation::RepeatableRead => "repeatable read",
        Isolation::ReadCommitted => "read committed",
    }
}

/// The error for a level that is stronger than all that the protocol offers.
pub(crate) fn not_offered(wanted: Isolation, strongest: Isolation) -> SqlError {
    let message = format!("isolation level {} is not offered here", name_of(wanted));
    let hint = format!(
        "The strongest level of this cluster's protocol and settings is {}.",
        name_of(strongest)
    );
    SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_levels() {
        for name in LEVELS {
            let level = named(name).expect("a level");
            assert!(*name == "read uncommitted" || name_of(level) == *name);
        }
        assert_eq!(named("chaos"), None);
    }
}
