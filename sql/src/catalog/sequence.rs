//! Sequences: generators of unique numbers.
//!
//! The definition of a sequence is in its catalog record; its state is in a separate row.
//! Statements planned against the record therefore don't conflict with statements that draw
//! numbers.
//!
//! ```text
//!   table 2:  id u32, big-endian -> generation u64 | flags u8 | next i64
//! ```
//!
//! The generation increases when the sequence is repositioned. Numbers reserved under an earlier
//! generation are discarded.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::Context;
use pangea_core::value::Value;
use serde::{Deserialize, Serialize};

use super::QualifiedName;
use crate::error::{Failure, SqlError, code};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::quoting::quoted_name;

/// Table of the states of sequences.
pub const SEQUENCES: TableId = TableId(2);

/// The definition of a sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    /// Number of its row in `SEQUENCES`.
    pub id: u32,
    /// OID of its type in `pg_type`: smallint, integer or bigint.
    pub type_oid: u32,
    /// First number.
    pub start: i64,
    /// Difference between consecutive numbers; not 0.
    pub increment: i64,
    /// Least number.
    pub min: i64,
    /// Greatest number.
    pub max: i64,
    /// Whether the sequence wraps around at its end.
    pub is_cycle: bool,
    /// The table that owns the sequence.
    pub owner: Option<QualifiedName>,
}

/// The columns of a sequence that is queried like a table.
pub(crate) const COLUMNS: [(&str, SqlType); 3] =
    [("last_value", SqlType::Int8), ("log_cnt", SqlType::Int8), ("is_called", SqlType::Bool)];

/// The state of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub generation: u64,
    /// `None` if no number is left.
    pub next: Option<i64>,
    /// Whether `next` is the start value, or a restart value that has not been drawn yet.
    pub is_new: bool,
}

/// Bits of the flags of a state: a number is left, and it is new (`is_new`).
const HAS_NEXT: u8 = 1;
const IS_NEW: u8 = 2;

/// A block of `count` numbers: `first`, and then each `increment` after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub generation: u64,
    pub first: i64,
    pub count: u64,
    pub increment: i64,
}

impl State {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        let generation = from.u64("sequence generation")?;
        let flags = from.u8("sequence flag")?;
        let next = from.u64("sequence number")? as i64;
        let next = (flags & HAS_NEXT != 0).then_some(next);
        Ok(Self { generation, next, is_new: flags & IS_NEW != 0 })
    }

    fn encode(self) -> Value {
        let mut out = Vec::with_capacity(17);
        out.put_u64(self.generation);
        let has_next = if self.next.is_some() { HAS_NEXT } else { 0 };
        out.put_u8(has_next | if self.is_new { IS_NEW } else { 0 });
        out.put_u64(self.next.unwrap_or_default() as u64);
        Value::from(out)
    }
}

impl Sequence {
    /// The sequence's type.
    pub(crate) fn base(&self) -> SqlType {
        SqlType::from_oid(self.type_oid).unwrap_or(SqlType::Int8)
    }

    /// Replaces the definition `before`. Continues at the same position, or at `restart`.
    pub(crate) fn follow(
        &self,
        before: &Self,
        restart: Option<i64>,
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        let state = before.state(cx)?;
        let (last, is_called) = match restart {
            Some(number) => (number, false),
            None => before.last(state),
        };
        let out = |message: String| SqlError::new(code::INVALID_PARAMETER, message);
        if last < self.min {
            let message =
                format!("RESTART value ({last}) cannot be less than MINVALUE ({})", self.min);
            return Err(out(message).into());
        }
        if last > self.max {
            let message =
                format!("RESTART value ({last}) cannot be greater than MAXVALUE ({})", self.max);
            return Err(out(message).into());
        }
        let after = if is_called { last.checked_add(self.increment) } else { Some(last) };
        let next = after.filter(|next| (self.min..=self.max).contains(next));
        // The new generation discards the numbers that nodes have reserved under the old
        // definition.
        let state = State { generation: state.generation + 1, next, is_new: !is_called };
        Ok(cx.put(SEQUENCES, self.key(), state.encode())?)
    }

