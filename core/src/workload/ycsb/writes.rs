//! The traces of committed transactions.
//!
//! Read-modify-writes count themselves, and inserted rows can be counted, so mixes D, E and F leave
//! a trace of each transaction. A blind write is random bytes, of which the first eight distinguish
//! it from all others. Its loss is visible until another write replaces it. Some rows of mixes A
//! and B are therefore watched: at the end, each must contain a write that no acknowledged write
//! certainly followed.

use super::super::check::{Rows, Rule, Violation};
use super::super::commits::{Commits, Newest, Watch, Written, plus};
use super::{
    COUNTER_LEN, INCREMENTS, Mix, OP_LEN_MAX, Op, ROWS, ROWS_THERE, Ycsb, digits, for_each_op,
};
use crate::codec::{DecodeError, Reader, Writer};

/// The maximum number of watched rows. Their data take a few hundred kilobytes.
const WATCHED_MAX: u64 = 4_096;

impl Ycsb {
    pub(super) fn watched(&self) -> Watch {
        let step = match self.mix {
            Mix::A | Mix::B => self.rows.div_ceil(WATCHED_MAX),
            Mix::C | Mix::D | Mix::E | Mix::F => 0,
        };
        Watch { counts: self.mix != Mix::C, step }
    }

    pub(super) fn check_written(
        &self,
        rule: &Rule<'_>,
        fact: &dyn Fn(&str) -> i64,
        rows: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        match self.mix {
            Mix::A | Mix::B => {
                let stored = |row| rows.get(ROWS, &digits(row)).and_then(|value| mark(&value));
                check_newest(&commits.newest, stored)
            }
            Mix::C => Ok(()),
            Mix::D | Mix::E => {
                let expected = plus(commits.rows(), self.rows as i64);
                rule.within(("rows", fact(ROWS_THERE)), "rows loaded and inserted", expected)
            }
            Mix::F => {
                let found = ("the sum of all counters", fact(INCREMENTS));
                rule.within(found, "read-modify-writes committed", commits.rows())
            }
        }
    }
}

/// The mark that distinguishes a value from others: its first eight bytes. The mark of loaded
/// values is 0.
pub fn mark(value: &[u8]) -> Option<u64> {
    value.first_chunk::<COUNTER_LEN>().map(|first| u64::from_le_bytes(*first))
}

/// The writes of the arguments of [`super::Run`], with the value's mark for each row whose number
/// is divisible by `step`.
pub(in super::super) fn written(args: &[u8], step: u64) -> Written {
    let mut written = Written::default();
    // Malformed arguments write nothing.
    let _ = for_each_op::<DecodeError>(args, |op| {
        let (Op::Write { row, value } | Op::Modify { row, value }) = op else { return Ok(()) };
        written.rows += 1;
        if step > 0 && row % step == 0 {
            // Only the last write of a row remains.
            written.watched.retain(|(other, _)| *other != row);
            written.watched.push((row, mark(value).ok_or(DecodeError::new("value"))?));
        }
        Ok(())
    });
    written
}

/// Checks that rows have one of their possible values. `stored` returns the mark of a row's value.
///
/// # Errors
/// The first row with another value, and the number of these rows.
pub fn check_newest(
    newest: &[Newest],
    stored: impl Fn(u64) -> Option<u64>,
) -> Result<(), Violation> {
    let found = newest.iter().map(|it| (it, stored(it.row)));
    let wrong = found.filter(|(it, stored)| stored.is_none_or(|mark| !it.marks.contains(&mark)));
    let wrong: Vec<_> = wrong.collect();
    let Some((Newest { row, marks }, stored)) = wrong.first() else { return Ok(()) };
    let place = format!("row {row}, the first of {} of {} sampled rows", wrong.len(), newest.len());
    let rule = Rule { rule: "acknowledged commits", place: &place };
    let newest = marks.last().copied().unwrap_or(0) as i64;
    let stored = stored.map_or(-1, |mark| mark as i64);
    let what = "mark in its value (0 as loaded, -1 if absent)";
    rule.equal((what, stored), ("mark of its newest acknowledged write", newest))
}

/// Arguments of [`super::Run`] that read these rows.
pub fn reads_of(rows: &[u64]) -> Vec<u8> {
    let mut args = Vec::with_capacity(1 + rows.len() * OP_LEN_MAX);
    args.put_varint(rows.len() as u64);
    for row in rows {
        args.put_u8(Op::READ);
        args.put_varint(*row);
    }
    args
}

/// Decodes the marks of the values that [`super::Run`] returned for `count` reads.
///
/// # Errors
/// If the result does not have this number of values.
pub fn marks_read(result: &[u8], count: usize) -> Result<Vec<Option<u64>>, DecodeError> {
    let from = &mut Reader::new(result);
    let marks = (0..count).map(|_| from.bytes("value").map(mark)).collect();
    super::ended(from, "values")?;
    marks
}
