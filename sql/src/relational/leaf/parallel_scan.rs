//! Full table scans.

use std::sync::Arc;

use pangea_core::txn::Context;

use super::{Scan, State};
use crate::access::Access;
use crate::access::path::Paths;
use crate::error::Failure;
use crate::exec::parallel_scan::ParallelScan;
use crate::expr::{Env, Expr};
use crate::relational::chunk::{Chunk, Layout};

impl Scan {
    /// Returns the mapping from the rows of its table to columns.
    pub(super) fn layout(&self, paths: &Paths, filter: Option<Expr>) -> Arc<Layout> {
        Arc::new(Layout::new(&paths.table, &self.projection, filter, self.schema.clone()))
    }

    /// Starts a parallel scan on all cores. Returns `None` unless the whole table is read and
    /// either its rows may come in any order or its condition leaves few of them.
    pub(super) fn whole(
        &self,
        paths: &Paths,
        access: &Access,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Option<State>, Failure> {
        if self.limit.is_some() {
            return Ok(None);
        }
        let Some(whole) = ParallelScan::of_access(access, env, cx) else { return Ok(None) };
        if self.is_any_order {
            let layout = self.layout(paths, self.filter.clone());
            let chunks = (0..whole.workers()).map(|_| Chunk::new(layout.clone())).collect();
            return Ok(Some(State::Parallel { whole, next: 0, chunks }));
        }
        let Some(filter) = &self.filter else { return Ok(None) };
        let found = whole.filtered(access, filter, env, cx)?;
        let chunk = Box::new(Chunk::new(self.layout(paths, None)));
        Ok(found.map(|found| State::Left { found, chunk }))
    }
}
