//! Back-pressure: detects the nodes of other shards that are behind, for which this one has to wait
//! ([`crate::inputs`] detects those of the same shard).
//!
//! ```text
//!   slices of all shards -> rows for the first transaction -> results for clients here
//! ```
//!
//! A node that waits reports the node for which it waits (`ShardProgress`). That node is then named
//! instead of the intermediate one, and it may be this one. If a shard is slow as a whole, the
//! named node is the one that this node is subscribed to, which is that of its region while it can
//! be.

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::topology::Topology;
use pangea_core::txn::Abort;

use super::super::Calvin;
use super::{AHEAD_MAX, ShardStream, Shards};
use crate::inputs::{BEHIND_MAX, MissingInput, too_far_behind, too_many_in_flight};

const _: () = assert!(BEHIND_MAX <= AHEAD_MAX, "a node that is too far ahead refuses requests");

impl Calvin {
    /// The placement of all nodes.
    fn topology(&self) -> &Topology {
        let shards = self.state.shards.as_ref();
        shards.map_or(&self.state.inputs.replica.topology, |shards| &shards.topology)
    }

    /// The error for a request that is rejected because another node is too far behind.
    pub(in super::super) fn refusal(&self) -> Option<Abort> {
        let inputs = &self.state.inputs;
        let late = inputs.waits.refuses(inputs.node(inputs.replica.me))?;
        Some(too_far_behind(late, self.topology()))
    }

    /// The error for a request that is rejected because too many wait.
    pub(in super::super) fn too_many_in_flight(&self) -> Abort {
        too_many_in_flight(self.state.inputs.waits.late.first(), self.topology())
    }

    /// The node for which this one waits most, if it is another.
    pub(super) fn waits_for(&self) -> Option<NodeId> {
        let inputs = &self.state.inputs;
        let late = inputs.waits.late.first().map(|late| late.node);
        late.filter(|node| *node != inputs.node(inputs.replica.me))
    }

    /// The inputs of decided epochs that nodes of other shards have to send.
    pub(in super::super) fn awaited_of_others(&self) -> Vec<MissingInput> {
        let Some(shards) = &self.state.shards else { return Vec::new() };
        let inputs = &self.state.inputs;
        let last = inputs.last_decided();
        let awaited = |what, shard: &ShardId, first: SnapshotVersion| {
            let stream = &shards.streams[shard];
            let reached = stream.reached().max(SnapshotVersion(first.0 - 1));
            MissingInput {
                node: stream.inbound.source,
                waits_for: stream.reports.waits_for.get(&stream.inbound.source).copied(),
                what,
                first: first.0,
                epochs: last.0.saturating_sub(reached.0),
            }
        };
        let lacks_slice = |(_, stream): &(&ShardId, &ShardStream)| {
            let is_next = shards.scheduled_upto < shards.sliced
                && stream.inbound.upto == shards.scheduled_upto;
            is_next || last.0 >= stream.inbound.upto.0 + AHEAD_MAX
        };
        let slices = shards.streams.iter().filter(lacks_slice);
        let slices =
            slices.map(|(shard, stream)| awaited("slices", shard, stream.inbound.upto.next()));
        let lacking = shards.sharded.lacking();
        let rows = lacking.iter().flat_map(|(version, shards)| {
            shards.iter().map(|shard| awaited("rows", &shard, *version))
        });
        let results = shards.awaited_results().into_iter();
        let results = results.map(|(shard, epoch)| awaited("results", &shard, epoch));
        slices.chain(rows).chain(results).collect()
    }
}

impl Shards {
    /// The shards that have not reached the first epoch in which an outcome of a local request is
    /// missing.
    fn awaited_results(&self) -> Vec<(ShardId, SnapshotVersion)> {
        let unresolved = self.local_requests.values().filter(|request| request.confirmed.is_some());
        let Some(epoch) = unresolved.map(|request| request.epoch).min() else { return Vec::new() };
        let is_behind = |(_, stream): &(&ShardId, &ShardStream)| stream.reached() < epoch;
        self.streams.iter().filter(is_behind).map(|(shard, _)| (*shard, epoch)).collect()
    }
}

impl ShardStream {
    /// The last epoch that the source has reported to have run.
    fn reached(&self) -> SnapshotVersion {
        self.reports.applied.get(&self.inbound.source).copied().unwrap_or_default()
    }
}
