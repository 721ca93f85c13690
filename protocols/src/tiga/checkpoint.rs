//! Checkpoints: of this replica, and of peers (§4, and Algorithm 6 of the technical report).
//!
//! ```text
//!   log: | transactions, cells .. | checkpoint at cell c | transactions, cells .. |
//!        ^ all of this is in the checkpoint
//! ```
//!
//! The rows of a checkpoint are those of the last published cell. In addition it contains all of
//! this replica's state that a restart needs: the cells after it, transactions that are in no cell
//! up to it, which of them arrived in time, the ceiling, the promised view, the state of agreement,
//! and the transactions that are over (`done.rs`). So no earlier record of the log is needed. A
//! restart has no hash of entries before the checkpoint, and tells none until the window has passed
//! (`hashes.rs`).
//!
//! A replica that needs cells which its leader has forgotten takes a peer's checkpoint
//! ([`crate::transfer`]). Its own log continues from there, in the view that it had: with the
//! beginning of a later view's log it could seem to have a better log than one that is complete in
//! the view before. Until a checkpoint of this replica contains the peer's one, nothing after it
//! survives a restart, and the replica does not tell that its log is durable.
//!
//! A transaction of this replica that the peer's checkpoint contains was not run here. Its client
//! is told that the outcome is unknown.
//!
//! With several shards a checkpoint also has what other shards may need (`shards/checkpoint.rs`).

use std::collections::BTreeSet;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::{Checkpoint, Cx};
use pangea_core::txn::Outcome;

use super::ceiling::Limit;
use super::decided::{Decided, View};
use super::done::Done;
use super::log::{Position, Suffix, ViewNumber};
use super::rebuild::Entry;
use super::rejoin::Replaced;
use super::shards::ForOthers;
use super::stamp::Stamp;
use super::state::State;
use super::transactions::{self, Stamped};
use super::{Tiga, Timer};
use crate::agreement::Record;
use crate::checkpoints::REST;
use crate::digests::Digests;
use crate::inputs::outcome_unknown;
use crate::replica::INTACT;
use crate::streams::{Bid, number};
use crate::transfer;

/// A checkpoint of a peer that has arrived.
pub(super) type Incoming = transfer::Incoming<Configuration>;

/// The part of a peer's checkpoint that comes before the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Configuration {
    /// The position of the last cell that it contains.
    pub(super) position: Position,
}

/// The contents of a checkpoint of this replica in addition to the tables.
#[derive(Debug)]
pub(super) struct Meta {
    /// The log's head when the checkpoint was requested: earlier records are part of it.
    pub log_head: LogPosition,
    /// The cells after the checkpoint.
    pub suffix: Suffix,
    /// The end of an earlier log, and its view.
    pub had: (ViewNumber, Position),
    pub view: View,
    /// The last view among the decisions taken.
    pub decided: Option<ViewNumber>,
    /// The last view whose logs are decided, the view of those that they continue, and these logs.
    pub started: (ViewNumber, ViewNumber, Vec<Bytes>),
    pub told: Stamp,
    /// The transactions that arrived in time in the view of the log.
    pub in_time: Vec<Entry>,
    pub limit: Limit,
    pub done: Done,
    pub log_identities: Vec<u64>,
    pub replaced: Option<Replaced>,
    pub agreement: Vec<Record<Decided>>,
    /// The transactions that are in no cell up to the checkpoint.
    pub transactions: Bytes,
    /// The position up to which no view can change the log.
    pub settled: Position,
    /// With several shards: what it retains for the others, and the rows that it has used of them
    /// after the checkpoint.
    pub of_shards: (Bytes, Bytes),
}

/// The part of a restart's state that the checkpoint determines.
#[derive(Default)]
pub(super) struct Restored {
    /// Earlier records are part of the checkpoint.
    pub log_head: LogPosition,
    pub agreement: Vec<Record<Decided>>,
    pub told: Stamp,
    pub in_time: Vec<Entry>,
}

