//! Notices between the leaders of a view (§3.5), for the order with watermarks: the stamps of
//! transactions of several shards, and promises.
//!
//! ```text
//!   leader a                                leader b, c
//!     | T arrives, a cell will have it
//!     | Notices: Stamped(T@10), asks 10 ----> | b: T arrives or has arrived, moves to 10
//!     |                                       :   the clock passes 10
//!     | <--------- Notices: Watermark(10) --- |
//!     | Watermark(10) ----------------------> |
//!     | releases the cell                     | so do they
//! ```
//!
//! A leader promises only when one of them asks for it. An idle cluster exchanges nothing.
//!
//! Notices can be lost with a connection or with a leader. A leader that lacks the word of another
//! on a transaction for long asks for it. One that has heard of a transaction and has not got it
//! fetches it from the others: the coordinator may have died while it sent it (§4).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::Tiga;
use super::cells::{CELL_US, end_of, last_of};
use super::log::ViewNumber;
use super::messages::Message;
use super::order::{Effects, Notice};
use super::stamp::{Stamp, US_MAX};
use super::state::State;
use super::transactions::Stamped;
use crate::streams::number;

/// The maximum number of messages of a view that wait until this replica leads in it.
const EARLY_MAX: usize = 4_096;

/// The notices of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Notices {
    /// Cells in which the sender has, or will have, transactions.
    asks: Vec<SnapshotVersion>,
    /// Whether the sender has asked before, and may have missed an answer. With bounded clocks also
    /// whether it needs an answer.
    is_again: bool,
    /// The notices of the order.
    told: Vec<Notice>,
    /// Transactions of which the sender lacks the receiver's word.
    lacks: Vec<TxnId>,
}

mod what {
    pub const STAMPED: u8 = 0;
    pub const WATERMARK: u8 = 1;
}

impl Notices {
    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(u8::from(self.is_again));
        out.put_varint(self.asks.len() as u64);
        self.asks.iter().for_each(|cell| out.put_varint(cell.0));
        out.put_varint(self.told.len() as u64);
        for notice in &self.told {
            match notice {
                Notice::Stamped { txn, stamp } => {
                    out.put_u8(what::STAMPED);
                    out.put_u64(txn.to_bits());
                    out.put_u64(stamp.to_bits());
                }
                Notice::Watermark(stamp) => {
                    out.put_u8(what::WATERMARK);
                    out.put_u64(stamp.to_bits());
                }
                Notice::Ready { .. } => unreachable!("watermarks need no second round"),
            }
        }
        out.put_varint(self.lacks.len() as u64);
        self.lacks.iter().for_each(|txn| out.put_u64(txn.to_bits()));
        out.into()
    }

    /// Decodes the bytes that [`Notices::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "notices";
        let from = &mut Reader::new(bytes);
        let is_again = from.u8(WHAT)? == 1;
        let asks = (0..from.count(WHAT)?).map(|_| Ok(SnapshotVersion(number(from, WHAT)?)));
        let asks = asks.collect::<Result<_, DecodeError>>()?;
        let notice = |from: &mut Reader<'_>| match from.u8(WHAT)? {
            what::STAMPED => {
                let txn = TxnId::from_bits(from.u64(WHAT)?);
                Ok(Notice::Stamped { txn, stamp: Stamp::from_bits(from.u64(WHAT)?) })
            }
            what::WATERMARK => Ok(Notice::Watermark(Stamp::from_bits(from.u64(WHAT)?))),
            _ => Err(DecodeError::new(WHAT)),
        };
        let count = from.count(WHAT)?;
        let told = (0..count).map(|_| notice(from)).collect::<Result<_, _>>()?;
        let count = from.count(WHAT)?;
        let lacks = (0..count).map(|_| Ok(TxnId::from_bits(from.u64(WHAT)?)));
        let lacks = lacks.collect::<Result<_, DecodeError>>()?;
        let is_stamp = |notice: &Notice| notice.us() <= US_MAX;
        let is_cell = |cell: &SnapshotVersion| cell.0 <= US_MAX / CELL_US;
        let told: Vec<Notice> = told;
        let asks: Vec<SnapshotVersion> = asks;
        let are_sound = told.iter().all(is_stamp) && asks.iter().all(is_cell);
        match from.is_empty() && are_sound {
            true => Ok(Self { asks, is_again, told, lacks }),
            false => Err(DecodeError::new(WHAT)),
        }
    }
}

