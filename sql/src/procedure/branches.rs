//! The grammar of IF, CASE and loops.

use sqlparser::tokenizer::{Location, Token};

use super::body::{DeclaredType, Does, Numbers, Over, Query, Target};
use super::fragment::Fragment;
use super::grammar::Grammar;
use crate::error::{SqlError, byte_offset, code};
use crate::syntax::{self, name};
use crate::types::SqlType;

impl Grammar<'_> {
    pub(super) fn conditional(&mut self) -> Result<Does, SqlError> {
        let ends = ["ELSIF", "ELSEIF", "ELSE", "END"];
        let mut branches = Vec::new();
        loop {
            let condition = self.expression_before("THEN")?;
            branches.push((condition, self.steps(&ends)?));
            if self.words.take_one(&ends[..2]).is_none() {
                break;
            }
        }
        let otherwise = match self.words.take("ELSE") {
            true => self.steps(&["END"])?,
            false => Vec::new(),
        };
        self.end("IF")?;
        self.semicolon()?;
        Ok(Does::If { branches, otherwise })
    }

    pub(super) fn case(&mut self) -> Result<Does, SqlError> {
        let before = self.visible.len();
        let mut subject = None;
        let mut hidden = String::new();
        if self.words.token().and_then(syntax::words::word).as_deref() != Some("WHEN") {
            let end = self.before("WHEN");
            let compared = self.expression(end)?;
            // The body cannot contain this name, so the generated conditions can refer to the
            // variable.
            hidden = format!("case {}", self.variables.len());
            let slot = self.declare(None, &hidden, DeclaredType::Any, (false, false));
            subject = Some((slot, compared));
        }
        let mut branches = Vec::new();
        while self.words.take("WHEN") {
            let condition = match &subject {
                None => self.expression_before("THEN")?,
                Some(_) => {
                    let end = self.before("THEN");
                    let choices = self.words.text_between(self.words.at, end);
                    let text = format!("\"{hidden}\" IN ({choices})");
                    let condition = Fragment::expression(&text, self.in_sight());
                    let condition = condition.map_err(|error| {
                        let error = SqlError { position: None, ..error };
                        error.at(self.words.source, self.words.place())
                    })?;
                    self.words.at = end;
                    self.words.expect("THEN")?;
                    condition
                }
            };
            branches.push((condition, self.steps(&["WHEN", "ELSE", "END"])?));
        }
        if branches.is_empty() {
            return Err(self.words.unexpected());
        }
        let otherwise = match self.words.take("ELSE") {
            true => Some(self.steps(&["END"])?),
            false => None,
        };
        self.end("CASE")?;
        self.semicolon()?;
        self.visible.truncate(before);
        Ok(Does::Case { subject, branches, otherwise })
    }

    /// Parses LOOP, WHILE, FOR or FOREACH, after the keyword.
    pub(super) fn looped(&mut self, kind: &str, label: Option<String>) -> Result<Does, SqlError> {
        match kind {
            "LOOP" => {
                let steps = self.loop_steps(label.as_deref())?;
                Ok(Does::Loop { label, condition: None, steps })
            }
            "WHILE" => {
                let condition = Some(self.expression_before("LOOP")?);
                let steps = self.loop_steps(label.as_deref())?;
                Ok(Does::Loop { label, condition, steps })
            }
            "FOREACH" => self.foreach(label),
            _ => self.for_loop(label),
        }
    }

    fn foreach(&mut self, label: Option<String>) -> Result<Does, SqlError> {
        let targets = self.targets()?;
        if self.words.take("SLICE") {
            return Err(SqlError::unsupported("FOREACH .. SLICE"));
        }
        self.words.expect("IN ARRAY")?;
        let over = Over::Elements(self.expression_before("LOOP")?);
        let steps = self.loop_steps(label.as_deref())?;
        Ok(Does::For { label, targets, over, steps })
    }

    fn for_loop(&mut self, label: Option<String>) -> Result<Does, SqlError> {
        let start = self.words.at;
        let end = self.before("LOOP");
        let in_at = self.before("IN");
        if let Some(dots) = self.dots(in_at + 1, end) {
            let before = self.visible.len();
            let variable = name(&self.words.ident()?);
            self.words.expect("IN")?;
            let is_reverse = self.words.take("REVERSE");
            let (from, to, by) = self.bounds(dots, end)?;
            let ty = DeclaredType::Known(SqlType::Int4.into());
            let slot = self.declare(label.as_deref(), &variable, ty, (false, false));
            self.words.expect("LOOP")?;
            let steps = self.loop_steps(label.as_deref())?;
            self.visible.truncate(before);
            let over = Over::Numbers(Box::new(Numbers { from, to, by, is_reverse }));
            return Ok(Does::For { label, targets: vec![Target::Variable(slot)], over, steps });
        }
        self.words.at = start;
        let targets = self.targets().map_err(|error| match error.message.ends_with("variable") {
            true => {
                let message = "loop variable of loop over rows must be a record variable or list \
                               of scalar variables";
                SqlError { message: message.to_owned(), ..error }
            }
            false => error,
        })?;
        self.words.expect("IN")?;
        let query = if self.words.take("EXECUTE") {
            let text_end = self.before("USING").min(end);
            let text = self.expression(text_end)?;
            let using = match self.words.take("USING") {
                true => self.listed(&["LOOP"])?,
                false => Vec::new(),
            };
            Query::Computed { text, using }
        } else {
            Query::Written(self.query_before(end)?)
        };
        self.words.expect("LOOP")?;
        let steps = self.loop_steps(label.as_deref())?;
        Ok(Does::For { label, targets, over: Over::Rows(query), steps })
    }

    /// Parses the query that ends before the token at `end`.
    fn query_before(&mut self, end: usize) -> Result<Fragment, SqlError> {
        let place = self.words.place();
        let at =
            |error: SqlError| SqlError { position: None, ..error }.at(self.words.source, place);
        let text = self.words.text_between(self.words.at, end);
        let mut parsed = syntax::parse(&text).map_err(at)?;
        let (Some(parsed), None) = (parsed.pop(), parsed.pop()) else {
            return Err(self.words.unexpected());
        };
        let fragment = Fragment::statement(parsed, self.in_sight()).map_err(at)?;
        self.words.at = end;
        Ok(fragment)
    }

    /// Returns the byte offset of `..` between two tokens. The tokenizer does not know `..`: it
    /// takes a dot next to a number as part of that number.
    fn dots(&self, from: usize, to: usize) -> Option<usize> {
        let byte = |place: Location| byte_offset(self.words.source, place);
        let mut depth = 0;
        for at in from..to.min(self.words.tokens.len()) {
            let token = self.words.tokens[at];
            match &token.token {
                Token::LParen | Token::LBracket => depth += 1,
                Token::RParen | Token::RBracket => depth -= 1,
                Token::Period | Token::Number(..) if depth == 0 => {
                    let next = self.words.tokens.get(at + 1)?;
                    let first = match &token.token {
                        Token::Number(digits, _) if digits.ends_with('.') => {
                            byte(token.span.end) - 1
                        }
                        Token::Period => byte(token.span.start),
                        _ => continue,
                    };
                    let is_dot = match &next.token {
                        Token::Number(digits, _) => digits.starts_with('.'),
                        other => *other == Token::Period,
                    };
                    if is_dot && byte(next.span.start) == first + 1 {
                        return Some(first);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Parses the bounds of a loop over integers, and its step.
    fn bounds(
        &mut self,
        dots: usize,
        end: usize,
    ) -> Result<(Fragment, Fragment, Option<Fragment>), SqlError> {
        let byte = |at: usize, is_end: bool| {
            let span = self.words.tokens[at].span;
            byte_offset(self.words.source, if is_end { span.end } else { span.start })
        };
        let by_at = self.before("BY").min(end);
        let (start, stop) = (byte(self.words.at, false), byte(by_at - 1, true));
        let piece = |from: usize, to: usize| {
            let text = self.words.source.get(from..to).unwrap_or_default().trim();
            if text.is_empty() {
                return Err(self.wrong(code::SYNTAX, "missing expression"));
            }
            let fragment = Fragment::expression(text, self.in_sight());
            fragment.map_err(|error| {
                let error = SqlError { position: None, ..error };
                error.at(self.words.source, self.words.place())
            })
        };
        let (from, to) = (piece(start, dots)?, piece(dots + 2, stop)?);
        self.words.at = by_at;
        let by = match by_at < end {
            true => {
                self.words.at += 1;
                Some(self.expression(end)?)
            }
            false => None,
        };
        Ok((from, to, by))
    }
}
