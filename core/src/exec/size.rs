//! Size limits of transactions. The reads and writes of a transaction are sent in one frame and
//! logged.

use crate::ids::ShardId;
use crate::key::KeyRange;
use crate::txn::{Abort, Add, Certified, Footprint, Program, RangeRead, ReadSet, SqlState, Write};

/// The maximum size in bytes of a transaction's encoded reads and writes: half of the largest
/// frame, and more than any transaction should need.
pub const TXN_BYTES_MAX: usize = 32 << 20;

/// The maximum size in bytes of a call's arguments. They share a frame of 64 MiB with the reads and
/// writes of the run and with a batch of other transactions. A frame that exceeds the limit would
/// be sent again and again and block all later ones.
const ARGS_BYTES_MAX: usize = 24 << 20;

/// The maximum size in bytes of a call with its footprint. It equals the largest batch setting, 16
/// MiB, plus the largest transaction: three quarters of a frame.
const REQUEST_BYTES_MAX: usize = 48 << 20;

/// The maximum size in bytes of one shard's rows for the other shards of a transaction. They are
/// sent in one frame; a larger one could not be sent, and the receivers would wait forever.
pub(super) const PART_BYTES_MAX: usize = 24 << 20;

/// The maximum size in bytes of the result of a transaction on several shards, or of its abort
/// message, because a node other than the client's may run it. It is sent in one frame, too.
pub(super) const RESULT_BYTES_MAX: usize = 24 << 20;

/// The approximate encoded size of writes in bytes.
pub fn writes_bytes(writes: &[Write]) -> usize {
    let value = |write: &Write| write.value.as_ref().map_or(0, |value| value.len());
    let contents = writes.iter().map(|write| write.key.len() + value(write)).sum();
    bytes_of(writes.len(), contents)
}

/// The approximate encoded size of `writes` writes whose keys and values have `contents_bytes`
/// bytes together.
pub(super) fn bytes_of(writes: usize, contents_bytes: usize) -> usize {
    const ROW_BYTES: usize = 8;
    writes * ROW_BYTES + contents_bytes
}

/// The approximate encoded size of reads in bytes.
pub(super) fn reads_bytes(reads: &ReadSet) -> usize {
    const READ_BYTES: usize = 16;
    let points = reads.points.iter().map(|read| READ_BYTES + read.key.len());
    let rows = reads.ranges.iter().flat_map(|range| &range.rows);
    // The bounds of a range come from the arguments and may be as long.
    let ends = reads.ranges.iter().map(|RangeRead { range, .. }| {
        2 * READ_BYTES + range.start.len() + range.end.as_ref().map_or(0, |end| end.len())
    });
    let rows = rows.map(|(key, _)| READ_BYTES + key.len());
    points.sum::<usize>() + ends.sum::<usize>() + rows.sum::<usize>()
}

/// The approximate encoded size of additions in bytes.
pub fn adds_bytes(adds: &[Add]) -> usize {
    adds.iter().map(Add::bytes).sum()
}

/// Checks whether a transaction is small enough to be sent and logged.
///
/// # Errors
/// If it is too large.
pub fn check_size(reads: &ReadSet, writes: &[Write]) -> Result<(), Abort> {
    check_bytes(reads_bytes(reads) + writes_bytes(writes))
}

/// Checks whether an interactive transaction is small enough to be sent and logged.
///
/// # Errors
/// If it is too large.
pub fn check_certified(certified: &Certified) -> Result<(), Abort> {
    let Certified { reads, writes, adds, .. } = certified;
    check_bytes(reads_bytes(reads) + writes_bytes(writes) + adds_bytes(adds))
}

/// Checks whether a transaction with this size of reads and writes is small enough.
pub(super) fn check_bytes(bytes: usize) -> Result<(), Abort> {
    if bytes <= TXN_BYTES_MAX {
        return Ok(());
    }
    // In bytes: rounded units would hide a small excess.
    let message = format!("the transaction is too large: it reads and writes {bytes} bytes");
    Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
        .with_detail(format!("A transaction can read and write {TXN_BYTES_MAX} bytes."))
        .with_hint("Split it into several transactions."))
}

/// The approximate encoded size of a footprint in bytes, never too low.
pub fn footprint_bytes(footprint: &Footprint) -> usize {
    /// The size of a lock without its key: its table and lengths.
    const LOCK_BYTES: usize = 32;
    let end = |range: &KeyRange| range.end.as_ref().map_or(0, |end| end.len());
    let points = footprint.points.iter().map(|lock| LOCK_BYTES + lock.key.len());
    let ranges = footprint.ranges.iter().map(|lock| &lock.range);
    let ranges = ranges.map(|range| 2 * LOCK_BYTES + range.start.len() + end(range));
    points.sum::<usize>() + ranges.sum::<usize>()
}

/// Checks whether a call of this size, including its footprint, is small enough to be sent.
///
/// # Errors
/// If it is too large.
pub fn check_request(bytes: usize) -> Result<(), Abort> {
    if bytes <= REQUEST_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the transaction is too large: its arguments and the keys of its footprint are {bytes} \
         bytes"
    );
    Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
        .with_detail(format!(
            "For a transaction over several shards, these are limited to {REQUEST_BYTES_MAX} bytes."
        ))
        .with_hint("Split it into several transactions."))
}

/// The abort of a transaction for which one shard would have to send too many rows. The same on all
/// active shards, because it does not depend on the node that creates it.
pub(super) fn part_too_large(shard: ShardId, bytes: u64, most: usize) -> Abort {
    let message = format!(
        "the transaction is too large: shard {} would have to send at least {bytes} bytes of rows \
         that it reads",
        shard.0
    );
    Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
        .with_detail(format!(
            "A shard can send {most} bytes of rows for a transaction that writes on another shard."
        ))
        .with_hint("Split it into several transactions, or read fewer rows in each.")
}