/// Notices on their way to this replica as a leader.
#[derive(Debug, Default)]
pub(super) struct Noticed {
    /// Messages of views that this replica does not lead in yet.
    early: Vec<(ViewNumber, NodeId, Bytes)>,
    /// The transactions that this leader has only heard of: since when, or when they were last
    /// fetched.
    unknown: BTreeMap<TxnId, Timestamp>,
}

impl Noticed {
    /// Takes the transactions that this leader has only heard of at present. Returns those that
    /// have not come for a while, which are to be fetched now.
    fn unknown_for(
        &mut self,
        patience: Span,
        unknown: BTreeSet<TxnId>,
        now: Timestamp,
    ) -> Vec<TxnId> {
        self.unknown.retain(|txn, _| unknown.contains(txn));
        let mut due = Vec::new();
        for txn in unknown {
            let since = self.unknown.entry(txn).or_insert(now);
            if now.since(*since) >= patience {
                *since = now;
                due.push(txn);
            }
        }
        due
    }

    /// Drops messages of earlier views.
    pub(super) fn forget_before(&mut self, view: ViewNumber) {
        self.early.retain(|(of, ..)| *of >= view);
    }
}

impl State {
    /// The leader of another shard in this view.
    fn other_leader(&self, shard: ShardId) -> NodeId {
        self.views.leader_of(shard).expect("a view has a leader of each shard")
    }

    /// Orders a transaction that was fetched, if other leaders have told of it.
    pub(super) fn order_if_told(&mut self, cx: &mut Cx<'_, Tiga>, stamped: &Stamped) {
        let txn = stamped.request.txn;
        let is_told = self.leading.as_ref().is_some_and(|it| it.leader.has_heard_of(txn));
        if is_told {
            self.order(cx, stamped);
        }
    }

    /// Whether a transaction that another leader has had at a stamp is in the log, or was. Cells
    /// that are forgotten are committed on all shards.
    fn is_over(&self, txn: TxnId, stamp: Stamp) -> bool {
        let is_forgotten = stamp <= last_of(self.log.version_at(self.log.base()));
        let is_void = self.done.contains(txn);
        // One that is over on another shard, and pending here, is void.
        let is_pending = self.leading.as_ref().is_some_and(|it| it.leader.stamp_of(txn).is_some());
        !is_pending && (self.log.contains(txn) || is_forgotten || is_void)
    }

    /// The stamp of a transaction that is pending or released here, or is in the log.
    fn stamp_here(&self, txn: TxnId) -> Option<Stamp> {
        let leading = self.leading.as_ref();
        let ordered =
            leading.and_then(|it| it.leader.stamp_of(txn).or_else(|| it.released_at(txn)));
        ordered.or_else(|| self.log.stamp_of(txn))
    }

    /// The same, as the answer to a leader that has it pending. If it is over here, it is void, and
    /// its stamp there does not matter.
    fn stamp_told(&self, txn: TxnId) -> Option<Stamp> {
        let is_void = || self.done.contains(txn);
        self.stamp_here(txn).or_else(|| is_void().then_some(Stamp::ZERO))
    }
}

impl Tiga {
    /// Notices arrive from the leader of another shard.
    pub(super) fn on_notices(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: ViewNumber,
        bytes: Bytes,
    ) {
        let Ok(notices) = Notices::decode(&bytes) else {
            return cx.mark("tiga.malformed_notices");
        };
        let views = &self.state.views;
        let shard = self.state.cluster.nodes[from.index()].shard;
        let is_present = views.view.number == view && self.state.leading.is_some();
        let counts = mutate!(OldViewCounts: is_present => self.state.leading.is_some());
        if !counts {
            if view >= views.view.number && self.state.noticed.early.len() < EARLY_MAX {
                self.state.noticed.early.push((view, from, bytes));
            }
            return cx.mark("tiga.notices_of_another_view");
        }
        if shard == self.state.shard || views.leader_of(shard) != Some(from) {
            return cx.mark("tiga.malformed_notices");
        }
        self.take_notices(cx, shard, notices);
    }

