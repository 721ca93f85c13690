//! RAISE: its grammar and its execution.

use pangea_core::txn::{Context, SqlState};
use sqlparser::tokenizer::Token;

use super::conditions;
use super::fragment::Fragment;
use super::grammar::Grammar;
use super::run::{Frame, Machine};
use crate::error::{Failure, SqlError, code};
use crate::notice::{Notice, Severity};
use crate::syntax::{name, words::word};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::text::format;

/// A RAISE statement.
#[derive(Debug)]
pub(crate) struct Raise {
    /// `None` for EXCEPTION, which raises an error.
    pub severity: Option<Severity>,
    pub what: What,
    pub options: Vec<(Part, Fragment)>,
}

/// The first operand of RAISE.
#[derive(Debug)]
pub(crate) enum What {
    /// Re-raises the error that the handler caught.
    Again,
    /// A format string, and the values that replace each `%`.
    Text(Vec<Piece>, Vec<Fragment>),
    /// A condition name or an SQLSTATE.
    Condition(SqlState, String),
    /// Only the options of USING.
    Options,
}

/// A part of a format string.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece {
    Text(String),
    Value,
}

/// An option of USING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Code,
    Message,
    Detail,
    Hint,
    /// The name of an object; it is evaluated and not sent to the client.
    Other,
}

impl Raise {
    /// Returns its expressions.
    pub(super) fn fragments(&self) -> impl Iterator<Item = &Fragment> {
        let values = match &self.what {
            What::Text(_, values) => &values[..],
            _ => &[],
        };
        values.iter().chain(self.options.iter().map(|(_, value)| value))
    }
}

impl Grammar<'_> {
    /// Parses RAISE, after the keyword.
    pub(super) fn raise(&mut self, has_error: bool) -> Result<Raise, SqlError> {
        if self.words.take_token(&Token::SemiColon) {
            if !has_error {
                let message =
                    "RAISE without parameters cannot be used outside an exception handler";
                return Err(self.wrong(code::STACKED_DIAGNOSTICS, message));
            }
            return Ok(Raise { severity: None, what: What::Again, options: Vec::new() });
        }
        let levels = [
            ("EXCEPTION", None),
            ("DEBUG", Some(Severity::Debug)),
            ("LOG", Some(Severity::Log)),
            ("INFO", Some(Severity::Info)),
            ("NOTICE", Some(Severity::Notice)),
            ("WARNING", Some(Severity::Warning)),
        ];
        let given = levels.iter().find(|(word, _)| self.words.take(word));
        let severity = given.and_then(|(_, severity)| *severity);
        let what = self.raised()?;
        let options = match self.words.take("USING") {
            true => self.raise_options()?,
            false => Vec::new(),
        };
        self.semicolon()?;
        Ok(Raise { severity, what, options })
    }

    fn raised(&mut self) -> Result<What, SqlError> {
        let token = self.words.token().cloned();
        match token {
            Some(Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text)) => {
                self.words.at += 1;
                let pieces = pieces(&text);
                let values = match self.words.take_token(&Token::Comma) {
                    true => self.listed(&["USING"])?,
                    false => Vec::new(),
                };
                let places = pieces.iter().filter(|piece| **piece == Piece::Value).count();
                if places != values.len() {
                    let few = if values.len() < places { "few" } else { "many" };
                    let message = format!("too {few} parameters specified for RAISE");
                    return Err(self.wrong(code::SYNTAX, message));
                }
                Ok(What::Text(pieces, values))
            }
            Some(token) if word(&token).as_deref() == Some("USING") => Ok(What::Options),
            Some(token) if word(&token).as_deref() == Some("SQLSTATE") => {
                self.words.at += 1;
                let state = self.state()?;
                Ok(What::Condition(state, state.as_str().to_owned()))
            }
            Some(Token::Word(_)) => {
                let place = self.words.place();
                let given = name(&self.words.ident()?);
                let state = conditions::code_of(&given).ok_or_else(|| {
                    let message = format!("unrecognized exception condition \"{given}\"");
                    SqlError::new(code::UNDEFINED_OBJECT, message).at(self.words.source, place)
                })?;
                Ok(What::Condition(state, given))
            }
            _ => Err(self.words.unexpected()),
        }
    }

    fn raise_options(&mut self) -> Result<Vec<(Part, Fragment)>, SqlError> {
        let known = [
            ("ERRCODE", Part::Code),
            ("MESSAGE", Part::Message),
            ("DETAIL", Part::Detail),
            ("HINT", Part::Hint),
            ("COLUMN", Part::Other),
            ("CONSTRAINT", Part::Other),
            ("DATATYPE", Part::Other),
            ("TABLE", Part::Other),
            ("SCHEMA", Part::Other),
        ];
        let mut options = Vec::new();
        loop {
            let found = known.iter().find(|(word, _)| self.words.take(word));
            let Some((_, part)) = found else {
                return Err(self.wrong(code::SYNTAX, "unrecognized RAISE statement option"));
            };
            if !self.words.take_token(&Token::Eq) && !self.words.take_token(&Token::Assignment) {
                return Err(self.words.unexpected());
            }
            let end = self.words.end_of_item(&[Token::Comma, Token::SemiColon]);
            options.push((*part, self.expression(end)?));
            if !self.words.take_token(&Token::Comma) {
                return Ok(options);
            }
        }
    }
}

