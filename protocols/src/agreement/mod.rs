//! Agreement: one replicated log of small entries, for whatever a protocol must decide together.
//!
//! Minerva decides its cuts here (§3.4). The log is Sequence Paxos with ballot leader election,
//! from the crate `omnipaxos`, driven in the style of this house: inputs in, effects out.
//!
//! ```text
//!   propose, on_message, on_tick --> [ Agreement ] --> drain(): records to persist,
//!                                                               messages to send after them,
//!                                                               entries decided
//! ```
//!
//! `omnipaxos` calls its storage inside its own calls and believes that a write is durable when the
//! call returns. Here it is not, so nothing may leave before it is: [`Drained`] hands out the
//! records and the messages together, and the caller sends the messages after the records are
//! durable. A decision needs an acknowledgement from a peer, which was sent after the peer's
//! records were durable, about a message that was sent after the leader's own were; so what is
//! decided is durable on a majority. The only replica of a log has no peers to wait for: there
//! [`Drained::is_decided_here`] says that decisions hold once the records beside them are durable.
//!
//! Entries are numbered from 1 in the order of their decision.
//!
//! A replica forgets old entries for itself: [`Agreement::compact`]. One that lacks entries that a
//! peer has forgotten is told how far they went, skips them, and learns from elsewhere what they
//! came to. In a synchronisation of `omnipaxos` a snapshot stands for what is skipped. Left to
//! itself, `omnipaxos` would send one in place of entries that are still there, so it is told that
//! there are none, and snapshots are put in here, where entries are gone.

mod alone;
mod check;
mod lead;
mod remembered;
mod several;
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

use alone::Alone;
pub use check::Refused;
pub use remembered::Remembered;
use several::Several;
pub use storage::Record;
#[cfg(test)]
use storage::State;

/// What can be agreed on: small, and the same on every replica.
pub trait Decision: Clone + Debug + Send + Serialize + DeserializeOwned + 'static {}

impl<T: Clone + Debug + Send + Serialize + DeserializeOwned + 'static> Decision for T {}

/// How often [`Agreement::on_tick`] wants to be called.
pub const TICK: Span = Span::from_ms(10);

/// The shortest time without a heartbeat after which a leader is doubted. Above the scheduling
/// noise of a loaded machine.
const ELECTION_MS_MIN: u64 = 120;

/// A master's leadership is doubted after so many times the usual wait: what it has run alone is
/// lost with it, and a message may be late without a failure.
const MASTER_PATIENCE: u64 = 4;

/// A [`Decision`] as `omnipaxos` wants it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Wrapped<E: Decision>(pub(crate) E);

impl<E: Decision> PaxosEntry for Wrapped<E> {
    type Snapshot = Forgotten;
}

/// What is left of entries that are forgotten: nothing. How many they were is said beside it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Forgotten;

impl<E: Decision> Snapshot<Wrapped<E>> for Forgotten {
    fn create(_entries: &[Wrapped<E>]) -> Self {
        Self
    }

    fn merge(&mut self, _later: Self) {}

    fn use_snapshots() -> bool {
        // Asked where one replica brings another up to date, and there alone.
        false
    }
}

/// What one replica says to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
enum Said<E: Decision> {
    Paxos(PaxosMessage<Wrapped<E>>),
    /// Whom the sender hears, as ids of `omnipaxos`.
    Hears(BTreeSet<u64>),
}

/// One replica of the log.
pub enum Agreement<E: Decision> {
    /// The only one.
    Alone(Alone<E>),
    /// One of several.
    Several(Box<Several<E>>),
}

/// One replica's time as the leader. What was proposed in an earlier one may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Term(Ballot);

impl Term {
    /// Appends the term to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        let Ballot { config_id, n, priority, pid } = self.0;
        [config_id, n, priority].into_iter().for_each(|part| out.put_u32(part));
        out.put_u64(pid);
    }

    /// Reads what [`Term::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut part = || from.u32("term");
        let (config_id, n, priority) = (part()?, part()?, part()?);
        Ok(Self(Ballot { config_id, n, priority, pid: from.u64("term")? }))
    }

    /// Whether it can be a term of a log of so many replicas, or none yet.
    pub fn is_sound(self, node_count: usize) -> bool {
        self == Self::default() || check::is_ballot(self.0, node_count as u64)
    }
}

