//! Keys, their versions, and who read which: what all kinds of data have in common.
//!
//! An [`Object`] is a list, a register or a row. It has one version for each transaction that
//! changed it, and an initial one, which is nothing. Of the order of its versions some is known:
//! they stand in **segments**, in each of which every version follows directly on the one before.
//! The first segment begins with the initial version. Where it is known which version was final,
//! its segment is the last. How the others stand to each other is for `orders.rs` to find
//! out.
//!
//! ```text
//!   segment 0            middle segments              last
//!   [initial, a, b]  <<  { [c], [d, e] }    <<       [f, g]
//! ```
//!
//! A read saw one version; where it found nothing, that may be the initial version or any version
//! that is a delete.

use crate::record::{Class, Name};

/// No transaction.
pub const NOBODY: u32 = u32::MAX;
/// The version that each object has at first.
pub const INITIAL: u32 = 0;

/// What one transaction made of an object.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Who made it. Nobody made the initial one.
    pub writer: u32,
    /// The value that it gave last. None is a delete, or nothing yet.
    pub value: Option<Name>,
}

/// Which version a read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    /// This one.
    Version(u32),
    /// Nothing: the initial one or one that is a delete.
    Nothing,
}

/// One read of an object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectRead {
    /// Who read.
    pub reader: u32,
    /// What it saw that it had not itself written.
    pub saw: Saw,
    /// Whether it was a scan that did not find the row.
    pub is_predicate: bool,
}

/// A list, a register or a row.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its key.
    pub key: Name,
    /// What it is.
    pub class: Class,
    /// Its versions, the initial one first, the others in the order of their transactions.
    pub versions: Vec<Version>,
    /// Those of them that are deletes.
    pub deletes: Vec<u32>,
    /// Every version once, in segments.
    pub segments: Vec<Vec<u32>>,
    /// The segment of the final version.
    pub last: Option<usize>,
    /// Who read it.
    pub reads: Vec<ObjectRead>,
    /// Where each version stands: segment and place in it.
    pub places: Vec<(u32, u32)>,
}

/// Two transactions that read one version and both replaced it.
#[derive(Clone, Copy, Debug)]
pub struct Fork {
    /// The object.
    pub key: Name,
    /// The version that both read.
    pub version: Version,
    /// Who they are.
    pub writers: [u32; 2],
}

impl Object {
    /// An object that nobody has changed.
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

    /// The version of a transaction, if it changed the object.
    pub fn version_of(&self, txn: u32) -> Option<u32> {
        let at = self.versions[1..].binary_search_by_key(&txn, |version| version.writer);
        at.ok().map(|at| at as u32 + 1)
    }

    /// The versions that a read may have seen.
    pub fn candidates(&self, read: &ObjectRead) -> Vec<u32> {
        match read.saw {
            Saw::Version(version) => vec![version],
            Saw::Nothing => {
                let writer = |version: u32| self.versions[version as usize].writer;
                let others = self.deletes.iter().filter(|at| writer(**at) != read.reader);
                std::iter::once(INITIAL).chain(others.copied()).collect()
            }
        }
    }

    /// The version that a read saw, where there is no doubt.
    pub fn seen(&self, read: &ObjectRead) -> Option<u32> {
        match read.saw {
            Saw::Version(version) => Some(version),
            Saw::Nothing if self.deletes.is_empty() => Some(INITIAL),
            Saw::Nothing => match self.candidates(read)[..] {
                [only] => Some(only),
                _ => None,
            },
        }
    }

    /// The writer of the first version of a segment. Not for the first segment.
    pub fn first_writer(&self, segment: usize) -> u32 {
        self.versions[self.segments[segment][0] as usize].writer
    }

    /// The last version of a segment.
    pub fn last_version(&self, segment: usize) -> u32 {
        *self.segments[segment].last().expect("no segment is empty")
    }

    /// The segments whose place among each other is not known.
    pub fn middle(&self) -> impl Iterator<Item = usize> {
        let last = self.last;
        (1..self.segments.len()).filter(move |segment| Some(*segment) != last)
    }

    /// Puts versions into segments. `known` is an order that is known from the initial version on.
    /// Where `is_direct` holds for a read of one that then wrote, its version follows directly.
    pub fn arrange(
        &mut self,
        known: &[u32],
        is_direct: impl Fn(&ObjectRead) -> bool,
    ) -> Option<Fork> {
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
                fork.get_or_insert(Fork { key: self.key, version, writers });
            }
        }
        self.places = vec![(NONE, NONE); count];
        // Of versions that each follow on the other, which no serial order has, one begins.
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
