//! `AS OF SYSTEM TIME`, an extension of PostgreSQL's grammar, at the end of FROM, BEGIN or SET
//! TRANSACTION.

use sqlparser::ast;
use sqlparser::tokenizer::{Location, Token, TokenWithSpan};

use super::words::word;
use crate::error::{SqlError, code};

/// The moment that a statement requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AsOf {
    /// The text of the moment, without quotes.
    pub text: String,
    /// Whether it is written as an INTERVAL. A negative interval goes back in time.
    pub is_interval: bool,
    /// Whether a minus sign precedes it.
    pub is_negative: bool,
}

/// The words that begin the clause.
const WORDS: [&str; 4] = ["AS", "OF", "SYSTEM", "TIME"];

/// Removes the clause from the tokens of a statement, if it has one.
///
/// # Errors
/// 42601 if the clause is malformed, 0A000 if it is in a nested query.
pub(super) fn take(
    source: &str,
    tokens: &mut Vec<TokenWithSpan>,
) -> Result<Option<AsOf>, SqlError> {
    let is_blank = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let mut depth = 0_usize;
    let mut found: Option<(usize, usize, AsOf)> = None;
    // The positions of the tokens that are not blanks.
    let places: Vec<usize> = (0..tokens.len()).filter(|at| !is_blank(&tokens[*at])).collect();
    for (at, place) in places.iter().enumerate() {
        match tokens[*place].token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_word = |(offset, wanted): (usize, &&str)| {
            let token = places.get(at + offset).map(|place| &tokens[*place].token);
            token.and_then(word).as_deref() == Some(*wanted)
        };
        if !WORDS.iter().enumerate().all(is_word) {
            continue;
        }
        let start = tokens[*place].span.start;
        if depth > 0 {
            let feature = "AS OF SYSTEM TIME in a subquery";
            let hint = "It applies to the whole statement: write it after the FROM clause of the \
                        outermost query.";
            return Err(SqlError::unsupported(feature).at(source, start).with_hint(hint));
        }
        if found.is_some() {
            return Err(unexpected(source, &tokens[*place]));
        }
        let (as_of, count) = moment(source, tokens, &places[at + WORDS.len()..])?;
        let last = places[at + WORDS.len() + count - 1];
        found = Some((*place, last, as_of));
    }
    let Some((first, last, as_of)) = found else { return Ok(None) };
    let is_set = places.first().and_then(|place| word(&tokens[*place].token));
    // SET TRANSACTION must set something.
    let instead = is_set.filter(|word| word == "SET").map(|_| read_only_words());
    tokens.splice(first..=last, instead.into_iter().flatten());
    Ok(Some(as_of))
}

/// Parses the moment, and returns it with the number of its tokens.
fn moment(
    source: &str,
    tokens: &[TokenWithSpan],
    places: &[usize],
) -> Result<(AsOf, usize), SqlError> {
    let token = |at: usize| places.get(at).map(|place| &tokens[*place]);
    let (mut at, mut is_interval, mut is_negative) = (0, false, false);
    if token(at).is_some_and(|it| it.token == Token::Minus) {
        (at, is_negative) = (at + 1, true);
    }
    match token(at).and_then(|it| word(&it.token)).as_deref() {
        Some("INTERVAL") => (at, is_interval) = (at + 1, true),
        Some("TIMESTAMP" | "TIMESTAMPTZ") if !is_negative => at += 1,
        _ => {}
    }
    let text = match token(at) {
        Some(TokenWithSpan { token: Token::SingleQuotedString(text), .. })
            if is_interval || !is_negative =>
        {
            text.clone()
        }
        Some(other) => return Err(unexpected(source, other)),
        None => {
            let end = SqlError::new(code::SYNTAX, "syntax error at end of input");
            return Err(SqlError { position: Some(source.chars().count() as u32 + 1), ..end });
        }
    };
    Ok((AsOf { text, is_interval, is_negative }, at + 1))
}

fn unexpected(source: &str, token: &TokenWithSpan) -> SqlError {
    if token.token == Token::EOF {
        let end = SqlError::new(code::SYNTAX, "syntax error at end of input");
        return SqlError { position: Some(source.chars().count() as u32 + 1), ..end };
    }
    let message = format!("syntax error at or near \"{}\"", token.token);
    SqlError::new(code::SYNTAX, message).at(source, token.span.start)
}

/// Returns READ ONLY, which a transaction of the past is in any case.
fn read_only_words() -> [TokenWithSpan; 4] {
    let blank = || Token::Whitespace(sqlparser::tokenizer::Whitespace::Space);
    let keyword = Token::make_keyword;
    [blank(), keyword("READ"), blank(), keyword("ONLY")].map(TokenWithSpan::wrap)
}

/// Checks that a statement may have an AS OF SYSTEM TIME clause.
///
/// # Errors
/// 0A000 if it may not.
pub(super) fn check(statement: &ast::Statement, source: &str) -> Result<(), SqlError> {
    use ast::Statement as S;
    let is_set = |set: &ast::Set| matches!(set, ast::Set::SetTransaction { session: false, .. });
    match statement {
        S::Query(query) if !super::is_write(query) => Ok(()),
        S::StartTransaction { .. } => Ok(()),
        S::Set(set) if is_set(set) => Ok(()),
        other => {
            let what = super::command_of(other);
            let error = SqlError::unsupported(format!("AS OF SYSTEM TIME in {what}"));
            Err(error.at(source, Location { line: 1, column: 1 }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn parsed(text: &str) -> (Option<AsOf>, String) {
        let parsed = parse(text).unwrap().pop().unwrap();
        (parsed.as_of.as_deref().cloned(), parsed.ast.to_string())
    }

    #[test]
    fn the_clause_is_taken_out_and_the_rest_stays() {
        let as_of = |text: &str, is_interval, is_negative| {
            Some(AsOf { text: text.to_owned(), is_interval, is_negative })
        };
        let cases = [
            (
                "select a from t as of system time '-10s' where b = 1",
                as_of("-10s", false, false),
                "SELECT a FROM t WHERE b = 1",
            ),
            (
                "select a from t x, u AS OF /* then */ SYSTEM TIME - interval '1 min' order by a",
                as_of("1 min", true, true),
                "SELECT a FROM t x, u ORDER BY a",
            ),
            (
                "select 1 as of system time timestamptz '2026-01-01 00:00'",
                as_of("2026-01-01 00:00", false, false),
                "SELECT 1",
            ),
            ("begin as of system time '-1m'", as_of("-1m", false, false), "BEGIN"),
            (
                "set transaction as of system time '-1m'",
                as_of("-1m", false, false),
                "SET TRANSACTION READ ONLY",
            ),
            ("select a as of from t", None, "SELECT a AS of FROM t"),
        ];
        for (text, as_of, rest) in cases {
            assert_eq!(parsed(text), (as_of, rest.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_or_stands_elsewhere_is_refused() {
        let cases = [
            ("select a from t as of system time", "42601"),
            ("select a from t as of system time 10", "42601"),
            ("select a from t as of system time - '10s'", "42601"),
            ("select a from t as of system time '-1s' as of system time '-1s'", "42601"),
            ("select * from (select a from t as of system time '-1s') x", "0A000"),
            ("insert into t select a from t as of system time '-1s'", "0A000"),
            ("delete from t as of system time '-1s'", "0A000"),
            ("commit as of system time '-1s'", "0A000"),
        ];
        for (text, code) in cases {
            assert_eq!(parse(text).unwrap_err().code.as_str(), code, "{text}");
        }
    }
}
