//! Normalizes alternative spellings of PostgreSQL's grammar to the spelling that the parser knows.

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};

use super::words::word;
use crate::error::{SqlError, code};

/// Joins string literals that continue after a line break, and expands `ISNULL` and `NOTNULL`,
/// which the parser would read as column names. Normalizes locking clauses, `substring` and
/// `OPERATOR` too.
///
/// # Errors
/// If two string literals are adjacent on one line.
pub(super) fn normalize(source: &str, tokens: &mut Vec<TokenWithSpan>) -> Result<(), SqlError> {
    join_strings(source, tokens)?;
    write_tests_out(tokens);
    plain_locks(tokens);
    plain_substring(tokens);
    plain_operators(tokens);
    Ok(())
}

/// Makes `pg_catalog.substring(..)` a plain call. The parser knows the grammar of `substring` only
/// without a schema.
fn plain_substring(tokens: &mut [TokenWithSpan]) {
    for at in 1..tokens.len().saturating_sub(1) {
        let is_call =
            tokens[at - 1].token == Token::Period && tokens[at + 1].token == Token::LParen;
        if let Token::Word(word) = &mut tokens[at].token
            && is_call
            && word.quote_style.is_none()
            && word.keyword == Keyword::SUBSTRING
        {
            word.value.make_ascii_lowercase();
            word.quote_style = Some('"');
            word.keyword = Keyword::NoKeyword;
        }
    }
}

/// Replaces `OPERATOR(pg_catalog.=) ANY (..)` by `= ANY (..)`, which the parser knows.
fn plain_operators(tokens: &mut Vec<TokenWithSpan>) {
    let mut at = 0;
    while at < tokens.len() {
        at += 1;
        if word(&tokens[at - 1].token).as_deref() != Some("OPERATOR") {
            continue;
        }
        let places: Vec<usize> =
            (at..tokens.len()).filter(|it| !is_blank(&tokens[*it])).take(6).collect();
        let token = |n: usize| places.get(n).map(|place| &tokens[*place].token);
        let has_schema = token(2) == Some(&Token::Period);
        let end = if has_schema { 4 } else { 2 };
        let is_of_all = token(end + 1).and_then(word);
        let is_of_all = matches!(is_of_all.as_deref(), Some("ANY" | "ALL" | "SOME"));
        if token(0) == Some(&Token::LParen) && token(end) == Some(&Token::RParen) && is_of_all {
            let sign = tokens[places[end - 1]].clone();
            tokens.splice(at - 1..=places[end], [sign]);
        }
    }
}

/// Replaces `FOR NO KEY UPDATE` and `FOR KEY SHARE` by the next stronger locks.
fn plain_locks(tokens: &mut Vec<TokenWithSpan>) {
    let places: Vec<usize> = (0..tokens.len()).filter(|at| !is_blank(&tokens[*at])).collect();
    let is = |at: usize, wanted: &[&str]| {
        let found = places[at..].iter().map(|place| word(&tokens[*place].token));
        found.take(wanted.len()).eq(wanted.iter().map(|word| Some((*word).to_owned())))
    };
    let mut left_out = Vec::new();
    for at in 0..places.len() {
        if is(at, &["FOR", "NO", "KEY", "UPDATE"]) {
            left_out.extend([places[at + 1], places[at + 2]]);
        } else if is(at, &["FOR", "KEY", "SHARE"]) {
            left_out.push(places[at + 1]);
        }
    }
    for place in left_out.into_iter().rev() {
        tokens.remove(place);
    }
}

fn join_strings(source: &str, tokens: &mut Vec<TokenWithSpan>) -> Result<(), SqlError> {
    let is_string = |token: &TokenWithSpan| matches!(token.token, Token::SingleQuotedString(_));
    // Adjacent strings are rare: most texts have a comma between any two.
    let mut at = 0;
    while at < tokens.len() {
        let blanks = tokens[at + 1..].iter().take_while(|it| is_blank(it)).count();
        let next = at + 1 + blanks;
        if !is_string(&tokens[at]) || !tokens.get(next).is_some_and(is_string) {
            at += 1;
            continue;
        }
        if !tokens[at + 1..next].iter().any(ends_line) {
            let message = format!("syntax error at or near \"{}\"", tokens[next].token);
            let start = tokens[next].span.start;
            return Err(SqlError::new(code::SYNTAX, message).at(source, start));
        }
        let removed: Vec<TokenWithSpan> = tokens.drain(at + 1..=next).collect();
        let last = removed.last().expect("the second string is among them");
        if let (Token::SingleQuotedString(text), Token::SingleQuotedString(more)) =
            (&mut tokens[at].token, &last.token)
        {
            text.push_str(more);
            tokens[at].span.end = last.span.end;
        }
    }
    Ok(())
}

fn is_blank(token: &TokenWithSpan) -> bool {
    matches!(token.token, Token::Whitespace(_))
}

fn ends_line(token: &TokenWithSpan) -> bool {
    use Whitespace::{Newline, SingleLineComment};
    matches!(token.token, Token::Whitespace(Newline | SingleLineComment { .. }))
}

fn write_tests_out(tokens: &mut Vec<TokenWithSpan>) {
    let mut at = 0;
    while at < tokens.len() {
        let words: &[&str] = match word(&tokens[at].token).as_deref() {
            Some("ISNULL") => &["IS", "NULL"],
            Some("NOTNULL") => &["IS", "NOT", "NULL"],
            _ => &[],
        };
        let before = tokens[..at].iter().rfind(|it| !is_blank(it)).map(|it| &it.token);
        let is_name = match before {
            None | Some(Token::Period) => true,
            Some(token) => word(token).as_deref() == Some("AS"),
        };
        if words.is_empty() || is_name {
            at += 1;
            continue;
        }
        let span = tokens[at].span;
        let spelled =
            words.iter().map(|word| TokenWithSpan { token: Token::make_keyword(word), span });
        tokens.splice(at..=at, spelled);
        at += words.len();
    }
}
