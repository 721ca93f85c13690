//! CREATE PROCEDURE and DO, in PostgreSQL's grammar.

use sqlparser::ast;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::roles::RoleName;
use super::words::{Words, word};
use super::{Postgres, Written, name, syntax_error, table_name};
use crate::catalog::procedure::{Language, Mode, Parameter};
use crate::error::{SqlError, byte_offset, code};
use crate::types::SqlType;

/// Maximum number of parameters, as in PostgreSQL.
const PARAMETERS_MAX: usize = 100;

/// A statement about procedures that this crate parses itself.
#[derive(Clone, Debug)]
pub(crate) enum ProcedureStatement {
    Create(Declared),
    /// A body that runs immediately.
    Do(Body),
    /// ALTER PROCEDURE .. OWNER TO, with the argument types if they are specified.
    Own {
        name: Written,
        types: Option<Vec<ast::DataType>>,
        owner: RoleName,
    },
}

/// A procedure as declared.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub name: Written,
    /// The parameters. Their types are not resolved yet.
    pub parameters: Vec<Parameter>,
    pub types: Vec<ast::DataType>,
    pub is_replace: bool,
    pub body: Body,
}

/// The body of a procedure, as written.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub language: Language,
    pub text: String,
    /// Number of characters of the query text before the body. `None` if the query text does not
    /// contain the body literally, as in a string with escapes.
    pub start: Option<usize>,
}

/// Parses a statement about procedures from tokens without blanks. Returns `None` for any other
/// statement.
///
/// # Errors
/// 42601 if the statement is malformed, 0A000 for unsupported features.
pub(super) fn parse(
    source: &str,
    start: usize,
    tokens: &[&TokenWithSpan],
) -> Result<Option<ProcedureStatement>, SqlError> {
    let mut words = Words { source, start, tokens, at: 0 };
    if words.take("DO") {
        let body = words.body(Some(Language::PlPgSql))?;
        return Ok(Some(ProcedureStatement::Do(body)));
    }
    if words.take("ALTER PROCEDURE") {
        return words.alter_procedure().map(Some);
    }
    let is_replace = words.take("CREATE OR REPLACE PROCEDURE");
    if !is_replace && !words.take("CREATE PROCEDURE") {
        return Ok(None);
    }
    let name = words.procedure_name()?;
    let (parameters, types) = words.parameters()?.into_iter().unzip();
    let body = words.body(None)?;
    let declared = Declared { name, parameters, types, is_replace, body };
    Ok(Some(ProcedureStatement::Create(declared)))
}