    /// Returns the last number and whether it was drawn.
    fn last(&self, state: State) -> (i64, bool) {
        let before = |next: i64| {
            let last = next.checked_sub(self.increment);
            last.filter(|last| (self.min..=self.max).contains(last))
        };
        match state.next {
            Some(next) if state.is_new => (next, false),
            Some(next) => before(next).map_or((next, false), |last| (last, true)),
            None if self.increment > 0 => (self.max, true),
            None => (self.min, true),
        }
    }

    /// Key of the state row.
    pub(crate) fn key(&self) -> Key {
        Key::from(&self.id.to_be_bytes()[..])
    }

    pub(crate) fn state(&self, cx: &mut dyn Context) -> Result<State, Failure> {
        match cx.get(SEQUENCES, &self.key())? {
            Some(bytes) => Ok(State::decode(&bytes)?),
            None => Ok(State { generation: 0, next: Some(self.start), is_new: true }),
        }
    }

    /// Draws up to `wanted` numbers, at least one.
    pub(crate) fn take(
        &self,
        name: &QualifiedName,
        wanted: u64,
        cx: &mut dyn Context,
    ) -> Result<Block, Failure> {
        let State { generation, next, .. } = self.state(cx)?;
        let again = if self.increment > 0 { self.min } else { self.max };
        let first = match next {
            Some(next) => next,
            None if self.is_cycle => again,
            None => return Err(self.exhausted(name).into()),
        };
        let room = if self.increment > 0 {
            i128::from(self.max) - i128::from(first)
        } else {
            i128::from(first) - i128::from(self.min)
        };
        let step = i128::from(self.increment).abs();
        let count = (room / step + 1).min(i128::from(wanted.max(1)));
        let after = i128::from(first) + i128::from(self.increment) * count;
        let is_left = (i128::from(self.min)..=i128::from(self.max)).contains(&after);
        let next = is_left.then_some(after as i64);
        let state = State { generation, next, is_new: false };
        cx.put(SEQUENCES, self.key(), state.encode())?;
        let (count, increment) = (count as u64, self.increment);
        Ok(Block { generation, first, count, increment })
    }

    /// Repositions the sequence, as `setval` does: `value` is the last number drawn if `is_called`,
    /// otherwise the next one.
    pub(crate) fn set(
        &self,
        name: &QualifiedName,
        value: i64,
        is_called: bool,
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        let (min, max) = (self.min, self.max);
        if !(min..=max).contains(&value) {
            let message = format!(
                "setval: value {value} is out of bounds for sequence \"{name}\" ({min}..{max})"
            );
            return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message).into());
        }
        let generation = self.state(cx)?.generation + 1;
        let after = if is_called { value.checked_add(self.increment) } else { Some(value) };
        let next = after.filter(|next| (min..=max).contains(next));
        let state = State { generation, next, is_new: !is_called };
        Ok(cx.put(SEQUENCES, self.key(), state.encode())?)
    }

    /// Returns the row of the sequence when it is queried like a table: the last number, the number
    /// of logged values, and whether the last number was drawn. Numbers that a node has reserved
    /// count as drawn.
    pub(crate) fn row(&self, cx: &mut dyn Context) -> Result<Vec<Datum>, Failure> {
        let (last, is_called) = self.last(self.state(cx)?);
        Ok(vec![Datum::Int(last), Datum::Int(0), Datum::Bool(is_called)])
    }

    fn exhausted(&self, name: &QualifiedName) -> SqlError {
        let (which, value) = match self.increment > 0 {
            true => ("maximum", self.max),
            false => ("minimum", self.min),
        };
        let message = format!("nextval: reached {which} value of sequence \"{name}\" ({value})");
        SqlError::new(code::SEQUENCE_LIMIT, message)
    }
}

/// Returns the default expression of a column that draws its numbers from a sequence.
pub(crate) fn nextval_of(sequence: &QualifiedName) -> String {
    format!("nextval('{}'::regclass)", quoted_name(sequence).replace('\'', "''"))
}