impl transfer::Configuration for Configuration {
    fn decode(from: &mut Reader<'_>, _: usize) -> Result<Self, DecodeError> {
        Ok(Self { position: Position(number(from, "checkpoint chunk")?) })
    }
}

impl transfer::Host for Tiga {
    type Configuration = Configuration;
}

impl State {
    /// The transactions that are over in the last published state.
    fn done_when_published(&self) -> Done {
        let mut done = self.done.clone();
        let contained = self.log.base().0 + 1..=self.commit.published.0;
        let stamp_of = |txn| self.transactions.stamp_of(txn);
        contained.for_each(|position| done.note(self.log.cell(Position(position)), stamp_of));
        done
    }

    fn meta(&self, log_head: LogPosition, version: SnapshotVersion) -> Meta {
        let position = self.commit.published;
        let is_needed = |stamped: &&Stamped| {
            let place = self.log.place_of(stamped.request.txn);
            place.is_none_or(|place| place > position)
        };
        let all = self.transactions.iter().map(|stamped| &**stamped);
        let needed: Vec<&Stamped> = all.filter(is_needed).collect();
        Meta {
            log_head,
            suffix: self.log.suffix(position),
            had: self.log.had(),
            view: self.views.view.clone(),
            decided: self.views.decided,
            started: (self.views.started, self.views.base, self.views.logs.clone()),
            told: self.fast.told_at_most(),
            in_time: self.fast.unsynced(),
            limit: self.ceiling.last(),
            log_identities: self.presence.log_identities.clone(),
            replaced: self.replaced,
            agreement: self.views.driver.agreement().compacted_records(),
            transactions: transactions::encode(needed.into_iter()),
            done: self.done_when_published(),
            settled: self.settled(),
            of_shards: (self.for_others(version).encode(), self.rows_used()),
        }
    }

    /// Starts from a checkpoint of this replica, after a restart.
    pub(super) fn restore_checkpoint(
        &mut self,
        cx: &Cx<'_, Tiga>,
        checkpoint: &Checkpoint,
    ) -> Restored {
        let counts = (self.replica.topology.node_count(), self.cluster.node_count());
        let meta = Meta::decode(&checkpoint.meta, counts).expect(INTACT);
        let (version, position) = (checkpoint.version, meta.suffix.after);
        for stamped in transactions::decode(&meta.transactions).expect(INTACT) {
            self.transactions.insert(stamped.into());
        }
        self.log.start_from((position, version), meta.had);
        self.log.replace(meta.suffix, meta.log_head);
        (self.views.view, self.done, self.replaced) = (meta.view, meta.done, meta.replaced);
        (self.views.started, self.views.base, self.views.logs) = meta.started;
        self.views.decided = meta.decided;
        self.ceiling.restore(meta.limit);
        self.presence.log_identities = meta.log_identities;
        self.move_to(position);
        self.saved = position;
        self.settled = meta.settled;
        self.restore_shards(version, (&meta.of_shards.0, &meta.of_shards.1));
        self.checkpoints.start_from(version);
        if cx.store.published() < version {
            cx.store.publish_alone(version);
        }
        let Meta { log_head, agreement, told, in_time, .. } = meta;
        Restored { log_head, agreement, told, in_time }
    }

    /// All cells up to a position are published here.
    fn move_to(&mut self, position: Position) {
        let commit = &mut self.commit;
        commit.committed = commit.committed.max(position);
        (commit.executed, commit.published, commit.strayed) = (position, position, Position(0));
        self.sizes.restart_at(position);
    }

