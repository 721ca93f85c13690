//! Records the operations and results of clients as they happen, in the format of docs/HISTORY.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pangea_core::guarantee::Isolation;
use pangea_sim::record::write::write_txn;
use pangea_sim::record::{Atom, Name, Names, Op, Outcome, Range, Seen, Txn};

/// A row of one of the tables, as named in histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A list: a text to which values are appended.
    List(i64),
    /// A list of those that are always appended to together.
    Every(i64),
    /// A register, which exists from its first write on.
    Register(i64),
    /// A row that is inserted and deleted, and that scans find. This is the only kind whose key is
    /// a number.
    Row(i64),
    /// The mark of a transaction with a deletion, by which a final read shows whether it committed.
    Mark(i64),
}

impl Key {
    /// Returns the key in its table.
    pub fn id(self) -> i64 {
        match self {
            Self::List(id)
            | Self::Every(id)
            | Self::Register(id)
            | Self::Row(id)
            | Self::Mark(id) => id,
        }
    }

    /// Another row of the same table.
    pub fn sibling(self, id: i64) -> Self {
        match self {
            Self::List(_) => Self::List(id),
            Self::Every(_) => Self::Every(id),
            Self::Register(_) => Self::Register(id),
            Self::Row(_) => Self::Row(id),
            Self::Mark(_) => Self::Mark(id),
        }
    }

    fn atom(self) -> Atom {
        let text = |kind: &str, id: i64| Atom::Text(format!("{kind} {id}").into());
        match self {
            Self::Row(id) => Atom::Number(id),
            Self::List(id) => text("list", id),
            Self::Every(id) => text("every", id),
            Self::Register(id) => text("register", id),
            Self::Mark(id) => text("mark", id),
        }
    }
}

/// The numbers of transactions by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub committed: u64,
    pub aborted: u64,
    pub unknown: u64,
}

/// The increments of one counter by the outcome of their transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Increments {
    pub committed: i64,
    pub unknown: i64,
}

/// A history that is being recorded.
pub struct History {
    /// The common clock of all clients.
    began: Instant,
    /// The same moment by the clock of the nodes' logs, in microseconds since 1970.
    began_in_logs: i64,
    sink: Mutex<Sink>,
}

struct Sink {
    output: BufWriter<File>,
    counts: Counts,
    /// The keys that any client tried to write.
    attempted: BTreeSet<Key>,
    /// The increments of each counter, which are no part of the history.
    increments: BTreeMap<i64, Increments>,
    /// The nodes of clients.
    nodes: BTreeMap<u64, usize>,
    /// The first write error.
    error: Option<io::Error>,
}

impl History {
    /// Creates an empty history.
    pub fn new(file: File) -> Self {
        let sink = Sink {
            output: BufWriter::new(file),
            counts: Counts::default(),
            attempted: BTreeSet::new(),
            increments: BTreeMap::new(),
            nodes: BTreeMap::new(),
            error: None,
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_in_logs = i64::try_from(since.as_micros()).expect("fewer than 290,000 years");
        Self { began: Instant::now(), began_in_logs, sink: Mutex::new(sink) }
    }

    /// Returns the time of the history at a time of the nodes' logs, in microseconds since 1970.
    pub fn moment(&self, in_logs: i64) -> i64 {
        in_logs - self.began_in_logs
    }

    /// Returns the time since the history began, in microseconds.
    pub fn now(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_micros()).expect("fewer than 290,000 years")
    }

    /// Begins a transaction of a client. `note` appears in reports. If `is_held` is set, the
    /// checker requires the real-time order of this transaction. `level` is the one that it is held
    /// to, if not the strictest.
    pub fn begin(
        self: &Arc<Self>,
        client: u64,
        note: &str,
        (is_held, level): (bool, Option<Isolation>),
    ) -> Attempt {
        let txn = Txn {
            id: 0,
            client: Atom::Number(i64::try_from(client).expect("clients are counted from 0")),
            begin: self.now(),
            end: None,
            outcome: Outcome::Unknown,
            is_held,
            is_final: false,
            at: None,
            level,
            note: Some(note.into()),
            ops: Vec::new(),
        };
        let history = Arc::clone(self);
        Attempt {
            history,
            names: Names::default(),
            txn,
            attempted: Vec::new(),
            incremented: Vec::new(),
            has_ended: false,
        }
    }

