//! The grammar of COPY, including the option syntax from before PostgreSQL 9.0.

use sqlparser::ast;
use sqlparser::parser::{IsOptional, Parser, ParserError};
use sqlparser::tokenizer::{Location, Token};

use super::syntax_error;
use crate::copy::options::{Given, Options, Value, checked};
use crate::error::{SqlError, code};

/// Parses a COPY statement. Returns its syntax tree without options, and the options.
pub(crate) fn parse(
    source: &str,
    parser: &mut Parser<'_>,
) -> Result<(ast::Statement, Options), SqlError> {
    parser.next_token();
    let mut grammar = Grammar { source, parser, given: Vec::new() };
    grammar.statement()
}

struct Grammar<'a, 'b> {
    source: &'a str,
    parser: &'a mut Parser<'b>,
    given: Vec<Given>,
}

impl Grammar<'_, '_> {
    fn statement(&mut self) -> Result<(ast::Statement, Options), SqlError> {
        let copied = if self.parser.peek_token().token == Token::LParen {
            self.parser.next_token();
            let query = self.parsed(|parser| parser.parse_query())?;
            self.expect(&Token::RParen)?;
            ast::CopySource::Query(query)
        } else {
            self.old_word("BINARY", "format", Value::Word("binary".to_owned()));
            let table_name = self.parsed(|parser| parser.parse_object_name(false))?;
            let columns = self.parsed(|parser| {
                parser.parse_parenthesized_column_list(IsOptional::Optional, false)
            })?;
            ast::CopySource::Table { table_name, columns }
        };
        let is_query = matches!(copied, ast::CopySource::Query(_));
        let is_from = match () {
            () if self.word("TO") => false,
            () if !is_query && self.word("FROM") => true,
            () => return Err(self.unexpected()),
        };
        let target = self.target()?;
        self.options()?;
        if is_from && self.is_word("WHERE") {
            return Err(SqlError::unsupported("COPY FROM .. WHERE").at(self.source, self.here()));
        }
        let options = checked(std::mem::take(&mut self.given), is_from, self.source)?;
        let tree = ast::Statement::Copy {
            source: copied,
            to: !is_from,
            target,
            options: Vec::new(),
            legacy_options: Vec::new(),
            values: Vec::new(),
        };
        Ok((tree, options))
    }

    fn target(&mut self) -> Result<ast::CopyTarget, SqlError> {
        if self.word("PROGRAM") {
            return Ok(ast::CopyTarget::Program { command: self.string()? });
        }
        // As in PostgreSQL, both words mean the client.
        if self.word("STDIN") || self.word("STDOUT") {
            return Ok(ast::CopyTarget::Stdin);
        }
        Ok(ast::CopyTarget::File { filename: self.string()? })
    }

    fn options(&mut self) -> Result<(), SqlError> {
        if self.word("USING") {
            if !self.word("DELIMITERS") {
                return Err(self.unexpected());
            }
            self.old_text("delimiter")?;
        }
        self.word("WITH");
        if self.parser.peek_token().token != Token::LParen {
            while self.old_option()? {}
            return Ok(());
        }
        self.parser.next_token();
        loop {
            let location = self.here();
            let Token::Word(word) = self.parser.next_token().token else {
                return Err(self.unexpected_before());
            };
            let name = folded(&word);
            let value = self.value()?;
            self.given.push(Given { name, value, location });
            if !self.parser.consume_token(&Token::Comma) {
                return self.expect(&Token::RParen);
            }
        }
    }

    fn value(&mut self) -> Result<Value, SqlError> {
        let next = self.parser.peek_token().token;
        match next {
            Token::Comma | Token::RParen | Token::EOF => return Ok(Value::Nothing),
            _ => self.parser.next_token(),
        };
        match next {
            Token::Mul => Ok(Value::Star),
            Token::LParen => {
                let mut words = Vec::new();
                loop {
                    match self.parser.next_token().token {
                        Token::Word(word) => words.push(folded(&word)),
                        Token::SingleQuotedString(text) => words.push(text),
                        _ => return Err(self.unexpected_before()),
                    }
                    if !self.parser.consume_token(&Token::Comma) {
                        self.expect(&Token::RParen)?;
                        return Ok(Value::List(words));
                    }
                }
            }
            Token::Word(word) => Ok(Value::Word(folded(&word))),
            Token::Number(number, _) => Ok(Value::Word(number)),
            other => match quoted(other) {
                Some(text) => Ok(Value::Word(text)),
                None => Err(self.unexpected_before()),
            },
        }
    }

