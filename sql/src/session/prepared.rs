//! PREPARE and EXECUTE: the SQL interface to prepared statements. They share the names of the
//! extended protocol's statements.

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, Tokenizer};

use super::command::Command;
use super::{Response, Session};
use crate::catalog::Enums;
use crate::error::{SqlError, byte_offset, code};
use crate::expr::bind::column_type;
use crate::syntax::{self, Parsed, Postgres};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// Returns the command for a PREPARE or an EXECUTE.
///
/// # Errors
/// If a type is unknown, or the prepared statement does not read or write rows.
pub(super) fn command(parsed: &Parsed) -> Result<Command, SqlError> {
    match &*parsed.ast {
        ast::Statement::Prepare { name, data_types, statement } => {
            prepare(parsed, name, data_types, statement)
        }
        ast::Statement::Execute { name, parameters, immediate: false, .. } => {
            Ok(execute(name.as_ref(), parameters))
        }
        other => Err(SqlError::unsupported(crate::syntax::command_of(other))),
    }
}

fn prepare(
    parsed: &Parsed,
    name: &ast::Ident,
    types: &[ast::DataType],
    statement: &ast::Statement,
) -> Result<Command, SqlError> {
    use ast::Statement as S;
    let text = after_as(&parsed.text);
    if !matches!(statement, S::Query(_) | S::Insert(_) | S::Update(_) | S::Delete(_)) {
        let word = text.split_whitespace().next().unwrap_or_default();
        let message = format!("syntax error at or near \"{word}\"");
        return Err(SqlError::new(code::SYNTAX, message));
    }
    Ok(Command::Prepare { name: syntax::name(name), types: types.into(), text: text.into() })
}

/// Returns the statement after AS in the text of a PREPARE.
fn after_as(text: &str) -> &str {
    let tokens = Tokenizer::new(&Postgres, text).tokenize_with_location();
    let tokens = tokens.unwrap_or_default();
    let is_as = |token: &Token| {
        matches!(token, Token::Word(word)
            if word.keyword == Keyword::AS && word.quote_style.is_none())
    };
    let end = tokens.iter().find(|it| is_as(&it.token)).map(|it| it.span.end);
    end.map_or("", |end| &text[byte_offset(text, end)..])
}

fn execute(name: Option<&ast::ObjectName>, args: &[ast::Expr]) -> Command {
    let name = name.and_then(|name| syntax::name_parts(name).ok()?.pop()).unwrap_or_default();
    Command::Execute { name, args: args.into() }
}

/// Makes a query of the arguments, each cast to the type of its parameter.
pub(super) fn query_of(args: &[ast::Expr], types: &[SqlType]) -> Result<Parsed, SqlError> {
    let values: Vec<String> = args
        .iter()
        .zip(types)
        .map(|(arg, base)| format!("cast(({arg}) as {})", base.name()))
        .collect();
    let parsed = syntax::parse(&format!("select {}", values.join(", ")))?.pop();
    parsed.ok_or_else(|| SqlError::new(code::INTERNAL, "the arguments are a query"))
}

impl Session {
    /// Returns the OIDs of the types in a PREPARE.
    pub(super) async fn prepared_types(
        &mut self,
        types: &[ast::DataType],
    ) -> Result<Vec<u32>, SqlError> {
        let mut oids = Vec::with_capacity(types.len());
        for data_type in types {
            let base = match column_type(data_type, &Enums::default()) {
                Ok(known) => known.base,
                // The type may be an enum: a query of a value of this type returns its OID.
                Err(error) if error.missing_type().is_some() => {
                    let text = format!("select cast(null as {data_type})");
                    let parsed = syntax::parse(&text)?.pop().ok_or(error)?;
                    let command = Command::Data(parsed);
                    let described = Box::pin(self.describe_command(&command, &[]));
                    let columns = described.await?.1;
                    columns.first().map_or(SqlType::Unknown, |column| column.ty.base)
                }
                Err(error) => return Err(error),
            };
            oids.push(base.oid());
        }
        Ok(oids)
    }

    /// Runs a prepared statement whose arguments are expressions.
    pub(super) async fn run_prepared(
        &mut self,
        name: &str,
        args: &[ast::Expr],
    ) -> Result<Response, SqlError> {
        let prepared = self.prepared(name)?.clone();
        if args.len() != prepared.params.len() {
            let message = format!("wrong number of parameters for prepared statement \"{name}\"");
            let detail =
                format!("Expected {} parameters but got {}.", prepared.params.len(), args.len());
            return Err(SqlError::new(code::SYNTAX, message).with_detail(detail));
        }
        let params = self.arguments(args, &prepared.params).await?;
        let Some(Command::Data(parsed)) = &prepared.command else {
            return Err(SqlError::unsupported("EXECUTE of a utility statement"));
        };
        let response = self.run_data(parsed, &prepared.params, &params).await?;
        if let Response::Rows { columns, .. } | Response::Stream { columns } = &response {
            super::extended::check_columns(columns, &prepared.columns)?;
        }
        Ok(response)
    }

    async fn arguments(
        &mut self,
        args: &[ast::Expr],
        types: &[SqlType],
    ) -> Result<Vec<Datum>, SqlError> {
        if args.is_empty() {
            return Ok(Vec::new());
        }
        let query = Arc::new(query_of(args, types)?);
        match self.run_data(&query, &[], &[]).await? {
            Response::Rows { mut rows, .. } if rows.len() == 1 => Ok(rows.swap_remove(0)),
            _ => Err(SqlError::new(code::INTERNAL, "the arguments are one row")),
        }
    }
}
