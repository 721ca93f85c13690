//! The additions of a program.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use crate::ids::{AdderId, SnapshotVersion, TableId};
use crate::key::Key;
use crate::txn::{Abort, Add, Registry, SqlState, Write};
use crate::value::Value;

/// The maximum number of additions to one row that a program records. A program with more of them
/// reads and writes the row instead, so that no replica computes a row for long.
const OF_ROW_MAX: usize = 64;

/// Adds an amount to a row. A panic of the adder becomes an abort, like that of a procedure.
///
/// # Errors
/// If the row can't hold the result.
pub fn add_to(
    registry: &Registry,
    row: &Value,
    adder: AdderId,
    amount: &[u8],
) -> Result<Value, Abort> {
    let failed = |message: String| Abort::new(SqlState::INTERNAL_ERROR, message);
    let Some(adder) = registry.adder(adder) else {
        return Err(failed(format!("adder number {} does not exist", adder.0)));
    };
    catch_unwind(AssertUnwindSafe(|| adder.add(row, amount)))
        .unwrap_or_else(|_| Err(failed(format!("adder \"{}\" failed", adder.name()))))
}

/// The additions of a program to rows that it has not written otherwise.
#[derive(Clone, Debug, Default)]
pub struct OwnAdds {
    rows: BTreeMap<(TableId, Key), AddedRow>,
}

/// The additions of a program to one row, in order.
#[derive(Clone, Debug)]
pub struct AddedRow {
    /// The version of the row when the program first added to it.
    seen: SnapshotVersion,
    adds: Vec<(AdderId, Bytes)>,
}

impl OwnAdds {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The additions to a row, if there are any.
    pub fn row(&self, table: TableId, key: &Key) -> Option<&AddedRow> {
        // A look-up needs a key of its own, and most programs add to nothing.
        if self.is_empty() { None } else { self.rows.get(&(table, key.clone())) }
    }

    /// Records an addition to a row, of which this version was seen.
    ///
    /// # Panics
    /// If the row has no room for it: [`AddedRow::has_room`].
    pub fn push(
        &mut self,
        (table, key): (TableId, Key),
        seen: SnapshotVersion,
        adder: AdderId,
        amount: &[u8],
    ) {
        let first = || AddedRow { seen, adds: Vec::new() };
        let row = self.rows.entry((table, key)).or_insert_with(first);
        assert!(row.has_room(), "there is room for the addition");
        row.adds.push((adder, Bytes::copy_from_slice(amount)));
    }

    /// Forgets the additions to a row, and returns them.
    pub fn remove(&mut self, table: TableId, key: &Key) -> Option<AddedRow> {
        if self.is_empty() { None } else { self.rows.remove(&(table, key.clone())) }
    }

    /// Sets the additions to a row to what they were before.
    pub fn restore(&mut self, (table, key): (TableId, Key), before: Option<AddedRow>) {
        match before {
            Some(row) => drop(self.rows.insert((table, key), row)),
            None => drop(self.rows.remove(&(table, key))),
        }
    }

    /// Returns all additions, and removes those writes that only hold their results on the
    /// snapshot.
    pub fn take(&mut self, writes: &mut Vec<Write>) -> Vec<Add> {
        let rows = std::mem::take(&mut self.rows);
        if !rows.is_empty() {
            writes.retain(|write| !rows.contains_key(&(write.table, write.key.clone())));
        }
        let all = rows.into_iter().flat_map(|((table, key), row)| {
            let add = move |(adder, amount)| Add { table, key: key.clone(), adder, amount };
            row.adds.into_iter().map(add)
        });
        all.collect()
    }
}

impl AddedRow {
    /// The version of the row when the program first added to it.
    pub fn seen(&self) -> SnapshotVersion {
        self.seen
    }

    /// Whether another addition can be recorded.
    pub fn has_room(&self) -> bool {
        self.adds.len() < OF_ROW_MAX
    }
}

#[cfg(test)]
mod tests;
