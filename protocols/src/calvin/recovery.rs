//! Restart, and the replacement of a replica's state (§5): from a checkpoint and the inputs after
//! it.
//!
//! The log contains every batch, and the cut of each epoch that has run. A restart replays the
//! epochs and reaches the same state; the log contains no writes of transactions. The procedures
//! must then have the same code as before, or the state would differ from that of the other
//! replicas. A cut names the code under which it was proposed, and a node with other code refuses
//! it.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::protocol::{Cx, Durable};
use pangea_core::txn::Outcome;

use super::batch::{Batch, Bid, Request};
use super::shards::remote_results::RemoteResults;
use super::shards::slice::Slice;
use super::state::{InFlight, RetryableRequest};
use super::{Calvin, Cut};
use crate::agreement::Term;
use crate::inputs::{Incoming, outcome_unknown};
use crate::replica::INTACT;
use crate::streams::Batch as _;

/// The log record of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EpochRecord {
    pub epoch: SnapshotVersion,
    /// `None` for an epoch that arrived with a peer's checkpoint and did not run on this node.
    pub cut: Option<Cut>,
    /// `Some` if tables are partitioned.
    pub of_shards: Option<ShardEpochRecord>,
}

/// The messages from and to other shards of an epoch, in addition to the group's own batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ShardEpochRecord {
    /// The slices received from the other shards.
    pub received_slices: Vec<Slice>,
    /// The rows and outcomes received from them, of the epoch's lineage.
    pub received: Vec<(ShardId, RemoteResults)>,
    /// The slices sent to them.
    pub sent: Vec<(ShardId, Slice)>,
    /// The rows and outcomes sent to them.
    pub served: Vec<(ShardId, RemoteResults)>,
    /// The last epoch up to which the messages to each shard were truncated.
    pub dropped: Vec<(ShardId, SnapshotVersion)>,
}

impl ShardEpochRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        let slice = |slice: &Slice, out: &mut Vec<u8>| out.put_bytes(slice.bytes());
        let results = |(shard, results): &(ShardId, RemoteResults), out: &mut Vec<u8>| {
            out.put_u16(shard.0);
            results.encode(out);
        };
        out.put_varint(self.received_slices.len() as u64);
        self.received_slices.iter().for_each(|it| slice(it, out));
        out.put_varint(self.sent.len() as u64);
        for (shard, sent) in &self.sent {
            out.put_u16(shard.0);
            slice(sent, out);
        }
        for all in [&self.received, &self.served] {
            out.put_varint(all.len() as u64);
            all.iter().for_each(|it| results(it, out));
        }
        out.put_varint(self.dropped.len() as u64);
        for (shard, upto) in &self.dropped {
            out.put_u16(shard.0);
            out.put_varint(upto.0);
        }
    }

    fn decode(from: &mut Reader<'_>, bytes: &Bytes) -> Result<Self, DecodeError> {
        let slice = |from: &mut Reader<'_>| Slice::decode(&bytes.slice_ref(from.bytes(WHAT)?));
        let shard = |from: &mut Reader<'_>| from.u16(WHAT).map(ShardId);
        let received_slices =
            (0..from.count(WHAT)?).map(|_| slice(from)).collect::<Result<_, _>>()?;
        let sent = (0..from.count(WHAT)?).map(|_| Ok((shard(from)?, slice(from)?)));
        let sent = sent.collect::<Result<_, DecodeError>>()?;
        let mut all = || {
            let results = (0..from.count(WHAT)?)
                .map(|_| Ok((shard(from)?, RemoteResults::decode(from, bytes)?)));
            results.collect::<Result<Vec<_>, DecodeError>>()
        };
        let (received, served) = (all()?, all()?);
        let upto = |from: &mut Reader<'_>| from.varint(WHAT).map(SnapshotVersion);
        let dropped = (0..from.count(WHAT)?).map(|_| Ok((shard(from)?, upto(from)?)));
        let dropped = dropped.collect::<Result<_, DecodeError>>()?;
        Ok(Self { received_slices, sent, received, served, dropped })
    }
}

const WHAT: &str = "epoch record";

impl EpochRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.epoch.0);
        let encoded = |cut| postcard::to_stdvec(cut).expect("a cut can be encoded");
        out.put_bytes(&self.cut.as_ref().map(encoded).unwrap_or_default());
        self.of_shards.iter().for_each(|of_shards| of_shards.encode(&mut out));
        out
    }

    pub(super) fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let epoch = SnapshotVersion(from.u64(WHAT)?);
        let cut = Some(from.bytes(WHAT)?).filter(|cut| !cut.is_empty());
        let cut = cut.map(postcard::from_bytes).transpose().map_err(|_| DecodeError::new(WHAT))?;
        let is_divided = !from.is_empty();
        let of_shards = is_divided.then(|| ShardEpochRecord::decode(from, bytes)).transpose()?;
        if !from.is_empty() {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { epoch, cut, of_shards })
    }
}

