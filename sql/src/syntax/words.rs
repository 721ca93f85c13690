//! A reader of tokens, for the statements that this crate parses itself.

use sqlparser::ast;
use sqlparser::tokenizer::{Location, Token, TokenWithSpan};

use crate::error::{SqlError, code};

/// The tokens of a statement without blanks, and the position of the next one.
pub(crate) struct Words<'a> {
    /// The text that contains the tokens.
    pub source: &'a str,
    /// Byte offset of the statement in `source`.
    pub start: usize,
    pub tokens: &'a [&'a TokenWithSpan],
    pub at: usize,
}

/// Returns an unquoted word in upper case, such as `SELECT`.
pub(crate) fn word(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    }
}

impl Words<'_> {
    pub(crate) fn token(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|token| &token.token)
    }

    pub(crate) fn unexpected(&self) -> SqlError {
        match self.tokens.get(self.at) {
            Some(token) => {
                let message = format!("syntax error at or near \"{}\"", token.token);
                SqlError::new(code::SYNTAX, message).at(self.source, token.span.start)
            }
            None => {
                let end = SqlError::new(code::SYNTAX, "syntax error at end of input");
                SqlError { position: Some(self.source.chars().count() as u32 + 1), ..end }
            }
        }
    }

    /// Skips these words if all of them come next. Returns whether they did.
    pub(crate) fn take(&mut self, words: &str) -> bool {
        let mut at = self.at;
        for wanted in words.split(' ') {
            let found = self.tokens.get(at).and_then(|token| word(&token.token));
            if found.as_deref() != Some(wanted) {
                return false;
            }
            at += 1;
        }
        self.at = at;
        true
    }

    pub(crate) fn take_one<'w>(&mut self, words: &[&'w str]) -> Option<&'w str> {
        words.iter().find(|word| self.take(word)).copied()
    }

    pub(crate) fn take_token(&mut self, token: &Token) -> bool {
        let is_next = self.token() == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    pub(crate) fn expect(&mut self, words: &str) -> Result<(), SqlError> {
        if self.take(words) { Ok(()) } else { Err(self.unexpected()) }
    }

    pub(crate) fn ident(&mut self) -> Result<ast::Ident, SqlError> {
        let Some(Token::Word(found)) = self.token() else { return Err(self.unexpected()) };
        let lower = found.value.to_lowercase();
        let is_reserved = super::RESERVED.binary_search(&&*lower).is_ok();
        if found.quote_style.is_none() && is_reserved {
            return Err(self.unexpected());
        }
        let ident = found.to_ident(self.tokens[self.at].span);
        self.at += 1;
        Ok(ident)
    }

    pub(crate) fn list<T>(
        &mut self,
        item: impl Fn(&mut Self) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        let mut items = vec![item(self)?];
        while self.take_token(&Token::Comma) {
            items.push(item(self)?);
        }
        Ok(items)
    }

    pub(crate) fn place(&self) -> Location {
        self.tokens.get(self.at).map_or(Location::empty(), |token| token.span.start)
    }
}
