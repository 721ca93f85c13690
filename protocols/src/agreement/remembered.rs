//! What replicas remember, for one of them that has forgotten all that it said.
//!
//! A replica whose disk is gone may have promised ballots and accepted entries. It asks the others,
//! and goes on from the highest promise and the furthest log among their answers. That is no less
//! than it had said:
//!
//! - A ballot that it promised to a peer was promised by that peer first. A peer that has forgotten
//!   it too leads in it no more; what it led to is known to some other that promised it.
//! - What it accepted from a leader, the leader had before. What it accepted as the leader itself
//!   was chosen only if others accepted it too.
//! - A log that was accepted in a later ballot holds everything that was chosen before that. Told
//!   to the next leader, by who never said that it was accepted there, it counts nothing twice.

use omnipaxos::ballot_leader_election::Ballot;
use pangea_core::planted::{Bug, is_planted};

use super::check::{BALLOT, INDEX_MAX, MALFORMED, is_ballot};
use super::storage::{Record, State};
use super::{Decision, Refused};

/// The durable state of one replica of the log, on its way to another.
#[derive(Clone, Debug)]
pub struct Remembered<E>(pub(super) State<E>);

impl<E: Decision> Remembered<E> {
    /// The state as bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&self.0).expect("a state in memory can be encoded")
    }

    /// Reads what [`Remembered::encode`] wrote. `is_sound` tells entries that a replica would
    /// propose.
    ///
    /// # Errors
    /// When no replica of a log of `node_count` would have said this.
    pub fn decode(
        bytes: &[u8],
        node_count: usize,
        is_sound: &dyn Fn(&E) -> bool,
    ) -> Result<Self, Refused> {
        let state: State<E> = postcard::from_bytes(bytes).map_err(|_| MALFORMED)?;
        let is_known =
            |ballot: &Ballot| *ballot == Ballot::default() || is_ballot(*ballot, node_count as u64);
        if !state.promise.iter().chain(&state.accepted_round).all(is_known) {
            return Err(BALLOT);
        }
        let is_ordered = state.trimmed <= INDEX_MAX
            && state.trimmed <= state.decided
            && state.decided <= state.end();
        if is_ordered && state.entries.iter().all(is_sound) {
            Ok(Self(state))
        } else {
            Err(MALFORMED)
        }
    }

    /// How many entries are known to be decided.
    pub fn decided(&self) -> u64 {
        self.0.decided as u64
    }

    /// The journal of a replica that knows no less than any of these, which are not none.
    ///
    /// # Panics
    /// When nobody remembers.
    pub fn merge(all: Vec<Self>) -> Vec<Record<E>> {
        let promise = all.iter().filter_map(|one| one.0.promise).max();
        let decided = all.iter().map(|one| one.0.decided).max().unwrap_or_default();
        let progress = |one: &Self| (one.0.accepted_round.unwrap_or_default(), one.0.end());
        let furthest = all.into_iter().max_by_key(progress);
        let Self(mut state) = furthest.expect("somebody remembers");
        state.decided = decided.min(state.end());
        state.promise = promise;
        if is_planted(Bug::RejoinForgetsVotes) {
            (state.promise, state.accepted_round) = (None, None);
            state.entries.truncate(state.decided - state.trimmed);
        }
        state.to_records()
    }

    /// The entries that are kept.
    pub fn entries(&self) -> &[E] {
        &self.0.entries
    }
}