impl Words<'_> {
    fn alter_procedure(&mut self) -> Result<ProcedureStatement, SqlError> {
        let name = self.procedure_name()?;
        let types = match self.token() {
            Some(Token::LParen) => {
                let given = self.parameters()?.into_iter().filter(|(it, _)| it.mode.is_in());
                Some(given.map(|(_, ty)| ty).collect())
            }
            _ => None,
        };
        if !self.take("OWNER TO") {
            let what = self.token().and_then(word).ok_or_else(|| self.unexpected())?;
            return Err(SqlError::unsupported(format!("ALTER PROCEDURE .. {what}")));
        }
        let owner = self.role_name()?;
        match self.token() {
            None => Ok(ProcedureStatement::Own { name, types, owner }),
            Some(_) => Err(self.unexpected()),
        }
    }

    fn procedure_name(&mut self) -> Result<Written, SqlError> {
        let mut parts = vec![self.ident()?];
        while self.take_token(&Token::Period) {
            parts.push(self.ident()?);
        }
        table_name(&ast::ObjectName::from(parts))
    }

    fn parameters(&mut self) -> Result<Vec<(Parameter, ast::DataType)>, SqlError> {
        if !self.take_token(&Token::LParen) {
            return Err(self.unexpected());
        }
        let mut parameters: Vec<(Parameter, ast::DataType)> = Vec::new();
        if self.take_token(&Token::RParen) {
            return Ok(parameters);
        }
        loop {
            let (parameter, ty) = self.parameter()?;
            let is_known = |(known, _): &(Parameter, _)| known.name == parameter.name;
            if !parameter.name.is_empty() && parameters.iter().any(is_known) {
                let message = format!("parameter name \"{}\" used more than once", parameter.name);
                return Err(SqlError::new(code::INVALID_FUNCTION, message));
            }
            let must_have =
                parameters.iter().any(|(it, _)| it.mode.is_in() && it.default.is_some());
            if must_have && parameter.mode.is_in() && parameter.default.is_none() {
                let message =
                    "input parameters after one with a default value must also have defaults";
                return Err(SqlError::new(code::INVALID_FUNCTION, message));
            }
            parameters.push((parameter, ty));
            if self.take_token(&Token::RParen) {
                break;
            }
            if !self.take_token(&Token::Comma) {
                return Err(self.unexpected());
            }
        }
        if parameters.len() > PARAMETERS_MAX {
            let message = format!("procedures cannot have more than {PARAMETERS_MAX} arguments");
            return Err(SqlError::new(code::TOO_MANY_ARGUMENTS, message));
        }
        Ok(parameters)
    }

    fn mode(&mut self) -> Result<Option<Mode>, SqlError> {
        if self.take("VARIADIC") {
            return Err(SqlError::unsupported("VARIADIC"));
        }
        Ok(match self.take_one(&["IN OUT", "IN", "OUT", "INOUT"]) {
            Some("IN") => Some(Mode::In),
            Some("OUT") => Some(Mode::Out),
            Some(_) => Some(Mode::InOut),
            None => None,
        })
    }

    /// Parses `[mode] [name] type` or `name mode type`, with an optional default.
    fn parameter(&mut self) -> Result<(Parameter, ast::DataType), SqlError> {
        let end = self.end_of_item(&[Token::Comma]);
        let is_default =
            |token: &Token| *token == Token::Eq || word(token).as_deref() == Some("DEFAULT");
        let in_item = &self.tokens[self.at..end];
        let default_at = in_item.iter().position(|token| is_default(&token.token));
        let type_end = default_at.map_or(end, |at| self.at + at);
        let mut mode = self.mode()?;
        let mut parameter_name = String::new();
        if self.type_between(self.at, type_end).is_err() {
            parameter_name = name(&self.ident()?);
            mode = mode.or(self.mode()?);
        }
        let ty = self.type_between(self.at, type_end)?;
        let default = default_at.map(|_| self.text_between(type_end + 1, end));
        let mode = mode.unwrap_or(Mode::In);
        if default.is_some() && !mode.is_in() {
            let message = "only input parameters can have default values";
            return Err(SqlError::new(code::INVALID_FUNCTION, message));
        }
        if default.as_ref().is_some_and(String::is_empty) {
            self.at = end;
            return Err(self.unexpected());
        }
        self.at = end;
        let unknown = SqlType::Unknown.into();
        Ok((Parameter { name: parameter_name, mode, ty: unknown, default }, ty))
    }

    /// Returns the position of the first of these tokens outside of parentheses, or of the token
    /// that closes the enclosing parentheses.
    pub(crate) fn end_of_item(&self, ends: &[Token]) -> usize {
        let mut depth = 0;
        for (at, token) in self.tokens.iter().enumerate().skip(self.at) {
            match &token.token {
                Token::LParen | Token::LBracket => depth += 1,
                Token::RParen | Token::RBracket if depth == 0 => return at,
                Token::RParen | Token::RBracket => depth -= 1,
                token if depth == 0 && ends.contains(token) => return at,
                _ => {}
            }
        }
        self.tokens.len()
    }

    /// Parses a type that spans a whole range of tokens.
    pub(crate) fn type_between(&self, from: usize, to: usize) -> Result<ast::DataType, SqlError> {
        let tokens = self.tokens[from..to].iter().map(|token| (*token).clone()).collect();
        let mut parser = Parser::new(&Postgres).with_tokens_with_locations(tokens);
        let ty = parser.parse_data_type().map_err(|error| syntax_error(self.source, &error))?;
        let next = parser.peek_token();
        if next.token != Token::EOF {
            let message = format!("syntax error at or near \"{}\"", next.token);
            return Err(SqlError::new(code::SYNTAX, message).at(self.source, next.span.start));
        }
        Ok(ty)
    }

    /// Returns the text of a range of tokens.
    pub(crate) fn text_between(&self, from: usize, to: usize) -> String {
        let Some(tokens) = self.tokens.get(from..to).filter(|tokens| !tokens.is_empty()) else {
            return String::new();
        };
        let start = byte_offset(self.source, tokens[0].span.start);
        let end = byte_offset(self.source, tokens[tokens.len() - 1].span.end);
        self.source[start..end].to_owned()
    }

    /// Parses LANGUAGE and AS with the options around them, to the end of the statement.
    fn body(&mut self, default: Option<Language>) -> Result<Body, SqlError> {
        let (mut language, mut text) = (None, None);
        while let Some(token) = self.tokens.get(self.at) {
            if self.take("LANGUAGE") {
                language = Some(self.language()?);
            } else if default.is_none() && self.take("BEGIN ATOMIC") {
                let hint = "Write the body as a string: AS $$ ... $$.";
                return Err(SqlError::unsupported("BEGIN ATOMIC").with_hint(hint));
            } else if default.is_none() && self.take("SECURITY INVOKER") {
                // This is the default.
            } else if default.is_none() && self.take("SECURITY DEFINER") {
                return Err(SqlError::unsupported("SECURITY DEFINER"));
            } else if default.is_none() && self.take("SET") {
                return Err(SqlError::unsupported("SET of a procedure"));
            } else if default.is_none() && self.take("TRANSFORM") {
                return Err(SqlError::unsupported("TRANSFORM"));
            } else if (default.is_some() || self.take("AS")) && text.is_none() {
                text = Some(self.string()?);
            } else {
                let message = format!("syntax error at or near \"{}\"", token.token);
                return Err(SqlError::new(code::SYNTAX, message).at(self.source, token.span.start));
            }
        }
        let Some((text, start)) = text else {
            let what = if default.is_some() { "no inline code" } else { "no procedure body" };
            return Err(SqlError::new(code::INVALID_FUNCTION, format!("{what} specified")));
        };
        let Some(language) = language.or(default) else {
            return Err(SqlError::new(code::INVALID_FUNCTION, "no language specified"));
        };
        Ok(Body { language, text, start })
    }

    fn language(&mut self) -> Result<Language, SqlError> {
        let given = match self.token() {
            Some(Token::SingleQuotedString(text)) => {
                let text = text.to_lowercase();
                self.at += 1;
                text
            }
            _ => name(&self.ident()?),
        };
        match given.as_str() {
            "sql" => Ok(Language::Sql),
            "plpgsql" => Ok(Language::PlPgSql),
            "c" | "internal" => Err(SqlError::unsupported(format!("the language {given}"))),
            other => {
                let message = format!("language \"{other}\" does not exist");
                Err(SqlError::new(code::UNDEFINED_OBJECT, message))
            }
        }
    }

    /// Parses a string. Returns its text, and the position of the text in the query text.
    fn string(&mut self) -> Result<(String, Option<usize>), SqlError> {
        let Some(token) = self.tokens.get(self.at) else { return Err(self.unexpected()) };
        let text = match &token.token {
            Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => text.clone(),
            Token::DollarQuotedString(text) => text.value.clone(),
            _ => return Err(self.unexpected()),
        };
        let from = byte_offset(self.source, token.span.start);
        let to = byte_offset(self.source, token.span.end);
        let found = self.source[from..to].find(&text).filter(|_| !text.is_empty());
        let start = found.map(|at| self.source[..from + at].chars().count());
        self.at += 1;
        Ok((text, start))
    }
}
