//! All that a replica remembers, grouped by the phase that it belongs to.

use std::collections::VecDeque;
use std::sync::Arc;

use pangea_core::ids::{Ticket, TxnId};
use pangea_core::protocol::{Setup, Status};
use pangea_core::txn::Registry;

use super::Calvin;
use super::batch::Request;
use super::options::Options;
use super::scheduler::Running;
use crate::inputs::Inputs;

/// One replica.
pub(super) struct State {
    pub registry: Arc<Registry>,
    pub options: Options,
    /// What the replicas have in common: the batches, replicated and agreed on.
    pub inputs: Inputs<Calvin>,
    pub sequencer: Sequencer,
    /// The epoch that is being run: the first of those that wait.
    pub running: Option<Running>,
    pub counters: Counters,
}

/// §3.1: requests on their way into the order.
#[derive(Default)]
pub(super) struct Sequencer {
    /// The batch that is being collected.
    pub current: Vec<Request>,
    /// About how large it is.
    pub current_bytes: usize,
    /// Requests of this replica that have not been run, oldest first.
    pub in_flight: VecDeque<InFlight>,
}

/// A request that was taken here and has not been run.
pub(super) struct InFlight {
    pub txn: TxnId,
    /// Who waits for it, unless it came from before a restart.
    pub ticket: Option<Ticket>,
}

/// What is counted for operators and reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub txns_committed: u64,
    pub txns_aborted: u64,
    pub txns_local: u64,
    pub txns_reconnoitred: u64,
    pub txns_restarted: u64,
}

impl State {
    pub(super) fn new(setup: Setup<Calvin>) -> Self {
        let settings = setup.options.of_inputs(setup.registry.code());
        Self {
            inputs: Inputs::new(setup.me, setup.topology, settings),
            sequencer: Sequencer::default(),
            running: None,
            counters: Counters::default(),
            registry: setup.registry,
            options: setup.options,
        }
    }

    pub(super) fn status(&self) -> Status {
        let c = &self.counters;
        self.inputs.status(&[
            ("txns_committed", c.txns_committed),
            ("txns_aborted", c.txns_aborted),
            // All of them are run at their place in the order, and there alone.
            ("txns_ordered", c.txns_committed),
            ("txns_local", c.txns_local),
            ("txns_in_flight", self.sequencer.in_flight.len() as u64),
            ("txns_reconnoitred", c.txns_reconnoitred),
            ("txns_restarted", c.txns_restarted),
        ])
    }

    /// Asserts what holds between any two steps.
    pub(super) fn invariants(&self) {
        self.inputs.invariants();
        let numbers = self.sequencer.in_flight.iter().map(|waiting| waiting.txn.sequence());
        assert!(numbers.is_sorted_by(|a, b| a < b), "requests in their order");
        let last = self.sequencer.in_flight.back();
        assert!(last.is_none_or(|last| last.txn.sequence() < self.inputs.next_sequence));
        assert!(
            self.sequencer.current.len() <= self.sequencer.in_flight.len(),
            "what is collected is in flight"
        );
    }
}
