//! Planning of constraints and indexes, on the record of a table that is being created or altered.

use std::collections::BTreeSet;

use pangea_core::key::encode::Order;
use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::Planner;
use super::ddl::check_name;
use super::resolve::bare;
use crate::access::path::Path;
use crate::access::text;
use crate::catalog::role::Privileges;
use crate::catalog::{Action, Check, ForeignKey, Index, IndexKey, KeyTarget, Table};
use crate::error::{Failure, SqlError, code};
use crate::types::SqlType;
use crate::{syntax, system};

/// The maximum number of columns of a key, as in PostgreSQL.
const KEY_COLUMNS_MAX: usize = 32;
/// The maximum length of a name in bytes, as in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

impl Planner<'_> {
    /// Adds the keys and checks in a column's definition.
    pub(super) fn column_keys(
        &mut self,
        def: &ast::ColumnDef,
        at: usize,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let location = def.name.span.start;
        for option in &def.options {
            let given = option.name.as_ref();
            match &option.option {
                ast::ColumnOption::PrimaryKey(key) => {
                    let name = given.or(key.name.as_ref());
                    self.primary_key(table, vec![at], name).map_err(|failure| match failure {
                        Failure::Sql(error) => self.error_at(error, location),
                        interrupted => interrupted,
                    })?;
                }
                ast::ColumnOption::Unique(key) => {
                    let is_distinct = key.nulls_distinct != ast::NullsDistinctOption::NotDistinct;
                    let name = given.or(key.name.as_ref());
                    self.unique(table, vec![at], name, is_distinct)?;
                }
                ast::ColumnOption::Check(check) => {
                    self.check(table, given.or(check.name.as_ref()), &check.expr, location)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the foreign keys in a column's definition.
    pub(super) fn column_references(
        &mut self,
        def: &ast::ColumnDef,
        at: usize,
        table: &mut Table,
    ) -> Result<(), Failure> {
        for option in &def.options {
            if let ast::ColumnOption::ForeignKey(key) = &option.option {
                let name = option.name.as_ref().or(key.name.as_ref());
                self.reference(table, vec![at], name, key)?;
            }
        }
        Ok(())
    }

    /// Adds a table constraint, except foreign keys.
    pub(super) fn constraint(
        &mut self,
        constraint: &ast::TableConstraint,
        table: &mut Table,
    ) -> Result<(), Failure> {
        match constraint {
            ast::TableConstraint::PrimaryKey(key) => {
                let columns = self.key_columns(table, &key.columns, "primary key")?;
                self.primary_key(table, columns, key.name.as_ref())
            }
            ast::TableConstraint::Unique(key) => {
                let columns = self.key_columns(table, &key.columns, "unique")?;
                let is_distinct = key.nulls_distinct != ast::NullsDistinctOption::NotDistinct;
                self.unique(table, columns, key.name.as_ref(), is_distinct)
            }
            ast::TableConstraint::Check(check) => {
                let location = syntax::expr_location(&check.expr);
                self.check(table, check.name.as_ref(), &check.expr, location)
            }
            ast::TableConstraint::ForeignKey(_) => Ok(()),
            _ => Err(SqlError::unsupported("this table constraint").into()),
        }
    }

    fn key_columns(
        &self,
        table: &Table,
        columns: &[ast::IndexColumn],
        kind: &str,
    ) -> Result<Vec<usize>, Failure> {
        let mut found = Vec::with_capacity(columns.len());
        for column in columns {
            let ast::Expr::Identifier(ident) = &column.column.expr else {
                return Err(SqlError::unsupported("an expression in a key").into());
            };
            let at = self.key_column(table, ident)?;
            if found.contains(&at) {
                let name = syntax::name(ident);
                let message = format!("column \"{name}\" appears twice in {kind} constraint");
                let error = SqlError::new(code::DUPLICATE_COLUMN, message);
                return Err(self.error_at(error, ident.span.start));
            }
            found.push(at);
        }
        Ok(found)
    }

    fn key_column(&self, table: &Table, ident: &ast::Ident) -> Result<usize, Failure> {
        let name = syntax::name(ident);
        table.position(&name).ok_or_else(|| {
            let message = format!("column \"{name}\" named in key does not exist");
            self.error_at(SqlError::new(code::UNDEFINED_COLUMN, message), ident.span.start)
        })
    }

    /// Makes columns the primary key, under which rows are stored.
    fn primary_key(
        &mut self,
        table: &mut Table,
        columns: Vec<usize>,
        name: Option<&ast::Ident>,
    ) -> Result<(), Failure> {
        if !table.primary_key.is_empty() {
            let message =
                format!("multiple primary keys for table \"{}\" are not allowed", table.name);
            return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message).into());
        }
        check_width(columns.len())?;
        columns.iter().try_for_each(|&at| check_key_type(table.columns[at].ty.base))?;
        table.primary_key_name = match name {
            Some(name) => self.free_given(table, syntax::name(name))?,
            None => self.free_name(table, &[], "pkey")?,
        };
        columns.iter().for_each(|&at| table.columns[at].is_not_null = true);
        table.primary_key = columns;
        Ok(())
    }

    fn unique(
        &mut self,
        table: &mut Table,
        columns: Vec<usize>,
        name: Option<&ast::Ident>,
        is_nulls_distinct: bool,
    ) -> Result<(), Failure> {
        check_width(columns.len())?;
        columns.iter().try_for_each(|&at| check_key_type(table.columns[at].ty.base))?;
        let name = match name {
            Some(name) => self.free_given(table, syntax::name(name))?,
            None => self.free_name(table, &columns, "key")?,
        };
        let key = |column| IndexKey {
            target: KeyTarget::Column(column),
            is_descending: false,
            is_nulls_first: false,
        };
        table.indexes.push(Index {
            id: Index::NEW,
            name,
            keys: columns.into_iter().map(key).collect(),
            is_unique: true,
            is_nulls_distinct,
            predicate: None,
            is_constraint: true,
            is_ready: true,
        });
        Ok(())
    }

    fn check(
        &mut self,
        table: &mut Table,
        name: Option<&ast::Ident>,
        expr: &ast::Expr,
        location: Location,
    ) -> Result<(), Failure> {
        let condition = bare(expr).to_string();
        let bound = text::condition(table, &condition, "CHECK")
            .map_err(|error| self.error_at(error, location))?;
        let columns = bound.columns();
        let name = match name {
            Some(name) => syntax::name(name),
            None => {
                // Named after the column if there is exactly one, as in PostgreSQL.
                let one = if columns.len() == 1 { &columns[..] } else { &[] };
                free(&name_of(table, one, "check"), &|name| is_constraint(table, name))
            }
        };
        check_name(&name)?;
        if table.checks.iter().any(|check| check.name == name) {
            let message = format!("check constraint \"{name}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_OBJECT, message).into());
        }
        refuse_duplicate(table, &name)?;
        table.checks.push(Check { name, condition });
        Ok(())
    }

    /// Adds a foreign key to a table.
    pub(super) fn foreign_key(
        &mut self,
        key: &ast::ForeignKeyConstraint,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let mut columns = Vec::with_capacity(key.columns.len());
        for ident in &key.columns {
            let name = syntax::name(ident);
            columns.push(table.position(&name).ok_or_else(|| {
                let message = format!(
                    "column \"{name}\" referenced in foreign key constraint does not exist"
                );
                self.error_at(SqlError::new(code::UNDEFINED_COLUMN, message), ident.span.start)
            })?);
        }
        self.reference(table, columns, key.name.as_ref(), key)
    }

    fn reference(
        &mut self,
        table: &mut Table,
        columns: Vec<usize>,
        name: Option<&ast::Ident>,
        key: &ast::ForeignKeyConstraint,
    ) -> Result<(), Failure> {
        let parent = syntax::table_name(&key.foreign_table)
            .map_err(|error| self.error_at(error, syntax::location(&key.foreign_table)))?;
        // The parent may be the table that is being created, if the name resolves to it on the
        // search path.
        let parent = match self.is_meant(&parent, &table.name)? {
            true => table.clone(),
            false => {
                Table::clone(&*self.own_table_for(&key.foreign_table, Privileges::REFERENCES)?)
            }
        };
        let parent_columns = self.referred_columns(&parent, key)?;
        let name = match name {
            Some(name) => syntax::name(name),
            None => {
                let name = name_of(table, &columns, "fkey");
                free(&name, &|name| is_constraint(table, name))
            }
        };
        check_name(&name)?;
        refuse_duplicate(table, &name)?;
        if parent_columns.len() != columns.len() {
            let message = "number of referencing and referenced columns for foreign key disagree";
            return Err(SqlError::new(code::INVALID_FOREIGN_KEY, message).into());
        }
        check_types(table, &columns, &parent, &parent_columns, &name)?;
        refuse_partial_match(key)?;
        let action = |action: Option<ast::ReferentialAction>| match action {
            None | Some(ast::ReferentialAction::NoAction) => Action::NoAction,
            Some(ast::ReferentialAction::Restrict) => Action::Restrict,
            Some(ast::ReferentialAction::Cascade) => Action::Cascade,
            Some(ast::ReferentialAction::SetNull) => Action::SetNull,
            Some(ast::ReferentialAction::SetDefault) => Action::SetDefault,
        };
        let characteristics = key.characteristics.as_ref();
        let is_deferred = characteristics
            .is_some_and(|it| it.initially == Some(ast::DeferrableInitial::Deferred));
        let is_deferrable = characteristics.is_some_and(|it| it.deferrable == Some(true));
        table.foreign_keys.push(ForeignKey {
            name,
            columns,
            parent: parent.name,
            parent_columns,
            on_delete: action(key.on_delete),
            on_update: action(key.on_update),
            is_full: matches!(key.match_kind, Some(ast::ConstraintReferenceMatchKind::Full)),
            deferral: (is_deferrable || is_deferred, is_deferred),
        });
        Ok(())
    }

    /// Returns the referenced columns, which must be a key of the parent table.
    fn referred_columns(
        &mut self,
        parent: &Table,
        key: &ast::ForeignKeyConstraint,
    ) -> Result<Vec<usize>, Failure> {
        if key.referred_columns.is_empty() {
            if parent.primary_key.is_empty() {
                let message =
                    format!("there is no primary key for referenced table \"{}\"", parent.name);
                return Err(SqlError::new(code::UNDEFINED_OBJECT, message).into());
            }
            return Ok(parent.primary_key.clone());
        }
        let mut columns = Vec::with_capacity(key.referred_columns.len());
        for ident in &key.referred_columns {
            let name = syntax::name(ident);
            columns.push(parent.position(&name).ok_or_else(|| {
                let message = format!(
                    "column \"{name}\" referenced in foreign key constraint does not exist"
                );
                self.error_at(SqlError::new(code::UNDEFINED_COLUMN, message), ident.span.start)
            })?);
        }
        let named: BTreeSet<usize> = columns.iter().copied().collect();
        let is_key = |of: &[usize]| of.iter().copied().collect::<BTreeSet<usize>>() == named;
        let is_unique = parent.indexes.iter().any(|index| {
            let column = |key: &IndexKey| match key.target {
                KeyTarget::Column(at) => Some(at),
                KeyTarget::Expr(_) => None,
            };
            let of: Option<Vec<usize>> = index.keys.iter().map(column).collect();
            let is_sure = index.is_unique && index.is_ready;
            is_sure && index.predicate.is_none() && of.is_some_and(|of| is_key(&of))
        });
        let is_primary = !parent.primary_key.is_empty() && is_key(&parent.primary_key);
        if !is_unique && !is_primary {
            let message = format!(
                "there is no unique constraint matching given keys for referenced table \"{}\"",
                parent.name
            );
            return Err(SqlError::new(code::INVALID_FOREIGN_KEY, message).into());
        }
        Ok(columns)
    }

    /// Adds an index to a table, from CREATE INDEX.
    pub(super) fn index(
        &mut self,
        create: &ast::CreateIndex,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let keys = create.columns.iter().map(|column| self.index_key(table, column));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        check_width(keys.len())?;
        let predicate = create.predicate.as_ref().map(|it| bare(it).to_string());
        let name = match &create.name {
            Some(name) => {
                let name = syntax::table_name(name)?.name;
                check_name(&name)?;
                name
            }
            None => {
                let parts = keys.iter().map(|key| match key.target {
                    KeyTarget::Column(at) => table.columns[at].name.as_str(),
                    KeyTarget::Expr(_) => "expr",
                });
                let parts: Vec<&str> = parts.collect();
                let name = cut(&format!("{}_{}_idx", table.name, parts.join("_")));
                self.unused(table, &name)?
            }
        };
        let index = Index {
            id: Index::NEW,
            name,
            keys,
            is_unique: create.unique,
            is_nulls_distinct: create.nulls_distinct != Some(false),
            predicate,
            is_constraint: false,
            is_ready: true,
        };
        let classes = create.columns.iter().map(|column| column.operator_class.as_ref());
        self.check_index(table, &index, classes)?;
        table.indexes.push(index);
        Ok(())
    }

    /// Checks that the expressions of an index depend only on the row and can be sorted.
    fn check_index<'c>(
        &self,
        table: &Table,
        index: &Index,
        classes: impl Iterator<Item = Option<&'c ast::ObjectName>>,
    ) -> Result<(), Failure> {
        let path = Path::index(table, index)?;
        for (part, class) in path.parts.iter().zip(classes) {
            if let Some(class) = class {
                check_class(part.base, class)?;
            }
            check_key_type(part.base)?;
            if part.base.element().is_some() && part.order == Order::Descending {
                return Err(SqlError::unsupported("a descending index of an array").into());
            }
        }
        let predicate = path.index.as_ref().and_then(|index| index.predicate.as_ref());
        let exprs = path.parts.iter().map(|part| (&part.expr, "index expression"));
        for (expr, what) in exprs.chain(predicate.map(|it| (it, "index predicate"))) {
            if !expr.is_immutable() {
                let message = format!("functions in {what} must be marked IMMUTABLE");
                return Err(SqlError::new(code::INVALID_OBJECT_DEFINITION, message).into());
            }
        }
        Ok(())
    }

    fn index_key(&mut self, table: &Table, column: &ast::IndexColumn) -> Result<IndexKey, Failure> {
        let options = &column.column.options;
        let mut expr = &column.column.expr;
        while let ast::Expr::Nested(inner) = expr {
            expr = inner;
        }
        let target = match expr {
            ast::Expr::Identifier(ident) => {
                let name = syntax::name(ident);
                let missing = || {
                    let message = format!("column \"{name}\" does not exist");
                    let error = SqlError::new(code::UNDEFINED_COLUMN, message);
                    self.error_at(error, ident.span.start)
                };
                KeyTarget::Column(table.position(&name).ok_or_else(missing)?)
            }
            expr => KeyTarget::Expr(expr.to_string()),
        };
        let is_descending = options.asc == Some(false);
        let is_nulls_first = options.nulls_first.unwrap_or(is_descending);
        Ok(IndexKey { target, is_descending, is_nulls_first })
    }

    /// Checks that a user-given name is free for a relation.
    fn free_given(&mut self, table: &Table, name: String) -> Result<String, Failure> {
        check_name(&name)?;
        refuse_duplicate(table, &name)?;
        if self.is_taken(table, &name)? {
            let message = format!("relation \"{name}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
        }
        Ok(name)
    }

    pub(super) fn free_name(
        &mut self,
        table: &Table,
        columns: &[usize],
        suffix: &str,
    ) -> Result<String, Failure> {
        let name = name_of(table, columns, suffix);
        self.unused(table, &name)
    }

    /// Returns the name, followed by the first number that makes it unused if it is taken.
    fn unused(&mut self, table: &Table, name: &str) -> Result<String, Failure> {
        let mut candidate = name.to_owned();
        for number in 1.. {
            if !is_constraint(table, &candidate) && !self.is_taken(table, &candidate)? {
                break;
            }
            candidate = format!("{name}{number}");
        }
        Ok(candidate)
    }

    fn is_taken(&mut self, table: &Table, name: &str) -> Result<bool, Failure> {
        let is_own =
            table.name.name() == name || table.indexes.iter().any(|index| index.name == name);
        Ok(is_own || self.relation_named(&table.name.beside(name))?.is_some())
    }
}

/// Checks that a type can be used in keys.
fn check_key_type(base: SqlType) -> Result<(), SqlError> {
    match base.element().unwrap_or(base) {
        SqlType::Json => {
            let message = format!(
                "data type {base} has no default operator class for access method \"btree\""
            );
            Err(SqlError::new(code::UNDEFINED_OBJECT, message))
        }
        // Keys of this type are not in the order of its values.
        SqlType::Jsonb => Err(SqlError::unsupported(format!("a key of type {base}"))),
        _ => Ok(()),
    }
}

fn check_width(columns: usize) -> Result<(), SqlError> {
    if columns <= KEY_COLUMNS_MAX {
        return Ok(());
    }
    let message = format!("cannot use more than {KEY_COLUMNS_MAX} columns in an index");
    Err(SqlError::new(code::TOO_MANY_COLUMNS, message))
}

fn is_constraint(table: &Table, name: &str) -> bool {
    table.constraint_names().any(|known| known == name)
}

pub(super) fn refuse_duplicate(table: &Table, name: &str) -> Result<(), SqlError> {
    if !is_constraint(table, name) {
        return Ok(());
    }
    let message = format!("constraint \"{name}\" for relation \"{}\" already exists", table.name);
    Err(SqlError::new(code::DUPLICATE_OBJECT, message))
}

/// Returns `table_a_b_suffix`, as PostgreSQL names constraints.
fn name_of(table: &Table, columns: &[usize], suffix: &str) -> String {
    let columns = columns.iter().map(|&at| table.columns[at].name.as_str());
    let parts: Vec<&str> = [table.name.name()].into_iter().chain(columns).collect();
    let room = NAME_BYTES_MAX - suffix.len() - 1;
    let joined = parts.join("_");
    let end = (0..=room.min(joined.len())).rev().find(|&at| joined.is_char_boundary(at));
    format!("{}_{suffix}", &joined[..end.unwrap_or(0)])
}

fn cut(name: &str) -> String {
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|&at| name.is_char_boundary(at));
    name[..end.unwrap_or(0)].to_owned()
}

fn free(name: &str, is_taken: &dyn Fn(&str) -> bool) -> String {
    let numbered = (1..).map(|number| format!("{name}{number}"));
    let all = std::iter::once(name.to_owned()).chain(numbered);
    all.into_iter().find(|name| !is_taken(name)).expect("there is always another number")
}

fn check_types(
    table: &Table,
    columns: &[usize],
    parent: &Table,
    parent_columns: &[usize],
    name: &str,
) -> Result<(), SqlError> {
    for (&at, &there) in columns.iter().zip(parent_columns) {
        let (column, other) = (&table.columns[at], &parent.columns[there]);
        let (from, to) = (column.ty.base, other.ty.base);
        let is_text = |base: SqlType| matches!(base, SqlType::Text | SqlType::Varchar);
        if from == to || from.is_integer() && to.is_integer() || is_text(from) && is_text(to) {
            continue;
        }
        let message = format!("foreign key constraint \"{name}\" cannot be implemented");
        let detail = format!(
            "Key columns \"{}\" and \"{}\" are of incompatible types: {from} and {to}.",
            column.name, other.name
        );
        return Err(SqlError::new(code::TYPE_MISMATCH, message).with_detail(detail));
    }
    Ok(())
}

fn refuse_partial_match(key: &ast::ForeignKeyConstraint) -> Result<(), SqlError> {
    match key.match_kind {
        Some(ast::ConstraintReferenceMatchKind::Partial) => {
            Err(SqlError::unsupported("MATCH PARTIAL"))
        }
        _ => Ok(()),
    }
}

/// Checks that an operator class exists for the type: all classes sort as indexes do here.
fn check_class(base: SqlType, class: &ast::ObjectName) -> Result<(), SqlError> {
    let name = syntax::name_parts(class)?.pop().unwrap_or_default();
    let patterns = ["text_pattern_ops", "varchar_pattern_ops", "bpchar_pattern_ops"];
    let is_pattern = patterns.contains(&name.as_str());
    if !is_pattern && !system::is_operator_class(&name) {
        let message =
            format!("operator class \"{name}\" does not exist for access method \"btree\"");
        return Err(SqlError::new(code::UNDEFINED_OBJECT, message));
    }
    if is_pattern && base.is_string() || !is_pattern && system::is_class_of(&name, base) {
        return Ok(());
    }
    let message = format!("operator class \"{name}\" does not accept data type {base}");
    Err(SqlError::new(code::TYPE_MISMATCH, message))
}
