//! Checkpoints: of this replica, and of peers.
//!
//! The rows of a checkpoint are those of the last published version. In addition it contains all of
//! this replica's state that a restart needs: the entries after it, the outcomes that nodes may ask
//! for, the promised epoch, the reserved names, and the state of agreement. So no earlier record of
//! the log is needed.
//!
//! A replica that needs entries which its leader has forgotten takes a peer's checkpoint
//! ([`crate::transfer`]), with the outcomes there. Its clients are answered from these. Until a
//! checkpoint of this replica contains the peer's one, nothing after it survives a restart, and the
//! replica does not tell that its log is durable.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::partition::SHARDS_MAX;
use pangea_core::protocol::{Checkpoint, Cx};

use super::closing::{Adopted, Closing};
use super::epochs::{Decided, Leadership, may_lead};
use super::log::{Logged, decode_entries, encode_entries};
use super::outcomes::Outcomes;
use super::rejoin::Replaced;
use super::shards::Config;
use super::state::{Role, State};
use super::versions::Epoch;
use super::{Mako, Timer};
use crate::agreement::Record;
use crate::checkpoints::REST;
use crate::digests::Digests;
use crate::replica::INTACT;
use crate::streams::{Bid, number};
use crate::transfer;

/// A checkpoint of a peer that has arrived.
type Incoming = transfer::Incoming<Configuration>;

/// The part of a peer's checkpoint that comes before the rows: nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Configuration;

impl transfer::Configuration for Configuration {
    fn decode(_: &mut Reader<'_>, _: usize) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

impl transfer::Host for Mako {
    type Configuration = Configuration;
}

/// The contents of a checkpoint of this replica in addition to the tables.
#[derive(Debug)]
pub(super) struct Meta {
    /// The log's head when the checkpoint was requested: earlier records are part of it.
    pub log_head: LogPosition,
    /// The log after the checkpoint, and its epoch.
    pub log: Adopted,
    /// The greatest epoch and version that the log ever had.
    pub had: (Epoch, SnapshotVersion),
    /// The last version that was known to be committed.
    pub committed: SnapshotVersion,
    /// The version up to which no entry after the checkpoint writes.
    pub closed: SnapshotVersion,
    /// With several shards: the configuration.
    pub config: Config,
    pub leadership: Leadership,
    pub reserved: u64,
    pub replaced: Option<Replaced>,
    pub log_identities: Vec<u64>,
    pub outcomes: Outcomes,
    pub agreement: Vec<Record<Decided>>,
    /// The number of entries of the clocks in the log, if it is not that of the shards.
    pub grouping: Option<u16>,
}

impl Meta {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.log_head.0);
        out.put_varint(self.log.epoch.0);
        out.put_varint(self.log.after.0);
        out.put_bytes(&encode_entries(&self.log.entries));
        out.put_varint(self.had.0.0);
        out.put_varint(self.had.1.0);
        out.put_varint(self.committed.0);
        out.put_varint(self.closed.0);
        self.config.encode(&mut out);
        self.leadership.encode(&mut out);
        out.put_varint(self.reserved);
        Replaced::encode(self.replaced, &mut out);
        self.log_identities.iter().for_each(|log_identity| out.put_u64(*log_identity));
        out.put_bytes(&self.outcomes.encode());
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.put_varint(self.grouping.unwrap_or_default().into());
        out.into()
    }

    /// Decodes the bytes of a replica of a group of `node_count`.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(bytes: &Bytes, node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "checkpoint";
        let from = &mut Reader::new(bytes);
        let log_head = LogPosition(from.u64(WHAT)?);
        let epoch = Epoch(number(from, WHAT)?);
        let after = SnapshotVersion(number(from, WHAT)?);
        let entries = decode_entries(&bytes.slice_ref(from.bytes(WHAT)?), after)?;
        let log = Adopted { epoch, after, entries };
        let had = (Epoch(number(from, WHAT)?), SnapshotVersion(number(from, WHAT)?));
        let committed = SnapshotVersion(number(from, WHAT)?);
        let closed = SnapshotVersion(number(from, WHAT)?);
        let config = Config::decode(from)?;
        let leadership = Leadership::decode(from)?;
        let reserved = number(from, WHAT)?;
        let replaced = Replaced::decode(from)?;
        let log_identities = (0..node_count).map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let outcomes = Outcomes::decode(&mut Reader::new(from.bytes(WHAT)?))?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let grouping = match number(from, WHAT)? {
            0 => None,
            slots if slots <= u64::from(SHARDS_MAX) => Some(slots as u16),
            _ => return Err(DecodeError::new(WHAT)),
        };
        Ok(Self {
            log_head,
            log,
            had,
            committed,
            closed,
            config,
            leadership,
            reserved,
            replaced,
            log_identities,
            outcomes,
            agreement,
            grouping,
        })
    }
}

