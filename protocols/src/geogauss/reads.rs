//! Strict reads: a snapshot with everything that was acknowledged anywhere before.
//!
//! An epoch is merged when all members have ended it, so also this replica. A transaction that was
//! acknowledged before a moment is therefore in an epoch that this replica had ended then, if it
//! was a member. A replica that was removed may not know that yet, so it asks the others:
//!
//! ```text
//!   replica                            peers
//!     | MembershipRequest ------------> |
//!     | <--- Membership(known: 7)       |   from a majority, with itself
//!     waits until epoch 7 is merged here
//! ```
//!
//! It may have ended epochs that nobody has reached, because it is idle. So it waits only for those
//! of which a replica of that majority has a batch: an acknowledged transaction is on f + 1
//! replicas, of which the majority contains one. With a weak acknowledgement (`early.rs`) it may be
//! on one alone, so all members are asked.
//!
//! Each member of a view reports before the view exists, and they are a majority. So if a majority
//! knows of no decision that has removed this replica since it joined, it was a member when it
//! asked.

use pangea_core::ids::{NodeId, SnapshotVersion, Ticket};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;

use super::GeoGauss;
use super::messages::Message;
use super::views::ViewNumber;

/// A request is repeated after this number of round trips.
const PATIENCE_ROUND_TRIPS: u64 = 4;

/// Strict reads that wait.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    waiting: Vec<FreshRead>,
    /// The last request, until it is confirmed: reads that arrive meanwhile need another one.
    asked: Option<Request>,
}

impl Fresh {
    /// The state, for the exhaustive search.
    #[cfg(test)]
    pub(super) fn described(&self) -> String {
        format!("{self:?}")
    }

    /// Whether no strict read waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A request to all peers.
#[derive(Debug)]
struct Request {
    token: u64,
    at: Timestamp,
    /// The epochs that this replica had ended when it sent the request.
    ended: SnapshotVersion,
    /// The last epoch of which one that has confirmed, or this replica, has a batch.
    known: SnapshotVersion,
    confirmed: Vec<NodeId>,
}

/// A strict read.
#[derive(Debug)]
struct FreshRead {
    ticket: Ticket,
    /// Whether the last request was sent after the read arrived.
    is_asked: bool,
    /// The epochs that the read waits for, once a majority has confirmed a request after it.
    epoch: Option<SnapshotVersion>,
}

impl GeoGauss {
    /// A strict read arrives.
    pub(super) fn await_fresh(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket) {
        cx.mark("geogauss.strict_read");
        let read = FreshRead { ticket, is_asked: false, epoch: None };
        self.state.fresh.waiting.push(read);
    }

    /// Asks the peers for the strict reads that have arrived, unless a request is under way.
    pub(super) fn ask_for_new_reads(&mut self, cx: &mut Cx<'_, Self>) {
        let is_new = self.state.fresh.waiting.iter().any(|read| !read.is_asked);
        if is_new && self.state.fresh.asked.is_none() {
            self.ask_for_membership(cx);
        }
    }

    /// Asks again if a reply may have been lost.
    pub(super) fn ask_again(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = PATIENCE_ROUND_TRIPS * self.state.replica.topology.round_trip_max().us;
        let is_late = |it: &Request| cx.now.at.since(it.at).us > patience;
        if self.state.fresh.asked.as_ref().is_some_and(is_late) {
            cx.mark("geogauss.strict_read_asks_again");
            self.ask_for_membership(cx);
        }
    }

    /// Asks the peers whether this replica may have been removed.
    fn ask_for_membership(&mut self, cx: &mut Cx<'_, Self>) {
        let token = self.state.replica.next_token();
        let ended = SnapshotVersion(self.state.epochs.open.0 - 1);
        let known = self.state.last_known();
        let me = self.state.me();
        let joined = self.state.membership.view.lives[me.index()].joined;
        let fresh = &mut self.state.fresh;
        fresh.asked = Some(Request { token, at: cx.now.at, ended, known, confirmed: Vec::new() });
        fresh.waiting.iter_mut().for_each(|read| read.is_asked = true);
        for peer in self.state.replica.peers() {
            let message = Message::MembershipRequest { token, joined: joined.0 };
            self.state.replica.send(cx, peer, message);
        }
        self.confirm_reads(cx);
    }

    pub(super) fn on_membership_request(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (token, joined): (u64, ViewNumber),
    ) {
        let membership = &self.state.membership;
        // It may have been removed and have joined again without knowing either.
        let is_same = membership.view.lives[from.index()].joined == joined;
        let is_member = is_same && !membership.removes(from) && self.state.presence.is_ready;
        let known = self.state.last_known();
        self.state.replica.send(cx, from, Message::Membership { token, is_member, known });
    }

    pub(super) fn on_membership(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (token, is_member, known): (u64, bool, SnapshotVersion),
    ) {
        let asked = self.state.fresh.asked.as_mut().filter(|it| it.token == token && is_member);
        let Some(request) = asked else { return };
        if !request.confirmed.contains(&from) {
            request.confirmed.push(from);
            request.known = request.known.max(known);
            self.confirm_reads(cx);
        }
    }

    /// Lets the reads wait only for epochs, if a majority has confirmed the request.
    fn confirm_reads(&mut self, cx: &mut Cx<'_, Self>) {
        let majority = self.state.replica.topology.majority();
        let is_member = self.state.is_member();
        let majority = mutate!(FreshWithoutAsking: majority => 0);
        // An acknowledged transaction may be on its own replica alone.
        let is_early = self.state.early.is_some();
        let me = self.state.me();
        let (fresh, view) = (&mut self.state.fresh, &self.state.membership.view);
        let is_enough = |it: &mut Request| {
            let has_all = || view.members().all(|node| node == me || it.confirmed.contains(&node));
            is_member && it.confirmed.len() + 1 >= majority && (!is_early || has_all())
        };
        let Some(request) = fresh.asked.take_if(is_enough) else { return };
        let asked = fresh.waiting.iter_mut().filter(|read| read.is_asked);
        let last = request.ended.min(request.known);
        asked.for_each(|read| read.epoch = read.epoch.or(Some(last)));
        self.ask_for_new_reads(cx);
    }

    /// Answers the strict reads whose epochs are merged.
    pub(super) fn answer_fresh(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.fresh.waiting.is_empty() {
            return;
        }
        let merged = self.state.merged_through();
        let version = self.state.applied.epoch;
        self.state.fresh.waiting.retain(|read| {
            let is_merged = |epoch| mutate!(FreshUnmerged: epoch <= merged => true);
            let is_merged = read.epoch.is_some_and(is_merged);
            if is_merged {
                cx.fresh(read.ticket, version);
            }
            !is_merged
        });
    }
}
