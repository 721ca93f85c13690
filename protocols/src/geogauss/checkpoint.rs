//! Checkpoints: of this replica, and of peers (Minerva §4; the paper has none).
//!
//! ```text
//!   log: | batches, epochs .. | checkpoint at epoch c | batches, epochs .. |
//!        ^ truncated up to the first batch that the checkpoint does not cover
//! ```
//!
//! The state of an epoch is the rows, the batches up to it, and the deletions within the horizon.
//! A checkpoint contains the view, the seal and the state of agreement in addition: they are those
//! of its log position, which may be later.
//!
//! A replica that needs batches which its peers have dropped installs a peer's checkpoint
//! ([`crate::transfer`]), and enters the peer's view if that is later than its own.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Checkpoint, Cx};
use pangea_core::txn::Outcome;

use super::deletions::Deletions;
use super::knowledge::Configured;
use super::lineage::{Base, Lineages};
use super::membership::Sealed;
use super::state::{Applied, State};
use super::views::Change;
use super::{GeoGauss, Timer};
use crate::agreement::Record;
use crate::checkpoints::REST;
use crate::digests::Digests;
use crate::inputs::{Target, outcome_unknown};
use crate::messages::NUMBER_MAX;
use crate::replica::INTACT;
use crate::streams::{Bid, Heads, are_heads, decode_heads, encode_heads, lost_batches};
use crate::transfer;

/// A checkpoint of a peer that has arrived.
pub(super) type Incoming = transfer::Incoming<Configuration>;

/// The state of an epoch that a replica needs in addition to the tables and the deletions.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    heads: Heads,
    /// For each log, a number above those of all of its transactions.
    sequences: Vec<u64>,
    configured: Configured,
}

/// The contents of a checkpoint in addition to the tables.
#[derive(Debug)]
pub(super) struct Meta {
    /// The log's head when the checkpoint was requested: earlier records of the view, the seal and
    /// agreement are part of it.
    pub log_head: LogPosition,
    pub configuration: Configuration,
    pub log_identities: Vec<u64>,
    pub own_head: Bid,
    pub next_sequence: u64,
    pub reserved: SnapshotVersion,
    pub has_no_life: bool,
    pub rejoin: Option<Target>,
    pub sealed: Option<Sealed>,
    pub agreement: Vec<Record<Change>>,
    pub deletions: Deletions,
    pub lineages: Lineages,
}

/// The part of a restart's state that the checkpoint determines.
pub(super) struct Restored {
    /// Earlier records of the view, the seal and agreement are part of the checkpoint.
    pub log_head: LogPosition,
    pub agreement: Vec<Record<Change>>,
}

impl Configuration {
    /// The state with these parts, for tests.
    #[cfg(test)]
    pub(super) fn of(heads: Heads, sequences: Vec<u64>, configured: Configured) -> Self {
        Self { heads, sequences, configured }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode_heads(&self.heads, &mut out);
        self.sequences.iter().for_each(|&sequence| out.put_varint(sequence));
        self.configured.encode(&mut out);
        out
    }
}

impl transfer::Configuration for Configuration {
    fn decode(from: &mut Reader<'_>, node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "checkpoint chunk";
        let heads = decode_heads(from)?;
        if !are_heads(&heads, node_count) {
            return Err(DecodeError::new(WHAT));
        }
        let sequences: Vec<u64> =
            heads.iter().map(|_| from.varint(WHAT)).collect::<Result<_, _>>()?;
        if sequences.iter().any(|number| *number > NUMBER_MAX) {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { heads, sequences, configured: Configured::decode(from, node_count)? })
    }
}

impl State {
    fn configuration(&self) -> Configuration {
        Configuration {
            heads: self.confirmed().heads.clone(),
            sequences: self.streams.logs.iter().map(|log| log.next_sequence).collect(),
            configured: self.configured(),
        }
    }

    /// Starts from a checkpoint of this replica, after a restart.
    pub(super) fn restore_checkpoint(
        &mut self,
        cx: &Cx<'_, GeoGauss>,
        checkpoint: &Checkpoint,
    ) -> Restored {
        let node_count = self.replica.topology.node_count();
        let meta = Meta::decode(&checkpoint.meta, node_count).expect(INTACT);
        let Configuration { heads, sequences, configured } = meta.configuration;
        self.configure(configured);
        self.membership.own_head = meta.own_head;
        self.membership.has_no_life = meta.has_no_life;
        self.streams.skip_to(&heads, &sequences);
        self.streams.next_sequence = meta.next_sequence;
        self.presence.log_identities = meta.log_identities;
        self.epochs.reserved = meta.reserved;
        if let Some(sealed) = meta.sealed {
            self.restore_seal(sealed);
        }
        if let Some(target) = meta.rejoin {
            self.aim_at(target);
        }
        let version = checkpoint.version;
        let (deletions, lineages) = (meta.deletions, meta.lineages);
        self.applied = Applied { epoch: version, heads, deletions, lineages };
        self.checkpoints.start_from(version);
        if cx.store.published() < version {
            cx.store.publish_alone(version);
        }
        Restored { log_head: meta.log_head, agreement: meta.agreement }
    }

