//! Locks: the rows that transactions over several shards are about to write (§4.2, "Lock").
//!
//! A lock is taken at once or refused, so nobody waits while it holds one, and there is no
//! deadlock. The table is ordered, so a scan sees the keys that are about to be inserted in its
//! range. Few keys are locked at a time: a filter tells that a key is not, with one load.
//!
//! Rows and ranges that such a transaction has read on its coordinator's shard, or on one where it
//! writes, are locked, too, but only against writes: several transactions may have read them.
//! Otherwise one that reads a row which local transactions write all the time would never find it
//! unchanged, and its reads would have to be checked again when all numbers are drawn.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::hash::hash_bytes;
use pangea_core::ids::{TableId, TxnId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::mutate;

/// The number of words of the filter: 8 KiB, which stays in a cache.
const FILTER_WORDS: usize = 1 << 10;

/// The locked rows of a shard, with their holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockTable {
    locked: BTreeMap<(TableId, Key), TxnId>,
    /// The rows that are locked against writes, each with the transactions that have read it.
    shared: BTreeMap<(TableId, Key), BTreeSet<TxnId>>,
    /// The ranges that are locked against writes, by table. There are few at a time.
    ranges: BTreeMap<TableId, Vec<(KeyRange, TxnId)>>,
    /// A bit for each key that was locked since the table was empty. Empty if none is.
    filter: Vec<u64>,
}

/// A row that another transaction has locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: Key,
    /// The transaction that has it.
    pub txn: TxnId,
}

/// The rows of a range that a map has, with their values.
pub(super) fn rows_within<'a, T>(
    rows: &'a BTreeMap<(TableId, Key), T>,
    (table, range): (TableId, &KeyRange),
) -> impl Iterator<Item = (&'a (TableId, Key), &'a T)> {
    let first = (table, Key::from(&range.start[..]));
    let is_of_it = move |row: &(TableId, Key)| row.0 == table && range.contains(&row.1);
    rows.range(first..).take_while(move |(row, _)| is_of_it(row))
}

