//! Planning of CREATE TABLE.

use pangea_core::ids::TableId;
use sqlparser::ast;
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use super::dml::specified_twice;
use super::{CreateTable, Plan, Planner, refuse};
use crate::catalog::{Column, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Binder, Params, Scope, column_type};
use crate::syntax;
use crate::types::SqlType;

/// The most columns of a table, as in PostgreSQL.
const TABLE_COLUMNS_MAX: usize = 1_600;
/// The most columns of a key, as in PostgreSQL.
const KEY_COLUMNS_MAX: usize = 32;
/// The longest name, as in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

impl Planner<'_> {
    pub(super) fn create_table(&mut self, create: &ast::CreateTable) -> Result<Plan, Failure> {
        refuse(&[
            (create.temporary, "CREATE TEMPORARY TABLE"),
            (create.external || create.or_replace, "this form of CREATE TABLE"),
            (create.query.is_some(), "CREATE TABLE AS"),
            (create.like.is_some(), "CREATE TABLE LIKE"),
            (create.partition_by.is_some() || create.partition_of.is_some(), "PARTITION BY"),
            (create.inherits.is_some(), "INHERITS"),
        ])?;
        let name = syntax::table_name(&create.name)?;
        check_name(&name)?;
        let mut table = Table {
            id: TableId(0),
            primary_key_name: format!("{name}_pkey"),
            name,
            columns: Vec::with_capacity(create.columns.len()),
            primary_key: Vec::new(),
        };
        for def in &create.columns {
            self.column(def, &mut table)?;
        }
        for constraint in &create.constraints {
            self.constraint(constraint, &mut table)?;
        }
        for &at in &table.primary_key {
            table.columns[at].is_not_null = true;
        }
        if table.columns.len() > TABLE_COLUMNS_MAX {
            let message = format!("tables can have at most {TABLE_COLUMNS_MAX} columns");
            return Err(SqlError::new(code::TOO_MANY_COLUMNS, message).into());
        }
        Ok(Plan::CreateTable(CreateTable { table, if_not_exists: create.if_not_exists }))
    }

    fn column(&mut self, def: &ast::ColumnDef, table: &mut Table) -> Result<(), Failure> {
        let location = def.name.span.start;
        let name = syntax::name(&def.name);
        check_name(&name)?;
        if table.columns.iter().any(|column| column.name == name) {
            return Err(self.error_at(specified_twice(&name), location));
        }
        let ty = column_type(&def.data_type).map_err(|error| self.error_at(error, location))?;
        let mut column = Column { name, ty, is_not_null: false, default: None };
        let at = table.columns.len();
        for option in &def.options {
            match &option.option {
                ast::ColumnOption::Null => {}
                ast::ColumnOption::NotNull => column.is_not_null = true,
                ast::ColumnOption::Default(expr) => {
                    let default = expr.to_string();
                    bind_default(&default, &column).map_err(|e| self.error_at(e, location))?;
                    column.default = Some(default);
                }
                ast::ColumnOption::PrimaryKey(key) => {
                    let constraint = option.name.as_ref().or(key.name.as_ref());
                    set_primary_key(table, vec![at], constraint)
                        .map_err(|error| self.error_at(error, location))?;
                }
                other => {
                    let feature = constraint_name(other);
                    return Err(self.error_at(SqlError::unsupported(feature), location));
                }
            }
        }
        if table.primary_key.contains(&at) {
            check_key_type(&column).map_err(|error| self.error_at(error, location))?;
        }
        table.columns.push(column);
        Ok(())
    }

    fn constraint(
        &mut self,
        constraint: &ast::TableConstraint,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let key = match constraint {
            ast::TableConstraint::PrimaryKey(key) => key,
            ast::TableConstraint::Unique(_) => {
                return Err(SqlError::unsupported("UNIQUE").into());
            }
            ast::TableConstraint::ForeignKey(_) => {
                return Err(SqlError::unsupported("FOREIGN KEY").into());
            }
            ast::TableConstraint::Check(_) => return Err(SqlError::unsupported("CHECK").into()),
            _ => return Err(SqlError::unsupported("this table constraint").into()),
        };
        let mut columns = Vec::with_capacity(key.columns.len());
        for column in &key.columns {
            let ast::Expr::Identifier(ident) = &column.column.expr else {
                return Err(SqlError::unsupported("an expression in a key").into());
            };
            let name = syntax::name(ident);
            let at = table.columns.iter().position(|column| column.name == name);
            let at = at.ok_or_else(|| {
                let message = format!("column \"{name}\" named in key does not exist");
                self.error_at(SqlError::new(code::UNDEFINED_COLUMN, message), ident.span.start)
            })?;
            if columns.contains(&at) {
                let message = format!("column \"{name}\" appears twice in primary key constraint");
                let error = SqlError::new(code::DUPLICATE_COLUMN, message);
                return Err(self.error_at(error, ident.span.start));
            }
            columns.push(at);
        }
        Ok(set_primary_key(table, columns, key.name.as_ref())?)
    }
}

