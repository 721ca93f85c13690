//! Transactions: deterministic programs with their arguments, and the reads and writes that
//! optimistic runs of them record.
//!
//! ```text
//!            Program                       a run of it records          and ends in
//!   Call { procedure, args }   --run-->   ReadSet + writes   --commit--> Outcome::Committed
//!   Certified { reads, writes }                              `---------> Outcome::Aborted
//! ```
//!
//! A [`Procedure`] is code that every replica has; a `Statement` is a procedure too, whose argument
//! is SQL text. A [`Certified`] transaction consists of the reads and writes of an interactive one.
//! It cannot be re-executed, only checked. Time and random values inside a program are arguments,
//! chosen at the node that accepted the transaction.

mod adder;
mod footprint;
mod guards;
mod outcome;
mod parts;
mod procedure;
mod sets;

use bytes::Bytes;

pub use adder::{Add, Adder, read_and_add};
pub use footprint::{Footprint, LockMode, PointLock, RangeLock};
pub use guards::Guards;
pub use outcome::{Abort, Outcome, SqlState};
pub use parts::{Parts, Taken};
pub use procedure::{CODE_VERSION, CodeDigest, Context, Procedure, Registry, Scan, Stop, Visit};
pub use sets::{PointRead, RangeRead, ReadSet, ReadVersion, Write};

use crate::ids::{ProcedureId, SnapshotVersion};

/// A transaction as submitted by a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// A call of a registered procedure. It may run again, on any replica, with the same effects.
    Call {
        /// The procedure.
        procedure: ProcedureId,
        /// Its arguments, in the procedure's own encoding.
        args: Bytes,
    },
    /// Writes that are applied if the reads are still current.
    Certified(Certified),
}

/// The reads and writes of an interactive transaction. At its place in the order it commits if its
/// reads are still current; otherwise it aborts with SQLSTATE 40001. Whoever submits it leaves out
/// the reads that its isolation level does not check: see [`crate::exec::checked_reads`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Certified {
    /// The keys and ranges that must not have changed, with the versions that were read.
    pub reads: ReadSet,
    /// The writes, at most one for each key.
    pub writes: Vec<Write>,
    /// The additions to rows that it does not write. Those of one row are in order. None if the
    /// protocol does not merge additions: see [`crate::guarantee::Isolations::adds_at`].
    pub adds: Vec<Add>,
    /// The snapshot that was read, if it was one. Known only to the node on which it was read.
    pub at: SnapshotVersion,
    /// The timeline of the snapshot that was read: [`crate::store::Store::timeline`]. Known only to
    /// the node on which it was read.
    pub timeline: u64,
}
