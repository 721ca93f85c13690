//! Planning of ALTER TABLE, CREATE INDEX and DROP INDEX: changes of a table's record.

use std::sync::Arc;

use sqlparser::ast;

use super::ddl::spread;
use super::{Alter, Change, Checked, DropTarget, Plan, Planner, refuse, renames};
use crate::access::path::{Path, Paths};
use crate::access::text;
use crate::catalog::{Index, QualifiedName, Relation, Sequence, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Params};
use crate::syntax;
use crate::syntax::sequences::sequence_of;

/// A change of a table that is being planned.
pub(super) struct Draft {
    pub before: Arc<Table>,
    pub after: Table,
    missing: Vec<(usize, Expr)>,
    fill: Vec<(usize, Expr)>,
    sequences: Vec<(QualifiedName, Sequence)>,
    /// Columns that take values from a sequence created with them.
    numbered: Vec<(usize, QualifiedName)>,
    notice: Option<String>,
}

impl Draft {
    pub(super) fn new(before: Arc<Table>) -> Self {
        let after = Table::clone(&before);
        let (missing, fill) = (Vec::new(), Vec::new());
        let (sequences, numbered) = (Vec::new(), Vec::new());
        Self { before, after, missing, fill, sequences, numbered, notice: None }
    }

    fn position(&self, name: &str) -> Result<usize, SqlError> {
        self.after.position(name).ok_or_else(|| {
            let message =
                format!("column \"{name}\" of relation \"{}\" does not exist", self.after.name);
            SqlError::new(code::UNDEFINED_COLUMN, message)
        })
    }
}

/// Returns a plan without effect, except for a notice.
pub(super) fn nothing(command: &'static str, notice: String) -> Plan {
    Plan::utility(Alter { command, change: None, notice: Some(notice) })
}