fn set_primary_key(
    table: &mut Table,
    columns: Vec<usize>,
    name: Option<&ast::Ident>,
) -> Result<(), SqlError> {
    if !table.primary_key.is_empty() {
        let message = format!("multiple primary keys for table \"{}\" are not allowed", table.name);
        return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message));
    }
    if columns.len() > KEY_COLUMNS_MAX {
        let message = format!("cannot use more than {KEY_COLUMNS_MAX} columns in an index");
        return Err(SqlError::new(code::TOO_MANY_COLUMNS, message));
    }
    for &at in &columns {
        // The column whose own option this is comes after its options; its type is checked there.
        if let Some(column) = table.columns.get(at) {
            check_key_type(column)?;
        }
    }
    table.primary_key = columns;
    if let Some(name) = name {
        table.primary_key_name = syntax::name(name);
    }
    Ok(())
}

fn check_key_type(column: &Column) -> Result<(), SqlError> {
    let base = column.ty.base;
    match base.element().unwrap_or(base) {
        SqlType::Json => {
            let message = format!(
                "data type {base} has no default operator class for access method \"btree\""
            );
            Err(SqlError::new(code::UNDEFINED_OBJECT, message))
        }
        // Its keys are not in the order of its values.
        SqlType::Jsonb => Err(SqlError::unsupported(format!("a key of type {base}"))),
        _ => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), SqlError> {
    if name.is_empty() {
        return Err(SqlError::new(code::SYNTAX, "zero-length delimited identifier"));
    }
    // PostgreSQL cuts names off with a notice; two that differ late must not become one here.
    if name.len() > NAME_BYTES_MAX {
        let message = format!("identifier \"{name}\" is longer than {NAME_BYTES_MAX} bytes");
        return Err(SqlError::new(code::NAME_TOO_LONG, message));
    }
    Ok(())
}

fn constraint_name(option: &ast::ColumnOption) -> &'static str {
    use ast::ColumnOption as O;
    match option {
        O::Unique(_) => "UNIQUE",
        O::ForeignKey(_) => "REFERENCES",
        O::Check(_) => "CHECK",
        O::Generated { .. } | O::Identity(_) => "GENERATED",
        O::Collation(_) => "COLLATE",
        _ => "this column constraint",
    }
}

/// The default of a column, from its SQL text.
pub(super) fn bind_default(default: &str, column: &Column) -> Result<Expr, SqlError> {
    let malformed = |error: &dyn std::fmt::Display| {
        SqlError::new(code::SYNTAX, format!("the default of \"{}\": {error}", column.name))
    };
    let mut parser = Parser::new(&PostgreSqlDialect {})
        .try_with_sql(default)
        .map_err(|error| malformed(&error))?;
    let ast = parser.parse_expr().map_err(|error| malformed(&error))?;
    // A default knows no columns and no parameters.
    let (scope, mut params) = (Scope::default(), Params::default());
    let aggregates = Aggregates::Forbidden("DEFAULT expressions");
    let mut binder = Binder { source: "", scope: &scope, params: &mut params, aggregates };
    let bound = binder.bind(&ast).map_err(|error| {
        let is_column = error.code == code::UNDEFINED_COLUMN;
        let message = "cannot use column reference in DEFAULT expression";
        if is_column { SqlError::unsupported(message) } else { error }
    })?;
    let from = bound.base();
    let expr = binder.assign(bound, &column.name, column.ty).map_err(|mut error| {
        if error.code == code::TYPE_MISMATCH {
            error.message = format!(
                "column \"{}\" is of type {} but default expression is of type {from}",
                column.name, column.ty.base
            );
        }
        error
    })?;
    if !params.types.is_empty() {
        return Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1"));
    }
    Ok(expr)
}
