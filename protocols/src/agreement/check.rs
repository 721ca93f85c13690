//! Checks of the messages of peers. `omnipaxos` uses the numbers in a message as they are, for
//! lookups, sums and storage. Therefore a message that no replica of this log would send is
//! rejected first.
//!
//! The checks find nonsense: impossible numbers, node ids that do not exist, and parts of the
//! component that are not used here. A peer that lies within these limits is outside the crash
//! failure model.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::messages::Message as PaxosMessage;
use omnipaxos::messages::ballot_leader_election::{BLEMessage, HeartbeatMsg};
use omnipaxos::messages::sequence_paxos::{Compaction, PaxosMsg, Promise};
use omnipaxos::storage::SnapshotType;
use omnipaxos::util::{LogSync, SequenceNumber};

use super::{AgreementMessage, Decision, Wrapped};

/// The id of the only configuration: it never changes.
pub(super) const CONFIGURATION: u32 = 1;

/// The limit of ballot numbers. An election increments a number by one, so it is never reached.
const BALLOT_MAX: u32 = 1 << 31;

/// The limit of log indexes and other counts; no log is as long.
pub(super) const INDEX_MAX: usize = 1 << 48;

/// The reason why a message was rejected: the name of the mark that counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

pub(super) const MALFORMED: Refused = Refused("agreement.refused_malformed");
pub(super) const NAME: Refused = Refused("agreement.refused_name");
pub(super) const BALLOT: Refused = Refused("agreement.refused_ballot");
const INDEX: Refused = Refused("agreement.refused_index");
const ENTRY: Refused = Refused("agreement.refused_entry");
/// Either nonsense, or a reply to a message from before the connection was lost or before this
/// replica learned of more decisions.
const OUT_OF_PLACE: Refused = Refused("agreement.out_of_place");
const UNUSED: Refused = Refused("agreement.refused_unused");

/// Decodes a message.
pub(super) fn decode<E: Decision>(bytes: &[u8]) -> Result<AgreementMessage<E>, Refused> {
    postcard::from_bytes(bytes).map_err(|_| MALFORMED)
}

/// Checks that these replicas exist.
pub(super) fn hears(hears: &BTreeSet<u64>, nodes: &RangeInclusive<u64>) -> Result<(), Refused> {
    if hears.iter().all(|peer| nodes.contains(peer)) { Ok(()) } else { Err(NAME) }
}

/// This replica's state, which bounds the messages that its peers can send.
pub(super) struct Bounds<'a, E> {
    /// This replica.
    pub me: u64,
    /// The peer.
    pub from: u64,
    /// The number of replicas.
    pub nodes: u64,
    /// The ballot that this replica has promised.
    pub promise: Ballot,
    /// Whether this replica has finished the prepare phase of that ballot.
    pub is_accepting: bool,
    /// The number of entries that are decided on this replica.
    pub decided: usize,
    /// The number of entries on this replica.
    pub end: usize,
    /// Whether a replica could propose an entry.
    pub is_sound: &'a dyn Fn(&E) -> bool,
}

