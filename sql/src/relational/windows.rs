//! Window functions.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, ScalarValue};
use datafusion::error::Result;
use datafusion::functions_window::{
    cume_dist::cume_dist_udwf,
    lead_lag::{lag_udwf, lead_udwf},
    nth_value::{first_value_udwf, last_value_udwf, nth_value_udwf},
    ntile::ntile_udwf,
    rank::{dense_rank_udwf, percent_rank_udwf, rank_udwf},
    row_number::row_number_udwf,
};
use datafusion::logical_expr::expr::{Sort, WindowFunction as Call, WindowFunctionParams};
use datafusion::logical_expr::{
    Expr as Logical, LogicalPlan, LogicalPlanBuilder, WindowFrame, WindowFrameBound,
    WindowFrameUnits, WindowFunctionDefinition, WindowUDF, cast, lit,
};
use sqlparser::ast;

use super::aggregate::{folded, native};
use super::logical_plan::{Numbers, PlanScope, comparable, named, next, projected};
use crate::error::{SqlError, code};
use crate::exec::aggregate::{Aggregate, AggregateKind};
use crate::expr::{Expr, Typed};
use crate::plan::SortKey;
use crate::types::SqlType;

/// A function that is computed over a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowFunction {
    RowNumber,
    Rank,
    DenseRank,
    PercentRank,
    CumeDist,
    Ntile,
    Lag,
    Lead,
    FirstValue,
    LastValue,
    NthValue,
    Aggregate(AggregateKind),
}

