//! Recording of the catalog records that planning reads, on which its plan depends.
//!
//! Before a cached plan is reused, its records are read from the catalog again, one by one, until
//! one has changed; then the statement is planned again. How many records are read depends on the
//! plans that a node has cached, and must not be observable: an executor may check a run against
//! the reads of another run ([`Context`]), and derive the run's place in the order from them.
//! Records are therefore stored in the order in which planning first read them, over all its
//! attempts: up to a record that has changed, replanning reads exactly the same records. Planning
//! reads only single records of the catalog, and only through the recorder.

use std::collections::BTreeSet;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Context, Scan, Stop, Visit};
use pangea_core::value::Value;

use crate::catalog::CATALOG;

/// Records of the catalog, each once, in the order of the first read.
pub(crate) type Records = Vec<(Key, Option<Value>)>;

/// The context that planning reads through.
pub(super) struct Recorder<'a> {
    cx: &'a mut dyn Context,
    records: Records,
    known: BTreeSet<Key>,
}

impl<'a> Recorder<'a> {
    /// Returns a recorder without records.
    pub fn new(cx: &'a mut dyn Context) -> Self {
        Self { cx, records: Records::new(), known: BTreeSet::new() }
    }

    /// Takes the records read so far.
    pub fn take(&mut self) -> Records {
        self.known.clear();
        std::mem::take(&mut self.records)
    }
}

impl Context for Recorder<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        assert_eq!(table, CATALOG, "a plan depends on the catalog alone");
        let found = self.cx.get(table, key)?;
        let key = Key::from(key);
        if self.known.insert(key.clone()) {
            self.records.push((key, found.clone()));
        }
        Ok(found)
    }

    fn scan(&mut self, scan: &Scan, _: &mut Visit<'_>) -> Result<(), Stop> {
        unreachable!("planning reads single records, and not {scan:?}")
    }

    fn put(&mut self, table: TableId, key: Key, _: Value) -> Result<(), Stop> {
        unreachable!("planning writes nothing, and not {key:?} of {table}")
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        unreachable!("planning deletes nothing, and not {key:?} of {table}")
    }
}
