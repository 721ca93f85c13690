//! Advances the phases of a run and checks that replicas are identical.
//!
//! Replicas are compared by the digest of their tables: at sampled versions whenever a replica
//! publishes one, and at the end, when no work is in flight. At each version, they are also
//! compared by what they agree on besides: the configuration and the heads.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Protocol;
use pangea_core::time::{Span, Timestamp};
use pangea_core::workload::{Snapshot, Workload};

use super::node::{Node, Running};
use super::{Event, Phase, World};
use crate::history::End;
use crate::trace::Outside;

/// The interval of the watch.
const WATCH: Span = Span::from_ms(20);
/// The number of watch intervals between samples of the nodes' batch memory.
const HELD_EVERY: u64 = 10;
/// The time at which the workload's tables are loaded; nodes are connected by then.
const LOAD_AT: Timestamp = Timestamp::from_us(1_000_000);
/// The maximum time of loading.
const LOAD_MAX: Span = Span::from_ms(120_000);
/// After the last operation has ended, ambiguous ones may still be in flight for this time.
const SETTLE: Span = Span::from_ms(1_500);
/// The time limit for everything to end after clients have stopped, and after the last act of an
/// operator.
pub(super) const DRAIN_MAX: Span = Span::from_ms(30_000);
/// After the limit, operations may go on ending if no pause is longer than this. Nothing new
/// begins, so all of them end then. Clients that give up leave more behind than a protocol may
/// commit on a hot row in the limit.
const PAUSE_MAX: Span = Span::from_ms(5_000);

/// The progress of the watch.
#[derive(Debug, Default)]
pub(super) struct Watch {
    looks: u64,
    has_started_load: bool,
    /// The version that contains all loads.
    pub(super) loaded: SnapshotVersion,
    stop_at: Timestamp,
    /// The number of open operations after clients have stopped, and since when.
    open: (usize, Timestamp),
    quiet_since: Option<Timestamp>,
    target: SnapshotVersion,
}

impl<P: Protocol> World<P> {
    pub(super) fn on_watch(&mut self) {
        self.watch.looks += 1;
        self.watch_moves();
        if self.watch.looks.is_multiple_of(HELD_EVERY) {
            self.watch_held();
        }
        match self.phase {
            Phase::Loading => self.watch_load(),
            Phase::Working if self.now >= self.watch.stop_at => {
                self.phase = Phase::Draining;
                self.trace.event(self.now, Outside, "drain", [0, 0], String::new);
            }
            Phase::Working | Phase::Done => {}
            Phase::Draining => self.watch_drain(),
        }
        self.queue.push(self.now + WATCH, Event::Watch);
    }

    /// Records the bytes of batches in each node's memory, as reported by its status.
    fn watch_held(&mut self) {
        for node in &self.nodes {
            let Some(running) = &node.running else { continue };
            let status = running.protocol.status();
            let Some(held) = status.counters.get("batch_bytes_held") else { continue };
            let most = self.counts.batch_bytes_max.entry(node.id.0).or_default();
            *most = (*most).max(*held);
        }
    }

    fn watch_load(&mut self) {
        if self.now < LOAD_AT {
            return;
        }
        if !std::mem::replace(&mut self.watch.has_started_load, true) {
            self.start_load();
        }
        let version = |end: &End| match end {
            End::Committed { version, .. } => *version,
            _ => SnapshotVersion::ZERO,
        };
        let loads = self.history.operations.iter().map(|operation| version(&operation.end));
        let loaded = loads.max().unwrap_or_default();
        if self.clients.open == 0 && self.published().iter().all(|&published| published >= loaded) {
            self.phase = Phase::Working;
            self.watch.loaded = loaded;
            let heal_at = self.now + self.settings.duration;
            self.watch.stop_at = heal_at + Span::from_us(self.settings.duration.us / 4);
            self.trace.event(self.now, Outside, "loaded", [loaded.0, 0], String::new);
            self.plan_faults(heal_at);
            self.plan_moves();
            self.start_clients();
        } else if self.now >= LOAD_AT + LOAD_MAX {
            self.violate("liveness", format!("not loaded within {LOAD_MAX}"));
        }
    }

    fn watch_drain(&mut self) {
        if self.clients.open > 0 {
            if self.clients.open != self.watch.open.0 {
                self.watch.open = (self.clients.open, self.now);
            }
            if self.now >= self.watch.open.1 + PAUSE_MAX {
                self.give_up_late("operations did not end");
            }
            return;
        }
        if self.replicas().iter().any(Self::is_starting) {
            // They do not show yet what they had published before they stopped.
            self.watch.quiet_since = None;
            return self.give_up_late("nodes did not start");
        }
        let since = *self.watch.quiet_since.get_or_insert(self.now);
        if self.now < since + SETTLE {
            let newest = self.published().into_iter().max();
            self.watch.target = newest.unwrap_or_default();
            return;
        }
        let has_caught_up = self.published().iter().all(|&at| at >= self.watch.target)
            && !self.nodes.iter().any(|node| node.is_replaced)
            && !self.is_upgrading();
        if has_caught_up && self.are_replicas_equal() && self.are_slots_at_rest() {
            let nodes = self.topology.clone();
            nodes.node_ids().for_each(|id| self.compare_agreed(id));
            self.phase = Phase::Done;
            self.trace.event(self.now, Outside, "done", [self.watch.target.0, 0], String::new);
            return;
        }
        self.give_up_late("replicas did not converge");
    }

