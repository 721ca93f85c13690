//! Garbage collection (§4) and checkpoints.
//!
//! Replicas tell each other how far they are. A batch that every member of the configuration has
//! applied is dropped from memory. The log of a node is cut off below its last checkpoint, except
//! for what that does not hold.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::messages::Message;
use super::rejoin::{Rejoin, Target};
use super::state::{Collection, Cut, SourceLog, Writing};
use super::{Awaited, Bid, Heads, Host, Inputs, Rules, Timer, decode_heads, encode_heads};
use crate::agreement::Record;

/// How often a replica tells how far it is.
pub(crate) const PROGRESS: Span = Span::from_ms(100);

/// A checkpoint that failed, for want of room most likely, is followed by another after this long.
const REST: Span = Span::from_ms(5_000);

/// At most so many versions are taken out of the store at a time, so that no step is long.
const RECLAIM_VERSIONS_MAX: usize = 50_000;

impl<H: Host> Inputs<H> {
    /// Tells the others how far this replica is, and drops what nobody needs.
    /// `of_epochs` is what epochs that are decided wait for beside their batches.
    pub(crate) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, H>, of_epochs: Vec<Awaited>) {
        cx.set_timer(Timer::Progress.into(), PROGRESS);
        if self.is_asking() {
            return;
        }
        self.note_waits(cx, of_epochs);
        let me = self.me;
        let (applied, durable) = (self.mastery.confirmed.epoch, self.cut.durable);
        // What a crash could take from this replica must stay with the others.
        let logs = self.replication.logs.iter().zip(&self.mastery.confirmed.heads);
        let heads: Heads = logs.map(|(log, head)| log.durable.min(*head)).collect();
        self.note_progress(me, applied, durable, heads.clone());
        for peer in self.topology.peers_of(me) {
            cx.send(
                self.node(peer),
                Message::Progress { applied, durable, heads: heads.clone() }.into(),
            );
        }
        self.tell_turn(cx);
        self.collect(cx);
        self.reclaim(cx);
        self.retry_barriers(cx, None);
        self.leave_backlog(cx);
        self.retry_transfer(cx);
        self.stop_abandoned_transfers(cx.now.at);
    }

    /// Takes out of the store what no reader of the applied epoch sees.
    pub(crate) fn reclaim(&self, cx: &mut Cx<'_, H>) {
        cx.store.reclaim_at_most(self.mastery.confirmed.epoch, RECLAIM_VERSIONS_MAX);
    }

    /// A replica tells how far it is.
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
        self.stop_obsolete_transfer(from, applied);
        self.keep_less(from);
        if is_further {
            // It gets on behind a checkpoint, however long it takes.
            self.note_heard(from, cx.now.at);
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
        collection.heads[node.index()] = heads;
        collection.has_told[node.index()] = true;
    }

    /// How many bytes of batches are here that are kept, by who is ahead, for a replica that has
    /// not applied them, as far as it has told.
    pub(super) fn kept_for(&self, node: NodeId) -> u64 {
        let Collection { heads, has_told, .. } = &self.collection;
        if !has_told[node.index()] {
            return 0;
        }
        let of_log = |(source, log): (usize, &SourceLog<H::Batch>)| {
            let furthest = heads.iter().map(|heads| heads[source]).max().unwrap_or_default();
            log.bytes_between(heads[node.index()][source], furthest)
        };
        self.replication.logs.iter().enumerate().map(of_log).sum()
    }

    /// How many bytes of batches are here, but for those behind a gap.
    pub(super) fn batch_bytes_held(&self) -> u64 {
        let logs = self.replication.logs.iter();
        logs.map(|log| log.bytes_between(log.collected, log.held)).sum()
    }

    /// Drops the batches below the low watermark, and with them what agreement decided of them.
    fn collect(&mut self, cx: &mut Cx<'_, H>) {
        let collection = &self.collection;
        let members = self.members();
        for (source, log) in self.replication.logs.iter_mut().enumerate() {
            let applied = |node: &NodeId| collection.heads[node.index()][source];
            let heads = members.iter().map(applied);
            let watermark =
                if is_planted(Bug::CollectedForOne) { heads.max() } else { heads.min() };
            let watermark = watermark.unwrap_or_default();
            // A replica that was removed does not count and may be ahead or behind. What is not
            // durable here yet has still to be acknowledged.
            let confirmed = self.mastery.confirmed.heads[source];
            let watermark = watermark.min(confirmed).min(log.durable);
            let watermark =
                self.transfer.least_kept(source).map_or(watermark, |kept| kept.min(watermark));
            log.collect(watermark);
        }
        // A restart begins at the durable epoch, and must find the decisions after it.
        let restarts_from = collection.durable.iter().min().copied().unwrap_or_default();
        self.agreement_mut().trim(restarts_from.0);
        self.forget_cuts(cx);
    }

    /// The last epoch that no member of the group will have to run again after a restart.
    pub(crate) fn durable_everywhere(&self) -> SnapshotVersion {
        let durable = |node: NodeId| match node == self.me {
            true => self.cut.durable,
            false => self.collection.durable[node.index()],
        };
        self.members().into_iter().map(durable).min().unwrap_or_default()
    }

    /// Forgets old cuts although a replica may lack them, so that what is kept for one that is away
    /// has an end. As a majority can begin after them, whoever lacks them finds a checkpoint at
    /// some replica of any majority.
    fn forget_cuts(&mut self, cx: &mut Cx<'_, H>) {
        let mut durable = self.collection.durable.clone();
        durable.sort_unstable_by(|a, b| b.cmp(a));
        let on_majority = durable[self.topology.majority() - 1].min(self.cut.durable);
        let kept = self.settings.cuts_kept;
        let upto = on_majority.0.saturating_sub(kept);
        // Not one by one: each time is a record in the log.
        if upto > self.agreement().forgotten() + kept / 8 && self.agreement_mut().compact(upto) {
            cx.mark("inputs.cuts_forgotten");
        }
    }

    /// Asks for a checkpoint when the log has grown enough.
    pub(crate) fn checkpoint_if_due(&mut self, cx: &mut Cx<'_, H>) {
        if self.is_checkpoint_due() && self.may_checkpoint(cx) {
            self.start_checkpoint(cx);
            self.freeze(cx);
        }
    }

    /// Whether the log has grown enough for a checkpoint, and none is being written.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let collection = &self.collection;
        let is_due = collection.bytes_since_checkpoint >= self.settings.checkpoint_bytes;
        // While the log is replayed there is no agreement yet whose state could be kept.
        let is_running = self.cut.agreement.is_some();
        is_due && is_running && collection.writing.is_none() && !collection.rests
    }

    /// Asks for a checkpoint of the applied epoch, as far as that is decided.
    pub(crate) fn start_checkpoint(&mut self, cx: &mut Cx<'_, H>) {
        cx.mark("inputs.checkpoint");
        let confirmed = &self.mastery.confirmed;
        let version = confirmed.epoch;
        let meta = Meta {
            log_head: cx.log_head(),
            heads: if is_planted(Bug::CheckpointOfOldRows) {
                self.replication.logs.iter().map(|log| log.held).collect()
            } else {
                confirmed.heads.clone()
            },
            is_member: confirmed.is_member.clone(),
            births: self.greetings.births.clone(),
            next_sequence: self.next_sequence,
            sequences: self.replication.logs.iter().map(|log| log.next_sequence).collect(),
            rejoin: match &self.rejoin {
                Some(Rejoin::CatchingUp(target)) => Some(target.clone()),
                Some(Rejoin::Asking(_)) | None => None,
            },
            agreement: self.agreement().compacted_records(),
        };
        cx.checkpoint(version, meta.encode());
        // Batches that the checkpoint lacks. Those that come later are further on in the log.
        let logs = self.replication.logs.iter().zip(&meta.heads);
        let lacking = logs.flat_map(|(log, head)| log.slots.range(head.next()..));
        let after = LogPosition(meta.log_head.0 + 1);
        let first = lacking
            .map(|(_, slot)| slot.position)
            .filter(|_| !is_planted(Bug::TruncatedTooFar))
            .chain(self.mastery.early.front().map(|early| early.position))
            .chain(self.collection.kept_from)
            .min()
            .unwrap_or(after)
            .min(after);
        let collection = &mut self.collection;
        let bytes = std::mem::take(&mut collection.bytes_since_checkpoint);
        collection.writing = Some(Writing { version, first_needed: first, bytes });
    }

    /// A checkpoint was not written. This replica goes on, as after one, and takes another of a
    /// later version in some time: as long as it stands still, or keeps what it pins, its memory
    /// and that of others grows.
    pub(crate) fn on_checkpoint_failed(&mut self, cx: &mut Cx<'_, H>, version: SnapshotVersion) {
        let Some(Writing { version: asked, bytes, .. }) = self.collection.writing.take() else {
            return;
        };
        assert_eq!(asked, version, "one checkpoint is written at a time");
        cx.mark("inputs.checkpoint_failed");
        self.counters.checkpoints_failed += 1;
        let collection = &mut self.collection;
        collection.bytes_since_checkpoint = collection.bytes_since_checkpoint.saturating_add(bytes);
        collection.rests = true;
        cx.set_timer(Timer::Checkpoint.into(), REST);
        self.thaw();
    }

    /// It is time for another checkpoint, which the protocol asks for if it is due.
    pub(crate) fn on_checkpoint_timeout(&mut self) {
        self.collection.rests = false;
    }

    /// A checkpoint is durable: the log before it is not needed, except for batches that it lacks.
    pub(crate) fn on_checkpointed(&mut self, cx: &mut Cx<'_, H>, version: SnapshotVersion) {
        let Some(Writing { version: asked, first_needed, .. }) = self.collection.writing.take()
        else {
            return;
        };
        assert_eq!(asked, version, "one checkpoint is written at a time");
        let cut = &mut self.cut;
        if cut.installed.is_none_or(|installed| installed <= version) {
            cut.installed = None;
            cut.durable = cut.durable.max(version).max(cut.logged);
        }
        self.thaw();
        cx.truncate(first_needed);
        // What was taken from a peer meanwhile is not in it, and no epoch may come to ask again.
        self.checkpoint_if_due(cx);
        self.acknowledge(cx, self.replication.synced);
    }
}

