//! Conversion of DataFusion conditions to expressions over the columns of a relation.
//!
//! Conditions that DataFusion pushes down to a scan are converted back, so that a key or an index
//! can serve them. Conditions of other shapes remain in DataFusion.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{BinaryExpr, Expr as Logical, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr as PhysicalBinary, Column as PhysicalColumn, InListExpr, Literal,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::function::{Computed, KeyOf};
use super::values::datum;
use crate::expr::arrays::{ArrayFunction, Test};
use crate::expr::functions::Function;
use crate::expr::{Binary, Comparison, Expr, Unary};
use crate::keys;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// Converts a condition over columns of these types; `None` if that is not possible.
pub(super) fn ours(frame: &Logical, types: &[SqlType]) -> Option<Expr> {
    match frame {
        Logical::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::And | Operator::Or => {
                let op = if *op == Operator::And { Binary::And } else { Binary::Or };
                let (left, right) = (ours(left, types)?, ours(right, types)?);
                Some(Expr::Binary(op, Box::new(left), Box::new(right)))
            }
            op => {
                let comparison = comparison(*op)?;
                let base = type_of(left, types).or_else(|| type_of(right, types))?;
                let (left, right) = (value(left, base)?, value(right, base)?);
                let op = Binary::Compare(comparison, base);
                Some(Expr::Binary(op, Box::new(left), Box::new(right)))
            }
        },
        Logical::Not(inner) => Some(unary(Unary::Not, ours(inner, types)?)),
        Logical::IsNull(inner) => test(inner, false, types),
        Logical::IsNotNull(inner) => test(inner, true, types),
        Logical::InList(list) => {
            let base = type_of(&list.expr, types)?;
            let operand = Box::new(value(&list.expr, base)?);
            let items = list.list.iter().map(|item| value(item, base));
            let list_of = items.collect::<Option<Vec<Expr>>>()?;
            Some(Expr::In { operand, list: list_of, is_negated: list.negated })
        }
        Logical::Column(_) | Logical::ScalarFunction(_) | Logical::Literal(..) => {
            value(frame, SqlType::Bool)
        }
        _ => None,
    }
}

fn unary(op: Unary, operand: Expr) -> Expr {
    Expr::Unary(op, Box::new(operand))
}

fn test(inner: &Logical, is_negated: bool, types: &[SqlType]) -> Option<Expr> {
    let base = type_of(inner, types)?;
    Some(unary(Unary::IsNull { is_negated }, value(inner, base)?))
}

