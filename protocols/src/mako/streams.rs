//! Streams: a leader sends its log to the other replicas, batch by batch (§4.3).
//!
//! ```text
//!   leader      [slice][slice][slice] | batch: one record, one Append to each follower
//!   follower    one record, and one Ack when it is durable
//! ```
//!
//! A batch is sent at once, and not after the leader's own fsync: the leader counts for its
//! majority when its disk has the batch. While nothing is being replicated, no batch waits to grow.
//!
//! The paper has a stream for each core, because its cores write without an order. Here a slice is
//! executed on all cores in an order, so one stream has everything, and nothing is to be merged.
//!
//! Messages between two replicas keep their order while they are connected. A leader sends each
//! entry once, from the place on that the follower has reported in this session.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::closing::Report;
use super::epochs::Leadership;
use super::log::{Logged, decode_entries, encode_entries};
use super::messages::Message;
use super::state::{Role, State};
use super::versions::Epoch;
use super::{Mako, Timer};
use crate::replica::kind;
use crate::streams::number;

/// The slices that are not in the log yet.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub entries: Vec<Logged>,
    pub txns: usize,
    pub bytes: usize,
    /// Whether it is old enough to be closed.
    pub is_due: bool,
}

/// What a follower was sent in this session, in this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// The last entry.
    pub upto: SnapshotVersion,
    /// The last version that the follower knows to be committed.
    pub committed: SnapshotVersion,
    /// The last version of which it knows that all shards have everything up to it.
    pub stable: SnapshotVersion,
}

/// A record of entries of the present epoch.
#[derive(Debug)]
pub(super) struct Appended {
    /// The version up to which the log was known to be committed.
    pub committed: SnapshotVersion,
    /// The version before the first entry.
    pub after: SnapshotVersion,
    pub entries: Vec<Logged>,
}

impl Appended {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_varint(self.committed.0);
        out.put_varint(self.after.0);
        out.extend_from_slice(&encode_entries(&self.entries));
        out.into()
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let committed = SnapshotVersion(number(from, "log entries")?);
        let after = SnapshotVersion(number(from, "log entries")?);
        let entries = decode_entries(&bytes.slice_ref(from.rest()), after)?;
        Ok(Self { committed, after, entries })
    }
}

impl State {
    /// The version up to which all shards have everything, for followers.
    fn stable(&self) -> SnapshotVersion {
        self.shards.as_ref().map_or(SnapshotVersion::ZERO, |shards| shards.stable)
    }
}

impl Batch {
    fn is_full(&self, txns_max: usize, bytes_max: usize) -> bool {
        self.is_due || self.txns >= txns_max || self.bytes >= bytes_max
    }
}

impl State {
    /// The version up to which this replica has the log of its epoch on its disk. A replica that
    /// does not count, or whose checkpoint is in memory alone, has nothing.
    pub(super) fn durable_log(&self) -> Option<SnapshotVersion> {
        let is_whole = self.is_whole() && self.checkpoints.installed.is_none();
        self.log.durable().filter(|_| is_whole && self.has_log_of_epoch())
    }

    /// The same of all voters, as far as this leader knows.
    pub(super) fn acked(&self) -> Vec<Option<SnapshotVersion>> {
        let count = self.replica.topology.voter_count();
        let count = mutate!(MakoLearnerVotes: count => self.replica.topology.node_count());
        let nodes = (0..count as u16).map(NodeId);
        let of = |node: NodeId| match node == self.replica.me {
            true => self.durable_log(),
            false => self.commit.acked[node.index()],
        };
        nodes.map(of).collect()
    }
}

impl Mako {
    /// Puts the batch in the log if it has grown enough, or if nothing is being replicated.
    pub(super) fn close_batch(&mut self, cx: &mut Cx<'_, Self>) {
        let State { role, options, commit, log, .. } = &mut self.state;
        let Role::Leading(leading) = role else { return };
        let batch = &leading.batch;
        if batch.entries.is_empty() {
            return;
        }
        let is_idle = commit.committed == log.last();
        if !is_idle && !batch.is_full(options.batch_txns, options.batch_bytes) {
            if !std::mem::replace(&mut leading.has_timer, true) {
                cx.set_timer(Timer::Batch, Span::from_ms(options.batch_ms));
            }
            return;
        }
        let batch = std::mem::take(&mut leading.batch);
        self.state.note_batched(cx, &batch.entries);
        self.append(cx, batch.entries);
    }

    pub(super) fn on_batch_timeout(&mut self) {
        if let Role::Leading(leading) = &mut self.state.role {
            leading.has_timer = false;
            leading.batch.is_due = !leading.batch.entries.is_empty();
        }
    }

    /// Appends entries of the present epoch to the log, with one record.
    pub(super) fn append(&mut self, cx: &mut Cx<'_, Self>, entries: Vec<Logged>) {
        let State { log, commit, replica, .. } = &mut self.state;
        let appended = Appended { committed: commit.committed, after: log.last(), entries };
        let position = replica.persist(cx, &kind::ENTRIES, appended.encode());
        let State { log, commit, shards, role, .. } = &mut self.state;
        for logged in appended.entries {
            // A leader has noted its entries before.
            if let (Some(shards), false) = (&mut *shards, matches!(role, Role::Leading(_))) {
                shards.replay.insert(&logged.entry, commit.published);
            }
            log.push(logged);
        }
        log.note_record(position);
    }