impl Machine<'_> {
    /// Sends a notice to the client, or fails with the raised error.
    pub(super) fn raise(
        &mut self,
        frame: &mut Frame<'_>,
        raise: &Raise,
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        let (mut state, mut message) = match &raise.what {
            What::Again => {
                let error = frame.error.clone();
                return Err(error.expect("the grammar has looked").into());
            }
            What::Text(pieces, values) => (None, Some(self.message_of(frame, pieces, values, cx)?)),
            What::Condition(state, name) => (Some(*state), Some(name.clone())),
            What::Options => (None, None),
        };
        let (mut detail, mut hint) = (None, None);
        let is_named = matches!(raise.what, What::Condition(..));
        for (part, value) in &raise.options {
            let datum = self.evaluate_as(frame, value, SqlType::Text.into(), cx)?;
            let Datum::Text(text) = datum else {
                let message = "RAISE statement option cannot be null";
                return Err(SqlError::new(code::NULL_NOT_ALLOWED, message).into());
            };
            match part {
                Part::Code => {
                    let found = conditions::state(&text).or_else(|| conditions::code_of(&text));
                    state = Some(found.ok_or_else(|| {
                        let message = format!("unrecognized exception condition \"{text}\"");
                        SqlError::new(code::UNDEFINED_OBJECT, message)
                    })?);
                }
                Part::Message if message.is_some() && !is_named => {
                    let message = "RAISE option already specified: MESSAGE";
                    return Err(SqlError::new(code::SYNTAX, message).into());
                }
                Part::Message => message = Some(text),
                Part::Detail => detail = Some(text),
                Part::Hint => hint = Some(text),
                Part::Other => {}
            }
        }
        let Some(severity) = raise.severity else {
            let code = state.unwrap_or(code::RAISED);
            let message = message.unwrap_or_else(|| code.as_str().to_owned());
            return Err(SqlError { detail, hint, ..SqlError::new(code, message) }.into());
        };
        let default = if severity == Severity::Warning { code::WARNING } else { code::SUCCESS };
        let code = state.unwrap_or(default);
        let message = message.unwrap_or_else(|| code.as_str().to_owned());
        self.told_to(Notice { severity, code, message, detail, hint })?;
        Ok(())
    }

    /// Formats a message with its values.
    fn message_of(
        &mut self,
        frame: &mut Frame<'_>,
        pieces: &[Piece],
        values: &[Fragment],
        cx: &mut dyn Context,
    ) -> Result<String, Failure> {
        let mut text = String::new();
        let mut values = values.iter();
        for piece in pieces {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Value => {
                    let value = values.next().expect("the grammar has counted");
                    let (datum, ty) = self.evaluate(frame, value, cx)?;
                    match datum {
                        Datum::Null => text.push_str("<NULL>"),
                        datum => text.push_str(&format(ty.base, &datum, &self.env.zone)),
                    }
                }
            }
        }
        Ok(text)
    }
}

/// Splits a format string at each `%`; `%%` is a literal `%`.
fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = format.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '%' if rest.peek() == Some(&'%') => {
                rest.next();
                text.push('%');
            }
            '%' => {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
                pieces.push(Piece::Value);
            }
            other => text.push(other),
        }
    }
    pieces.push(Piece::Text(text));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_cut_at_its_values() {
        let text = |text: &str| Piece::Text(text.to_owned());
        assert_eq!(pieces("a%%b% c"), [text("a%b"), Piece::Value, text(" c")]);
        assert_eq!(pieces(""), [text("")]);
        assert_eq!(pieces("%"), [text(""), Piece::Value, text("")]);
    }
}
