//! Calls of window functions, and their frames.

use sqlparser::ast;

use crate::error::{SqlError, code};
use crate::expr::{Expr, Typed};
use crate::types::SqlType;
use crate::vocabulary::column::SortKey;
use crate::vocabulary::window::WindowFunction;

/// The call of a window function.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Window {
    pub function: WindowFunction,
    pub args: Vec<Typed>,
    /// The FILTER clause.
    pub filter: Option<Expr>,
    pub partition: Vec<Typed>,
    pub order: Vec<Typed>,
    /// The sort order; its keys refer to `order` by position.
    pub sort: Vec<SortKey>,
    pub frame: Frame,
    /// The type of the result.
    pub base: SqlType,
}

/// The rows of the partition that a window function is computed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub units: ast::WindowFrameUnits,
    pub start: FrameBound,
    pub end: FrameBound,
}

/// An end of a frame. An offset of `None` is UNBOUNDED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameBound {
    CurrentRow,
    Preceding(Option<u64>),
    Following(Option<u64>),
}

/// An OVER clause: the partition, the order and the frame of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Over {
    pub partition: Vec<Typed>,
    pub order: Vec<Typed>,
    pub sort: Vec<SortKey>,
    pub frame: Option<ast::WindowFrame>,
}

impl Window {
    pub(crate) fn new(
        function: WindowFunction,
        (args, filter): (Vec<Typed>, Option<Expr>),
        over: Over,
        base: SqlType,
    ) -> Result<Self, SqlError> {
        let Over { partition, order, sort, frame } = over;
        let frame = frame_of(frame.as_ref(), &order)?;
        Ok(Self { function, args, filter, partition, order, sort, frame, base })
    }

    /// Returns the expressions that it contains.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        let args = self.args.iter_mut().chain(&mut self.partition).chain(&mut self.order);
        args.map(|(expr, _)| expr).chain(&mut self.filter)
    }
}

fn frame_of(frame: Option<&ast::WindowFrame>, order: &[Typed]) -> Result<Frame, SqlError> {
    use FrameBound::{CurrentRow, Following, Preceding};
    use ast::WindowFrameUnits::{Groups, Range, Rows};
    let all_rows = Frame { units: Rows, start: Preceding(None), end: Following(None) };
    let Some(frame) = frame else {
        // Without an order all rows are peers.
        let ordered = Frame { units: Range, start: Preceding(None), end: CurrentRow };
        return Ok(if order.is_empty() { all_rows } else { ordered });
    };
    let offset = |bound: &Option<Box<ast::Expr>>| -> Result<Option<u64>, SqlError> {
        let Some(bound) = bound else { return Ok(None) };
        let digits = bound.to_string();
        let number = digits.parse::<u64>().map_err(|_| {
            SqlError::unsupported("an offset of a window frame that is not an integer constant")
        })?;
        match order {
            _ if frame.units != Range => Ok(Some(number)),
            [(_, SqlType::Int2 | SqlType::Int4 | SqlType::Int8)] => Ok(Some(number)),
            [(_, ty)] => {
                let feature = "RANGE with offset PRECEDING/FOLLOWING for column type";
                Err(SqlError::unsupported(format!("{feature} {ty}")))
            }
            _ => {
                let message = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER \
                               BY column";
                Err(SqlError::new(code::WINDOWING, message))
            }
        }
    };
    let bound = |bound: &ast::WindowFrameBound| {
        Ok::<_, SqlError>(match bound {
            ast::WindowFrameBound::CurrentRow => CurrentRow,
            ast::WindowFrameBound::Preceding(bound) => Preceding(offset(bound)?),
            ast::WindowFrameBound::Following(bound) => Following(offset(bound)?),
        })
    };
    let start = bound(&frame.start_bound)?;
    let end = frame.end_bound.as_ref().map_or(Ok(CurrentRow), bound)?;
    check_bounds(frame)?;
    match frame.units {
        Groups if order.is_empty() => {
            let message = "GROUPS mode requires an ORDER BY clause";
            Err(SqlError::new(code::WINDOWING, message))
        }
        // All rows are peers.
        Range if order.is_empty() => Ok(all_rows),
        units => Ok(Frame { units, start, end }),
    }
}

fn check_bounds(frame: &ast::WindowFrame) -> Result<(), SqlError> {
    use ast::WindowFrameBound::{CurrentRow, Following, Preceding};
    let end = frame.end_bound.as_ref().unwrap_or(&CurrentRow);
    let message = match (&frame.start_bound, end) {
        (Following(None), _) => "frame start cannot be UNBOUNDED FOLLOWING",
        (_, Preceding(None)) => "frame end cannot be UNBOUNDED PRECEDING",
        (CurrentRow, Preceding(_)) => "frame starting from current row cannot have preceding rows",
        (Following(_), Preceding(_)) => {
            "frame starting from following row cannot have preceding rows"
        }
        (Following(_), CurrentRow) => {
            "frame starting from following row cannot end with current row"
        }
        _ => return Ok(()),
    };
    Err(SqlError::new(code::WINDOWING, message))
}
