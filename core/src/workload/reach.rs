//! Scans from either end of a range, which may end before they have seen all of it.

use std::ops::ControlFlow;

use super::rng::WorkloadRng;
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Direction, KeyRange};
use crate::txn::{Context, Scan, Stop};
use crate::value::Value;

/// The most rows after which a scan ends early.
const ROWS_MAX: u64 = 3;

/// The end at which a scan begins, and the number of rows after which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The direction.
    pub direction: Direction,
    /// The number of rows after which the scan ends; without one, it ends with the range.
    pub rows: Option<u64>,
}

impl Reach {
    /// The whole range, from its first row on.
    pub const ALL: Self = Self { direction: Direction::Forward, rows: None };

    /// Half of the scans begin at the last row, and a third end early.
    pub(super) fn draw(dice: &mut WorkloadRng) -> Self {
        let direction = if dice.percent(50) { Direction::Reverse } else { Direction::Forward };
        let rows = dice.percent(33).then(|| dice.between(1, ROWS_MAX));
        Self { direction, rows }
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.put_u8(u8::from(self.direction == Direction::Reverse));
        out.put_varint(self.rows.unwrap_or(0));
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let direction = match from.u8("direction")? {
            0 => Direction::Forward,
            1 => Direction::Reverse,
            _ => return Err(DecodeError::new("direction")),
        };
        let rows = Some(from.varint("rows of a scan")?).filter(|rows| *rows > 0);
        Ok(Self { direction, rows })
    }

    /// Whether a scan that has seen this number of rows ends.
    pub fn is_over(self, seen: u64) -> bool {
        self.rows.is_some_and(|rows| seen >= rows)
    }

    /// Returns the numbers from `first` on in the order of the scan.
    pub fn in_order(self, first: u64, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |at| match self.direction {
            Direction::Forward => first + at,
            Direction::Reverse => first + (count - 1 - at),
        })
    }

    /// Scans a range of a table. `visit` says whether a row is in order; the first that is not ends
    /// the scan.
    pub(super) fn scan(
        self,
        cx: &mut dyn Context,
        table: TableId,
        range: KeyRange,
        mut visit: impl FnMut(&[u8], &Value) -> Result<(), DecodeError>,
    ) -> Result<Result<(), DecodeError>, Stop> {
        let (mut seen, mut verdict) = (0, Ok(()));
        let scan = Scan { table, range, direction: self.direction };
        cx.scan(&scan, &mut |key, value| {
            verdict = visit(key, value);
            seen += 1;
            match verdict.is_err() || self.is_over(seen) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reach_survives_its_encoding_and_all_kinds_are_drawn() {
        let dice = &mut WorkloadRng::new(1);
        let (mut back, mut early) = (0, 0);
        for _ in 0..300 {
            let reach = Reach::draw(dice);
            let mut bytes = Vec::new();
            reach.encode(&mut bytes);
            assert_eq!(Reach::decode(&mut Reader::new(&bytes)), Ok(reach));
            back += u64::from(reach.direction == Direction::Reverse);
            early += u64::from(reach.rows.is_some());
        }
        assert!((100..200).contains(&back) && (50..150).contains(&early), "{back}, {early}");
        assert!(Reach::decode(&mut Reader::new(&[2, 0])).is_err());
    }

    #[test]
    fn numbers_are_in_the_order_of_the_scan() {
        let back = Reach { direction: Direction::Reverse, rows: Some(2) };
        assert_eq!(back.in_order(7, 3).collect::<Vec<_>>(), [9, 8, 7]);
        assert_eq!(Reach::ALL.in_order(7, 3).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(back.is_over(2) && !back.is_over(1) && !Reach::ALL.is_over(9));
    }
}
