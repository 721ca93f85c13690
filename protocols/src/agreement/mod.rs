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
//! decided is durable on a majority.
//!
//! Entries are numbered from 1 in the order of their decision.
//!
//! A replica forgets old entries for itself: [`Agreement::compact`]. One that lacks entries that a
//! peer has forgotten is told how far they went, skips them, and learns from elsewhere what they
//! came to. In a synchronisation of `omnipaxos` a snapshot stands for what is skipped. Left to
//! itself, `omnipaxos` would send one in place of entries that are still there, so it is told that
//! there are none, and snapshots are put in here, where entries are gone.

mod check;
mod lead;
mod remembered;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::messages::Message as PaxosMessage;
use omnipaxos::messages::sequence_paxos::PaxosMsg;
use omnipaxos::storage::{Entry as PaxosEntry, Snapshot};
use omnipaxos::util::{LogEntry, LogSync};
use omnipaxos::{ClusterConfig, OmniPaxos, ServerConfig};
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::NodeId;
use pangea_core::planted::{Bug, is_planted};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use check::Bounds;
pub use check::Refused;
use lead::{Hearing, Preference, Stall, centrality};
pub use remembered::Remembered;
pub use storage::Record;
use storage::{Shared, State, Storage};

/// What can be agreed on: small, and the same on every replica.
pub trait Decision: Clone + Debug + Send + Serialize + DeserializeOwned + 'static {}

impl<T: Clone + Debug + Send + Serialize + DeserializeOwned + 'static> Decision for T {}

/// How often [`Agreement::on_tick`] wants to be called.
pub const TICK: Span = Span::from_ms(10);

/// The shortest time without a heartbeat after which a leader is doubted. Above the scheduling
/// noise of a loaded machine.
const ELECTION_MS_MIN: u64 = 120;

/// A message that was not answered is sent again after this many ticks.
const RESEND_TICKS: u64 = 50;

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
pub struct Agreement<E: Decision> {
    paxos: OmniPaxos<Wrapped<E>, Storage<E>>,
    shared: Arc<Mutex<Shared<E>>>,
    stall: Stall,
    hearing: Hearing,
    preference: Preference,
    /// The replicas, as ids of `omnipaxos`.
    nodes: RangeInclusive<u64>,
    /// What each peer has promised.
    promises: BTreeMap<u64, Term>,
    /// How many decided entries have been handed out, or skipped.
    taken: usize,
    /// Messages that wait for the next [`Agreement::drain`].
    outgoing: Vec<(NodeId, Said<E>)>,
}

