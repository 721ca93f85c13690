//! The detective approach (§3.8): leaders release transactions without agreement, and the logs of
//! their shards show whether all of them have used one stamp.
//!
//! ```text
//!   log of shard a   | .. | T@10  U@10.4 | ..          T: both logs have it at 10, so it runs
//!   log of shard b   | .. | T@10         | U@11.2      U: was late at b. It is void on both
//!                             ^ committed on both: the nodes of a region compare
//! ```
//!
//! A leader that gets a transaction too late raises its stamp, as it always does, and appends it.
//! The other leaders do not hear of it, and keep the stamp of the coordinator. A transaction of
//! several shards runs if all of their logs have it at one stamp. Otherwise it is void everywhere.
//! Committed cells never change, so all nodes come to the same end, and no message between leaders
//! is needed. Nothing that was run is revoked, because cells run when they are committed: an entry
//! of the log is revoked instead. Its coordinator gives the transaction a new number and a later
//! stamp, and the client hears nothing of it.
//!
//! The nodes of a region tell each other the *places* of transactions in committed cells: their
//! stamps. For each other shard, a node lists those in which that shard has a part. A cell without
//! any is not listed. So each list says which one was before it, and `Committed` says which one is
//! the last. A node that has all lists up to there knows that the other shard has nothing else.
//!
//! A view with the preventive approach can follow one with the detective approach, and the other
//! way round. A view can also begin with logs of which only some have a transaction. So logs are
//! compared in all views.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::ordered::ShardOutcome;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::txn::{Abort, Outcome, SqlState};

use super::super::Tiga;
use super::super::cells::Cell;
use super::super::coordinator::{InFlight, Tries};
use super::super::headroom::LATE_MAX;
use super::super::log::Position;
use super::super::messages::Message;
use super::super::options::Approach;
use super::super::stamp::Stamp;
use super::super::state::State;
use super::super::transactions::Transactions;
use super::{OfCell, Shards};
use crate::inputs::stopping;
use crate::request::Request;
use crate::streams::number;

/// The transactions of a cell in which another shard has a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Places {
    /// The last cell before it that has some, or 0.
    pub after: SnapshotVersion,
    /// The transactions with their stamps.
    pub txns: Vec<(TxnId, Stamp)>,
}

impl Places {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.after.0);
        encode_txns(&self.txns, out);
    }

    /// Decodes the bytes that [`Places::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let after = SnapshotVersion(number(from, "places")?);
        Ok(Self { after, txns: decode_txns(from)? })
    }
}

/// Appends transactions with their stamps to `out`. [`decode_txns`] is the inverse.
pub(super) fn encode_txns(txns: &[(TxnId, Stamp)], out: &mut Vec<u8>) {
    out.put_varint(txns.len() as u64);
    for (txn, stamp) in txns {
        out.put_u64(txn.to_bits());
        out.put_u64(stamp.to_bits());
    }
}

/// Decodes what [`encode_txns`] wrote.
///
/// # Errors
/// If the bytes are malformed.
pub(super) fn decode_txns(from: &mut Reader<'_>) -> Result<Vec<(TxnId, Stamp)>, DecodeError> {
    const WHAT: &str = "places";
    let count = from.count(WHAT)?;
    let place = |from: &mut Reader<'_>| {
        let txn = TxnId::from_bits(from.u64(WHAT)?);
        Ok((txn, Stamp::from_bits(from.u64(WHAT)?)))
    };
    (0..count).map(|_| place(from)).collect()
}

/// Which lists of another shard this node has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lists {
    /// The last cell up to which it has all.
    last: SnapshotVersion,
    /// Later ones, each with the one before it.
    later: BTreeMap<SnapshotVersion, SnapshotVersion>,
    /// The last one that there is, as far as the other shard has told.
    told: SnapshotVersion,
    /// The first one that was dropped although the one before it has not arrived, and that one.
    dropped: Option<(SnapshotVersion, SnapshotVersion)>,
}

impl Lists {
    /// The list of a cell has arrived.
    pub(super) fn note(&mut self, version: SnapshotVersion, after: SnapshotVersion) {
        if version > self.last {
            self.later.insert(version, after);
        }
        self.advance();
    }

