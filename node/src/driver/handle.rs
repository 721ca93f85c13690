//! The handle of a node, for its sessions and clients.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pangea_core::exec::check_program;
use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::pool::Pool;
use pangea_core::protocol::{Protocol, Request, Status};
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_sql::engine::{Engine, NodeInfo, Trace, Unavailable};
use pangea_sql::history::History;
use pangea_sql::losses::Losses;
use pangea_sql::remote_rows::RemoteSnapshot;
use tokio::sync::oneshot;

use super::Stopped;
use super::inbox::{Answer, Closed, CommitReply, Inbox, Receive, Waiting};
use crate::log::Durability;
use crate::pool::ThreadedPool;
use crate::remote_rows::RemoteShards;

/// The state shared by a node's handles.
pub struct Shared<P: Protocol> {
    /// The node's id.
    pub me: NodeId,
    /// The driver's queue.
    pub inbox: Arc<Inbox<P>>,
    /// The tables.
    pub store: Arc<Store>,
    /// The procedures.
    pub registry: Arc<Registry>,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// The condition under which a write counts as durable.
    pub durability: Durability,
    /// The protocol's settings, formatted as in the node's configuration file.
    pub settings: String,
    /// The isolation levels that the protocol offers with these settings.
    pub isolations: Isolations,
    /// Recent snapshots.
    pub history: History,
    /// Access to remote rows, if there are other shards.
    pub remote_shards: OnceLock<Arc<RemoteShards>>,
    /// When the last strict read began that has ended: the store has everything that was
    /// acknowledged before.
    pub fresh_at: Mutex<Option<Instant>>,
    /// The pool that runs long queries in parallel. It is separate, so that steps of the event loop
    /// do not wait for it.
    pub queries: ThreadedPool,
}

/// A handle for requests to a node. Cheap to clone. It may outlive the node, and its requests then
/// fail.
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
    /// Creates a handle to the node behind an inbox.
    pub fn new(shared: Shared<P>) -> Self {
        Self(Arc::new(shared))
    }

    /// The node's id.
    pub fn me(&self) -> NodeId {
        self.0.me
    }

    /// Access to remote rows, if there are other shards.
    pub(crate) fn knows_remote_shards(&self, region: RemoteShards) {
        // A node is connected only once.
        let _ = self.0.remote_shards.set(Arc::new(region));
    }

    /// The queue to which the network delivers peers' messages.
    pub fn inbox(&self) -> &Arc<Inbox<P>> {
        &self.0.inbox
    }

    /// The node's recent snapshots.
    pub fn past(&self) -> &History {
        &self.0.history
    }

    /// Orders and commits a program, and calls `receive` with its outcome: on the driver's thread,
    /// or on this one if the node rejects the program. `receive` must not block.
    pub fn submit_with(
        &self,
        program: Program,
        receive: impl FnOnce(Result<Outcome, Unavailable>) + Send + 'static,
    ) {
        self.submit_many(vec![(program, Answer::new(receive))]);
    }

    /// Like [`Handle::submit_with`] for many programs at once, at the cost of one lock. A program
    /// that is too large to send to the other nodes is rejected, without affecting the others. All
    /// have the protocol's default isolation level.
    pub fn submit_many(&self, programs: Vec<(Program, CommitReply)>) {
        let level = self.0.isolations.default_level();
        self.submit_all(programs.into_iter().map(|(program, reply)| (program, level, reply)));
    }

    fn submit_all(&self, programs: impl Iterator<Item = (Program, Isolation, CommitReply)>) {
        let now = Instant::now();
        let request =
            |(program, isolation, reply): (_, _, CommitReply)| match check_program(&program) {
                Ok(()) => {
                    let waiting = Waiting::Commit(reply.arrived_at(now));
                    Some((Request::Commit(program, isolation), waiting))
                }
                Err(abort) => {
                    reply.send(Ok(Outcome::Aborted(abort)));
                    None
                }
            };
        self.0.inbox.submit(programs.filter_map(request).collect());
    }

    fn fresh_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.fresh_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `receive` with a version for a strict read, like [`Handle::submit_with`].
    pub fn fresh_with(
        &self,
        receive: impl FnOnce(Result<SnapshotVersion, Unavailable>) + Send + 'static,
    ) {
        self.0.inbox.submit(vec![(Request::Fresh, Waiting::Fresh(Answer::new(receive)))]);
    }

    /// Calls `receive` with the status, like [`Handle::submit_with`].
    pub fn status_with(&self, receive: impl FnOnce(Result<Status, Unavailable>) + Send + 'static) {
        self.0.inbox.query(Answer::new(receive));
    }

    /// Asks the node to stop in order, without waiting for it: it finishes what is in flight and
    /// writes a checkpoint, for at most `stop_s` seconds.
    pub fn stop(&self) {
        self.0.inbox.request_stop();
    }

    /// Stops the node at once, as after a crash, without waiting for it.
    pub fn stop_now(&self) {
        let stopped = Stopped::WithoutCheckpoint("it was stopped at once");
        self.0.inbox.close(Closed::Requested(stopped));
    }
}