impl Collection {
    /// A restart has so many bytes more to read, or to write again.
    pub(crate) fn owe(&mut self, bytes: usize) {
        self.bytes_since_checkpoint = self.bytes_since_checkpoint.saturating_add(bytes as u64);
    }
}

impl<B> SourceLog<B> {
    /// Drops the batches up to `watermark`.
    pub(crate) fn collect(&mut self, watermark: Bid) {
        if watermark > self.collected {
            self.collected = watermark;
            self.slots = self.slots.split_off(&watermark.next());
        }
    }
}

/// What a checkpoint holds beside the tables.
#[derive(Clone, Debug)]
pub(crate) struct Meta<R> {
    /// The log's head when the checkpoint was asked for: agreement's records up to there are in
    /// `agreement`.
    pub log_head: LogPosition,
    /// The log heads of the checkpoint's epoch.
    pub heads: Heads,
    /// Who was in the configuration.
    pub is_member: Vec<bool>,
    /// What is known of the first starts of the replicas.
    pub births: Vec<u64>,
    /// The number of the next local transaction.
    pub next_sequence: u64,
    /// For each log a number that no transaction in it has reached.
    pub sequences: Vec<u64>,
    /// What has to be fetched before this replica has its place again.
    pub rejoin: Option<Target>,
    /// Agreement's state.
    pub agreement: Vec<Record<Cut<R>>>,
}

impl<R: Rules> Meta<R> {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.log_head.0);
        encode_heads(&self.heads, &mut out);
        self.is_member.iter().for_each(|&is_member| out.put_u8(u8::from(is_member)));
        self.births.iter().for_each(|&birth| out.put_u64(birth));
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
        let births = heads.iter().map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let next_sequence = from.u64(WHAT)?;
        let sequences = heads.iter().map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let is_rejoining = from.u8(WHAT)? == 1;
        let rejoin = is_rejoining.then(|| Target::decode(from)).transpose()?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self { log_head, heads, is_member, births, next_sequence, sequences, rejoin, agreement })
    }
}