fn comparison(op: Operator) -> Option<Comparison> {
    Some(match op {
        Operator::Eq => Comparison::Equal,
        Operator::NotEq => Comparison::NotEqual,
        Operator::Lt => Comparison::Less,
        Operator::LtEq => Comparison::LessOrEqual,
        Operator::Gt => Comparison::Greater,
        Operator::GtEq => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

/// Returns the position of a column, which is part of its name.
fn place(name: &str) -> Option<usize> {
    name.rsplit_once('c')?.1.parse().ok()
}

fn type_of(frame: &Logical, types: &[SqlType]) -> Option<SqlType> {
    match frame {
        Logical::Column(column) => types.get(place(&column.name)?).copied(),
        Logical::ScalarFunction(call) => {
            let function = call.func.inner();
            if let Some(key) = function.downcast_ref::<KeyOf>() {
                return Some(key.base);
            }
            function.downcast_ref::<Computed>().map(|computed| computed.base)
        }
        _ => None,
    }
}

fn value(frame: &Logical, base: SqlType) -> Option<Expr> {
    match frame {
        Logical::Column(column) => place(&column.name).map(Expr::Column),
        Logical::Literal(scalar, _) => constant(base, scalar).map(Expr::Const),
        Logical::ScalarFunction(call) => {
            let function = call.func.inner();
            if function.downcast_ref::<KeyOf>().is_some() {
                return value(&call.args[0], base);
            }
            let computed = function.downcast_ref::<Computed>()?;
            let args = call.args.iter().zip(&computed.args);
            let args = args.map(|(arg, base)| value(arg, *base));
            let args = args.collect::<Option<Vec<Expr>>>()?;
            let placed = computed.expr.clone().rewrite::<()>(&mut |part| {
                Ok(match part {
                    Expr::Column(at) => Some(args[*at].clone()),
                    _ => None,
                })
            });
            placed.ok()
        }
        _ => None,
    }
}

/// Returns a constant that is compared with values of a type. The constant may be the comparison
/// key of its value.
fn constant(base: SqlType, scalar: &ScalarValue) -> Option<Datum> {
    match scalar {
        ScalarValue::Binary(Some(bytes)) if !super::values::is_ordered(base) => {
            keys::decode([base], bytes).pop()
        }
        scalar => datum(base, scalar),
    }
}

/// The columns that a join's dynamic filter restricts once the other side is known, and their
/// possible combinations of values.
pub(super) type Wanted = (Vec<usize>, Vec<Vec<Datum>>);

/// Returns the values that a join's filter lets through, if the filter lists them.
pub(super) fn wanted(
    filter: &Arc<dyn PhysicalExpr>,
    projection: &[usize],
    types: &[SqlType],
) -> Option<Wanted> {
    if let Some(binary) = filter.downcast_ref::<PhysicalBinary>() {
        if *binary.op() != Operator::And {
            return None;
        }
        let left = wanted(binary.left(), projection, types);
        return left.or_else(|| wanted(binary.right(), projection, types));
    }
    let list = filter.downcast_ref::<InListExpr>().filter(|list| !list.negated())?;
    if let Some((column, base)) = key_column(list.expr(), projection, types) {
        let one = |item| Some(vec![constant(base, literal(item)?)?]);
        let values = list.list().iter().map(one).collect::<Option<Vec<_>>>()?;
        return Some((vec![column], values));
    }
    let call = list.expr().downcast_ref::<ScalarFunctionExpr>()?;
    if call.name() != "struct" {
        return None;
    }
    let parts = call.args().iter().map(|arg| key_column(arg, projection, types));
    let parts = parts.collect::<Option<Vec<_>>>()?;
    let tuple = |item| {
        let ScalarValue::Struct(row) = literal(item)? else { return None };
        let values = parts.iter().zip(row.columns()).map(|((_, base), column)| {
            constant(*base, &ScalarValue::try_from_array(column, 0).ok()?)
        });
        values.collect::<Option<Vec<Datum>>>()
    };
    let values = list.list().iter().map(tuple).collect::<Option<Vec<_>>>()?;
    Some((parts.into_iter().map(|(column, _)| column).collect(), values))
}

fn literal(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    expr.downcast_ref::<Literal>().map(Literal::value)
}

/// Returns the column that a join compares: directly, or by its comparison key.
fn key_column(
    expr: &Arc<dyn PhysicalExpr>,
    projection: &[usize],
    types: &[SqlType],
) -> Option<(usize, SqlType)> {
    if let Some(column) = expr.downcast_ref::<PhysicalColumn>() {
        let at = *projection.get(column.index())?;
        return Some((at, types[at]));
    }
    let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
    call.fun().inner().downcast_ref::<KeyOf>()?;
    key_column(call.args().first()?, projection, types)
}

/// Returns conditions that the columns have these values: one condition for a single column,
/// otherwise one for each combination.
pub(super) fn equal_to((columns, values): Wanted, types: &[SqlType]) -> Vec<Expr> {
    const ANY: Function = Function::Array(ArrayFunction::Quantified {
        test: Test::Compare(Comparison::Equal),
        is_all: false,
    });
    if let [column] = columns[..] {
        let list = values.into_iter().flatten().filter(|value| !value.is_null()).collect();
        return vec![Expr::Call(ANY, vec![Expr::Column(column), Expr::Const(Datum::array(list))])];
    }
    let equal = |(at, value): (&usize, Datum)| {
        let op = Binary::Compare(Comparison::Equal, types[*at]);
        Expr::Binary(op, Box::new(Expr::Column(*at)), Box::new(Expr::Const(value)))
    };
    let all = |row: Vec<Datum>| columns.iter().zip(row).map(equal).reduce(Expr::and);
    values.into_iter().filter_map(all).collect()
}
