//! What the SQL layer needs of a node, whatever commit protocol runs under it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_core::store::{Header, Store};
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};

/// A node, seen from a session. Cheap to clone.
pub trait Engine: Clone + Send + Sync + 'static {
    /// The record header of the node's protocol. Sessions look at its writer alone.
    type Header: Header;

    /// The node's tables: sessions read them at pinned versions.
    fn store(&self) -> &Arc<Store<Self::Header>>;

    /// The procedures that the node knows.
    fn registry(&self) -> &Arc<Registry>;

    /// The cluster that the node is in.
    fn topology(&self) -> &Topology;

    /// Orders and commits a program, and waits for its outcome.
    fn commit(&self, program: Program)
    -> impl Future<Output = Result<Outcome, Unavailable>> + Send;

    /// Waits for a published version that holds everything acknowledged anywhere before the call.
    fn fresh(&self) -> impl Future<Output = Result<SnapshotVersion, Unavailable>> + Send;

    /// What the node's protocol says of itself.
    fn status(&self) -> impl Future<Output = Result<Status, Unavailable>> + Send;

    /// A statement begins, and may take so long. An engine that keeps time gives up waiting then.
    fn begin_statement(&self, _time_max: Option<Duration>) {}

    /// Why the statement that runs must end, where it must.
    fn interruption(&self) -> Option<Interruption> {
        None
    }

    /// Why the node takes no clients yet, in words, where it has not yet all that it should have.
    fn rejoining(&self) -> Option<String> {
        None
    }

    /// Why nothing can be agreed on now, in words, where too few nodes can be reached.
    fn cut_off(&self) -> Option<String> {
        None
    }
}

/// Why a statement ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The client asked for it.
    Cancelled,
    /// It took longer than `statement_timeout`.
    TimedOut,
    /// The server stops.
    Stopping,
}

/// The node can't answer: it is stopping, or overloaded. Whether a program that was submitted
/// committed is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What happened and what to do.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}
