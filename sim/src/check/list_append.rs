//! Lists tell who came before whom (Kingsbury and Alvaro, "Elle", 2020).
//!
//! Every value is appended once, so a list that a transaction read names all appends before it in
//! their order. From the final lists follows the order of all appends; from the reads, what each
//! transaction saw and what it did not see. In this order:
//!
//! 1. what was read is taken apart: values that nobody appended, or an aborted transaction did
//!    (G1a), values twice, lists that disagree with the final ones, lists that end within a
//!    transaction (G1b), own appends that a transaction did not see;
//! 2. what was acknowledged is in the final lists, once and whole;
//! 3. versions that nodes named agree with what readers at those versions saw;
//! 4. dependencies have no cycle ([`super::graph`]).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pangea_core::hash::HashMap;
use pangea_core::key::KeyRange;
use pangea_core::workload::Rows;
use pangea_core::workload::list_append::{LISTS, Op, decode_key, decode_list, decode_ops};
use pangea_core::workload::list_append::{Read, decode_reads};

use super::Violation;
use super::graph::{Cycle, Edge, Graph, Kind};
use crate::history::{End, History, How, Operation};
use crate::settings::RealTime;

/// One thing that a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did {
    /// It appended a value to a list.
    Append {
        /// The list.
        list: u64,
        /// The value.
        value: u64,
    },
    /// It read a list.
    Read {
        /// The list.
        list: u64,
        /// What it found.
        values: Vec<u64>,
    },
}

/// Whether a transaction took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its client was told so.
    Happened,
    /// Nobody knows.
    Unknown,
    /// Its client was told that it did not.
    Aborted,
}

/// What the checker knows of one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// Its number in the history.
    pub id: usize,
    /// Who ran it, for the story.
    pub who: String,
    /// Whether it took place.
    pub fate: Fate,
    /// What it did. Of one that is not known to have happened, its appends alone.
    pub did: Vec<Did>,
    /// When it was invoked and when its client was told, in microseconds, if it is held to them.
    pub window: Option<(u64, u64)>,
    /// The version that holds its appends, if it was named.
    pub committed_at: Option<u64>,
    /// The version that it read, if it read a snapshot.
    pub read_at: Option<u64>,
}

/// The final lists.
pub type Lists = BTreeMap<u64, Vec<u64>>;

/// Checks a history of list-append against the final state.
///
/// # Errors
/// The first anomaly, and the transactions in it.
pub fn check(history: &History, end: &dyn Rows, real_time: RealTime) -> Result<(), Violation> {
    let lists = final_lists(end)?;
    let operations = history.operations.iter().enumerate();
    let txns: Result<Vec<Txn>, Violation> =
        operations.map(|(id, operation)| txn(id, operation, real_time)).collect();
    check_txns(&txns?, &lists)
}

/// Checks transactions against the final lists.
///
/// # Errors
/// The first anomaly, and the transactions in it.
pub fn check_txns(txns: &[Txn], lists: &Lists) -> Result<(), Violation> {
    let checker = Checker::new(txns, lists);
    checker.check_final_lists()?;
    checker.check_acknowledged()?;
    txns.iter().try_for_each(|txn| checker.check_reads(txn))?;
    checker.check_versions()?;
    match checker.graph().anomaly() {
        None => Ok(()),
        Some((anomaly, cycle)) => Err(violation(anomaly, checker.explain(&cycle))),
    }
}

fn violation(anomaly: &'static str, story: String) -> Violation {
    Violation::new("list-append", anomaly, story)
}

fn final_lists(end: &dyn Rows) -> Result<Lists, Violation> {
    let mut lists = Ok(Lists::new());
    end.scan(LISTS, &KeyRange::all(), &mut |key, value| match (
        decode_key(key),
        decode_list(Some(value)),
        &mut lists,
    ) {
        (Ok(list), Ok(values), Ok(lists)) => {
            lists.insert(list, values);
            ControlFlow::Continue(())
        }
        _ => {
            lists = Err(violation("unreadable", format!("key {key:02x?} in the final state")));
            ControlFlow::Break(())
        }
    });
    lists
}

