//! What clients are told beside their results.

use pangea_core::txn::SqlState;

use crate::error::code;

/// One thing that a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether something did not happen that the client asked for.
    pub is_warning: bool,
    /// The SQLSTATE.
    pub code: SqlState,
    /// One line.
    pub message: String,
}

impl Notice {
    /// Something to know.
    pub(super) fn plain(message: String) -> Self {
        Self { is_warning: false, code: code::SUCCESS, message }
    }

    /// Something that has no effect.
    pub(super) fn warning(code: SqlState, message: &str) -> Self {
        Self { is_warning: true, code, message: message.to_owned() }
    }

    /// COMMIT or ROLLBACK outside of a transaction.
    pub(super) fn no_transaction() -> Self {
        Self::warning(code::NO_TRANSACTION, "there is no transaction in progress")
    }
}
