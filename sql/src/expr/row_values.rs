//! Tests of row constructors: `(a, b) < (c, d)`, `(a, b) IN ((1, 2), (3, 4))`, `(a, b) IS NULL`.
//!
//! Each is rewritten to tests of the single values, which treat NULLs as PostgreSQL does.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::bind::{Binder, Bound};
use super::operators::binary;
use super::{Binary, Expr, Unary};
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// Returns the values of a row constructor.
fn row(ast: &ast::Expr) -> Option<Vec<&ast::Expr>> {
    match ast {
        ast::Expr::Nested(inner) => row(inner),
        ast::Expr::Tuple(values) => Some(values.iter().collect()),
        ast::Expr::Function(function) if is_row(function) => {
            let ast::FunctionArguments::List(list) = &function.args else { return None };
            list.args.iter().map(value).collect()
        }
        _ => None,
    }
}

fn value(arg: &ast::FunctionArg) -> Option<&ast::Expr> {
    match arg {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(value)) => Some(value),
        _ => None,
    }
}

/// Whether a call is the keyword ROW.
pub(super) fn is_row(function: &ast::Function) -> bool {
    matches!(&function.name.0[..], [ast::ObjectNamePart::Identifier(name)]
        if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("row"))
}

fn unequal() -> SqlError {
    SqlError::new(code::SYNTAX, "unequal number of entries in row expressions")
}

/// Combines tests with AND or OR.
fn folded(op: Binary, tests: Vec<Expr>) -> Expr {
    let nothing = Expr::Const(Datum::Bool(op == Binary::And));
    tests.into_iter().reduce(|all, test| binary(op, all, test)).unwrap_or(nothing)
}

impl Binder<'_> {
    /// Binds a test of row constructors; `None` if the expression is not one.
    pub(super) fn row_test(
        &mut self,
        ast: &ast::Expr,
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        use ast::Expr as A;
        let test = match ast {
            A::BinaryOp { left, op, right } => {
                super::operators::comparison(op)?;
                let (left, right) = (row(left)?, row(right)?);
                self.compared_rows(&left, op, &right, location)
            }
            A::IsDistinctFrom(left, right) | A::IsNotDistinctFrom(left, right) => {
                let is_negated = matches!(ast, A::IsNotDistinctFrom(..));
                let (left, right) = (row(left)?, row(right)?);
                self.distinct_rows(&left, &right, is_negated, location)
            }
            A::IsNull(operand) | A::IsNotNull(operand) => {
                let is_negated = matches!(ast, A::IsNotNull(_));
                let values = row(operand)?;
                self.null_row(&values, is_negated)
            }
            A::InList { expr, list, negated } => {
                let operand = row(expr)?;
                let rows = list.iter().map(row).collect::<Option<Vec<_>>>()?;
                self.row_in(&operand, &rows, *negated, location)
            }
            _ => return None,
        };
        Some(match test {
            Ok(test) => Ok(Bound::new(test, SqlType::Bool, location)),
            Err(error) => Err(self.error_at(error, location)),
        })
    }

    fn compared_rows(
        &mut self,
        left: &[&ast::Expr],
        op: &ast::BinaryOperator,
        right: &[&ast::Expr],
        location: Location,
    ) -> Result<Expr, SqlError> {
        use ast::BinaryOperator as O;
        if left.len() != right.len() {
            return Err(unequal());
        }
        let mut compare =
            |a: &ast::Expr, op: &O, b: &ast::Expr| Ok(self.binary(a, op, b, location)?.expr);
        if let O::Eq | O::NotEq = op {
            let fold = if *op == O::Eq { Binary::And } else { Binary::Or };
            let tests = left.iter().zip(right).map(|(a, b)| compare(a, op, b));
            return Ok(folded(fold, tests.collect::<Result<_, SqlError>>()?));
        }
        // The first pair of different values decides. The condition is built from the last pair
        // outwards.
        let strict = if matches!(op, O::Lt | O::LtEq) { O::Lt } else { O::Gt };
        let mut decided: Option<Expr> = None;
        for (a, b) in left.iter().zip(right).rev() {
            decided = Some(match decided {
                None => compare(a, op, b)?,
                Some(rest) => {
                    let is_same = binary(Binary::And, compare(a, &O::Eq, b)?, rest);
                    binary(Binary::Or, compare(a, &strict, b)?, is_same)
                }
            });
        }
        decided.ok_or_else(|| SqlError::unsupported("a comparison of rows without values"))
    }

    fn distinct_rows(
        &mut self,
        left: &[&ast::Expr],
        right: &[&ast::Expr],
        is_negated: bool,
        location: Location,
    ) -> Result<Expr, SqlError> {
        if left.len() != right.len() {
            return Err(unequal());
        }
        let fold = if is_negated { Binary::And } else { Binary::Or };
        let tests = left.iter().zip(right);
        let tests = tests.map(|(a, b)| Ok(self.distinct(a, b, is_negated, location)?.expr));
        Ok(folded(fold, tests.collect::<Result<_, SqlError>>()?))
    }

    /// Whether all values of a row are NULL, or, if negated, all are not NULL.
    fn null_row(&mut self, values: &[&ast::Expr], is_negated: bool) -> Result<Expr, SqlError> {
        let mut tests = Vec::with_capacity(values.len());
        for value in values {
            let operand = Box::new(self.bind(value)?.expr);
            tests.push(Expr::Unary(Unary::IsNull { is_negated }, operand));
        }
        Ok(folded(Binary::And, tests))
    }

    fn row_in(
        &mut self,
        operand: &[&ast::Expr],
        rows: &[Vec<&ast::Expr>],
        is_negated: bool,
        location: Location,
    ) -> Result<Expr, SqlError> {
        let equal = ast::BinaryOperator::Eq;
        let tests = rows.iter().map(|row| self.compared_rows(operand, &equal, row, location));
        let found = folded(Binary::Or, tests.collect::<Result<_, _>>()?);
        Ok(if is_negated { Expr::Unary(Unary::Not, Box::new(found)) } else { found })
    }
}
