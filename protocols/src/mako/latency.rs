//! The breakdown of the latency: when the transactions of this node have finished a phase.
//!
//! ```text
//!   leader       named | batch closed | on its disk   | committed | published
//!   other node   named | forwarded    | on its disk   | committed | published
//!                      `-- Batched    `-- Durable     `-- Begun   `-- Validated
//! ```
//!
//! A node forwards its transactions in the order of their numbers, and leaders keep the order. So
//! the last number of an entry stands for all before it. With several shards they do not, so there
//! is no breakdown.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::latency::Milestone;
use pangea_core::protocol::Cx;

use super::Mako;
use super::log::{Entry, Logged};
use super::state::State;

/// The phases that end when a node hears that an entry is committed.
const AT_THE_WATERMARK: [Milestone; 3] =
    [Milestone::Replicated, Milestone::Ordered, Milestone::Begun];

/// The number after the last one of a node's transactions in some entries.
fn end_of<'a>(entries: impl Iterator<Item = &'a Entry>, node: NodeId) -> Option<u64> {
    let own = entries.flat_map(|entry| &entry.txns).filter(|executed| executed.txn.node() == node);
    own.map(|executed| executed.txn.sequence() + 1).max()
}

impl State {
    /// A batch with these entries is closed.
    pub(super) fn note_batched(&self, cx: &Cx<'_, Mako>, entries: &[Logged]) {
        self.note_phases(cx, &[Milestone::Batched], entries.iter().map(|logged| &*logged.entry));
    }

    /// The log after one version up to another one is on this node's disk.
    pub(super) fn note_durable(
        &self,
        cx: &Cx<'_, Mako>,
        (after, upto): (SnapshotVersion, SnapshotVersion),
    ) {
        let entries = self.log.after(after).into_iter().flatten();
        let entries = entries.take_while(|logged| logged.version() <= upto);
        self.note_phases(cx, &[Milestone::Durable], entries.map(|logged| &*logged.entry));
    }

    /// An entry is known to be committed.
    pub(super) fn note_committed(&self, cx: &Cx<'_, Mako>, entry: &Entry) {
        self.note_phases(cx, &AT_THE_WATERMARK, std::iter::once(entry));
    }

    /// The rows of an entry are published here.
    pub(super) fn note_published(&self, cx: &Cx<'_, Mako>, entry: &Entry) {
        self.note_phases(cx, &[Milestone::Validated], std::iter::once(entry));
    }

    fn note_phases<'a>(
        &self,
        cx: &Cx<'_, Mako>,
        phases: &[Milestone],
        entries: impl Iterator<Item = &'a Entry>,
    ) {
        if !cx.is_observed() || self.shards.is_some() {
            return;
        }
        let Some(end) = end_of(entries, self.replica.me) else { return };
        phases.iter().for_each(|phase| cx.reached(*phase, end));
    }
}
