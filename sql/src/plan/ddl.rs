//! Planning of CREATE TABLE.

pub(super) mod spread;

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::dml::specified_twice;
use super::{CreateTable, Plan, Planner, refuse};
use crate::access::text;
use crate::catalog::{Column, QualifiedName, Sequence, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::Params;
use crate::syntax;
use crate::types::{ColumnType, SqlType};

/// The maximum number of columns of a table, as in PostgreSQL.
const TABLE_COLUMNS_MAX: usize = 1_600;
/// The maximum length of a name in bytes, as in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

impl Planner<'_> {
    pub(super) fn create_table(&mut self, create: &ast::CreateTable) -> Result<Plan, Failure> {
        refuse(&[
            (create.temporary, "CREATE TEMPORARY TABLE"),
            (create.external || create.or_replace, "this form of CREATE TABLE"),
            (create.query.is_some(), "CREATE TABLE AS"),
            (create.like.is_some(), "CREATE TABLE LIKE"),
            (create.partition_of.is_some(), "PARTITION OF"),
            (create.inherits.is_some(), "INHERITS"),
        ])?;
        let name = self.new_name(&create.name)?;
        let mut table = Table { enums: self.params.enums.clone(), ..Table::new(name) };
        let mut sequences = Vec::new();
        for def in &create.columns {
            self.column(def, &mut table)?;
        }
        // Generated columns and table constraints may refer to any column.
        for (at, def) in create.columns.iter().enumerate() {
            sequences.extend(self.generation(def, at, &mut table)?);
        }
        for (at, def) in create.columns.iter().enumerate() {
            self.column_keys(def, at, &mut table)?;
        }
        for constraint in &create.constraints {
            self.constraint(constraint, &mut table)?;
        }
        // Foreign keys may refer to a key of this table.
        for (at, def) in create.columns.iter().enumerate() {
            self.column_references(def, at, &mut table)?;
        }
        for constraint in &create.constraints {
            if let ast::TableConstraint::ForeignKey(key) = constraint {
                self.foreign_key(key, &mut table)?;
            }
        }
        if table.columns.len() > TABLE_COLUMNS_MAX {
            let message = format!("tables can have at most {TABLE_COLUMNS_MAX} columns");
            return Err(SqlError::new(code::TOO_MANY_COLUMNS, message).into());
        }
        let starts = self.spread(create, &mut table)?;
        let if_not_exists = create.if_not_exists;
        Ok(Plan::utility(CreateTable { table, starts, sequences, if_not_exists }))
    }

    /// Adds a column, without properties that involve other columns.
    pub(super) fn column(
        &mut self,
        def: &ast::ColumnDef,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let location = def.name.span.start;
        let name = syntax::name(&def.name);
        check_name(&name)?;
        if table.position(&name).is_some() {
            return Err(self.error_at(specified_twice(&name), location));
        }
        let serial = serial_type(&def.data_type).map(Ok);
        let ty = serial.unwrap_or_else(|| self.column_type(&def.data_type));
        let ty = ty.map_err(|error| self.error_at(error, location))?;
        let mut column = Column::new(name, ty);
        for option in &def.options {
            match &option.option {
                ast::ColumnOption::NotNull => column.is_not_null = true,
                ast::ColumnOption::Default(expr) => {
                    let default = self.kept_text(expr)?;
                    text::default(&default, &column, &mut Params::of_text(&self.params.enums))
                        .map_err(|e| self.error_at(e, location))?;
                    column.default = Some(default);
                }
                ast::ColumnOption::Null
                | ast::ColumnOption::PrimaryKey(_)
                | ast::ColumnOption::Unique(_)
                | ast::ColumnOption::Check(_)
                | ast::ColumnOption::ForeignKey(_)
                | ast::ColumnOption::Generated { .. } => {}
                other => {
                    let feature = constraint_name(other);
                    return Err(self.error_at(SqlError::unsupported(feature), location));
                }
            }
        }
        table.columns.push(column);
        Ok(())
    }

    /// Sets the generation expression or the sequence of a column, if it has one. Returns the new
    /// sequence that the column owns.
    pub(super) fn generation(
        &mut self,
        def: &ast::ColumnDef,
        at: usize,
        table: &mut Table,
    ) -> Result<Option<(QualifiedName, Sequence)>, Failure> {
        let location = def.name.span.start;
        if serial_type(&def.data_type).is_some() {
            return self.serial(table, at).map(Some);
        }
        for option in &def.options {
            let ast::ColumnOption::Generated {
                generated_as,
                sequence_options,
                generation_expr,
                generation_expr_mode,
                ..
            } = &option.option
            else {
                continue;
            };
            let is_always = *generated_as != ast::GeneratedAs::ByDefault;
            let Some(expr) = generation_expr else {
                let options = sequence_options.as_deref().unwrap_or_default();
                return self.identity(table, at, is_always, options).map(Some);
            };
            let mode = generation_expr_mode.as_ref();
            let is_stored = matches!(mode, Some(ast::GeneratedExpressionMode::Stored));
            refuse(&[(!is_stored || !is_always, "a generated column that is not STORED")])?;
            let column = &table.columns[at];
            if column.default.is_some() {
                let message = format!(
                    "both default and generation expression specified for column \"{}\" of table \
                     \"{}\"",
                    column.name, table.name
                );
                return Err(self.error_at(SqlError::new(code::SYNTAX, message), location));
            }
            let sql = expr.to_string();
            let bound =
                text::generated(table, column, &sql).map_err(|e| self.error_at(e, location))?;
            self.check_generation(table, &bound, location)?;
            table.columns[at].generated = Some(sql);
        }
        Ok(None)
    }

    /// Checks that a generation expression is immutable and refers to no generated column.
    fn check_generation(
        &self,
        table: &Table,
        expr: &Expr,
        location: Location,
    ) -> Result<(), Failure> {
        let mut columns = expr.columns().into_iter().map(|at| &table.columns[at]);
        if let Some(column) = columns.find(|column| column.generated.is_some()) {
            let name = &column.name;
            let message =
                format!("cannot use generated column \"{name}\" in column generation expression");
            let detail = "A generated column cannot reference another generated column.";
            let error = SqlError::new(code::INVALID_OBJECT_DEFINITION, message);
            return Err(self.error_at(error.with_detail(detail), location));
        }
        if !expr.is_immutable() {
            let message = "generation expression is not immutable";
            let error = SqlError::new(code::INVALID_OBJECT_DEFINITION, message);
            return Err(self.error_at(error, location));
        }
        Ok(())
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), SqlError> {
    if name.is_empty() {
        return Err(SqlError::new(code::SYNTAX, "zero-length delimited identifier"));
    }
    if name.contains('\0') {
        return Err(SqlError::new(code::SYNTAX, "a name with a zero byte"));
    }
    // PostgreSQL truncates longer names with a notice. Here they are an error, so that two names
    // that differ only at the end are not confused.
    if name.len() > NAME_BYTES_MAX {
        let message = format!("identifier \"{name}\" is longer than {NAME_BYTES_MAX} bytes");
        return Err(SqlError::new(code::NAME_TOO_LONG, message));
    }
    Ok(())
}

/// Returns the type of a `serial` column.
fn serial_type(data_type: &ast::DataType) -> Option<ColumnType> {
    let ast::DataType::Custom(name, arguments) = data_type else { return None };
    let parts = syntax::name_parts(name).ok().filter(|_| arguments.is_empty())?;
    let base = match &parts[..] {
        [name] => match name.as_str() {
            "smallserial" | "serial2" => SqlType::Int2,
            "serial" | "serial4" => SqlType::Int4,
            "bigserial" | "serial8" => SqlType::Int8,
            _ => return None,
        },
        _ => return None,
    };
    Some(base.into())
}

fn constraint_name(option: &ast::ColumnOption) -> &'static str {
    use ast::ColumnOption as O;
    match option {
        O::Identity(_) => "GENERATED",
        O::Collation(_) => "COLLATE",
        _ => "this column constraint",
    }
}