impl WindowFunction {
    /// Returns the function of this name, if it requires a window.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "row_number" => Self::RowNumber,
            "rank" => Self::Rank,
            "dense_rank" => Self::DenseRank,
            "percent_rank" => Self::PercentRank,
            "cume_dist" => Self::CumeDist,
            "ntile" => Self::Ntile,
            "lag" => Self::Lag,
            "lead" => Self::Lead,
            "first_value" => Self::FirstValue,
            "last_value" => Self::LastValue,
            "nth_value" => Self::NthValue,
            _ => return None,
        })
    }

    /// Returns the types that the arguments are converted to, and the type of the result.
    pub(crate) fn types(self, args: &[SqlType]) -> Option<(Vec<SqlType>, SqlType)> {
        use SqlType::{Float8, Int4, Int8};
        let first = args.first().copied();
        Some(match (self, args.len()) {
            (Self::RowNumber | Self::Rank | Self::DenseRank, 0) => (vec![], Int8),
            (Self::PercentRank | Self::CumeDist, 0) => (vec![], Float8),
            (Self::Ntile, 1) => (vec![Int4], Int4),
            (Self::FirstValue | Self::LastValue, 1) => (vec![first?], first?),
            (Self::NthValue, 2) => (vec![first?, Int4], first?),
            (Self::Lag | Self::Lead, 1..=3) => {
                (vec![first?, Int4, first?][..args.len()].to_vec(), first?)
            }
            _ => return None,
        })
    }
}

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
    frame: WindowFrame,
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
    ) -> std::result::Result<Self, SqlError> {
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

fn frame_of(
    frame: Option<&ast::WindowFrame>,
    order: &[Typed],
) -> std::result::Result<WindowFrame, SqlError> {
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
    let offset = |bound: &Option<Box<ast::Expr>>| -> std::result::Result<ScalarValue, SqlError> {
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

fn check_bounds(frame: &ast::WindowFrame) -> std::result::Result<(), SqlError> {
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

/// Appends the results of window functions to the columns of the rows.
pub(super) fn windowed(scope: &mut PlanScope<'_>, windows: Vec<Window>) -> Result<()> {
    let mut inputs: Vec<Logical> = scope.columns.iter().map(|(column, _)| column.clone()).collect();
    let width = inputs.len();
    let mut places = Vec::with_capacity(windows.len());
    for window in &windows {
        places.push(inputs.len());
        for (expr, base) in window.args.iter().chain(&window.partition).chain(&window.order) {
            let expr = scope.resolve(expr.clone())?;
            inputs.push(scope.value(&expr, *base));
        }
        if let Some(filter) = &window.filter {
            let filter = scope.resolve(filter.clone())?;
            inputs.push(scope.value(&filter, SqlType::Bool));
        }
    }
    scope.columns.truncate(width);
    let relation = next(scope.numbers);
    let plan = projected(std::mem::take(&mut scope.plan), inputs, relation)?;
    let calls: Vec<Logical> =
        windows.iter().zip(places).map(|(window, place)| call(window, relation, place)).collect();
    let names: Vec<String> = calls.iter().map(|call| call.schema_name().to_string()).collect();
    let mut distinct = calls.clone();
    distinct.dedup();
    let plan = LogicalPlanBuilder::window_plan(plan, distinct)?;
    let own = (0..width).map(|at| named(relation, at));
    let results = windows.iter().zip(names).map(|(window, name)| {
        let column = Logical::Column(Column::new_unqualified(name));
        match window.function {
            // Row numbers are unsigned in DataFusion.
            WindowFunction::RowNumber
            | WindowFunction::Rank
            | WindowFunction::DenseRank
            | WindowFunction::Ntile => cast(column, DataType::Int64),
            _ => column,
        }
    });
    let outputs: Vec<Logical> = own.chain(results).collect();
    let result = next(scope.numbers);
    scope.plan = projected(plan, outputs, result)?;
    let types: Vec<SqlType> = scope.columns.iter().map(|(_, base)| *base).collect();
    let all = types.into_iter().chain(windows.iter().map(|window| window.base)).enumerate();
    scope.columns = all.map(|(at, base)| (named(result, at), base)).collect();
    Ok(())
}

/// Returns the call of a window function over columns of a relation, starting at position `place`.
fn call(window: &Window, relation: u32, place: usize) -> Logical {
    let column = |at: usize| named(relation, at);
    let mut at = place;
    let mut args = Vec::with_capacity(window.args.len());
    for (number, (arg, base)) in window.args.iter().enumerate() {
        // DataFusion requires offsets to be constants.
        args.push(match arg {
            Expr::Const(datum) if number > 0 || window.function == WindowFunction::Ntile => {
                Logical::Literal(super::values::scalar(*base, datum), None)
            }
            _ => column(at),
        });
        at += 1;
    }
    let mut partition_by = Vec::with_capacity(window.partition.len());
    for (_, base) in &window.partition {
        partition_by.push(comparable(column(at), *base));
        at += 1;
    }
    let first = at;
    let order_by = window.sort.iter().map(|key| {
        let value = comparable(column(first + key.column), window.order[key.column].1);
        value.sort(!key.is_descending, key.is_nulls_first)
    });
    let order_by: Vec<Sort> = order_by.collect();
    at += window.order.len();
    let filter = window.filter.as_ref().map(|_| Box::new(column(at)));
    let fun = definition(window, &mut args);
    Logical::WindowFunction(Box::new(Call {
        fun,
        params: WindowFunctionParams {
            args,
            partition_by,
            order_by,
            window_frame: window.frame.clone(),
            filter,
            null_treatment: None,
            distinct: false,
        },
    }))
}

fn definition(window: &Window, args: &mut Vec<Logical>) -> WindowFunctionDefinition {
    let udwf = |function: Arc<WindowUDF>| WindowFunctionDefinition::WindowUDF(function);
    match window.function {
        WindowFunction::RowNumber => udwf(row_number_udwf()),
        WindowFunction::Rank => udwf(rank_udwf()),
        WindowFunction::DenseRank => udwf(dense_rank_udwf()),
        WindowFunction::PercentRank => udwf(percent_rank_udwf()),
        WindowFunction::CumeDist => udwf(cume_dist_udwf()),
        WindowFunction::Ntile => udwf(ntile_udwf()),
        WindowFunction::Lag => udwf(lag_udwf()),
        WindowFunction::Lead => udwf(lead_udwf()),
        WindowFunction::FirstValue => udwf(first_value_udwf()),
        WindowFunction::LastValue => udwf(last_value_udwf()),
        WindowFunction::NthValue => udwf(nth_value_udwf()),
        WindowFunction::Aggregate(kind) => {
            let types = window.args.iter().enumerate();
            let over = types.map(|(at, (_, base))| (Expr::Column(at), *base)).collect();
            let aggregate = Aggregate::plain(kind, over);
            let function = match native(&aggregate) {
                Some(function) => {
                    if args.is_empty() {
                        args.push(lit(1_i64));
                    }
                    function
                }
                None => folded(aggregate, window.base),
            };
            WindowFunctionDefinition::AggregateUDF(function)
        }
    }
}

/// Numbers each row among its duplicates, in a column after the others.
pub(super) fn numbered(plan: LogicalPlan, relation: u32, types: &[SqlType]) -> Result<LogicalPlan> {
    let keys: Vec<usize> = (0..types.len()).collect();
    number(plan, (relation, types), &keys, &[], relation)
}

fn number(
    plan: LogicalPlan,
    (relation, types): (u32, &[SqlType]),
    keys: &[usize],
    sort: &[SortKey],
    result: u32,
) -> Result<LogicalPlan> {
    let key = |at: &usize| comparable(named(relation, *at), types[*at]);
    let order_by = sort.iter().map(|key| {
        let value = comparable(named(relation, key.column), types[key.column]);
        value.sort(!key.is_descending, key.is_nulls_first)
    });
    let unbounded = WindowFrameBound::Preceding(ScalarValue::UInt64(None));
    let frame =
        WindowFrame::new_bounds(WindowFrameUnits::Rows, unbounded, WindowFrameBound::CurrentRow);
    let call = Logical::WindowFunction(Box::new(Call {
        fun: WindowFunctionDefinition::WindowUDF(row_number_udwf()),
        params: WindowFunctionParams {
            args: Vec::new(),
            partition_by: keys.iter().map(key).collect(),
            order_by: order_by.collect(),
            window_frame: frame,
            filter: None,
            null_treatment: None,
            distinct: false,
        },
    }));
    let name = call.schema_name().to_string();
    let plan = LogicalPlanBuilder::window_plan(plan, vec![call])?;
    let own = (0..types.len()).map(|at| named(relation, at));
    let number = cast(Logical::Column(Column::new_unqualified(name)), DataType::Int64);
    projected(plan, own.chain([number]).collect(), result)
}

/// `DISTINCT ON`: retains the first row, in sort order, of those that are equal in some columns.
pub(super) fn first_of_each(
    plan: LogicalPlan,
    (relation, types): (u32, &[SqlType]),
    keys: &[usize],
    sort: &[SortKey],
    numbers: &mut Numbers,
) -> Result<LogicalPlan> {
    let with_number = next(numbers);
    let plan = number(plan, (relation, types), keys, sort, with_number)?;
    let is_first = named(with_number, types.len()).eq(lit(1_i64));
    let plan = LogicalPlanBuilder::from(plan).filter(is_first)?.build()?;
    projected(plan, (0..types.len()).map(|at| named(with_number, at)).collect(), relation)
}
