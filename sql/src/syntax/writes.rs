//! Queries that write: the parser reads INSERT, UPDATE and DELETE after WITH as queries.

use sqlparser::ast;

/// Returns whether a query is a write after WITH.
pub(crate) fn is_write(query: &ast::Query) -> bool {
    use ast::SetExpr as S;
    matches!(&*query.body, S::Insert(_) | S::Update(_) | S::Delete(_) | S::Merge(_))
}

/// Returns whether the WITH clause of a query contains a write.
pub(crate) fn names_write(query: &ast::Query) -> bool {
    let mut named = query.with.iter().flat_map(|with| &with.cte_tables);
    named.any(|table| is_write(&table.query))
}