impl State {
    fn meta(&self, log_head: LogPosition) -> Meta {
        let floor = self.commit.floor;
        let after = self.log.after(floor).expect("published entries are in the log");
        let entries: Vec<Logged> = after.cloned().collect();
        Meta {
            log_head,
            log: Adopted { epoch: self.log.epoch, after: floor, entries },
            had: self.log.had(),
            committed: self.commit.committed,
            closed: self.log.closed_at(floor),
            config: self.shards.as_ref().map_or_else(Config::default, |it| it.config.clone()),
            leadership: self.epochs.current,
            reserved: self.origin.reserved,
            replaced: self.replaced,
            log_identities: self.presence.log_identities.clone(),
            outcomes: mutate!(MakoOutcomesForgotten: self.outcomes.clone() => Outcomes::default()),
            agreement: match self.replica.votes() {
                true => self.epochs.driver.agreement().compacted_records(),
                false => Vec::new(),
            },
            grouping: self.shards.as_ref().and_then(|shards| shards.grouping),
        }
    }

    /// Starts from a checkpoint of this replica, after a restart. Returns the last record that is
    /// part of it, and the records of agreement.
    pub(super) fn restore_checkpoint(
        &mut self,
        cx: &Cx<'_, Mako>,
        checkpoint: &Checkpoint,
    ) -> (LogPosition, Vec<Record<Decided>>) {
        let node_count = self.replica.topology.node_count();
        let meta = Meta::decode(&checkpoint.meta, node_count).expect(INTACT);
        let version = checkpoint.version;
        let floor = meta.log.after;
        self.log.start_from((meta.log.epoch, floor), meta.closed, meta.had);
        if let Some(shards) = &mut self.shards {
            (shards.config, shards.grouping) = (meta.config, meta.grouping);
        }
        meta.log.entries.into_iter().for_each(|logged| self.log.push(logged));
        (self.epochs.current, self.replaced) = (meta.leadership, meta.replaced);
        self.origin.restore(meta.reserved);
        self.presence.log_identities = meta.log_identities;
        self.outcomes = meta.outcomes;
        self.commit.move_to(version, floor);
        self.commit.committed = self.commit.committed.max(meta.committed);
        self.saved = version;
        self.checkpoints.start_from(version);
        if cx.store.published() < version {
            cx.store.publish_alone(version);
        }
        (meta.log_head, meta.agreement)
    }

    /// The peers that have a checkpoint which this replica needs, best first; `None` if it needs
    /// none.
    fn needed_checkpoint(&self) -> Option<Vec<NodeId>> {
        let floor = self.commit.floor;
        // Up to here, this replica has the log of its leader.
        let has = if self.has_log_of_epoch() { self.log.last() } else { floor };
        let told = |peer: &NodeId| &self.epochs.told[peer.index()];
        let is_one = |peer: &NodeId| {
            self.replica.is_up[peer.index()] && may_lead(&self.replica.topology, *peer)
        };
        let up: Vec<NodeId> = self.replica.peers().filter(is_one).collect();
        let leads = |peer: &NodeId| Some(*peer) == self.leader();
        let sources = match self.is_leader() {
            // A new leader needs the log of another one.
            true if !self.has_log_of_epoch() => &up[..],
            true => &[],
            false => match up.iter().position(leads) {
                Some(at) => &up[at..=at],
                None => &[],
            },
        };
        let first = sources.iter().map(|peer| told(peer).first).max()?;
        if first <= has {
            return None;
        }
        let has_it = |peer: &NodeId| told(peer).published >= first;
        // The leader keeps the entries after the checkpoint that it sends.
        let (leader, others) = up.into_iter().filter(has_it).partition::<Vec<_>, _>(leads);
        Some(if leader.is_empty() { others } else { leader })
    }
}