    fn advance(&mut self) {
        let is_next = |last, lists: &BTreeMap<SnapshotVersion, SnapshotVersion>| {
            lists.first_key_value().is_some_and(|(_, after)| *after <= last)
        };
        while is_next(self.last, &self.later) {
            let (version, _) = self.later.pop_first().expect("it was checked");
            self.last = version.max(self.last);
        }
        // Nothing else is before the one that was dropped.
        if let Some((version, _)) = self.dropped.filter(|(_, after)| *after <= self.last) {
            self.last = self.last.max(SnapshotVersion(version.0 - 1));
            self.dropped = None;
        }
    }

    /// Nothing is needed of cells up to this one.
    pub(super) fn skip_to(&mut self, version: SnapshotVersion) {
        self.last = version.max(self.last);
        self.later = self.later.split_off(&version.next());
        self.advance();
    }

    /// The list of a cell is dropped, if it has one, and all after it.
    pub(super) fn drop_from(&mut self, version: SnapshotVersion) {
        self.last = self.last.min(SnapshotVersion(version.0 - 1));
        let dropped = self.later.split_off(&version);
        let first = dropped.first_key_value().map(|(version, after)| (*version, *after));
        self.dropped = first.filter(|(first, _)| *first == version).or(self.dropped);
    }

    /// The shard is committed through a cell, and its last list up to there is that of `last`.
    pub(super) fn note_told(&mut self, last: SnapshotVersion) {
        self.told = last.max(self.told);
    }

    /// The part of what the shard is committed through of which this node has all lists.
    pub(super) fn complete(&self, through: SnapshotVersion) -> SnapshotVersion {
        let is_complete = mutate!(ListsIncomplete: self.last >= self.told => true);
        if is_complete { through } else { through.min(self.last) }
    }
}

impl State {
    /// §3.8: whether these leaders should release transactions before they agree.
    pub(in super::super) fn should_detect(&self, leaders: &[NodeId]) -> bool {
        let far = |one: &NodeId| {
            let others = leaders.iter();
            others.map(|other| self.round_trip_us(*one, *other) / 2).max()
        };
        let furthest = leaders.iter().filter_map(far).max().unwrap_or_default();
        match self.options.approach {
            _ if !self.is_divided() => false,
            Approach::Preventive => false,
            Approach::Detective => true,
            Approach::Auto => furthest > self.options.colocation_ms * 1_000,
        }
    }
}

/// The error of a transaction that was too late so often.
fn late_too_often(times: u32) -> Abort {
    let message = format!(
        "could not serialize access: the transaction reached a leader too late {times} times"
    );
    Abort::new(SqlState::SERIALIZATION_FAILURE, message)
        .with_hint("The transaction might succeed if retried. Large ones take longer.")
}

impl Shards {
    /// The transactions of a cell of this shard that another of their shards has at another stamp,
    /// or not at all. All shards are committed through the cell.
    pub(super) fn void_in(&self, cell: &Cell, transactions: &Transactions) -> BTreeSet<TxnId> {
        let none = OfCell::default();
        let received = self.received.get(&cell.version).unwrap_or(&none);
        let mut void = BTreeSet::new();
        for shard in self.streams.keys() {
            let there = received.places.get(shard).map_or(&[][..], |places| places);
            let here = places_for(cell, transactions, *shard);
            if here == there {
                continue;
            }
            let there: BTreeSet<_> = there.iter().collect();
            void.extend(here.iter().filter(|it| !there.contains(it)).map(|(txn, _)| *txn));
        }
        mutate!(VoidRun: void => BTreeSet::new())
    }
}

/// The transactions of a cell in which another shard has a part.
fn places_for(cell: &Cell, transactions: &Transactions, shard: ShardId) -> Vec<(TxnId, Stamp)> {
    let concerns = |txn: TxnId| {
        let stamped = transactions.get(txn).expect("the log has what this replica has");
        stamped.request.shards.contains(shard)
    };
    cell.txns.iter().copied().filter(|(txn, _)| concerns(*txn)).collect()
}

impl Tiga {
    /// Lists the places of transactions in the cell at a committed position for the other shards.
    pub(super) fn list_places(&mut self, cx: &mut Cx<'_, Self>, position: Position) {
        let State { shards: Some(shards), log, transactions, .. } = &mut self.state else { return };
        let cell = log.cell(position);
        let others: Vec<ShardId> = shards.streams.keys().copied().collect();
        let lists = others.iter().map(|shard| (*shard, places_for(cell, transactions, *shard)));
        let lists: Vec<_> = lists.filter(|(_, txns)| !txns.is_empty()).collect();
        let version = cell.version;
        for (shard, txns) in lists {
            let after = self.shards().streams[&shard].retained.listed();
            self.send_for_cell(cx, (shard, version), Some(Places { after, txns }), &[]);
        }
    }

