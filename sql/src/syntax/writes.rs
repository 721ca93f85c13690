//! Which queries write: the parser takes INSERT, UPDATE and DELETE for queries behind WITH.

use sqlparser::ast;

/// Whether a query is a write, behind WITH.
pub(crate) fn is_write(query: &ast::Query) -> bool {
    use ast::SetExpr as S;
    matches!(&*query.body, S::Insert(_) | S::Update(_) | S::Delete(_) | S::Merge(_))
}

/// Whether WITH names a write before a query.
pub(crate) fn names_write(query: &ast::Query) -> bool {
    let mut named = query.with.iter().flat_map(|with| &with.cte_tables);
    named.any(|table| is_write(&table.query))
}
