//! A log with a single replica.
//!
//! A proposal is decided once it is durable on this node. There are no elections and no messages,
//! and `omnipaxos`, which requires at least two nodes, is not used. The records are the same, and
//! restore the same state.

use omnipaxos::ballot_leader_election::Ballot;

use super::storage::{Record, State};
use super::{Decision, Ready, Term, check};

/// The only replica of a log.
pub struct SingleNodeLog<E> {
    state: State<E>,
    /// Changes of the state that have not been returned to the caller yet.
    journal: Vec<Record<E>>,
    /// The number of entries that have been returned.
    taken: usize,
}

impl<E: Decision> SingleNodeLog<E> {
    /// Creates the replica that continues from `records`. All of their entries are decided.
    pub(super) fn new(records: impl IntoIterator<Item = Record<E>>, decided_taken: u64) -> Self {
        let mut state = State::default();
        records.into_iter().for_each(|record| state.replay(record));
        state.decided = state.end();
        Self { state, journal: Vec::new(), taken: decided_taken as usize }
    }

    /// The only term.
    pub(super) fn term() -> Term {
        Term(Ballot { config_id: check::CONFIGURATION, n: 1, priority: 0, pid: 1 })
    }

    pub(super) fn propose(&mut self, entry: E) {
        let record = Record::Entries { from: self.state.end(), entries: vec![entry] };
        self.state.replay(record.clone());
        self.state.decided = self.state.end();
        self.journal.push(record);
    }

    /// Truncates entries up to `upto`, which the caller has processed. Returns whether there were
    /// any.
    pub(super) fn compact(&mut self, upto: u64) -> bool {
        let upto = upto as usize;
        if upto <= self.state.trimmed || upto > self.state.decided {
            return false;
        }
        let record = Record::Trimmed(upto);
        self.state.replay(record.clone());
        self.journal.push(record);
        true
    }

    pub(super) fn state(&self) -> &State<E> {
        &self.state
    }

    pub(super) fn take_ready(&mut self) -> Ready<E> {
        let (trimmed, end) = (self.state.trimmed, self.state.end());
        // The caller may have processed more than it had reported when the entries were truncated.
        let skipped = (self.taken < trimmed).then_some(trimmed as u64);
        self.taken = self.taken.max(trimmed);
        let numbers = self.taken as u64 + 1..;
        let entries = self.state.entries[(self.taken - trimmed).min(end - trimmed)..].iter();
        let decided = numbers.zip(entries.cloned()).collect();
        self.taken = self.taken.max(end);
        let records = std::mem::take(&mut self.journal);
        Ready { records, messages: Vec::new(), skipped, decided, is_decided_here: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_proposed_is_decided_once_and_all_of_it_is_there_after_a_restart() {
        let mut log = SingleNodeLog::new([], 0);
        (1..=3).for_each(|entry| log.propose(entry));
        let ready = log.take_ready();
        assert!(ready.is_decided_here, "the records come first");
        assert_eq!(ready.decided, [(1, 1), (2, 2), (3, 3)]);
        assert_eq!(ready.records.len(), 3);
        assert_eq!(log.take_ready().decided, []);
        log.propose(4);
        let records = ready.records.into_iter().chain(log.take_ready().records);
        let mut again = SingleNodeLog::new(records, 2);
        assert_eq!(again.take_ready().decided, [(3, 3), (4, 4)]);
    }

    #[test]
    fn what_is_forgotten_is_skipped_by_who_had_not_taken_it() {
        let mut log = SingleNodeLog::new([], 0);
        (1..=3).for_each(|entry| log.propose(entry));
        let taken = log.take_ready();
        assert!(log.compact(2));
        assert!(!log.compact(2), "the log was already truncated there");
        assert!(!log.compact(4), "the log is shorter");
        let records: Vec<_> = taken.records.into_iter().chain(log.take_ready().records).collect();
        let mut again = SingleNodeLog::new(records.clone(), 0);
        let ready = again.take_ready();
        assert_eq!((ready.skipped, ready.decided), (Some(2), vec![(3, 3)]));
        let ready = SingleNodeLog::new(records, 3).take_ready();
        assert_eq!((ready.skipped, ready.decided), (None, vec![]));
        let ready = SingleNodeLog::new(again.state().to_records(), 2).take_ready();
        assert_eq!(ready.decided, [(3, 3)]);
    }
}