    /// The peers that have a checkpoint which this replica needs, best first; `None` if it needs
    /// none.
    fn needed_checkpoint(&self) -> Option<Vec<NodeId>> {
        let (replica, views) = (&self.replica, &self.views);
        // Up to here, this replica's log is that of the view.
        let has = if self.is_normal() { self.log.last() } else { self.commit.committed };
        let leader = self.leader().and_then(|node| replica.group.member(node));
        let is_asked = |peer: &NodeId| match leader {
            // It needs the logs of the others.
            Some(leader) if leader == replica.me => self.leading.is_none(),
            Some(leader) if self.is_normal() || self.lacks_start() => leader == *peer,
            _ => true,
        };
        let up = replica.voting_peers().filter(|peer| replica.is_up[peer.index()]);
        let up: Vec<NodeId> = up.collect();
        let kept = |peer: &NodeId| views.told_by(replica, *peer).kept;
        let firsts = up.iter().filter(|peer| is_asked(peer)).map(|peer| kept(peer).first);
        let first = firsts.max().filter(|first| *first > has);
        let foreign = self.first_foreign().map(|(position, _)| position);
        let missed = self.missed_rows().and_then(|_| self.last_begun());
        let first = first.max(foreign).max(missed)?;
        let has_it = |peer: &NodeId| kept(peer).published >= first;
        // A leader keeps the cells after the checkpoint that it sends.
        let is_leader = |peer: &NodeId| Some(*peer) == leader && has_it(peer);
        if let Some(leader) = up.iter().find(|peer| is_leader(peer)) {
            return Some(vec![*leader]);
        }
        Some(up.into_iter().filter(has_it).collect())
    }

    /// The data beside the rows in a peer's checkpoint of a version.
    fn read_handed_on(&self, bytes: &Bytes, version: SnapshotVersion) -> Option<(ForOthers, Done)> {
        let from = &mut Reader::new(bytes);
        let for_others = bytes.slice_ref(from.bytes("data for other shards").ok()?);
        let for_others = self.read_for_others(&for_others, version)?;
        Some((for_others, Done::decode(from, self.cluster.node_count()).ok()?))
    }

    /// With several shards, the last position whose cell was begun: a checkpoint of an earlier one
    /// would lack some of its writes.
    fn last_begun(&self) -> Option<Position> {
        let begun = self.shards.as_ref().map(|shards| shards.scheduled());
        mutate!(BegunForgotten: begun => begun.map(|_| Position(self.commit.published.0 + 1)))
    }

    /// Whether a received checkpoint advances this replica.
    fn is_of_use(&self, cx: &mut Cx<'_, Tiga>, incoming: &Incoming) -> bool {
        let is_ahead = incoming.version() > cx.store.published();
        let Configuration { position } = *incoming.configuration();
        let is_ahead = is_ahead && position > self.commit.published;
        let is_ahead = is_ahead && self.last_begun().is_none_or(|begun| begun <= position);
        let is_of_use = is_ahead && self.needed_checkpoint().is_some();
        if !is_of_use {
            cx.mark("tiga.checkpoint_of_no_use");
        }
        is_of_use
    }
}

impl Tiga {
    /// Requests a checkpoint when the log has grown enough.
    pub(super) fn checkpoint_if_due(&mut self, cx: &mut Cx<'_, Self>) {
        let State { checkpoints, replica, options, presence, .. } = &self.state;
        let is_due = checkpoints.is_due(replica, options.checkpoint_bytes);
        if is_due && presence.is_ready && cx.store.published() > checkpoints.last {
            self.start_checkpoint(cx);
        }
    }

    /// Requests a checkpoint of the last published cell.
    pub(super) fn start_checkpoint(&mut self, cx: &mut Cx<'_, Self>) {
        cx.mark("checkpoints.begun");
        self.state.drop_orphans();
        let version = cx.store.published();
        let meta = self.state.meta(cx.log_head(), version);
        let first_needed = LogPosition(meta.log_head.0 + 1);
        cx.checkpoint(version, meta.encode());
        self.state.saving = meta.suffix.after;
        let State { checkpoints, replica, .. } = &mut self.state;
        checkpoints.begin(replica, version, first_needed);
    }

    pub(super) fn on_checkpoint_failed(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion) {
        let State { checkpoints, replica, .. } = &mut self.state;
        if checkpoints.on_failed(replica, version) {
            cx.mark("checkpoints.failed");
            cx.set_timer(Timer::Checkpoint, REST);
        }
    }

