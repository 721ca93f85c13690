//! How a transaction ended.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{SnapshotVersion, TxnId};

/// A five-character SQLSTATE code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SqlState(pub [u8; 5]);

impl SqlState {
    /// serialization_failure: what the transaction read has changed.
    pub const SERIALIZATION_FAILURE: Self = Self(*b"40001");
    /// unique_violation: the key exists.
    pub const UNIQUE_VIOLATION: Self = Self(*b"23505");
    /// transaction_resolution_unknown: it may have committed or not, and this node can't tell.
    pub const OUTCOME_UNKNOWN: Self = Self(*b"08007");
    /// no_data_found: a program needs a row that is not there.
    pub const NO_DATA_FOUND: Self = Self(*b"P0002");
    /// raise_exception: the program decided to roll back.
    pub const RAISE_EXCEPTION: Self = Self(*b"P0001");
    /// program_limit_exceeded: more than the engine is built for.
    pub const PROGRAM_LIMIT_EXCEEDED: Self = Self(*b"54000");
    /// insufficient_resources: the node has taken as much as it can.
    pub const INSUFFICIENT_RESOURCES: Self = Self(*b"53000");
    /// cannot_connect_now: the node takes no requests yet.
    pub const CANNOT_CONNECT_NOW: Self = Self(*b"57P03");
    /// undefined_function: there is no such procedure.
    pub const UNDEFINED_FUNCTION: Self = Self(*b"42883");
    /// internal_error: a program did what it must not.
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

/// Why a transaction did not commit. Part of the answer: the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The SQLSTATE.
    pub code: SqlState,
    /// One line, in PostgreSQL's words where it has them.
    pub message: String,
    /// What exactly: the key, the value, the winner.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Abort {
    /// An abort with a code and a message alone.
    pub fn new(code: SqlState, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None }
    }

    /// How long its words are together.
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

/// How a transaction ended. Final and durable: what a client is told. One exception: an abort with
/// [`SqlState::OUTCOME_UNKNOWN`] says that the node was cut off and can't tell how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Its writes are in the database, in all regions, for good.
    Committed {
        /// The transaction's name.
        txn: TxnId,
        /// The first snapshot version that holds its writes.
        version: SnapshotVersion,
        /// What the program returned, in its own encoding.
        result: Vec<u8>,
    },
    /// It changed nothing.
    Aborted(Abort),
}
