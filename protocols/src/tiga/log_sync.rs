//! Log synchronization: followers get the log of their leader, and tell how far it is durable
//! (§3.7).
//!
//! ```text
//!   leader                       follower                     all
//!     | LogSync 5, 6 -----------> | has all of their transactions?
//!     | <------- Fetch, if not -- |
//!     | Found ------------------> | persists the cells
//!     |                           | Synced 6 --------------> | committed on f + 1
//! ```
//!
//! The paper's leader counts itself without a disk. Here each replica, the leader too, counts when
//! its log is durable.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::Writer;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::Tiga;
use super::fast_path::{Arrival, entries_of};
use super::log::{Position, Suffix, ViewNumber};
use super::messages::Message;
use super::rebuild::Entry;
use super::state::State;
use super::transactions::{self, Stamped};
use crate::replica::kind;

/// The maximum number of transactions that are asked for at a time, the first ones first.
const FETCH_MAX: usize = 10_000;

/// The approximate size of the transactions that are sent at a time.
const FOUND_BYTES_MAX: usize = 4 << 20;

/// Why a replica waits for all transactions of a log at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It is the log with which a view begins.
    Enter,
    /// It is the log that this replica proposes as the leader of a new view.
    Propose,
}

/// Cells that wait for their transactions.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// The cells, in one view.
    suffix: Suffix,
    /// The number of the first cells that are needed at once, and why.
    start: Option<(usize, Purpose)>,
    /// Transactions that the leader needs beside those of the cells, before its view begins.
    others: Vec<TxnId>,
    /// When a transaction was missed, or was last asked for.
    since: Option<Timestamp>,
}

impl Incoming {
    /// Whether nothing has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.suffix.cells.is_empty() && self.start.is_none()
    }

    /// The view whose log has arrived, and waits.
    pub(super) fn view(&self) -> Option<ViewNumber> {
        let is_entering = self.start.is_some_and(|(_, purpose)| purpose == Purpose::Enter);
        is_entering.then_some(self.suffix.view)
    }

    /// Begins anew with a log. `others` are transactions that are needed, too.
    pub(super) fn begin(&mut self, suffix: Suffix, others: Vec<TxnId>, purpose: Purpose) {
        *self = Self { start: Some((suffix.cells.len(), purpose)), suffix, others, since: None };
    }

    /// Drops the cells.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The transactions that are needed.
    pub(super) fn txns(&self) -> impl Iterator<Item = TxnId> {
        entries_of(&self.suffix.cells).map(|entry| entry.txn).chain(self.others.iter().copied())
    }

    /// A checkpoint has the cells up to a position.
    pub(super) fn skip_to(&mut self, position: Position) {
        let Suffix { after, cells, .. } = &mut self.suffix;
        if *after >= position {
            return;
        }
        let skipped = (position.0.saturating_sub(after.0) as usize).min(cells.len());
        cells.drain(..skipped);
        *after = position.max(Position(after.0 + skipped as u64));
        self.start = self.start.map(|(count, why)| (count.saturating_sub(skipped), why));
        if self.is_empty() {
            self.clear();
        }
    }

    /// Takes the first cells.
    fn take(&mut self, count: usize) -> Suffix {
        let rest = self.suffix.cells.split_off(count);
        let (view, after) = (self.suffix.view, Position(self.suffix.after.0 + count as u64));
        (self.start, self.since) = (None, None);
        self.others.clear();
        std::mem::replace(&mut self.suffix, Suffix { view, after, cells: rest })
    }
}

impl State {
    /// The transactions that this replica has not got.
    pub(super) fn missing(&self) -> Vec<TxnId> {
        self.incoming.txns().filter(|txn| !self.transactions.contains(*txn)).collect()
    }

    /// The number of cells that have arrived and have all of their transactions here.
    fn arrived(&self) -> usize {
        let has = |txn: &TxnId| self.transactions.contains(*txn);
        let cells = self.incoming.suffix.cells.iter();
        cells.take_while(|cell| cell.txns.iter().all(|(txn, _)| has(txn))).count()
    }
}

impl Tiga {
    /// Appends cells to the log, or replaces its end, and persists that.
    pub(super) fn append(&mut self, cx: &mut Cx<'_, Self>, suffix: Suffix) {
        let settled = self.state.settled();
        let State { replica, log, .. } = &mut self.state;
        let mut header = Vec::new();
        header.put_varint(log.needed_base().0);
        header.put_varint(settled.0);
        let parts = [header.into(), suffix.encode()];
        let (position, after) = (replica.persist_parts(cx, &kind::CELLS, parts), suffix.after);
        self.state.note_reached(cx, Milestone::Ordered, &suffix.cells);
        self.state.log.replace(suffix, position);
        self.state.note_foreign(after);
        self.state.follow_log(cx);
        mutate!(SyncedBeforeFsync: () => self.claim_durable(cx));
    }

