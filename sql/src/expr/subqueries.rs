//! Binding of subqueries. The planner has planned them already.

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::bind::{Binder, Bound, Nested};
use super::{Comparison, Expr, Unary, cast, operators};
use crate::error::{SqlError, code};
use crate::expr::query::{Shape, Split, Subquery, SubqueryKind};
use crate::types::{ColumnType, SqlType};

impl Binder<'_> {
    /// Binds `(SELECT ..)`, `EXISTS (SELECT ..)` and `x IN (SELECT ..)`.
    pub(super) fn subquery(
        &mut self,
        ast: &ast::Expr,
        location: Location,
    ) -> Result<Bound, SqlError> {
        match ast {
            ast::Expr::Subquery(query) => {
                let nested = self.nested(query, location)?;
                let ty = self.one_column(&nested, location)?;
                let expr = self.made(SubqueryKind::Scalar, nested, ty.base);
                Ok(Bound { expr, ty, location })
            }
            ast::Expr::Exists { subquery, negated } => {
                let nested = self.nested(subquery, location)?;
                let expr = self.made(SubqueryKind::Exists, nested, SqlType::Bool);
                Ok(negated_if(*negated, expr, location))
            }
            ast::Expr::InSubquery { expr, subquery, negated } => {
                let found = self.compared(expr, Comparison::Equal, false, subquery, location)?;
                Ok(negated_if(*negated, found.expr, location))
            }
            other => unreachable!("{other} holds no query"),
        }
    }

    /// Binds `ARRAY(SELECT ..)`.
    pub(super) fn array_of_rows(
        &mut self,
        query: &ast::Query,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let nested = self.nested(query, location)?;
        let ty = self.one_column(&nested, location)?;
        let base = super::arrays::array_of(ty.base)?;
        let expr = self.made(SubqueryKind::Array(base), nested, base);
        Ok(Bound::new(expr, base, location))
    }

    /// Binds `x < ANY (SELECT ..)` and `x <> ALL (SELECT ..)`; `None` if the right side is an
    /// array.
    pub(super) fn any_or_all(
        &mut self,
        ast: &ast::Expr,
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        let (left, op, right, is_all) = match ast {
            ast::Expr::AnyOp { left, compare_op, right, .. } => (left, compare_op, right, false),
            ast::Expr::AllOp { left, compare_op, right } => (left, compare_op, right, true),
            _ => return None,
        };
        let ast::Expr::Subquery(query) = &**right else { return None };
        let Some(op) = operators::comparison(op) else {
            let feature = format!("operator {op} with ANY or ALL of a query");
            return Some(Err(self.error_at(SqlError::unsupported(feature), location)));
        };
        Some(self.compared(left, op, is_all, query, location))
    }

    fn compared(
        &mut self,
        left: &ast::Expr,
        op: Comparison,
        is_all: bool,
        query: &ast::Query,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let left = match left {
            ast::Expr::Tuple(list) => &list[..],
            ast::Expr::Nested(inner) => match &**inner {
                ast::Expr::Tuple(list) => &list[..],
                _ => std::slice::from_ref(left),
            },
            _ => std::slice::from_ref(left),
        };
        if left.len() > 1 && !matches!(op, Comparison::Equal | Comparison::NotEqual) {
            let feature = format!("rows compared with {op:?}");
            return Err(self.error_at(SqlError::unsupported(feature), location));
        }
        let mut nested = self.nested(query, location)?;
        if nested.columns.len() != left.len() {
            let few = if nested.columns.len() > left.len() { "many" } else { "few" };
            let message = format!("subquery has too {few} columns");
            return Err(self.error_at(SqlError::new(code::SYNTAX, message), location));
        }
        let mut operands = Vec::with_capacity(left.len());
        let mut types = Vec::with_capacity(left.len());
        for (ast, column) in left.iter().zip(&nested.columns) {
            let bound = self.bind(ast)?;
            let common = match cast::common(bound.base(), column.base) {
                Some(SqlType::Unknown) => SqlType::Text,
                Some(common) if common.element().unwrap_or(common) != SqlType::Json => common,
                _ => {
                    let (a, b) = (bound.base(), column.base);
                    return Err(self.no_operator("=", a, b, location));
                }
            };
            operands.push((self.coerce(bound, common)?.expr, common));
            types.push(common);
        }
        let query = Arc::unwrap_or_clone(nested.query).with_types(&types)?;
        nested.query = Arc::new(query);
        if let Shape::Rows(split) = &nested.shape {
            // The columns of the join are converted too. The columns that its conditions name come
            // after them.
            let Split { query, conditions } = split.as_ref().clone();
            let all: Vec<SqlType> =
                types.iter().chain(&query.types[types.len()..]).copied().collect();
            let query = query.with_types(&all)?;
            nested.shape = Shape::Rows(Arc::new(Split { query, conditions }));
        }
        let kind = SubqueryKind::Quantified { op, is_all, operands };
        Ok(Bound::new(self.made(kind, nested, SqlType::Bool), SqlType::Bool, location))
    }

    /// Returns the planned subquery.
    fn nested(&self, query: &ast::Query, location: Location) -> Result<Nested, SqlError> {
        let place = std::ptr::from_ref(query).addr();
        let found = self.nested.iter().find(|nested| nested.place == place);
        found.cloned().ok_or_else(|| {
            let message = "cannot use subquery in this place";
            self.error_at(SqlError::new(code::FEATURE_NOT_SUPPORTED, message), location)
        })
    }

    fn one_column(&self, nested: &Nested, location: Location) -> Result<ColumnType, SqlError> {
        match &nested.columns[..] {
            [column] => Ok(*column),
            _ => {
                let message = "subquery must return only one column";
                Err(self.error_at(SqlError::new(code::SYNTAX, message), location))
            }
        }
    }

    /// Returns the expression of a subquery, with the columns that it references in this query and
    /// in outer queries.
    fn made(&mut self, kind: SubqueryKind, nested: Nested, base: SqlType) -> Expr {
        let Nested { query, refs, shape, .. } = nested;
        let mut named = Vec::with_capacity(refs.len());
        for (id, base) in refs {
            let own = self.scope.columns.iter().position(|column| column.id == id);
            let expr = match own {
                Some(at) => Expr::Column(at),
                None => {
                    if !self.params.outer.contains(&(id, base)) {
                        self.params.outer.push((id, base));
                    }
                    Expr::Outer(id, base)
                }
            };
            named.push((id, base, expr));
        }
        Expr::Subquery(Box::new(Subquery { kind, query, refs: named, base, shape }))
    }
}

fn negated_if(is_negated: bool, expr: Expr, location: Location) -> Bound {
    let expr = if is_negated { Expr::Unary(Unary::Not, Box::new(expr)) } else { expr };
    Bound::new(expr, SqlType::Bool, location)
}
