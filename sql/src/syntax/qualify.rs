//! Renames relations in trees: adds schemas to names or removes them.

use std::ops::ControlFlow;

use sqlparser::ast::{self, VisitMut, VisitorMut};

use super::walk::walk_mut;
use super::{Written, name, name_from_text, name_parts, quoted};
use crate::error::{Failure, SqlError};

/// Returns the new name of a relation, or `None` if it keeps its name.
pub(crate) type Renaming<'a> = dyn FnMut(&Written) -> Result<Option<Written>, Failure> + 'a;

/// Renames the relations of a tree, and the sequences that calls in it name.
///
/// # Errors
/// The errors of the renaming; 0A000 if WITH gives something else a name that would be renamed.
pub(crate) fn qualify(
    tree: &mut impl VisitMut,
    renaming: &mut Renaming<'_>,
) -> Result<(), Failure> {
    let mut qualify = Qualify { renaming, named: Vec::new(), outcome: Ok(()) };
    let _ = walk_mut(tree, &mut qualify);
    qualify.outcome
}

struct Qualify<'a, 'r> {
    renaming: &'a mut Renaming<'r>,
    /// The names in the WITH clause of each enclosing query.
    named: Vec<Vec<String>>,
    /// An error ends the walk.
    outcome: Result<(), Failure>,
}

impl Qualify<'_, '_> {
    fn renamed(&mut self, written: &Written) -> Result<Option<Written>, Failure> {
        let is_of_with = written.schema.is_none()
            && self.named.iter().any(|names| names.contains(&written.name));
        match (self.renaming)(written)? {
            Some(_) if is_of_with => {
                let name = &written.name;
                let feature = format!("a view in which {name} is both a relation and a WITH query");
                Err(SqlError::unsupported(feature).into())
            }
            // Without its schema it would refer to the WITH query of this name.
            Some(renamed)
                if renamed.schema.is_none()
                    && self.named.iter().any(|names| names.contains(&renamed.name)) =>
            {
                Ok(None)
            }
            renamed => Ok(renamed),
        }
    }

    fn continue_after(&mut self, outcome: Result<(), Failure>) -> ControlFlow<()> {
        self.outcome = outcome;
        if self.outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn factor(&mut self, object: &mut ast::ObjectName) -> Result<(), Failure> {
        let written = match &name_parts(object).unwrap_or_default()[..] {
            [name] => Written::plain(name),
            [schema, name] => Written { schema: Some(schema.clone()), name: name.clone() },
            _ => return Ok(()),
        };
        if let Some(renamed) = self.renamed(&written)? {
            let parts = renamed.schema.iter().chain([&renamed.name]);
            *object = ast::ObjectName::from(parts.map(|part| ident(part)).collect::<Vec<_>>());
        }
        Ok(())
    }

    fn sequence(&mut self, function: &mut ast::Function) -> Result<(), Failure> {
        let parts = name_parts(&function.name).unwrap_or_default();
        let is_of_sequence =
            |name: &String| ["nextval", "currval", "setval"].contains(&name.as_str());
        if !parts.last().is_some_and(is_of_sequence) {
            return Ok(());
        }
        let ast::FunctionArguments::List(list) = &mut function.args else { return Ok(()) };
        let Some(ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr))) =
            list.args.first_mut()
        else {
            return Ok(());
        };
        if let Some(text) = literal(expr)
            && let Ok(written) = name_from_text(text)
            && let Some(renamed) = (self.renaming)(&written)?
        {
            let parts: Vec<String> =
                renamed.schema.iter().chain([&renamed.name]).map(|part| quoted(part)).collect();
            *text = parts.join(".");
        }
        Ok(())
    }
}

impl VisitorMut for Qualify<'_, '_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
        let tables = query.with.iter().flat_map(|with| &with.cte_tables);
        self.named.push(tables.map(|table| name(&table.alias.name)).collect());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut ast::Query) -> ControlFlow<()> {
        self.named.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut ast::TableFactor) -> ControlFlow<()> {
        let ast::TableFactor::Table { name: object, args: None, .. } = factor else {
            return ControlFlow::Continue(());
        };
        let outcome = self.factor(object);
        self.continue_after(outcome)
    }

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        let ast::Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let outcome = self.sequence(function);
        self.continue_after(outcome)
    }
}

/// Returns the text that names a sequence.
fn literal(expr: &mut ast::Expr) -> Option<&mut String> {
    match expr {
        ast::Expr::Nested(inner) | ast::Expr::Cast { expr: inner, .. } => literal(inner),
        ast::Expr::Value(value) => match &mut value.value {
            ast::Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn ident(name: &str) -> ast::Ident {
    match quoted(name).starts_with('"') {
        true => ast::Ident::with_quote('"', name),
        false => ast::Ident::new(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qualified(text: &str) -> Result<String, Failure> {
        let mut statement = super::super::parse(text)?[0].ast.as_ref().clone();
        let mut to_s = |written: &Written| {
            let is_ours = written.schema.is_none() && written.name != "other";
            let name = written.name.clone();
            Ok(is_ours.then(|| Written { schema: Some("S".to_owned()), name }))
        };
        qualify(&mut statement, &mut to_s)?;
        Ok(statement.to_string())
    }

    #[test]
    fn relations_and_sequences_get_their_schemas_wherever_they_stand() {
        let text = "SELECT t.a, nextval('q'::regclass), (SELECT max(x) FROM u) \
                    FROM t, a.t AS o, other WHERE EXISTS (SELECT FROM t AS i)";
        let expected = "SELECT t.a, nextval('\"S\".q'::REGCLASS), (SELECT max(x) FROM \"S\".u) \
                        FROM \"S\".t, a.t AS o, other WHERE EXISTS (SELECT FROM \"S\".t AS i)";
        assert_eq!(qualified(text).unwrap(), expected);
        let with = "WITH other AS (SELECT 1) SELECT * FROM other";
        assert_eq!(qualified(with).unwrap(), with);
        assert!(qualified("WITH t AS (SELECT 1) SELECT * FROM t").is_err());
    }
}
