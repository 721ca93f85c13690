//! Real-time order: a strict read sees everything that was acknowledged before it began.

use std::collections::BTreeMap;

use super::node::Fresh;
use super::{Bounds, NODES};

/// The clients of a world: strict reads, and the acknowledgements before them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    /// The last decision with an acknowledged transaction. Not counted in searches without reads,
    /// so that these merge more states.
    acknowledged: u64,
    /// The strict reads that began, by node.
    begun: [u8; NODES],
    /// Unanswered reads by node and number, each with the last acknowledged decision before it.
    waiting: BTreeMap<(u8, u8), u64>,
}

impl Clients {
    /// Notes that a transaction was acknowledged.
    pub(crate) fn note_acknowledged(&mut self, bounds: &Bounds, decision: u64) {
        if bounds.reads != [0; NODES] {
            self.acknowledged = self.acknowledged.max(decision);
        }
    }

    /// The number of the next strict read at a node, if the bounds allow it.
    pub(crate) fn next_read(&self, bounds: &Bounds, node: u8) -> Option<u8> {
        let begun = self.begun[usize::from(node)];
        (begun < bounds.reads[usize::from(node)]).then_some(begun)
    }

    /// Notes that a strict read begins.
    pub(crate) fn begin_read(&mut self, node: u8, number: u8) {
        self.begun[usize::from(node)] += 1;
        self.waiting.insert((node, number), self.acknowledged);
    }

    /// Checks the answer to a strict read.
    pub(crate) fn end_read(&mut self, node: u8, fresh: &Fresh) -> Result<(), String> {
        let Fresh { read, decision } = *fresh;
        match self.waiting.remove(&(node, read)) {
            None => Err(format!("node {node} answers strict read {read}, which does not wait")),
            Some(before) if before > decision => Err(format!(
                "node {node} answers strict read {read} at {decision}, but {before} was \
                 acknowledged before it began"
            )),
            Some(_) => Ok(()),
        }
    }

    /// Forgets the reads of a node that lost power.
    pub(crate) fn crash(&mut self, node: u8) {
        self.waiting.retain(|(waiting, _), _| *waiting != node);
    }

    /// Whether all strict reads are answered.
    pub(crate) fn are_answered(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds the state to a digest.
    pub(crate) fn digest(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.acknowledged.to_le_bytes());
        bytes.extend(self.begun);
        for ((node, number), before) in &self.waiting {
            bytes.extend([*node, *number]);
            bytes.extend(before.to_le_bytes());
        }
    }
}
