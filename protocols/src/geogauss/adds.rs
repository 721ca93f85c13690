//! Additions to rows, at their places in the order of an epoch.
//!
//! A transaction that only adds to a row (`SET v = v + 1`) depends on nothing of it but that it
//! exists. So it sends the amount, and each replica adds that to the row as it is at the
//! transaction's place:
//!
//! ```text
//!   before the epoch: 5    T1: add 1 --> 6    T2: put 20 --> 20    T3: add 2 --> 22
//! ```
//!
//! So any number of transactions of all regions add to one row in one epoch. The paper has no
//! additions.
//! - An addition meets no other addition, and no write. For those that check the row, it is a write
//!   of it.
//! - If the row does not exist at that place, the transaction has lost.
//! - If the row can't hold the result, the transaction aborts. That is its result at its place, so
//!   it is not tried again.
//!
//! The results of an epoch are logged, so a restart does not need the code that has computed them.
//!
//! The order stays a serial one: what a transaction has read is unchanged at its place, and an
//! addition is computed there. At the snapshot level nothing is recorded as an addition, because a
//! row that a transaction has changed must not have been changed by another one since its base.

use pangea_core::exec::{Change, add_to};
use pangea_core::hash::{HashMap, HashSet};
use pangea_core::ids::{SnapshotVersion, TableId};
use pangea_core::key::Key;
use pangea_core::mutate;
use pangea_core::store::Store;
use pangea_core::txn::{Add, Registry, Write};
use pangea_core::value::Value;

use super::isolation::Checks;
use super::merge::Fate;

/// A row.
type Row<'a> = (TableId, &'a Key);

/// The rows to which transactions of an epoch add, as they are at a place in its order.
pub(super) struct AddedRows<'a> {
    registry: &'a Registry,
    rows: HashMap<Row<'a>, Option<Value>>,
}

impl<'a> AddedRows<'a> {
    /// The rows before an epoch with these transactions. `version` is the epoch before it.
    pub(super) fn new(
        registry: &'a Registry,
        store: &Store,
        version: SnapshotVersion,
        all: impl Iterator<Item = &'a Checks>,
    ) -> Self {
        let mut rows = HashMap::default();
        for Add { table, key, .. } in all.flat_map(|checks| &checks.adds) {
            let read = || store.read(*table, key, version).and_then(|found| found.value);
            rows.entry((*table, key)).or_insert_with(read);
        }
        Self { registry, rows }
    }

    /// Takes the transaction at the next place, and returns the rows to which it has added.
    ///
    /// # Errors
    /// Its fate if it can't commit. Nothing has changed then.
    pub(super) fn advance(&mut self, checks: &'a Checks) -> Result<Vec<Write>, Fate> {
        if self.rows.is_empty() {
            return Ok(Vec::new());
        }
        let added = self.added(&checks.adds)?;
        for it in &checks.writes {
            if let Some(row) = self.rows.get_mut(&(it.write.table, &it.write.key)) {
                row.clone_from(&it.write.value);
            }
        }
        for (row, value) in &added {
            mutate!(DeltaLastWins: self.rows.insert(*row, Some(value.clone())) => None);
        }
        let write = |((table, key), value): (Row<'_>, Value)| Write {
            table,
            key: key.clone(),
            value: Some(value),
        };
        Ok(added.into_iter().map(write).collect())
    }

    /// The rows after the additions of a transaction, which are ordered by row.
    fn added(&self, adds: &'a [Add]) -> Result<Vec<(Row<'a>, Value)>, Fate> {
        let mut added: Vec<(Row<'a>, Value)> = Vec::with_capacity(adds.len());
        for Add { table, key, adder, amount } in adds {
            let row = (*table, key);
            let own = added.pop_if(|(of, _)| *of == row).map(|(_, value)| value);
            let before = match &own {
                Some(own) => Some(own),
                None => self.rows.get(&row).and_then(Option::as_ref),
            };
            let Some(before) = before else {
                let change = Change { table: *table, key: key.clone(), winner: None };
                return Err(Fate::Lost(change));
            };
            let after = add_to(self.registry, before, *adder, amount).map_err(Fate::Failed)?;
            added.push((row, after));
        }
        Ok(added)
    }
}

/// Removes the results of additions to rows to which a later transaction adds.
pub(super) fn keep_last(added: &mut [Vec<Write>]) {
    let mut known = HashSet::default();
    for rows in added.iter_mut().rev().filter(|rows| !rows.is_empty()) {
        rows.retain(|write| known.insert((write.table, write.key.clone())));
    }
}

#[cfg(test)]
mod tests;
