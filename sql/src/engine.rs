//! What the SQL layer needs of a node, whatever commit protocol runs under it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::key::Key;
use pangea_core::pool::{Pool, Sequential};
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};

use crate::elsewhere::Beyond;
use crate::history::History;

/// A node, seen from a session. Sessions share one behind an `Arc`, whatever its protocol.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The node's tables: sessions read them at pinned versions.
    fn store(&self) -> &Arc<Store>;

    /// The procedures that the node knows.
    fn registry(&self) -> &Arc<Registry>;

    /// The cluster that the node is in.
    fn topology(&self) -> &Topology;

    /// Orders and commits a program, and waits for its outcome.
    async fn commit(&self, program: Program) -> Result<Outcome, Unavailable>;

    /// Does the same, and notes in `trace` what the node knows of the program's way.
    async fn commit_traced(
        &self,
        program: Program,
        trace: &Arc<Trace>,
    ) -> Result<Outcome, Unavailable> {
        let _ = trace;
        self.commit(program).await
    }

    /// Waits for a published version that holds everything acknowledged anywhere before the call.
    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable>;

    /// The rows of a version that are on other nodes, kept there for as long as this is; nothing
    /// where all rows are here. The caller keeps the version here.
    async fn beyond(&self, at: SnapshotVersion) -> Result<Option<Beyond>, Unavailable> {
        let _ = at;
        Ok(None)
    }

    /// What the node's protocol says of itself.
    async fn status(&self) -> Result<Status, Unavailable>;

    /// What the node is, beside its protocol's status.
    fn about(&self) -> About {
        About::default()
    }

    /// Snapshots of the near past, where the node keeps them.
    fn history(&self) -> Option<&History> {
        None
    }

    /// What runs the parts of a long query side by side.
    fn pool(&self) -> &dyn Pool {
        &Sequential
    }

    /// A statement begins, and may take so long. An engine that keeps time gives up waiting then.
    fn begin_statement(&self, _time_max: Option<Duration>) {}

    /// Why the statement that runs must end, where it must.
    fn interruption(&self) -> Option<Interruption> {
        None
    }

    /// Why the node takes no sessions, in words: it has not yet all that it should have.
    fn closed_to_sessions(&self) -> Option<String> {
        None
    }

    /// Why nothing can be agreed on now, in words, where too few nodes can be reached.
    fn cut_off(&self) -> Option<String> {
        None
    }

    /// Which nodes are behind, so that this one waits, in words.
    fn waits_for(&self) -> Option<String> {
        None
    }
}

/// What a node is, for those who look at it.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Which node it is.
    pub me: Option<NodeId>,
    /// The protocol's name.
    pub protocol: &'static str,
    /// What a write must have survived before it is acknowledged.
    pub durability: String,
    /// The protocol's settings, as its table of the node's file has them.
    pub settings: String,
    /// The nodes that are connected to this one, and itself.
    pub connected: Vec<NodeId>,
}

/// What a node notes of a program's way. Nothing of it decides anything.
#[derive(Debug, Default)]
pub struct Trace {
    /// Whether times are wanted: looking at a clock costs more than the rest.
    is_timed: bool,
    taken: OnceLock<Instant>,
    decided: OnceLock<Instant>,
    answered: OnceLock<Instant>,
    ran_again: AtomicBool,
    contended: OnceLock<(TableId, Key)>,
}

impl Trace {
    /// One that has times too.
    pub fn timed() -> Self {
        Self { is_timed: true, ..Self::default() }
    }

    fn note(&self, moment: &OnceLock<Instant>) {
        if self.is_timed {
            let _ = moment.set(Instant::now());
        }
    }

    /// The node's event loop has taken the program.
    pub fn on_taken(&self) {
        self.note(&self.taken);
    }

    /// The protocol has decided the outcome; `ran_again` where the first run did not stand and the
    /// program was run, or looked at, once more at its place in the order.
    pub fn on_decided(&self, ran_again: bool) {
        self.note(&self.decided);
        self.ran_again.store(ran_again, Ordering::Relaxed);
    }

    /// The key at which it met another transaction, where that is known.
    pub fn on_contended(&self, table: TableId, key: Key) {
        let _ = self.contended.set((table, key));
    }

    /// What the outcome rests on is durable, and the session is told.
    pub fn on_answered(&self) {
        self.note(&self.answered);
    }

    /// When the event loop took the program.
    pub fn taken(&self) -> Option<Instant> {
        self.taken.get().copied()
    }

    /// When the outcome was decided.
    pub fn decided(&self) -> Option<Instant> {
        self.decided.get().copied()
    }

    /// When the session was told.
    pub fn answered(&self) -> Option<Instant> {
        self.answered.get().copied()
    }

    /// The key at which it met another transaction, where that is known.
    pub fn contended(&self) -> Option<(TableId, Key)> {
        self.contended.get().cloned()
    }

    /// Whether the first run did not stand.
    pub fn ran_again(&self) -> bool {
        self.ran_again.load(Ordering::Relaxed)
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
