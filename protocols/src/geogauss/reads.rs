//! Strict reads: a snapshot with everything that was acknowledged anywhere before.
//!
//! An epoch is merged when all members have ended it, so also this replica. What was acknowledged
//! before a moment is therefore in an epoch that this replica had ended then, if it was a member. A
//! replica that was removed may not know that yet, so it asks the others:
//!
//! ```text
//!   replica                            peers
//!     | MembershipRequest ------------> |
//!     | <--- Membership(is a member)    |   from a majority, with itself
//!     waits until the epochs that it had ended when it asked are merged here
//! ```
//!
//! Each member of a view reports before the view exists, and they are a majority. So if a majority
//! knows of no decision that removes this replica, it was a member when it asked.

use pangea_core::ids::{NodeId, SnapshotVersion, Ticket};
use pangea_core::protocol::Cx;

use super::GeoGauss;

/// Strict reads that wait.
#[derive(Default)]
pub(super) struct Fresh {
    pub waiting: Vec<FreshRead>,
    /// The name of the last request, and the replicas that have confirmed it.
    token: u64,
    confirmed: Vec<NodeId>,
    /// The epochs that this replica had ended when it sent the request.
    ended: SnapshotVersion,
}

/// A strict read.
pub(super) struct FreshRead {
    ticket: Ticket,
    /// Whether the last request was sent after the read arrived.
    is_asked: bool,
    /// The epochs that the read waits for, once a majority has confirmed a request after it.
    epoch: Option<SnapshotVersion>,
}

impl Fresh {
    /// A request was sent.
    pub(super) fn asked(&mut self, token: u64, ended: SnapshotVersion) {
        (self.token, self.ended) = (token, ended);
        self.confirmed.clear();
        self.waiting.iter_mut().for_each(|read| read.is_asked = true);
    }
}

impl GeoGauss {
    /// A strict read arrives.
    pub(super) fn await_fresh(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket) {
        cx.mark("geogauss.strict_read");
        let read = FreshRead { ticket, is_asked: false, epoch: None };
        self.state.fresh.waiting.push(read);
    }

    /// Asks the peers, for the strict reads that have arrived.
    pub(super) fn ask_for_new_reads(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.fresh.waiting.iter().any(|read| !read.is_asked) {
            self.ask_for_membership(cx);
            self.confirm_reads();
        }
    }

    pub(super) fn on_membership(&mut self, from: NodeId, token: u64, is_member: bool) {
        let fresh = &mut self.state.fresh;
        if token == fresh.token && is_member && !fresh.confirmed.contains(&from) {
            fresh.confirmed.push(from);
            self.confirm_reads();
        }
    }

    /// Lets the reads wait only for epochs, if a majority has confirmed the last request.
    fn confirm_reads(&mut self) {
        let majority = self.state.replica.topology.majority();
        let is_member = self.state.is_member();
        let fresh = &mut self.state.fresh;
        if is_member && fresh.confirmed.len() + 1 >= majority {
            let asked = fresh.waiting.iter_mut().filter(|read| read.is_asked);
            asked.for_each(|read| read.epoch = read.epoch.or(Some(fresh.ended)));
        }
    }

    /// Answers the strict reads whose epochs are merged.
    pub(super) fn answer_fresh(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.fresh.waiting.is_empty() {
            return;
        }
        let merged = self.state.merged_through();
        let version = self.state.applied.epoch;
        self.state.fresh.waiting.retain(|read| {
            let is_merged = read.epoch.is_some_and(|epoch| epoch <= merged);
            if is_merged {
                cx.fresh(read.ticket, version);
            }
            !is_merged
        });
    }
}
