//! What a transaction is: a deterministic program with its arguments, plus what an optimistic run
//! learned of it.
//!
//! ```text
//!            Program                       a run of it learns           and ends in
//!   Call { procedure, args }   --run-->   ReadSet + writes   --commit--> Outcome::Committed
//!   Certified { reads, writes }                              `---------> Outcome::Aborted
//! ```
//!
//! A [`Procedure`] is code that every replica has; a `Statement` is a procedure too, whose argument
//! is SQL text. A [`Certified`] transaction is what is left of an interactive one: it can't be
//! re-executed, only checked. Time and randomness inside a program are arguments, fixed where the
//! transaction came in.

mod footprint;
mod outcome;
mod parts;
mod procedure;
mod sets;

use bytes::Bytes;

pub use footprint::{Footprint, Mode, PointLock, RangeLock};
pub use outcome::{Abort, Outcome, SqlState};
pub use parts::{Parts, Taken};
pub use procedure::{CodeDigest, Context, Procedure, Registry, Scan, Stop, Visit};
pub use sets::{PointRead, RangeRead, ReadSet, Seen, Write};

use crate::ids::ProcedureId;

/// One transaction, as a client submitted it.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// Run a registered procedure. May be run again, on any replica, with the same effect.
    Call {
        /// Which procedure.
        procedure: ProcedureId,
        /// Its arguments, in the procedure's own encoding.
        args: Bytes,
    },
    /// Install writes if what was read is still current.
    Certified(Certified),
}

/// What an interactive transaction read and wants to write. At its place in the order it commits
/// if what it read is still current; otherwise it aborts with SQLSTATE 40001.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Certified {
    /// The keys and ranges read, with the versions seen.
    pub reads: ReadSet,
    /// The writes, at most one for each key.
    pub writes: Vec<Write>,
    /// The line of the store's versions that was read, known to the node alone where that was:
    /// [`crate::store::Store::line`].
    pub line: u64,
}
