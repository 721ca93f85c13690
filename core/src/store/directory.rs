//! The directory of tables by number.
//!
//! The first numbers are indexes into an array: one load. The others are in a tree of 256-way nodes
//! with four levels, one for each byte of the number. Nodes and tables are added and never removed,
//! so a lookup takes no lock and counts no reference. A store that is cleared keeps its tables,
//! empty.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::table::Table;
use super::{read, write};
use crate::ids::TableId;
use crate::sync::atomic::AtomicBool;
use crate::sync::{OnceLock, RwLock};

const FANOUT: usize = 256;

/// The number of tables that are found with one load: those of workloads and of the first schemas.
/// The array takes 16 KiB.
const NEAR_TABLES: usize = if cfg!(test) { 4 } else { 1024 };

#[derive(Debug)]
struct Node<T> {
    children: Box<[OnceLock<T>]>,
}

impl<T> Node<T> {
    fn new() -> Self {
        Self { children: std::iter::repeat_with(OnceLock::new).take(FANOUT).collect() }
    }

    fn child(&self, byte: u8) -> Option<&T> {
        self.children[usize::from(byte)].get()
    }

    fn child_or_new(&self, byte: u8, new: impl FnOnce() -> T) -> &T {
        self.children[usize::from(byte)].get_or_init(new)
    }
}

#[derive(Debug)]
struct Entry {
    /// Whether the table was written since the directory was cleared.
    is_written: AtomicBool,
    table: Table,
}

type Root<T> = Node<Node<Node<Node<Box<T>>>>>;
type Near<T> = Box<[OnceLock<Box<T>>]>;

/// All tables of a store.
#[derive(Debug)]
pub(super) struct Directory {
    near: Near<Entry>,
    root: Root<Entry>,
    /// The tables that were written, in order. Used only by [`Directory::ids`].
    written: RwLock<BTreeSet<TableId>>,
}

impl Directory {
    pub(super) fn new() -> Self {
        let near = std::iter::repeat_with(OnceLock::new).take(NEAR_TABLES).collect();
        Self { near, root: Node::new(), written: RwLock::default() }
    }

    /// The table, if it may have been written.
    #[inline]
    pub(super) fn table(&self, id: TableId) -> Option<&Table> {
        match self.near.get(id.0 as usize) {
            Some(near) => near.get().map(|entry| &entry.table),
            None => self.far(id).map(|entry| &entry.table),
        }
    }

    fn far(&self, id: TableId) -> Option<&Entry> {
        let [a, b, c, d] = id.0.to_be_bytes();
        let entry = self.root.child(a)?.child(b)?.child(c)?.child(d)?;
        Some(entry)
    }

    /// The table, created if it does not exist.
    pub(super) fn table_to_write(&self, id: TableId) -> &Table {
        let new = || Box::new(Entry { is_written: AtomicBool::new(false), table: Table::new() });
        let entry = match self.near.get(id.0 as usize) {
            Some(near) => near.get_or_init(new),
            None => {
                let [a, b, c, d] = id.0.to_be_bytes();
                let node = self.root.child_or_new(a, Node::new).child_or_new(b, Node::new);
                node.child_or_new(c, Node::new).child_or_new(d, new)
            }
        };
        if !entry.is_written.load(Ordering::Acquire) {
            write(&self.written).insert(id);
            entry.is_written.store(true, Ordering::Release);
        }
        &entry.table
    }

    /// The tables that were written, in order.
    pub(super) fn ids(&self) -> Vec<TableId> {
        read(&self.written).iter().copied().collect()
    }

    /// Empties all tables.
    pub(super) fn clear(&self) {
        let mut written = write(&self.written);
        for id in std::mem::take(&mut *written) {
            let near = self.near.get(id.0 as usize);
            let entry = near.map_or_else(|| self.far(id), |near| near.get().map(|entry| &**entry));
            let entry = entry.expect("a written table has an entry");
            entry.table.clear();
            entry.is_written.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn tables_are_found_by_every_byte_of_their_number_and_listed_in_order() {
        let directory = Directory::new();
        let last_near = NEAR_TABLES as u32 - 1;
        let ids = [0, 1, last_near, last_near + 1, 0x1_0001, 0x100_0001, u32::MAX].map(TableId);
        for id in ids.into_iter().rev() {
            assert!(directory.table(id).is_none(), "{id} before it is written");
            let table: *const _ = directory.table_to_write(id);
            assert!(std::ptr::eq(table, directory.table(id).unwrap()));
        }
        assert_eq!(directory.ids(), ids);
        directory.clear();
        assert_eq!(directory.ids(), []);
        directory.table_to_write(TableId(1));
        assert_eq!(directory.ids(), [TableId(1)]);
    }
}
