//! The storage of `omnipaxos`: memory with a journal of its changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::storage::{
    SnapshotType, StopSign, Storage as PaxosStorage, StorageOp, StorageResult,
};
use omnipaxos::util::LogSync;
use pangea_core::mutate;
use serde::{Deserialize, Serialize};

use super::{Decision, EmptySnapshot, Wrapped};

/// One change of the durable state. Replaying all records in order restores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record<E> {
    /// Entries were written at this index, and all entries after it were removed.
    Entries {
        /// The number of entries of the whole log before these.
        from: usize,
        /// The entries.
        entries: Vec<E>,
    },
    /// The ballot that was promised.
    Promise(Ballot),
    /// The ballot in which the last entry was accepted.
    AcceptedRound(Ballot),
    /// The number of decided entries.
    Decided(usize),
    /// The number of truncated entries.
    Trimmed(usize),
}

/// The durable state of one replica of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct State<E> {
    pub(super) promise: Option<Ballot>,
    pub(super) accepted_round: Option<Ballot>,
    pub(super) decided: usize,
    pub(super) trimmed: usize,
    /// The entries after the first `trimmed`.
    pub(super) entries: Vec<E>,
}

impl<E> Default for State<E> {
    fn default() -> Self {
        Self { promise: None, accepted_round: None, decided: 0, trimmed: 0, entries: Vec::new() }
    }
}

impl<E: Decision> State<E> {
    pub(super) fn replay(&mut self, record: Record<E>) {
        let record = mutate!(EntriesKept: record => entries_kept(self, record));
        match record {
            Record::Entries { from, entries } => {
                assert!(from >= self.trimmed, "truncated entries are not written again");
                self.entries.truncate(from - self.trimmed);
                assert_eq!(self.trimmed + self.entries.len(), from, "entries have no gap");
                self.entries.extend(entries);
            }
            Record::Promise(ballot) => self.promise = Some(ballot),
            Record::AcceptedRound(ballot) => self.accepted_round = Some(ballot),
            Record::Decided(count) => self.decided = self.decided.max(count),
            Record::Trimmed(count) => {
                let drop = count.saturating_sub(self.trimmed).min(self.entries.len());
                self.entries.drain(..drop);
                self.trimmed = self.trimmed.max(count);
            }
        }
    }

    /// The shortest journal that restores this state.
    pub(super) fn to_records(&self) -> Vec<Record<E>> {
        let promise = self.promise.map(Record::Promise);
        let accepted = self.accepted_round.map(Record::AcceptedRound);
        let entries = Record::Entries { from: self.trimmed, entries: self.entries.clone() };
        [Record::Trimmed(self.trimmed), entries, Record::Decided(self.decided)]
            .into_iter()
            .chain(promise)
            .chain(accepted)
            .collect()
    }

    /// The number of decided entries, and of all entries.
    pub(super) fn extent(&self) -> (usize, usize) {
        (self.decided, self.end())
    }

    /// Corrects a synchronisation that would begin with truncated entries, for which `omnipaxos`
    /// found no entries at all. It then begins after them and contains all that remain.
    pub(super) fn skip_forgotten(&self, sync: &mut LogSync<Wrapped<E>>) {
        if sync.sync_idx < self.trimmed && sync.suffix.is_empty() {
            sync.decided_snapshot = Some(SnapshotType::Complete(EmptySnapshot));
            sync.sync_idx = self.trimmed;
            sync.suffix = self.entries.iter().cloned().map(Wrapped).collect();
        }
    }

    /// The number of the last entry that fulfils a condition.
    pub(super) fn last_of(&self, is_it: impl Fn(&E) -> bool) -> Option<u64> {
        let at = self.entries.iter().rposition(is_it)?;
        Some((self.trimmed + at + 1) as u64)
    }

    pub(super) fn end(&self) -> usize {
        self.trimmed + self.entries.len()
    }

    fn slice(&self, from: usize, to: usize) -> &[E] {
        if from < self.trimmed || to > self.end() || from > to {
            return &[];
        }
        &self.entries[from - self.trimmed..to - self.trimmed]
    }
}

/// The state, and its changes that have not been returned to the caller yet.
#[derive(Debug)]
pub(super) struct Shared<E> {
    pub(super) state: State<E>,
    pub(super) journal: Vec<Record<E>>,
}

impl<E> Shared<E> {
    /// Takes the changes since the last call. A change of only the decided count waits for the next
    /// other change: it can be learned again, so it is not worth a separate write.
    pub(super) fn take_journal(&mut self) -> Vec<Record<E>> {
        if self.journal.iter().all(|record| matches!(record, Record::Decided(_))) {
            return Vec::new();
        }
        std::mem::take(&mut self.journal)
    }
}

/// The half that `omnipaxos` owns.
pub(super) struct Storage<E: Decision> {
    shared: Arc<Mutex<Shared<E>>>,
}

impl<E: Decision> Storage<E> {
    pub(super) fn new(shared: Arc<Mutex<Shared<E>>>) -> Self {
        Self { shared }
    }