    /// [`Bug::SyncedBeforeFsync`]: does not wait for the disk.
    ///
    /// [`Bug::SyncedBeforeFsync`]: pangea_core::planted::Bug::SyncedBeforeFsync
    fn claim_durable(&mut self, cx: &mut Cx<'_, Self>) {
        self.state.log.finish_restore();
        self.tell_synced(cx);
    }

    /// Transactions arrive from their coordinator.
    pub(super) fn on_transactions(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: Bytes) {
        let node_count = self.state.cluster.node_count();
        match transactions::decode(&bytes) {
            Ok(all) if transactions::are_sound(&all, node_count) => {
                // Another replica may have handed them on, because this one leads.
                let is_direct = all.iter().all(|stamped| stamped.request.txn.node() == from);
                self.take_transactions(cx, all.into_iter().map(Arc::new), bytes.clone());
                if is_direct {
                    self.hand_on(cx, from, bytes);
                }
            }
            _ => cx.mark("tiga.malformed_transactions"),
        }
    }

    /// Persists transactions, as the message that contains them. A leader orders them, and a
    /// follower notes those that are in time.
    pub(super) fn take_transactions(
        &mut self,
        cx: &mut Cx<'_, Self>,
        all: impl Iterator<Item = Arc<Stamped>>,
        bytes: Bytes,
    ) {
        let (mut is_new, mut in_time) = (false, Vec::new());
        for (index, stamped) in all.enumerate() {
            let (txn, stamp) = (stamped.request.txn, stamped.stamp);
            let arrival = self.state.follow(cx, &stamped);
            if arrival == Arrival::InTime {
                in_time.push((index, Entry { stamp, txn }));
            }
            self.state.order(cx, &stamped);
            let is_unknown = self.state.transactions.insert(stamped.clone());
            is_new |= is_unknown;
            if is_unknown && arrival == Arrival::Late {
                self.state.reply_late(cx, &stamped);
            }
            self.send_outcome(cx, txn);
        }
        if !is_new && in_time.is_empty() {
            return cx.mark("tiga.transactions_again");
        }
        let indices = in_time.iter().map(|(index, _)| *index);
        let header = transactions::encode_in_time(self.state.log.view, indices);
        let record = self.state.replica.persist_parts(cx, &kind::TRANSACTIONS, [header, bytes]);
        for (_, entry) in in_time {
            self.state.fast.note_in_time(entry, record);
        }
    }

    /// A peer has sent transactions that were asked for. They may have been late.
    pub(super) fn on_found(&mut self, cx: &mut Cx<'_, Self>, bytes: Bytes) {
        let node_count = self.state.cluster.node_count();
        let all = transactions::decode(&bytes).ok();
        let all = all.filter(|all| transactions::are_sound(all, node_count));
        let Some(all) = all else {
            return cx.mark("tiga.malformed_transactions");
        };
        let (mut is_new, mut found) = (false, Vec::new());
        for stamped in all {
            let stamped = Arc::new(stamped);
            is_new |= self.state.transactions.insert(stamped.clone());
            found.push(stamped);
        }
        if is_new {
            let header = transactions::encode_in_time(self.state.log.view, std::iter::empty());
            self.state.replica.persist_parts(cx, &kind::TRANSACTIONS, [header, bytes]);
        }
        // A leader may have heard of them from other leaders.
        for stamped in found {
            self.state.order_if_told(cx, &stamped);
        }
    }

    /// The next cells arrive from the leader, or from a replica that hands them on.
    pub(super) fn on_log_sync(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (bytes, closed): (&[u8], SnapshotVersion),
    ) {
        let Ok(mut suffix) = Suffix::decode(bytes) else {
            return cx.mark("tiga.malformed_log");
        };
        // Each replica of the view has a beginning of its log.
        if self.state.is_leader() || suffix.view != self.state.views.view.number {
            return cx.mark("tiga.log_of_another_view");
        }
        let incoming = &mut self.state.incoming;
        let (view, last) = match incoming.is_empty() {
            true => (self.state.log.view, self.state.log.last()),
            false => (incoming.suffix.view, incoming.suffix.last()),
        };
        if view != suffix.view {
            // The beginning of the view has not arrived.
            return cx.mark("tiga.log_too_early");
        }
        if suffix.after > last {
            return cx.mark("tiga.log_too_early");
        }
        self.state.commit.note_closed(suffix.last(), closed);
        let incoming = &mut self.state.incoming;
        let known = (last.0 - suffix.after.0) as usize;
        if known >= suffix.cells.len() {
            // Without cells it tells only that nothing comes up to a version.
            if !suffix.cells.is_empty() {
                cx.mark("tiga.log_again");
            }
            return;
        }
        suffix.cells.drain(..known);
        if incoming.is_empty() {
            incoming.suffix = Suffix { after: last, ..suffix };
        } else {
            incoming.suffix.cells.extend(suffix.cells);
        }
    }

