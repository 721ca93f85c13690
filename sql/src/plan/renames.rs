//! Renaming of tables, columns, constraints, indexes and sequences.

use std::ops::ControlFlow;

use sqlparser::ast;
use sqlparser::parser::Parser;

use super::alter::Draft;
use super::constraints::refuse_duplicate;
use super::ddl::check_name;
use super::{Plan, Planner, RenameSequence};
use crate::authorization::Required;
use crate::catalog::role::Object;
use crate::catalog::{KeyTarget, QualifiedName};
use crate::error::{Failure, SqlError, code};
use crate::syntax::{self, Postgres};

/// Returns the name in RENAME TO.
pub(super) fn new_name(to: &ast::RenameTableNameKind) -> Result<String, SqlError> {
    let (ast::RenameTableNameKind::As(to) | ast::RenameTableNameKind::To(to)) = to;
    let written = syntax::table_name(to)?;
    check_name(&written.name)?;
    Ok(written.name)
}

/// Renames a table, also in its foreign keys to itself.
pub(super) fn table(draft: &mut Draft, to: &str) {
    let old = &draft.before.name;
    let name = old.beside(to);
    let after = &mut draft.after;
    after.name.clone_from(&name);
    let keys = after.foreign_keys.iter_mut().filter(|key| key.parent == *old);
    keys.for_each(|key| key.parent = name.clone());
    let own = after.children.iter_mut().filter(|child| **child == *old);
    own.for_each(|child| *child = name.clone());
}

impl Planner<'_> {
    /// Renames an index, and its constraint if it belongs to one.
    pub(super) fn rename_index(
        &mut self,
        command: &'static str,
        (name, table): (&QualifiedName, &QualifiedName),
        to: &str,
    ) -> Result<Plan, Failure> {
        self.own_index(table, name.name());
        let mut draft = Draft::new(self.table_named(table)?);
        let after = &mut draft.after;
        let names = after.indexes.iter_mut().map(|index| &mut index.name);
        let names = names.chain([&mut after.primary_key_name]);
        names.filter(|it| **it == name.name()).for_each(|it| to.clone_into(it));
        self.finish(command, draft)
    }

    pub(super) fn rename_sequence(
        &mut self,
        command: &'static str,
        name: QualifiedName,
        to: &str,
    ) -> Plan {
        self.required.push(Required::owner(Object::Sequence(name.clone())));
        let to = name.beside(to);
        Plan::utility(RenameSequence { command, name, to })
    }
}

/// Renames a column, also in all stored expressions that refer to it.
pub(super) fn column(draft: &mut Draft, old: &str, new: String) -> Result<(), Failure> {
    check_name(&new)?;
    let at = draft.after.position(old).ok_or_else(|| {
        SqlError::new(code::UNDEFINED_COLUMN, format!("column \"{old}\" does not exist"))
    })?;
    if draft.after.position(&new).is_some() {
        let table = &draft.after.name;
        let message = format!("column \"{new}\" of relation \"{table}\" already exists");
        return Err(SqlError::new(code::DUPLICATE_COLUMN, message).into());
    }
    let after = &mut draft.after;
    after.columns[at].name.clone_from(&new);
    let texts = after.checks.iter_mut().map(|check| &mut check.condition);
    let generated = after.columns.iter_mut().filter_map(|column| column.generated.as_mut());
    let indexes = after.indexes.iter_mut().flat_map(|index| {
        let keys = index.keys.iter_mut().filter_map(|key| match &mut key.target {
            KeyTarget::Expr(sql) => Some(sql),
            KeyTarget::Column(_) => None,
        });
        keys.chain(index.predicate.as_mut())
    });
    for text in texts.chain(generated).chain(indexes) {
        *text = renamed(text, old, &new)?;
    }
    Ok(())
}

/// Returns the text of an expression with a column renamed.
fn renamed(sql: &str, old: &str, new: &str) -> Result<String, SqlError> {
    let malformed = |error: &dyn std::fmt::Display| {
        SqlError::new(code::DATA_CORRUPTED, format!("expression {sql:?}: {error}"))
    };
    let mut parser = Parser::new(&Postgres).try_with_sql(sql).map_err(|error| malformed(&error))?;
    let mut expr = parser.parse_expr().map_err(|error| malformed(&error))?;
    let _ = ast::visit_expressions_mut(&mut expr, |expr| {
        let ident = match expr {
            ast::Expr::Identifier(ident) => Some(ident),
            ast::Expr::CompoundIdentifier(parts) => parts.last_mut(),
            _ => None,
        };
        if let Some(ident) = ident.filter(|ident| syntax::name(ident) == old) {
            *ident = ast::Ident::with_quote('"', new);
        }
        ControlFlow::<()>::Continue(())
    });
    Ok(expr.to_string())
}

/// Renames a constraint and its index.
pub(super) fn constraint(draft: &mut Draft, old: &str, new: String) -> Result<(), Failure> {
    check_name(&new)?;
    refuse_duplicate(&draft.after, &new)?;
    let after = &mut draft.after;
    if !after.constraint_names().any(|known| known == old) {
        let message = format!("constraint \"{old}\" for table \"{}\" does not exist", after.name);
        return Err(SqlError::new(code::UNDEFINED_OBJECT, message).into());
    }
    let indexes = after.indexes.iter_mut().filter(|index| index.is_constraint);
    let names = indexes
        .map(|index| &mut index.name)
        .chain(after.checks.iter_mut().map(|check| &mut check.name))
        .chain(after.foreign_keys.iter_mut().map(|key| &mut key.name))
        .chain([&mut after.primary_key_name]);
    names.filter(|name| **name == old).for_each(|name| name.clone_from(&new));
    Ok(())
}