/// The last entry before a peer's checkpoint, and the version up to which no later one writes.
fn log_end(from: &mut Reader<'_>) -> Result<(SnapshotVersion, SnapshotVersion), DecodeError> {
    const WHAT: &str = "checkpoint";
    Ok((SnapshotVersion(number(from, WHAT)?), SnapshotVersion(number(from, WHAT)?)))
}

impl Mako {
    /// Requests a checkpoint when the log has grown enough.
    pub(super) fn checkpoint_if_due(&mut self, cx: &mut Cx<'_, Self>) {
        let State { checkpoints, replica, options, presence, .. } = &self.state;
        let is_due = checkpoints.is_due(replica, options.checkpoint_bytes);
        if is_due && presence.is_ready && cx.store.published() > checkpoints.last {
            self.start_checkpoint(cx);
        }
    }

    /// Requests a checkpoint of the last published version.
    pub(super) fn start_checkpoint(&mut self, cx: &mut Cx<'_, Self>) {
        cx.mark("checkpoints.begun");
        let version = cx.store.published();
        let meta = self.state.meta(cx.log_head());
        let first_needed = LogPosition(meta.log_head.0 + 1);
        cx.checkpoint(version, meta.encode());
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
        let State { checkpoints, saved, .. } = &mut self.state;
        let was_behind = checkpoints.installed.is_some();
        let Some(first_needed) = checkpoints.on_written(version) else { return };
        cx.truncate(first_needed);
        *saved = version;
        if was_behind {
            self.send_ack(cx);
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
        let least = cx.store.published().next();
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
        let version = cx.store.published();
        let pin = cx.store.pin_at(version).expect("the last published version is readable");
        let State { transfer, replica, outcomes, log, commit, shards, .. } = &mut self.state;
        let outcomes = mutate!(MakoOutcomesNotTransferred: outcomes.encode() => {
            Outcomes::default().encode()
        });
        let mut handed_on = outcomes.to_vec();
        if shards.is_some() {
            handed_on.put_varint(commit.floor.0);
            handed_on.put_varint(log.closed_at(commit.floor).0);
        }
        let outcomes = handed_on.into();
        let heads = vec![Bid(commit.floor.0)];
        transfer.send_checkpoint(cx, replica, to, (pin, &[], outcomes), heads);
    }

    /// Installs a peer's checkpoint as this replica's state.
    fn on_checkpoint(&mut self, cx: &mut Cx<'_, Self>, mut incoming: Incoming) {
        let is_ahead = incoming.version() > cx.store.published();
        let leads = matches!(self.state.role, Role::Leading(_));
        if !is_ahead || leads || self.state.needed_checkpoint().is_none() {
            return cx.mark("mako.checkpoint_of_no_use");
        }
        let handed_on = incoming.take_handed_on();
        let from = &mut Reader::new(&handed_on);
        let Ok(outcomes) = Outcomes::decode(from) else {
            return cx.mark("mako.malformed_checkpoint");
        };
        let (floor, closed) = match (&self.state.shards, log_end(from)) {
            (None, _) => (incoming.version(), incoming.version()),
            (Some(_), Ok(end)) => end,
            (Some(_), Err(_)) => return cx.mark("mako.malformed_checkpoint"),
        };
        let (version, Configuration) = incoming.install(cx.store, cx.store.published());
        cx.store.publish_alone(version);
        self.state.outcomes = outcomes;
        let State { log, commit, replica, checkpoints, counters, adopting, shards, .. } =
            &mut self.state;
        log.skip_to(floor, closed);
        commit.move_to(version, floor);
        if let Some(shards) = shards {
            shards.replay.rebuild(log, version);
            commit.advance_floor(log);
        }
        *adopting = None;
        counters.checkpoints_installed += 1;
        Digests::begin(cx, replica);
        checkpoints.note_installed(replica, version);
        cx.mark("mako.checkpoint_installed");
        self.answer_contained(cx);
        if let Role::Closing(closing) = &mut self.state.role {
            // It needs less of another log.
            *closing = Closing::default();
        }
        self.send_report(cx, true);
        self.send_progress(cx);
    }
}
