//! Cache of plans by statement text: planning costs more than finding a row.
//!
//! A plan is reused for the same text, parameter types, search path and schemas of tables. The
//! catalog records that it was planned with are read again each time, through the context of the
//! run, and must be the same bytes. The cache therefore affects only how fast a result is returned,
//! never the result, and a schema change conflicts with the statements that used the schema, at
//! every isolation level.

use std::sync::{Arc, Mutex, PoisonError};

use pangea_core::hash::HashMap;
use pangea_core::txn::Context;

use super::{Bodies, Calls, Planned, Seen, plan};
use crate::catalog::CATALOG;
use crate::error::Failure;
use crate::expr::bind::Params;
use crate::search_path::{PathSetting, SearchPath};
use crate::syntax::Parsed;
use crate::types::SqlType;

/// The maximum number of cached plans: an application has hundreds of statements, and a plan takes
/// a few kilobytes.
const PLANS_MAX: usize = 1_024;
/// Longer statements are not cached: they are one-time loads, not queries.
const TEXT_BYTES_MAX: usize = 8_192;

type CacheKey = (Arc<str>, Vec<Option<SqlType>>, SearchPath);

/// Plans of statements, with least-recently-used eviction.
#[derive(Debug, Default)]
pub struct PlanCache {
    inner: Mutex<Inner>,
    bodies: Arc<Bodies>,
}

#[derive(Debug, Default)]
struct Inner {
    plans: HashMap<CacheKey, Entry>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    planned: Arc<Planned>,
    used: u64,
}

impl PlanCache {
    fn find(&self, key: &CacheKey) -> Option<Arc<Planned>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let now = inner.clock;
        let entry = inner.plans.get_mut(key)?;
        entry.used = now;
        Some(entry.planned.clone())
    }

    fn insert(&self, key: CacheKey, planned: Arc<Planned>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let used = inner.clock;
        inner.plans.insert(key, Entry { planned, used });
        if inner.plans.len() > PLANS_MAX {
            inner.evict();
        }
    }

    /// Returns the plan of a statement, from the cache if it is still valid.
    pub(crate) fn plan(
        &self,
        text: &Arc<str>,
        param_types: &[Option<SqlType>],
        path: &PathSetting,
        parse: impl FnOnce() -> Result<Parsed, Failure>,
        cx: &mut dyn Context,
    ) -> Result<Arc<Planned>, Failure> {
        let path = path.resolve(cx)?;
        let key = (text.clone(), param_types.to_vec(), path.clone());
        if let Some(planned) = self.find(&key)
            && is_current(&planned, cx)?
        {
            guard(&planned, cx)?;
            return Ok(planned);
        }
        let params = Params { types: param_types.to_vec(), ..Params::default() };
        let seen = Seen::default();
        let calls = Calls { bodies: Some(&self.bodies), path: Some(&path), seen: Some(&seen) };
        let planned = Arc::new(plan(&parse()?, params, calls, cx)?);
        guard(&planned, cx)?;
        if text.len() <= TEXT_BYTES_MAX {
            self.insert(key, planned.clone());
        }
        Ok(planned)
    }
}

impl Inner {
    /// Evicts the older half, so that a full cache is searched only once in a while.
    fn evict(&mut self) {
        let mut ages: Vec<u64> = self.plans.values().map(|entry| entry.used).collect();
        ages.sort_unstable();
        let middle = ages[ages.len() / 2];
        self.plans.retain(|_, entry| entry.used >= middle);
        assert!(self.plans.len() <= PLANS_MAX, "half is gone");
    }
}

/// Whether the catalog records that the plan was made with are unchanged.
pub(crate) fn is_current(planned: &Planned, cx: &mut dyn Context) -> Result<bool, Failure> {
    for (key, record) in &planned.schemas {
        if cx.get(CATALOG, key)? != *record {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Guards the catalog records that a plan was made with. A schema change in between would leave
/// rows without entries in a new index, or rows of a table that is gone, at any isolation level.
///
/// These records are what the statement depends on, and each schema change writes those of the
/// tables that it changes: no version of the schema has to be written by one and read by the other.
pub(crate) fn guard(planned: &Planned, cx: &mut dyn Context) -> Result<(), Failure> {
    let Some(guards) = cx.guards() else { return Ok(()) };
    for (key, _) in &planned.schemas {
        guards.row(CATALOG, key)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