/// What an [`Agreement`] wants done, in this order: persist, then send, then look at the decisions.
#[derive(Debug)]
pub struct Drained<E> {
    /// To be made durable before any of the messages is sent.
    pub records: Vec<Record<E>>,
    /// To whom, and the encoded message.
    pub messages: Vec<(NodeId, Vec<u8>)>,
    /// Entries up to this one are decided, and those that were not handed out never will be: the
    /// peers have forgotten them.
    pub skipped: Option<u64>,
    /// The number of each newly decided entry and the entry, in order.
    pub decided: Vec<(u64, E)>,
    /// Whether no peer stands for the decisions: they hold once the records are durable.
    pub is_decided_here: bool,
}

impl<E: Decision> Agreement<E> {
    /// A replica that continues from `records`, all that it ever persisted, and hands out decisions
    /// from the one after `decided_taken`, up to which the caller has made use of them.
    ///
    /// That is no word on the entries in `records`: the caller may have it from a peer, and others
    /// may be decided in their place.
    pub fn new(
        me: NodeId,
        topology: &Topology,
        records: impl IntoIterator<Item = Record<E>>,
        decided_taken: u64,
    ) -> Self {
        Self::with_master(me, topology, records, decided_taken, None)
    }

    /// The same, where one replica should lead while it can, and is not deposed lightly. Another
    /// one that leads is asked to give way: see [`Agreement::takes_wish`].
    pub fn with_master(
        me: NodeId,
        topology: &Topology,
        records: impl IntoIterator<Item = Record<E>>,
        decided_taken: u64,
        master: Option<NodeId>,
    ) -> Self {
        match topology.node_count() {
            1 => Self::Alone(Alone::new(records, decided_taken)),
            _ => {
                let several = Several::new(me, topology, records, decided_taken, master);
                Self::Several(Box::new(several))
            }
        }
    }

    /// Whether this is the only replica.
    pub fn is_alone(&self) -> bool {
        matches!(self, Self::Alone(_))
    }

    /// Whether entries that are proposed here are put in the log here, and not forwarded.
    pub fn is_leader(&self) -> bool {
        match self {
            Self::Alone(_) => true,
            Self::Several(several) => several.is_leader(),
        }
    }

    /// The replica that leads, as far as this one knows.
    pub fn leader(&self) -> Option<NodeId> {
        match self {
            Self::Alone(_) => Some(NodeId(0)),
            Self::Several(several) => several.leader(),
        }
    }

    /// The term of leadership that this replica has promised to follow, its own or another's.
    pub fn term(&self) -> Term {
        match self {
            Self::Alone(_) => Alone::<E>::term(),
            Self::Several(several) => several.term(),
        }
    }

    /// The latest term that a peer has promised here to follow, since this replica started.
    pub fn promise_of(&self, peer: NodeId) -> Term {
        match self {
            Self::Alone(_) => Term::default(),
            Self::Several(several) => several.promise_of(peer),
        }
    }

    /// Puts an entry in the log. Call it on the leader; it may be lost when leadership is.
    ///
    /// # Panics
    /// When called on a replica that does not lead.
    pub fn propose(&mut self, entry: E) {
        match self {
            Self::Alone(alone) => alone.propose(entry),
            Self::Several(several) => several.propose(entry),
        }
    }

    /// Takes a message from a peer. `is_sound` tells entries that a replica would propose.
    ///
    /// # Errors
    /// When no replica of this log would have said this; nothing has changed then.
    pub fn on_message(
        &mut self,
        from: NodeId,
        bytes: &[u8],
        is_sound: &dyn Fn(&E) -> bool,
    ) -> Result<(), Refused> {
        match self {
            Self::Alone(_) => Err(check::NAME),
            Self::Several(several) => several.on_message(from, bytes, is_sound),
        }
    }