fn txn(id: usize, operation: &Operation, real_time: RealTime) -> Result<Txn, Violation> {
    let unreadable = |what: String| violation("unreadable", format!("T{id}: {what}"));
    let ops = decode_ops(&operation.call.args).map_err(|error| unreadable(error.to_string()))?;
    let fate = match operation.end {
        End::Committed { .. } | End::Read { .. } => Fate::Happened,
        End::Ambiguous | End::Open => Fate::Unknown,
        End::Aborted(_) | End::Refused => Fate::Aborted,
    };
    let reads = operation.result().map(decode_reads).transpose();
    let reads = reads.map_err(|error| unreadable(error.to_string()))?;
    let did = did(&ops, reads.as_deref())
        .ok_or_else(|| unreadable("the answer is not to what was asked".to_owned()))?;
    let has_committed = matches!(operation.end, End::Committed { .. });
    let is_held = match real_time {
        RealTime::None => false,
        RealTime::Writes => {
            operation.how == How::Strict || (has_committed && !operation.call.is_read_only)
        }
        RealTime::Ordered => operation.how == How::Strict || has_committed,
    };
    let ended = operation.ended.map_or(u64::MAX, |at| at.us);
    let (committed_at, read_at) = match &operation.end {
        End::Committed { version, .. } => (Some(version.0), None),
        End::Read { version, .. } => (None, Some(version.0)),
        _ => (None, None),
    };
    let who = format!(
        "client {}, {:?} at {}, {} to {} us",
        operation.client,
        operation.how,
        operation.node,
        operation.invoked.us,
        operation.ended.map_or("?".to_owned(), |at| at.us.to_string()),
    );
    let window = is_held.then_some((operation.invoked.us, ended));
    Ok(Txn { id, who, fate, did, window, committed_at, read_at })
}

/// Operations with what they found; without an answer, the appends alone.
fn did(ops: &[Op], reads: Option<&[Read]>) -> Option<Vec<Did>> {
    let mut did = Vec::new();
    let mut answers = reads.unwrap_or(&[]).iter();
    for op in ops {
        let (first, count) = match *op {
            Op::Append { list, value } => {
                did.push(Did::Append { list, value });
                continue;
            }
            Op::Read { list } => (list, 1),
            Op::ReadRange { first, count } => (first, count),
        };
        for list in (first..first + count).take_while(|_| reads.is_some()) {
            let answer = answers.next().filter(|read| read.list == list)?;
            did.push(Did::Read { list, values: answer.values.clone() });
        }
    }
    answers.next().is_none().then_some(did)
}

/// Who appended a value, where, how many it had appended there before, and whether it was its last.
#[derive(Clone, Copy, Debug)]
struct Author {
    txn: usize,
    list: u64,
    before: usize,
    is_last: bool,
}

struct Checker<'a> {
    txns: &'a [Txn],
    lists: &'a Lists,
    authors: HashMap<u64, Author>,
}

impl<'a> Checker<'a> {
    fn new(txns: &'a [Txn], lists: &'a Lists) -> Self {
        let mut authors = HashMap::default();
        for (txn, Txn { did, .. }) in txns.iter().enumerate() {
            let mut last = BTreeMap::new();
            let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
            for done in did {
                let Did::Append { list, value } = *done else { continue };
                let count = counts.entry(list).or_default();
                let author = Author { txn, list, before: *count, is_last: false };
                *count += 1;
                let other = authors.insert(value, author);
                assert!(other.is_none(), "value {value} is appended twice: a broken generator");
                last.insert(list, value);
            }
            for value in last.into_values() {
                authors.get_mut(&value).expect("just inserted").is_last = true;
            }
        }
        Self { txns, lists, authors }
    }