    /// Transactions of a cell are void: those of this node get new stamps.
    pub(super) fn revoke(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        void: &BTreeSet<TxnId>,
    ) {
        let (node, here) = (self.state.node, self.state.shard);
        for txn in void {
            cx.mark("tiga.revoked");
            let home = self.state.cluster.nodes[txn.node().index()].shard;
            let stamped = self.state.transactions.get(*txn).expect("its cell was compared");
            let shards = stamped.request.shards;
            if txn.node() == node {
                self.stamp_again(cx, *txn);
            } else if shards.iter().next() == Some(here) && !shards.contains(home) {
                self.shards().outcomes.insert(*txn, (version, ShardOutcome::Void));
                self.send_outcome(cx, *txn);
            }
        }
    }

    /// A transaction of this node is void: it gets another number and a later stamp. Its client is
    /// told if the node is about to stop.
    pub(super) fn stamp_again(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        let Some(mut own) = self.state.coordinator.in_flight.remove(&txn) else { return };
        own.is_late = true;
        self.state.note_arrival(cx.now.at, &own);
        let InFlight { ticket, stamped, tries, .. } = own;
        let State { counters, stop, .. } = &mut self.state;
        counters.txns_revoked += 1;
        let why = match stop {
            Some(_) => Some(stopping()),
            None if tries.late >= LATE_MAX => {
                cx.mark("tiga.late_too_often");
                Some(late_too_often(tries.late + 1))
            }
            None => None,
        };
        if let Some(why) = why {
            counters.txns_aborted += 1;
            return cx.reply(ticket, Outcome::Aborted(why));
        }
        let Request { program, footprint, shards, .. } = stamped.request.clone();
        let tries = Tries { late: tries.late + 1, ..tries };
        self.stamp(cx, (ticket, tries), program, (footprint, shards));
        // It is sent by the next step.
        cx.resume();
    }

    /// The leaders of other shards have to close the cell to which this one has raised a stamp.
    pub(in super::super) fn close_raised(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(leading) = &mut self.state.leading else { return };
        let cell = std::mem::take(&mut leading.raised_cell);
        if cell == SnapshotVersion::ZERO {
            return;
        }
        let view = self.state.views.view.number.0;
        for leader in self.state.views.view.leaders.clone() {
            if leader != self.state.node {
                cx.send(leader, Message::Close { view, cell, is_answered: false });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(version: u64) -> SnapshotVersion {
        SnapshotVersion(version)
    }

    #[test]
    fn lists_are_complete_if_none_of_a_chain_is_missing() {
        let mut lists = Lists::default();
        assert_eq!(lists.complete(v(9)), v(9), "there are none");
        lists.note_told(v(7));
        assert_eq!(lists.complete(v(9)), v(0));
        lists.note(v(7), v(4));
        assert_eq!(lists.complete(v(9)), v(0), "that of 4 has not arrived");
        lists.note(v(4), v(0));
        assert_eq!(lists.complete(v(9)), v(9));
        lists.note_told(v(12));
        assert_eq!(lists.complete(v(12)), v(7));
        lists.note(v(12), v(7));
        lists.drop_from(v(7));
        assert_eq!(lists.complete(v(12)), v(6));
        lists.note(v(7), v(4));
        lists.note(v(12), v(7));
        assert_eq!(lists.complete(v(15)), v(15));
        lists.note_told(v(90));
        lists.note(v(90), v(20));
        lists.drop_from(v(90));
        assert_eq!(lists.complete(v(99)), v(12), "that of 20 has not arrived");
        lists.note(v(20), v(12));
        assert_eq!(lists.complete(v(99)), v(89), "there is none between 20 and 90");
        lists.note(v(90), v(20));
        assert_eq!(lists.complete(v(99)), v(99));
    }

    #[test]
    fn lists_that_are_not_needed_may_be_missing() {
        let mut lists = Lists::default();
        lists.note_told(v(12));
        lists.note(v(12), v(7));
        lists.skip_to(v(8));
        assert_eq!(lists.complete(v(15)), v(15));
    }
}
