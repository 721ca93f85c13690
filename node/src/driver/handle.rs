//! A node, seen from those who want something of it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use pangea_core::exec::check_program;
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::pool::Pool;
use pangea_core::protocol::{Protocol, Request, Status};
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_sql::elsewhere::Beyond;
use pangea_sql::engine::{About, Engine, Trace, Unavailable};
use pangea_sql::history::History;
use tokio::sync::oneshot;

use super::inbox::{Answer, Closed, CommitReply, Inbox, Receive, Waiting};
use crate::log::Durability;
use crate::pool::ThreadedPool;
use crate::region::Region;

/// What a node's handles share.
pub struct Shared<P: Protocol> {
    /// Which node it is.
    pub me: NodeId,
    /// The driver's queue.
    pub inbox: Arc<Inbox<P>>,
    /// The tables.
    pub store: Arc<Store>,
    /// The procedures.
    pub registry: Arc<Registry>,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// What a write must have survived before it is acknowledged.
    pub durability: Durability,
    /// The protocol's settings, as its table of the node's file has them.
    pub settings: String,
    /// Snapshots of the near past.
    pub history: History,
    /// Where rows of other shards are to be had, where there are any.
    pub region: OnceLock<Arc<Region>>,
    /// What runs long queries side by side: not what the event loop's steps wait for.
    pub queries: ThreadedPool,
}

/// A way to ask a node for something. Cheap to clone; outlives the node, and then says so.
pub struct Handle<P: Protocol>(Arc<Shared<P>>);

impl<P: Protocol> fmt::Debug for Handle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}, {})", P::NAME, self.0.me)
    }
}

impl<P: Protocol> Clone for Handle<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P: Protocol> Handle<P> {
    /// A handle to the node behind an inbox.
    pub fn new(shared: Shared<P>) -> Self {
        Self(Arc::new(shared))
    }

    /// Which node it is.
    pub fn me(&self) -> NodeId {
        self.0.me
    }

    /// Where rows of other shards are to be had, where there are any.
    pub(crate) fn knows_region(&self, region: Region) {
        // A node is connected once.
        let _ = self.0.region.set(Arc::new(region));
    }

    /// Where the network brings what peers say.
    pub fn inbox(&self) -> &Arc<Inbox<P>> {
        &self.0.inbox
    }

    /// Snapshots of the node's near past.
    pub fn past(&self) -> &History {
        &self.0.history
    }

    /// Orders and commits a program, and calls `receive` with its outcome: on the driver's thread,
    /// or on this one when the node does not take the program. `receive` must not block.
    pub fn submit_with(
        &self,
        program: Program,
        receive: impl FnOnce(Result<Outcome, Unavailable>) + Send + 'static,
    ) {
        self.submit_many(vec![(program, Answer::new(receive))]);
    }

    /// Like [`Handle::submit_with`] for many programs at once, which costs one lock. One that is
    /// too large to reach the other nodes is refused here, and none of the others with it.
    pub fn submit_many(&self, programs: Vec<(Program, CommitReply)>) {
        let now = Instant::now();
        let request = |(program, reply): (Program, CommitReply)| match check_program(&program) {
            Ok(()) => Some((Request::Commit(program), Waiting::Commit(reply.arrived_at(now)))),
            Err(abort) => {
                reply.send(Ok(Outcome::Aborted(abort)));
                None
            }
        };
        self.0.inbox.submit(programs.into_iter().filter_map(request).collect());
    }

    /// Names a fresh version to `receive`, as [`Handle::submit_with`] does.
    pub fn fresh_with(
        &self,
        receive: impl FnOnce(Result<SnapshotVersion, Unavailable>) + Send + 'static,
    ) {
        self.0.inbox.submit(vec![(Request::Fresh, Waiting::Fresh(Answer::new(receive)))]);
    }

    /// Tells the status to `receive`, as [`Handle::submit_with`] does.
    pub fn status_with(&self, receive: impl FnOnce(Result<Status, Unavailable>) + Send + 'static) {
        self.0.inbox.query(Answer::new(receive));
    }

    /// Ends the node, without waiting until it has.
    pub fn stop(&self) {
        let reason = "the node was stopped".to_owned();
        self.0.inbox.close(Closed { reason, is_failure: false });
    }
}

/// The answer to a request that `ask` makes.
async fn answer<T: Send + 'static>(ask: impl FnOnce(Receive<T>)) -> Result<T, Unavailable> {
    let (sender, receiver) = oneshot::channel();
    // Whoever does not wait any more does not want the answer.
    ask(Box::new(move |answer| drop(sender.send(answer))));
    let gone = || Unavailable { reason: "the node has ended".to_owned() };
    receiver.await.unwrap_or_else(|_| Err(gone()))
}

#[async_trait]
impl<P: Protocol> Engine for Handle<P> {
    fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    fn topology(&self) -> &Topology {
        &self.0.topology
    }

    async fn commit(&self, program: Program) -> Result<Outcome, Unavailable> {
        answer(|receive| self.submit_with(program, receive)).await
    }

    async fn commit_traced(
        &self,
        program: Program,
        trace: &Arc<Trace>,
    ) -> Result<Outcome, Unavailable> {
        let trace = trace.clone();
        let submit = |receive: Receive<Outcome>| {
            self.submit_many(vec![(program, Answer::new(receive).traced(trace))]);
        };
        answer(submit).await
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        answer(|receive| self.fresh_with(receive)).await
    }

    async fn beyond(&self, at: SnapshotVersion) -> Result<Option<Beyond>, Unavailable> {
        match self.0.region.get() {
            Some(region) => region.beyond(at).await.map(Some),
            None if self.0.topology.partitions.shards() == 1 => Ok(None),
            None => Err(Unavailable { reason: "the node is not connected yet".to_owned() }),
        }
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        answer(|receive| self.status_with(receive)).await
    }

    fn history(&self) -> Option<&History> {
        Some(&self.0.history)
    }

    fn pool(&self) -> &dyn Pool {
        &self.0.queries
    }

    fn about(&self) -> About {
        About {
            me: Some(self.0.me),
            protocol: P::NAME,
            durability: self.0.durability.name().to_owned(),
            settings: self.0.settings.clone(),
            connected: self.inbox().reach().connected(),
        }
    }

    fn closed_to_sessions(&self) -> Option<String> {
        self.inbox().reach().rejoining()
    }

    fn cut_off(&self) -> Option<String> {
        self.inbox().reach().cut_off()
    }

    fn waits_for(&self) -> Option<String> {
        self.inbox().reach().waits_for()
    }
}