    /// A checkpoint is durable: the log before it is not needed.
    pub(super) fn on_checkpointed(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion) {
        let State { checkpoints, log, saved, saving, .. } = &mut self.state;
        let Some(first_needed) = checkpoints.on_written(version) else { return };
        let is_whole = checkpoints.installed.is_none();
        cx.truncate(first_needed);
        *saved = *saving;
        if is_whole && log.end_skip() {
            if let Some(shards) = &mut self.state.shards {
                shards.keep_logged(&self.state.log);
            }
            self.tell_synced(cx);
        }
    }

    /// Requests a peer's checkpoint if one is needed and none is in transfer.
    pub(super) fn retry_transfer(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.presence.is_ready {
            return;
        }
        let Some(ahead) = self.state.needed_checkpoint() else {
            return self.state.transfer.call_off(cx);
        };
        let begun = self.state.last_begun().map(|begun| self.state.log.version_at(begun));
        let least = cx.store.published().next().max(begun.unwrap_or_default());
        let State { replica, transfer, .. } = &mut self.state;
        transfer.retry(cx, replica, least, &ahead);
    }

    /// Handles a message about a transfer.
    pub(super) fn on_transfer(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        message: transfer::Message,
    ) {
        let State { transfer, replica, .. } = &mut self.state;
        match transfer.on_message(cx, replica, from, message) {
            Some(transfer::Event::Checkpoint(incoming)) => self.on_checkpoint(cx, incoming),
            Some(transfer::Event::Asked { from, transfer }) => {
                self.send_checkpoint(cx, (from, transfer));
            }
            Some(transfer::Event::Lost) => self.retry_transfer(cx),
            None => {}
        }
    }

    /// Starts to send the last published state to a peer.
    fn send_checkpoint(&mut self, cx: &mut Cx<'_, Self>, to: (NodeId, u64)) {
        let (version, position) = (cx.store.published(), self.state.commit.published);
        let (mut configuration, mut handed_on) = (Vec::new(), Vec::new());
        configuration.put_varint(position.0);
        handed_on.put_bytes(&self.state.for_others(version).encode());
        self.state.done_when_published().encode(&mut handed_on);
        let pin = cx.store.pin_at(version).expect("the last published version is readable");
        let State { transfer, replica, .. } = &mut self.state;
        let state = (pin, &configuration[..], handed_on.into());
        transfer.send_checkpoint(cx, replica, to, state, vec![Bid(position.0)]);
    }

    /// Installs a peer's checkpoint as this replica's state.
    fn on_checkpoint(&mut self, cx: &mut Cx<'_, Self>, mut incoming: Incoming) {
        if !self.state.is_of_use(cx, &incoming) {
            return;
        }
        let handed_on = incoming.take_handed_on();
        let Some((for_others, done)) = self.state.read_handed_on(&handed_on, incoming.version())
        else {
            return cx.mark("tiga.malformed_checkpoint");
        };
        self.retreat(cx);
        let (version, Configuration { position }) =
            incoming.install(cx.store, cx.store.published());
        let state = &mut self.state;
        let told = state.fast.told_at_most();
        state.done.merge(done);
        let skipped = state.log.skip_to(position, version);
        let in_time = state.fast.unsynced();
        state.incoming.skip_to(position);
        state.move_to(position);
        self.move_shards(cx, for_others);
        let state = &mut self.state;
        state.note_foreign(position);
        state.foreign = state.foreign.split_off(&position);
        cx.store.publish_alone(version);
        state.continue_fast_path(told, in_time);
        state.drop_bodies(&skipped);
        state.follow_log(cx);
        if self.state.lacks_start() {
            self.take_start(cx);
        }
        self.send_view_change(cx);
        self.forget_skipped(cx);
        cx.mark("tiga.checkpoint_installed");
        let State { replica, checkpoints, counters, .. } = &mut self.state;
        counters.checkpoints_installed += 1;
        Digests::begin(cx, replica);
        checkpoints.note_installed(replica, version);
        // The leader continues from there.
        self.send_progress(cx);
    }