    /// Lets time pass. To be called every [`TICK`].
    pub fn on_tick(&mut self) {
        match self {
            Self::Alone(_) => {}
            Self::Several(several) => several.on_tick(),
        }
    }

    /// A connection was made again; messages before it may be lost.
    pub fn on_peer_up(&mut self, peer: NodeId) {
        match self {
            Self::Alone(_) => {}
            Self::Several(several) => several.on_peer_up(peer),
        }
    }

    /// Whether this replica should lead in place of one that does, since the last call. Said where
    /// there is a master alone: otherwise it just does.
    pub fn takes_wish(&mut self) -> bool {
        match self {
            Self::Alone(_) => false,
            Self::Several(several) => several.takes_wish(),
        }
    }

    /// How many entries there are, decided or not. On the leader what is proposed next comes after
    /// them.
    pub fn end(&self) -> u64 {
        match self {
            Self::Alone(alone) => alone.state().end() as u64,
            Self::Several(several) => several.end(),
        }
    }

    /// Asks for leadership now.
    pub(crate) fn campaign(&mut self) {
        match self {
            Self::Alone(_) => {}
            Self::Several(several) => several.campaign(),
        }
    }

    /// Forgets entries up to `upto`, as far as every replica has them.
    pub fn trim(&mut self, upto: u64) {
        match self {
            Self::Alone(alone) => {
                alone.compact(upto);
            }
            Self::Several(several) => several.trim(upto),
        }
    }

    /// Forgets entries up to `upto` here, whoever may lack them, if so many are known to be decided
    /// here. Returns whether there were any.
    pub fn compact(&mut self, upto: u64) -> bool {
        match self {
            Self::Alone(alone) => alone.compact(upto),
            Self::Several(several) => several.compact(upto),
        }
    }

    /// How many entries are forgotten here.
    pub fn forgotten(&self) -> u64 {
        match self {
            Self::Alone(alone) => alone.state().trimmed as u64,
            Self::Several(several) => several.forgotten(),
        }
    }

    /// The smallest list of records that leads to the present state.
    pub fn compacted_records(&self) -> Vec<Record<E>> {
        match self {
            Self::Alone(alone) => alone.state().to_records(),
            Self::Several(several) => several.compacted_records(),
        }
    }

    /// What this replica remembers, for one that has forgotten it.
    pub fn remembered(&self) -> Remembered<E> {
        match self {
            Self::Alone(alone) => Remembered(alone.state().clone()),
            Self::Several(several) => several.remembered(),
        }
    }

    /// Takes what happened since the last call.
    pub fn drain(&mut self) -> Drained<E> {
        match self {
            Self::Alone(alone) => alone.drain(),
            Self::Several(several) => several.drain(),
        }
    }
}

/// The durable state that these records lead to, in words.
#[cfg(test)]
pub(crate) fn describe_log<E: Decision>(records: impl IntoIterator<Item = Record<E>>) -> String {
    let mut state = State::default();
    records.into_iter().for_each(|record| state.replay(record));
    format!("{state:?}")
}

/// A message in words.
#[cfg(test)]
pub(crate) fn describe<E: Decision>(bytes: &[u8]) -> String {
    match check::decode::<E>(bytes) {
        Ok(Said::Paxos(PaxosMessage::SequencePaxos(message))) => format!("{:?}", message.msg),
        said => format!("{said:?}"),
    }
}

/// Ids of `omnipaxos` begin at 1.
fn pid(node: NodeId) -> u64 {
    u64::from(node.0) + 1
}

fn node(pid: u64) -> NodeId {
    NodeId((pid - 1) as u16)
}

/// How long a master is waited for. Elections that compete end within this time, too.
pub(crate) fn master_patience(topology: &Topology) -> Span {
    Span { us: MASTER_PATIENCE * election_ticks(topology) * TICK.us }
}

/// A heartbeat must have time to come back.
fn election_ticks(topology: &Topology) -> u64 {
    let round_trip_ms = topology.round_trip_max().us / 1_000;
    let tick_ms = TICK.us / 1_000;
    (round_trip_ms + round_trip_ms / 2).max(ELECTION_MS_MIN).div_ceil(tick_ms)
}
