//! Guesses the order of all transactions from the order that the database reports.
//!
//! Several transactions often share a commit timestamp, and their mutual order is unknown.
//! Therefore they are placed one after the other, each as soon as its time has come and the state
//! fits its reads. A transaction that found no value waits until the object has no value. A
//! transaction that begins another segment of an object waits until the segment before it is
//! complete and read. The result is a guess, which is checked against the model like any other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pangea_core::hash::HashMap;

use super::objects::{INITIAL, Object};
use super::search::Search;

/// The number of failed attempts to place a transaction, per vertex, after which the guess is
/// abandoned.
const LOOKS_MAX: usize = 64;

/// Objects and their current versions at a position of the guessed order.
#[derive(Debug)]
pub struct ReplayState<'a> {
    objects: Vec<&'a Object>,
    current: Vec<u32>,
    /// By object and segment: the transactions that read the segment's end and are not yet placed.
    readers: Vec<HashMap<u32, Vec<u32>>>,
    txns: HashMap<u32, ReplayedTxn>,
}

/// The reads and writes of one transaction.
#[derive(Clone, Debug, Default)]
struct ReplayedTxn {
    /// Objects in which it found no value, and the versions that have none.
    found_nothing: Vec<(usize, Vec<u32>)>,
    /// The versions that it wrote.
    writes: Vec<(usize, u32)>,
    /// The segments whose ends it reads.
    ends: Vec<(usize, u32)>,
}

impl<'a> ReplayState<'a> {
    /// Creates an empty stage.
    pub fn new() -> Self {
        let (objects, current) = (Vec::new(), Vec::new());
        Self { objects, current, readers: Vec::new(), txns: HashMap::default() }
    }

    /// Adds an object, with the readers of its segments' ends, and with the readers that found no
    /// value and the versions that they may have read.
    pub fn add(
        &mut self,
        object: &'a Object,
        ends: impl Iterator<Item = (u32, u32)>,
        found_nothing: impl Iterator<Item = (u32, Vec<u32>)>,
    ) {
        let at = self.objects.len();
        let mut readers: HashMap<u32, Vec<u32>> = HashMap::default();
        for (segment, reader) in ends {
            readers.entry(segment).or_default().push(reader);
            self.txns.entry(reader).or_default().ends.push((at, segment));
        }
        for (reader, options) in found_nothing {
            self.txns.entry(reader).or_default().found_nothing.push((at, options));
        }
        for (number, version) in (0..).zip(&object.versions).skip(1) {
            self.txns.entry(version.writer).or_default().writes.push((at, number));
        }
        self.objects.push(object);
        self.current.push(INITIAL);
        self.readers.push(readers);
    }

    /// Whether a transaction begins a segment.
    fn is_opening(&self, txn: u32) -> bool {
        let is_first = |&(at, version): &(usize, u32)| {
            let (_, place) = self.objects[at].places[version as usize];
            place == 0
        };
        self.txns.get(&txn).is_some_and(|part| part.writes.iter().any(is_first))
    }

    /// Whether a transaction can come next.
    fn has_room_for(&self, txn: u32) -> bool {
        let Some(part) = self.txns.get(&txn) else { return true };
        let is_nothing = |(at, options): &(usize, Vec<u32>)| options.contains(&self.current[*at]);
        let is_next = |&(at, version): &(usize, u32)| {
            let object = self.objects[at];
            let (_, place) = object.places[version as usize];
            let current = self.current[at];
            let (segment, _) = object.places[current as usize];
            let readers = self.readers[at].get(&segment);
            let is_read = readers.is_none_or(|all| all.iter().all(|reader| *reader == txn));
            place > 0 || object.last_version(segment as usize) == current && is_read
        };
        part.found_nothing.iter().all(is_nothing) && part.writes.iter().all(is_next)
    }

    /// Places a transaction. Returns whether that may allow others to be placed.
    fn take(&mut self, txn: u32) -> bool {
        let Some(part) = self.txns.get(&txn) else { return false };
        for &(at, segment) in &part.ends {
            if let Some(readers) = self.readers[at].get_mut(&segment) {
                readers.retain(|reader| *reader != txn);
            }
        }
        for &(at, version) in &part.writes {
            self.current[at] = version;
        }
        !part.ends.is_empty() || !part.writes.is_empty()
    }
}

/// Returns the positions of all vertices in an order that contradicts no edge. `reported_time` is
/// that of a transaction. A transaction without one is placed in time for its successors.
pub fn places(
    search: &Search<'_>,
    replay: &mut ReplayState<'_>,
    reported_time: impl Fn(u32) -> Option<i64>,
) -> Option<Vec<u32>> {
    let plain = search.places()?;
    let count = plain.len();
    let mut due = vec![i64::MAX; count];
    let mut before = vec![0u32; count];
    let mut last_first: Vec<u32> = (0..count as u32).collect();
    last_first.sort_unstable_by_key(|vertex| Reverse(plain[*vertex as usize]));
    for vertex in last_first {
        let to = search.edges(vertex).iter().filter_map(|edge| search.step(vertex, edge));
        let mut first = i64::MAX;
        for to in to {
            first = first.min(due[to as usize]);
            before[to as usize] += 1;
        }
        due[vertex as usize] = reported_time(vertex).unwrap_or(i64::MAX).min(first);
    }
    let ranked = |replay: &ReplayState<'_>, vertex: u32| {
        let is_later = (search.is_txn(vertex), replay.is_opening(vertex));
        Reverse((due[vertex as usize], is_later, vertex))
    };
    let free = (0..count as u32).filter(|vertex| before[*vertex as usize] == 0);
    let mut ready: BinaryHeap<_> = free.map(|vertex| ranked(replay, vertex)).collect();
    let mut waiting = Vec::new();
    let (mut places, mut next, mut looks) = (vec![u32::MAX; count], 0, count * LOOKS_MAX);
    while let Some(first) = ready.pop() {
        let Reverse((.., vertex)) = first;
        if !replay.has_room_for(vertex) {
            waiting.push(first);
            looks = looks.checked_sub(1)?;
            continue;
        }
        places[vertex as usize] = next;
        next += 1;
        if replay.take(vertex) {
            ready.extend(waiting.drain(..));
        }
        for to in search.edges(vertex).iter().filter_map(|edge| search.step(vertex, edge)) {
            before[to as usize] -= 1;
            if before[to as usize] == 0 {
                ready.push(ranked(replay, to));
            }
        }
    }
    (next as usize == count).then_some(places)
}