impl<E: Decision> Bounds<'_, E> {
    /// Checks whether the peer can have sent this.
    pub(super) fn check(&self, message: &PaxosMessage<Wrapped<E>>) -> Result<(), Refused> {
        if (message.get_sender(), message.get_receiver()) != (self.from, self.me) {
            return Err(NAME);
        }
        match message {
            PaxosMessage::SequencePaxos(message) => self.check_paxos(&message.msg),
            PaxosMessage::BLE(message) => self.check_election(message),
        }
    }

    fn check_election(&self, message: &BLEMessage) -> Result<(), Refused> {
        match &message.msg {
            HeartbeatMsg::Request(_) => Ok(()),
            HeartbeatMsg::Reply(reply) => {
                self.ballot_of(reply.ballot, self.from)?;
                self.ballot_or_none(reply.leader)
            }
        }
    }

    fn check_paxos(&self, message: &PaxosMsg<Wrapped<E>>) -> Result<(), Refused> {
        match message {
            PaxosMsg::PrepareReq(request) => self.ballot_or_none(request.n),
            PaxosMsg::Prepare(prepare) => {
                self.ballot_of(prepare.n, self.from)?;
                self.ballot_or_none(prepare.n_accepted)?;
                index(prepare.accepted_idx, prepare.decided_idx..=INDEX_MAX)?;
                index(prepare.decided_idx, 0..=INDEX_MAX)
            }
            PaxosMsg::Promise(promise) => self.check_promise(promise),
            PaxosMsg::AcceptSync(sync) => {
                self.ballot_of(sync.n, self.from)?;
                sequence(sync.seq_num)?;
                self.check_log_sync(&sync.log_sync, sync.decided_idx)?;
                // A message of another ballot gets a reply, and a repeated one is ignored.
                if self.is_accepting || sync.n != self.promise {
                    return Ok(());
                }
                // It begins at this replica's position when it promised.
                let is_in_place = self.places(&sync.log_sync).contains(&sync.log_sync.sync_idx);
                if is_in_place { Ok(()) } else { Err(OUT_OF_PLACE) }
            }
            PaxosMsg::AcceptDecide(accept) => {
                self.ballot_of(accept.n, self.from)?;
                sequence(accept.seq_num)?;
                index(accept.decided_idx, 0..=INDEX_MAX)?;
                self.check_entries(&accept.entries)
            }
            PaxosMsg::Accepted(accepted) => {
                self.ballot_of(accepted.n, self.me)?;
                // No replica has more of the leader's log than the leader. A deposed leader may
                // have less than it had, and does not use the message.
                let most = if accepted.n == self.promise { self.end } else { INDEX_MAX };
                index(accepted.accepted_idx, 0..=most)
            }
            PaxosMsg::NotAccepted(refusal) => self.ballot_or_none(refusal.n),
            PaxosMsg::Decide(decide) => {
                self.ballot_of(decide.n, self.from)?;
                sequence(decide.seq_num)?;
                index(decide.decided_idx, 0..=INDEX_MAX)
            }
            // Entries are trimmed once all replicas have them and have applied them or their
            // effects.
            PaxosMsg::Compaction(Compaction::Trim(upto)) => index(*upto, 0..=self.end),
            // Only the leader proposes, the configuration never stops, and each replica truncates
            // independently.
            PaxosMsg::ProposalForward(_)
            | PaxosMsg::Compaction(Compaction::Snapshot(_))
            | PaxosMsg::AcceptStopSign(_)
            | PaxosMsg::ForwardStopSign(_) => Err(UNUSED),
        }
    }

    fn check_promise(&self, promise: &Promise<Wrapped<E>>) -> Result<(), Refused> {
        self.ballot_of(promise.n, self.me)?;
        self.ballot_or_none(promise.n_accepted)?;
        index(promise.accepted_idx, promise.decided_idx..=INDEX_MAX)?;
        if let Some(sync) = &promise.log_sync {
            self.check_log_sync(sync, promise.decided_idx)?;
        }
        if promise.n != self.promise {
            // The promise is for an earlier ballot: no part of it is used.
            return Ok(());
        }
        index(promise.decided_idx, 0..=INDEX_MAX)?;
        match &promise.log_sync {
            // A late promise counts, and its entries are not used.
            Some(_) if self.is_accepting => Ok(()),
            // It begins at this replica's position when it prepared. After another prepare it will
            // be correct.
            Some(sync) if self.places(sync).contains(&sync.sync_idx) => Ok(()),
            Some(_) => Err(OUT_OF_PLACE),
            // A peer that knows more decided entries than this replica has sends the missing ones.
            None => index(promise.decided_idx, 0..=self.end),
        }
    }

    /// The positions at which entries can be inserted in this replica's log: after the decided
    /// ones, and without a gap unless a snapshot says that the entries between were truncated.
    fn places(&self, sync: &LogSync<Wrapped<E>>) -> RangeInclusive<usize> {
        let last = if sync.decided_snapshot.is_some() { INDEX_MAX } else { self.end };
        self.decided..=last
    }

    /// Checks entries that continue a log, and the number of entries decided with them.
    fn check_log_sync(&self, sync: &LogSync<Wrapped<E>>, decided: usize) -> Result<(), Refused> {
        let is_part = matches!(sync.decided_snapshot, Some(SnapshotType::Delta(_)));
        if is_part || sync.stopsign.is_some() {
            return Err(UNUSED);
        }
        index(sync.sync_idx, 0..=INDEX_MAX)?;
        if sync.decided_snapshot.is_some() {
            // Only decided entries are truncated.
            index(sync.sync_idx, 0..=decided)?;
        }
        index(decided, 0..=sync.sync_idx + sync.suffix.len())?;
        self.check_entries(&sync.suffix)
    }

    fn check_entries(&self, entries: &[Wrapped<E>]) -> Result<(), Refused> {
        let is_sound = |entry: &Wrapped<E>| (self.is_sound)(&entry.0);
        if entries.iter().all(is_sound) { Ok(()) } else { Err(ENTRY) }
    }

    /// Checks that a ballot is one of this node.
    fn ballot_of(&self, ballot: Ballot, pid: u64) -> Result<(), Refused> {
        let is_sound = is_ballot(ballot, self.nodes) && ballot.pid == pid;
        if is_sound { Ok(()) } else { Err(BALLOT) }
    }

    /// Checks that a ballot is one of any node, or that of a node that has not seen one.
    fn ballot_or_none(&self, ballot: Ballot) -> Result<(), Refused> {
        if ballot == Ballot::default() { Ok(()) } else { self.ballot_of(ballot, ballot.pid) }
    }
}

