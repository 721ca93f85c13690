//! Moves of slots between shards, and snapshots over all shards while they move.
//!
//! Clients ask as the settings say. Meanwhile the world reads snapshots as a client over all shards
//! would: the rows of a slot on the shard that had it at the snapshot's version.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, Ticket};
use pangea_core::key::KeyRange;
use pangea_core::partition::{Partitions, Slot};
use pangea_core::protocol::{Input, Protocol, Request, Submission};
use pangea_core::store::{Pin, Store};
use pangea_core::time::Span;
use pangea_core::txn::Outcome;
use pangea_core::workload::{Divided, Rows, Snapshot};

use super::{Event, Phase, World};
use crate::check::Violation;
use crate::settings::SlotMove;

/// The number of looks of the watch between two snapshots.
const SNAPSHOT_EVERY: u64 = 3;
/// The number of pins that are held of each shard.
const PINS_MAX: usize = 25;
/// The time after which a request is made again that found no node.
const REST: Span = Span::from_ms(50);

/// Pins of a store, oldest first, each with the node and its life.
type Pins = VecDeque<((NodeId, u64), Pin)>;

/// The moves of a run.
#[derive(Debug, Default)]
pub(super) struct Moves {
    looks: u64,
    /// The requests that are not answered.
    waiting: BTreeMap<(NodeId, Ticket), usize>,
    /// Pins of a store of each shard.
    pins: BTreeMap<ShardId, Pins>,
}

/// The store of pins that can be read at a version.
fn store_at(pins: &Pins, at: SnapshotVersion) -> Option<&Store> {
    let (_, first) = pins.front()?;
    (!first.is_lost() && first.version() <= at).then(|| first.store())
}

impl<P: Protocol> World<P> {
    /// Schedules the requests.
    pub(super) fn plan_moves(&mut self) {
        for (index, it) in self.settings.moves.iter().enumerate() {
            self.queue.push(self.now + Span::from_ms(it.at_ms), Event::Move(index));
        }
    }

    pub(super) fn on_move(&mut self, index: usize) {
        let SlotMove { node, slots, to, .. } = self.settings.moves[index].clone();
        let count = self.topology.node_count() as u16;
        let nodes = (0..count).map(|more| NodeId((node + more) % count));
        let runs = |id: &NodeId| self.nodes[id.index()].running.is_some();
        let Some(id) = nodes.into_iter().find(runs) else {
            return self.queue.push(self.now + REST, Event::Move(index));
        };
        let newest = SnapshotVersion(u64::MAX);
        let Ok(partitions) = self.partitions_at(newest) else { return };
        let slots = slots.into_iter().map(Slot);
        let moves = slots.filter(|slot| partitions.placement().owner(*slot) != ShardId(to));
        let moves: Vec<_> = moves.map(|slot| (slot, ShardId(to))).collect();
        let ticket = self.next_ticket();
        self.moves.waiting.insert((id, ticket), index);
        self.trace.event(self.now, id, "move", [ticket.0, moves.len() as u64], String::new);
        let request = Request::Move(moves);
        self.input(id, Input::Submit(vec![Submission { ticket, request }]));
    }

    /// Takes a node's answer, if it is one to a request to move slots.
    pub(super) fn answer_move(&mut self, key: (NodeId, Ticket), outcome: &Outcome) -> bool {
        if self.moves.waiting.remove(&key).is_none() {
            return false;
        }
        let end = match outcome {
            Outcome::Committed { .. } => "moves that have ended",
            Outcome::Aborted(_) => "moves that were refused",
        };
        *self.counts.moves.entry(end).or_default() += 1;
        true
    }

    /// A node has stopped: nobody hears what becomes of its requests.
    pub(super) fn lose_moves(&mut self, id: NodeId) {
        self.moves.waiting.retain(|(node, _), _| *node != id);
    }

    /// Whether no slot moves, and all requests are answered.
    pub(super) fn are_slots_at_rest(&self) -> bool {
        let statuses =
            self.nodes.iter().filter_map(|node| Some(node.running.as_ref()?.protocol.status()));
        let moving = |name: &str| name == "slots_moving";
        let mut counters = statuses.flat_map(|status| status.counters);
        self.settings.moves.is_empty()
            || self.moves.waiting.is_empty()
                && counters.all(|(name, count)| !moving(&name) || count == 0)
    }

