//! Connections to nodes of other shards, for sessions that read remote rows (Calvin §3).
//!
//! ```text
//!   session          this node                     a node of each other shard
//!      | remote_rows > | Pin(v) -------------------> |  pins v
//!      |               | <----------------- Pinned --|
//!      | rows -------> | Table(v, range) ----------> |
//!      | <-------------| <------------------- Rows --|
//!      | (ends)        | Unpin --------------------> |  unpins v
//! ```
//!
//! Reads of a shard go to its nearest node that answers: the node in the local region, unless it is
//! unreachable. Sessions that begin at one version share its pins. All pins are released with the
//! connection. A node that could not be connected to is skipped while another one is connected
//! (`remote_rows/peer.rs`).

mod peer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::key::Key;
use pangea_core::partition::Partitions;
use pangea_core::topology::Topology;
use pangea_core::txn::Scan;
use pangea_core::value::Value;
use pangea_sql::engine::Unavailable;
use pangea_sql::remote_rows::{RemoteRowSource, RemoteSnapshot, Row};
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::config::Config;
use peer::{Peer, Refusal, RemotePin};

/// Timeout for fetching remote rows.
const ROWS_DEADLINE: Duration = Duration::from_secs(10);

/// The connections to the nodes of other shards.
pub struct RemoteShards {
    here: ShardId,
    partitions: Arc<Partitions>,
    /// The nodes of each other shard, nearest first.
    shards: BTreeMap<ShardId, Vec<Peer>>,
    /// The version requested last, and its pins.
    latest: std::sync::Mutex<(SnapshotVersion, Arc<Mutex<Weak<RemotePins>>>)>,
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
}

/// A version that is pinned on one node of each other shard.
struct RemotePins {
    at: SnapshotVersion,
    /// The pin on each shard, or the reason why no node of the shard has pinned the version. The
    /// other shards can still be read.
    of: BTreeMap<ShardId, Result<RemotePin, Refusal>>,
    runtime: Handle,
}

fn unavailable(reason: impl fmt::Display) -> Unavailable {
    Unavailable { reason: reason.to_string() }
}

impl RemoteShards {
    /// Creates the connections to the other shards of a node's cluster; `None` if there is only one
    /// shard.
    ///
    /// # Errors
    /// When the thread for the connections can't be started.
    pub fn of(config: &Config, topology: &Topology) -> std::io::Result<Option<Self>> {
        if topology.partitions.shards() == 1 {
            return Ok(None);
        }
        let me = config.node;
        let here = topology.nodes[me.index()].shard;
        let other_shards =
            (0..topology.partitions.shards()).map(ShardId).filter(|shard| *shard != here);
        let peer = |node: &NodeId| {
            let (name, address) = (topology.place_name(*node), config.nodes[node.index()].peer);
            Peer::new(name, address, config.cluster.clone())
        };
        let of_shard = |shard| {
            let mut nodes = topology.group(shard).nodes().to_vec();
            let region = topology.nodes[me.index()].region;
            let is_far = |node: &NodeId| topology.nodes[node.index()].region != region;
            // Those elsewhere without a vote may be behind.
            nodes.sort_by_key(|node| {
                let is_far = is_far(node);
                (is_far, is_far && !topology.votes(*node), topology.one_way_between(me, *node))
            });
            (shard, nodes.iter().map(peer).collect())
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("region")
            .enable_all()
            .build()?;
        Ok(Some(Self {
            here,
            partitions: Arc::new(topology.partitions.clone()),
            shards: other_shards.map(of_shard).collect(),
            latest: std::sync::Mutex::default(),
            runtime: Some(runtime),
        }))
    }

    fn runtime(&self) -> &Handle {
        self.runtime.as_ref().expect("the pin is only taken at the end").handle()
    }

    /// The rows of a version on other shards. If no node of a shard could pin the version, reading
    /// rows of that shard is an error.
    ///
    /// # Errors
    /// When this is being dropped.
    pub async fn remote_rows(
        self: &Arc<Self>,
        at: SnapshotVersion,
    ) -> Result<RemoteSnapshot, Unavailable> {
        let region = self.clone();
        let pins = self.runtime().spawn(async move { region.pin(at).await });
        let pins = pins.await.unwrap_or_else(|error| Err(unavailable(error)))?;
        let oldest = pins.oldest();
        Ok(RemoteSnapshot::new(self.partitions.clone(), self.here, pins).reclaimed_before(oldest))
    }

    async fn pin(self: Arc<Self>, at: SnapshotVersion) -> Result<Arc<RemotePins>, Unavailable> {
        // Sessions at the same version wait for each other, but not for sessions at other versions.
        let of_version = {
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            if latest.0 != at {
                *latest = (at, Arc::default());
            }
            latest.1.clone()
        };
        let mut latest = of_version.lock().await;
        if let Some(pins) = latest.upgrade().filter(|pins| pins.is_whole()) {
            return Ok(pins);
        }
        let mut holding = JoinSet::new();
        for shard in self.shards.keys().copied() {
            let region = self.clone();
            holding.spawn(async move { (shard, region.pin_on(shard, at).await) });
        }
        let mut pins = RemotePins { at, of: BTreeMap::new(), runtime: self.runtime().clone() };
        while let Some(done) = holding.join_next().await {
            pins.of.extend([done.map_err(unavailable)?]);
        }
        let pins = Arc::new(pins);
        *latest = Arc::downgrade(&pins);
        Ok(pins)
    }

    /// Pins a version on the nearest node of a shard that answers.
    async fn pin_on(&self, shard: ShardId, at: SnapshotVersion) -> Result<RemotePin, Refusal> {
        let pins = peer::pin_on_one(&self.shards[&shard], at).await;
        pins.map_err(|Refusal { reason, oldest }| {
            let reason = format!("no node of shard {} can be read: {reason}", shard.0);
            Refusal { reason, oldest }
        })
    }
}

impl Drop for RemoteShards {
    fn drop(&mut self) {
        // Shuts down in the background, because this may be dropped by a task, which must not
        // block.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl fmt::Debug for RemoteShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteShards(without {})", self.here)
    }
}

impl RemotePins {
    /// Whether all shards can be read.
    fn is_whole(&self) -> bool {
        self.of.values().all(|hold| hold.as_ref().is_ok_and(|it| it.client.is_connected()))
    }