    fn take_notices(&mut self, cx: &mut Cx<'_, Self>, from: ShardId, notices: Notices) {
        let Notices { asks, is_again, told, lacks } = notices;
        for notice in told {
            if let Notice::Watermark(mark) = notice {
                self.follow_promise(cx, mark);
            }
            let is_over = match notice {
                Notice::Stamped { txn, stamp } => self.state.is_over(txn, stamp),
                _ => false,
            };
            let Some(leading) = &mut self.state.leading else { return };
            let is_needed =
                matches!(notice, Notice::Watermark(_)) || !leading.leader.is_detective();
            if !is_over && is_needed {
                let mut effects = Effects::default();
                leading.leader.on_notice(from, notice, &mut effects);
                leading.take(effects);
            }
        }
        let now = self.state.clock_us(cx);
        if !asks.is_empty() {
            self.state.raise_ceiling(cx, now);
        }
        let known: Vec<(TxnId, Stamp)> =
            lacks.iter().filter_map(|txn| Some((*txn, self.state.stamp_told(*txn)?))).collect();
        let Some(leading) = &mut self.state.leading else { return };
        asks.into_iter().for_each(|cell| leading.note_asked(cell, is_again));
        let told = leading.notices.entry(from).or_default();
        told.extend(known.into_iter().map(|(txn, stamp)| Notice::Stamped { txn, stamp }));
    }

    /// The clocks of all leaders follow the fastest one, so that none waits for the others. One
    /// that is far ahead is wrong: it is corrected, or gives up.
    pub(super) fn follow_promise(&mut self, cx: &mut Cx<'_, Self>, mark: Stamp) {
        let counted = self.state.clocks.corrected(cx.now.at);
        let logged = end_of(self.state.log.last_version());
        let most = counted.max(logged) + self.state.clocks_differ_at_most().us;
        let is_far = mark.us() > most;
        if is_far {
            cx.mark("tiga.promise_too_far");
        }
        let us = if is_far { most } else { mark.us() };
        let behind = us.saturating_sub(self.state.clock_us(cx));
        self.state.ahead_us += behind;
    }

    /// Takes the notices of this view that arrived before this replica led in it.
    pub(super) fn take_early_notices(&mut self, cx: &mut Cx<'_, Self>) {
        let number = self.state.views.view.number;
        let early = std::mem::take(&mut self.state.noticed.early);
        let (due, later): (Vec<_>, Vec<_>) =
            early.into_iter().filter(|it| it.0 >= number).partition(|it| it.0 == number);
        self.state.noticed.early = later;
        for (view, from, bytes) in due {
            self.on_notices(cx, from, view, bytes);
        }
    }

    /// Asks the other leaders to promise nothing more up to the next cell of this shard.
    pub(super) fn ask_for_promises(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.is_divided() {
            return;
        }
        if self.state.views.view.is_detective {
            // Coordinators ask for the cells of their stamps.
            return self.close_raised(cx);
        }
        let last = self.state.log.last_version();
        let needs_promises = self.state.needs_promises();
        let Some(leading) = &mut self.state.leading else { return };
        // A cell that is in the log can have been complete without a word. Followers of the other
        // shards have to know that nothing else comes up to there.
        let mut asks = Vec::new();
        let is_covered = leading.is_asked_with(last);
        let uncovered = Some(last).filter(|_| !is_covered);
        for cell in leading.cells_waiting().chain(uncovered).collect::<Vec<_>>() {
            if leading.asked.insert(cell) {
                asks.push(cell);
                leading.note_asked(cell, false);
            }
        }
        leading.asked = leading.asked.split_off(&last);
        self.send_notices(cx, (asks, needs_promises), &BTreeMap::new());
    }

    /// Sends the notices of this step.
    fn send_notices(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (asks, is_again): (Vec<SnapshotVersion>, bool),
        lacks: &BTreeMap<ShardId, Vec<TxnId>>,
    ) {
        let Some(leading) = &mut self.state.leading else { return };
        let mut of = std::mem::take(&mut leading.notices);
        let view = self.state.views.view.number.0;
        let own = self.state.shard;
        for shard in (0..self.state.cluster.partitions.shards()).map(ShardId) {
            let told = of.remove(&shard).unwrap_or_default();
            let lacks = lacks.get(&shard).cloned().unwrap_or_default();
            if shard == own || told.is_empty() && lacks.is_empty() && asks.is_empty() {
                continue;
            }
            // A stamp that was raised, and a promise, have to be below the ceiling.
            let last = told.iter().map(Notice::us).max().unwrap_or_default();
            // Those of other leaders' transactions name this node's own ones, too.
            let after = self.state.ceiling.record(last, self.state.coordinator.next_sequence);
            let notices = Notices { asks: asks.clone(), is_again, told, lacks }.encode();
            let message = Message::Notices { view, notices };
            cx.send_after(after, self.state.other_leader(shard), message);
        }
    }

