//! Scans of the store with uncommitted rows laid over them.

use std::ops::ControlFlow;

use crate::ids::SnapshotVersion;
use crate::key::{Direction, Key};
use crate::store::{Store, Version};
use crate::txn::Scan;

/// An element with a key that is laid over the store.
pub(super) trait Overlaid {
    /// The key.
    fn key(&self) -> &Key;
}

/// Visits each key of `scan` that is in the store at version `at` or in `above`, once and in order,
/// with its version and element, until `visit` breaks. Returns whether it broke.
///
/// `above` must be in the order of the scan, within its range, with each key once.
pub(super) fn scan<'a, A: Overlaid>(
    store: &Store,
    at: SnapshotVersion,
    scan: &Scan,
    above: &'a [A],
    mut visit: impl FnMut(&Key, Option<&Version>, Option<&'a A>) -> ControlFlow<()>,
) -> bool {
    let mut above = above.iter().peekable();
    let mut flow = ControlFlow::Continue(());
    store.scan(scan.table, &scan.range, scan.direction, at, |key, version| {
        while let Some(next) = above.next_if(|next| precedes(next.key(), key, scan.direction)) {
            flow = visit(next.key(), None, Some(next));
            if flow.is_break() {
                return flow;
            }
        }
        let same = above.next_if(|next| next.key() == key);
        flow = visit(key, Some(version), same);
        flow
    });
    while flow.is_continue()
        && let Some(next) = above.next()
    {
        flow = visit(next.key(), None, Some(next));
    }
    flow.is_break()
}

fn precedes(a: &Key, b: &Key, direction: Direction) -> bool {
    match direction {
        Direction::Forward => a < b,
        Direction::Reverse => a > b,
    }
}
