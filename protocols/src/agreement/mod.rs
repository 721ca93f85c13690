//! Agreement: a replicated log of small entries that a protocol must decide together.
//!
//! Minerva decides its cuts here (Minerva §3.4: "consensus"). The log is Sequence Paxos with ballot
//! leader election, from the crate `omnipaxos`, driven like every component of this workspace:
//! inputs in, effects out.
//!
//! ```text
//!   propose, on_message, on_tick --> [ Agreement ] --> take_ready(): records to persist,
//!                                                                    messages to send after them,
//!                                                                    entries decided
//! ```
//!
//! `omnipaxos` writes to its storage inside its own calls, and assumes that a write is durable when
//! the call returns. Here it is not yet, so no message may be sent before it is. [`Ready`] returns
//! the records and the messages together, and the caller sends the messages once the records are
//! durable. A decision requires an acknowledgement of a peer. The peer sent it after its own
//! records were durable, in reply to a message that the leader sent after its records were. A
//! decided entry is therefore durable on a majority. The only replica of a log has no peers to wait
//! for. There [`Ready::is_decided_here`] says that the decisions take effect once the records
//! returned with them are durable.
//!
//! Entries are numbered from 1 in the order of their decision.
//!
//! Each replica truncates old entries independently: [`Agreement::compact`]. A replica that needs
//! entries which a peer has truncated is informed of the last truncated one. It skips them, and
//! obtains their effects elsewhere. In a synchronisation of `omnipaxos` a snapshot stands for the
//! skipped entries. By default `omnipaxos` would also send a snapshot in place of entries that
//! still exist. Therefore snapshots are disabled in `omnipaxos`, and this module inserts one only
//! if entries have been truncated.

mod check;
mod driver;
mod durable_state;
mod leadership;
pub(crate) mod marks;
mod replicated;
mod single_node;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Debug;

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::messages::Message as PaxosMessage;
use omnipaxos::storage::{Entry as PaxosEntry, Snapshot};
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::NodeId;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use check::Refused;
pub(crate) use driver::{Driver, Settled, lost_promises};
pub use durable_state::DurableState;
pub(crate) use leadership::centrality;
use replicated::ReplicatedLog;
use single_node::SingleNodeLog;
pub use storage::Record;
#[cfg(test)]
use storage::State;

/// A value that can be decided: small, and the same on every replica.
pub trait Decision: Clone + Debug + Send + Serialize + DeserializeOwned + 'static {}

impl<T: Clone + Debug + Send + Serialize + DeserializeOwned + 'static> Decision for T {}

/// The interval at which [`Agreement::on_tick`] must be called.
pub const TICK: Span = Span::from_ms(10);

/// The minimum election timeout: the time without a heartbeat after which a leader is suspected. It
/// is above the scheduling noise of a loaded machine.
const ELECTION_MS_MIN: u64 = 120;

/// A master is suspected after this multiple of the usual timeout. The epochs that only it has run
/// are lost with it, and a message may be late without a failure.
const MASTER_PATIENCE: u64 = 4;

/// A [`Decision`] as the entry type that `omnipaxos` requires.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Wrapped<E: Decision>(pub(crate) E);

impl<E: Decision> PaxosEntry for Wrapped<E> {
    type Snapshot = EmptySnapshot;
}

/// An empty snapshot that replaces truncated entries. Their number is sent separately.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct EmptySnapshot;

impl<E: Decision> Snapshot<Wrapped<E>> for EmptySnapshot {
    fn create(_entries: &[Wrapped<E>]) -> Self {
        Self
    }

    fn merge(&mut self, _later: Self) {}

    fn use_snapshots() -> bool {
        // `omnipaxos` calls this only where one replica synchronises another.
        false
    }
}

/// A message between two replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
enum AgreementMessage<E: Decision> {
    Paxos(PaxosMessage<Wrapped<E>>),
    /// The replicas that the sender receives messages from, as ids of `omnipaxos`.
    Hears(BTreeSet<u64>),
}

/// One replica of the log.
pub enum Agreement<E: Decision> {
    /// The only replica.
    SingleNode(SingleNodeLog<E>),
    /// One of several replicas.
    Replicated(Box<ReplicatedLog<E>>),
}

/// A leadership term of one replica. Entries proposed in an earlier term may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Term(Ballot);

impl Term {
    /// Appends the term to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        let Ballot { config_id, n, priority, pid } = self.0;
        [config_id, n, priority].into_iter().for_each(|part| out.put_u32(part));
        out.put_u64(pid);
    }

    /// Decodes a term that [`Term::encode`] wrote.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut part = || from.u32("term");
        let (config_id, n, priority) = (part()?, part()?, part()?);
        Ok(Self(Ballot { config_id, n, priority, pid: from.u64("term")? }))
    }

    /// Whether it can be a term of a log of `node_count` replicas, or the initial value.
    pub fn is_sound(self, node_count: usize) -> bool {
        self == Self::default() || check::is_ballot(self.0, node_count as u64)
    }
}