impl Calvin {
    /// Handles the first input of every run.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        let mut found = self.state.inputs.on_restart(cx, durable);
        self.state.listed = self.state.inputs.listed_in_checkpoint();
        self.restore_in_flight();
        if !self.state.sequencer.in_flight.is_empty() {
            cx.mark("calvin.in_flight_restored");
        }
        let records = std::mem::take(&mut found.epochs);
        if self.state.shards.is_some() {
            self.replay_shards(cx, records);
            return self.state.inputs.start(cx, found);
        }
        for (_, record) in records {
            let EpochRecord { epoch, cut, .. } = EpochRecord::decode(&record).expect(INTACT);
            let cut = cut.expect("an unpartitioned epoch record has its cut");
            if epoch != self.state.inputs.cut.applied.next() {
                continue;
            }
            if !self.state.inputs.follows_rules(cx, epoch, &cut) {
                break;
            }
            cx.mark("calvin.epoch_replayed");
            self.state.inputs.log_skip(cx, epoch);
            self.begin_epoch(cx, epoch, cut);
            while self.state.running.is_some() {
                self.resume_epoch(cx);
            }
            if self.state.inputs.has_failed {
                break;
            }
        }
        self.state.inputs.start(cx, found);
    }

    /// Logs that an epoch runs, so that a restart need not request it from the peers.
    pub(super) fn log_epoch(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion, cut: &Cut) {
        let record = EpochRecord { epoch, cut: Some(cut.clone()), of_shards: None };
        self.state.inputs.log_epoch(cx, epoch, record.encode().into());
    }

    /// Restores the requests of local batches after the applied cut as in flight, except those that
    /// may be void.
    fn restore_in_flight(&mut self) {
        let own = self.state.inputs.own_unapplied().filter(|(_, batch)| !batch.is_of_master);
        let requests = own.flat_map(|(_, batch)| &batch.requests);
        self.state.sequencer.in_flight.extend(requests.map(InFlight::of_an_earlier_life));
    }

    /// Handles a batch of this replica's own log that a peer returned. It will run like any other,
    /// and no client waits for it. Later batches may already be in flight.
    pub(super) fn on_own_batch(&mut self, batch: &Arc<Batch>) {
        if batch.is_of_master {
            return;
        }
        let in_flight = &mut self.state.sequencer.in_flight;
        let first = batch.first_sequence;
        let later = in_flight.split_off(in_flight.partition_point(|it| it.txn.sequence() < first));
        in_flight.extend(batch.requests.iter().map(InFlight::of_an_earlier_life));
        in_flight.extend(later);
    }

    /// Replaces this replica's state by a peer's checkpoint.
    pub(super) fn on_checkpoint(&mut self, cx: &mut Cx<'_, Self>, mut incoming: Incoming) {
        // The rows of a partly applied epoch would remain.
        while self.state.running.is_some() {
            self.resume_epoch(cx);
        }
        self.confirm_epochs(cx);
        if !self.state.inputs.is_of_use(cx, &incoming) {
            return;
        }
        self.state.inputs.discard_undecided(cx);
        self.note_void(cx);
        self.roll_back_to_confirmed(cx);
        // The last epoch that is partly applied.
        let given =
            self.state.shards.as_ref().map_or(incoming.version(), |shards| shards.scheduled_upto);
        if incoming.version() < given {
            cx.mark("calvin.checkpoint_before_given");
            return self.state.inputs.want_checkpoint(given);
        }
        let Ok(handed_on) = self.read_handed_on(&incoming.take_handed_on(), incoming.version())
        else {
            return cx.mark("calvin.malformed_handed_on");
        };
        self.forget_skipped(cx, incoming.configuration().head_of(self.state.inputs.me()));
        self.forget_forwarded(cx);
        // Logged before the local checkpoint, which covers the epochs that led to it.
        self.retain_handed_on(cx, handed_on);
        self.state.inputs.install(cx, incoming);
        self.move_shards(cx);
    }

    /// Drops local requests up to `upto`: they have run on other replicas, and their outcomes are
    /// unknown here.
    fn forget_skipped(&mut self, cx: &mut Cx<'_, Self>, upto: Bid) {
        let skipped = self.state.inputs.own_unapplied().take_while(|(bid, _)| *bid <= upto);
        let Some((_, last)) = skipped.last() else { return };
        let end = last.end_sequence();
        let in_flight = &mut self.state.sequencer.in_flight;
        let count = in_flight.partition_point(|waiting| waiting.txn.sequence() < end);
        for waiting in in_flight.drain(..count) {
            self.state.outcomes.answered -= usize::from(waiting.is_answered);
            if let Some(ticket) = waiting.ticket {
                cx.mark("calvin.outcome_unknown");
                cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
            }
        }
    }
}

impl InFlight {
    /// A request that was accepted and has not run.
    pub(super) fn new(
        txn: TxnId,
        ticket: Option<Ticket>,
        retryable: Option<RetryableRequest>,
    ) -> Self {
        let term = Term::default();
        Self { txn, ticket, term, retryable, is_over: false, is_answered: false }
    }

    /// A request from before a restart, for which no client waits.
    fn of_an_earlier_life(request: &Request) -> Self {
        Self::new(request.txn, None, None)
    }
}
