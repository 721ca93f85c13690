//! How large a transaction may be: what it reads and writes travels in one frame and is logged.

use crate::txn::{Abort, Certified, Program, RangeRead, ReadSet, SqlState, Write};

/// What a transaction may read and write, in bytes as they travel and are logged: half of the
/// largest frame, and more than any should.
pub const TXN_BYTES_MAX: usize = 32 << 20;

/// The longest arguments of a call. They travel beside what its run read and wrote, and after a
/// batch's worth of other transactions, all in one frame of 64 MiB: one that can't be sent would be
/// sent again and again, and nothing after it.
const ARGS_BYTES_MAX: usize = 24 << 20;

/// About how many bytes writes take in a message or in the log.
pub fn writes_bytes(writes: &[Write]) -> usize {
    let value = |write: &Write| write.value.as_ref().map_or(0, |value| value.len());
    let contents = writes.iter().map(|write| write.key.len() + value(write)).sum();
    bytes_of(writes.len(), contents)
}

/// The same of so many writes, whose keys and values are so long together.
pub(super) fn bytes_of(writes: usize, contents_bytes: usize) -> usize {
    const ROW_BYTES: usize = 8;
    writes * ROW_BYTES + contents_bytes
}

/// About how many bytes reads take in a message.
fn reads_bytes(reads: &ReadSet) -> usize {
    const READ_BYTES: usize = 16;
    let points = reads.points.iter().map(|read| READ_BYTES + read.key.len());
    let rows = reads.ranges.iter().flat_map(|range| &range.rows);
    // A range ends in two keys, which come from the arguments and may be as long.
    let ends = reads.ranges.iter().map(|RangeRead { range, .. }| {
        2 * READ_BYTES + range.start.len() + range.end.as_ref().map_or(0, |end| end.len())
    });
    let rows = rows.map(|(key, _)| READ_BYTES + key.len());
    points.sum::<usize>() + ends.sum::<usize>() + rows.sum::<usize>()
}

/// Whether a transaction is small enough to be sent and logged.
///
/// # Errors
/// When it is not.
pub fn check_size(reads: &ReadSet, writes: &[Write]) -> Result<(), Abort> {
    check_bytes(reads_bytes(reads) + writes_bytes(writes))
}

/// Whether a transaction that reads and writes so many bytes is small enough.
pub(super) fn check_bytes(bytes: usize) -> Result<(), Abort> {
    if bytes <= TXN_BYTES_MAX {
        return Ok(());
    }
    // In bytes: in rounded units, what is a little too large is as large as what may be.
    let message = format!("the transaction is too large: it reads and writes {bytes} bytes");
    Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
        .with_detail(format!("A transaction can read and write {TXN_BYTES_MAX} bytes."))
        .with_hint("Do it in several transactions."))
}

/// Whether a program that somebody submits is small enough to be sent.
///
/// # Errors
/// When it is not.
pub fn check_program(program: &Program) -> Result<(), Abort> {
    let args = match program {
        Program::Certified(Certified { reads, writes, .. }) => return check_size(reads, writes),
        Program::Call { args, .. } => args,
    };
    if args.len() <= ARGS_BYTES_MAX {
        return Ok(());
    }
    let (found, most) = (args.len(), ARGS_BYTES_MAX);
    let message =
        format!("the request is too large: a statement and its parameters of {found} bytes");
    Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
        .with_detail(format!("A statement with its parameters, or a call, can have {most} bytes."))
        .with_hint("Do it in several statements."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::key::{Key, KeyRange};
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

    /// The ends of ranges counted as nothing: one statement with long keys made a batch that is
    /// larger than a frame can be.
    #[test]
    fn the_ends_of_ranges_count() {
        let end = vec![7; TXN_BYTES_MAX / 2];
        let range = KeyRange { start: end.clone(), end: Some(end) };
        let read = RangeRead { table: TableId(1), range, rows: Vec::new() };
        let reads = ReadSet { points: Vec::new(), ranges: vec![read] };
        assert!(check_size(&reads, &[]).is_err());
    }
}