/// The pending work of an [`Agreement`], in this order: persist the records, send the messages,
/// process the decisions.
#[derive(Debug)]
pub struct Ready<E> {
    /// Records that must be durable before any of the messages is sent.
    pub records: Vec<Record<E>>,
    /// The receiver of each message, and the encoded message.
    pub messages: Vec<(NodeId, Vec<u8>)>,
    /// Entries up to this one are decided, and those not returned yet never will be: the peers have
    /// truncated them.
    pub skipped: Option<u64>,
    /// The newly decided entries with their numbers, in order.
    pub decided: Vec<(u64, E)>,
    /// Whether no peer has acknowledged the decisions: they take effect once the records are
    /// durable.
    pub is_decided_here: bool,
}

impl<E: Decision> Agreement<E> {
    /// Creates a replica that continues from `records`, which are all that it ever persisted. It
    /// returns decisions after entry `decided_taken`; the caller has processed those up to it.
    ///
    /// `decided_taken` says nothing about the entries in `records`. The caller may have it from a
    /// peer, and other entries may be decided in their place.
    pub fn new(
        me: NodeId,
        topology: &Topology,
        records: impl IntoIterator<Item = Record<E>>,
        decided_taken: u64,
    ) -> Self {
        Self::with_master(me, topology, records, decided_taken, None)
    }

    /// The same with a preferred master, which leads while it can and is not deposed at once. If
    /// another replica leads, it is asked to transfer leadership: see
    /// [`Agreement::take_leadership_request`].
    pub fn with_master(
        me: NodeId,
        topology: &Topology,
        records: impl IntoIterator<Item = Record<E>>,
        decided_taken: u64,
        master: Option<NodeId>,
    ) -> Self {
        match topology.node_count() {
            1 => Self::SingleNode(SingleNodeLog::new(records, decided_taken)),
            _ => {
                let log = ReplicatedLog::new(me, topology, records, decided_taken, master);
                Self::Replicated(Box::new(log))
            }
        }
    }

    /// Whether this is the only replica.
    pub fn is_alone(&self) -> bool {
        matches!(self, Self::SingleNode(_))
    }

    /// Whether this replica appends the entries that it proposes, and does not forward them.
    pub fn is_leader(&self) -> bool {
        match self {
            Self::SingleNode(_) => true,
            Self::Replicated(log) => log.is_leader(),
        }
    }

    /// The leader, as far as this replica knows.
    pub fn leader(&self) -> Option<NodeId> {
        match self {
            Self::SingleNode(_) => Some(NodeId(0)),
            Self::Replicated(log) => log.leader(),
        }
    }

    /// The leadership term that this replica has promised to follow: its own or another's.
    pub fn term(&self) -> Term {
        match self {
            Self::SingleNode(_) => SingleNodeLog::<E>::term(),
            Self::Replicated(log) => log.term(),
        }
    }

    /// The latest term that a peer has promised this replica to follow, since this replica started.
    pub fn promise_of(&self, peer: NodeId) -> Term {
        match self {
            Self::SingleNode(_) => Term::default(),
            Self::Replicated(log) => log.promise_of(peer),
        }
    }

    /// Whether a peer has voted in this replica's term since it last connected.
    pub(crate) fn has_vote_of(&self, peer: NodeId) -> bool {
        match self {
            Self::SingleNode(_) => false,
            Self::Replicated(log) => log.has_vote_of(peer),
        }
    }

    /// Whether a majority, of which this replica is one, has accepted the log of this replica's
    /// term. Then no entry that is missing in that log can be decided.
    pub(crate) fn is_followed(&self) -> bool {
        match self {
            Self::SingleNode(_) => true,
            Self::Replicated(log) => log.is_followed(),
        }
    }

    /// Proposes an entry. Must be called on the leader. The entry may be lost if leadership is.
    ///
    /// # Panics
    /// Panics if this replica does not lead.
    pub fn propose(&mut self, entry: E) {
        match self {
            Self::SingleNode(log) => log.propose(entry),
            Self::Replicated(log) => log.propose(entry),
        }
    }

    /// Handles a message from a peer. `is_sound` returns whether a replica could propose an entry.
    ///
    /// # Errors
    /// Returns an error if no replica of this log would send this; the state is then unchanged.
    pub fn on_message(
        &mut self,
        from: NodeId,
        bytes: &[u8],
        is_sound: &dyn Fn(&E) -> bool,
    ) -> Result<(), Refused> {
        match self {
            Self::SingleNode(_) => Err(check::NAME),
            Self::Replicated(log) => log.on_message(from, bytes, is_sound),
        }
    }