/// Waits for the answer to the request that `ask` makes.
async fn answer<T: Send + 'static>(ask: impl FnOnce(Receive<T>)) -> Result<T, Unavailable> {
    let (sender, receiver) = oneshot::channel();
    // Sending fails if the requester has stopped waiting.
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

    fn isolations(&self) -> Isolations {
        self.0.isolations
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        let submit = |receive| {
            self.submit_all(std::iter::once((program, isolation, Answer::new(receive))));
        };
        answer(submit).await
    }

    async fn commit_traced(
        &self,
        program: Program,
        isolation: Isolation,
        trace: &Arc<Trace>,
    ) -> Result<Outcome, Unavailable> {
        let trace = trace.clone();
        let submit = |receive: Receive<Outcome>| {
            let reply = Answer::new(receive).traced(trace);
            self.submit_all(std::iter::once((program, isolation, reply)));
        };
        answer(submit).await
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        let asked = Instant::now();
        let version = answer(|receive| self.fresh_with(receive)).await?;
        let mut fresh_at = self.fresh_at();
        *fresh_at = (*fresh_at).max(Some(asked));
        Ok(version)
    }

    async fn published(&self, version: SnapshotVersion) -> Result<(), Unavailable> {
        tokio::select! {
            biased;
            () = self.0.inbox.publications().reached(version) => Ok(()),
            // If the version is lost, it may not come for long.
            fresh = self.fresh() => fresh.map(drop),
        }
    }

    fn is_fresh_within(&self, age: Duration) -> bool {
        self.fresh_at().is_some_and(|asked| asked.elapsed() <= age)
    }

    async fn remote_rows(
        &self,
        at: SnapshotVersion,
    ) -> Result<Option<RemoteSnapshot>, Unavailable> {
        match self.0.remote_shards.get() {
            Some(region) => region.remote_rows(at).await.map(Some),
            None => Err(Unavailable { reason: "the node is not connected yet".to_owned() }),
        }
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        answer(|receive| self.status_with(receive)).await
    }

    fn history(&self) -> Option<&History> {
        Some(&self.0.history)
    }

    fn losses(&self) -> Option<&Losses> {
        Some(self.0.inbox.losses())
    }

    fn pool(&self) -> &dyn Pool {
        &self.0.queries
    }

    fn about(&self) -> NodeInfo {
        NodeInfo {
            me: Some(self.0.me),
            protocol: P::NAME,
            durability: self.0.durability.name().to_owned(),
            settings: self.0.settings.clone(),
            connected: self.inbox().reachability().connected(),
            release: env!("CARGO_PKG_VERSION"),
            code: self.0.registry.code().to_string(),
            procedures: self.0.registry.names().map(str::to_owned).collect(),
        }
    }

    fn closed_to_sessions(&self) -> Option<String> {
        self.inbox().reachability().closed()
    }

    fn cut_off(&self) -> Option<String> {
        self.inbox().reachability().cut_off()
    }

    fn waits_for(&self) -> Option<String> {
        self.inbox().reachability().waits_for()
    }
}