    fn list(&self, list: u64) -> &'a [u64] {
        self.lists.get(&list).map_or(&[], Vec::as_slice)
    }

    fn name(&self, txn: usize) -> String {
        format!("T{} ({})", self.txns[txn].id, self.txns[txn].who)
    }

    /// Every value in the final lists was appended there, once, by one that did not abort.
    fn check_final_lists(&self) -> Result<(), Violation> {
        let mut seen = HashMap::default();
        for (&list, values) in self.lists {
            for &value in values {
                let place = format!("the final list {list}");
                let author = self.author(value, list, &place)?;
                if seen.insert(value, ()).is_some() {
                    let name = self.name(author.txn);
                    let story = format!("{value}, appended by {name}, is twice in {place}");
                    return Err(violation("duplicated append", story));
                }
            }
            self.check_whole(list, values)?;
        }
        Ok(())
    }

    /// The appends of one transaction to one list stand together, in their order.
    fn check_whole(&self, list: u64, values: &[u64]) -> Result<(), Violation> {
        let mut open: Option<Author> = None;
        for value in values {
            let next = self.authors[value];
            let name = self.name(next.txn);
            let story = match open {
                Some(before) if before.txn != next.txn => format!(
                    "{name} appended {value} to list {list} between two appends of {}",
                    self.name(before.txn)
                ),
                _ if open.map_or(0, |before| before.before + 1) != next.before => {
                    format!("{value} in list {list} is out of the order of {name}'s appends")
                }
                _ => {
                    open = Some(next).filter(|author| !author.is_last);
                    continue;
                }
            };
            return Err(violation("G0", story));
        }
        Ok(())
    }

    fn author(&self, value: u64, list: u64, place: &str) -> Result<Author, Violation> {
        let Some(author) = self.authors.get(&value).filter(|author| author.list == list) else {
            let story = format!("{value} is in {place}, and nobody appended it there");
            return Err(violation("garbage", story));
        };
        if self.txns[author.txn].fate == Fate::Aborted {
            let story = format!(
                "{value} is in {place}; {}, which aborted, appended it",
                self.name(author.txn)
            );
            return Err(violation("G1a", story));
        }
        Ok(*author)
    }

    /// What was acknowledged is in the final lists; what is there in part is there whole.
    fn check_acknowledged(&self) -> Result<(), Violation> {
        let kept: HashMap<u64, ()> = self.lists.values().flatten().map(|&v| (v, ())).collect();
        for (txn, Txn { did, fate, .. }) in self.txns.iter().enumerate() {
            let appends: Vec<(u64, u64)> = did.iter().filter_map(append).collect();
            let Some(&(list, value)) = appends.iter().find(|(_, value)| !kept.contains_key(value))
            else {
                continue;
            };
            let is_in_part = appends.iter().any(|(_, value)| kept.contains_key(value));
            if *fate == Fate::Happened || is_in_part {
                let how = if *fate == Fate::Happened { "acknowledged" } else { "kept in part" };
                let name = self.name(txn);
                let story =
                    format!("{name} was {how}, but its append of {value} to list {list} is lost");
                return Err(violation("lost append", story));
            }
        }
        Ok(())
    }

    fn check_reads(&self, txn: &Txn) -> Result<(), Violation> {
        let mut own: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for done in &txn.did {
            match done {
                Did::Append { list, value } => own.entry(*list).or_default().push(*value),
                Did::Read { list, values } => {
                    let own = own.get(list).map_or(&[][..], Vec::as_slice);
                    self.check_read(txn, *list, values, own)?;
                }
            }
        }
        Ok(())
    }

    fn check_read(
        &self,
        txn: &Txn,
        list: u64,
        values: &[u64],
        own: &[u64],
    ) -> Result<(), Violation> {
        let place = format!("list {list} as T{} ({}) read it", txn.id, txn.who);
        let Some(seen) = values.strip_suffix(own) else {
            let story =
                format!("{place} is {values:?}, without its own appends {own:?} at the end");
            return Err(violation("internal", story));
        };
        let mut last = None;
        for &value in seen {
            let author = self.author(value, list, &place)?;
            if std::ptr::eq(txn, &self.txns[author.txn]) {
                let story = format!("{place} is {values:?}, with its own append {value} elsewhere");
                return Err(violation("internal", story));
            }
            last = Some(author);
        }
        if !self.list(list).starts_with(seen) {
            let story = format!("{place} is {seen:?}, but in the end it is {:?}", self.list(list));
            return Err(violation("incompatible orders", story));
        }
        if let Some(author) = last.filter(|author| !author.is_last) {
            let name = self.name(author.txn);
            let story = format!("{place} is {seen:?}, which ends within the appends of {name}");
            return Err(violation("G1b", story));
        }
        Ok(())
    }

    /// Appends stand in the order of the versions that hold them, and a reader of a snapshot sees
    /// those of its version and no others.
    fn check_versions(&self) -> Result<(), Violation> {
        let version = |value: &u64| self.txns[self.authors[value].txn].committed_at;
        for (list, values) in self.lists {
            let mut newest = (0, 0);
            for (value, at) in values.iter().filter_map(|v| version(v).map(|at| (*v, at))) {
                if at < newest.0 {
                    let (at_before, before) = newest;
                    let story = format!(
                        "in list {list}, {value} of version {at} follows {before} of {at_before}"
                    );
                    return Err(violation("version order", story));
                }
                newest = (at, value);
            }
        }
        for txn in self.txns {
            let Some(at) = txn.read_at else { continue };
            for done in &txn.did {
                let Did::Read { list, values } = done else { continue };
                let (seen, unseen) = self.list(*list).split_at(values.len());
                let is_late = |v: &&u64| version(v).is_some_and(|written| written > at);
                let is_early = |v: &&u64| version(v).is_some_and(|written| written <= at);
                let wrong = seen.iter().find(is_late).map(|v| (v, "holds"));
                if let Some((value, what)) =
                    wrong.or_else(|| unseen.iter().find(is_early).map(|v| (v, "lacks")))
                {
                    let written = version(value).unwrap_or_default();
                    let story = format!(
                        "T{} ({}) read list {list} at version {at}; it {what} {value} of version \
                         {written}",
                        txn.id, txn.who
                    );
                    return Err(violation("wrong snapshot", story));
                }
            }
        }
        Ok(())
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.txns.len());
        for (&list, values) in self.lists {
            for pair in values.windows(2) {
                let (from, to) = (self.authors[&pair[0]].txn, self.authors[&pair[1]].txn);
                graph.add(from, Edge { to, kind: Kind::Ww, list, value: pair[1] });
            }
        }
        for (reader, txn) in self.txns.iter().enumerate() {
            for done in &txn.did {
                if let Did::Read { list, values } = done {
                    self.add_read(&mut graph, reader, *list, values);
                }
            }
        }
        self.add_real_time(&mut graph);
        graph
    }

    fn add_read(&self, graph: &mut Graph, reader: usize, list: u64, values: &[u64]) {
        let is_own = |value: &&u64| self.authors[*value].txn == reader;
        let seen = values.len() - values.iter().rev().take_while(is_own).count();
        if let Some(&value) = values[..seen].last() {
            let from = self.authors[&value].txn;
            graph.add(from, Edge { to: reader, kind: Kind::Wr, list, value });
        }
        // What it missed may be before its own appends, too: a lost update.
        if let Some(&value) = self.list(list)[seen..].iter().find(|value| !is_own(value)) {
            let to = self.authors[&value].txn;
            graph.add(reader, Edge { to, kind: Kind::Rw, list, value });
        }
    }

    /// Who ended before whom began, through one vertex for each end: each end leads to the next
    /// end and each beginning follows the last end before it, so that edges stay few.
    fn add_real_time(&self, graph: &mut Graph) {
        let windows = || {
            let happened = self.txns.iter().enumerate().filter(|(_, t)| t.fate != Fate::Aborted);
            happened.filter_map(|(txn, t)| t.window.map(|window| (txn, window)))
        };
        let mut ends: Vec<(u64, usize)> = windows().map(|(txn, (_, end))| (end, txn)).collect();
        ends.retain(|(end, _)| *end != u64::MAX);
        ends.sort_unstable();
        let edge = |to| Edge { to, kind: Kind::Rt, list: 0, value: 0 };
        let mut barriers = Vec::with_capacity(ends.len());
        for &(_, txn) in &ends {
            let barrier = graph.add_vertex();
            graph.add(txn, edge(barrier));
            if let Some(&before) = barriers.last() {
                graph.add(before, edge(barrier));
            }
            barriers.push(barrier);
        }
        for (txn, (begin, _)) in windows() {
            let ended_before = ends.partition_point(|(end, _)| *end < begin);
            if ended_before > 0 {
                graph.add(barriers[ended_before - 1], edge(txn));
            }
        }
    }

    /// The cycle in words, one line for each transaction in it.
    fn explain(&self, cycle: &Cycle) -> String {
        let is_txn = |vertex: usize| vertex < self.txns.len();
        // Begin at a transaction, so that each way through barriers has both of its ends.
        let first = cycle.iter().position(|(from, _)| is_txn(*from)).unwrap_or_default();
        let mut lines = Vec::new();
        let mut from = cycle[first].0;
        for (_, edge) in cycle[first..].iter().chain(&cycle[..first]) {
            if !is_txn(edge.to) {
                continue;
            }
            let Edge { to, list, value, .. } = *edge;
            let why = match edge.kind {
                Kind::Ww => format!("to list {list}, it appended before {value} was appended by"),
                Kind::Wr => format!("it appended {value} to list {list}, which was read by"),
                Kind::Rw => format!("it read list {list} without {value}, appended by"),
                Kind::Rt => "it ended before the beginning of".to_owned(),
            };
            lines.push(format!("\n    {}: {why} T{}", self.name(from), self.txns[to].id));
            from = to;
        }
        format!("{} transactions each come before the next:{}", lines.len(), lines.concat())
    }
}

fn append(done: &Did) -> Option<(u64, u64)> {
    match *done {
        Did::Append { list, value } => Some((list, value)),
        Did::Read { .. } => None,
    }
}

#[cfg(test)]
mod tests;
