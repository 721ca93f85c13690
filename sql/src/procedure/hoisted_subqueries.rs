//! Subqueries lifted out of an expression: they run before it, and it refers to their values.
//!
//! ```text
//!   n + (SELECT max(id) FROM t)    ->    n + "query 0",  after  SELECT max(id) FROM t
//! ```
//!
//! A lifted query cannot refer to a column of the expression, which has none. Every replica may be
//! able to run the lifted query even if it cannot run the whole expression. A subquery that may not
//! be evaluated, as in a branch of CASE, is not lifted.

use std::sync::Arc;

use sqlparser::ast;

use super::body::Visible;
use super::fragment::Fragment;
use crate::error::SqlError;
use crate::syntax::{self, Parsed};

/// A subquery that runs on its own.
#[derive(Debug)]
pub(crate) struct Lifted {
    /// The name that replaces it in the expression; the body cannot declare this name.
    pub name: String,
    pub is: Is,
    pub fragment: Fragment,
}

/// The result that the expression needs of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    /// Its value.
    Value,
    /// Whether it has rows.
    There,
    /// Whether it has no rows.
    Missing,
}

/// Lifts the subqueries out of an expression.
///
/// # Errors
/// Only those that the expression itself would cause.
pub(super) fn lift(parsed: &mut Parsed, visible: &Arc<[Visible]>) -> Result<Vec<Lifted>, SqlError> {
    let mut lifter = Lifter { found: Vec::new() };
    for item in items(Arc::make_mut(&mut parsed.ast)) {
        if let ast::SelectItem::UnnamedExpr(expr) = item {
            lifter.lift(expr);
        }
    }
    let lifted = lifter.found.into_iter().enumerate().map(|(at, (is, text))| {
        let mut parsed = syntax::parse(&text)?;
        let parsed = parsed.pop().expect("a query");
        let fragment = Fragment::statement(parsed, visible.clone())?;
        Ok(Lifted { name: name(at), is, fragment })
    });
    lifted.collect()
}

fn name(at: usize) -> String {
    format!("query {at}")
}

/// Returns the expressions of a query that has only a target list.
fn items(statement: &mut ast::Statement) -> &mut [ast::SelectItem] {
    let ast::Statement::Query(query) = statement else { return &mut [] };
    let is_plain = query.with.is_none() && query.order_by.is_none();
    let ast::SetExpr::Select(select) = &mut *query.body else { return &mut [] };
    match is_plain && select.from.is_empty() && select.selection.is_none() {
        true => &mut select.projection,
        false => &mut [],
    }
}

struct Lifter {
    found: Vec<(Is, String)>,
}

impl Lifter {
    /// Visits the parts of an expression that are evaluated regardless of the values of other
    /// parts.
    fn lift(&mut self, expr: &mut ast::Expr) {
        use ast::Expr as A;
        let (is, query) = match expr {
            A::Subquery(query) => (Is::Value, query),
            A::Exists { subquery, negated: false } => (Is::There, subquery),
            A::Exists { subquery, negated: true } => (Is::Missing, subquery),
            A::BinaryOp { left, op, right } => {
                self.lift(left);
                if !matches!(op, ast::BinaryOperator::And | ast::BinaryOperator::Or) {
                    self.lift(right);
                }
                return;
            }
            A::Nested(inner)
            | A::UnaryOp { expr: inner, .. }
            | A::Cast { expr: inner, .. }
            | A::IsNull(inner)
            | A::IsNotNull(inner)
            | A::IsTrue(inner)
            | A::IsNotTrue(inner)
            | A::IsFalse(inner)
            | A::IsNotFalse(inner) => return self.lift(inner),
            _ => return,
        };
        let is_whole = query.limit_clause.is_none() && query.fetch.is_none();
        if is != Is::Value && is_whole {
            // EXISTS needs only one row.
            let one = ast::Value::Number("1".to_owned(), false).with_empty_span();
            query.limit_clause = Some(ast::LimitClause::LimitOffset {
                limit: Some(A::Value(one)),
                offset: None,
                limit_by: Vec::new(),
            });
        }
        let text = query.to_string();
        *expr = A::Identifier(ast::Ident::with_quote('"', name(self.found.len())));
        self.found.push((is, text));
    }
}