    /// Whether a node is down, or has not run its log again: an operator has restarted it.
    fn is_starting(node: &Node<P>) -> bool {
        let is_whole = |running: &Running<P>| !running.protocol.status().is_restarting;
        !node.is_destroyed && !node.running.as_ref().is_some_and(is_whole)
    }

    /// After the time limit, reports the open operations and the versions of the nodes.
    fn give_up_late(&mut self, what: &str) {
        if self.now < self.watch.stop_at.max(self.operator_acted()) + DRAIN_MAX {
            return;
        }
        let open: Vec<String> = (self.history.operations.iter().enumerate())
            .filter(|(_, operation)| operation.end == End::Open)
            .take(5)
            .map(|(id, op)| format!("{:?} {} T{id} at {}", op.how, op.call.label, op.node))
            .collect();
        let statuses: Vec<String> = (self.replicas().iter())
            .filter_map(|node| node.running.as_ref().map(|running| (node.id, running)))
            .map(|(id, running)| {
                let version = running.store.published();
                format!("{id} at {version} ({:x})", running.store.digest(version))
            })
            .collect();
        let (count, statuses) = (self.clients.open, statuses.join(", "));
        let story = format!(
            "{DRAIN_MAX} after the clients stopped, {what}: {count} operations open ({}); nodes \
             are {statuses}",
            open.join(", ")
        );
        self.violate("liveness", story);
    }

    fn published(&self) -> Vec<SnapshotVersion> {
        let of =
            |node: &super::Node<P>| node.store().map_or(SnapshotVersion::ZERO, |s| s.published());
        self.replicas().iter().filter(|node| !node.is_destroyed).map(of).collect()
    }

    fn are_replicas_equal(&self) -> bool {
        let place = |node: NodeId| self.topology.nodes[node.index()].shard;
        let digests = self.replicas().iter().filter(|node| !node.is_destroyed).map(|node| {
            node.store().map(|store| (place(node.id), store.digest(store.published())))
        });
        let Some(mut digests) = digests.collect::<Option<Vec<_>>>() else { return false };
        digests.sort_unstable();
        digests.dedup();
        digests.windows(2).all(|pair| pair[0].0 != pair[1].0)
    }

    /// Compares what a node and the other replicas of its shard agree on besides the rows, such as
    /// the configuration, with the first that was at the same version.
    fn compare_agreed(&mut self, id: NodeId) {
        let Some(running) = &self.nodes[id.index()].running else { return };
        let Some((version, agreed)) = running.protocol.agreed() else { return };
        let place = (self.topology.nodes[id.index()].shard, version);
        let (first, other) = *self.agreed.entry(place).or_insert((id, agreed));
        if other != agreed && version > SnapshotVersion::ZERO {
            let members = running.protocol.status().members;
            let story = format!(
                "at {version} {id} has another configuration or other heads than {first} had; its \
                 members are {members:?}"
            );
            self.violate("replicas", story);
        }
    }

    /// Handles a newly published version: compares the node with other replicas, their rows at
    /// sampled versions only.
    pub(super) fn on_published(&mut self, id: NodeId, version: SnapshotVersion) {
        self.compare_agreed(id);
        let every = match self.workload {
            Workload::Ycsb(_) | Workload::Tpcc(_) => 128,
            _ => 4,
        };
        if !version.0.is_multiple_of(every) {
            return;
        }
        let store = self.nodes[id.index()].store().expect("the node has just published").clone();
        let digest = store.digest(version);
        self.trace.event(self.now, id, "digest", [version.0, digest], String::new);
        let shard = self.topology.nodes[id.index()].shard;
        let (first, other) = *self.digests.entry((shard, version)).or_insert((id, digest));
        self.counts.digests_compared += u64::from(first != id);
        if other != digest {
            let story = format!("at {version} {id} has {digest:x}, {first} has {other:x}");
            self.violate("replicas", story);
        }
        let is_whole = self.settings.shards == 1;
        // A node that has restarted may publish versions from before the end of the load again.
        let is_loaded = self.phase != Phase::Loading && version >= self.watch.loaded;
        if is_whole && is_loaded && version.0.is_multiple_of(every * 8) {
            let check = self.workload.check(&Snapshot::new(&store, version));
            if let Err(violation) = check {
                self.violate("workload", format!("{id} at {version}: {violation}"));
            }
        }
    }
}
