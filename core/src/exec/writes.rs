//! The buffered writes of a program, and an index of the keys that it has read.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use crate::hash::HashTable;
use crate::ids::TableId;
use crate::key::{Direction, HashedKey, Key, KeyRange};
use crate::txn::{Abort, PointRead, SqlState, Write};
use crate::value::Value;

/// The maximum number of keys that a program may write. Writes are buffered in memory, and
/// positions in the buffer have 32 bits.
pub(super) const WRITES_MAX: usize = 1 << 22;

/// Up to this number of rows, a lookup compares their hashes linearly, several with each
/// instruction. The filter skips the comparison if there is no match.
const LINEAR_MAX: usize = if cfg!(test) { 8 } else { 64 };

/// From this number of writes on, a scan finds them in a sorted index instead of checking each.
const SORTED_MIN: usize = 32;

/// An element that belongs to one key of one table.
pub(super) trait Row {
    /// The table and the key.
    fn row(&self) -> (TableId, &Key);
}

impl Row for Write {
    #[inline]
    fn row(&self) -> (TableId, &Key) {
        (self.table, &self.key)
    }
}

impl Row for PointRead {
    #[inline]
    fn row(&self) -> (TableId, &Key) {
        (self.table, &self.key)
    }
}

/// An index of the rows in an append-only list. It stores no keys: callers pass the list to each
/// lookup.
#[derive(Debug, Default)]
pub(super) struct Positions {
    /// A Bloom filter with one bit per row. A row whose bit is clear is not in the list.
    filter: [u64; 4],
    /// The hashes of the rows, in list order.
    hashes: Vec<u64>,
    /// Empty up to [`LINEAR_MAX`] rows.
    by_hash: HashTable<u32>,
}

impl Positions {
    /// The position of a row in `rows`, which must be the list recorded with [`Positions::push`].
    #[inline]
    pub fn find<R: Row>(&self, rows: &[R], table: TableId, key: &HashedKey) -> Option<usize> {
        let hash = key.row_hash(table);
        let (word, bit) = filter_bit(hash);
        if self.filter[word] & bit == 0 {
            return None;
        }
        self.find_hashed(rows, hash, (table, key.key()))
    }

    fn find_hashed<R: Row>(
        &self,
        rows: &[R],
        hash: u64,
        (table, key): (TableId, &Key),
    ) -> Option<usize> {
        let is_it = |at: usize| rows[at].row() == (table, key);
        if rows.len() <= LINEAR_MAX {
            let hashes = self.hashes.iter().enumerate();
            return hashes.filter(|&(_, &of)| of == hash).map(|(at, _)| at).find(|&at| is_it(at));
        }
        let found = self.by_hash.find(hash, |&at| is_it(at as usize));
        found.map(|&at| at as usize)
    }

    /// Records a row that was appended to the list.
    #[inline]
    pub fn push(&mut self, table: TableId, key: &HashedKey) {
        let hash = key.row_hash(table);
        let (word, bit) = filter_bit(hash);
        self.filter[word] |= bit;
        self.hashes.push(hash);
        if self.hashes.len() > LINEAR_MAX {
            self.index();
        }
    }

    fn index(&mut self) {
        let first_unknown = self.by_hash.len();
        for (at, &hash) in self.hashes.iter().enumerate().skip(first_unknown) {
            let rehash = |&known: &u32| self.hashes[known as usize];
            self.by_hash.insert_unique(hash, at as u32, rehash);
        }
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.filter = [0; 4];
        self.hashes.clear();
        self.by_hash.clear();
    }
}

/// The word and bit of a hash in the filter.
#[inline]
fn filter_bit(hash: u64) -> (usize, u64) {
    ((hash >> 62) as usize, 1 << ((hash >> 56) & 63))
}

/// The writes of one program, one for each key, in the order of the first write of each key.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    rows: Vec<Write>,
    positions: Positions,
    /// The positions of all rows by key. Empty until the first scan with many rows; maintained from
    /// then on.
    sorted: BTreeMap<(TableId, Key), u32>,
}

impl OwnWrites {
    /// The program's write to a key, if there is one: a value or a deletion.
    #[inline]
    pub fn find(&self, table: TableId, key: &HashedKey) -> Option<&Write> {
        self.positions.find(&self.rows, table, key).map(|at| &self.rows[at])
    }

    /// Writes a value or a deletion.
    ///
    /// # Errors
    /// If the program writes too many keys.
    pub fn set(&mut self, table: TableId, key: Key, value: Option<Value>) -> Result<(), Abort> {
        let key = HashedKey::from(key);
        if let Some(at) = self.positions.find(&self.rows, table, &key) {
            self.rows[at].value = value;
            return Ok(());
        }
        if self.rows.len() == WRITES_MAX {
            return Err(too_many_writes());
        }
        if !self.sorted.is_empty() {
            self.sorted.insert((table, key.key().clone()), self.rows.len() as u32);
        }
        self.positions.push(table, &key);
        self.rows.push(Write { table, key: key.into(), value });
        Ok(())
    }

