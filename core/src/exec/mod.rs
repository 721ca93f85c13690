//! How programs run.
//!
//! Two executors over one store, both deterministic and both safe against phantoms:
//!
//! ```text
//!              reads                    writes             conflicts
//!  optimistic  a snapshot, with the     kept in an         found later, from what was read
//!              overlay laid over it     overlay            (Minerva §3.2, Algorithm 1)
//!  ordered     the newest versions      go to the store,   never arise: locks are granted
//!                                       at one version     in the given order (Calvin §3.2)
//! ```
//!
//! - A **program** is run through [`Context`](crate::txn::Context), which buffers its writes until
//!   it ends or takes them back, so a program that aborts has changed nothing, whatever it did
//!   before.
//! - A **panic** in a procedure is an abort with SQLSTATE XX000 and never takes the node down.
//! - A **certified** transaction is not run but checked: `certify` says what is current.
//!
//! What is in which file: `call` runs code and catches its panics, `writes` buffers what a
//! program wrote, `merge` lays uncommitted rows over a scan of the store, `size` limits what a
//! transaction may read and write.

mod beyond;
mod call;
mod certify;
mod merge;
pub mod optimistic;
pub mod ordered;
mod overlay;
pub mod scout;
mod size;
#[cfg(test)]
mod testing;
mod writes;

pub use call::{footprint as declared_footprint, is_bulk, is_footprint_declared};
pub use certify::Change;
pub use overlay::Overlay;
pub use size::{
    TXN_BYTES_MAX, check_program, check_request, check_size, footprint_bytes, writes_bytes,
};