    /// Asks for missing answers: the word of another leader, or transactions of which this
    /// leader has only heard.
    pub(super) fn repeat_notices(&mut self, cx: &mut Cx<'_, Self>) {
        let now = self.state.clock_us(cx);
        let patience = self.state.cluster.round_trip_max().us;
        let State { leading, shards, log, commit, .. } = &mut self.state;
        // The last cell of the log may have been appended without a word.
        let last = Some(log.last_version());
        let last = last.filter(|last| {
            shards.as_ref().is_some_and(|shards| shards.through(log, commit) < *last)
        });
        let Some(leading) = leading else { return };
        let mut lacks: BTreeMap<ShardId, Vec<TxnId>> = BTreeMap::new();
        for (txn, stamp, shards) in leading.leader.unstamped() {
            if stamp.us() + patience > now {
                continue;
            }
            for shard in shards.iter() {
                lacks.entry(shard).or_default().push(txn);
                let told = leading.notices.entry(shard).or_default();
                told.push(Notice::Stamped { txn, stamp });
            }
        }
        let is_late = |cell: &SnapshotVersion| last_of(*cell).us() + patience <= now;
        let due = leading.announcements_due.first().copied();
        let asks: Vec<_> =
            leading.next_due().into_iter().chain(due).chain(last).filter(is_late).collect();
        if !lacks.is_empty() || !asks.is_empty() {
            cx.mark("tiga.notices_repeated");
            asks.iter().for_each(|cell| leading.note_asked(*cell, true));
            self.send_notices(cx, (asks, true), &lacks);
        }
    }

    /// Fetches transactions of which this leader has only heard.
    pub(super) fn fetch_unknown(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = Span::from_ms(self.state.options.fetch_ms);
        let State { leading, noticed, transactions, .. } = &mut self.state;
        let unknown: BTreeSet<TxnId> = match leading {
            Some(leading) => leading.leader.unknown().collect(),
            None => BTreeSet::new(),
        };
        let due = noticed.unknown_for(patience, unknown, cx.now.at);
        let (here, missing): (Vec<TxnId>, Vec<TxnId>) =
            due.into_iter().partition(|txn| transactions.contains(*txn));
        for txn in here {
            let stamped = self.state.transactions.get(txn).expect("it was checked").clone();
            self.state.order(cx, &stamped);
        }
        if missing.is_empty() {
            return;
        }
        cx.mark("tiga.unknown_fetched");
        let txns: Vec<u64> = missing.iter().map(|txn| txn.to_bits()).collect();
        for leader in self.state.views.view.leaders.clone() {
            if leader != self.state.node {
                cx.send(leader, Message::Fetch { txns: txns.clone() });
            }
        }
    }
}

impl super::leading::Leading {
    /// A leader waits for the end of a cell: this one has to promise it, and to tell its followers.
    pub(super) fn note_asked(&mut self, cell: SnapshotVersion, is_again: bool) {
        let needs_promises = !self.leader.is_detective();
        // The word may be lost. With bounded clocks nobody waits for it, unless that is said.
        if needs_promises && (is_again || cell > self.promised && !self.leader.is_bounded()) {
            self.promises_due.insert(cell);
        }
        if cell > self.announced {
            self.announcements_due.insert(cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::cell_of;
    use super::*;

    #[test]
    fn notices_survive_their_encoding_and_cut_ones_are_refused() {
        let txn = TxnId::new(NodeId(1), 7);
        let stamp = Stamp::last_of(90);
        let told = vec![Notice::Stamped { txn, stamp }, Notice::Watermark(stamp)];
        let asks = vec![cell_of(stamp)];
        let notices = Notices { asks, is_again: true, told, lacks: vec![txn] };
        let bytes = notices.encode();
        assert_eq!(Notices::decode(&bytes), Ok(notices));
        for len in 0..bytes.len() {
            assert!(Notices::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    /// Story: all unknown transactions were fetched again, also those heard of just now.
    #[test]
    fn each_unknown_transaction_is_fetched_when_it_has_not_come_for_a_while() {
        let [one, other] = [7, 8].map(|number| TxnId::new(NodeId(1), number));
        let (mut noticed, patience) = (Noticed::default(), Span::from_ms(20));
        let mut due = |at_ms: u64, unknown: &[TxnId]| {
            let now = Timestamp::from_us(1_000 * at_ms);
            noticed.unknown_for(patience, unknown.iter().copied().collect(), now)
        };
        assert_eq!(due(100, &[one]), []);
        assert_eq!(due(115, &[one, other]), []);
        assert_eq!(due(120, &[one, other]), [one]);
        assert_eq!(due(135, &[one, other]), [other]);
        assert_eq!(due(140, &[one, other]), [one]);
        assert_eq!(due(145, &[one]), [], "the other one has come");
        assert_eq!(due(155, &[other]), [], "it is heard of again");
    }
}
