//! The state of a replica, grouped by phase.

use std::collections::VecDeque;
use std::sync::Arc;

use pangea_core::ids::{Ticket, TxnId};
use pangea_core::protocol::{ListedEpoch, Setup, Status};
use pangea_core::txn::{Program, Registry};

use super::Calvin;
use super::batch::{Request, UnsequencedRequest};
use super::cuts::Extension;
use super::forwarding::Forwarding;
use super::frozen::Outcomes;
use super::options::Options;
use super::scheduler::Running;
use super::shards::Shards;
use super::warming::Warming;
use crate::agreement::Term;
use crate::inputs::Inputs;

/// The maximum size of a message to another shard, in full batches: less than fits in a frame.
const MESSAGE_BATCHES: usize = 2;

/// A replica.
pub(super) struct State {
    pub registry: Arc<Registry>,
    pub options: Options,
    /// The shared part of the protocol: the batches, replicated and agreed on.
    pub inputs: Inputs<Calvin>,
    pub sequencer: Sequencer,
    /// Requests in flight to the master, if replication is asynchronous.
    pub forwarding: Forwarding,
    /// §5: outcomes of epochs that other replicas have run while a replica is frozen.
    pub outcomes: Outcomes,
    /// The approximate maximum size of a message to another node, in bytes.
    pub message_bytes: usize,
    /// The epoch that is running: the first of the waiting ones.
    pub running: Option<Running>,
    /// The additional state of a node if tables are partitioned.
    pub shards: Option<Shards>,
    /// Delayed requests, and the rows that are not in memory.
    pub warming: Warming,
    /// The epochs that the operator lists to be skipped, as far as they were met.
    pub listed: Vec<ListedEpoch>,
    pub counters: Counters,
}

/// The maximum size of the requests that wait for a master, or for a master to create batches, in
/// full batches.
pub(super) const WAITING_BATCHES_MAX: usize = 16;

/// §3.1: requests that are being sequenced.
#[derive(Default)]
pub(super) struct Sequencer {
    /// The batch that is being collected.
    pub current: Vec<Request>,
    /// Its approximate size in bytes.
    pub current_bytes: usize,
    /// Requests of this replica that have not run, oldest first.
    pub in_flight: VecDeque<InFlight>,
}

impl Sequencer {
    /// Whether no more requests are accepted: a batch is long overdue but could not be created.
    pub(super) fn is_full(&self, batch_bytes: usize) -> bool {
        self.current_bytes > WAITING_BATCHES_MAX * batch_bytes
    }
}

/// A request that was accepted on this replica and has not run.
pub(super) struct InFlight {
    /// Its name within the group.
    pub txn: TxnId,
    /// The waiting client; `None` if the request is from before a restart.
    pub ticket: Option<Ticket>,
    /// The master's term in which it was accepted, if replication is asynchronous.
    pub term: Term,
    /// If tables are partitioned, the request to repeat if it leaves its footprint.
    pub retryable: Option<RetryableRequest>,
    /// If tables are partitioned, whether it has run: earlier requests may not have.
    pub is_over: bool,
    /// Whether its client was answered before it ran on this replica.
    pub is_answered: bool,
}

/// A program that may have to be sequenced again.
pub(super) struct RetryableRequest {
    pub program: Program,
    /// How often it has left its footprint.
    pub tries: u32,
}

impl RetryableRequest {
    /// Returns `None` if tables are not partitioned, or if the program is certified.
    pub(super) fn of(request: &UnsequencedRequest) -> Option<Self> {
        let UnsequencedRequest { program, shards, tries, .. } = request;
        let may_leave = matches!(program, Program::Call { .. }) && !shards.is_empty();
        may_leave.then(|| Self { program: program.clone(), tries: *tries })
    }
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub txns_committed: u64,
    pub txns_aborted: u64,
    pub txns_local: u64,
    pub txns_reconnoitred: u64,
    pub txns_restarted: u64,
    pub txns_answered_for: u64,
    pub txns_refused: u64,
}

impl State {
    pub(super) fn new(setup: Setup<Calvin>) -> Self {
        let place = setup.topology.nodes[setup.me.index()];
        let group = setup.topology.group(place.shard);
        let region = setup.options.master(&setup.topology);
        let master = region.and_then(|region| setup.topology.node_at(region, place.shard));
        let master = master.and_then(|node| group.member(node));
        let settings = setup.options.of_inputs(setup.registry.code());
        let schedule = setup.options.checkpoint_schedule();
        let is_divided = setup.topology.partitions.shards() > 1;
        let extension = Extension::new(group.nodes().len(), master, schedule, is_divided);
        let message_bytes = MESSAGE_BATCHES * setup.options.batch_bytes;
        Self {
            shards: Shards::of(&setup.topology, setup.me, group.nodes().len(), message_bytes),
            outcomes: Outcomes::default(),
            message_bytes,
            inputs: Inputs::new(setup.me, group, settings, extension),
            sequencer: Sequencer::default(),
            forwarding: Forwarding::default(),
            running: None,
            warming: Warming::default(),
            listed: Vec::new(),
            counters: Counters::default(),
            registry: setup.registry,
            options: setup.options,
        }
    }

    pub(super) fn status(&self) -> Status {
        let c = &self.counters;
        let lookups = self.shards.as_ref().map_or(0, |shards| shards.lookups.len());
        let [delayed, held, delay] = self.warming.status();
        let mut status = self.inputs.status(&[
            delayed,
            held,
            delay,
            ("txns_looked_up", lookups as u64),
            ("txns_committed", c.txns_committed),
            ("txns_aborted", c.txns_aborted),
            // All of them run at their place in the order, and only there.
            ("txns_ordered", c.txns_committed),
            ("txns_local", c.txns_local),
            ("txns_in_flight", self.sequencer.in_flight.len() as u64),
            ("txns_reconnoitred", c.txns_reconnoitred),
            ("txns_restarted", c.txns_restarted),
            ("txns_answered_for", c.txns_answered_for),
            ("txns_refused", c.txns_refused),
            ("is_frozen", u64::from(self.inputs.extension.turns.frozen().is_some())),
        ]);
        let streams = self.shards.iter().flat_map(|shards| shards.streams.values());
        for (node, epoch) in streams.flat_map(|stream| &stream.reports.applied) {
            status.counters.insert(format!("peer_applied_{}", node.0), epoch.0);
        }
        // The group has its own numbering.
        status.renumber(|replica| self.inputs.node(replica));
        status
    }

    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self) {
        self.inputs.invariants();
        self.warming.invariants();
        self.shards.iter().for_each(|shards| shards.invariants(self.inputs.cut.applied));
        let numbers = self.sequencer.in_flight.iter().map(|waiting| waiting.txn.sequence());
        assert!(numbers.is_sorted_by(|a, b| a < b), "requests are in order");
        let answered = self.sequencer.in_flight.iter().filter(|it| it.is_answered).count();
        assert_eq!(answered, self.outcomes.answered, "the count of answered requests is right");
        let last = self.sequencer.in_flight.back();
        assert!(last.is_none_or(|last| last.txn.sequence() < self.inputs.streams.next_sequence));
        assert!(
            self.sequencer.current.len() <= self.sequencer.in_flight.len(),
            "collected requests are in flight"
        );
    }
}
