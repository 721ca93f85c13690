//! Outcomes of transactions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{SnapshotVersion, TxnId};

/// A five-character SQLSTATE code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SqlState(pub [u8; 5]);

impl SqlState {
    /// serialization_failure: data that the transaction read has changed.
    pub const SERIALIZATION_FAILURE: Self = Self(*b"40001");
    /// unique_violation: the key exists.
    pub const UNIQUE_VIOLATION: Self = Self(*b"23505");
    /// transaction_resolution_unknown: it may have committed or not, and this node cannot find out.
    pub const OUTCOME_UNKNOWN: Self = Self(*b"08007");
    /// no_data_found: a row that the program needs does not exist.
    pub const NO_DATA_FOUND: Self = Self(*b"P0002");
    /// raise_exception: the program decided to roll back.
    pub const RAISE_EXCEPTION: Self = Self(*b"P0001");
    /// program_limit_exceeded: a limit of the engine was exceeded.
    pub const PROGRAM_LIMIT_EXCEEDED: Self = Self(*b"54000");
    /// insufficient_resources: the node has accepted the maximum amount of work.
    pub const INSUFFICIENT_RESOURCES: Self = Self(*b"53000");
    /// cannot_connect_now: the node does not accept requests yet.
    pub const CANNOT_CONNECT_NOW: Self = Self(*b"57P03");
    /// operator_intervention: the operator has decided that the transaction does not run.
    pub const OPERATOR_INTERVENTION: Self = Self(*b"57000");
    /// feature_not_supported: the protocol or the cluster lacks it.
    pub const FEATURE_NOT_SUPPORTED: Self = Self(*b"0A000");
    /// invalid_parameter_value: a request names something that does not exist.
    pub const INVALID_PARAMETER_VALUE: Self = Self(*b"22023");
    /// object_in_use: a request has to wait until another one has ended.
    pub const OBJECT_IN_USE: Self = Self(*b"55006");
    /// undefined_function: the procedure does not exist.
    pub const UNDEFINED_FUNCTION: Self = Self(*b"42883");
    /// internal_error: a program violated its contract.
    pub const INTERNAL_ERROR: Self = Self(*b"XX000");

    /// The code as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason why a transaction did not commit. Part of the answer, and the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The SQLSTATE.
    pub code: SqlState,
    /// One line, in PostgreSQL's wording where PostgreSQL has the error.
    pub message: String,
    /// Specifics: the key, the value, the winning transaction.
    pub detail: Option<String>,
    /// Advice for the user.
    pub hint: Option<String>,
}

impl Abort {
    /// An abort with only a code and a message.
    pub fn new(code: SqlState, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None }
    }

    /// The total length of its texts in bytes.
    pub fn text_bytes(&self) -> usize {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.message.len() + len(&self.detail) + len(&self.hint)
    }

    /// The same abort, with a detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same abort, with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)?;
        self.detail.iter().try_for_each(|detail| write!(f, ": {detail}"))
    }
}

impl std::error::Error for Abort {}

/// The outcome of a transaction. Final and durable once it is sent to a client. There is one
/// exception: an abort with [`SqlState::OUTCOME_UNKNOWN`] means that the node was disconnected and
/// does not know the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The writes are permanent, in all regions.
    Committed {
        /// The id of the transaction.
        txn: TxnId,
        /// The first snapshot version that contains its writes.
        version: SnapshotVersion,
        /// The result of the program, in its own encoding.
        result: Vec<u8>,
    },
    /// The transaction had no effects.
    Aborted(Abort),
}