    /// The oldest version that all shards can pin, if some have removed rows of this one.
    fn oldest(&self) -> Option<SnapshotVersion> {
        self.of.values().filter_map(|hold| hold.as_ref().err()?.oldest).max()
    }
}

impl RemoteRowSource for RemotePins {
    fn rows(
        &self,
        shard: ShardId,
        scan: &Scan,
        most: usize,
    ) -> Result<(Vec<Row>, bool), Unavailable> {
        let hold = self.of.get(&shard).ok_or_else(|| unavailable("no such shard"))?;
        let hold = hold.as_ref().map_err(|refusal| unavailable(&refusal.reason))?;
        let (client, at, scan) = (hold.client.clone(), Some(self.at), scan.clone());
        let room = hold.room.clone();
        let (sender, receiver) = sync_channel(1);
        self.runtime.spawn(async move {
            // The semaphore is never closed.
            let _permit = room.acquire().await;
            let Scan { table, range, direction } = scan;
            let rows_max = u32::try_from(most).unwrap_or(u32::MAX);
            // The requester may have timed out.
            let _ = sender.send(client.table(table, at, range, direction, rows_max).await);
        });
        let answer = waiting(|| receiver.recv_timeout(ROWS_DEADLINE));
        let answer = answer.map_err(|_| unavailable("the node does not answer"))?;
        let (rows, is_end) = answer.map_err(unavailable)?;
        let row = |row: crate::client::Row| Row {
            key: Key::from(&row.key[..]),
            version: row.version,
            value: Value::from(row.value),
        };
        Ok((rows.into_iter().map(row).collect(), is_end))
    }
}

impl Drop for RemotePins {
    fn drop(&mut self) {
        let holds = std::mem::take(&mut self.of).into_values();
        for RemotePin { client, number, .. } in holds.flatten() {
            self.runtime.spawn(async move {
                // Losing the connection releases the pin as well.
                let _ = client.unpin(number).await;
            });
        }
    }
}

impl fmt::Debug for RemotePins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemotePins({})", self.at)
    }
}

/// Blocks this thread. On a multi-threaded runtime, another thread runs its tasks in the meantime.
fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}
