//! Sequences: numbers that are handed out once.
//!
//! What a sequence is stands in its record; how far it is stands in a row of its own, so that
//! statements that were planned with the record don't conflict with those that take numbers.
//!
//! ```text
//!   table 2:  id u32, big-endian -> generation u64 | whether any is left u8 | next i64
//! ```
//!
//! The generation changes when somebody says where the sequence goes on: what was taken before is
//! not handed out any more then.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::Context;
use pangea_core::value::Value;
use serde::{Deserialize, Serialize};

use super::QualifiedName;
use crate::error::{Failure, SqlError, code};
use crate::syntax::{self, Written};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The table that says how far sequences are.
pub const SEQUENCES: TableId = TableId(2);

/// What a sequence is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    /// The number of its row among those that say how far sequences are.
    pub id: u32,
    /// The number of its type in `pg_type`: that of smallint, integer or bigint.
    pub type_oid: u32,
    /// The first number.
    pub start: i64,
    /// What is added each time. Not 0.
    pub increment: i64,
    /// The least number.
    pub min: i64,
    /// The greatest number.
    pub max: i64,
    /// Whether it begins again at its end.
    pub is_cycle: bool,
    /// The table that it goes with.
    pub owner: Option<QualifiedName>,
}

/// The columns of a sequence that is read like a table.
pub(crate) const COLUMNS: [(&str, SqlType); 3] =
    [("last_value", SqlType::Int8), ("log_cnt", SqlType::Int8), ("is_called", SqlType::Bool)];

/// How far a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub generation: u64,
    /// Nothing where none is left.
    pub next: Option<i64>,
    /// Whether that one is the first, or the one that it was told to go on with: none was given
    /// out before it.
    pub is_new: bool,
}

/// In the flag of a state: a number is left, and it is a new one.
const HAS_NEXT: u8 = 1;
const IS_NEW: u8 = 2;

/// Numbers in a row: `first`, and so many in all, each `increment` after the one before.
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
    /// Its type.
    pub(crate) fn base(&self) -> SqlType {
        SqlType::from_oid(self.type_oid).unwrap_or(SqlType::Int8)
    }

    /// Takes the place of another: it goes on where that is, or at a number.
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
        // What nodes have taken by the old rules is not handed out any more.
        let state = State { generation: state.generation + 1, next, is_new: !is_called };
        Ok(cx.put(SEQUENCES, self.key(), state.encode())?)
    }

    /// The last number, and whether it was given out.
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

    /// The key of its state.
    pub(crate) fn key(&self) -> Key {
        Key::from(&self.id.to_be_bytes()[..])
    }

    pub(crate) fn state(&self, cx: &mut dyn Context) -> Result<State, Failure> {
        match cx.get(SEQUENCES, &self.key())? {
            Some(bytes) => Ok(State::decode(&bytes)?),
            None => Ok(State { generation: 0, next: Some(self.start), is_new: true }),
        }
    }

    /// Takes up to `wanted` numbers, at least one.
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

    /// Says which number comes next, or was the last one.
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

    /// Its row where it is read like a table: the last number, how many are logged in advance, and
    /// whether the last number was given out. Numbers that a node has taken for later are.
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

/// The default of a column that takes its numbers of a sequence.
pub(crate) fn nextval_of(sequence: &QualifiedName) -> String {
    format!("nextval('{}'::regclass)", syntax::quoted_name(sequence).replace('\'', "''"))
}

/// The sequence that a default takes numbers of.
pub(crate) fn sequence_of(default: &str) -> Option<Written> {
    let text = default.strip_prefix("nextval('")?;
    let name = text.strip_suffix("'::regclass)").or_else(|| text.strip_suffix("')"))?;
    // A quote within stands there twice; where one stands alone, the text ends before.
    let name = name.replace("''", "\0");
    if name.contains('\'') {
        return None;
    }
    syntax::name_from_text(&name.replace('\0', "'")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_names_its_sequence_whatever_that_is_called() {
        for (schema, name) in [("public", "s"), ("a", "it's"), ("s'1", "Q \"x\""), ("public", "''")]
        {
            let sequence = QualifiedName::new(schema, name);
            let found = sequence_of(&nextval_of(&sequence)).map(|written| written.kept());
            assert_eq!(found, Some(sequence), "{schema}.{name}");
        }
        assert!(sequence_of("nextval('s')").is_some());
        for other in ["nextval('s') + 1", "nextval('a') || nextval('b')", "nextval('a'::text)"] {
            assert_eq!(sequence_of(other), None, "{other}");
        }
    }
}
