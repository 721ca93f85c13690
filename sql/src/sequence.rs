//! Sequence numbers: their allocation to nodes and statements.
//!
//! ```text
//!   session --> numbers that the node has left --> statement, which takes them in its order
//!                  |  none left
//!                  v
//!          sql.reserve, a program: the next block of the sequence, for this node
//! ```
//!
//! A statement receives its numbers before it runs. Therefore every replica assigns the same number
//! to the same row, and statements do not all write one row of the database. A statement that
//! received too few numbers runs again with more. Unused numbers are lost, as in PostgreSQL. The
//! numbers of different nodes are not ordered by time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::txn::{Context, Procedure, Stop};

use crate::catalog::sequence::{Block, Sequence};
use crate::catalog::{self, QualifiedName, Relation};
use crate::error::{Failure, SqlError, code};

/// The name of the procedure in the registry.
pub(crate) const RESERVE: &str = "sql.reserve";

/// The minimum number of values that a node reserves at once.
const BLOCK_MIN: u64 = 32;
/// The maximum number of values that a node reserves at once, unless a statement needs more.
const BLOCK_MAX: u64 = 4_096;

/// A sequence that a statement uses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Used {
    pub name: QualifiedName,
    pub sequence: Sequence,
    /// Whether the statement draws numbers, rather than only reading the sequence.
    pub is_drawn: bool,
}

impl Used {
    /// Merges itself into a list that has one entry for each sequence.
    pub(crate) fn add_to(&self, all: &mut Vec<Self>) {
        match all.iter_mut().find(|it| it.sequence.id == self.sequence.id) {
            Some(known) => known.is_drawn |= self.is_drawn,
            None => all.push(self.clone()),
        }
    }
}

/// The numbers of a sequence that a statement has.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceValues {
    pub name: QualifiedName,
    pub id: u32,
    /// The numbers that it may draw.
    pub values: RefCell<VecDeque<i64>>,
    /// The number that its session drew last (`currval`).
    pub current: Cell<Option<i64>>,
}

impl SequenceValues {
    /// Draws the next number, which becomes the current one.
    pub(crate) fn next(&self) -> Result<i64, SqlError> {
        let next = self.values.borrow_mut().pop_front();
        let next = next.ok_or_else(|| SqlError::new(code::TOO_FEW_NUMBERS, self.name.name()))?;
        self.current.set(Some(next));
        Ok(next)
    }

    /// Continues from the state of a copy.
    pub(crate) fn go_on_from(&self, copy: &Self) {
        self.values.replace(copy.values.borrow().clone());
        self.current.set(copy.current.get());
    }

    pub(crate) fn current(&self) -> Result<i64, SqlError> {
        self.current.get().ok_or_else(|| {
            let name = &self.name;
            let message =
                format!("currval of sequence \"{name}\" is not yet defined in this session");
            SqlError::new(code::NOT_PREREQUISITE, message)
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(self.name.as_kept().as_bytes());
        out.put_u32(self.id);
        let current = self.current.get();
        out.put_u8(u8::from(current.is_some()));
        out.put_u64(current.unwrap_or_default() as u64);
        let values = self.values.borrow();
        out.put_varint(values.len() as u64);
        values.iter().for_each(|value| out.put_u64(*value as u64));
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = QualifiedName::kept(from.bytes("sequence name")?)?;
        let id = from.u32("sequence")?;
        let has_current = from.u8("sequence flag")? != 0;
        let current = from.u64("sequence number")? as i64;
        let values = (0..from.count("sequence numbers")?)
            .map(|_| Ok(from.u64("sequence number")? as i64))
            .collect::<Result<VecDeque<i64>, DecodeError>>()?;
        let current = Cell::new(has_current.then_some(current));
        Ok(Self { name, id, values: RefCell::new(values), current })
    }
}

/// The unused numbers of a node, shared by all of its sessions.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    inner: Mutex<BTreeMap<u32, RemainingValues>>,
}

/// The unused numbers of a sequence.
#[derive(Debug, Default)]
struct RemainingValues {
    blocks: VecDeque<Block>,
    /// The size of the next reservation.
    wanted: u64,
}

impl Blocks {
    /// Takes at most `most` numbers of a generation. Discards the numbers of other generations.
    pub(crate) fn take(&self, id: u32, generation: u64, most: usize) -> Vec<i64> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = inner.get_mut(&id) else { return Vec::new() };
        left.blocks.retain(|block| block.generation == generation);
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(block) = left.blocks.front_mut()
        {
            taken.push(block.first);
            block.count -= 1;
            match block.first.checked_add(block.increment) {
                Some(next) if block.count > 0 => block.first = next,
                _ => drop(left.blocks.pop_front()),
            }
        }
        taken
    }

