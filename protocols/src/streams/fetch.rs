//! Fetch: a replica requests missing batches from any peer that has them (Minerva §3.3).
//!
//! ```text
//!   lacks a batch                 peer
//!     | Fetch ---------------------> |
//!     | <--------------------- Batch |   or
//!     | <---------------------- Gone |   every member has applied it: perhaps no peer has it
//! ```
//!
//! A replica asks one peer that is known to have the batch. If no such peer is connected, it asks
//! all peers, as the paper does. In the paper's variant of acknowledgements only the source knows
//! who has its batches, and the source may be lost.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::log::BatchGap;
use super::{Bid, FetchTimer, Host, Message, Streams};
use crate::replica::Replica;

/// The interval at which a replica looks for batches that it should have by now.
pub(crate) const FETCH: Span = Span::from_ms(30);

/// The maximum bytes of batches that answer one fetch; the rest is requested again.
pub(super) const FETCH_BYTES_MAX: usize = 8 << 20;

/// The maximum number of batches that one fetch requests.
const FETCH_BATCHES_MAX: u64 = 4_096;

/// The interval between two fetches of a batch doubles each time, this often at most: to 16 times.
const FETCH_DOUBLINGS_MAX: u32 = 4;

impl<H: Host> Streams<H> {
    /// Fetches batches that are known to exist and were already missing at the last pass.
    pub(crate) fn on_fetch_timeout(&mut self, cx: &mut Cx<'_, H>, replica: &Replica) {
        cx.set_timer(FetchTimer.into(), FETCH);
        let patience = Span::from_us(FETCH.us + replica.topology.round_trip_max().us);
        for source in replica.topology.node_ids() {
            let log = &mut self.logs[source.index()];
            let first_missing = log.received.next();
            let BatchGap { bid, since, requests } = log.missing;
            if log.known <= log.received || bid != first_missing {
                log.missing = BatchGap { bid: first_missing, since: cx.now.at, requests: 0 };
                continue;
            }
            if replica.is_up[source.index()] && log.is_streaming(cx.now.at, patience) {
                continue;
            }
            // An acknowledgement may take a shorter path than the batch, and a large batch that was
            // requested may be in flight on a slow link.
            let doublings = requests.min(FETCH_DOUBLINGS_MAX);
            if cx.now.at.since(since).us < patience.us << doublings {
                continue;
            }
            log.missing = BatchGap { since: cx.now.at, requests: requests + 1, ..log.missing };
            log.fetched_upto = log.fetched_upto.max(log.known);
            let last = log.slots.keys().next_back().copied().unwrap_or_default();
            let next_received = log.slots.range(first_missing..).next().map(|(bid, _)| bid.0 - 1);
            let upto = next_received.unwrap_or(log.known.0.max(last.0));
            let upto = Bid(upto.min(first_missing.0 + FETCH_BATCHES_MAX));
            if self.who_has(replica, source, first_missing).next().is_none() {
                self.ask_everyone(cx, replica, source, (first_missing, upto));
            } else {
                self.send_fetch(cx, replica, source, (first_missing, upto));
            }
        }
    }

    /// The connected peers that should have a batch and have not reported that it is gone.
    pub(crate) fn who_has(
        &self,
        replica: &Replica,
        source: NodeId,
        bid: Bid,
    ) -> impl Iterator<Item = NodeId> {
        replica.peers().filter(move |peer| {
            // A replica has all batches that it has applied. In the paper's variant it acknowledges
            // only to the source.
            let head = self.durable[peer.index()][source.index()];
            let head = head.max(self.applied[peer.index()][source.index()]);
            let is_gone = self.has_said_gone(*peer, source, bid);
            replica.is_up[peer.index()] && head >= bid && !is_gone
        })
    }

    /// Requests batches from one peer that has them, another one each time.
    fn send_fetch(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        source: NodeId,
        (from, upto): (Bid, Bid),
    ) {
        let candidates: Vec<_> = self.who_has(replica, source, from).collect();
        if candidates.is_empty() {
            return;
        }
        let peer = candidates[self.fetch_turn % candidates.len()];
        self.fetch_turn += 1;
        cx.mark("streams.fetch");
        replica.send(cx, peer, Message::Fetch { source, from, upto });
    }

    /// Minerva §3.3: requests batches from all connected peers, because none is known to have them.
    /// A peer that has none does not reply.
    fn ask_everyone(
        &self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        source: NodeId,
        (from, upto): (Bid, Bid),
    ) {
        let may_have =
            |peer: &NodeId| replica.is_up[peer.index()] && !self.has_said_gone(*peer, source, from);
        for peer in replica.peers().filter(may_have) {
            cx.mark("streams.fetch_from_everyone");
            replica.send(cx, peer, Message::Fetch { source, from, upto });
        }
    }