    /// Advances the clock. Must be called every [`TICK`]. `has_ambition` tells whether this replica
    /// seeks leadership for its place in the topology.
    pub fn on_tick(&mut self, has_ambition: bool) {
        match self {
            Self::SingleNode(_) => {}
            Self::Replicated(log) => log.on_tick(has_ambition),
        }
    }

    /// Handles a reconnect to a peer; earlier messages may be lost.
    pub fn on_peer_up(&mut self, peer: NodeId) {
        match self {
            Self::SingleNode(_) => {}
            Self::Replicated(log) => log.on_peer_up(peer),
        }
    }

    /// Whether this replica should request leadership from the leader; reset by each call. Only
    /// used with a preferred master: otherwise the replica campaigns at once.
    pub fn take_leadership_request(&mut self) -> bool {
        match self {
            Self::SingleNode(_) => false,
            Self::Replicated(log) => log.take_leadership_request(),
        }
    }

    /// The number of entries, decided or not. On the leader the next proposal follows them.
    pub fn end(&self) -> u64 {
        match self {
            Self::SingleNode(log) => log.state().end() as u64,
            Self::Replicated(log) => log.end(),
        }
    }

    /// The number of the last entry, decided or not, that fulfils a condition.
    pub(crate) fn last_of(&self, is_it: impl Fn(&E) -> bool) -> Option<u64> {
        match self {
            Self::SingleNode(log) => log.state().last_of(is_it),
            Self::Replicated(log) => log.last_of(is_it),
        }
    }

    /// Campaigns for leadership now.
    pub(crate) fn campaign(&mut self) {
        match self {
            Self::SingleNode(_) => {}
            Self::Replicated(log) => log.campaign(),
        }
    }

    /// Truncates entries up to `upto`, as far as every replica has them.
    pub fn trim(&mut self, upto: u64) {
        match self {
            Self::SingleNode(log) => {
                log.compact(upto);
            }
            Self::Replicated(log) => log.trim(upto),
        }
    }

    /// Truncates entries up to `upto` on this replica, even if another replica is missing them,
    /// provided that they are known to be decided. Returns whether there were any.
    pub fn compact(&mut self, upto: u64) -> bool {
        match self {
            Self::SingleNode(log) => log.compact(upto),
            Self::Replicated(log) => log.compact(upto),
        }
    }

    /// The number of entries that are truncated on this replica.
    pub fn forgotten(&self) -> u64 {
        match self {
            Self::SingleNode(log) => log.state().trimmed as u64,
            Self::Replicated(log) => log.forgotten(),
        }
    }

    /// The smallest list of records that restores the present state.
    pub fn compacted_records(&self) -> Vec<Record<E>> {
        match self {
            Self::SingleNode(log) => log.state().to_records(),
            Self::Replicated(log) => log.compacted_records(),
        }
    }

    /// This replica's durable state, for a replica that has lost its own.
    pub fn durable_state(&self) -> DurableState<E> {
        match self {
            Self::SingleNode(log) => DurableState(log.state().clone()),
            Self::Replicated(log) => log.durable_state(),
        }
    }

    /// Takes the pending work since the last call.
    pub fn take_ready(&mut self) -> Ready<E> {
        match self {
            Self::SingleNode(log) => log.take_ready(),
            Self::Replicated(log) => log.take_ready(),
        }
    }
}

/// Describes the durable state that these records restore, for humans.
#[cfg(test)]
pub(crate) fn describe_log<E: Decision>(records: impl IntoIterator<Item = Record<E>>) -> String {
    let mut state = State::default();
    records.into_iter().for_each(|record| state.replay(record));
    format!("{state:?}")
}

/// Describes a message, for humans.
#[cfg(test)]
pub(crate) fn describe<E: Decision>(bytes: &[u8]) -> String {
    match check::decode::<E>(bytes) {
        Ok(AgreementMessage::Paxos(PaxosMessage::SequencePaxos(message))) => {
            format!("{:?}", message.msg)
        }
        message => format!("{message:?}"),
    }
}

/// The id of a node in `omnipaxos`, where ids begin at 1.
fn pid(node: NodeId) -> u64 {
    u64::from(node.0) + 1
}

fn node(pid: u64) -> NodeId {
    NodeId((pid - 1) as u16)
}

/// The timeout of a master. Competing elections end within this time, too.
pub(crate) fn master_patience(topology: &Topology) -> Span {
    Span { us: MASTER_PATIENCE * election_ticks(topology) * TICK.us }
}

/// The election timeout in ticks: long enough for a heartbeat's round trip.
fn election_ticks(topology: &Topology) -> u64 {
    let round_trip_ms = topology.round_trip_max().us / 1_000;
    let tick_ms = TICK.us / 1_000;
    (round_trip_ms + round_trip_ms / 2).max(ELECTION_MS_MIN).div_ceil(tick_ms)
}