    /// Answers the clients of transactions that the checkpoint contains: their outcomes are unknown
    /// here.
    fn forget_skipped(&mut self, cx: &mut Cx<'_, Self>) {
        let State { coordinator, done, .. } = &mut self.state;
        let published = cx.store.published();
        coordinator.unsettled.retain(|txn, cell| !done.contains(*txn) && *cell > published);
        let skipped = coordinator.in_flight.keys().filter(|txn| done.contains(**txn));
        let skipped: BTreeSet<TxnId> = skipped.copied().collect();
        for txn in skipped {
            let Some(own) = coordinator.in_flight.remove(&txn) else { continue };
            cx.mark("tiga.outcome_unknown");
            cx.reply(own.ticket, Outcome::Aborted(outcome_unknown()));
        }
    }
}

impl Meta {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.log_head.0);
        out.put_bytes(&self.suffix.encode());
        out.put_varint(self.had.0.0);
        out.put_varint(self.had.1.0);
        self.view.encode(&mut out);
        out.put_varint(self.decided.map_or(0, |decided| decided.0 + 1));
        out.put_varint(self.started.0.0);
        out.put_varint(self.started.1.0);
        out.put_varint(self.started.2.len() as u64);
        self.started.2.iter().for_each(|log| out.put_bytes(log));
        out.put_u64(self.told.to_bits());
        out.put_varint(self.in_time.len() as u64);
        for Entry { stamp, txn } in &self.in_time {
            out.put_u64(stamp.to_bits());
            out.put_u64(txn.to_bits());
        }
        out.put_bytes(&self.limit.encode());
        self.done.encode(&mut out);
        self.log_identities.iter().for_each(|&log_identity| out.put_u64(log_identity));
        Replaced::encode(self.replaced, &mut out);
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.put_bytes(&self.transactions);
        out.put_varint(self.settled.0);
        out.put_bytes(&self.of_shards.0);
        out.put_bytes(&self.of_shards.1);
        out.into()
    }

    /// Decodes the bytes of a replica of a group of `members`, in a cluster of `nodes`.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(
        bytes: &Bytes,
        (members, nodes): (usize, usize),
    ) -> Result<Self, DecodeError> {
        const WHAT: &str = "checkpoint";
        let from = &mut Reader::new(bytes);
        let log_head = LogPosition(from.u64(WHAT)?);
        let suffix = Suffix::decode(from.bytes(WHAT)?)?;
        let had = (ViewNumber(number(from, WHAT)?), Position(number(from, WHAT)?));
        let view = View::decode(from)?;
        let decided = number(from, WHAT)?.checked_sub(1).map(ViewNumber);
        let (started, base) = (number(from, WHAT)?, number(from, WHAT)?);
        let (started, base) = (ViewNumber(started), ViewNumber(base));
        let logs = (0..from.count(WHAT)?).map(|_| Ok(bytes.slice_ref(from.bytes(WHAT)?)));
        let started = (started, base, logs.collect::<Result<_, DecodeError>>()?);
        let told = Stamp::from_bits(from.u64(WHAT)?);
        let entry = |from: &mut Reader<'_>| {
            let stamp = Stamp::from_bits(from.u64(WHAT)?);
            Ok(Entry { stamp, txn: TxnId::from_bits(from.u64(WHAT)?) })
        };
        let count = from.count(WHAT)?;
        let in_time = (0..count).map(|_| entry(from)).collect::<Result<_, DecodeError>>()?;
        let limit = Limit::decode(from.bytes(WHAT)?)?;
        let done = Done::decode(from, nodes)?;
        let log_identities = (0..members).map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let replaced = Replaced::decode(from)?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let transactions = bytes.slice_ref(from.bytes(WHAT)?);
        let settled = Position(number(from, WHAT)?);
        let mut part = || Ok(bytes.slice_ref(from.bytes(WHAT)?));
        let of_shards = (part()?, part()?);
        Ok(Self {
            log_head,
            suffix,
            had,
            view,
            decided,
            started,
            told,
            in_time,
            limit,
            done,
            log_identities,
            replaced,
            agreement,
            transactions,
            settled,
            of_shards,
        })
    }
}
