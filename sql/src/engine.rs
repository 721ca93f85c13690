//! The interface between the SQL layer and a node, independent of the commit protocol.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::key::Key;
use pangea_core::pool::{Pool, Sequential};
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};

pub use crate::error::Unavailable;
use crate::history::History;
use crate::losses::Losses;
use crate::remote_rows::RemoteSnapshot;

/// A node as sessions see it. Sessions share it in an `Arc`.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The node's store, which sessions read at pinned versions.
    fn store(&self) -> &Arc<Store>;

    /// The procedures that the node can run.
    fn registry(&self) -> &Arc<Registry>;

    /// The cluster that the node belongs to.
    fn topology(&self) -> &Topology;

    /// The isolation levels that the protocol offers.
    fn isolations(&self) -> Isolations {
        Isolations::new(Isolation::Serializable, &[])
    }

    /// Submits a program and waits for its outcome. The level is one of those that the protocol
    /// offers.
    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable>;

    /// Like [`Self::commit`], and records in `trace` the program's progress on this node.
    async fn commit_traced(
        &self,
        program: Program,
        isolation: Isolation,
        trace: &Arc<Trace>,
    ) -> Result<Outcome, Unavailable> {
        let _ = trace;
        self.commit(program, isolation).await
    }

    /// Waits for a published version that contains everything acknowledged anywhere before the
    /// call.
    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable>;

    /// Waits until this node has published a version of which a client was told. It may lack it for
    /// a moment: other nodes can be the first to know that a transaction is committed. If the
    /// version is lost, the wait ends with a version as of [`Engine::fresh`].
    async fn published(&self, version: SnapshotVersion) -> Result<(), Unavailable> {
        let _ = version;
        self.fresh().await.map(drop)
    }

    /// Whether the newest snapshot is known to contain everything that was acknowledged anywhere
    /// longer than `age` ago.
    fn is_fresh_within(&self, age: Duration) -> bool {
        let _ = age;
        false
    }

    /// Returns the remote rows of a version, pinned there until the result is dropped. `None` if
    /// all rows are local. The caller must keep the version pinned on this node. Sessions call this
    /// only if tables are partitioned.
    async fn remote_rows(
        &self,
        at: SnapshotVersion,
    ) -> Result<Option<RemoteSnapshot>, Unavailable> {
        let _ = at;
        Ok(None)
    }

    /// The status of the node's protocol.
    async fn status(&self) -> Result<Status, Unavailable>;

    /// Information about the node in addition to the protocol's status.
    fn about(&self) -> NodeInfo {
        NodeInfo::default()
    }

    /// Recent snapshots, if the node retains them.
    fn history(&self) -> Option<&History> {
        None
    }

    /// The acknowledged commits that the node has lost, if its protocol can lose any.
    fn losses(&self) -> Option<&Losses> {
        None
    }

    /// The pool that runs the partitions of a long query in parallel.
    fn pool(&self) -> &dyn Pool {
        &Sequential
    }

    /// Announces a statement and its time limit. An engine that measures time stops waiting at the
    /// limit.
    fn begin_statement(&self, _time_max: Option<Duration>) {}

    /// The reason why the current statement must end, if it must.
    fn interruption(&self) -> Option<Interruption> {
        None
    }

    /// The reason why the node does not accept sessions yet, for humans.
    fn closed_to_sessions(&self) -> Option<String> {
        None
    }

    /// The reason why nothing can be decided now, for humans, if too few nodes are reachable.
    fn cut_off(&self) -> Option<String> {
        None
    }

    /// The slow nodes that this node waits for, for humans.
    fn waits_for(&self) -> Option<String> {
        None
    }
}

/// Information about a node, for monitoring.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// Id of the node.
    pub me: Option<NodeId>,
    /// Name of the protocol.
    pub protocol: &'static str,
    /// The durability that a write must have before it is acknowledged.
    pub durability: String,
    /// Settings of the protocol, as in its table of the configuration file.
    pub settings: String,
    /// Nodes connected to this one, including itself.
    pub connected: Vec<NodeId>,
    /// Release of the program.
    pub release: &'static str,
    /// Digest of the code, which is the same on all nodes.
    pub code: String,
    /// Names of the procedures, in order.
    pub procedures: Vec<String>,
}

/// A node's record of a program's progress. It is informational only.
#[derive(Debug, Default)]
pub struct Trace {
    /// Whether times are recorded. Reading the clock costs more than everything else here.
    is_timed: bool,
    taken: OnceLock<Instant>,
    decided: OnceLock<Instant>,
    answered: OnceLock<Instant>,
    ran_again: AtomicBool,
    contended: OnceLock<(TableId, Key)>,
}

impl Trace {
    /// Creates a trace that records times.
    pub fn timed() -> Self {
        Self { is_timed: true, ..Self::default() }
    }

    fn note(&self, moment: &OnceLock<Instant>) {
        if self.is_timed {
            let _ = moment.set(Instant::now());
        }
    }

    /// Records that the node's event loop has accepted the program.
    pub fn on_taken(&self) {
        self.note(&self.taken);
    }

    /// Records that the protocol has decided the outcome. `ran_again` means that the first run was
    /// invalid and the program was re-executed, or revalidated, at its place in the order.
    pub fn on_decided(&self, ran_again: bool) {
        self.note(&self.decided);
        self.ran_again.store(ran_again, Ordering::Relaxed);
    }

    /// The key of the conflict with another transaction, if known.
    pub fn on_contended(&self, table: TableId, key: Key) {
        let _ = self.contended.set((table, key));
    }

    /// Records that the outcome is durable and the session has been notified.
    pub fn on_answered(&self) {
        self.note(&self.answered);
    }

    /// Time when the event loop accepted the program.
    pub fn taken(&self) -> Option<Instant> {
        self.taken.get().copied()
    }

    /// Time when the outcome was decided.
    pub fn decided(&self) -> Option<Instant> {
        self.decided.get().copied()
    }

    /// Time when the session was notified.
    pub fn answered(&self) -> Option<Instant> {
        self.answered.get().copied()
    }

    /// The key of the conflict with another transaction, if known.
    pub fn contended(&self) -> Option<(TableId, Key)> {
        self.contended.get().cloned()
    }

    /// Whether the first run was invalid.
    pub fn ran_again(&self) -> bool {
        self.ran_again.load(Ordering::Relaxed)
    }
}

/// The reason why a statement is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The client cancelled it.
    Cancelled,
    /// It exceeded `statement_timeout`.
    TimedOut,
    /// The server is shutting down.
    Stopping,
}