/// Checks whether a result has at most `most` bytes.
pub(super) fn check_result(bytes: usize, most: usize) -> Result<(), Abort> {
    if bytes <= most {
        return Ok(());
    }
    let message = format!("the result is too large: {bytes} bytes");
    Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
        .with_detail(format!(
            "A transaction that writes on several shards can return {most} bytes."
        ))
        .with_hint("Return less, or read it after the transaction."))
}

/// Replaces an abort whose text exceeds `most` bytes by one that reports this.
pub(super) fn in_few_words(abort: Abort, most: usize) -> Abort {
    let bytes = abort.text_bytes();
    if bytes <= most {
        return abort;
    }
    let message = format!("the error message is too long to be sent: {bytes} bytes");
    Abort::new(abort.code, message)
}

/// Checks whether a submitted program is small enough to be sent.
///
/// # Errors
/// If it is too large.
pub fn check_program(program: &Program) -> Result<(), Abort> {
    let args = match program {
        Program::Certified(certified) => return check_certified(certified),
        Program::Call { args, .. } => args,
    };
    if args.len() <= ARGS_BYTES_MAX {
        return Ok(());
    }
    let (found, most) = (args.len(), ARGS_BYTES_MAX);
    let message =
        format!("the request is too large: a statement and its parameters have {found} bytes");
    Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
        .with_detail(format!(
            "A statement with its parameters, or a call, is limited to {most} bytes."
        ))
        .with_hint("Split it into several statements."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::key::Key;
    use crate::value::Value;

    #[test]
    fn a_transaction_beyond_the_limit_is_refused_with_what_it_takes_and_what_it_may() {
        let write = |len| Write {
            table: TableId(1),
            key: Key::from(&b"k"[..]),
            value: Some(Value::from(vec![0; len])),
        };
        assert_eq!(check_size(&ReadSet::default(), &[write(TXN_BYTES_MAX - 9)]), Ok(()));
        let abort = check_size(&ReadSet::default(), &[write(TXN_BYTES_MAX)]).unwrap_err();
        assert_eq!(abort.code.as_str(), "54000");
        assert!(abort.message.contains("33554441 bytes"), "{abort:?}");
        assert!(abort.detail.is_some_and(|detail| detail.contains("33554432 bytes")));
    }

    #[test]
    fn a_footprint_takes_no_more_than_it_is_said_to() {
        use crate::txn::{LockMode, PointLock, RangeLock};
        let (table, mode) = (TableId(u32::MAX), LockMode::Exclusive);
        let keys = [0, 1, 200, 40_000].map(|len| vec![7; len]);
        let point = |key: &Vec<u8>| PointLock { table, key: Key::from(&key[..]), mode };
        let range = |end: &Vec<u8>| {
            let range = KeyRange { start: vec![1; 300], end: Some(end.clone()) };
            RangeLock { table, range, mode }
        };
        let footprint =
            Footprint::new(keys.iter().map(point).collect(), keys.iter().map(range).collect());
        let mut bytes = Vec::new();
        footprint.encode(&mut bytes);
        let said = footprint_bytes(&footprint);
        assert!((bytes.len()..bytes.len() + 12 * 64).contains(&said), "{} {said}", bytes.len());
    }

    #[test]
    fn what_is_refused_says_how_large_it_is_and_what_to_do() {
        assert_eq!(check_request(REQUEST_BYTES_MAX), Ok(()));
        assert_eq!(check_result(10, 10), Ok(()));
        let abort = Abort::new(SqlState::RAISE_EXCEPTION, "four").with_detail("and six");
        assert_eq!(in_few_words(abort.clone(), 11), abort);
        let short = in_few_words(abort, 10);
        assert_eq!((short.code, short.detail), (SqlState::RAISE_EXCEPTION, None));
        assert!(short.message.contains("11 bytes"), "{}", short.message);
        let aborts = [
            check_request(REQUEST_BYTES_MAX + 1).unwrap_err(),
            part_too_large(ShardId(3), REQUEST_BYTES_MAX as u64 + 1, PART_BYTES_MAX),
            check_result(REQUEST_BYTES_MAX + 1, RESULT_BYTES_MAX).unwrap_err(),
        ];
        for abort in aborts {
            assert_eq!(abort.code.as_str(), "54000");
            assert!(abort.message.contains("50331649 bytes"), "{abort:?}");
            assert!(abort.detail.is_some() && abort.hint.is_some(), "{abort:?}");
        }
    }

    #[test]
    fn the_keys_that_were_read_count() {
        use crate::txn::{PointRead, ReadVersion};
        let (table, key, seen) = (TableId(1), Key::from(&[7; 100][..]), ReadVersion::Absent);
        let range = KeyRange { start: Vec::new(), end: None };
        let rows = vec![(key.clone(), seen)];
        let reads = ReadSet {
            points: vec![PointRead { table, key, seen }],
            ranges: vec![RangeRead { table, range, rows }],
        };
        assert!((200..300).contains(&reads_bytes(&reads)), "{}", reads_bytes(&reads));
    }

    /// The bounds of ranges once did not count: one statement with long keys made a batch that
    /// exceeded the frame size.
    #[test]
    fn the_ends_of_ranges_count() {
        let end = vec![7; TXN_BYTES_MAX / 2];
        let range = KeyRange { start: end.clone(), end: Some(end) };
        let read = RangeRead { table: TableId(1), range, rows: Vec::new() };
        let reads = ReadSet { points: Vec::new(), ranges: vec![read] };
        assert!(check_size(&reads, &[]).is_err());
    }
}
