//! Estimates the size of a transaction in a batch, in bytes, because frames have a size limit. The
//! estimate covers its arguments or writes and the keys that it touches, and is never too low. The
//! caller adds the fixed fields, some tens of bytes at most.

use pangea_core::exec::{TXN_BYTES_MAX, footprint_bytes};
use pangea_core::key::KeyRange;
use pangea_core::txn::{Footprint, Program, ReadSet, Write};

/// The bytes in addition to a key: its table, version and lengths.
const KEY_BYTES: usize = 32;

/// The largest footprint that is sent with a program: some ten thousand keys.
const FOOTPRINT_BYTES_MAX: usize = 1 << 20;

/// The encoded size of a program, including its footprint if attached.
pub(crate) fn program_bytes(program: &Program, footprint: Option<&Footprint>) -> usize {
    match program {
        Program::Call { args, .. } => args.len() + footprint.map_or(0, footprint_bytes),
        Program::Certified(certified) => sets_bytes(&certified.reads, &certified.writes),
    }
}

/// The encoded size of a read set and a write set.
pub(crate) fn sets_bytes(reads: &ReadSet, writes: &[Write]) -> usize {
    let points: usize = reads.points.iter().map(|read| KEY_BYTES + read.key.len()).sum();
    let rows = reads.ranges.iter().flat_map(|range| &range.rows);
    let rows: usize = rows.map(|(key, _)| KEY_BYTES + key.len()).sum();
    let ranges: usize = reads.ranges.iter().map(|read| of_range(&read.range)).sum();
    let value = |write: &Write| write.value.as_ref().map_or(0, |value| value.len());
    let writes: usize = writes.iter().map(|write| KEY_BYTES + write.key.len() + value(write)).sum();
    points + rows + ranges + writes
}

/// Returns a footprint that a run found, if it is small enough to be sent with its program.
/// Otherwise every replica computes it at the program's place in the order. That takes time there,
/// but keeps the batch within the size of a frame.
pub(crate) fn if_small(footprint: Footprint) -> Option<Footprint> {
    Some(footprint).filter(|footprint| footprint_bytes(footprint) <= FOOTPRINT_BYTES_MAX)
}

fn of_range(range: &KeyRange) -> usize {
    2 * KEY_BYTES + range.start.len() + range.end.as_ref().map_or(0, |end| end.len())
}

/// Splits collected transactions, of `bytes` in total, into batches. The result is one batch,
/// unless more were collected before this replica was ready than fit in a frame.
pub(crate) fn split_batches<T>(
    mut collected: Vec<T>,
    bytes: usize,
    batch_bytes: usize,
    weigh: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let is_too_much = bytes > batch_bytes + TXN_BYTES_MAX;
    let mut batches = Vec::new();
    while !collected.is_empty() {
        let fit = match is_too_much {
            true => as_many_as_fit(collected.iter().map(&weigh), batch_bytes),
            false => collected.len(),
        };
        let later = collected.split_off(fit);
        batches.push(std::mem::replace(&mut collected, later));
    }
    batches
}

/// How many of these transactions fit in a batch of `bytes_max`; at least one.
fn as_many_as_fit(weights: impl Iterator<Item = usize>, bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fit = weights.take_while(|weight| {
        bytes += weight;
        bytes <= bytes_max
    });
    fit.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_what_fits_and_one_transaction_at_least() {
        assert_eq!(as_many_as_fit([10, 10, 10].into_iter(), 25), 2);
        assert_eq!(as_many_as_fit([10, 10].into_iter(), 25), 2);
        assert_eq!(as_many_as_fit([100, 10].into_iter(), 25), 1);
    }

    #[test]
    fn what_was_collected_is_one_batch_unless_a_frame_can_not_hold_it() {
        let weights = vec![20, 10, 30];
        let cut = |bytes| split_batches(weights.clone(), bytes, 25, |weight| *weight);
        assert_eq!(cut(25 + TXN_BYTES_MAX), [vec![20, 10, 30]]);
        assert_eq!(cut(26 + TXN_BYTES_MAX), [[20], [10], [30]]);
        assert!(split_batches(Vec::<usize>::new(), 0, 25, |weight| *weight).is_empty());
    }
}
