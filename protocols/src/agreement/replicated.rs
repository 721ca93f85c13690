//! A log of several replicas: `omnipaxos` and the additions around it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use omnipaxos::messages::Message as PaxosMessage;
use omnipaxos::messages::sequence_paxos::PaxosMsg;
use omnipaxos::util::{LogEntry, LogSync};
use omnipaxos::{ClusterConfig, OmniPaxos, ServerConfig};
use pangea_core::ids::NodeId;
use pangea_core::mutate;
use pangea_core::topology::Topology;

use super::check::{self, Bounds, Refused};
use super::leadership::{Hearing, Preference, Stall, centrality};
use super::storage::{Record, Shared, State, Storage};
use super::{
    AgreementMessage, Decision, DurableState, Ready, TICK, Term, Wrapped, election_ticks,
    master_patience, node, pid,
};

/// A message without a reply is sent again after this number of ticks.
const RESEND_TICKS: u64 = 50;

/// One replica of the log.
pub struct ReplicatedLog<E: Decision> {
    pub(super) paxos: OmniPaxos<Wrapped<E>, Storage<E>>,
    shared: Arc<Mutex<Shared<E>>>,
    stall: Stall,
    hearing: Hearing,
    preference: Preference,
    /// Whether this replica requests leadership from the leader before it campaigns, and whether it
    /// should do so now.
    has_preferred_master: bool,
    requests_leadership: bool,
    /// The replicas, as ids of `omnipaxos`.
    nodes: RangeInclusive<u64>,
    /// The latest term that each peer has promised.
    promises: BTreeMap<u64, Term>,
    /// The latest term that each peer has promised or accepted since it last connected: before
    /// that it may have been another life of it, which could vote.
    votes: BTreeMap<u64, Term>,
    /// The latest term whose log each peer has accepted.
    accepted: BTreeMap<u64, Term>,
    /// The number of decided entries that have been returned or skipped.
    taken: usize,
    /// Messages that wait for the next [`Agreement::drain`].
    outgoing: Vec<(NodeId, AgreementMessage<E>)>,
}

impl<E: Decision> ReplicatedLog<E> {
    /// Creates a replica that continues from `records`, which are all that it ever persisted. It
    /// returns decisions after entry `decided_taken`; the caller has processed those up to it.
    ///
    /// `decided_taken` says nothing about the entries in `records`. The caller may have it from a
    /// peer, and other entries may be decided in their place.
    pub(super) fn new(
        me: NodeId,
        topology: &Topology,
        records: impl IntoIterator<Item = Record<E>>,
        decided_taken: u64,
        master: Option<NodeId>,
    ) -> Self {
        let mut state = State::default();
        for record in records {
            mutate!(PromiseForgotten: () => if matches!(record, Record::Promise(_)) { continue });
            state.replay(record);
        }
        let shared = Arc::new(Mutex::new(Shared { state, journal: Vec::new() }));
        let storage = Storage::new(Arc::clone(&shared));
        let cluster = ClusterConfig {
            configuration_id: check::CONFIGURATION,
            nodes: topology.node_ids().map(pid).collect(),
            flexible_quorum: None,
        };
        let server = ServerConfig {
            pid: pid(me),
            election_tick_timeout: match master {
                Some(_) => master_patience(topology).us / TICK.us,
                None => election_ticks(topology),
            },
            resend_message_tick_timeout: RESEND_TICKS.max(2 * election_ticks(topology)),
            leader_priority: centrality(me, topology, master),
            ..ServerConfig::default()
        };
        let paxos = cluster.build_for_server(server, storage);
        let paxos = paxos.expect("the topology makes a valid configuration");
        let stall = Stall::new(me, topology);
        let (hearing, preference) = (Hearing::new(me, topology), Preference::new(topology, master));
        let nodes = 1..=topology.node_count() as u64;
        let (taken, outgoing) = (decided_taken as usize, Vec::new());
        let (has_preferred_master, requests_leadership) = (master.is_some(), false);
        Self {
            paxos,
            shared,
            stall,
            hearing,
            preference,
            has_preferred_master,
            requests_leadership,
            nodes,
            promises: BTreeMap::new(),
            votes: BTreeMap::new(),
            accepted: BTreeMap::new(),
            taken,
            outgoing,
        }
    }

    /// Whether this replica appends the entries that it proposes, and does not forward them.
    pub(super) fn is_leader(&self) -> bool {
        self.paxos.get_current_leader() == Some((self.paxos.get_pid(), true))
    }

    /// The leader, as far as this replica knows.
    pub(super) fn leader(&self) -> Option<NodeId> {
        self.paxos.get_current_leader().map(|(leader, _)| node(leader))
    }

    /// The leadership term that this replica has promised to follow: its own or another's.
    pub(super) fn term(&self) -> Term {
        Term(self.paxos.get_promise())
    }

    /// The latest term that a peer has promised this replica to follow, since this replica started.
    pub(super) fn promise_of(&self, peer: NodeId) -> Term {
        self.promises.get(&pid(peer)).copied().unwrap_or_default()
    }

    /// Whether a peer has voted in this replica's term since it last connected.
    pub(super) fn has_vote_of(&self, peer: NodeId) -> bool {
        self.votes.get(&pid(peer)) == Some(&self.term())
    }

    /// Whether a majority, of which this replica is one, has accepted the log of its term.
    pub(super) fn is_followed(&self) -> bool {
        let term = self.term();
        let followers = self.accepted.values().filter(|accepted| **accepted == term).count();
        2 * (followers + 1) > *self.nodes.end() as usize
    }

    /// Proposes an entry. Must be called on the leader. The entry may be lost if leadership is.
    ///
    /// # Panics
    /// Panics if this replica does not lead.
    pub(super) fn propose(&mut self, entry: E) {
        assert!(self.is_leader(), "only the leader proposes");
        let appended = self.paxos.append(Wrapped(entry));
        assert!(appended.is_ok(), "the configuration of agreement is never stopped");
    }