    /// Records a transaction that has ended or was abandoned.
    fn record(&self, attempt: &mut Attempt) {
        let Attempt { names, txn, attempted, incremented, .. } = attempt;
        let mut sink = self.sink();
        let Sink { output, counts, error, .. } = &mut *sink;
        match txn.outcome {
            Outcome::Committed => counts.committed += 1,
            Outcome::Aborted => counts.aborted += 1,
            Outcome::Unknown => counts.unknown += 1,
        }
        if error.is_none() {
            *error = write_txn(txn, names, output).err();
        }
        sink.attempted.extend(attempted.drain(..));
        for counter in incremented.drain(..) {
            let increments = sink.increments.entry(counter).or_default();
            match attempt.txn.outcome {
                Outcome::Committed => increments.committed += 1,
                Outcome::Unknown => increments.unknown += 1,
                Outcome::Aborted => {}
            }
        }
    }

    /// The numbers of transactions by outcome.
    pub fn counts(&self) -> Counts {
        self.sink().counts
    }

    /// The keys that any client tried to write.
    pub fn attempted(&self) -> BTreeSet<Key> {
        self.sink().attempted.clone()
    }

    /// The increments of each counter that was incremented.
    pub fn increments(&self) -> BTreeMap<i64, Increments> {
        self.sink().increments.clone()
    }

    /// Records the node of a client.
    pub fn on_client(&self, client: u64, node: usize) {
        self.sink().nodes.insert(client, node);
    }

    /// The nodes of all clients.
    pub fn nodes(&self) -> BTreeMap<u64, usize> {
        self.sink().nodes.clone()
    }

    /// Flushes the history to the file.
    ///
    /// # Errors
    /// If a line could not be written.
    pub fn flush(&self) -> io::Result<()> {
        let mut sink = self.sink();
        match sink.error.take() {
            Some(error) => Err(error),
            None => sink.output.flush(),
        }
    }

    fn sink(&self) -> MutexGuard<'_, Sink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction in progress.
///
/// Operations are noted before they are sent, because there may be no response; the results then
/// replace them. If an attempt is dropped before its end, it is recorded with an unknown outcome:
/// it may have been submitted, and others may have read its writes.
pub struct Attempt {
    history: Arc<History>,
    names: Names,
    txn: Txn,
    attempted: Vec<Key>,
    /// The counters that it incremented.
    incremented: Vec<i64>,
    has_ended: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.has_ended {
            let history = Arc::clone(&self.history);
            history.record(self);
        }
    }
}

impl Attempt {
    /// Ends the transaction now.
    pub fn end(mut self, outcome: Outcome) {
        self.txn.outcome = outcome;
        self.txn.end = (outcome != Outcome::Unknown).then(|| self.history.now());
        self.has_ended = true;
        let history = Arc::clone(&self.history);
        history.record(&mut self);
    }

    /// Adds to the description of the transaction in reports.
    pub fn remark(&mut self, what: &str) {
        let note = self.txn.note.take().unwrap_or_default();
        self.txn.note = Some(format!("{note}, {what}").into());
    }

    /// Returns the number of operations, for [`Self::take_back`].
    pub fn len(&self) -> usize {
        self.txn.ops.len()
    }

    /// Removes all operations from index `at` on, because they turned out not to have been done.
    pub fn take_back(&mut self, at: usize) {
        self.txn.ops.truncate(at);
    }

    /// Marks a final read: it reads the state after all other transactions, and none follow it.
    pub fn is_final(&mut self) {
        self.txn.is_final = true;
    }

    pub fn append(&mut self, key: Key, value: i64) {
        let (key, value) = (self.written(key), self.value(value));
        self.txn.ops.push(Op::Append { key, value });
    }

    pub fn write(&mut self, key: Key, value: i64) {
        let (key, value) = (self.written(key), self.value(value));
        self.txn.ops.push(Op::Write { key, value });
    }

    pub fn delete(&mut self, key: Key) {
        let key = self.written(key);
        self.txn.ops.push(Op::Delete { key });
    }

    /// Records the increment of a counter by one.
    pub fn increment(&mut self, counter: i64) {
        self.incremented.push(counter);
    }

    /// Records the read of a register or row.
    pub fn read(&mut self, key: Key, value: Option<i64>) {
        let seen = value.map_or(Seen::Nothing, |value| Seen::Value(self.value(value)));
        self.seen(key, seen);
    }

