//! The recovery of a replica that has lost its promises and entries, from the state of its peers.
//!
//! A replica that lost its disk may have promised ballots and accepted entries. It asks all peers,
//! and continues from the highest promise and the most advanced log among their answers. That
//! covers everything that it had sent:
//!
//! - A ballot that it promised to a peer was promised by that peer first. If that peer has lost its
//!   state too, it no longer leads in that ballot; entries chosen in it are known to another
//!   replica that promised it.
//! - The leader had every entry that the replica accepted from it. An entry that the replica
//!   accepted as the leader was chosen only if others accepted it too.
//! - A log that was accepted in a later ballot contains every entry that was chosen before. If the
//!   recovered replica reports it to the next leader, without having acknowledged it, no
//!   acknowledgement is counted twice.

use omnipaxos::ballot_leader_election::Ballot;
use pangea_core::mutate;

use super::check::{BALLOT, INDEX_MAX, MALFORMED, is_ballot};
use super::storage::{Record, State};
use super::{Decision, Refused};

/// The durable state of one replica of the log, as sent to another.
#[derive(Clone, Debug)]
pub struct DurableState<E>(pub(super) State<E>);

impl<E: Decision> DurableState<E> {
    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&self.0).expect("the state can be encoded")
    }

    /// Decodes a state that [`DurableState::encode`] wrote. `is_sound` returns whether a replica
    /// could propose an entry.
    ///
    /// # Errors
    /// Returns an error if no replica of a log of `node_count` would send this.
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

    /// The number of entries that are known to be decided.
    pub fn decided(&self) -> u64 {
        self.0.decided as u64
    }

    /// The records of a replica that knows at least as much as each of these; `all` is not empty.
    ///
    /// # Panics
    /// Panics if `all` is empty.
    pub fn merge(all: Vec<Self>) -> Vec<Record<E>> {
        let promise = all.iter().filter_map(|one| one.0.promise).max();
        let decided = all.iter().map(|one| one.0.decided).max().unwrap_or_default();
        let progress = |one: &Self| (one.0.accepted_round.unwrap_or_default(), one.0.end());
        let furthest = all.into_iter().max_by_key(progress);
        let Self(mut state) = furthest.expect("at least one peer remembers");
        state.decided = decided.min(state.end());
        state.promise = promise;
        mutate!(RejoinForgetsVotes: () => rejoin_forgets_votes(&mut state));
        state.to_records()
    }

    /// The retained entries.
    pub fn entries(&self) -> &[E] {
        &self.0.entries
    }
}

fn rejoin_forgets_votes<E>(state: &mut State<E>) {
    (state.promise, state.accepted_round) = (None, None);
    state.entries.truncate(state.decided - state.trimmed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer may have promised a ballot to the replica that lost its disk, and another may have
    /// accepted more in an earlier one.
    #[test]
    fn the_highest_promise_counts_although_another_peer_has_accepted_more() {
        let ballot = |n| Ballot { n, pid: 2, ..Ballot::default() };
        let one =
            State { promise: Some(ballot(7)), decided: 1, entries: vec![1], ..State::default() };
        let other = State {
            promise: Some(ballot(4)),
            accepted_round: Some(ballot(4)),
            entries: vec![1, 2, 3],
            ..State::default()
        };
        let all = vec![DurableState(one), DurableState(other.clone())];
        let mut merged = State::<u32>::default();
        DurableState::merge(all).into_iter().for_each(|record| merged.replay(record));
        assert_eq!(merged.promise, Some(ballot(7)));
        assert_eq!((merged.accepted_round, merged.decided), (other.accepted_round, 1));
        assert_eq!(merged.entries, other.entries);
    }
}
