//! Garbage collection (Minerva §4) and checkpoints.
//!
//! Replicas report their progress to each other. A batch that every member of the configuration has
//! applied is dropped from memory. A node truncates its log below its last checkpoint, except for
//! records that the checkpoint does not cover.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::messages::Message;
use super::rejoin::Target;
use super::state::Cut;
use super::{Host, Inputs, MissingInput, Rules, Timer};
use crate::agreement::Record;
use crate::checkpoints::REST;
use crate::streams::{Bid, Heads, decode_heads, encode_heads};

/// The interval at which a replica reports its progress.
pub(crate) const PROGRESS: Span = Span::from_ms(100);

/// The maximum number of versions removed from the store at a time, so that no step takes long.
const RECLAIM_VERSIONS_MAX: usize = 50_000;

impl<H: Host> Inputs<H> {
    /// Reports this replica's progress to its peers and drops data that no replica needs.
    /// `of_epochs` lists what decided epochs wait for besides their batches.
    pub(crate) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, H>, of_epochs: Vec<MissingInput>) {
        cx.set_timer(Timer::Progress.into(), PROGRESS);
        if self.presence.is_asking() {
            return;
        }
        self.note_waits(cx, of_epochs);
        let me = self.replica.me;
        let (applied, durable) = (self.cut.confirmed.epoch, self.checkpoints.durable);
        // The other replicas must retain everything that this one could lose in a crash.
        let logs = self.streams.logs.iter().zip(&self.cut.confirmed.heads);
        let heads: Heads = logs.map(|(log, head)| log.durable.min(*head)).collect();
        self.note_progress(me, applied, durable, heads.clone());
        for peer in self.replica.peers() {
            let message = Message::Progress { applied, durable, heads: heads.clone() };
            self.replica.send(cx, peer, message);
        }
        self.announce_stop(cx);
        self.send_digests(cx);
        H::on_progress_sent(self, cx);
        self.collect(cx);
        self.reclaim(cx);
        self.retry_barriers(cx, None);
        self.leave_backlog(cx);
        self.retry_transfer(cx);
        self.stop_abandoned_transfers(cx);
    }

    /// Removes the versions from the store that no reader of the applied epoch sees.
    pub(crate) fn reclaim(&self, cx: &mut Cx<'_, H>) {
        cx.store.reclaim_at_most(self.cut.confirmed.epoch, RECLAIM_VERSIONS_MAX);
    }

    /// Handles the progress report of a peer.
    pub(crate) fn on_progress(
        &mut self,
        cx: &Cx<'_, H>,
        from: NodeId,
        applied: SnapshotVersion,
        durable: SnapshotVersion,
        heads: Heads,
    ) {
        let is_further = applied > self.collection.applied[from.index()];
        self.note_progress(from, applied, durable, heads);
        self.transfer.stop_obsolete(from, applied);
        self.transfer.release_applied(from, &self.streams.applied[from.index()]);
        if is_further {
            // It makes progress after its checkpoint, however long that takes.
            self.transfer.note_heard(from, cx.now.at);
        }
    }

    fn note_progress(
        &mut self,
        node: NodeId,
        applied: SnapshotVersion,
        durable: SnapshotVersion,
        heads: Heads,
    ) {
        let collection = &mut self.collection;
        collection.applied[node.index()] = applied;
        collection.durable[node.index()] = durable;
        self.streams.note_applied(node, heads);
    }

    /// Drops the transfers and the batches of peers that will not catch up.
    fn stop_abandoned_transfers(&mut self, cx: &Cx<'_, H>) {
        let (streams, confirmed) = (&self.streams, &self.cut.confirmed.heads);
        let most = self.settings.behind_bytes;
        let is_too_much = |after: &[Bid]| streams.bytes_between(after, confirmed) > most;
        let is_member = &self.cut.is_member;
        self.transfer.stop_abandoned(&self.replica, cx.now.at, is_member, is_too_much);
    }

    /// Drops the batches below the low watermark (Minerva §4), and the decisions of agreement about
    /// them.
    fn collect(&mut self, cx: &mut Cx<'_, H>) {
        let (members, confirmed) = (self.members(), &self.cut.confirmed.heads);
        let retained = |source| self.transfer.least_retained(source);
        self.streams.collect(&members, confirmed, retained);
        let durable = self.collection.durable.iter();
        // A restart begins at the durable epoch and must find the decisions after it.
        let restarts_from = durable.min().copied().unwrap_or_default();
        self.agreement_mut().trim(restarts_from.0);
        self.forget_cuts(cx);
    }

    /// The last epoch that neither a member of the group nor this replica has to replay after a
    /// restart. What is dropped after this report may be for this replica, also if it is no member.
    pub(crate) fn durable_everywhere(&self) -> SnapshotVersion {
        let others = self.members().into_iter().filter(|node| *node != self.replica.me);
        let durable = others.map(|node| self.collection.durable[node.index()]);
        durable.min().unwrap_or(self.checkpoints.durable).min(self.checkpoints.durable)
    }

    /// Truncates old cuts even if a replica is missing them, so that the data retained for an
    /// unreachable replica is bounded. A majority can restart after these cuts. Therefore a replica
    /// that needs them finds a checkpoint at some member of any majority.
    fn forget_cuts(&mut self, cx: &mut Cx<'_, H>) {
        let mut durable = self.collection.durable.clone();
        durable.sort_unstable_by(|a, b| b.cmp(a));
        let on_majority =
            durable[self.replica.topology.majority() - 1].min(self.checkpoints.durable);
        let cuts_kept = self.settings.cuts_kept;
        let upto = on_majority.0.saturating_sub(cuts_kept);
        // In groups, because each truncation is a record in the log.
        if upto > self.agreement().forgotten() + cuts_kept / 8 && self.agreement_mut().compact(upto)
        {
            cx.mark("inputs.cuts_forgotten");
        }
    }

    /// Requests a checkpoint when the log has grown enough.
    pub(crate) fn checkpoint_if_due(&mut self, cx: &mut Cx<'_, H>) {
        // The log does not contain a state installed from a peer, and no epoch has run on it yet.
        let must = |log: &Self| log.checkpoints.installed.is_some();
        if self.is_checkpoint_due() && (must(self) || H::may_checkpoint(self, cx)) {
            self.start_checkpoint(cx);
            H::on_checkpoint_begun(self, cx);
        }
    }

    /// Whether the log has grown enough for a checkpoint and none is being written.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        // During log replay there is no agreement yet whose state could be saved.
        let is_running = self.cut.driver.is_started();
        is_running && self.checkpoints.is_due(&self.replica, self.settings.checkpoint_bytes)
    }

    /// Requests a checkpoint of the last confirmed epoch.
    pub(crate) fn start_checkpoint(&mut self, cx: &mut Cx<'_, H>) {
        cx.mark("checkpoints.begun");
        let confirmed = &self.cut.confirmed;
        let version = confirmed.epoch;
        let heads = &confirmed.heads;
        let heads = mutate!(CheckpointOfOldRows: heads.clone() => checkpoint_of_old_rows(self));
        let meta = Meta {
            log_head: cx.log_head(),
            heads,
            is_member: confirmed.is_member.clone(),
            log_identities: self.presence.log_identities.clone(),
            next_sequence: self.streams.next_sequence,
            sequences: self.streams.logs.iter().map(|log| log.next_sequence).collect(),
            rejoin: self.target.clone(),
            agreement: self.agreement().compacted_records(),
        };
        cx.checkpoint(version, meta.encode());
        // Batches that the checkpoint does not cover. Later ones are further on in the log.
        let logs = self.streams.logs.iter().zip(&meta.heads);
        let lacking = logs.flat_map(|(log, head)| log.slots.range(head.next()..));
        let lacking = lacking.map(|(_, slot)| slot.position).min();
        let lacking = mutate!(TruncatedTooFar: lacking => None);
        let after = LogPosition(meta.log_head.0 + 1);
        let first = lacking
            .into_iter()
            .chain(H::first_needed(self))
            .chain(self.skips.first_needed(version))
            .chain(self.collection.kept_from)
            .min()
            .unwrap_or(after)
            .min(after);
        self.checkpoints.begin(&mut self.replica, version, first);
    }

    /// Handles a failed checkpoint.
    pub(crate) fn on_checkpoint_failed(&mut self, cx: &mut Cx<'_, H>, version: SnapshotVersion) {
        if !self.checkpoints.on_failed(&mut self.replica, version) {
            return;
        }
        cx.mark("checkpoints.failed");
        self.counters.checkpoints_failed += 1;
        cx.set_timer(Timer::Checkpoint.into(), REST);
        H::on_checkpoint_ended(self);
    }

    /// Allows another checkpoint, which the protocol requests if it is due.
    pub(crate) fn on_checkpoint_timeout(&mut self) {
        self.checkpoints.rests = false;
    }

    /// Handles a durable checkpoint: the log before it is not needed, except for batches that it
    /// does not cover.
    pub(crate) fn on_checkpointed(&mut self, cx: &mut Cx<'_, H>, version: SnapshotVersion) {
        let Some(first_needed) = self.checkpoints.on_written(version) else { return };
        self.skips.forget(version);
        self.streams.has_skipped = self.checkpoints.installed.is_some();
        H::on_checkpoint_ended(self);
        if !self.is_refusing() {
            // The program of the refused epochs needs their records.
            cx.truncate(first_needed);
        }
        // It does not contain state installed from a peer in the meantime, and no epoch may follow
        // to trigger the next one.
        self.checkpoint_if_due(cx);
        self.streams.acknowledge(cx, &self.replica, self.streams.synced);
    }
}

