//! Keys, their versions and their readers, for all kinds of data.
//!
//! An [`Object`] is a list, a register or a row. It has one version for each transaction that
//! changed it, and an initial version without a value. The order of its versions is partly known:
//! versions are grouped in **segments**, within which every version directly follows the one
//! before. The first segment begins with the initial version. If the final version is known, its
//! segment is the last. `orders.rs` finds the order of the other segments.
//!
//! ```text
//!   segment 0            middle segments              last
//!   [initial, a, b]  <<  { [c], [d, e] }    <<       [f, g]
//! ```
//!
//! A read saw one version. If it found no value, that may be the initial version or any delete.

use crate::record::{Class, Name};

/// The writer of the initial version.
pub const NOBODY: u32 = u32::MAX;
/// The initial version of each object.
pub const INITIAL: u32 = 0;

/// The version of an object that one transaction wrote.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// The writer; [`NOBODY`] for the initial version.
    pub writer: u32,
    /// The last value that it wrote; `None` for a delete or the initial version.
    pub value: Option<Name>,
}

/// The version that a read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadVersion {
    /// This version.
    Version(u32),
    /// No value: the initial version or a delete.
    Nothing,
}

/// One read of an object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectRead {
    /// The reader.
    pub reader: u32,
    /// The version of another transaction that it saw.
    pub saw: ReadVersion,
    /// Whether it was a scan that did not find the row.
    pub is_predicate: bool,
}

/// A list, a register or a row.
#[derive(Clone, Debug)]
pub struct Object {
    /// The key.
    pub key: Name,
    /// The class of its data.
    pub class: Class,
    /// The versions: the initial one first, the others in the order of their transactions.
    pub versions: Vec<Version>,
    /// The versions that are deletes.
    pub deletes: Vec<u32>,
    /// All versions, each in one segment.
    pub segments: Vec<Vec<u32>>,
    /// The segment of the final version.
    pub last: Option<usize>,
    /// The reads of the object.
    pub reads: Vec<ObjectRead>,
    /// The segment of each version and its position there.
    pub places: Vec<(u32, u32)>,
}

/// Two transactions that read the same version and both replaced it.
#[derive(Clone, Copy, Debug)]
pub struct LostUpdate {
    /// The object.
    pub key: Name,
    /// The version that both read.
    pub version: Version,
    /// The two transactions.
    pub writers: [u32; 2],
}

impl Object {
    /// Creates an object that no transaction has changed.
    pub fn new(key: Name, class: Class) -> Self {
        let initial = Version { writer: NOBODY, value: None };
        Self {
            key,
            class,
            versions: vec![initial],
            deletes: Vec::new(),
            segments: Vec::new(),
            last: None,
            reads: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Returns the version of a transaction, if it changed the object.
    pub fn version_of(&self, txn: u32) -> Option<u32> {
        let at = self.versions[1..].binary_search_by_key(&txn, |version| version.writer);
        at.ok().map(|at| at as u32 + 1)
    }

    /// Returns the versions that a read may have seen.
    pub fn candidates(&self, read: &ObjectRead) -> Vec<u32> {
        match read.saw {
            ReadVersion::Version(version) => vec![version],
            ReadVersion::Nothing => {
                let writer = |version: u32| self.versions[version as usize].writer;
                let others = self.deletes.iter().filter(|at| writer(**at) != read.reader);
                std::iter::once(INITIAL).chain(others.copied()).collect()
            }
        }
    }

    /// Returns the version that a read saw, if that is certain.
    pub fn seen(&self, read: &ObjectRead) -> Option<u32> {
        match read.saw {
            ReadVersion::Version(version) => Some(version),
            ReadVersion::Nothing if self.deletes.is_empty() => Some(INITIAL),
            ReadVersion::Nothing => match self.candidates(read)[..] {
                [only] => Some(only),
                _ => None,
            },
        }
    }

    /// The writer of the first version of a segment other than the first.
    pub fn first_writer(&self, segment: usize) -> u32 {
        self.versions[self.segments[segment][0] as usize].writer
    }

    /// The last version of a segment.
    pub fn last_version(&self, segment: usize) -> u32 {
        *self.segments[segment].last().expect("no segment is empty")
    }

    /// The segments whose mutual order is not known.
    pub fn middle(&self) -> impl Iterator<Item = usize> {
        let last = self.last;
        (1..self.segments.len()).filter(move |segment| Some(*segment) != last)
    }

    /// Groups versions in segments. `known` is an order known from the initial version on. If
    /// `is_direct` is true of a read whose transaction then wrote, its version follows directly.
    pub fn arrange(
        &mut self,
        known: &[u32],
        is_direct: impl Fn(&ObjectRead) -> bool,
    ) -> Option<LostUpdate> {
        const NONE: u32 = u32::MAX;
        let count = self.versions.len();
        let (mut next, mut before) = (vec![NONE; count], vec![NONE; count]);
        for pair in known.windows(2) {
            next[pair[0] as usize] = pair[1];
            before[pair[1] as usize] = pair[0];
        }
        let mut fork = None;
        for read in self.reads.iter().filter(|read| is_direct(read)) {
            let (Some(own), Some(seen)) = (self.version_of(read.reader), self.seen(read)) else {
                continue;
            };
            let is_placed = before[own as usize] != NONE;
            if is_placed || own == seen || next[seen as usize] == own {
                continue;
            }
            if next[seen as usize] == NONE {
                next[seen as usize] = own;
                before[own as usize] = seen;
            } else {
                let version = self.versions[seen as usize];
                let other = self.versions[next[seen as usize] as usize].writer;
                let writers = [other, read.reader];
                fork.get_or_insert(LostUpdate { key: self.key, version, writers });
            }
        }
        self.places = vec![(NONE, NONE); count];
        // If versions form a cycle, which no serial order has, the segment begins at any of them.
        let all = 0..count as u32;
        let begins = all.clone().filter(|version| before[*version as usize] == NONE);
        for start in begins.chain(all) {
            let mut segment = Vec::new();
            let mut at = start;
            while at != NONE && self.places[at as usize].0 == NONE {
                self.places[at as usize] = (self.segments.len() as u32, segment.len() as u32);
                segment.push(at);
                at = next[at as usize];
            }
            if !segment.is_empty() {
                self.segments.push(segment);
            }
        }
        fork
    }
}
