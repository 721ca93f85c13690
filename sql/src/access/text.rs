//! Expressions that the catalog stores as SQL text: defaults, conditions, index expressions.

use sqlparser::ast;
use sqlparser::parser::Parser;

use crate::catalog::{Column, Enums, Table};
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Binder, Bound, Params, Scope, ScopeColumn};
use crate::syntax::Postgres;
use crate::vocabulary::column::ColumnId;

/// Parses the text of an expression; `what` describes it in errors.
fn parse(text: &str, what: &str) -> Result<ast::Expr, SqlError> {
    let malformed = |error: &dyn std::fmt::Display| {
        SqlError::new(code::SYNTAX, format!("{what} {text:?}: {error}"))
    };
    let mut parser =
        Parser::new(&Postgres).try_with_sql(text).map_err(|error| malformed(&error))?;
    parser.parse_expr().map_err(|error| malformed(&error))
}

/// Whether an expression is written as a function call.
pub(crate) fn is_call(text: &str) -> bool {
    use ast::Expr::{Ceil, Extract, Floor, Function, Overlay, Position, Substring, Trim};
    matches!(
        parse(text, "expression"),
        Ok(Function(_)
            | Ceil { .. }
            | Extract { .. }
            | Floor { .. }
            | Overlay { .. }
            | Position { .. }
            | Substring { .. }
            | Trim { .. })
    )
}

/// Binds an expression without parameters, and passes it to `then`. If it may refer to sequences,
/// they are added to `sequences`.
fn bind<T>(
    text: &str,
    (scope, enums): (&Scope, &Enums),
    what: &'static str,
    sequences: Option<&mut Params>,
    then: impl FnOnce(&mut Binder<'_>, Bound) -> Result<T, SqlError>,
) -> Result<T, SqlError> {
    let ast = parse(text, what)?;
    let known = sequences.as_ref().map(|params| params.sequences.clone());
    let sequences_known = known.unwrap_or_default();
    let mut params = Params { sequences: sequences_known, is_kept: true, ..Params::of_text(enums) };
    let aggregates = Aggregates::Forbidden(what);
    let nested = Vec::new();
    let mut binder =
        Binder { source: "", scope, params: &mut params, aggregates, outer: &[], nested };
    let bound = binder.bind(&ast)?;
    let done = then(&mut binder, bound)?;
    if !params.types.is_empty() {
        return Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1"));
    }
    if params.reads_catalog {
        return Err(SqlError::unsupported(format!("a name of a catalog object in {what}")));
    }
    match sequences {
        Some(all) => {
            all.sequences = params.sequences;
            all.needs.extend(params.needs);
        }
        None if params.sequences.is_empty() => {}
        None => return Err(SqlError::unsupported(format!("a sequence in {what}"))),
    }
    Ok(done)
}

/// Binds an expression over the columns of a table.
pub(crate) fn over_table(table: &Table, text: &str, what: &'static str) -> Result<Bound, SqlError> {
    let scope = (&scope_of(table, table.name.name()), &table.enums);
    bind(text, scope, what, None, |binder, bound| binder.output(bound))
}

/// Binds a condition over the columns of a table.
pub(crate) fn condition(table: &Table, text: &str, what: &'static str) -> Result<Expr, SqlError> {
    let scope = scope_of(table, table.name.name());
    let scope = (&scope, &table.enums);
    bind(text, scope, what, None, |binder, bound| binder.boolean(bound, what))
}

/// Binds the generation expression of a column.
pub(crate) fn generated(table: &Table, column: &Column, text: &str) -> Result<Expr, SqlError> {
    let scope = scope_of(table, table.name.name());
    let what = "column generation expressions";
    let scope = (&scope, &table.enums);
    bind(text, scope, what, None, |binder, bound| binder.assign(bound, &column.name, column.ty))
}

/// Binds a column value at which a range of rows begins.
pub(crate) fn range_start(text: &str, column: &Column, enums: &Enums) -> Result<Expr, SqlError> {
    let scope = Scope::default();
    let bound = bind(text, (&scope, enums), "partition bound", None, |binder, bound| {
        binder.assign(bound, &column.name, column.ty)
    });
    bound.map_err(|mut error| match error.code {
        code::TYPE_MISMATCH => {
            error.message = format!(
                "specified value cannot be cast to type {} for column \"{}\"",
                column.ty.base, column.name
            );
            error
        }
        code::UNDEFINED_COLUMN => {
            let message = "cannot use column reference in partition bound expression";
            SqlError::new(code::FEATURE_NOT_SUPPORTED, message)
        }
        _ => error,
    })
}

/// Binds the default of a column.
pub(crate) fn default(
    text: &str,
    column: &Column,
    sequences: &mut Params,
) -> Result<Expr, SqlError> {
    // A default refers to no columns.
    let scope = Scope::default();
    let assign = |binder: &mut Binder<'_>, bound: Bound| {
        let from = bound.base();
        binder.assign(bound, &column.name, column.ty).map_err(|mut error| {
            if error.code == code::TYPE_MISMATCH {
                error.message = format!(
                    "column \"{}\" is of type {} but default expression is of type {from}",
                    column.name, column.ty.base
                );
            }
            error
        })
    };
    let enums = sequences.enums.clone();
    bind(text, (&scope, &enums), "DEFAULT expressions", Some(sequences), assign).map_err(|error| {
        let is_column = error.code == code::UNDEFINED_COLUMN;
        let message = "cannot use column reference in DEFAULT expression";
        if is_column { SqlError::new(code::FEATURE_NOT_SUPPORTED, message) } else { error }
    })
}

/// Returns the columns of a table under its name or alias.
pub(crate) fn scope_of(table: &Table, alias: &str) -> Scope {
    let mut scope = scope_as(table, alias, 0);
    if alias == table.name.name() {
        scope.is_of(table.name.schema());
    }
    scope
}

/// Returns the columns of a table as a numbered relation of a query.
pub(crate) fn scope_as(table: &Table, alias: &str, relation: u32) -> Scope {
    let columns = table.columns.iter().enumerate().map(|(at, column)| ScopeColumn {
        schema: None,
        table: alias.to_owned(),
        name: column.name.clone(),
        ty: column.ty,
        is_hidden: column.is_dropped,
        is_merged: false,
        is_unlisted: false,
        is_key: table.primary_key.contains(&at),
        id: ColumnId { relation, column: at as u32 },
    });
    Scope { columns: columns.collect() }
}
