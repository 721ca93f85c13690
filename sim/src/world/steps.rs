//! The longest step of a run. What is urgent on a node waits for the step in progress: votes,
//! heartbeats, acknowledgements. A protocol must therefore divide long work into steps.
//!
//! The measure does not depend on the machine: the number of transactions that a step runs,
//! validates, cuts into slices, or finds footprints and locks for.

use std::cell::Cell;

use pangea_core::cpu_stage::{CpuStage, Meter};
use pangea_core::ids::NodeId;
use pangea_core::protocol::Protocol;

use super::World;
use crate::settings::Settings;

/// The maximum number of transactions of a step, in addition to those of an epoch: several times
/// the limits at which protocols end a step.
const TXNS_MAX: u64 = 256;

/// An epoch has at most this number of transactions for each client: one that the client waits for,
/// and some that it no longer waits for.
const TXNS_OF_CLIENT: u64 = 8;

/// Counts the transactions of a step.
#[derive(Debug, Default)]
pub(super) struct StepTxns(Cell<u64>);

impl StepTxns {
    pub(super) fn count(self) -> u64 {
        self.0.get()
    }
}

impl Meter for StepTxns {
    fn begin(&self) {}

    fn end(&self, work: CpuStage, size: usize) {
        let counts = match work {
            CpuStage::Execute
            | CpuStage::Probe
            | CpuStage::Validate
            | CpuStage::Slice
            | CpuStage::Lock
            | CpuStage::Order => true,
            // Parts of the above, or the same transactions once more.
            CpuStage::Stale
            | CpuStage::Graph
            | CpuStage::Solve
            | CpuStage::Apply
            | CpuStage::Serve
            | CpuStage::Settle => false,
            // Bytes of one message or record.
            CpuStage::Encode | CpuStage::Decode => false,
        };
        if counts {
            self.0.set(self.0.get() + size as u64);
        }
    }
}

/// The maximum number of transactions of a step in a run with these settings.
fn txns_max(settings: &Settings) -> u64 {
    TXNS_MAX + TXNS_OF_CLIENT * (settings.clients_per_node * settings.node_count()) as u64
}

impl<P: Protocol> World<P> {
    /// Records the length of a step. A step that is too long is a violation.
    pub(super) fn note_step(&mut self, id: NodeId, txns: u64) {
        self.counts.step_txns_max = self.counts.step_txns_max.max(txns);
        let most = txns_max(&self.settings);
        if txns > most {
            let story = format!("one step of {id} handled {txns} transactions, more than {most}");
            self.violate("long step", story);
        }
    }
}
