//! The grammar of the supported subset of PL/pgSQL.
//!
//! ```text
//!   [<<label>>] [DECLARE ..] BEGIN .. [EXCEPTION WHEN .. THEN ..] END
//!   x := ..    IF    CASE    LOOP    WHILE    FOR    FOREACH    EXIT    CONTINUE    RETURN
//!   RAISE    ASSERT    PERFORM    EXECUTE    GET DIAGNOSTICS    NULL    and statements of SQL
//! ```
//!
//! Expressions and SQL statements are delimited by the tokens that must follow them. The SQL parser
//! parses their text.

use std::sync::Arc;

use pangea_core::txn::SqlState;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::body::{Declared, DeclaredType, Does, Into, Query, Step, Target, Visible};
use super::fragment::Fragment;
use crate::error::{SqlError, byte_offset, code};
use crate::syntax::words::{Words, word};
use crate::syntax::{self, name};
use crate::types::SqlType;

/// The maximum nesting depth of statements.
const DEPTH_MAX: usize = 60;

/// The parser of a body.
pub(super) struct Grammar<'a> {
    pub words: Words<'a>,
    /// The variables in scope, the innermost last.
    pub visible: Vec<Visible>,
    pub variables: &'a mut Vec<Declared>,
    /// The enclosing labels, and whether each is the label of a loop.
    pub labels: Vec<(Option<String>, bool)>,
    depth: usize,
    /// The number of enclosing handlers.
    pub handlers: usize,
}

/// Parses a body, and appends its variables to those of its parameters.
///
/// # Errors
/// 42601 on a syntax error, 0A000 for unsupported features.
pub(super) fn parse(
    text: &str,
    mut visible: Vec<Visible>,
    variables: &mut Vec<Declared>,
) -> Result<Vec<Step>, SqlError> {
    let tokens = syntax::tokens(text)?;
    let is_word =
        |token: &&TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    let tokens: Vec<&TokenWithSpan> = tokens.iter().filter(is_word).collect();
    let words = Words { source: text, start: 0, tokens: &tokens, at: 0 };
    visible.push(Visible { label: None, name: FOUND.to_owned(), slot: variables.len() });
    variables.push(Declared {
        name: FOUND.to_owned(),
        ty: DeclaredType::Known(SqlType::Bool.into()),
        is_constant: false,
        is_not_null: false,
    });
    let mut grammar =
        Grammar { words, visible, variables, labels: Vec::new(), depth: 0, handlers: 0 };
    let line = grammar.line();
    let label = grammar.label()?;
    if !grammar.words.take("DECLARE") && !grammar.is_next("BEGIN") {
        return Err(grammar.words.unexpected());
    }
    grammar.words.at -= usize::from(!grammar.is_next("BEGIN"));
    let block = grammar.block(label)?;
    let _ = grammar.words.take_token(&Token::SemiColon);
    match grammar.words.token() {
        None => Ok(vec![Step { line, does: Does::Block(block) }]),
        Some(_) => Err(grammar.words.unexpected()),
    }
}

/// The variable that records whether the last statement returned or affected any rows.
pub(super) const FOUND: &str = "found";

