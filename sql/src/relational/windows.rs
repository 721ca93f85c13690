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
use super::block::Numbers;
use super::logical_plan::{PlanScope, comparable, named, next, projected};
use crate::expr::Expr;
use crate::expr::query::{Aggregate, Frame, FrameBound, Window};
use crate::types::SqlType;
use crate::vocabulary::column::SortKey;
use crate::vocabulary::window::WindowFunction;

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
            window_frame: frame(&window.frame),
            filter,
            null_treatment: None,
            distinct: false,
        },
    }))
}

fn frame(frame: &Frame) -> WindowFrame {
    let units = match frame.units {
        ast::WindowFrameUnits::Rows => WindowFrameUnits::Rows,
        ast::WindowFrameUnits::Range => WindowFrameUnits::Range,
        ast::WindowFrameUnits::Groups => WindowFrameUnits::Groups,
    };
    let offset = |offset: Option<u64>| match (units, offset) {
        // An offset of RANGE has the type of the sort column, whose integers are all 64 bits wide.
        (WindowFrameUnits::Range, Some(offset)) => ScalarValue::Int64(Some(offset as i64)),
        (_, offset) => ScalarValue::UInt64(offset),
    };
    let bound = |bound| match bound {
        FrameBound::CurrentRow => WindowFrameBound::CurrentRow,
        FrameBound::Preceding(by) => WindowFrameBound::Preceding(offset(by)),
        FrameBound::Following(by) => WindowFrameBound::Following(offset(by)),
    };
    WindowFrame::new_bounds(units, bound(frame.start), bound(frame.end))
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