    /// The writes so far.
    pub fn rows(&self) -> &[Write] {
        &self.rows
    }

    /// The writes within a range, in the order of a scan. Of many writes only those are looked at
    /// that are taken.
    pub fn within(&mut self, table: TableId, range: &KeyRange, direction: Direction) -> Within<'_> {
        if self.rows.len() < SORTED_MIN || range.is_empty() {
            let is_within = |write: &&Write| write.table == table && range.contains(&write.key);
            let mut found: Vec<&Write> = self.rows.iter().filter(is_within).collect();
            match direction {
                Direction::Forward => found.sort_unstable_by(|a, b| a.key.cmp(&b.key)),
                Direction::Reverse => found.sort_unstable_by(|a, b| b.key.cmp(&a.key)),
            }
            return Within::Few(found.into_iter());
        }
        self.sort();
        let first = Bound::Included((table, Key::from(&range.start[..])));
        let end = match &range.end {
            Some(end) => Bound::Excluded((table, Key::from(&end[..]))),
            None => match table.0.checked_add(1) {
                Some(next) => Bound::Excluded((TableId(next), Key::from(&b""[..]))),
                None => Bound::Unbounded,
            },
        };
        Within::Sorted { rows: &self.rows, places: self.sorted.range((first, end)), direction }
    }

    fn sort(&mut self) {
        if self.sorted.is_empty() {
            let named =
                |(at, write): (usize, &Write)| ((write.table, write.key.clone()), at as u32);
            self.sorted = self.rows.iter().enumerate().map(named).collect();
        }
        assert_eq!(self.sorted.len(), self.rows.len(), "all writes are in the order");
    }

    /// Removes and returns all writes.
    pub fn take(&mut self) -> Vec<Write> {
        self.positions.clear();
        self.sorted.clear();
        // The next program will probably write a similar number of rows.
        let next = Vec::with_capacity(self.rows.len());
        std::mem::replace(&mut self.rows, next)
    }

    /// Removes all writes.
    pub fn clear(&mut self) {
        self.positions.clear();
        self.sorted.clear();
        self.rows.clear();
    }
}

/// Writes in the order of a scan.
#[derive(Debug)]
pub(super) enum Within<'a> {
    Few(std::vec::IntoIter<&'a Write>),
    Sorted {
        rows: &'a [Write],
        places: btree_map::Range<'a, (TableId, Key), u32>,
        direction: Direction,
    },
}

impl<'a> Iterator for Within<'a> {
    type Item = &'a Write;

    #[inline]
    fn next(&mut self) -> Option<&'a Write> {
        match self {
            Self::Few(found) => found.next(),
            Self::Sorted { rows, places, direction } => {
                let place = match direction {
                    Direction::Forward => places.next(),
                    Direction::Reverse => places.next_back(),
                };
                place.map(|(_, at)| &rows[*at as usize])
            }
        }
    }
}

/// The abort of a program that writes more than [`WRITES_MAX`] keys.
pub(super) fn too_many_writes() -> Abort {
    let message = format!("a transaction can't write more than {WRITES_MAX} keys");
    Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_write_of_a_key_is_found(
            ops in prop::collection::vec((0u32..3, 0u8..20, prop::option::of(0u8..9)), 0..120),
        ) {
            let mut writes = OwnWrites::default();
            let mut model = BTreeMap::new();
            for (n, (table, key, value)) in ops.into_iter().enumerate() {
                if n % 7 == 6 {
                    writes.within(TableId(0), &KeyRange::all(), Direction::Forward);
                }
                let bytes = value.map(|value| Value::copy_from(&[value]));
                let key = Key::from(&[key][..]);
                writes.set(TableId(table), key.clone(), bytes.clone()).unwrap();
                model.insert((TableId(table), key), bytes);
            }
            for table in (0..3).map(TableId) {
                for key in 0..20u8 {
                    let key = Key::from(&[key][..]);
                    let found = writes.find(table, &key.clone().into());
                    let found = found.map(|write| write.value.clone());
                    prop_assert_eq!(&found, &model.get(&(table, key)).cloned());
                }
                let range = KeyRange { start: vec![5], end: Some(vec![12]) };
                let found = |writes: &mut OwnWrites, direction| {
                    let found = writes.within(table, &range, direction);
                    found.map(|write| write.key.clone()).collect::<Vec<_>>()
                };
                let (start, end) = (Key::from(&[5][..]), Key::from(&[12][..]));
                let expected = model.range((table, start)..(table, end));
                let mut keys = expected.map(|((_, key), _)| key.clone()).collect::<Vec<_>>();
                prop_assert_eq!(&found(&mut writes, Direction::Forward), &keys);
                keys.reverse();
                prop_assert_eq!(&found(&mut writes, Direction::Reverse), &keys);
            }
            prop_assert_eq!(writes.take().len(), model.len());
            prop_assert!(writes.find(TableId(0), &HashedKey::from(&[0][..])).is_none());
        }
    }
}