fn bit_of(table: TableId, key: &[u8]) -> (usize, u64) {
    let hash = hash_bytes(key).wrapping_add(u64::from(table.0).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    ((hash >> 6) as usize % FILTER_WORDS, 1 << (hash & 63))
}

impl LockTable {
    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.locked.is_empty()
    }

    /// The number of locked rows.
    pub fn len(&self) -> usize {
        self.locked.len()
    }

    /// The locked rows and their holders, in order.
    pub fn all(&self) -> impl Iterator<Item = (&(TableId, Key), TxnId)> {
        self.locked.iter().map(|(row, txn)| (row, *txn))
    }

    /// The transaction that has locked a row.
    pub fn holder(&self, table: TableId, key: &[u8]) -> Option<TxnId> {
        if self.locked.is_empty() {
            return None;
        }
        let (word, bit) = bit_of(table, key);
        if self.filter[word] & bit == 0 {
            return None;
        }
        self.locked.get(&(table, Key::from(key))).copied()
    }

    /// A transaction other than `except` that has locked a row against writes, or a range with it.
    pub fn reader(&self, table: TableId, key: &[u8], except: Option<TxnId>) -> Option<TxnId> {
        let of_row = || {
            let readers = self.shared.get(&(table, Key::from(key)))?;
            readers.iter().copied().find(|txn| Some(*txn) != except)
        };
        let of_range = || {
            let ranges = self.ranges.get(&table)?.iter();
            let mut readers = ranges.filter(|(range, _)| range.contains(key)).map(|(_, txn)| *txn);
            readers.find(|txn| Some(*txn) != except)
        };
        let of_row = if self.shared.is_empty() { None } else { of_row() };
        of_row.or_else(of_range)
    }

    /// The transactions that have locked rows or ranges against writes.
    pub fn readers(&self) -> impl Iterator<Item = TxnId> {
        let of_ranges = self.ranges.values().flatten().map(|(_, txn)| *txn);
        self.shared.values().flatten().copied().chain(of_ranges)
    }

    /// A row of a range that another transaction than `except` has locked, whether the row exists
    /// or not.
    pub fn holder_within(
        &self,
        table: TableId,
        range: &KeyRange,
        except: Option<TxnId>,
    ) -> Option<Holder> {
        if self.locked.is_empty() || range.is_empty() {
            return None;
        }
        mutate!(MakoRangeMissesLockedInsert: () => return None);
        let mut within = rows_within(&self.locked, (table, range));
        let (row, txn) = within.find(|(_, txn)| Some(**txn) != except)?;
        Some(Holder { table, key: row.1.clone(), txn: *txn })
    }

    /// Whether a transaction can lock all of these rows.
    ///
    /// # Errors
    /// If another transaction has one of them, or has locked it against writes.
    pub fn can_lock<'a>(
        &self,
        txn: TxnId,
        mut rows: impl Iterator<Item = (TableId, &'a Key)>,
    ) -> Result<(), Holder> {
        rows.try_for_each(|(table, key)| {
            let holder = self.holder(table, key).filter(|other| *other != txn);
            match holder.or_else(|| self.reader(table, key, Some(txn))) {
                Some(other) => Err(Holder { table, key: key.clone(), txn: other }),
                None => Ok(()),
            }
        })
    }

    /// Locks all of these rows for a transaction, or none.
    ///
    /// # Errors
    /// As [`LockTable::can_lock`].
    pub fn lock<'a>(
        &mut self,
        txn: TxnId,
        rows: impl Iterator<Item = (TableId, &'a Key)> + Clone,
    ) -> Result<(), Holder> {
        self.can_lock(txn, rows.clone())?;
        for (table, key) in rows {
            self.filter.resize(FILTER_WORDS, 0);
            let (word, bit) = bit_of(table, key);
            self.filter[word] |= bit;
            self.locked.insert((table, key.clone()), txn);
        }
        Ok(())
    }

    /// Whether a transaction can lock all of these rows and ranges against the writes of others.
    ///
    /// # Errors
    /// If another transaction is about to write one of them.
    pub fn can_share<'a>(
        &self,
        txn: TxnId,
        mut rows: impl Iterator<Item = (TableId, &'a Key)>,
        ranges: &[(TableId, KeyRange)],
    ) -> Result<(), Holder> {
        rows.try_for_each(|(table, key)| {
            match self.holder(table, key).filter(|other| *other != txn) {
                Some(other) => Err(Holder { table, key: key.clone(), txn: other }),
                None => Ok(()),
            }
        })?;
        ranges.iter().try_for_each(|(table, range)| {
            self.holder_within(*table, range, Some(txn)).map_or(Ok(()), Err)
        })
    }

    /// Locks all of these rows and ranges against the writes of others, or none.
    ///
    /// # Errors
    /// As [`LockTable::can_share`].
    pub fn share<'a>(
        &mut self,
        txn: TxnId,
        rows: impl Iterator<Item = (TableId, &'a Key)> + Clone,
        ranges: &[(TableId, KeyRange)],
    ) -> Result<(), Holder> {
        self.can_share(txn, rows.clone(), ranges)?;
        for (table, key) in rows {
            self.shared.entry((table, key.clone())).or_default().insert(txn);
        }
        for (table, range) in ranges {
            self.ranges.entry(*table).or_default().push((range.clone(), txn));
        }
        Ok(())
    }

    /// Ends that for those of the rows that the transaction has locked against writes, and for all
    /// its ranges of these tables.
    pub fn unshare<'a>(
        &mut self,
        txn: TxnId,
        rows: impl Iterator<Item = (TableId, &'a Key)>,
        ranges: &[(TableId, KeyRange)],
    ) {
        for (table, _) in ranges {
            if let Some(of_table) = self.ranges.get_mut(table) {
                of_table.retain(|(_, other)| *other != txn);
                if of_table.is_empty() {
                    self.ranges.remove(table);
                }
            }
        }
        for (table, key) in rows {
            let row = (table, key.clone());
            if let Some(readers) = self.shared.get_mut(&row) {
                readers.remove(&txn);
                if readers.is_empty() {
                    self.shared.remove(&row);
                }
            }
        }
    }

    /// Unlocks those of the rows that the transaction has locked.
    pub fn unlock<'a>(&mut self, txn: TxnId, rows: impl Iterator<Item = (TableId, &'a Key)>) {
        for (table, key) in rows {
            let row = (table, key.clone());
            if self.locked.get(&row) == Some(&txn) {
                self.locked.remove(&row);
            }
        }
        if self.locked.is_empty() {
            self.filter.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::NodeId;
    use proptest::prelude::*;

    use super::*;

    fn txn(sequence: u64) -> TxnId {
        TxnId::new(NodeId(0), sequence)
    }

    fn key(key: u8) -> Key {
        Key::from(&[key][..])
    }

    /// §4.2: "if any lock is already held by another transaction, the lock request fails".
    #[test]
    fn a_transaction_locks_all_rows_or_none() {
        let mut locks = LockTable::default();
        let (a, b, c) = (key(1), key(2), key(3));
        let table = TableId(1);
        locks.lock(txn(1), [(table, &a), (table, &b)].into_iter()).unwrap();
        let refused = locks.lock(txn(2), [(table, &c), (table, &b)].into_iter()).unwrap_err();
        assert_eq!((refused.key, refused.txn), (b.clone(), txn(1)));
        assert_eq!(locks.holder(table, &c), None, "none is locked");
        locks.lock(txn(1), [(table, &b), (table, &c)].into_iter()).unwrap();
        locks.unlock(txn(2), [(table, &a)].into_iter());
        assert_eq!(locks.holder(table, &a), Some(txn(1)), "it is not the other one's");
        locks.unlock(txn(1), [(table, &a), (table, &b), (table, &c)].into_iter());
        assert_eq!(locks, LockTable::default());
    }

    /// Phantoms: a scan finds a row that is about to be inserted.
    #[test]
    fn a_range_has_a_holder_if_a_key_in_it_is_locked() {
        let mut locks = LockTable::default();
        locks.lock(txn(1), [(TableId(1), &key(5))].into_iter()).unwrap();
        let within = |table, start: u8, end: u8, except| {
            let range = KeyRange { start: vec![start], end: Some(vec![end]) };
            locks.holder_within(TableId(table), &range, except).map(|holder| holder.txn)
        };
        assert_eq!(within(1, 3, 6, None), Some(txn(1)));
        assert_eq!(
            [within(1, 3, 5, None), within(1, 6, 9, None), within(2, 3, 9, None)],
            [None; 3]
        );
        assert_eq!(within(1, 3, 6, Some(txn(1))), None, "it is its own");
        assert_eq!(within(1, 3, 6, Some(txn(2))), Some(txn(1)));
    }

    proptest! {
        #[test]
        fn the_table_does_what_a_map_does(
            steps in prop::collection::vec((0_u64..4, 0_u32..2, 0_u8..20, any::<bool>()), 1..80)
        ) {
            let mut locks = LockTable::default();
            let mut model: BTreeMap<(TableId, Key), TxnId> = BTreeMap::new();
            for (name, table, number, is_lock) in steps {
                let (txn, row) = (txn(name + 1), (TableId(table), key(number)));
                let rows = [(row.0, &row.1)].into_iter();
                let held = model.get(&row).copied();
                if is_lock {
                    let is_free = held.is_none_or(|holder| holder == txn);
                    prop_assert_eq!(locks.lock(txn, rows).is_ok(), is_free);
                    model.entry(row).or_insert(txn);
                } else {
                    locks.unlock(txn, rows);
                    if held == Some(txn) {
                        model.remove(&row);
                    }
                }
                for table in (0..2).map(TableId) {
                    for number in 0..20 {
                        let expected = model.get(&(table, key(number))).copied();
                        prop_assert_eq!(locks.holder(table, &key(number)), expected);
                    }
                }
                prop_assert_eq!(locks.len(), model.len());
            }
        }
    }
}
