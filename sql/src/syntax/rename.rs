//! Texts of queries in which a table has another name.

use std::ops::ControlFlow;

use sqlparser::ast::{self, VisitMut, VisitorMut};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use super::{name, quoted};
use crate::error::{SqlError, code};

/// A query in which one table has another name, and the old one as its alias.
///
/// # Errors
/// When WITH calls something else by the name, or the text is no query.
pub(crate) fn renamed(text: &str, old: &str, new: &str) -> Result<String, SqlError> {
    let malformed = || SqlError::new(code::INTERNAL, format!("a view without a query: {text}"));
    let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, text).map_err(|_| malformed())?;
    let Some(ast::Statement::Query(query)) = statements.first_mut() else {
        return Err(malformed());
    };
    let mut rename = Rename { old, new };
    if query.visit(&mut rename).is_break() {
        let feature = format!("a new name for a table that a view calls {old} in WITH too");
        return Err(SqlError::unsupported(feature));
    }
    Ok(query.to_string())
}

struct Rename<'a> {
    old: &'a str,
    new: &'a str,
}

impl VisitorMut for Rename<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
        let tables = query.with.iter().flat_map(|with| &with.cte_tables);
        let mut names = tables.map(|table| name(&table.alias.name));
        if names.any(|name| name == self.old) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn pre_visit_table_factor(&mut self, factor: &mut ast::TableFactor) -> ControlFlow<()> {
        let ast::TableFactor::Table { name: object, alias, args: None, .. } = factor else {
            return ControlFlow::Continue(());
        };
        let parts = super::name_parts(object).unwrap_or_default();
        let is_it = match &parts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [table] | ["public", table] => *table == self.old,
            _ => false,
        };
        if is_it {
            let ident = |name: &str| match quoted(name).starts_with('"') {
                true => ast::Ident::with_quote('"', name),
                false => ast::Ident::new(name),
            };
            *object = ast::ObjectName::from(vec![ident(self.new)]);
            alias.get_or_insert_with(|| ast::TableAlias {
                explicit: true,
                name: ident(self.old),
                columns: Vec::new(),
                at: None,
            });
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_its_old_name_as_an_alias() {
        let text = "SELECT t.id, (SELECT max(x) FROM public.t AS o) FROM t JOIN s ON t.id = s.t";
        let expected = "SELECT t.id, (SELECT max(x) FROM \"New one\" AS o) \
                        FROM \"New one\" AS t JOIN s ON t.id = s.t";
        assert_eq!(renamed(text, "t", "New one").unwrap(), expected);
        assert!(renamed("WITH t AS (SELECT 1) SELECT * FROM t", "t", "u").is_err());
    }
}
