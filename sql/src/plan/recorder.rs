//! What planning reads, on which its plan then depends.
//!
//! A plan that is kept is read against the catalog again before it is used, record by record, until
//! one has changed; then all is planned anew. How far that comes depends on what a node has kept,
//! and must not show: an executor may hold a run to what another run read ([`Context`]), and decide
//! by it where the run's place in the order is. So records are kept in the order in which planning
//! read them first, over all its tries: up to a record that has changed, planning anew reads just
//! the same ones. And planning reads single records of the catalog alone, each by way of this.

use std::collections::BTreeSet;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Context, Scan, Stop, Visit};
use pangea_core::value::Value;

use crate::catalog::CATALOG;

/// Records of the catalog, each once, in the order in which they were first read.
pub(crate) type Records = Vec<(Key, Option<Value>)>;

/// The context that something is planned through.
pub(super) struct Recorder<'a> {
    cx: &'a mut dyn Context,
    records: Records,
    known: BTreeSet<Key>,
}

impl<'a> Recorder<'a> {
    /// One that has read nothing.
    pub fn new(cx: &'a mut dyn Context) -> Self {
        Self { cx, records: Records::new(), known: BTreeSet::new() }
    }

    /// What was read.
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
