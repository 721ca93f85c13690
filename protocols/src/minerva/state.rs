//! The state of a replica, grouped by phase.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pangea_core::exec::Overlay;
use pangea_core::ids::{ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::protocol::{ListedEpoch, Setup, Status};
use pangea_core::txn::{Abort, Registry};

use super::Minerva;
use super::batch::TxnRecord;
use super::commit::Commit;
use super::contention::Contention;
use super::epoch_record::EpochRecord;
use super::options::Options;
use crate::inputs::Inputs;

/// A replica.
pub(super) struct State {
    pub registry: Arc<Registry>,
    pub options: Options,
    /// The shared part of the protocol: §3.3, §3.4 and most of §4.
    pub inputs: Inputs<Minerva>,
    pub execution: Execution,
    pub contention: Contention,
    /// The epoch that is being applied: the first of the waiting ones.
    pub commit: Option<Commit>,
    /// The decisions that the log already contained when the node started, by epoch. Empty soon
    /// after.
    pub logged: BTreeMap<SnapshotVersion, EpochRecord<'static>>,
    /// The epochs that the operator lists to be skipped, as far as they were met.
    pub listed: Vec<ListedEpoch>,
    pub counters: Counters,
}

/// §3.2: local execution, before transactions are ordered.
#[derive(Default)]
pub(super) struct Execution {
    /// The paper's `temp_state`.
    pub overlay: Overlay,
    /// Local transactions that are not committed, oldest first, without a gap in their numbers.
    pub in_flight: VecDeque<InFlight>,
    /// The paper's `current_batch`.
    pub current: Vec<TxnRecord>,
    /// The approximate size of the current batch, in bytes.
    pub current_bytes: usize,
    /// The epoch on which the current batch's transactions ran.
    pub current_base: SnapshotVersion,
    /// The last epoch on which transactions from before a restart ran. This replica may not have
    /// applied it again.
    pub former_base: SnapshotVersion,
}

/// A local transaction that is not committed.
pub(super) struct InFlight {
    pub txn: TxnId,
    /// The waiting client; `None` if the transaction is from before a restart.
    pub ticket: Option<Ticket>,
    /// The result of its run.
    pub result: Result<Vec<u8>, Abort>,
    /// The uncommitted local transactions whose values it read.
    pub dependencies: Vec<TxnId>,
    /// Whether it can't become valid any more and its writes are removed from the overlay.
    pub is_doomed: bool,
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub txns_committed: u64,
    pub txns_valid: u64,
    pub txns_stale: u64,
    pub txns_conflicting: u64,
    pub txns_ordered: u64,
    pub txns_aborted: u64,
    pub txns_local: u64,
    pub high_contention_entered: u64,
    pub graph_edges: u64,
    pub solver_unproven: u64,
    pub reexecution_restarts: u64,
}

impl State {
    pub(super) fn new(setup: Setup<Minerva>) -> Self {
        Self {
            inputs: Inputs::new(
                setup.me,
                setup.topology.group(ShardId(0)),
                setup.options.of_inputs(setup.registry.code()),
                (),
            ),
            execution: Execution::default(),
            contention: Contention::default(),
            commit: None,
            logged: BTreeMap::new(),
            listed: Vec::new(),
            counters: Counters::default(),
            registry: setup.registry,
            options: setup.options,
        }
    }

    pub(super) fn status(&self) -> Status {
        let c = &self.counters;
        self.inputs.status(&[
            ("txns_committed", c.txns_committed),
            ("txns_valid", c.txns_valid),
            ("txns_stale", c.txns_stale),
            ("txns_conflicting", c.txns_conflicting),
            ("txns_ordered", c.txns_ordered),
            ("txns_aborted", c.txns_aborted),
            ("txns_local", c.txns_local),
            ("txns_in_flight", self.execution.in_flight.len() as u64),
            ("high_contention_entered", c.high_contention_entered),
            ("high_contention", u64::from(self.contention.is_high())),
            ("graph_edges", c.graph_edges),
            ("solver_unproven", c.solver_unproven),
            ("reexecution_restarts", c.reexecution_restarts),
        ])
    }

    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self) {
        self.inputs.invariants();
        let numbers: Vec<u64> =
            self.execution.in_flight.iter().map(|in_flight| in_flight.txn.sequence()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "local transactions in order");
        assert!(numbers.last().is_none_or(|last| *last < self.inputs.streams.next_sequence));
    }
}