impl Planner<'_> {
    pub(super) fn alter_table(&mut self, alter: &ast::AlterTable) -> Result<Plan, Failure> {
        const COMMAND: &str = "ALTER TABLE";
        let table = match self.own_table(&alter.name) {
            Err(Failure::Sql(error))
                if alter.if_exists
                    && [code::UNDEFINED_TABLE, code::UNDEFINED_SCHEMA].contains(&error.code) =>
            {
                let name = syntax::table_name(&alter.name)?.name;
                let notice = format!("relation \"{name}\" does not exist, skipping");
                return Ok(nothing(COMMAND, notice));
            }
            found => found?,
        };
        let mut draft = Draft::new(table);
        for operation in &alter.operations {
            self.alter(operation, &mut draft)?;
        }
        self.finish(COMMAND, draft)
    }

    pub(super) fn create_index(&mut self, create: &ast::CreateIndex) -> Result<Plan, Failure> {
        const COMMAND: &str = "CREATE INDEX";
        let is_btree = matches!(create.using, None | Some(ast::IndexType::BTree));
        refuse(&[
            (!is_btree, "an index that is not a B-tree"),
            (!create.include.is_empty(), "INCLUDE"),
            (!create.with.is_empty(), "an index with storage parameters"),
        ])?;
        if let Some(name) = &create.name {
            let written = syntax::table_name(name)?;
            if written.schema.is_some() {
                let message = "syntax error at or near \".\"";
                return Err(SqlError::new(code::SYNTAX, message).into());
            }
            let table = self.own_table(&create.table_name)?;
            let name = table.name.beside(&written.name);
            if self.relation_named(&name)?.is_some() {
                let message = format!("relation \"{name}\" already exists");
                if create.if_not_exists {
                    return Ok(nothing(COMMAND, format!("{message}, skipping")));
                }
                return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
            }
        }
        let mut draft = Draft::new(self.own_table(&create.table_name)?);
        self.index(create, &mut draft.after)?;
        self.finish(COMMAND, draft)
    }

    pub(super) fn drop_index(
        &mut self,
        names: &[DropTarget],
        if_exists: bool,
    ) -> Result<Plan, Failure> {
        const COMMAND: &str = "DROP INDEX";
        let [meant] = names else {
            return Err(SqlError::unsupported("DROP INDEX of more than one index").into());
        };
        let message = format!("index \"{}\" does not exist", meant.written.name);
        let error = SqlError::new(code::UNDEFINED_OBJECT, message);
        let mut notices = Vec::new();
        let Some(name) = meant.existing(if_exists, error.clone(), &mut notices)? else {
            let notice = notices.pop().map_or_else(String::new, |notice| notice.message);
            return Ok(nothing(COMMAND, notice));
        };
        let table = match self.relation_named(name)? {
            Some(Relation::Index { table }) => table,
            Some(_) => {
                let message = format!("\"{name}\" is not an index");
                let hint = "Use DROP TABLE to remove a table.";
                return Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).with_hint(hint).into());
            }
            None => return Err(error.into()),
        };
        self.own_index(&table, name.name());
        let mut draft = Draft::new(self.table_named(&table)?);
        let is_it = |index: &&Index| index.name == name.name();
        let mut constraints = draft.after.indexes.iter().filter(|index| index.is_constraint);
        if draft.after.primary_key_name() == Some(name.name())
            || constraints.any(|index| is_it(&index))
        {
            let message = format!(
                "cannot drop index {name} because constraint {name} on table {table} requires it"
            );
            let hint = format!("You can drop constraint {name} on table {table} instead.");
            return Err(SqlError::new(code::DEPENDENT_OBJECTS, message).with_hint(hint).into());
        }
        self.refuse_needed(&draft.after, name.name())?;
        draft.after.indexes.retain(|index| !is_it(&index));
        self.finish(COMMAND, draft)
    }

    /// Compares the new record of a table with the old one, and finds the constraints that existing
    /// rows must be checked against.
    pub(super) fn finish(&mut self, command: &'static str, draft: Draft) -> Result<Plan, Failure> {
        let Draft { before, after, missing, fill, sequences, numbered, notice } = draft;
        let is_checked = |at: usize| {
            let was = before.columns.get(at).is_some_and(|column| column.is_not_null);
            after.columns[at].is_not_null && !was
        };
        let mut checked = Checked {
            targets: None,
            not_null: (0..after.columns.len()).filter(|&at| is_checked(at)).collect(),
            checks: (0..after.checks.len())
                .filter(|&at| !before.checks.iter().any(|old| old.name == after.checks[at].name))
                .collect(),
            has_foreign_keys: after
                .foreign_keys
                .iter()
                .any(|key| !before.foreign_keys.iter().any(|old| old.name == key.name)),
        };
        let is_new = !checked.not_null.is_empty() || !checked.checks.is_empty();
        if is_new || checked.has_foreign_keys {
            let paths = Paths::new(Arc::new(after.clone()))?;
            checked.targets = Some(Arc::new(self.targets(&paths, true)?));
        }
        let change = Some(Change { before, after, missing, fill, sequences, numbered, checked });
        Ok(Plan::utility(Alter { command, change, notice }))
    }

    fn alter(
        &mut self,
        operation: &ast::AlterTableOperation,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        use ast::AlterTableOperation as O;
        match operation {
            O::AddColumn { if_not_exists, column_def, .. } => {
                self.add_column(column_def, *if_not_exists, draft)
            }
            O::DropColumn { column_names, if_exists, drop_behavior, .. } => {
                let is_cascade = matches!(drop_behavior, Some(ast::DropBehavior::Cascade));
                for name in column_names {
                    self.drop_column(&syntax::name(name), *if_exists, is_cascade, draft)?;
                }
                Ok(())
            }
            O::AlterColumn { column_name, op } => {
                let at = draft.position(&syntax::name(column_name))?;
                self.alter_column(at, op, draft)
            }
            O::RenameColumn { old_column_name, new_column_name } => renames::column(
                draft,
                &syntax::name(old_column_name),
                syntax::name(new_column_name),
            ),
            O::RenameTable { table_name } => {
                let to = renames::new_name(table_name)?;
                renames::table(draft, &to);
                Ok(())
            }
            O::AddConstraint { constraint, not_valid } => {
                refuse(&[(*not_valid, "NOT VALID")])?;
                match constraint {
                    ast::TableConstraint::ForeignKey(key) => {
                        self.foreign_key(key, &mut draft.after)
                    }
                    other => self.constraint(other, &mut draft.after),
                }
            }
            O::DropConstraint { if_exists, name, drop_behavior } => {
                let is_cascade = matches!(drop_behavior, Some(ast::DropBehavior::Cascade));
                self.drop_constraint(&syntax::name(name), *if_exists, is_cascade, draft)
            }
            O::RenameConstraint { old_name, new_name } => {
                renames::constraint(draft, &syntax::name(old_name), syntax::name(new_name))
            }
            other => {
                let text = other.to_string();
                let is_upper = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase());
                let words: Vec<&str> = text.split_whitespace().take_while(is_upper).collect();
                let what = format!("ALTER TABLE .. {}", words.join(" "));
                Err(SqlError::unsupported(what).into())
            }
        }
    }

    fn add_column(
        &mut self,
        def: &ast::ColumnDef,
        if_not_exists: bool,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        let (name, table) = (syntax::name(&def.name), &draft.after.name);
        if draft.after.position(&name).is_some() {
            let message = format!("column \"{name}\" of relation \"{table}\" already exists");
            if if_not_exists {
                draft.notice = Some(format!("{message}, skipping"));
                return Ok(());
            }
            return Err(SqlError::new(code::DUPLICATE_COLUMN, message).into());
        }
        let at = draft.after.columns.len();
        self.column(def, &mut draft.after)?;
        let made = self.generation(def, at, &mut draft.after)?;
        draft.numbered.extend(made.iter().map(|(name, _)| (at, name.clone())));
        let is_numbered = made.is_some();
        draft.sequences.extend(made);
        self.column_keys(def, at, &mut draft.after)?;
        self.column_references(def, at, &mut draft.after)?;
        let column = &draft.after.columns[at];
        if let Some(sql) = &column.generated {
            draft.fill.push((at, text::generated(&draft.after, column, sql)?));
        } else if let Some(sql) = column.default.as_ref().filter(|_| !is_numbered) {
            let default = text::default(sql, column, &mut self.params)?;
            // A value that is the same for all rows is stored once.
            let list = if default.is_constant() { &mut draft.missing } else { &mut draft.fill };
            list.push((at, default));
        }
        Ok(())
    }

    fn drop_column(
        &mut self,
        name: &str,
        if_exists: bool,
        is_cascade: bool,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        let at = match draft.position(name) {
            Ok(at) => at,
            Err(error) if if_exists => {
                draft.notice = Some(format!("{}, skipping", error.message));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let table = draft.after.clone();
        spread::check_column(&table, at, "drop")?;
        let what = format!("column {name} of table {}", table.name);
        let mut dependents = Vec::new();
        for (_, column) in table.live_columns().filter(|(other, _)| *other != at) {
            let Some(sql) = &column.generated else { continue };
            if text::generated(&table, column, sql)?.columns().contains(&at) {
                dependents.push(format!("column {} of table {}", column.name, table.name));
            }
        }
        dependents.extend(self.referring(&table, &[at])?);
        let mut lines = depend_on(&what, &dependents);
        let (gone, kept): (Vec<_>, Vec<_>) =
            table.sequences.iter().cloned().partition(|(column, _)| *column == at);
        gone.iter().for_each(|(_, sequence)| lines.extend(takers(&table, at, sequence)));
        if !lines.is_empty() {
            refuse(&[(is_cascade, "DROP COLUMN .. CASCADE of a column with dependent objects")])?;
            return Err(cannot_drop(&what, &lines).into());
        }
        let after = &mut draft.after;
        after.sequences = kept;
        draft.sequences.retain(|(name, _)| !gone.iter().any(|(_, it)| it == name));
        draft.numbered.retain(|(column, _)| *column != at);
        let mut kept = Vec::with_capacity(table.indexes.len());
        for index in &table.indexes {
            kept.push(!path_columns(&Path::index(&table, index)?).contains(&at));
        }
        let mut is_kept = kept.into_iter();
        after.indexes.retain(|_| is_kept.next().expect("one for each"));
        let mut kept = Vec::with_capacity(table.checks.len());
        for check in &table.checks {
            let condition = text::condition(&table, &check.condition, "CHECK")?;
            kept.push(!condition.columns().contains(&at));
        }
        let mut is_kept = kept.into_iter();
        after.checks.retain(|_| is_kept.next().expect("one for each"));
        after.foreign_keys.retain(|key| !key.columns.contains(&at));
        if after.primary_key.contains(&at) {
            spread::check_key(after)?;
            after.primary_key.clear();
        }
        draft.fill.retain(|(column, _)| *column != at);
        draft.missing.retain(|(column, _)| *column != at);
        let column = &mut after.columns[at];
        // PostgreSQL's placeholder name for dropped columns.
        column.name = format!("........pg.dropped.{}........", at + 1);
        column.is_dropped = true;
        column.is_not_null = false;
        (column.default, column.generated, column.identity) = (None, None, None);
        Ok(())
    }

    fn alter_column(
        &mut self,
        at: usize,
        op: &ast::AlterColumnOperation,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        use ast::AlterColumnOperation as O;
        let name = draft.after.columns[at].name.clone();
        let table = draft.after.name.clone();
        let is_generated = draft.after.columns[at].generated.is_some();
        let changes_default = matches!(op, O::SetDefault { .. } | O::DropDefault);
        if is_generated && changes_default {
            let message =
                format!("column \"{name}\" of relation \"{table}\" is a generated column");
            return Err(SqlError::new(code::SYNTAX, message).into());
        }
        match op {
            O::SetNotNull => draft.after.columns[at].is_not_null = true,
            O::DropNotNull if draft.after.primary_key.contains(&at) => {
                let message = format!("column \"{name}\" is in a primary key");
                return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message).into());
            }
            O::DropNotNull => draft.after.columns[at].is_not_null = false,
            O::SetDefault { value } => {
                let default = self.kept_text(value)?;
                let mut params = Params::of_text(&self.params.enums);
                text::default(&default, &draft.after.columns[at], &mut params)?;
                draft.after.columns[at].default = Some(default);
            }
            O::DropDefault => draft.after.columns[at].default = None,
            O::SetDataType { data_type, using, .. } => {
                self.set_type(at, data_type, using.as_ref(), draft)?;
            }
            O::AddGenerated { generated_as, sequence_options } => {
                let column = &draft.after.columns[at];
                let refusal = if column.identity.is_some() {
                    Some("is already an identity column")
                } else if column.default.is_some() {
                    Some("already has a default value")
                } else if !column.is_not_null {
                    Some("must be declared NOT NULL before identity can be added")
                } else {
                    None
                };
                if let Some(refusal) = refusal {
                    let message = format!("column \"{name}\" of relation \"{table}\" {refusal}");
                    return Err(SqlError::new(code::NOT_PREREQUISITE, message).into());
                }
                let is_always = matches!(generated_as, Some(ast::GeneratedAs::Always));
                let options = sequence_options.as_deref().unwrap_or_default();
                let made = self.identity(&mut draft.after, at, is_always, options)?;
                draft.sequences.push(made);
            }
        }
        Ok(())
    }

    /// ALTER COLUMN .. TYPE: converts all values of a column to another type.
    fn set_type(
        &mut self,
        at: usize,
        data_type: &ast::DataType,
        using: Option<&ast::Expr>,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        spread::check_column(&draft.after, at, "alter")?;
        let to = self.column_type(data_type)?;
        let name = draft.after.columns[at].name.clone();
        let column = ast::Expr::Identifier(ast::Ident::with_quote('"', &name));
        let scope = crate::access::text::scope_of(&draft.before, draft.before.name.name());
        let mut binder =
            self.binder(&scope, Aggregates::Forbidden("transform expressions"), &[])?;
        let bound = binder.bind(using.unwrap_or(&column))?;
        let cast = binder.assign(bound, &name, to).map_err(|error| {
            if error.code != code::TYPE_MISMATCH {
                return error;
            }
            let message = format!("column \"{name}\" cannot be cast automatically to type {to}");
            let hint = format!("You might need to specify \"USING {name}::{to}\".");
            SqlError::new(code::TYPE_MISMATCH, message).with_hint(hint)
        })?;
        let table = draft.after.clone();
        let is_key = table.foreign_keys.iter().any(|key| key.columns.contains(&at));
        let is_referred_to = !self.referring(&table, &[at])?.is_empty();
        refuse(&[(is_key || is_referred_to, "ALTER TYPE of a column of a foreign key")])?;
        draft.after.columns[at].ty = to;
        draft.after.columns[at].missing = None;
        if let Some(default) = &draft.after.columns[at].default {
            let mut params = Params::of_text(&self.params.enums);
            text::default(default, &draft.after.columns[at], &mut params).map_err(|_| {
                let message = format!(
                    "default for column \"{name}\" cannot be cast automatically to type {to}"
                );
                SqlError::new(code::TYPE_MISMATCH, message)
            })?;
        }
        draft.fill.push((at, cast));
        // Expressions over the column must still be valid.
        let after = &draft.after;
        for index in &after.indexes {
            Path::index(after, index)?;
        }
        for check in &after.checks {
            text::condition(after, &check.condition, "CHECK")?;
        }
        for (other, column) in after.live_columns() {
            let Some(sql) = &column.generated else { continue };
            if text::generated(after, column, sql)?.columns().contains(&at) && other != at {
                return Err(SqlError::unsupported(
                    "ALTER TYPE of a column that another is generated from",
                )
                .into());
            }
        }
        Ok(())
    }

    fn drop_constraint(
        &mut self,
        name: &str,
        if_exists: bool,
        is_cascade: bool,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        let table = draft.after.clone();
        if !table.constraint_names().any(|known| known == name) {
            let message =
                format!("constraint \"{name}\" of relation \"{}\" does not exist", table.name);
            if if_exists {
                draft.notice = Some(format!("{message}, skipping"));
                return Ok(());
            }
            return Err(SqlError::new(code::UNDEFINED_OBJECT, message).into());
        }
        refuse(&[(is_cascade, "DROP CONSTRAINT CASCADE")])?;
        self.refuse_needed(&table, name)?;
        let after = &mut draft.after;
        if after.primary_key_name == name {
            spread::check_key(after)?;
            after.primary_key.clear();
        }
        after.indexes.retain(|index| index.name != name || !index.is_constraint);
        after.checks.retain(|check| check.name != name);
        after.foreign_keys.retain(|key| key.name != name);
        Ok(())
    }

    /// Fails if a foreign key needs this key.
    fn refuse_needed(&mut self, table: &Table, name: &str) -> Result<(), Failure> {
        let paths = Paths::new(Arc::new(table.clone()))?;
        let Some(path) = paths.all.iter().find(|path| path.name == name && path.is_unique()) else {
            return Ok(());
        };
        let columns = path_columns(path);
        let is_other = |other: &&Arc<Path>| {
            other.name != name && other.is_unique() && path_columns(other) == columns
        };
        let dependents = self.referring(table, &columns)?;
        if dependents.is_empty() || paths.all.iter().any(|other| is_other(&other)) {
            return Ok(());
        }
        let what = format!("constraint {name} on table {}", table.name);
        Err(cannot_drop(&what, &depend_on(&what, &dependents)).into())
    }

    /// Returns the foreign keys that refer to one of these columns.
    fn referring(&mut self, table: &Table, columns: &[usize]) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for child in &table.children {
            let child = match *child == table.name {
                true => Arc::new(table.clone()),
                false => self.table_named(child)?,
            };
            let keys = child.foreign_keys.iter().filter(|key| key.parent == table.name);
            let keys = keys.filter(|key| key.parent_columns.iter().any(|at| columns.contains(at)));
            found
                .extend(keys.map(|key| format!("constraint {} on table {}", key.name, child.name)));
        }
        Ok(found)
    }
}