    /// Records the read of a list: its text, if the row exists.
    pub fn read_list(&mut self, key: Key, text: Option<&str>) {
        let values = text.unwrap_or_default().split(',').skip(1);
        // No client wrote a value that is not a number, and the checker will report it.
        let atom = |value: &str| match value.parse() {
            Ok(number) => Atom::Number(number),
            Err(_) => Atom::Text(value.into()),
        };
        let values: Vec<Name> = values.map(|value| self.names.name(atom(value))).collect();
        self.seen(key, if values.is_empty() { Seen::Nothing } else { Seen::List(values) });
    }

    /// Records a scan of the rows from one key to another, excluding the latter.
    pub fn scan(&mut self, from: i64, to: i64, rows: &[(i64, i64)]) {
        let rows = rows.iter().map(|(id, value)| {
            (self.names.name(Key::Row(*id).atom()), self.names.name(Atom::Number(*value)))
        });
        let rows = rows.collect();
        let [from, to] = [from, to].map(|id| Some(self.names.name(Key::Row(id).atom())));
        self.txn.ops.push(Op::Scan { range: Range { from, to }, rows });
    }

    /// Moves the last operation, a read, before the write of the same statement.
    pub fn swap_last(&mut self) {
        let len = self.txn.ops.len();
        self.txn.ops.swap(len - 2, len - 1);
    }

    fn seen(&mut self, key: Key, seen: Seen) {
        let key = self.names.name(key.atom());
        self.txn.ops.push(Op::Read { key, seen });
    }

    fn written(&mut self, key: Key) -> Name {
        self.attempted.push(key);
        self.names.name(key.atom())
    }

    fn value(&mut self, value: i64) -> Name {
        self.names.name(Atom::Number(value))
    }
}

#[cfg(test)]
mod tests {
    use pangea_sim::check::model::Model;
    use pangea_sim::check::recorded::{Verdict, check};
    use pangea_sim::record::read::read;

    use super::*;

    /// Returns the verdict on a file in which these have ended, with a final read of list 1.
    fn recorded(attempts: Vec<(Attempt, Outcome)>, history: &Arc<History>, text: &str) -> Verdict {
        for (attempt, outcome) in attempts {
            attempt.end(outcome);
        }
        let mut last = begin(history);
        last.is_final();
        last.read_list(Key::List(1), Some(text));
        last.end(Outcome::Committed);
        history.flush().unwrap();
        let mut file = history.sink().output.get_ref().try_clone().unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let recorded = read(&mut std::io::BufReader::new(file), &mut |_| {}).unwrap();
        check(&recorded, Model::StrictSerializable, "test")
    }

    fn begin(history: &Arc<History>) -> Attempt {
        history.begin(1, "here", (true, None))
    }

    fn appended(history: &Arc<History>, value: i64) -> Attempt {
        let mut attempt = begin(history);
        attempt.append(Key::List(1), value);
        attempt
    }

    fn history() -> Arc<History> {
        Arc::new(History::new(tempfile::tempfile().unwrap()))
    }

    /// Story: on an interrupt, other clients had read the writes of a transaction whose own client
    /// had no response yet. The history then contained values that no transaction had written.
    #[test]
    fn what_is_given_up_may_have_been_done() {
        let history = history();
        drop(appended(&history, 6));
        let attempts = vec![(appended(&history, 5), Outcome::Committed)];
        assert_eq!(recorded(attempts, &history, ",6,5"), Verdict::Holds);
        assert_eq!(history.counts(), Counts { committed: 2, aborted: 0, unknown: 1 });
    }

    #[test]
    fn what_is_written_can_be_read_and_holds() {
        let history = history();
        let attempts = vec![
            (appended(&history, 5), Outcome::Committed),
            (appended(&history, 6), Outcome::Unknown),
            (appended(&history, 7), Outcome::Aborted),
        ];
        assert_eq!(recorded(attempts, &history, ",5,6"), Verdict::Holds);
        let counts = Counts { committed: 2, aborted: 1, unknown: 1 };
        assert_eq!(history.counts(), counts);
        assert_eq!(history.attempted(), BTreeSet::from([Key::List(1)]));
    }

    #[test]
    fn a_list_that_lacks_an_acknowledged_value_or_has_an_aborted_or_foreign_one_is_broken() {
        for (text, anomaly) in
            [(",6", "lost append"), (",5,7", "G1a"), (",5,99", "garbage"), (",5,x", "garbage")]
        {
            let history = history();
            let attempts = vec![
                (appended(&history, 5), Outcome::Committed),
                (appended(&history, 6), Outcome::Unknown),
                (appended(&history, 7), Outcome::Aborted),
            ];
            match recorded(attempts, &history, text) {
                Verdict::Broken(violation) => assert_eq!(violation.anomaly, anomaly, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