    fn lock(&self) -> MutexGuard<'_, Shared<E>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, record: Record<E>) -> StorageResult<()> {
        let mut shared = self.lock();
        shared.state.replay(record.clone());
        shared.journal.push(record);
        Ok(())
    }

    fn end(&self) -> usize {
        self.lock().state.end()
    }
}

fn unwrap_all<E: Decision>(entries: Vec<Wrapped<E>>) -> Vec<E> {
    entries.into_iter().map(|Wrapped(entry)| entry).collect()
}

impl<E: Decision> PaxosStorage<Wrapped<E>> for Storage<E> {
    fn write_atomically(&mut self, ops: Vec<StorageOp<Wrapped<E>>>) -> StorageResult<()> {
        // Atomic on disk too: all records of one drain are one record of the log.
        ops.into_iter().try_for_each(|op| match op {
            StorageOp::AppendEntry(entry) => self.append_entry(entry),
            StorageOp::AppendEntries(entries) => self.append_entries(entries),
            StorageOp::AppendOnPrefix(from, entries) => self.append_on_prefix(from, entries),
            StorageOp::SetPromise(ballot) => self.set_promise(ballot),
            StorageOp::SetDecidedIndex(count) => self.set_decided_idx(count),
            StorageOp::SetAcceptedRound(ballot) => self.set_accepted_round(ballot),
            StorageOp::SetCompactedIdx(count) => self.set_compacted_idx(count),
            StorageOp::Trim(count) => self.trim(count),
            StorageOp::SetStopsign(sign) => self.set_stopsign(sign),
            StorageOp::SetSnapshot(snapshot) => self.set_snapshot(snapshot),
        })
    }

    fn append_entry(&mut self, entry: Wrapped<E>) -> StorageResult<()> {
        self.write(Record::Entries { from: self.end(), entries: vec![entry.0] })
    }

    fn append_entries(&mut self, entries: Vec<Wrapped<E>>) -> StorageResult<()> {
        if entries.is_empty() {
            return Ok(());
        }
        self.write(Record::Entries { from: self.end(), entries: unwrap_all(entries) })
    }

    fn append_on_prefix(&mut self, from: usize, entries: Vec<Wrapped<E>>) -> StorageResult<()> {
        self.write(Record::Entries { from, entries: unwrap_all(entries) })
    }

    fn set_promise(&mut self, ballot: Ballot) -> StorageResult<()> {
        self.write(Record::Promise(ballot))
    }

    fn set_decided_idx(&mut self, count: usize) -> StorageResult<()> {
        self.write(Record::Decided(count))
    }

    fn get_decided_idx(&self) -> StorageResult<usize> {
        Ok(self.lock().state.decided)
    }

    fn set_accepted_round(&mut self, ballot: Ballot) -> StorageResult<()> {
        self.write(Record::AcceptedRound(ballot))
    }

    fn get_accepted_round(&self) -> StorageResult<Option<Ballot>> {
        Ok(self.lock().state.accepted_round)
    }

    fn get_entries(&self, from: usize, to: usize) -> StorageResult<Vec<Wrapped<E>>> {
        Ok(self.lock().state.slice(from, to).iter().cloned().map(Wrapped).collect())
    }

    fn get_log_len(&self) -> StorageResult<usize> {
        Ok(self.lock().state.entries.len())
    }

    fn get_suffix(&self, from: usize) -> StorageResult<Vec<Wrapped<E>>> {
        self.get_entries(from, self.end().max(from))
    }

    fn get_promise(&self) -> StorageResult<Option<Ballot>> {
        Ok(self.lock().state.promise)
    }

    fn set_stopsign(&mut self, sign: Option<StopSign>) -> StorageResult<()> {
        assert!(sign.is_none(), "the configuration of agreement is never stopped");
        Ok(())
    }

    fn get_stopsign(&self) -> StorageResult<Option<StopSign>> {
        Ok(None)
    }

    fn trim(&mut self, count: usize) -> StorageResult<()> {
        self.write(Record::Trimmed(count))
    }

    fn set_compacted_idx(&mut self, count: usize) -> StorageResult<()> {
        self.write(Record::Trimmed(count))
    }

    fn get_compacted_idx(&self) -> StorageResult<usize> {
        Ok(self.lock().state.trimmed)
    }

    fn set_snapshot(&mut self, _snapshot: Option<EmptySnapshot>) -> StorageResult<()> {
        // The last truncated entry is written with it.
        Ok(())
    }

    fn get_snapshot(&self) -> StorageResult<Option<EmptySnapshot>> {
        Ok(None)
    }
}

fn entries_kept<E: Decision>(state: &State<E>, record: Record<E>) -> Record<E> {
    match record {
        Record::Entries { from, entries } if (state.trimmed..state.end()).contains(&from) => {
            let known = state.end() - from;
            Record::Entries {
                from: state.end(),
                entries: entries.into_iter().skip(known).collect(),
            }
        }
        other => other,
    }
}