/// The contents of a checkpoint in addition to the tables.
#[derive(Clone, Debug)]
pub(crate) struct Meta<R> {
    /// The log's head when the checkpoint was requested: agreement's records up to it are in
    /// `agreement`.
    pub log_head: LogPosition,
    /// The log heads of the checkpoint's epoch.
    pub heads: Heads,
    /// Whether each replica was in the configuration.
    pub is_member: Vec<bool>,
    /// The known log identities of the replicas.
    pub log_identities: Vec<u64>,
    /// The number of the next local transaction.
    pub next_sequence: u64,
    /// For each log, a number above those of all of its transactions.
    pub sequences: Vec<u64>,
    /// The data to fetch before this replica has rejoined.
    pub rejoin: Option<Target>,
    /// The state of agreement.
    pub agreement: Vec<Record<Cut<R>>>,
}

impl<R: Rules> Meta<R> {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.log_head.0);
        encode_heads(&self.heads, &mut out);
        self.is_member.iter().for_each(|&is_member| out.put_u8(u8::from(is_member)));
        self.log_identities.iter().for_each(|&log_identity| out.put_u64(log_identity));
        out.put_u64(self.next_sequence);
        self.sequences.iter().for_each(|&sequence| out.put_u64(sequence));
        out.put_u8(u8::from(self.rejoin.is_some()));
        self.rejoin.iter().for_each(|target| target.encode(&mut out));
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "checkpoint meta data";
        let from = &mut Reader::new(bytes);
        let log_head = LogPosition(from.u64(WHAT)?);
        let heads = decode_heads(from)?;
        let is_member = heads.iter().map(|_| Ok(from.u8(WHAT)? == 1)).collect::<Result<_, _>>()?;
        let log_identities = heads.iter().map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let next_sequence = from.u64(WHAT)?;
        let sequences = heads.iter().map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let is_rejoining = from.u8(WHAT)? == 1;
        let rejoin = is_rejoining.then(|| Target::decode(from)).transpose()?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self {
            log_head,
            heads,
            is_member,
            log_identities,
            next_sequence,
            sequences,
            rejoin,
            agreement,
        })
    }
}

fn checkpoint_of_old_rows<H: Host>(inputs: &Inputs<H>) -> Heads {
    inputs.streams.logs.iter().map(|log| log.received).collect()
}
