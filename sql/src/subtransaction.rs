//! Writes that the underlying context does not see yet: those of a block with exception handlers,
//! which may be rolled back, and those of a statement whose steps all read the state before it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use pangea_core::exec::TXN_BYTES_MAX;
use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Abort, Context, Guards, Scan, SqlState, Stop, Visit};
use pangea_core::value::Value;

use crate::writes::{At, Written, in_range, is_before};

/// A context that buffers its writes above another context.
pub(crate) struct Subtransaction<'a> {
    cx: &'a mut dyn Context,
    writes: BTreeMap<At, Written>,
    bytes: usize,
}

impl<'a> Subtransaction<'a> {
    pub(crate) fn new(cx: &'a mut dyn Context) -> Self {
        Self { cx, writes: BTreeMap::new(), bytes: 0 }
    }

    /// Returns the context without the writes.
    pub(crate) fn below(&mut self) -> &mut dyn Context {
        self.cx
    }

    /// Applies the writes to the underlying context.
    ///
    /// # Errors
    /// If the executor ends the run.
    pub(crate) fn keep(self) -> Result<(), Stop> {
        for ((table, key), value) in self.writes {
            match value {
                Some(value) => self.cx.put(table, key, value)?,
                None => self.cx.delete(table, key)?,
            }
        }
        Ok(())
    }
}

impl Context for Subtransaction<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        if !self.writes.is_empty()
            && let Some(own) = self.writes.get(&(table, Key::from(key)))
        {
            return Ok(own.clone());
        }
        self.cx.get(table, key)
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let mut own = in_range(&self.writes, scan).into_iter().peekable();
        if own.peek().is_none() {
            return self.cx.scan(scan, visit);
        }
        let mut flow = ControlFlow::Continue(());
        self.cx.scan(scan, &mut |key, value| {
            while let Some((own_key, own_value)) =
                own.next_if(|(own, _)| is_before(own.as_bytes(), key, scan.direction))
            {
                if let Some(own_value) = own_value {
                    flow = visit(own_key.as_bytes(), &own_value);
                }
                if flow.is_break() {
                    return flow;
                }
            }
            flow = match own.next_if(|(own, _)| own.as_bytes() == key) {
                None => visit(key, value),
                Some((_, Some(own_value))) => visit(key, &own_value),
                Some((_, None)) => ControlFlow::Continue(()),
            };
            flow
        })?;
        for (key, value) in own {
            if flow.is_break() {
                break;
            }
            if let Some(value) = value {
                flow = visit(key.as_bytes(), &value);
            }
        }
        Ok(())
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.bytes += key.len() + value.len();
        if self.bytes > TXN_BYTES_MAX {
            let message =
                format!("a block or a statement wrote more than {} MiB", TXN_BYTES_MAX >> 20);
            return Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message).into());
        }
        self.writes.insert((table, key), Some(value));
        Ok(())
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.writes.insert((table, key), None);
        Ok(())
    }

    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        self.cx.fetch(rows);
    }

    fn estimate(&self, table: TableId) -> Option<usize> {
        self.cx.estimate(table)
    }

    fn guards(&mut self) -> Option<&mut dyn Guards> {
        self.cx.guards()
    }
}
