//! Registers and rows: the known order of their versions.
//!
//! A value identifies its writer but not the version before it. These facts are sound: no version
//! precedes the initial one. If a transaction read a version and then wrote, its own version
//! follows directly, if its level rules out lost updates. A final read saw the last
//! version. `orders.rs` finds the order that follows from real time and other dependencies.

use super::Violation;
use super::facts::Facts;
use super::model::Model;
use super::objects::{INITIAL, ObjectRead, ReadVersion};
use crate::record::{Class, Name, Range};

impl Facts<'_> {
    /// Returns the keys of rows that were changed, in the order of scans.
    pub fn rows_in_order(&self) -> Vec<Name> {
        let rows = self.objects.iter().filter(|object| object.class == Class::Register);
        let mut keys: Vec<Name> = rows.map(|object| object.key).collect();
        keys.sort_by(|a, b| self.recorded.names.atom(*a).cmp(self.recorded.names.atom(*b)));
        keys
    }

    /// Returns the keys within a range.
    pub fn keys_within<'k>(&self, keys: &'k [Name], range: Range) -> &'k [Name] {
        let names = &self.recorded.names;
        let below = |bound: Name| keys.partition_point(|key| names.atom(*key) < names.atom(bound));
        let first = range.from.map_or(0, below);
        let end = range.to.map_or(keys.len(), below);
        &keys[first..end.max(first)]
    }

    /// Groups versions in segments.
    pub fn arrange_registers(&mut self, model: Model) -> Result<(), Violation> {
        let txns = &self.recorded.txns;
        let is_direct = |read: &ObjectRead| match model.for_level(txns[read.reader as usize].level)
        {
            Model::ReadCommitted => false,
            Model::RepeatableRead => !read.is_predicate,
            _ => true,
        };
        for at in 0..self.objects.len() {
            if self.objects[at].class == Class::Register {
                let fork = self.objects[at].arrange(&[INITIAL], is_direct);
                self.fork = self.fork.or(fork);
                self.find_last(at)?;
            }
        }
        Ok(())
    }

    /// Finds the segment that ends with the version of the final read.
    fn find_last(&mut self, at: usize) -> Result<(), Violation> {
        let object = &self.objects[at];
        let is_final = |read: &&ObjectRead| self.recorded.txns[read.reader as usize].is_final;
        let Some(read) = object.reads.iter().find(is_final) else { return Ok(()) };
        // If there were writes and no value at the end, the last version is a delete.
        let seen = match object.candidates(read)[..] {
            [INITIAL, delete] if read.saw == ReadVersion::Nothing => Some(delete),
            [only] => Some(only),
            _ => None,
        };
        let Some(seen) = seen else { return Ok(()) };
        let (segment, place) = object.places[seen as usize];
        let (segment, place) = (segment as usize, place as usize);
        let after = object.segments[segment].get(place + 1).copied();
        let elsewhere = object.segments.get(1).filter(|_| segment == 0).map(|other| other[0]);
        if let Some(lost) = after.or(elsewhere) {
            let names = &self.recorded.names;
            let words = |value: Option<Name>| {
                value.map_or("nothing".to_owned(), |v| names.atom(v).to_string())
            };
            let version = object.versions[lost as usize];
            let story = format!(
                "{} wrote {} to {}, which is lost: the final value is {}, and the write has no \
                 place before that",
                self.name(version.writer),
                words(version.value),
                names.atom(object.key),
                words(object.versions[seen as usize].value),
            );
            return Err(self.violation("lost write", story));
        }
        self.objects[at].last = Some(segment);
        Ok(())
    }
}