    /// Handles the request of a peer for batches that it is missing.
    pub(super) fn on_fetch(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        source: NodeId,
        (first, upto): (Bid, Bid),
    ) {
        let log = &self.logs[source.index()];
        if first <= log.collected {
            cx.mark("streams.fetch_of_collected");
            let first = log.collected.next();
            return replica.send(cx, from, Message::Gone { source, first });
        }
        let mut bytes_sent = 0;
        // Only the source may send batches after a gap: they may be from before it lost its disk.
        let upto = upto.min(log.received);
        if first > upto {
            return;
        }
        for slot in log.slots.range(first..=upto).map(|(_, slot)| slot) {
            if bytes_sent > FETCH_BYTES_MAX {
                break;
            }
            bytes_sent += slot.bytes.len();
            self.counters.batches_fetched += 1;
            // A batch of the local log was durable before it was first sent. For batches of other
            // logs, the receiver records no acknowledgement by this replica.
            let after = slot.position.min(cx.log_head());
            replica.send_after(cx, after, from, Message::Batch { bytes: slot.bytes.clone() });
        }
    }

    /// Sends a peer the batches of another source that it may not have.
    pub(crate) fn relay_all(
        &self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        source: NodeId,
        to: NodeId,
    ) {
        let after = self.durable[to.index()][source.index()];
        let mut bytes_sent = 0;
        for (bid, slot) in self.logs[source.index()].slots.range(after.next()..) {
            // It fetches the others.
            if bytes_sent > FETCH_BYTES_MAX {
                break;
            }
            bytes_sent += slot.bytes.len();
            self.relay(cx, replica, (source, *bid), to);
        }
    }

    /// Sends a peer the last batch of another source.
    pub(crate) fn relay_last(
        &self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        source: NodeId,
        to: NodeId,
    ) {
        let last = self.logs[source.index()].received;
        self.relay(cx, replica, (source, last), to);
    }

    fn relay(
        &self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        (source, bid): (NodeId, Bid),
        to: NodeId,
    ) {
        let log = &self.logs[source.index()];
        // Only the source may send batches after a gap: they may be from before it lost its disk.
        let Some(slot) = log.slots.get(&bid).filter(|_| bid <= log.received) else { return };
        let batch = Message::Batch { bytes: slot.bytes.clone() };
        replica.send_after(cx, slot.position, to, batch);
    }

    /// Handles a peer's report that it no longer has missing batches.
    pub(super) fn on_gone(&mut self, from: NodeId, source: NodeId, first: Bid) {
        let gone = self.gone.entry(source).or_default().entry(from).or_default();
        *gone = first.max(*gone);
    }

    /// Fetches the batches before `first`, which a peer no longer has, from another one.
    pub(crate) fn fetch_elsewhere(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        source: NodeId,
        first: Bid,
    ) {
        let lacking = self.logs[source.index()].received.next();
        if lacking < first {
            self.send_fetch(cx, replica, source, (lacking, Bid(first.0 - 1)));
        }
    }

    /// Whether a peer has reported that it no longer has a batch.
    fn has_said_gone(&self, peer: NodeId, source: NodeId, bid: Bid) -> bool {
        let reported = self.gone.get(&source).and_then(|by| by.get(&peer));
        reported.is_some_and(|first| bid < *first)
    }

    /// Whether missing batches can't be fetched, because no peer has them any more: they are part
    /// of every checkpoint.
    pub(crate) fn are_gone(&mut self, replica: &Replica) -> bool {
        let logs = &self.logs;
        self.gone.retain(|source, by| {
            by.retain(|_, first| logs[source.index()].received.next() < *first);
            !by.is_empty()
        });
        let is_nowhere = |source: &NodeId| {
            let lacking = self.logs[source.index()].received.next();
            self.who_has(replica, *source, lacking).next().is_none()
        };
        self.gone.keys().any(is_nowhere)
    }

    /// Forgets which peers no longer have batches: a checkpoint replaces those.
    pub(crate) fn forget_gone(&mut self) {
        self.gone.clear();
    }

    /// Forgets the reports of a peer that has a new log identity.
    pub(super) fn forget_gone_of(&mut self, peer: NodeId) {
        self.gone.values_mut().for_each(|by| by.retain(|other, _| *other != peer));
    }
}
