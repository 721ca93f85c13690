//! Planning of `SET (a, b) = ..` as an assignment to each column.

use sqlparser::ast;

use super::Planner;
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::Scope;
use crate::syntax;

impl Planner<'_> {
    /// Splits row assignments: `(a, b) = (1, 2)` becomes two. A subquery runs once for each column.
    pub(super) fn one_by_one(
        &mut self,
        assignments: &[ast::Assignment],
        scope: &Scope,
    ) -> Result<Vec<ast::Assignment>, Failure> {
        let mut all = Vec::with_capacity(assignments.len());
        for assignment in assignments {
            let ast::AssignmentTarget::Tuple(names) = &assignment.target else {
                all.push(assignment.clone());
                continue;
            };
            let values = self.values_of(&assignment.value, names.len(), scope)?;
            if names.len() != values.len() {
                let message = "number of columns does not match number of values";
                let location = syntax::expr_location(&assignment.value);
                return Err(self.error_at(SqlError::new(code::SYNTAX, message), location));
            }
            all.extend(names.iter().zip(values).map(|(name, value)| ast::Assignment {
                target: ast::AssignmentTarget::ColumnName(name.clone()),
                value,
            }));
        }
        Ok(all)
    }

    /// Returns the values of the assigned row.
    fn values_of(
        &mut self,
        value: &ast::Expr,
        width: usize,
        scope: &Scope,
    ) -> Result<Vec<ast::Expr>, Failure> {
        match value {
            ast::Expr::Tuple(values) => Ok(values.clone()),
            ast::Expr::Subquery(query) => {
                self.outer.push(scope.clone());
                let planned = self.nested(query);
                self.outer.pop();
                let (_, columns) = planned?;
                if columns.len() != width {
                    return Ok(Vec::new());
                }
                let one = |at| ast::Expr::Subquery(Box::new(column_of(query, at, width)));
                Ok((0..width).map(one).collect())
            }
            ast::Expr::Function(call) => match row_of(call) {
                Some(values) => Ok(values),
                None => Err(self.no_row(value)),
            },
            _ => Err(self.no_row(value)),
        }
    }

    fn no_row(&self, value: &ast::Expr) -> Failure {
        let message =
            "source for a multiple-column UPDATE item must be a sub-SELECT or ROW() expression";
        let error = SqlError::new(code::FEATURE_NOT_SUPPORTED, message);
        self.error_at(error, syntax::expr_location(value))
    }
}

/// Returns the values of `ROW(..)`.
fn row_of(call: &ast::Function) -> Option<Vec<ast::Expr>> {
    let [part] = &call.name.0[..] else { return None };
    let ident = part.as_ident()?;
    let ast::FunctionArguments::List(list) = &call.args else { return None };
    if ident.quote_style.is_some() || !ident.value.eq_ignore_ascii_case("row") {
        return None;
    }
    let value = |arg: &ast::FunctionArg| match arg {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().map(value).collect()
}

/// Returns a query for one column of a query.
fn column_of(query: &ast::Query, at: usize, width: usize) -> ast::Query {
    let mut one = query.clone();
    if let ast::SetExpr::Select(select) = &mut *one.body
        && query.order_by.is_none()
        && select.distinct.is_none()
        && select.projection.len() == width
        && select.projection.iter().all(is_value)
    {
        select.projection = vec![select.projection.swap_remove(at)];
        return one;
    }
    let names: Vec<String> = (0..width).map(|at| format!("c{at}")).collect();
    let text = format!("select {} from (select 1) assigned ({})", names[at], names.join(", "));
    let mut around = super::views::parsed(&text).expect("it is a query");
    if let ast::SetExpr::Select(select) = &mut *around.body
        && let ast::TableFactor::Derived { subquery, .. } = &mut select.from[0].relation
    {
        **subquery = one;
    }
    *around
}

fn is_value(item: &ast::SelectItem) -> bool {
    matches!(item, ast::SelectItem::UnnamedExpr(_) | ast::SelectItem::ExprWithAlias { .. })
}