impl Grammar<'_> {
    /// Returns the line of the next token.
    fn line(&self) -> u32 {
        self.words.place().line as u32
    }

    pub(super) fn is_next(&self, wanted: &str) -> bool {
        self.words.token().and_then(word).as_deref() == Some(wanted)
    }

    pub(super) fn semicolon(&mut self) -> Result<(), SqlError> {
        match self.words.take_token(&Token::SemiColon) {
            true => Ok(()),
            false => Err(self.words.unexpected()),
        }
    }

    /// Makes an error at the position of the next token.
    pub(super) fn wrong(
        &self,
        code: SqlState,
        message: impl std::convert::Into<String>,
    ) -> SqlError {
        SqlError::new(code, message).at(self.words.source, self.words.place())
    }

    fn label(&mut self) -> Result<Option<String>, SqlError> {
        if !self.words.take_token(&Token::ShiftLeft) {
            return Ok(None);
        }
        let label = name(&self.words.ident()?);
        match self.words.take_token(&Token::ShiftRight) {
            true => Ok(Some(label)),
            false => Err(self.words.unexpected()),
        }
    }

    /// Parses END followed by a keyword.
    pub(super) fn end(&mut self, of: &str) -> Result<(), SqlError> {
        self.words.expect("END")?;
        self.words.expect(of)
    }

    /// Parses the optional label after an END.
    pub(super) fn end_label(&mut self, label: Option<&str>) -> Result<(), SqlError> {
        if let None | Some(Token::SemiColon) = self.words.token() {
            return Ok(());
        }
        let given = name(&self.words.ident()?);
        match label {
            Some(label) if label == given => Ok(()),
            Some(label) => {
                let message =
                    format!("end label \"{given}\" differs from block's label \"{label}\"");
                Err(self.wrong(code::SYNTAX, message))
            }
            None => {
                let message = format!("end label \"{given}\" specified for unlabeled block");
                Err(self.wrong(code::SYNTAX, message))
            }
        }
    }

    /// Returns the variables in scope.
    pub(super) fn in_sight(&self) -> Arc<[Visible]> {
        self.visible.as_slice().into()
    }

    /// Declares a variable and returns its slot.
    pub(super) fn declare(
        &mut self,
        label: Option<&str>,
        name: &str,
        ty: DeclaredType,
        (is_constant, is_not_null): (bool, bool),
    ) -> usize {
        let slot = self.variables.len();
        let (name, label) = (name.to_owned(), label.map(str::to_owned));
        self.visible.push(Visible { label, name: name.clone(), slot });
        self.variables.push(Declared { name, ty, is_constant, is_not_null });
        slot
    }

    /// Parses statements up to one of these words, which is not consumed.
    pub(super) fn steps(&mut self, ends: &[&str]) -> Result<Vec<Step>, SqlError> {
        let mut steps = Vec::new();
        loop {
            if ends.iter().any(|end| self.is_next(end)) {
                return Ok(steps);
            }
            if self.words.token().is_none() {
                return Err(self.words.unexpected());
            }
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                let message = format!("statements are nested more than {DEPTH_MAX} deep");
                return Err(self.wrong(code::TOO_COMPLEX, message));
            }
            let line = self.line();
            steps.push(Step { line, does: self.step()? });
            self.depth -= 1;
        }
    }

    fn step(&mut self) -> Result<Does, SqlError> {
        let label = self.label()?;
        if self.is_next("DECLARE") || self.is_next("BEGIN") {
            let block = self.block(label)?;
            self.semicolon()?;
            return Ok(Does::Block(block));
        }
        let loops = ["LOOP", "WHILE", "FOR", "FOREACH"];
        if let Some(kind) = self.words.take_one(&loops) {
            return self.looped(kind, label);
        }
        if label.is_some() {
            return Err(self.words.unexpected());
        }
        if let Some(assignment) = self.assignment()? {
            return Ok(assignment);
        }
        let kinds = [
            "IF", "CASE", "EXIT", "CONTINUE", "RETURN", "RAISE", "ASSERT", "PERFORM", "EXECUTE",
            "GET", "NULL", "OPEN", "FETCH", "MOVE", "CLOSE",
        ];
        match self.words.take_one(&kinds) {
            Some("IF") => self.conditional(),
            Some("CASE") => self.case(),
            Some("RETURN") => {
                if !matches!(self.words.token(), Some(Token::SemiColon)) {
                    let message = "RETURN cannot have a parameter in function returning void";
                    return Err(self.wrong(code::TYPE_MISMATCH, message));
                }
                self.semicolon()?;
                Ok(Does::Return)
            }
            Some(word @ ("EXIT" | "CONTINUE")) => self.leave(word == "CONTINUE"),
            Some("RAISE") => self.raise(self.handlers > 0).map(Does::Raise),
            Some("ASSERT") => {
                let end = self.words.end_of_item(&[Token::Comma, Token::SemiColon]);
                let condition = self.expression(end)?;
                let message = match self.words.take_token(&Token::Comma) {
                    true => Some(self.expression_to_semicolon()?),
                    false => None,
                };
                self.semicolon()?;
                Ok(Does::Assert { condition, message })
            }
            Some("PERFORM") => {
                let fragment = self.expression_to_semicolon()?;
                self.semicolon()?;
                let query = Query::Written(fragment);
                Ok(Does::Sql { query, into: None, is_perform: true })
            }
            Some("EXECUTE") => self.computed(),
            Some("GET") => self.diagnostics(),
            Some("NULL") => self.semicolon().map(|()| Does::Nothing),
            Some(word) => Err(SqlError::unsupported(format!("{word} in a procedure"))),
            None => self.sql(),
        }
    }

    /// Parses the expression that ends before the token at `end`.
    pub(super) fn expression(&mut self, end: usize) -> Result<Fragment, SqlError> {
        let from = self.words.at;
        if from >= end {
            let message = match self.words.token() {
                Some(token) => format!("missing expression at or near \"{token}\""),
                None => "missing expression".to_owned(),
            };
            return Err(self.wrong(code::SYNTAX, message));
        }
        let text = self.words.text_between(from, end);
        let fragment = Fragment::expression(&text, self.in_sight());
        let fragment = fragment.map_err(|error| self.moved(error, from))?;
        self.words.at = end;
        Ok(fragment)
    }

    /// Translates the position of an error in a fragment into a position in the whole text.
    fn moved(&self, error: SqlError, from: usize) -> SqlError {
        let start = byte_offset(self.words.source, self.words.tokens[from].span.start);
        let before = self.words.source[..start].chars().count() as u32;
        SqlError { position: Some(before + error.position.unwrap_or(1)), ..error }
    }

    pub(super) fn expression_to_semicolon(&mut self) -> Result<Fragment, SqlError> {
        let end = self.words.end_of_item(&[Token::SemiColon]);
        self.expression(end)
    }

    /// Parses an expression up to a word, and consumes the word.
    pub(super) fn expression_before(&mut self, end: &str) -> Result<Fragment, SqlError> {
        let at = self.before(end);
        let fragment = self.expression(at)?;
        self.words.expect(end)?;
        Ok(fragment)
    }

    /// Returns the index of the next occurrence of a word outside parentheses and CASE .. END.
    pub(super) fn before(&self, end: &str) -> usize {
        let (mut depth, mut cases) = (0, 0);
        for (at, token) in self.words.tokens.iter().enumerate().skip(self.words.at) {
            match (&token.token, word(&token.token).as_deref()) {
                (Token::SemiColon, _) => return at,
                (Token::LParen | Token::LBracket, _) => depth += 1,
                (Token::RParen | Token::RBracket, _) => depth -= 1,
                (_, Some(word)) if word == end && depth <= 0 && cases == 0 => return at,
                (_, Some("CASE")) => cases += 1,
                (_, Some("END")) if cases > 0 => cases -= 1,
                _ => {}
            }
        }
        self.words.tokens.len()
    }

    fn assignment(&mut self) -> Result<Option<Does>, SqlError> {
        let is_sign = |at: usize| {
            let token = self.words.tokens.get(at).map(|token| &token.token);
            matches!(token, Some(Token::Assignment | Token::Eq))
        };
        let at = self.words.at;
        let token = |at: usize| self.words.tokens.get(at).map(|token| &token.token);
        if let (Some(Token::Word(_)), Some(Token::LBracket)) = (token(at), token(at + 1)) {
            return Err(SqlError::unsupported("assignment to an element of an array"));
        }
        let is_field = token(at + 1) == Some(&Token::Period);
        let is_assignment = match token(at) {
            Some(Token::Word(_)) => is_sign(at + 1) || (is_field && is_sign(at + 3)),
            _ => false,
        };
        if !is_assignment {
            return Ok(None);
        }
        let target = self.target()?;
        self.words.at += 1;
        let value = self.expression_to_semicolon()?;
        self.semicolon()?;
        Ok(Some(Does::Assign(target, value)))
    }

    /// Parses the target of an assignment: a variable, or a field of a record.
    pub(super) fn target(&mut self) -> Result<Target, SqlError> {
        let place = self.words.place();
        let first = name(&self.words.ident()?);
        let second = match self.words.take_token(&Token::Period) {
            true => Some(name(&self.words.ident()?)),
            false => None,
        };
        let found = self.visible.iter().rev().find_map(|it| match &second {
            None => (it.name == first).then_some(Target::Variable(it.slot)),
            Some(second) if it.label.as_ref() == Some(&first) && it.name == *second => {
                Some(Target::Variable(it.slot))
            }
            Some(second) => (it.name == first).then(|| Target::Field(it.slot, second.clone())),
        });
        let Some(found) = found else {
            let name = second.map_or(first.clone(), |second| format!("{first}.{second}"));
            let message = format!("\"{name}\" is not a known variable");
            return Err(SqlError::new(code::SYNTAX, message).at(self.words.source, place));
        };
        let (Target::Variable(slot) | Target::Field(slot, _)) = &found;
        let Declared { name, is_constant, ty, .. } = &self.variables[*slot];
        if *is_constant {
            let message = format!("variable \"{name}\" is declared CONSTANT");
            return Err(SqlError::new(code::ASSIGNMENT, message).at(self.words.source, place));
        }
        let is_record = matches!(ty, DeclaredType::Record | DeclaredType::Row(_));
        if matches!(found, Target::Field(..)) && !is_record {
            let message = format!("\"{name}\" is not a record variable");
            return Err(SqlError::new(code::SYNTAX, message).at(self.words.source, place));
        }
        Ok(found)
    }

    pub(super) fn targets(&mut self) -> Result<Vec<Target>, SqlError> {
        let mut targets = vec![self.target()?];
        while self.words.take_token(&Token::Comma) {
            targets.push(self.target()?);
        }
        Ok(targets)
    }

    /// INTO [STRICT] x, y
    fn into(&mut self) -> Result<Into, SqlError> {
        let is_strict = self.words.take("STRICT");
        Ok(Into { targets: self.targets()?, is_strict })
    }

    /// Parses an SQL statement, in which INTO may be at any place.
    fn sql(&mut self) -> Result<Does, SqlError> {
        let from = self.words.at;
        let end = self.words.end_of_item(&[Token::SemiColon]);
        let (into, cut) = self.find_into(from, end)?;
        let start = byte_offset(self.words.source, self.words.tokens[from].span.start);
        let mut text = self.words.text_between(from, end);
        if let Some((cut_from, cut_to)) = cut {
            // Blanks replace INTO, so that the positions after it do not change.
            let offset = |at: usize, is_end: bool| {
                let span = self.words.tokens[at].span;
                let place = if is_end { span.end } else { span.start };
                byte_offset(self.words.source, place) - start
            };
            let (a, b) = (offset(cut_from, false), offset(cut_to - 1, true));
            text.replace_range(a..b, &" ".repeat(text[a..b].chars().count()));
        }
        let mut parsed = syntax::parse(&text).map_err(|error| self.moved(error, from))?;
        let (Some(parsed), None) = (parsed.pop(), parsed.pop()) else {
            return Err(self.words.unexpected());
        };
        let fragment = Fragment::statement(parsed, self.in_sight());
        let fragment = fragment.map_err(|error| self.moved(error, from))?;
        self.words.at = end;
        self.semicolon()?;
        Ok(Does::Sql { query: Query::Written(fragment), into, is_perform: false })
    }

    /// Finds PL/pgSQL's INTO within a statement, and the range of its tokens.
    #[allow(clippy::type_complexity, reason = "a place and what is there")]
    fn find_into(
        &mut self,
        from: usize,
        end: usize,
    ) -> Result<(Option<Into>, Option<(usize, usize)>), SqlError> {
        let mut depth = 0;
        for at in from..end {
            let token = &self.words.tokens[at].token;
            match token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ => {}
            }
            let is_before = |wanted| {
                at > from && word(&self.words.tokens[at - 1].token).as_deref() == Some(wanted)
            };
            let is_into = word(token).as_deref() == Some("INTO");
            if depth == 0 && is_into && !is_before("INSERT") && !is_before("MERGE") {
                self.words.at = at + 1;
                let into = self.into()?;
                let to = self.words.at;
                self.words.at = from;
                return Ok((Some(into), Some((at, to))));
            }
        }
        Ok((None, None))
    }

    /// EXECUTE text [INTO ..] [USING ..]
    fn computed(&mut self) -> Result<Does, SqlError> {
        let end = [self.before("INTO"), self.before("USING")].into_iter().min();
        let text = self.expression(end.expect("two"))?;
        let mut into = None;
        let mut using = Vec::new();
        loop {
            if into.is_none() && self.words.take("INTO") {
                into = Some(self.into()?);
            } else if using.is_empty() && self.words.take("USING") {
                using = self.listed(&["INTO"])?;
            } else {
                break;
            }
        }
        self.semicolon()?;
        Ok(Does::Sql { query: Query::Computed { text, using }, into, is_perform: false })
    }

    /// Parses expressions separated by commas, up to a semicolon or one of these words.
    pub(super) fn listed(&mut self, ends: &[&str]) -> Result<Vec<Fragment>, SqlError> {
        let mut found = Vec::new();
        loop {
            let comma = self.words.end_of_item(&[Token::Comma, Token::SemiColon]);
            let word = ends.iter().map(|end| self.before(end)).min();
            found.push(self.expression(word.map_or(comma, |word| word.min(comma)))?);
            if !self.words.take_token(&Token::Comma) {
                return Ok(found);
            }
        }
    }

    fn leave(&mut self, is_continue: bool) -> Result<Does, SqlError> {
        let mut label = None;
        if !self.is_next("WHEN") && self.words.token() != Some(&Token::SemiColon) {
            let given = name(&self.words.ident()?);
            let known = self.labels.iter().rev().find(|(known, _)| known.as_ref() == Some(&given));
            match known {
                Some((_, is_loop)) if is_continue && !is_loop => {
                    let message = format!("block label \"{given}\" cannot be used in CONTINUE");
                    return Err(self.wrong(code::SYNTAX, message));
                }
                Some(_) => label = Some(given),
                None => {
                    let message = format!(
                        "there is no label \"{given}\" attached to any block or loop enclosing \
                         this statement"
                    );
                    return Err(self.wrong(code::SYNTAX, message));
                }
            }
        } else if !self.labels.iter().any(|(_, is_loop)| *is_loop) {
            let message = if is_continue {
                "CONTINUE cannot be used outside a loop"
            } else {
                "EXIT cannot be used outside a loop, unless it has a label"
            };
            return Err(self.wrong(code::SYNTAX, message));
        }
        let when = match self.words.take("WHEN") {
            true => Some(self.expression_to_semicolon()?),
            false => None,
        };
        self.semicolon()?;
        Ok(Does::Leave { is_continue, label, when })
    }

    /// Parses the statements of a loop, with its label in scope.
    pub(super) fn loop_steps(&mut self, label: Option<&str>) -> Result<Vec<Step>, SqlError> {
        self.labels.push((label.map(str::to_owned), true));
        let steps = self.steps(&["END"])?;
        self.labels.pop();
        self.end("LOOP")?;
        self.end_label(label)?;
        self.semicolon()?;
        Ok(steps)
    }
}