/// Describes the objects that depend on an object and prevent its removal.
fn depend_on(what: &str, others: &[String]) -> Vec<String> {
    others.iter().map(|other| format!("{other} depends on {what}")).collect()
}

/// Describes the other columns whose defaults depend on a column's sequence.
fn takers(table: &Table, at: usize, sequence: &QualifiedName) -> impl Iterator<Item = String> {
    let takes = |sql: &String| sequence_of(sql).is_some_and(|it| it.kept() == *sequence);
    let others = table.live_columns().filter(move |(other, _)| *other != at);
    let others = others.filter(move |(_, other)| other.default.as_ref().is_some_and(takes));
    others.map(move |(_, other)| {
        let what = format!("default value for column {} of table {}", other.name, table.name);
        format!("{what} depends on sequence {sequence}")
    })
}

/// The error for an object that cannot be dropped because of the listed dependencies.
fn cannot_drop(what: &str, lines: &[String]) -> SqlError {
    let message = format!("cannot drop {what} because other objects depend on it");
    SqlError::new(code::DEPENDENT_OBJECTS, message)
        .with_detail(lines.join("\n"))
        .with_hint("Use DROP ... CASCADE to drop the dependent objects too.")
}

/// Returns the columns that a path uses, in ascending order.
fn path_columns(path: &Path) -> Vec<usize> {
    let predicate = path.index.as_ref().and_then(|index| index.predicate.as_ref());
    let exprs = path.parts.iter().map(|part| &part.expr).chain(predicate);
    let mut columns: Vec<usize> = exprs.flat_map(Expr::columns).collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}