    /// The lowest epoch at which a checkpoint would be useful; `None` if none is needed.
    fn least_needed(&mut self) -> Option<SnapshotVersion> {
        if let Some((refused, _)) = self.refused.filter(|_| self.is_refusing()) {
            return Some(refused);
        }
        self.streams.are_gone(&self.replica).then(|| self.applied.epoch.next())
    }

    /// Whether a received checkpoint advances this replica.
    fn is_of_use(&self, cx: &mut Cx<'_, GeoGauss>, incoming: &Incoming) -> bool {
        let reported = incoming.configuration().heads[self.replica.me.index()];
        let created = self.streams.own_head(&self.replica).max(self.membership.own_head);
        if reported > created {
            cx.stop(lost_batches(self.replica.node(incoming.from()), reported, created));
            return false;
        }
        if incoming.version() <= self.applied.epoch {
            cx.mark("geogauss.checkpoint_too_old");
            return false;
        }
        true
    }
}

impl GeoGauss {
    /// Requests a checkpoint when the log has grown enough.
    pub(super) fn checkpoint_if_due(&mut self, cx: &mut Cx<'_, Self>) {
        let State { checkpoints, replica, options, membership, .. } = &self.state;
        let is_due = checkpoints.is_due(replica, options.checkpoint_bytes);
        if is_due && membership.driver.is_started() && self.state.confirmed().epoch.0 > 0 {
            self.start_checkpoint(cx);
        }
    }

    /// Requests a checkpoint of the confirmed epoch.
    pub(super) fn start_checkpoint(&mut self, cx: &mut Cx<'_, Self>) {
        cx.mark("checkpoints.begun");
        let state = &mut self.state;
        let Applied { epoch: version, deletions, lineages, .. } = state.confirmed().clone();
        let meta = Meta {
            log_head: cx.log_head(),
            configuration: state.configuration(),
            log_identities: state.presence.log_identities.clone(),
            own_head: state.membership.own_head,
            next_sequence: state.streams.next_sequence,
            reserved: state.last_reserved(),
            has_no_life: state.membership.has_no_life,
            rejoin: state.target.clone(),
            sealed: state.membership.sealed.clone(),
            agreement: state.membership.driver.agreement().compacted_records(),
            deletions: mutate!(DeletionsNotKept: deletions => Deletions::default()),
            lineages,
        };
        cx.checkpoint(version, meta.encode());
        // Batches that the checkpoint does not cover. Later ones are further on in the log.
        let logs = state.streams.logs.iter().zip(&state.confirmed().heads);
        let lacking = logs.flat_map(|(log, head)| log.slots.range(head.next()..));
        let lacking = lacking.map(|(_, slot)| slot.position);
        let lacking = lacking.chain(state.skips.first_needed(version)).min();
        let after = LogPosition(meta.log_head.0 + 1);
        let first = lacking.unwrap_or(after).min(after);
        state.checkpoints.begin(&mut state.replica, version, first);
    }

    pub(super) fn on_checkpoint_failed(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion) {
        let State { checkpoints, replica, counters, .. } = &mut self.state;
        if checkpoints.on_failed(replica, version) {
            cx.mark("checkpoints.failed");
            counters.checkpoints_failed += 1;
            cx.set_timer(Timer::Checkpoint, REST);
        }
    }

    /// A checkpoint is durable: the log before it is not needed, except for batches that it does
    /// not cover.
    pub(super) fn on_checkpointed(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion) {
        let State { checkpoints, streams, replica, skips, .. } = &mut self.state;
        let Some(first_needed) = checkpoints.on_written(version) else { return };
        streams.has_skipped = checkpoints.installed.is_some();
        skips.forget(version);
        cx.truncate(first_needed);
        streams.acknowledge(cx, replica, streams.synced);
    }

    /// Requests a peer's checkpoint if one is needed and none is in transfer.
    pub(super) fn retry_transfer(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.presence.is_ready {
            return;
        }
        let Some(least) = self.state.least_needed() else {
            return self.state.transfer.call_off(cx);
        };
        let State { replica, membership, transfer, .. } = &mut self.state;
        let is_ahead = |peer: &NodeId| {
            replica.is_up[peer.index()] && membership.progress_of(*peer).applied >= least
        };
        let ahead: Vec<_> = replica.peers().filter(is_ahead).collect();
        transfer.retry(cx, replica, least, &ahead);
    }

    /// Starts to send the state of the confirmed epoch to a peer.
    pub(super) fn send_checkpoint(&mut self, cx: &mut Cx<'_, Self>, to: (NodeId, u64)) {
        let configuration = self.state.configuration();
        let mut rest = Vec::new();
        let confirmed = self.state.confirmed();
        confirmed.deletions.encode(&mut rest);
        confirmed.lineages.encode(&mut rest);
        let pin = cx.store.pin_at(confirmed.epoch).expect("the confirmed version is published");
        let State { transfer, replica, .. } = &mut self.state;
        let state = (pin, &configuration.encode()[..], rest.into());
        transfer.send_checkpoint(cx, replica, to, state, configuration.heads);
    }