    /// Returns how many numbers to reserve if `needed` are missing. The size doubles each time, so
    /// that busy sequences are rarely reserved.
    pub(crate) fn wanted(&self, id: u32, needed: usize) -> u64 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let left = inner.entry(id).or_default();
        left.wanted = (left.wanted * 2).clamp(BLOCK_MIN, BLOCK_MAX);
        left.wanted.max(needed as u64)
    }

    /// Returns numbers that no statement used. They are handed out first.
    pub(crate) fn give_back(&self, id: u32, generation: u64, numbers: &[i64]) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let left = inner.entry(id).or_default();
        for &first in numbers.iter().rev() {
            left.blocks.push_front(Block { generation, first, count: 1, increment: 0 });
        }
    }

    /// Stores a reserved block.
    pub(crate) fn keep(&self, id: u32, block: Block) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.entry(id).or_default().blocks.push_back(block);
    }
}

/// Encodes the arguments of [`RESERVE`].
pub(crate) fn reserve_args(name: &QualifiedName, id: u32, wanted: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_bytes(name.as_kept().as_bytes());
    out.put_u32(id);
    out.put_varint(wanted);
    out
}

/// Decodes the result of [`RESERVE`].
pub(crate) fn reserved(bytes: &[u8]) -> Result<Block, DecodeError> {
    let mut from = Reader::new(bytes);
    let generation = from.u64("sequence generation")?;
    let first = from.u64("sequence number")? as i64;
    let count = from.varint("sequence numbers")?;
    let increment = from.u64("sequence increment")? as i64;
    Ok(Block { generation, first, count, increment })
}

/// The procedure that reserves the next block of a sequence for a node.
#[derive(Debug)]
pub(crate) struct Reserve;

impl Reserve {
    fn execute(args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Failure> {
        let mut from = Reader::new(args);
        let name = QualifiedName::kept(from.bytes("sequence name")?)?;
        let (id, wanted) = (from.u32("sequence")?, from.varint("sequence numbers")?);
        let sequence = match catalog::find(&name, cx)? {
            Some(Relation::Sequence(sequence)) if sequence.id == id => sequence,
            _ => return Err(SqlError::undefined_table(&name).into()),
        };
        let Block { generation, first, count, increment } = sequence.take(&name, wanted, cx)?;
        let mut out = Vec::new();
        out.put_u64(generation);
        out.put_u64(first as u64);
        out.put_varint(count);
        out.put_u64(increment as u64);
        Ok(out)
    }
}

impl Procedure for Reserve {
    fn name(&self) -> &str {
        RESERVE
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        Self::execute(args, cx).map_err(Stop::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(generation: u64, first: i64, count: u64) -> Block {
        Block { generation, first, count, increment: -2 }
    }

    #[test]
    fn numbers_come_in_their_order_and_those_of_an_old_generation_never() {
        let blocks = Blocks::default();
        assert_eq!(blocks.take(1, 0, 5), [] as [i64; 0]);
        blocks.keep(1, block(0, 10, 3));
        blocks.keep(1, block(0, i64::MIN + 1, 1));
        assert_eq!(blocks.take(1, 0, 2), [10, 8]);
        assert_eq!(blocks.take(1, 0, 9), [6, i64::MIN + 1]);
        blocks.keep(1, block(0, 10, 3));
        let taken = blocks.take(1, 0, 2);
        blocks.give_back(1, 0, &taken[1..]);
        assert_eq!(blocks.take(1, 0, 9), [8, 6]);
        blocks.keep(1, block(0, 10, 3));
        blocks.keep(1, block(1, 100, 1));
        assert_eq!(blocks.take(1, 1, 9), [100]);
    }

    #[test]
    fn who_reserves_often_takes_more_and_who_needs_more_gets_it() {
        let blocks = Blocks::default();
        let wanted: Vec<u64> = (0..9).map(|_| blocks.wanted(7, 1)).collect();
        assert_eq!(wanted, [32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 4_096]);
        assert_eq!(blocks.wanted(7, 100_000), 100_000);
    }

    #[test]
    fn what_is_drawn_survives_its_encoding() {
        let drawn = SequenceValues {
            name: QualifiedName::public("s"),
            id: 7,
            values: RefCell::new(VecDeque::from([5, -6])),
            current: Cell::new(Some(4)),
        };
        let mut bytes = Vec::new();
        drawn.encode(&mut bytes);
        let read = SequenceValues::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(format!("{read:?}"), format!("{drawn:?}"));
        assert_eq!((read.next(), read.next(), read.current()), (Ok(5), Ok(-6), Ok(-6)));
        assert_eq!(read.next().unwrap_err().code, code::TOO_FEW_NUMBERS);
    }
}
