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
/// `above` must be in the order of the scan, within its range, with each key once. No more of it is
/// taken than is visited, plus one: a scan that breaks early costs nothing for the rest.
pub(super) fn scan<A: Overlaid>(
    store: &Store,
    at: SnapshotVersion,
    scan: &Scan,
    above: impl IntoIterator<Item = A>,
    mut visit: impl FnMut(&Key, Option<&Version>, Option<&A>) -> ControlFlow<()>,
) -> bool {
    let mut above = above.into_iter().peekable();
    let mut flow = ControlFlow::Continue(());
    store.scan(scan.table, &scan.range, scan.direction, at, |key, version| {
        while let Some(next) = above.next_if(|next| precedes(next.key(), key, scan.direction)) {
            flow = visit(next.key(), None, Some(&next));
            if flow.is_break() {
                return flow;
            }
        }
        let same = above.next_if(|next| next.key() == key);
        flow = visit(key, Some(version), same.as_ref());
        flow
    });
    while flow.is_continue()
        && let Some(next) = above.next()
    {
        flow = visit(next.key(), None, Some(&next));
    }
    flow.is_break()
}

pub(super) fn precedes(a: &Key, b: &Key, direction: Direction) -> bool {
    match direction {
        Direction::Forward => a < b,
        Direction::Reverse => a > b,
    }
}