    /// Appends the cells whose transactions are all here.
    pub(super) fn append_arrived(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.incoming.is_empty() {
            return;
        }
        let arrived = self.state.arrived();
        let State { incoming, transactions, .. } = &mut self.state;
        let are_others_here = incoming.others.iter().all(|txn| transactions.contains(*txn));
        if arrived < incoming.start.map_or(1, |(cells, _)| cells) || !are_others_here {
            incoming.since.get_or_insert(cx.now.at);
            return;
        }
        let purpose = incoming.start.map(|(_, purpose)| purpose);
        let suffix = incoming.take(arrived);
        match purpose {
            Some(Purpose::Enter) => self.enter_view(cx, suffix),
            Some(Purpose::Propose) => self.prepare(cx, suffix),
            None => {
                self.state.follow_cells(&suffix.cells);
                self.append(cx, suffix);
            }
        }
    }

    /// Asks for transactions that have been missing for a while.
    pub(super) fn fetch_missing(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = Span::from_ms(self.state.options.fetch_ms);
        let is_late = |since: Timestamp| cx.now.at.since(since) >= patience;
        if !self.state.incoming.since.is_some_and(is_late) {
            return;
        }
        cx.mark("tiga.fetch");
        self.state.incoming.since = Some(cx.now.at);
        let missing = self.state.missing().into_iter().take(FETCH_MAX);
        let missing: Vec<u64> = missing.map(|txn| txn.to_bits()).collect();
        // A leader of a new view has the log of a follower, so anybody may have them. So may nodes
        // of other shards, if they are in a log because of them.
        for node in self.state.cluster.peers_of(self.state.node) {
            cx.send(node, Message::Fetch { txns: missing.clone() });
        }
    }

    pub(super) fn on_fetch(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, txns: &[u64]) {
        let mut seen = BTreeSet::new();
        let wanted = txns.iter().copied().map(TxnId::from_bits);
        let found = wanted
            .filter(|txn| seen.insert(*txn))
            .filter_map(|txn| self.state.transactions.get(txn));
        let mut bytes = 0;
        let is_room = |stamped: &&Arc<Stamped>| {
            let had_room = bytes < FOUND_BYTES_MAX;
            bytes += stamped.request.weight();
            had_room
        };
        let found: Vec<_> = found.take_while(is_room).cloned().collect();
        if !found.is_empty() {
            let transactions = transactions::encode(found.iter().map(|stamped| &**stamped));
            cx.send(from, Message::Found { transactions });
        }
    }

    /// Sends the cells that followers have not been sent.
    pub(super) fn send_log(&mut self, cx: &mut Cx<'_, Self>) {
        let State { leading, log, replica, commit, .. } = &mut self.state;
        let Some(leading) = leading else { return };
        let (last, closed) = (log.last(), leading.announced);
        if closed > SnapshotVersion::ZERO {
            commit.note_closed(last, closed);
        }
        // Most followers were sent the same.
        let mut encoded: Option<(Position, Bytes)> = None;
        for peer in replica.peers() {
            let Some(sent) = &mut leading.sent[peer.index()] else { continue };
            if *sent == (last, closed) {
                continue;
            }
            let after = sent.0;
            if after < log.base() {
                // It takes a checkpoint, and tells then where it goes on.
                leading.sent[peer.index()] = None;
                continue;
            }
            let suffix = match encoded.take_if(|(same, _)| *same == after) {
                Some((_, suffix)) => suffix,
                None => log.suffix(after).encode(),
            };
            encoded = Some((after, suffix.clone()));
            let message = Message::LogSync { suffix, closed };
            replica.send_after(cx, leading.record, peer, message);
            *sent = (last, closed);
        }
    }

    /// The node's log is durable up to `record`.
    pub(super) fn on_durable(&mut self, cx: &mut Cx<'_, Self>, record: LogPosition) {
        self.state.synced = record;
        self.state.ceiling.on_durable(record);
        if self.state.log.on_durable(record) {
            self.tell_synced(cx);
        }
    }

    /// Tells all replicas how far the log is durable here.
    pub(super) fn tell_synced(&mut self, cx: &mut Cx<'_, Self>) {
        let (view, upto) = (self.state.log.view, self.state.log.durable());
        // A replica that has promised to follow another view takes part in no earlier one.
        if !self.state.is_normal() || upto == Position(0) || !self.state.is_whole() {
            return;
        }
        let me = self.state.replica.me;
        self.state.commit.note_synced(me, view, upto);
        if !mutate!(NonVotingCounts: self.state.replica.votes() => true) {
            return;
        }
        for peer in self.state.replica.peers() {
            let message = Message::Synced { view: view.0, upto: upto.0 };
            self.state.replica.send(cx, peer, message);
        }
    }

    pub(super) fn on_synced(&mut self, from: NodeId, view: ViewNumber, upto: Position) {
        self.state.commit.note_synced(from, view, upto);
    }
}
