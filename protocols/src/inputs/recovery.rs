//! Restart (Minerva §4, "Fault Tolerance"): from the checkpoint and the log, through the normal
//! phases.
//!
//! ```text
//!   checkpoint at epoch c --> batches and decisions of the log, in order
//!                         --> epochs c+1 .. of which the log has a record: the protocol's to apply
//!                         --> agreement catches up, missing batches are fetched, and so on
//! ```

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Durable};

use super::collection::{Meta, PROGRESS};
use super::early::decode_early;
use super::rejoin::Rejoined;
use super::replication::FETCH;
use super::state::{Cut, Slot, SourceLog};
use super::{Batch, Bid, Host, Inputs, Timer, kind};
use crate::agreement::{self, Agreement, Record};

/// The reason why records of the log can always be decoded.
pub(crate) const INTACT: &str = "the driver has checked the record";

/// The state recovered from the log, between the two halves of a restart.
pub(crate) struct Found<R> {
    /// The epoch records that the protocol has logged since the checkpoint, in order.
    pub epochs: Vec<(LogPosition, Bytes)>,
    agreement: Vec<Record<Cut<R>>>,
    /// Cuts that were fixed and not discarded.
    early: Vec<(LogPosition, SnapshotVersion, Cut<R>)>,
    /// Agreement records up to this position are in the checkpoint.
    agreement_from: LogPosition,
    was_ready: bool,
    is_replaced: bool,
}

impl<H: Host> Inputs<H> {
    /// The first half of a restart, which is the first input of every run: reads the checkpoint and
    /// the log. The protocol then applies the epochs in [`Found::epochs`] and calls
    /// [`Self::start`].
    pub(crate) fn on_restart(&mut self, cx: &mut Cx<'_, H>, durable: Durable) -> Found<H::Rules> {
        assert!(self.cut.agreement.is_none(), "a node restarts once in each run");
        let mut found = Found {
            epochs: Vec::new(),
            agreement: Vec::new(),
            early: Vec::new(),
            agreement_from: LogPosition(0),
            was_ready: durable.checkpoint.is_some(),
            is_replaced: durable.is_replaced,
        };
        if let Some(checkpoint) = &durable.checkpoint {
            let meta =
                Meta::decode(&checkpoint.meta).expect("the driver has checked the checkpoint");
            found.agreement_from = meta.log_head;
            self.install_meta(&meta);
            found.agreement = meta.agreement;
            self.cut.applied = checkpoint.version;
            self.cut.durable = checkpoint.version;
            if cx.store.published() < checkpoint.version {
                cx.store.publish_alone(checkpoint.version);
            }
        }
        for (position, record) in durable.records {
            found.was_ready |= matches!(record[0], kind::AGREEMENT | kind::REJOINED);
            self.read_record(position, &record, &mut found);
        }
        self.finish_logs();
        self.confirm_applied();
        found
    }

    /// The second half of a restart: the logged decisions are applied, and this replica continues
    /// from there.
    pub(crate) fn start(&mut self, cx: &mut Cx<'_, H>, found: Found<H::Rules>) {
        self.cut.durable = self.cut.applied;
        let applied = self.cut.applied.0;
        let master = self.settings.master;
        let (me, topology) = (self.me, &self.topology);
        let agreement = Agreement::with_master(me, topology, found.agreement, applied, master);
        self.cut.agreement = Some(agreement);
        self.restore_early(cx, found.early);
        self.cut.last_proposal.proposer = self.me;
        self.cut.last_proposal.incarnation = cx.rng.u64(..);
        self.cut.heard_at.fill(cx.now.at);
        self.begin_greetings(cx, found.was_ready, found.is_replaced);
        cx.set_timer(Timer::Tick.into(), agreement::TICK);
        cx.set_timer(Timer::Epoch.into(), self.settings.epoch);
        cx.set_timer(Timer::Progress.into(), PROGRESS);
        cx.set_timer(Timer::Fetch.into(), FETCH);
    }