/// Whether it is a ballot of some node.
pub(super) fn is_ballot(ballot: Ballot, nodes: u64) -> bool {
    ballot.config_id == CONFIGURATION && ballot.n < BALLOT_MAX && (1..=nodes).contains(&ballot.pid)
}

/// The ballot whose log the sender has accepted, if the message says so.
pub(super) fn accepted<E: Decision>(message: &PaxosMessage<Wrapped<E>>) -> Option<Ballot> {
    match message {
        PaxosMessage::SequencePaxos(message) => match &message.msg {
            PaxosMsg::Accepted(accepted) => Some(accepted.n),
            _ => None,
        },
        PaxosMessage::BLE(_) => None,
    }
}

/// The ballot for which the sender asks for a promise.
pub(super) fn prepared<E: Decision>(message: &PaxosMessage<Wrapped<E>>) -> Option<Ballot> {
    match message {
        PaxosMessage::SequencePaxos(message) => match &message.msg {
            PaxosMsg::Prepare(prepare) => Some(prepare.n),
            _ => None,
        },
        PaxosMessage::BLE(_) => None,
    }
}

/// The ballot that the sender has promised, if the message contains it.
pub(super) fn promised<E: Decision>(message: &PaxosMessage<Wrapped<E>>) -> Option<Ballot> {
    match message {
        PaxosMessage::SequencePaxos(message) => match &message.msg {
            PaxosMsg::Promise(promise) => Some(promise.n),
            PaxosMsg::Accepted(accepted) => Some(accepted.n),
            _ => None,
        },
        PaxosMessage::BLE(_) => None,
    }
}

fn index(index: usize, range: RangeInclusive<usize>) -> Result<(), Refused> {
    if range.contains(&index) { Ok(()) } else { Err(INDEX) }
}

fn sequence(number: SequenceNumber) -> Result<(), Refused> {
    let is_sound = number.session.max(number.counter) <= INDEX_MAX as u64;
    if is_sound { Ok(()) } else { Err(INDEX) }
}