/// One replica's time as the leader. What was proposed in an earlier one may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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
        let mut state = State::default();
        let is_lost = |record: &Record<E>| {
            matches!(record, Record::Promise(_)) && is_planted(Bug::PromiseForgotten)
        };
        let kept = records.into_iter().filter(|record| !is_lost(record));
        kept.for_each(|record| state.replay(record));
        let shared = Arc::new(Mutex::new(Shared { state, journal: Vec::new() }));
        let storage = Storage::new(Arc::clone(&shared));
        let cluster = ClusterConfig {
            configuration_id: check::CONFIGURATION,
            nodes: topology.node_ids().map(pid).collect(),
            flexible_quorum: None,
        };
        let server = ServerConfig {
            pid: pid(me),
            election_tick_timeout: election_ticks(topology),
            resend_message_tick_timeout: RESEND_TICKS.max(2 * election_ticks(topology)),
            leader_priority: centrality(me, topology),
            ..ServerConfig::default()
        };
        let paxos = cluster.build_for_server(server, storage);
        let paxos = paxos.expect("a topology makes a valid configuration");
        let stall = Stall::new(me, topology);
        let (hearing, preference) = (Hearing::new(me, topology), Preference::new(topology));
        let nodes = 1..=topology.node_count() as u64;
        let (promises, taken, outgoing) = (BTreeMap::new(), decided_taken as usize, Vec::new());
        Self { paxos, shared, stall, hearing, preference, nodes, promises, taken, outgoing }
    }

    /// Whether entries that are proposed here are put in the log here, and not forwarded.
    pub fn is_leader(&self) -> bool {
        self.paxos.get_current_leader() == Some((self.paxos.get_pid(), true))
    }

    /// The replica that leads, as far as this one knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.paxos.get_current_leader().map(|(leader, _)| node(leader))
    }

    /// The term of leadership that this replica has promised to follow, its own or another's.
    pub fn term(&self) -> Term {
        Term(self.paxos.get_promise())
    }

    /// The latest term that a peer has promised here to follow, since this replica started.
    pub fn promise_of(&self, peer: NodeId) -> Term {
        self.promises.get(&pid(peer)).copied().unwrap_or_default()
    }

    /// Puts an entry in the log. Call it on the leader; it may be lost when leadership is.
    ///
    /// # Panics
    /// When called on a replica that does not lead.
    pub fn propose(&mut self, entry: E) {
        assert!(self.is_leader(), "only the leader proposes");
        let appended = self.paxos.append(Wrapped(entry));
        assert!(appended.is_ok(), "the configuration of agreement never stops");
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
        let from = pid(from);
        let message = match check::decode(bytes)? {
            Said::Paxos(message) => message,
            Said::Hears(hears) => {
                check::hears(&hears, &self.nodes)?;
                self.hearing.on_heard(from);
                self.hearing.on_hears(from, hears);
                return Ok(());
            }
        };
        let is_accepting = self.paxos.get_current_leader().is_some_and(|(_, accepts)| accepts);
        let (decided, end) = self.lock().state.extent();
        let bounds = Bounds {
            me: self.paxos.get_pid(),
            from,
            nodes: *self.nodes.end(),
            promise: self.paxos.get_promise(),
            is_accepting,
            decided: decided.max(self.paxos.get_decided_idx()),
            end,
            is_sound,
        };
        bounds.check(&message)?;
        self.stall.on_heard(from);
        self.hearing.on_heard(from);
        if let Some(promised) = check::promised(&message) {
            let promise = self.promises.entry(from).or_default();
            *promise = (*promise).max(Term(promised));
        }
        self.paxos.handle_incoming(message);
        self.collect_outgoing();
        Ok(())
    }

    /// Lets time pass. To be called every [`TICK`].
    pub fn on_tick(&mut self) {
        self.paxos.tick();
        self.collect_outgoing();
        let leader = self.paxos.get_current_leader();
        let is_following = leader.is_some_and(|(_, is_accepting)| is_accepting);
        let followed = leader.filter(|_| is_following).map(|(leader, _)| leader);
        let is_due = self.preference.is_due(&self.hearing, followed);
        if self.stall.is_over(is_following) || is_due {
            self.paxos.try_become_leader();
        }
        if let Some(hears) = self.hearing.tick() {
            let peers = self.nodes.clone().filter(|peer| *peer != self.paxos.get_pid());
            self.outgoing.extend(peers.map(|peer| (node(peer), Said::Hears(hears.clone()))));
        }
    }

    /// A connection was made again; messages before it may be lost.
    pub fn on_peer_up(&mut self, peer: NodeId) {
        self.paxos.reconnected(pid(peer));
    }

    /// Asks for leadership now.
    #[cfg(test)]
    pub(crate) fn campaign(&mut self) {
        self.paxos.try_become_leader();
    }

    /// Forgets entries up to `upto`, as far as every replica has them.
    pub fn trim(&mut self, upto: u64) {
        if self.is_leader() && upto as usize > self.paxos.get_compacted_idx() {
            // Refused while a replica is away: the entries are kept for it.
            let _ = self.paxos.trim(Some(upto as usize));
        }
    }

    /// Forgets entries up to `upto` here, whoever may lack them, if so many are known to be decided
    /// here. Returns whether there were any.
    pub fn compact(&mut self, upto: u64) -> bool {
        upto > self.forgotten() && self.paxos.snapshot(Some(upto as usize), true).is_ok()
    }

    /// How many entries are forgotten here.
    pub fn forgotten(&self) -> u64 {
        self.paxos.get_compacted_idx() as u64
    }

    /// The smallest list of records that leads to the present state.
    pub fn compacted_records(&self) -> Vec<Record<E>> {
        self.lock().state.to_records()
    }

    /// What this replica remembers, for one that has forgotten it.
    pub fn remembered(&self) -> Remembered<E> {
        Remembered(self.lock().state.clone())
    }

    /// Takes what happened since the last call.
    pub fn drain(&mut self) -> Drained<E> {
        self.collect_outgoing();
        let outgoing = std::mem::take(&mut self.outgoing);
        let encode = |(to, said): (NodeId, Said<E>)| {
            (to, postcard::to_stdvec(&said).expect("a message in memory can be encoded"))
        };
        let messages = outgoing.into_iter().map(encode).collect();
        let (skipped, decided) = self.newly_decided();
        let records = self.lock().take_journal();
        Drained { records, messages, skipped, decided }
    }

    /// Takes the messages of one call. Before the next call the log is as it was when they were
    /// made, so that what a synchronisation lacks of it can be put in.
    fn collect_outgoing(&mut self) {
        let mut messages = Vec::new();
        self.paxos.take_outgoing_messages(&mut messages);
        let synchronisations = messages.iter_mut().filter_map(synchronisation);
        synchronisations.for_each(|sync| self.lock().state.skip_forgotten(sync));
        let addressed =
            |message: PaxosMessage<_>| (node(message.get_receiver()), Said::Paxos(message));
        self.outgoing.extend(messages.into_iter().map(addressed));
    }

    fn newly_decided(&mut self) -> (Option<u64>, Vec<(u64, E)>) {
        let entries = self.paxos.read_decided_suffix(self.taken).unwrap_or_default();
        let mut skipped = None;
        let mut decided = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry {
                LogEntry::Decided(Wrapped(entry)) => {
                    self.taken += 1;
                    decided.push((self.taken as u64, entry));
                }
                LogEntry::Trimmed(upto) => {
                    self.taken = self.taken.max(upto);
                    skipped = Some(self.taken as u64);
                }
                LogEntry::Undecided(_) | LogEntry::Snapshotted(_) | LogEntry::StopSign(..) => {
                    panic!("a decided suffix holds decided entries alone")
                }
            }
        }
        (skipped, decided)
    }

    fn lock(&self) -> MutexGuard<'_, Shared<E>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
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

/// What brings a log up to date, in a message that does.
fn synchronisation<E: Decision>(
    message: &mut PaxosMessage<Wrapped<E>>,
) -> Option<&mut LogSync<Wrapped<E>>> {
    match message {
        PaxosMessage::SequencePaxos(message) => match &mut message.msg {
            PaxosMsg::AcceptSync(sync) => Some(&mut sync.log_sync),
            PaxosMsg::Promise(promise) => promise.log_sync.as_mut(),
            _ => None,
        },
        PaxosMessage::BLE(_) => None,
    }
}

/// Ids of `omnipaxos` begin at 1.
fn pid(node: NodeId) -> u64 {
    u64::from(node.0) + 1
}

fn node(pid: u64) -> NodeId {
    NodeId((pid - 1) as u16)
}

/// A heartbeat must have time to come back.
fn election_ticks(topology: &Topology) -> u64 {
    let round_trip_ms = topology.round_trip_max().us / 1_000;
    let tick_ms = TICK.us / 1_000;
    (round_trip_ms + round_trip_ms / 2).max(ELECTION_MS_MIN).div_ceil(tick_ms)
}
