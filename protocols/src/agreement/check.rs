//! What a peer may say. `omnipaxos` looks up, adds and stores what a message holds as it is; a
//! message that no replica of this log would send is refused before that.
//!
//! It finds nonsense: numbers that can't be, nodes that there are not, parts of the component that
//! are not used here. A peer that lies within its limits is outside of the crash model.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::messages::Message as PaxosMessage;
use omnipaxos::messages::ballot_leader_election::{BLEMessage, HeartbeatMsg};
use omnipaxos::messages::sequence_paxos::{Compaction, PaxosMsg, Promise};
use omnipaxos::storage::SnapshotType;
use omnipaxos::util::{LogSync, SequenceNumber};

use super::{Decision, Said, Wrapped};

/// The configuration never changes, so there is one.
pub(super) const CONFIGURATION: u32 = 1;

/// Ballots end here: an election counts one up, and there are not so many.
const BALLOT_MAX: u32 = 1 << 31;

/// No log is as long as this, and nothing is counted as far.
pub(super) const INDEX_MAX: usize = 1 << 48;

/// Why a message was refused, as the name under which that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

pub(super) const MALFORMED: Refused = Refused("agreement.refused_malformed");
pub(super) const NAME: Refused = Refused("agreement.refused_name");
pub(super) const BALLOT: Refused = Refused("agreement.refused_ballot");
const INDEX: Refused = Refused("agreement.refused_index");
const ENTRY: Refused = Refused("agreement.refused_entry");
/// Either nonsense, or an answer to what was said before the connection was lost or before more was
/// decided here.
const OUT_OF_PLACE: Refused = Refused("agreement.out_of_place");
const UNUSED: Refused = Refused("agreement.refused_unused");

/// The message in `bytes`.
pub(super) fn decode<E: Decision>(bytes: &[u8]) -> Result<Said<E>, Refused> {
    postcard::from_bytes(bytes).map_err(|_| MALFORMED)
}

/// Whether there are such replicas to hear.
pub(super) fn hears(hears: &BTreeSet<u64>, nodes: &RangeInclusive<u64>) -> Result<(), Refused> {
    if hears.iter().all(|peer| nodes.contains(peer)) { Ok(()) } else { Err(NAME) }
}

/// What this replica knows, which tells what its peers can say.
pub(super) struct Bounds<'a, E> {
    /// This replica.
    pub me: u64,
    /// The peer.
    pub from: u64,
    /// How many replicas there are.
    pub nodes: u64,
    /// The ballot that this replica has promised.
    pub promise: Ballot,
    /// Whether it is past the preparation of that.
    pub is_accepting: bool,
    /// How many entries are decided here.
    pub decided: usize,
    /// How many entries there are here.
    pub end: usize,
    /// Whether an entry is one that a replica would propose.
    pub is_sound: &'a dyn Fn(&E) -> bool,
}

impl<E: Decision> Bounds<'_, E> {
    /// Whether the peer can have said this.
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
                // One of another ballot is answered, and one that comes again is passed over.
                if self.is_accepting || sync.n != self.promise {
                    return Ok(());
                }
                // It begins where this replica was when it promised.
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
                // Nobody has more of the leader's log than the leader. One that was deposed may
                // have less than it had, and makes no use of it.
                let most = if accepted.n == self.promise { self.end } else { INDEX_MAX };
                index(accepted.accepted_idx, 0..=most)
            }
            PaxosMsg::NotAccepted(refusal) => self.ballot_or_none(refusal.n),
            PaxosMsg::Decide(decide) => {
                self.ballot_of(decide.n, self.from)?;
                sequence(decide.seq_num)?;
                index(decide.decided_idx, 0..=INDEX_MAX)
            }
            // Entries are trimmed when all have them, and have used them, or what they came to.
            PaxosMsg::Compaction(Compaction::Trim(upto)) => index(*upto, 0..=self.end),
            // Only the leader proposes, the configuration never stops, and each forgets for itself.
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
            // To a ballot that is over: nothing of it is used.
            return Ok(());
        }
        index(promise.decided_idx, 0..=INDEX_MAX)?;
        match &promise.log_sync {
            // One that comes late is counted, and its entries are not used.
            Some(_) if self.is_accepting => Ok(()),
            // It begins where this replica was when it asked, and asked again it will be right.
            Some(sync) if self.places(sync).contains(&sync.sync_idx) => Ok(()),
            Some(_) => Err(OUT_OF_PLACE),
            // A peer that has decided more than there is here sends what is missing.
            None => index(promise.decided_idx, 0..=self.end),
        }
    }

    /// Where entries can be put in the log that is here: after what is decided, and without a gap
    /// unless they say that what is between is forgotten.
    fn places(&self, sync: &LogSync<Wrapped<E>>) -> RangeInclusive<usize> {
        let last = if sync.decided_snapshot.is_some() { INDEX_MAX } else { self.end };
        self.decided..=last
    }

    /// Entries that a log is continued with, and how many are decided with them.
    fn check_log_sync(&self, sync: &LogSync<Wrapped<E>>, decided: usize) -> Result<(), Refused> {
        let is_part = matches!(sync.decided_snapshot, Some(SnapshotType::Delta(_)));
        if is_part || sync.stopsign.is_some() {
            return Err(UNUSED);
        }
        index(sync.sync_idx, 0..=INDEX_MAX)?;
        if sync.decided_snapshot.is_some() {
            // Nothing is forgotten that is not decided.
            index(sync.sync_idx, 0..=decided)?;
        }
        index(decided, 0..=sync.sync_idx + sync.suffix.len())?;
        self.check_entries(&sync.suffix)
    }

    fn check_entries(&self, entries: &[Wrapped<E>]) -> Result<(), Refused> {
        let is_sound = |entry: &Wrapped<E>| (self.is_sound)(&entry.0);
        if entries.iter().all(is_sound) { Ok(()) } else { Err(ENTRY) }
    }

    /// A ballot of this node.
    fn ballot_of(&self, ballot: Ballot, pid: u64) -> Result<(), Refused> {
        let is_sound = is_ballot(ballot, self.nodes) && ballot.pid == pid;
        if is_sound { Ok(()) } else { Err(BALLOT) }
    }

    /// A ballot of any node, or that of who has not seen one.
    fn ballot_or_none(&self, ballot: Ballot) -> Result<(), Refused> {
        if ballot == Ballot::default() { Ok(()) } else { self.ballot_of(ballot, ballot.pid) }
    }
}

/// Whether it is a ballot of some node.
pub(super) fn is_ballot(ballot: Ballot, nodes: u64) -> bool {
    ballot.config_id == CONFIGURATION && ballot.n < BALLOT_MAX && (1..=nodes).contains(&ballot.pid)
}

/// The ballot that the sender has promised, where the message says so.
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
