//! Calls of window functions, and their frames.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};
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
    pub frame: WindowFrame,
    /// The type of the result.
    pub base: SqlType,
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

fn frame_of(frame: Option<&ast::WindowFrame>, order: &[Typed]) -> Result<WindowFrame, SqlError> {
    use WindowFrameBound::{CurrentRow, Following, Preceding};
    let unbounded = || ScalarValue::UInt64(None);
    let Some(frame) = frame else {
        let end = if order.is_empty() { Following(unbounded()) } else { CurrentRow };
        // Without an order all rows are peers.
        let units = if order.is_empty() { WindowFrameUnits::Rows } else { WindowFrameUnits::Range };
        return Ok(WindowFrame::new_bounds(units, Preceding(unbounded()), end));
    };
    let units = match frame.units {
        ast::WindowFrameUnits::Rows => WindowFrameUnits::Rows,
        ast::WindowFrameUnits::Range => WindowFrameUnits::Range,
        ast::WindowFrameUnits::Groups => WindowFrameUnits::Groups,
    };
    let is_range = units == WindowFrameUnits::Range;
    let offset = |bound: &Option<Box<ast::Expr>>| -> Result<ScalarValue, SqlError> {
        let Some(bound) = bound else { return Ok(unbounded()) };
        let digits = bound.to_string();
        let number = digits.parse::<u64>().map_err(|_| {
            SqlError::unsupported("an offset of a window frame that is not an integer constant")
        })?;
        if !is_range {
            return Ok(ScalarValue::UInt64(Some(number)));
        }
        match order {
            [(_, SqlType::Int2 | SqlType::Int4 | SqlType::Int8)] => {
                Ok(ScalarValue::Int64(Some(number as i64)))
            }
            [(_, _)] => Err(SqlError::unsupported("RANGE with an offset of such a type")),
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
    if order.is_empty() && units == WindowFrameUnits::Groups {
        let message = "GROUPS mode requires an ORDER BY clause";
        return Err(SqlError::new(code::WINDOWING, message));
    }
    if order.is_empty() && is_range {
        // All rows are peers.
        let (start, end) = (Preceding(unbounded()), Following(unbounded()));
        return Ok(WindowFrame::new_bounds(WindowFrameUnits::Rows, start, end));
    }
    Ok(WindowFrame::new_bounds(units, start, end))
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