    /// Begins to send the log to a replica that has reported its own.
    pub(super) fn begin_stream(&mut self, cx: &mut Cx<'_, Self>, to: NodeId) {
        let Some(Report { rank: (epoch, last), published, .. }) = self.state.reports[to.index()]
        else {
            return;
        };
        let is_same = epoch == self.state.log.epoch;
        let from = if is_same { last } else { published };
        // Otherwise it takes a checkpoint first.
        if self.state.is_sending() && self.state.log.contains(from) {
            let (committed, stable) = (SnapshotVersion::ZERO, SnapshotVersion::ZERO);
            self.state.sent[to.index()] = Some(Sent { upto: from, committed, stable });
            self.send_log_to(cx, to, true);
        }
    }

    /// Sends each follower the entries that it has not been sent.
    pub(super) fn send_log(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.is_sending() {
            return;
        }
        // What becomes committed is told with the next batch, if there is one.
        let is_idle = match &self.state.role {
            Role::Leading(leading) => leading.batch.entries.is_empty(),
            _ => false,
        };
        let (last, committed) = (self.state.log.last(), self.state.commit.committed);
        let stable = self.state.stable();
        for peer in self.state.replica.peers() {
            let Some(sent) = self.state.sent[peer.index()] else { continue };
            let is_told = sent.committed >= committed && sent.stable >= stable;
            if sent.upto < last || is_idle && !is_told {
                self.send_log_to(cx, peer, false);
            }
        }
    }

    /// Sends a follower the rest of the log, in parts. `is_first` is whether it expects an answer
    /// even if there is nothing more.
    fn send_log_to(&mut self, cx: &mut Cx<'_, Self>, to: NodeId, is_first: bool) {
        let stable = self.state.stable();
        let State { log, commit, epochs, options, replica, sent, origin, .. } = &mut self.state;
        let Some(sent) = &mut sent[to.index()] else { return };
        let (epoch, end) = (log.epoch.0, epochs.end);
        let committed = commit.committed;
        let entries: Vec<&Logged> = log.after(sent.upto).expect("it was there").collect();
        let mut rest = &entries[..];
        let mut is_due = is_first || sent.committed < committed || sent.stable < stable;
        while is_due || !rest.is_empty() {
            let mut bytes = 0;
            let is_small = |logged: &&&Logged| {
                bytes += logged.bytes.len();
                bytes <= options.batch_bytes
            };
            let count = rest.iter().take_while(is_small).count().max(usize::from(!rest.is_empty()));
            let (part, after) = (&rest[..count], sent.upto);
            sent.upto = part.last().map_or(after, |logged| logged.version());
            (sent.committed, sent.stable) = (committed, stable);
            let entries = encode_entries(part.iter().copied());
            let message = Message::Append { epoch, end, after, committed, stable, entries };
            // The names of its own transactions are not used again after a crash.
            replica.send_after(cx, origin.record, to, message);
            rest = &rest[count..];
            is_due = false;
        }
    }

    /// Entries of the leader arrive.
    pub(super) fn on_append(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, end): (Epoch, SnapshotVersion),
        (after, committed, stable): (SnapshotVersion, SnapshotVersion, SnapshotVersion),
        entries: &Bytes,
    ) {
        let Leadership { number, leader } = self.state.epochs.current;
        let is_current = leader == from && leader != self.state.replica.me && number == epoch;
        if !is_current {
            return cx.mark("mako.log_of_another_epoch");
        }
        let Ok(entries) = decode_entries(entries, after) else {
            return cx.mark("mako.malformed_log");
        };
        if self.state.has_log_of_epoch() {
            self.append_next(cx, after, entries);
        } else {
            self.adopt_part(cx, (after, end), entries);
        }
        if self.state.has_log_of_epoch() {
            let State { commit, log, shards, .. } = &mut self.state;
            commit.committed = commit.committed.max(committed.min(log.last()));
            if let Some(shards) = shards {
                shards.stable = shards.stable.max(stable);
            }
        }
    }

    /// A follower appends the next entries of the log that it follows.
    fn append_next(
        &mut self,
        cx: &mut Cx<'_, Self>,
        after: SnapshotVersion,
        mut entries: Vec<Logged>,
    ) {
        let last = self.state.log.last();
        entries.retain(|logged| logged.version() > last);
        let first = entries.first().map(|logged| logged.entry.before);
        if first.is_some_and(|before| before != last) || first.is_none() && after > last {
            cx.mark("mako.log_with_gap");
            return self.send_report(cx, true);
        }
        if !entries.is_empty() {
            self.append(cx, entries);
            self.send_ack(cx);
        }
    }

    /// Tells the leader that the log up to its end is on the disk, when it is.
    pub(super) fn send_ack(&mut self, cx: &mut Cx<'_, Self>) {
        let State { log, epochs, replica, checkpoints, .. } = &self.state;
        let Leadership { number, leader } = epochs.current;
        let counts = replica.votes() && self.state.is_whole() && checkpoints.installed.is_none();
        if !counts || !self.state.has_log_of_epoch() || leader == replica.me {
            return;
        }
        let message = Message::Ack { epoch: number.0, upto: log.last() };
        let after = mutate!(MakoAckBeforeFsync: cx.log_head() => LogPosition(0));
        replica.send_after(cx, after, leader, message);
    }

    /// A follower has the log up to a version on its disk.
    pub(super) fn on_ack(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, upto): (Epoch, SnapshotVersion),
    ) {
        if !self.state.is_sending() || epoch != self.state.log.epoch {
            return cx.mark("mako.ack_of_another_epoch");
        }
        let State { commit, .. } = &mut self.state;
        let acked = &mut commit.acked[from.index()];
        *acked = (*acked).max(Some(upto));
        let known = &mut commit.acked_ever[from.index()];
        *known = (*known).max((epoch, upto));
    }
}
