//! Calls of procedures.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::ids::{ProcedureId, SnapshotVersion, TableId};
use crate::store::{CachePrefetcher, Store};
use crate::txn::{Abort, Context, Footprint, Procedure, Registry, SqlState, Stop};

/// Runs a procedure. A panic in it becomes an abort, because a bug in one program must not stop all
/// others.
///
/// The abort does not quote the panic: its text may contain an address and so differ between
/// replicas. The panic hook has logged it on the node that ran the program.
pub(super) fn call(
    registry: &Registry,
    id: ProcedureId,
    args: &[u8],
    cx: &mut dyn Context,
) -> Result<Vec<u8>, Stop> {
    let Some(procedure) = registry.procedure(id) else {
        let message = format!("procedure number {} does not exist", id.0);
        return Err(Abort::new(SqlState::INTERNAL_ERROR, message).into());
    };
    // After a panic, the owner of the context drops or rolls back all effects of the program.
    catch_unwind(AssertUnwindSafe(|| procedure.run(args, cx))).unwrap_or_else(|_| {
        let message = format!("procedure \"{}\" failed", procedure.name());
        let abort = Abort::new(SqlState::INTERNAL_ERROR, message);
        Err(abort.with_detail("The procedure panicked.").into())
    })
}

/// Collects the rows that a procedure hints it will look up, for a prefetch into the CPU cache, and
/// returns their number. If the hint panics, the rows named before still count.
pub(super) fn gather(
    registry: &Registry,
    id: ProcedureId,
    args: &[u8],
    prefetcher: &mut CachePrefetcher<'_>,
) -> usize {
    let mut rows = 0;
    hint(registry, id, args, &mut |table, key| {
        prefetcher.add(table, key);
        rows += 1;
    });
    rows
}

/// Passes the rows that a procedure hints it will look up to `name`. A panic ends the hint early,
/// which does no harm.
pub(super) fn hint(
    registry: &Registry,
    id: ProcedureId,
    args: &[u8],
    name: &mut dyn FnMut(TableId, &[u8]),
) {
    let Some(procedure) = registry.procedure(id) else { return };
    let _panicked = catch_unwind(AssertUnwindSafe(|| procedure.hint(args, name))).is_err();
}

/// Prefetches the rows that a procedure hints it will look up into the CPU cache.
pub(super) fn warm(
    registry: &Registry,
    id: ProcedureId,
    args: &[u8],
    store: &Store,
    at: SnapshotVersion,
) {
    let mut prefetcher = CachePrefetcher::new(store, at);
    gather(registry, id, args, &mut prefetcher);
    prefetcher.fetch();
}

/// Whether a procedure writes far more bytes than its arguments have.
pub fn is_bulk(registry: &Registry, id: ProcedureId, args: &[u8]) -> bool {
    registry.procedure(id).is_some_and(|code| code.is_bulk(args))
}

/// The abort of a program that returned [`Stop::Interrupted`] although its executor did not
/// interrupt it.
pub(super) fn gave_up() -> Abort {
    let message = "a program reported an interruption, but it was not interrupted";
    Abort::new(SqlState::INTERNAL_ERROR, message)
}

/// The footprint that a procedure declares for these arguments; `None` if the declaration panics.
pub fn footprint(registry: &Registry, id: ProcedureId, args: &[u8]) -> Option<Footprint> {
    let procedure = registry.procedure(id)?;
    catch_unwind(AssertUnwindSafe(|| procedure.footprint(args))).unwrap_or(None)
}

/// Whether a call can be divided over shards. If the procedure panics, it can't.
pub fn is_divisible(registry: &Registry, id: ProcedureId, args: &[u8]) -> bool {
    let says = |code: &dyn Procedure| code.is_footprint_certain() && code.is_divisible(args);
    let code = registry.procedure(id);
    catch_unwind(AssertUnwindSafe(|| code.is_some_and(says))).unwrap_or(false)
}

/// Whether a procedure declares a footprint for these arguments. If so, the footprint need not be
/// found by a run or sent with the transaction.
pub fn is_footprint_declared(registry: &Registry, id: ProcedureId, args: &[u8]) -> bool {
    let is_certain = registry.procedure(id).is_some_and(|code| code.is_footprint_certain());
    is_certain || footprint(registry, id, args).is_some()
}
