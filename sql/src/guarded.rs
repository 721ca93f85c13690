//! Reads on which a transaction depends at every isolation level.
//!
//! Constraints, locks and schema changes run over a context that guards what they read. Where all
//! reads are checked anyway, they run over the context itself.
//!
//! | statement | guards |
//! |---|---|
//! | all | the catalog records that its plan was made with, and the user's privileges |
//! | schema changes | all that they read |
//! | writes of a table with foreign keys | that referenced rows exist, and who refers to a lost key |
//! | INSERT .. ON CONFLICT | that the row in the way exists |
//! | SELECT .. FOR UPDATE or SHARE | the rows that it reads |
//! | LOCK TABLE | the table |
//!
//! Unique keys need no guards: a row is written after a look-up of its key, so the two are checked
//! together.

use std::borrow::Cow;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Context, Guards, Scan, Stop, Visit};
use pangea_core::value::Value;

/// The property of reads that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Rows and ranges are as they were read.
    Reads,
    /// Rows are as they were read; others may appear.
    Rows,
    /// Rows that were looked up still exist, or are still absent. Ranges are as they were read.
    Existence,
}

/// Runs `run` over a context that guards its reads.
pub(crate) fn guarding<T>(
    cx: &mut dyn Context,
    hold: Hold,
    run: impl FnOnce(&mut dyn Context) -> T,
) -> T {
    if cx.guards().is_none() {
        return run(cx);
    }
    run(&mut Guarded { cx, hold })
}

/// A context that guards what is read through it.
struct Guarded<'a> {
    cx: &'a mut dyn Context,
    hold: Hold,
}

impl Context for Guarded<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        let found = self.cx.get(table, key)?;
        if let Some(guards) = self.cx.guards() {
            match self.hold {
                Hold::Rows if found.is_none() => {}
                Hold::Reads | Hold::Rows => guards.row(table, key)?,
                Hold::Existence => guards.existence(table, key)?,
            }
        }
        Ok(found)
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let (mut rows, mut last) = (Vec::new(), None);
        self.cx.scan(scan, &mut |key, value| {
            if self.hold == Hold::Rows {
                rows.push(Key::from(key));
            }
            let flow = visit(key, value);
            if flow.is_break() {
                last = Some(Key::from(key));
            }
            flow
        })?;
        let Some(guards) = self.cx.guards() else { return Ok(()) };
        if self.hold == Hold::Rows {
            return rows.iter().try_for_each(|key| guards.row(scan.table, key));
        }
        let range = match &last {
            Some(last) => Cow::Owned(scan.range.seen_up_to(last, scan.direction)),
            None => Cow::Borrowed(&scan.range),
        };
        guards.range(scan.table, &range)
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.cx.put(table, key, value)
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.cx.delete(table, key)
    }

    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        self.cx.fetch(rows);
    }

    fn fetch_to_write(&mut self, rows: &[(TableId, Key)]) {
        self.cx.fetch_to_write(rows);
    }

    fn estimate(&self, table: TableId) -> Option<usize> {
        self.cx.estimate(table)
    }

    fn guards(&mut self) -> Option<&mut dyn Guards> {
        self.cx.guards()
    }

    fn look(&mut self) -> Result<(), Stop> {
        self.cx.look()
    }
}