    /// Handles a message from a peer. `is_sound` returns whether a replica could propose an entry.
    ///
    /// # Errors
    /// Returns an error if no replica of this log would send this; the state is then unchanged.
    pub(super) fn on_message(
        &mut self,
        from: NodeId,
        bytes: &[u8],
        is_sound: &dyn Fn(&E) -> bool,
    ) -> Result<(), Refused> {
        let from = pid(from);
        let message = match check::decode(bytes)? {
            AgreementMessage::Paxos(message) => message,
            AgreementMessage::Hears(hears) => {
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
            self.votes.insert(from, Term(promised));
        }
        if let Some(accepted) = check::accepted(&message) {
            self.accepted.insert(from, Term(accepted));
        }
        // It would be ignored, because this replica has promised. But the leader has forgotten
        // that, in reply to a request from before this replica knew a leader, and sends it nothing.
        let is_forgotten =
            is_accepting && check::prepared(&message) == Some(self.paxos.get_promise());
        self.paxos.handle_incoming(message);
        if is_forgotten {
            self.paxos.reconnected(from);
        }
        self.collect_outgoing();
        Ok(())
    }

    /// Advances the clock. Must be called every [`TICK`]. `has_ambition` tells whether this replica
    /// seeks leadership if it is the better leader.
    pub(super) fn on_tick(&mut self, has_ambition: bool) {
        self.paxos.tick();
        self.collect_outgoing();
        let leader = self.paxos.get_current_leader();
        let is_following = leader.is_some_and(|(_, is_accepting)| is_accepting);
        let followed = leader.filter(|_| is_following).map(|(leader, _)| leader);
        let is_due = self.preference.is_due(&self.hearing, followed) && has_ambition;
        self.requests_leadership |= is_due && self.has_preferred_master;
        if self.stall.is_over(is_following) || (is_due && !self.has_preferred_master) {
            self.paxos.try_become_leader();
        }
        if let Some(hears) = self.hearing.tick() {
            let peers = self.nodes.clone().filter(|peer| *peer != self.paxos.get_pid());
            self.outgoing
                .extend(peers.map(|peer| (node(peer), AgreementMessage::Hears(hears.clone()))));
        }
    }

    /// Handles a reconnect to a peer; earlier messages may be lost.
    pub(super) fn on_peer_up(&mut self, peer: NodeId) {
        self.votes.remove(&pid(peer));
        self.paxos.reconnected(pid(peer));
    }

    pub(super) fn take_leadership_request(&mut self) -> bool {
        std::mem::take(&mut self.requests_leadership)
    }

    pub(super) fn end(&self) -> u64 {
        self.lock().state.end() as u64
    }

    /// The number of the last entry, decided or not, that fulfils a condition.
    pub(super) fn last_of(&self, is_it: impl Fn(&E) -> bool) -> Option<u64> {
        self.lock().state.last_of(is_it)
    }

    /// Campaigns for leadership now.
    pub(super) fn campaign(&mut self) {
        self.paxos.try_become_leader();
    }

    /// Truncates entries up to `upto`, as far as every replica has them.
    pub(super) fn trim(&mut self, upto: u64) {
        if self.is_leader() && upto as usize > self.paxos.get_compacted_idx() {
            // `omnipaxos` refuses this while a replica is unreachable: the entries are retained for
            // it.
            let _ = self.paxos.trim(Some(upto as usize));
        }
    }

    /// Truncates entries up to `upto` on this replica, even if another replica is missing them,
    /// provided that they are known to be decided. Returns whether there were any.
    pub(super) fn compact(&mut self, upto: u64) -> bool {
        upto > self.forgotten() && self.paxos.snapshot(Some(upto as usize), true).is_ok()
    }

    /// The number of entries that are truncated on this replica.
    pub(super) fn forgotten(&self) -> u64 {
        self.paxos.get_compacted_idx() as u64
    }

    /// The smallest list of records that restores the present state.
    pub(super) fn compacted_records(&self) -> Vec<Record<E>> {
        self.lock().state.to_records()
    }

    /// This replica's durable state, for a replica that has lost its own.
    pub(super) fn durable_state(&self) -> DurableState<E> {
        DurableState(self.lock().state.clone())
    }

    /// Takes the pending work since the last call.
    pub(super) fn take_ready(&mut self) -> Ready<E> {
        self.collect_outgoing();
        let outgoing = std::mem::take(&mut self.outgoing);
        let encode = |(to, message): (NodeId, AgreementMessage<E>)| {
            (to, postcard::to_stdvec(&message).expect("a message can be encoded"))
        };
        let messages = outgoing.into_iter().map(encode).collect();
        let (skipped, decided) = self.newly_decided();
        let records = self.lock().take_journal();
        Ready { records, messages, skipped, decided, is_decided_here: false }
    }

    /// Takes the messages of one call. Until the next call the log is unchanged since they were
    /// created, so the truncated part of a synchronisation can be filled in.
    fn collect_outgoing(&mut self) {
        let mut messages = Vec::new();
        self.paxos.take_outgoing_messages(&mut messages);
        let synchronisations = messages.iter_mut().filter_map(synchronisation);
        synchronisations.for_each(|sync| self.lock().state.skip_forgotten(sync));
        let addressed = |message: PaxosMessage<_>| {
            (node(message.get_receiver()), AgreementMessage::Paxos(message))
        };
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
                    panic!("a decided suffix has only decided entries")
                }
            }
        }
        (skipped, decided)
    }

    fn lock(&self) -> MutexGuard<'_, Shared<E>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log synchronisation in a message, if it contains one.
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