    /// Installs a peer's checkpoint as this replica's state.
    pub(super) fn on_checkpoint(&mut self, cx: &mut Cx<'_, Self>, mut incoming: Incoming) {
        if !self.state.is_of_use(cx, &incoming) {
            return;
        }
        let handed_on = incoming.take_handed_on();
        let from = &mut Reader::new(&handed_on);
        let deletions = Deletions::decode(from);
        let (Ok(deletions), Ok(lineages)) = (deletions, Lineages::decode(from)) else {
            return cx.mark("geogauss.malformed_checkpoint");
        };
        let configured = incoming.configuration().configured.clone();
        if configured.decision > self.state.membership.decision {
            self.enter_view(cx, |state| state.configure(configured));
        }
        self.close_early_batch(cx);
        let state = &mut self.state;
        let (version, configuration) = incoming.install(cx.store, state.applied.epoch);
        state.streams.skip_to(&configuration.heads, &configuration.sequences);
        self.forget_skipped(cx, configuration.heads[self.state.me().index()], &lineages);
        let state = &mut self.state;
        let heads = configuration.heads;
        state.applied = Applied { epoch: version, heads, deletions, lineages };
        state.confirm_applied();
        if state.early.is_some() {
            cx.lineage(version, state.applied.lineages.last, true);
        }
        state.epochs.skip_to(version.next());
        cx.store.publish_alone(version);
        state.counters.checkpoints_installed += 1;
        cx.mark("geogauss.checkpoint_installed");
        Digests::begin(cx, &state.replica);
        state.checkpoints.note_installed(&mut state.replica, version);
        state.streams.has_skipped = true;
        self.checkpoint_if_due(cx);
    }

    /// Drops local transactions in batches up to this one: they have committed or aborted on other
    /// replicas, and their outcomes are unknown here. One that was acknowledged has committed, if
    /// its epoch has the same lineage there.
    fn forget_skipped(&mut self, cx: &mut Cx<'_, Self>, upto: Bid, lineages: &Lineages) {
        self.state.execution.overlay.clear();
        let own = self.state.streams.own(&self.state.replica);
        let next = own.slots.range(upto.next()..).next().map(|(_, slot)| slot.batch.first_sequence);
        let next = next.unwrap_or(self.state.streams.next_sequence);
        let current = self.state.execution.current.first().map(|it| it.inputs.txn.sequence());
        let next = current.map_or(next, |current| current.min(next));
        while let Some(skipped) =
            self.state.execution.in_flight.pop_front_if(|it| it.txn.sequence() < next)
        {
            if let Some(lineage) = skipped.answered {
                if !lineages.has(Base { epoch: skipped.epoch, lineage }) {
                    cx.lost_commit(skipped.txn, false);
                }
                continue;
            }
            cx.mark("geogauss.outcome_unknown");
            cx.reply(skipped.job.ticket, Outcome::Aborted(outcome_unknown()));
        }
    }
}

impl Meta {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.log_head.0);
        out.put_bytes(&self.configuration.encode());
        self.log_identities.iter().for_each(|&log_identity| out.put_u64(log_identity));
        out.put_varint(self.own_head.0);
        out.put_varint(self.next_sequence);
        out.put_varint(self.reserved.0);
        out.put_u8(self.has_no_life.into());
        out.put_u8(self.rejoin.is_some().into());
        self.rejoin.iter().for_each(|target| target.encode(&mut out));
        out.put_u8(self.sealed.is_some().into());
        self.sealed.iter().for_each(|sealed| sealed.encode(&mut out));
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        self.deletions.encode(&mut out);
        self.lineages.encode(&mut out);
        out.into()
    }

    pub(super) fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "checkpoint meta data";
        let from = &mut Reader::new(bytes);
        let log_head = LogPosition(from.u64(WHAT)?);
        let configuration = &mut Reader::new(from.bytes(WHAT)?);
        let configuration =
            <Configuration as transfer::Configuration>::decode(configuration, node_count)?;
        let log_identities = (0..node_count).map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let own_head = Bid(from.varint(WHAT)?);
        let next_sequence = from.varint(WHAT)?;
        let reserved = SnapshotVersion(from.varint(WHAT)?);
        let has_no_life = from.u8(WHAT)? == 1;
        let is_rejoining = from.u8(WHAT)? == 1;
        let rejoin = is_rejoining.then(|| Target::decode(from)).transpose()?;
        let is_sealed = from.u8(WHAT)? == 1;
        let sealed = is_sealed.then(|| Sealed::decode(from, node_count)).transpose()?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let deletions = Deletions::decode(from)?;
        let lineages = Lineages::decode(from)?;
        Ok(Self {
            log_head,
            configuration,
            log_identities,
            own_head,
            next_sequence,
            reserved,
            has_no_life,
            rejoin,
            sealed,
            agreement,
            deletions,
            lineages,
        })
    }
}
