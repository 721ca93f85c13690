//! Execution of programs.
//!
//! This module has two executors over one store. Both are deterministic and prevent phantoms:
//!
//! ```text
//!              reads                    writes             conflicts
//!  optimistic  a snapshot, with the     buffered in an     detected later, from the recorded
//!              overlay laid over it     overlay            reads (Minerva §3.2, Algorithm 1)
//!  ordered     the newest versions      go to the store,   never arise: locks are granted
//!                                       at one version     in the given order (Calvin §3.2)
//! ```
//!
//! - A **program** runs through a [`Context`](crate::txn::Context), which buffers its writes or can
//!   roll them back. A program that aborts therefore has no effects.
//! - A **panic** in a procedure becomes an abort with SQLSTATE XX000 and never stops the node.
//! - A **certified** transaction is checked rather than run: `certify` decides whether its reads
//!   are current.
//!
//! The main files:
//! - `adds` records the additions of a program.
//! - `call` runs procedures and catches their panics.
//! - `writes` buffers the writes of a program.
//! - `merge` lays uncommitted rows over a scan of the store.
//! - `isolation` selects the reads that a transaction's level checks.
//! - `size` limits the reads and writes of a transaction.
//! - `spread` runs a program optimistically with rows of other shards.
//! - `timed` orders transactions by timestamps that are chosen before they arrive.

mod adds;
mod call;
mod certify;
mod isolation;
mod merge;
pub mod optimistic;
pub mod ordered;
mod overlay;
pub mod reconnaissance;
mod remote_rows;
mod size;
pub mod spread;
#[cfg(test)]
mod testing;
pub mod timed;
mod writes;

pub use adds::{AddedRow, OwnAdds, add_to};
pub use call::{footprint as declared_footprint, is_bulk, is_divisible, is_footprint_declared};
pub use certify::Change;
pub use isolation::checked_reads;
pub use optimistic::first_change;
pub use overlay::Overlay;
pub use size::{
    TXN_BYTES_MAX, adds_bytes, check_certified, check_program, check_request, check_size,
    footprint_bytes, writes_bytes,
};
