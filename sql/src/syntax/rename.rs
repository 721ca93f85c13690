//! Renames a table in the text of a query.

use std::ops::ControlFlow;
use std::sync::Arc;

use sqlparser::ast::{self, VisitorMut};

use super::name;
use super::qualify::ident;
use super::walk::walk_mut;
use crate::catalog::QualifiedName;
use crate::error::{SqlError, code};

/// Returns a query in which one table is renamed, and has its old name as its alias.
///
/// # Errors
/// If WITH gives something else the old name, or the text is not a query.
pub(crate) fn renamed(
    text: &str,
    old: &QualifiedName,
    new: &QualifiedName,
) -> Result<String, SqlError> {
    // Parsed like a client's text. Otherwise a long chain of conditions would be a deep tree.
    let parsed = super::parse(text)?.into_iter().next();
    let mut statement = parsed.map(|parsed| Arc::unwrap_or_clone(parsed.ast));
    let Some(ast::Statement::Query(query)) = &mut statement else {
        return Err(SqlError::new(code::INTERNAL, "a view without a query"));
    };
    let mut rename = Rename { old, new };
    if walk_mut(query, &mut rename).is_break() {
        let feature =
            format!("renaming a table if a view that uses it has a WITH query named {old}");
        return Err(SqlError::unsupported(feature));
    }
    Ok(query.to_string())
}

/// Returns whether a text contains a word, as a name or a keyword, in any case.
pub(crate) fn names_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let (text, word) = (text.to_lowercase(), word.to_lowercase());
    text.match_indices(&word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

struct Rename<'a> {
    old: &'a QualifiedName,
    new: &'a QualifiedName,
}

impl VisitorMut for Rename<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
        let tables = query.with.iter().flat_map(|with| &with.cte_tables);
        let mut names = tables.map(|table| name(&table.alias.name));
        if names.any(|name| name == self.old.name()) {
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
            [table] => *self.old == QualifiedName::public(table),
            [schema, table] => *self.old == QualifiedName::new(schema, table),
            _ => false,
        };
        if is_it {
            // A name with a schema cannot refer to a WITH query.
            let parts = vec![ident(self.new.schema()), ident(self.new.name())];
            *object = ast::ObjectName::from(parts);
            alias.get_or_insert_with(|| ast::TableAlias {
                explicit: true,
                name: ident(self.old.name()),
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
        let expected = "SELECT t.id, (SELECT max(x) FROM public.\"New one\" AS o) \
                        FROM public.\"New one\" AS t JOIN s ON t.id = s.t";
        let [t, new] = ["t", "New one"].map(QualifiedName::public);
        assert_eq!(renamed(text, &t, &new).unwrap(), expected);
        assert!(renamed("WITH t AS (SELECT 1) SELECT * FROM t", &t, &new).is_err());
    }
}