    /// Parses an option in the old syntax. Returns false if there is none.
    fn old_option(&mut self) -> Result<bool, SqlError> {
        let is_taken = self.old_word("BINARY", "format", Value::Word("binary".to_owned()))
            || self.old_word("CSV", "format", Value::Word("csv".to_owned()))
            || self.old_word("HEADER", "header", Value::Nothing)
            || self.old_word("FREEZE", "freeze", Value::Nothing);
        if is_taken {
            return Ok(true);
        }
        for (word, name) in
            [("DELIMITER", "delimiter"), ("NULL", "null"), ("QUOTE", "quote"), ("ESCAPE", "escape")]
        {
            if self.word(word) {
                self.word("AS");
                self.old_text(name)?;
                return Ok(true);
            }
        }
        if self.word("ENCODING") {
            self.old_text("encoding")?;
            return Ok(true);
        }
        if !self.is_word("FORCE") {
            return Ok(false);
        }
        let location = self.here();
        self.parser.next_token();
        let name = if self.word("QUOTE") {
            "force_quote"
        } else if self.word("NULL") {
            "force_null"
        } else if self.word("NOT") && self.word("NULL") {
            "force_not_null"
        } else {
            return Err(self.unexpected());
        };
        let value = if name == "force_quote" && self.parser.consume_token(&Token::Mul) {
            Value::Star
        } else {
            let columns = |parser: &mut Parser<'_>| {
                parser.parse_comma_separated(|parser| parser.parse_identifier())
            };
            Value::List(self.parsed(columns)?.iter().map(super::name).collect())
        };
        self.given.push(Given { name: name.to_owned(), value, location });
        Ok(true)
    }

    fn old_word(&mut self, word: &str, name: &str, value: Value) -> bool {
        let location = self.here();
        let is_there = self.word(word);
        if is_there {
            self.given.push(Given { name: name.to_owned(), value, location });
        }
        is_there
    }

    fn old_text(&mut self, name: &str) -> Result<(), SqlError> {
        let location = self.here();
        let value = Value::Word(self.string()?);
        self.given.push(Given { name: name.to_owned(), value, location });
        Ok(())
    }

    fn string(&mut self) -> Result<String, SqlError> {
        let next = self.parser.next_token().token;
        quoted(next).ok_or_else(|| self.unexpected_before())
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.parser.peek_token().token, Token::Word(found)
            if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
    }

    fn word(&mut self, word: &str) -> bool {
        let is_there = self.is_word(word);
        if is_there {
            self.parser.next_token();
        }
        is_there
    }

    fn expect(&mut self, token: &Token) -> Result<(), SqlError> {
        if self.parser.consume_token(token) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn parsed<T>(
        &mut self,
        parse: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>,
    ) -> Result<T, SqlError> {
        parse(self.parser).map_err(|error| syntax_error(self.source, &error))
    }

    fn here(&self) -> Location {
        self.parser.peek_token().span.start
    }

    fn unexpected(&self) -> SqlError {
        let next = self.parser.peek_token();
        if next.token == Token::EOF {
            let end = SqlError::new(code::SYNTAX, "syntax error at end of input");
            return SqlError { position: Some(self.source.chars().count() as u32 + 1), ..end };
        }
        let message = format!("syntax error at or near \"{}\"", next.token);
        SqlError::new(code::SYNTAX, message).at(self.source, next.span.start)
    }

    fn unexpected_before(&mut self) -> SqlError {
        self.parser.prev_token();
        self.unexpected()
    }
}

fn folded(word: &sqlparser::tokenizer::Word) -> String {
    if word.quote_style.is_some() { word.value.clone() } else { word.value.to_lowercase() }
}

fn quoted(token: Token) -> Option<String> {
    match token {
        Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => Some(text),
        Token::DollarQuotedString(text) => Some(text.value),
        _ => None,
    }
}
