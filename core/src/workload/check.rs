//! Checks of a workload's data: their input and their results.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{ControlFlow, RangeInclusive};

use crate::codec::DecodeError;
use crate::ids::{ShardId, SnapshotVersion, TableId};
use crate::key::{Direction, KeyRange};
use crate::partition::{Partitions, ShardSet};
use crate::store::Store;
use crate::txn::Visit;
use crate::value::Value;

/// A database that does not change during a check.
pub trait Rows {
    /// The value of a key, or `None` if it does not exist.
    fn get(&self, table: TableId, key: &[u8]) -> Option<Value>;

    /// Visits the rows of a range in ascending order until `visit` breaks.
    fn scan(&self, table: TableId, range: &KeyRange, visit: &mut Visit<'_>);
}

/// A store at one published version.
#[derive(Debug)]
pub struct Snapshot<'a> {
    store: &'a Store,
    at: SnapshotVersion,
}

impl<'a> Snapshot<'a> {
    /// The rows that a reader at `at` sees. The caller must keep the version pinned.
    ///
    /// # Panics
    /// If the version is not published, because it could still change.
    pub fn new(store: &'a Store, at: SnapshotVersion) -> Self {
        assert!(at <= store.published(), "a check needs a published version");
        Self { store, at }
    }
}

impl Rows for Snapshot<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Option<Value> {
        self.store.read(table, key, self.at)?.value
    }

    fn scan(&self, table: TableId, range: &KeyRange, visit: &mut Visit<'_>) {
        self.store.scan(table, range, Direction::Forward, self.at, |key, version| {
            match &version.value {
                Some(value) => visit(key, value),
                None => ControlFlow::Continue(()),
            }
        });
    }
}

/// The shards of partitioned tables, each at one version.
pub struct Divided<'a> {
    partitions: &'a Partitions,
    shards: Vec<&'a dyn Rows>,
}

impl<'a> Divided<'a> {
    /// The rows of all shards, given in order.
    pub fn new(partitions: &'a Partitions, shards: Vec<&'a dyn Rows>) -> Self {
        assert_eq!(
            shards.len(),
            usize::from(partitions.shards()),
            "one source of rows for each shard"
        );
        Self { partitions, shards }
    }
}

impl Rows for Divided<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Option<Value> {
        let shard = self.partitions.shard_of(table, key).unwrap_or_default();
        self.shards[usize::from(shard.0)].get(table, key)
    }

    fn scan(&self, table: TableId, range: &KeyRange, visit: &mut Visit<'_>) {
        let of = self.partitions.shards_of(table, range);
        let of = of.unwrap_or_else(|| ShardSet::one(ShardId(0)));
        if of.len() == 1 {
            let only = of.iter().next().expect("the set has one shard");
            return self.shards[usize::from(only.0)].scan(table, range, visit);
        }
        let mut rows = BTreeMap::new();
        for shard in of.iter() {
            self.shards[usize::from(shard.0)].scan(table, range, &mut |key, value| {
                if self.partitions.counts(shard, table, key) {
                    rows.insert(key.to_vec(), value.clone());
                }
                ControlFlow::Continue(())
            });
        }
        let _ = rows.iter().try_for_each(|(key, value)| visit(key, value));
    }
}

/// The result of a check without violations: counts by name, such as `orders`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The counts.
    pub facts: BTreeMap<&'static str, i64>,
}

impl Report {
    /// Adds to a count.
    pub fn count(&mut self, name: &'static str, more: i64) {
        *self.facts.entry(name).or_default() += more;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.facts.iter().try_for_each(|(name, count)| {
            write!(f, "{separator}{count} {name}")?;
            separator = ", ";
            Ok(())
        })
    }
}

/// Two numbers that should be equal, or within a bound, but are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The violated rule, such as `TPC-C 3.3.2.1`.
    pub rule: String,
    /// The location, such as `warehouse 1, district 2`.
    pub place: String,
    /// The name and value of the first number.
    pub left: (&'static str, i64),
    /// The name and value of the second number.
    pub right: (&'static str, i64),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, place, left, right } = self;
        write!(f, "{rule} violated, {place}: {} is {}, {} is {}", left.0, left.1, right.0, right.1)
    }
}

impl std::error::Error for Violation {}

/// A rule at one location.
#[derive(Clone, Copy)]
pub(super) struct Rule<'a> {
    /// The name of the rule.
    pub(super) rule: &'a str,
    /// The location.
    pub(super) place: &'a dyn fmt::Display,
}

impl Rule<'_> {
    /// Requires two numbers to be equal.
    pub(super) fn equal(
        &self,
        left: (&'static str, i64),
        right: (&'static str, i64),
    ) -> Result<(), Violation> {
        if left.1 == right.1 {
            return Ok(());
        }
        Err(Violation { rule: self.rule.to_owned(), place: self.place.to_string(), left, right })
    }

    /// Requires a number to be within bounds.
    pub(super) fn within(
        &self,
        found: (&'static str, i64),
        what: &'static str,
        bounds: RangeInclusive<i64>,
    ) -> Result<(), Violation> {
        let (least, most) = bounds.into_inner();
        assert!(least <= most, "{what}: bounds from {least} to {most} are empty");
        if least == most {
            return self.equal(found, (what, least));
        }
        let (how, bound) = match found.1 {
            found if found < least => ("at least", least),
            found if found > most => ("at most", most),
            _ => return Ok(()),
        };
        let rule = format!("{}, {how},", self.rule);
        Rule { rule: &rule, ..*self }.equal(found, (what, bound))
    }

    /// Requires a row to be decodable.
    pub(super) fn readable<T>(&self, row: Result<T, DecodeError>) -> Result<T, Violation> {
        row.map_err(|error| Violation {
            rule: format!("{} ({error})", self.rule),
            place: self.place.to_string(),
            left: ("rows read", 0),
            right: ("rows in the table", 1),
        })
    }
}
