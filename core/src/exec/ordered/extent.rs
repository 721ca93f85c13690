//! The part of a scan that a footprint covers.

use std::cmp::Ordering;

use crate::key::{Direction, KeyRange};
use crate::txn::{Footprint, RangeLock, Scan};

/// The part of a scan's range, from the end where the scan starts, that a footprint's range locks
/// cover without a gap. Empty if the first key is not covered.
///
/// The footprint of a run has ranges only as far as its scans went. A program, however, requests
/// the whole range again and ends the scan itself; it may do so anywhere within this part.
pub(in crate::exec) fn locked_part(footprint: &Footprint, scan: &Scan) -> KeyRange {
    let is_read = |lock: &&RangeLock| lock.table == scan.table && lock.mode.reads();
    let locks = footprint.ranges.iter().filter(is_read);
    match scan.direction {
        Direction::Forward => up_from_start(locks, &scan.range),
        Direction::Reverse => down_from_end(locks, &scan.range),
    }
}

fn up_from_start<'a>(locks: impl Iterator<Item = &'a RangeLock>, range: &KeyRange) -> KeyRange {
    // The locks ascend by their starts, so one pass finds how far they cover the range.
    let mut reached = Some(&range.start);
    for lock in locks {
        let is_met = reached.is_some_and(|to| lock.range.start <= *to);
        if is_met && cmp_ends(lock.range.end.as_ref(), reached).is_gt() {
            reached = lock.range.end.as_ref();
        }
    }
    let end = match cmp_ends(range.end.as_ref(), reached) {
        Ordering::Greater => reached.cloned(),
        _ => range.end.clone(),
    };
    KeyRange { start: range.start.clone(), end }
}

fn down_from_end<'a>(locks: impl Iterator<Item = &'a RangeLock>, range: &KeyRange) -> KeyRange {
    let mut locks: Vec<&KeyRange> = locks.map(|lock| &lock.range).collect();
    locks.sort_unstable_by(|a, b| cmp_ends(b.end.as_ref(), a.end.as_ref()));
    // `None` as long as nothing of a range without an end is covered.
    let mut reached = range.end.as_ref();
    for lock in locks {
        let is_met = cmp_ends(lock.end.as_ref(), reached).is_ge();
        if is_met && reached.is_none_or(|from| lock.start < *from) {
            reached = Some(&lock.start);
        }
    }
    match reached {
        Some(from) => KeyRange { start: from.max(&range.start).clone(), end: range.end.clone() },
        None => KeyRange { start: range.start.clone(), end: Some(range.start.clone()) },
    }
}

/// Orders the ends of ranges. An open end comes last.
fn cmp_ends(a: Option<&Vec<u8>>, b: Option<&Vec<u8>>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::txn::LockMode;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = KeyRange> {
        let end = prop::option::weighted(0.8, 0u8..12);
        (0u8..12, end)
            .prop_map(|(start, end)| KeyRange { start: vec![start], end: end.map(|end| vec![end]) })
    }

    proptest! {
        #[test]
        fn the_part_ends_at_the_first_key_that_no_lock_covers(
            locks in prop::collection::vec(range(), 0..5),
            range in range(),
            is_reverse: bool,
        ) {
            prop_assume!(!range.is_empty());
            let table = TableId(1);
            let lock = |range: &KeyRange| {
                RangeLock { table, range: range.clone(), mode: LockMode::Shared }
            };
            let footprint = Footprint::new(vec![], locks.iter().map(lock).collect());
            let direction = if is_reverse { Direction::Reverse } else { Direction::Forward };
            let part = locked_part(&footprint, &Scan { table, range: range.clone(), direction });
            // Byte 12 represents all keys after the ends.
            let mut keys: Vec<u8> = (0..=12).filter(|&k| range.contains(&[k])).collect();
            if is_reverse {
                keys.reverse();
            }
            let is_locked = |k: &&u8| locks.iter().any(|lock| lock.contains(&[**k]));
            let expected = keys.iter().take_while(is_locked).count();
            let found: Vec<u8> = keys.iter().copied().filter(|&k| part.contains(&[k])).collect();
            prop_assert_eq!(&found[..], &keys[..expected]);
        }
    }
}