    /// The partitioning in the snapshot of a version, as the node with the last epoch knows it.
    pub(super) fn partitions_at(
        &self,
        version: SnapshotVersion,
    ) -> Result<Arc<Partitions>, String> {
        let running = self.nodes.iter().filter_map(|node| node.running.as_ref());
        let epoch = |protocol: &P| protocol.status().counters.get("epoch").copied();
        let first = running.max_by_key(|running| epoch(&running.protocol));
        let found = first.map_or(Ok(None), |running| running.protocol.partitions_at(version))?;
        Ok(found.unwrap_or_else(|| Arc::new(self.topology.partitions.clone())))
    }

    /// Checks that each shard has the rows of its own slots alone.
    pub(super) fn check_strays(&self, partitions: &Partitions) -> Option<Violation> {
        if self.settings.moves.is_empty() {
            return None;
        }
        for shard in (0..partitions.shards()).map(ShardId) {
            let store = self.store_of(shard);
            let snapshot = Snapshot::new(store, store.published());
            for table in store.table_ids() {
                let mut stray = None;
                let all = KeyRange { start: Vec::new(), end: None };
                snapshot.scan(table, &all, &mut |key, _| {
                    if !partitions.holds(shard, table, key) {
                        stray = Some(format!("{shard} has row {key:?} of {table}"));
                    }
                    std::ops::ControlFlow::Continue(())
                });
                if let Some(story) = stray {
                    return Some(Violation::new("moves", "rows left behind", story));
                }
            }
        }
        None
    }

    /// Pins a version of each shard, and reads the last one that all shards have.
    pub(super) fn watch_moves(&mut self) {
        if self.settings.moves.is_empty() || self.phase == Phase::Loading {
            return;
        }
        let shards = (0..self.topology.partitions.shards()).map(ShardId);
        for shard in shards.clone() {
            let of_shard = |id: &NodeId| self.topology.nodes[id.index()].shard == shard;
            let life = |id: NodeId| (id, self.nodes[id.index()].life);
            let runs = |id: &NodeId| self.nodes[id.index()].running.is_some();
            let pins = self.moves.pins.entry(shard).or_default();
            let before = pins.back().map(|(of, _)| *of);
            let is_same = |of: &(NodeId, u64)| runs(&of.0) && life(of.0) == *of;
            let of = before.filter(is_same).or_else(|| {
                let mut nodes = self.topology.node_ids().filter(of_shard);
                nodes.find(|id| runs(id)).map(life)
            });
            if of != before {
                pins.clear();
            }
            let Some(of) = of else { continue };
            let store = self.nodes[of.0.index()].store().expect("it runs");
            pins.push_back((of, store.pin()));
            if pins.len() > PINS_MAX {
                pins.pop_front();
            }
        }
        self.moves.looks += 1;
        if self.moves.looks.is_multiple_of(SNAPSHOT_EVERY) {
            self.read_over_shards();
        }
    }

    /// Reads the last version that all shards have, and the first that all can still read.
    fn read_over_shards(&mut self) {
        let pins = &self.moves.pins;
        let end = |pins: &Pins| Some(pins.back()?.1.version());
        let start = |pins: &Pins| Some(pins.front()?.1.version());
        let last: Option<Vec<_>> = pins.values().map(end).collect();
        let first: Option<Vec<_>> = pins.values().map(start).collect();
        let last = last.and_then(|all| all.into_iter().min());
        let first = first.and_then(|all| all.into_iter().max());
        for at in last.into_iter().chain(first) {
            self.read_at(at);
        }
    }

    fn read_at(&mut self, at: SnapshotVersion) {
        let pins = &self.moves.pins;
        let stores = pins.values().map(|pins| store_at(pins, at));
        let Some(stores) = stores.collect::<Option<Vec<_>>>() else { return };
        if at < self.watch.loaded || stores.iter().any(|store| store.published() < at) {
            return;
        }
        let Ok(partitions) = self.partitions_at(at) else { return };
        let snapshots: Vec<_> = stores.iter().map(|store| Snapshot::new(store, at)).collect();
        let each = snapshots.iter().map(|snapshot| snapshot as &dyn Rows).collect();
        let checked = self.workload.check(&Divided::new(&partitions, each));
        *self.counts.moves.entry("snapshots over shards").or_default() += 1;
        if let Err(violation) = checked {
            self.violate("workload", format!("over all shards at {at}: {violation}"));
        }
    }
}
