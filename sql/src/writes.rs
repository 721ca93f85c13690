//! Buffered writes of a transaction.

use std::collections::BTreeMap;
use std::ops::Bound;

use pangea_core::ids::TableId;
use pangea_core::key::{Direction, Key};
use pangea_core::txn::Scan;
use pangea_core::value::Value;

/// The table and key of a write.
pub(crate) type At = (TableId, Key);
/// The value written, or `None` if the key is deleted.
pub(crate) type Written = Option<Value>;

/// Returns the writes in a range, in the order of a scan.
pub(crate) fn in_range(writes: &BTreeMap<At, Written>, scan: &Scan) -> Vec<(Key, Written)> {
    if writes.is_empty() || scan.range.is_empty() {
        return Vec::new();
    }
    let start = Bound::Included((scan.table, Key::from(&scan.range.start[..])));
    let end = match &scan.range.end {
        Some(end) => Bound::Excluded((scan.table, Key::from(&end[..]))),
        None => Bound::Excluded((TableId(scan.table.0 + 1), Key::from(&[][..]))),
    };
    let found = writes.range((start, end));
    let mut found: Vec<_> = found.map(|((_, key), value)| (key.clone(), value.clone())).collect();
    if scan.direction == Direction::Reverse {
        found.reverse();
    }
    found
}

/// Returns whether a key precedes another in a scan.
pub(crate) fn is_before(a: &[u8], b: &[u8], direction: Direction) -> bool {
    match direction {
        Direction::Forward => a < b,
        Direction::Reverse => a > b,
    }
}
