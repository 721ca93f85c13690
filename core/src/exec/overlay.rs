//! The overlay: uncommitted local writes above a snapshot.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use crate::ids::{TableId, TxnId};
use crate::key::{Key, KeyRange};
use crate::txn::Write;
use crate::value::Value;

/// The writes of local transactions that were executed and are not decided yet: the `temp_state` of
/// Minerva §3.2, Algorithm 1.
///
/// Each key has the writes of all undecided transactions, in local order, and readers see the
/// newest. When a transaction is decided, only its own writes are removed; older and newer ones
/// stay. Cloning is a deep copy of the maps; values are shared.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Tables without writes are not in the map, so a lookup in them ends here.
    tables: BTreeMap<TableId, BTreeMap<Key, Stack>>,
}

/// The writes of undecided transactions to one key. A single writer, the usual case, needs no
/// allocation. A hot key has thousands, which are decided from the oldest on, and invalidated in
/// any order.
#[derive(Clone, Debug)]
struct Stack {
    newest: Entry,
    /// By transaction, oldest first.
    older: BTreeMap<TxnId, Option<Value>>,
}

type Entry = (TxnId, Option<Value>);

impl Overlay {
    /// Creates an overlay without writes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no writes.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Removes all writes.
    pub fn clear(&mut self) {
        self.tables.clear();
    }

    /// Adds the writes of `txn` above all others.
    ///
    /// # Panics
    /// If `txn` is not newer than all writers of one of its keys: transactions are inserted in the
    /// order of their numbers, and each writes a key once.
    pub fn insert<'a>(&mut self, txn: TxnId, writes: impl IntoIterator<Item = &'a Write>) {
        for write in writes {
            let rows = self.tables.entry(write.table).or_default();
            let entry = (txn, write.value.clone());
            match rows.entry(write.key.clone()) {
                btree_map::Entry::Vacant(vacant) => {
                    vacant.insert(Stack { newest: entry, older: BTreeMap::new() });
                }
                btree_map::Entry::Occupied(mut occupied) => {
                    let stack = occupied.get_mut();
                    let newest = stack.newest.0;
                    assert!(newest != txn, "transaction {txn} wrote a key twice");
                    assert!(newest < txn, "{txn} is not newer than {newest}");
                    let (before, value) = std::mem::replace(&mut stack.newest, entry);
                    stack.older.insert(before, value);
                }
            }
        }
    }

    /// Removes the writes of `txn` at the keys of `writes`. The writes of other transactions keep
    /// their order. Keys without a write of `txn` are ignored.
    pub fn remove<'a>(&mut self, txn: TxnId, writes: impl IntoIterator<Item = &'a Write>) {
        for write in writes {
            let Some(rows) = self.tables.get_mut(&write.table) else { continue };
            if let Some(stack) = rows.get_mut(&write.key) {
                if stack.newest.0 != txn {
                    stack.older.remove(&txn);
                } else if let Some(newest) = stack.older.pop_last() {
                    stack.newest = newest;
                } else {
                    rows.remove(&write.key);
                }
            }
            if rows.is_empty() {
                self.tables.remove(&write.table);
            }
        }
    }

    /// The newest write of a key: its transaction, and a value or a deletion.
    pub fn newest(&self, table: TableId, key: &[u8]) -> Option<(TxnId, Option<&Value>)> {
        let stack = self.tables.get(&table)?.get(key)?;
        Some((stack.newest.0, stack.newest.1.as_ref()))
    }

    /// The newest write of each key in a range, in ascending order.
    pub fn range(
        &self,
        table: TableId,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&Key, TxnId, Option<&Value>)> {
        // A map panics on a range that ends before it starts.
        let rows = self.tables.get(&table).filter(|_| !range.is_empty());
        let end = range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (Bound::Included(&range.start[..]), end);
        let found = rows.into_iter().flat_map(move |rows| rows.range::<[u8], _>(bounds));
        found.map(|(key, stack)| (key, stack.newest.0, stack.newest.1.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn txn(n: u64) -> TxnId {
        TxnId::new(NodeId(1), n)
    }

    fn write(key: u8, value: Option<u8>) -> Write {
        let value = value.map(|value| Value::copy_from(&[value]));
        Write { table: TableId(1), key: Key::from(&[key][..]), value }
    }

    #[test]
    fn a_decided_transaction_leaves_what_lies_under_and_over_its_write() {
        let mut overlay = Overlay::new();
        let values = [write(7, Some(1)), write(7, None), write(7, Some(3))];
        for (n, value) in values.iter().enumerate() {
            overlay.insert(txn(n as u64), std::slice::from_ref(value));
        }
        let newest = |overlay: &Overlay| overlay.newest(TableId(1), &[7]).map(|(txn, _)| txn);
        overlay.remove(txn(1), &values[..1]);
        assert_eq!(newest(&overlay), Some(txn(2)));
        overlay.remove(txn(2), &values[..1]);
        assert_eq!(overlay.newest(TableId(1), &[7]), Some((txn(0), values[0].value.as_ref())));
        overlay.remove(txn(2), &values[..1]);
        assert_eq!(newest(&overlay), Some(txn(0)), "a second removal has no effect");
        overlay.remove(txn(0), &values[..1]);
        assert!(overlay.is_empty());
    }

    #[test]
    #[should_panic(expected = "wrote a key twice")]
    fn a_transaction_that_is_inserted_twice_is_a_bug() {
        let mut overlay = Overlay::new();
        overlay.insert(txn(1), &[write(7, None)]);
        overlay.insert(txn(1), &[write(7, None)]);
    }

    fn keys() -> impl Strategy<Value = BTreeSet<u8>> {
        prop::collection::btree_set(0u8..6, 0..4)
    }

    proptest! {
        #[test]
        fn the_newest_writer_that_is_left_is_seen(
            ops in prop::collection::vec((any::<bool>(), 0u64..30, keys()), 0..60),
            start in 0u8..6,
            end in 0u8..6,
        ) {
            let mut overlay = Overlay::new();
            let mut model: Vec<(TxnId, Vec<Write>)> = Vec::new();
            for (is_insert, n, keys) in ops {
                let known = model.iter().position(|(writer, _)| *writer == txn(n));
                match (is_insert, known) {
                    (true, None) if model.iter().all(|(writer, _)| *writer < txn(n)) => {
                        let value = Some(n as u8);
                        let writes: Vec<_> = keys.iter().map(|&key| write(key, value)).collect();
                        overlay.insert(txn(n), &writes);
                        model.push((txn(n), writes));
                    }
                    (false, Some(at)) => {
                        let (writer, writes) = model.remove(at);
                        overlay.remove(writer, &writes);
                    }
                    _ => {}
                }
            }
            let newest = |key: u8| {
                let has_key = |writes: &[Write]| writes.iter().any(|write| write.key[0] == key);
                let found = model.iter().rev().find(|(_, writes)| has_key(writes));
                found.map(|(writer, _)| *writer)
            };
            for key in 0..6 {
                let found = overlay.newest(TableId(1), &[key]).map(|(txn, _)| txn);
                prop_assert_eq!(found, newest(key));
            }
            let range = KeyRange { start: vec![start], end: Some(vec![end]) };
            let found = overlay.range(TableId(1), &range);
            let found: Vec<_> = found.map(|(key, writer, _)| (key[0], writer)).collect();
            let expected: Vec<_> = (start..end).filter_map(|k| Some((k, newest(k)?))).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(overlay.is_empty(), (0..6).all(|key| newest(key).is_none()));
        }
    }
}