    /// Restores the contents of a checkpoint in addition to the tables.
    pub(crate) fn install_meta(&mut self, meta: &Meta<H::Rules>) {
        self.cut.heads.clone_from(&meta.heads);
        self.cut.is_member.clone_from(&meta.is_member);
        self.greetings.births.clone_from(&meta.births);
        for (source, log) in self.replication.logs.iter_mut().enumerate() {
            log.skip_to(meta.heads[source]);
        }
        for (log, next_sequence) in self.replication.logs.iter_mut().zip(&meta.sequences) {
            log.next_sequence = log.next_sequence.max(*next_sequence);
        }
        if let Some(target) = &meta.rejoin {
            self.aim_at(target.clone());
        }
        self.next_sequence = self.next_sequence.max(meta.next_sequence);
    }

    fn read_record(&mut self, position: LogPosition, record: &Bytes, found: &mut Found<H::Rules>) {
        // The next restart has to read it again, even if this node is killed repeatedly before it
        // has written as much again.
        self.collection.owe(record.len());
        let (&kind, _) = record.split_first().expect(INTACT);
        let payload = record.slice(1..);
        let is_covered = position <= found.agreement_from;
        match kind {
            kind::BATCH => {
                let batch = H::Batch::decode(&payload).expect(INTACT);
                let log = &mut self.replication.logs[batch.source().index()];
                let bid = batch.bid();
                log.insert(bid, Slot { bytes: payload, batch: Arc::new(batch), position, end: 0 });
            }
            kind::AGREEMENT if mutate!(BoundaryReplayed: is_covered => false) => {}
            kind::AGREEMENT => {
                let records: Vec<Record<_>> = postcard::from_bytes(&payload).expect(INTACT);
                found.agreement.extend(records);
            }
            kind::EPOCH => found.epochs.push((position, payload)),
            kind::EARLY => {
                let (epoch, cut) = decode_early(&payload).expect(INTACT);
                found.early.push((position, epoch, cut));
            }
            kind::GIVEN_UP => {
                let from = Reader::new(&payload).u64("discarded epoch").expect(INTACT);
                found.early.retain(|(_, epoch, _)| epoch.0 < from);
            }
            // A checkpoint written after it contains its effects.
            kind::REJOINED if position <= found.agreement_from => {}
            kind::REJOINED => {
                let rejoined = Rejoined::decode(&payload).expect(INTACT);
                self.greetings.births = rejoined.births;
                self.next_sequence = rejoined.next_sequence;
                found.agreement.extend(rejoined.agreement);
                self.aim_at(rejoined.target);
            }
            kind::DISCARD => {
                let from = &mut Reader::new(&payload);
                let node = NodeId(from.u16("discard").expect(INTACT));
                let after = Bid(from.u64("discard").expect(INTACT));
                self.replication.logs[node.index()].discard_after(after);
            }
            kind::BIRTH => {
                let from = &mut Reader::new(&payload);
                let node = NodeId(from.u16("birth").expect(INTACT));
                self.greetings.births[node.index()] = from.u64("birth").expect(INTACT);
            }
            other => panic!("record {position} has the unknown kind {other}"),
        }
    }

    /// Marks everything that was read from the log as durable.
    fn finish_logs(&mut self) {
        let me = self.me.index();
        for (source, log) in self.replication.logs.iter_mut().enumerate() {
            log.durable = log.held;
            self.replication.durable[me][source] = log.held;
        }
        let own = self.own_log().slots.values();
        let next = own.map(|slot| slot.batch.end_sequence()).max();
        let next = self.next_sequence.max(next.unwrap_or(0));
        self.next_sequence = mutate!(NumbersReused: next => self.next_sequence);
    }
}

impl<B: Batch> SourceLog<B> {
    /// Skips batches up to `head`, which are part of the state and not needed on this node.
    pub(crate) fn skip_to(&mut self, head: Bid) {
        self.collect(head);
        self.held = self.held.max(head);
        self.durable = self.durable.max(head);
        self.known = self.known.max(head);
        self.advance_held();
    }
}
