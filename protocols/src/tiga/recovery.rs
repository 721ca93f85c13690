//! Restart: a replica goes on from its log.
//!
//! It has the cells and transactions that were durable, and the last view that it has promised to
//! follow. Its records say up to where no view can change the log any more, as of their time. What
//! else is committed it learns from its peers. A leader that restarts leads
//! no more: it does not know what it had accepted, so that there is another view.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::{LogPosition, NodeId, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Durable};

use super::Tiga;
use super::ceiling::Limit;
use super::checkpoint::Restored;
use super::decided::{Decided, View};
use super::log::{Position, Suffix, ViewNumber};
use super::rebuild::Entry;
use super::stamp::Stamp;
use super::state::State;
use super::transactions;
use crate::agreement::Record;
use crate::digests::Digests;
use crate::replica::{INTACT, kind};

/// The records that a restart reads in the log.
#[derive(Default)]
struct Found {
    agreement: Vec<Record<Decided>>,
    /// The stamp at or below which nothing is in time, by the checkpoint.
    told: Stamp,
    was_ready: bool,
    /// The records of cells after a peer's checkpoint, which a crash took away.
    gaps: u32,
    /// The view in which a transaction was last in time.
    in_time: BTreeMap<TxnId, (ViewNumber, Stamp)>,
}

impl State {
    fn read_record(&mut self, position: LogPosition, record: &Bytes, found: &mut Found) {
        // The next restart has to read it again.
        self.replica.owe(record.len());
        let (&kind, _) = record.split_first().expect(INTACT);
        let payload = record.slice(1..);
        match kind {
            kind::TRANSACTIONS => {
                let (view, all) = transactions::decode_record(&payload).expect(INTACT);
                for (stamped, is_in_time) in all {
                    let (txn, stamp) = (stamped.request.txn, stamped.stamp);
                    if is_in_time {
                        found.in_time.insert(txn, (view, stamp));
                    }
                    self.transactions.insert(Arc::new(stamped));
                }
            }
            kind::CELLS => {
                let from = &mut Reader::new(&payload);
                let base = Position(from.varint("log").expect(INTACT));
                let settled = Position(from.varint("log").expect(INTACT));
                let suffix = Suffix::decode(from.rest()).expect(INTACT);
                // The cells before may be other ones, although there are as many.
                let is_other = mutate!(BaseForgotten: base > self.log.base() => false);
                let is_gap = suffix.after > self.log.last() || is_other;
                found.gaps += u32::from(is_gap);
                if !is_gap {
                    self.log.replace(suffix, position);
                    self.settled = self.settled.max(settled);
                }
            }
            kind::PROMISED_VIEW => {
                let from = &mut Reader::new(&payload);
                let number = ViewNumber(from.u64("view").expect(INTACT));
                let shards = 0..self.cluster.partitions.shards();
                let leaders = shards.map(|_| NodeId(from.u16("view").expect(INTACT))).collect();
                let is_detective = from.u8("view").expect(INTACT) == 1;
                let view = View { number, leaders, is_detective };
                mutate!(ViewForgotten: self.views.view = view => ());
            }
            kind::CEILING => {
                let limit = Limit::decode(&payload).expect(INTACT);
                mutate!(CeilingForgotten: self.ceiling.restore(limit) => ());
            }
            kind::AGREEMENT => {
                let records: Vec<Record<_>> = postcard::from_bytes(&payload).expect(INTACT);
                found.agreement.extend(records);
            }
            kind::RECEIVED => Tiga::restore_received(self, &payload),
            kind::REJOINED => found.agreement.extend(self.restore_rejoined(&payload)),
            kind::LOG_IDENTITY => self.presence.restore_log_identity(&payload),
            other => panic!("record {position} has the unknown kind {other}"),
        }
    }

    /// Nothing is in time any more before what this replica may have replied to.
    fn restore_fast_path(&mut self, told: Stamp, in_time: BTreeMap<TxnId, (ViewNumber, Stamp)>) {
        let last = in_time.values().map(|(_, stamp)| *stamp).max().unwrap_or_default();
        let of_view = in_time.into_iter().filter(|(_, (view, _))| *view == self.log.view);
        let of_view = of_view.map(|(txn, (_, stamp))| Entry { stamp, txn }).collect();
        self.continue_fast_path(told.max(last), of_view);
        if self.is_divided() {
            // It may have told that it has passed a cell.
            self.fast.restore_promise(Stamp::last_of(self.ceiling.durable.us));
        }
    }
}

impl Tiga {
    /// The first input of every run: continues from the log.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        let state = &mut self.state;
        let mut found = Found::default();
        let mut restored = Restored::default();
        if let Some(checkpoint) = &durable.checkpoint {
            restored = state.restore_checkpoint(cx, checkpoint);
            found.was_ready = true;
        }
        let Restored { log_head, agreement, told, in_time } = restored;
        let in_time = in_time.into_iter().map(|it| (it.txn, (state.log.view, it.stamp)));
        found.in_time.extend(in_time);
        (found.agreement, found.told) = (agreement, told);
        for (position, record) in &durable.records {
            // Of these, a replica that does not decide has promised views only.
            let is_part = matches!(record[0], kind::AGREEMENT | kind::REJOINED);
            found.was_ready |= is_part || record[0] == kind::PROMISED_VIEW;
            if *position > log_head {
                state.read_record(*position, record, &mut found);
            }
        }
        (0..found.gaps).for_each(|_| cx.mark("tiga.record_after_gap"));
        state.log.finish_restore();
        state.settled = state.settled.min(state.log.last());
        state.shown_version = state.log.last_version();
        state.commit.committed = state.commit.committed.max(state.settled);
        let me = state.replica.me;
        state.issue_above_ceiling();
        state.note_foreign(state.log.base());
        state.follow_log(cx);
        state.restore_fast_path(found.told, found.in_time);
        if state.log.view > state.views.started {
            // The checkpoint has the logs of an earlier view.
            state.views.started = state.log.view;
            state.views.logs.clear();
        }
        if state.is_whole() {
            let (view, upto) = (state.log.view, state.log.durable());
            state.commit.note_synced(me, view, upto);
        }
        Digests::begin(cx, &state.replica);
        state.replica.begin_run(cx.rng.u64(..));
        if found.was_ready || !durable.is_replaced {
            // One that lost its disk learns the state of agreement from its peers first.
            let agreement = state.agreement(found.agreement);
            state.views.driver.start(agreement);
        }
        self.begin_greetings(cx, found.was_ready, durable.is_replaced);
        self.start_views(cx);
        self.send_view_change(cx);
    }
}
