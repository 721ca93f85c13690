//! Restart: a replica goes on from its log.
//!
//! It has the cells and transactions that were durable, and the last view that it has promised to
//! follow. How much of the log is committed it learns from its peers. A leader that restarts leads
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
use super::cells::last_of;
use super::log::{Suffix, ViewNumber};
use super::rebuild::Entry;
use super::stamp::{Issuer, Role, Stamp};
use super::state::State;
use super::transactions;
use super::views::{Decided, View};
use crate::agreement::{Agreement, Record};
use crate::replica::{INTACT, kind};

/// The records that a restart reads in the log.
#[derive(Default)]
struct Found {
    agreement: Vec<Record<Decided>>,
    was_ready: bool,
    /// The view in which a transaction was last in time.
    in_time: BTreeMap<TxnId, (ViewNumber, Stamp)>,
}

impl State {
    fn read_record(&mut self, position: LogPosition, record: &Bytes, found: &mut Found) {
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
            kind::CELLS => self.log.replace(Suffix::decode(&payload).expect(INTACT), position),
            kind::PROMISED_VIEW => {
                let from = &mut Reader::new(&payload);
                let number = ViewNumber(from.u64("view").expect(INTACT));
                let shards = 0..self.cluster.partitions.shards();
                let leaders = shards.map(|_| NodeId(from.u16("view").expect(INTACT))).collect();
                let view = View { number, leaders };
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
            kind::LOG_IDENTITY => self.presence.restore_log_identity(&payload),
            other => panic!("record {position} has the unknown kind {other}"),
        }
    }
}

impl State {
    /// Nothing is in time any more before what this replica may have replied to.
    fn restore_fast_path(&mut self, in_time: BTreeMap<TxnId, (ViewNumber, Stamp)>) {
        let told = in_time.values().map(|(_, stamp)| *stamp).max().unwrap_or_default();
        self.start_fast_path(last_of(self.log.last_version()).max(told));
        for (txn, (view, stamp)) in in_time {
            if view == self.log.view && !self.log.contains(txn) && self.has_fast_path() {
                let footprint = self.footprint_of(txn);
                self.fast.restore(Entry { stamp, txn }, footprint);
            }
        }
    }
}

impl Tiga {
    /// The first input of every run: continues from the log.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        let state = &mut self.state;
        let mut found = Found::default();
        for (position, record) in &durable.records {
            found.was_ready |= record[0] == kind::AGREEMENT;
            state.read_record(*position, record, &mut found);
        }
        state.log.finish_restore();
        let me = state.node;
        let ceiling = Stamp::last_of(state.ceiling.durable.us);
        state.coordinator.issuer = Issuer::new(me, Role::Coordinator, ceiling);
        state.coordinator.next_sequence = state.ceiling.durable.sequence + 1;
        state.raised = ceiling;
        state.follow_log(cx);
        state.restore_fast_path(found.in_time);
        let (view, upto) = (state.log.view, state.log.durable());
        state.commit.note_synced(state.replica.me, view, upto);
        state.views.started = view;
        if state.does_decide(me) {
            let (me, topology) = (state.replica.me, &state.replica.topology);
            let agreement = Agreement::new(me, topology, found.agreement, 0);
            state.views.driver.start(agreement);
        }
        state.replica.begin_run(cx.rng.u64(..));
        let State { presence, replica, .. } = state;
        presence.begin(replica, found.was_ready);
        presence.draw_log_identity(cx, replica);
        if replica.topology.node_count() == 1 {
            presence.become_ready(cx);
        }
        self.start_views(cx);
        self.send_view_change(cx);
    }
}
