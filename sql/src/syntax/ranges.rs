//! Split points of a table's ranges. PostgreSQL's grammar has no words for them, because ranges are
//! separate tables there.
//!
//! `PARTITION BY RANGE (a) SPLIT AT VALUES ((1), (2))` is `RANGE (a) IN ((1), (2))` in the tree.
//! The same holds for `SPLIT AT VALUES (1), (2)`, the form of the rows of VALUES in other
//! statements.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::words::{Words, word};
use crate::error::SqlError;

/// Rewrites SPLIT AT VALUES as a list.
///
/// # Errors
/// 42601 if the statement contains a list already.
pub(super) fn as_list(source: &str, tokens: &mut Vec<TokenWithSpan>) -> Result<(), SqlError> {
    let is_word = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    let places: Vec<usize> = (0..tokens.len()).filter(|at| is_word(&tokens[*at])).collect();
    let shown: Vec<&TokenWithSpan> = places.iter().map(|at| &tokens[*at]).collect();
    let mut words = Words { source, start: 0, tokens: &shown, at: 0 };
    if !words.take("CREATE TABLE") {
        return Ok(());
    }
    while words.at < shown.len() && !words.take("PARTITION BY RANGE") {
        words.at += 1;
    }
    pass_over_parentheses(&mut words);
    if words.token().and_then(word).as_deref() == Some("IN") {
        return Err(words.unexpected());
    }
    let at = words.at;
    if words.take("SPLIT AT VALUES") {
        let (split, values) = (places[at], places[at + 2]);
        let first = words.at;
        pass_over_parentheses(&mut words);
        let is_one = words.token() != Some(&Token::Comma);
        while words.token() == Some(&Token::Comma) {
            words.at += 1;
            pass_over_parentheses(&mut words);
        }
        if !is_one {
            let last = places[words.at - 1];
            let parenthesis = |token, at: usize| TokenWithSpan { token, span: tokens[at].span };
            let open = parenthesis(Token::LParen, places[first]);
            let close = parenthesis(Token::RParen, last);
            tokens.insert(last + 1, close);
            tokens.insert(places[first], open);
        }
        tokens[split].token = Token::make_keyword("IN");
        tokens.drain(split + 1..=values);
    }
    Ok(())
}

/// Skips the content of parentheses, if they come next.
fn pass_over_parentheses(words: &mut Words<'_>) {
    let mut depth = 0;
    loop {
        match words.token() {
            Some(Token::LParen) => depth += 1,
            Some(Token::RParen) if depth > 0 => depth -= 1,
            Some(_) if depth > 0 => {}
            _ => return,
        }
        words.at += 1;
        if depth == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::syntax::parse;

    #[test]
    fn starts_of_ranges_are_a_list_in_the_tree() {
        let tree = |end: &str| {
            let text = format!("create table t (a int primary key) {end}");
            parse(&text).map(|parsed| parsed[0].ast.to_string())
        };
        let begin = "CREATE TABLE t (a INT PRIMARY KEY) PARTITION BY";
        for (end, expected) in [
            ("partition by range (a)", "range(a)"),
            ("partition by range (a) split at values ((1), (2))", "range(a) IN ((1), (2))"),
            ("PARTITION BY RANGE(a) SPLIT AT VALUES(1,2)", "RANGE(a) IN (1, 2)"),
            ("partition by range (a) split at values (1), (2)", "range(a) IN ((1), (2))"),
            (
                "partition by range (a) split at values (1, 'x') , (2, 'y')",
                "range(a) IN ((1, 'x'), (2, 'y'))",
            ),
        ] {
            assert_eq!(tree(end).unwrap(), format!("{begin} {expected}"), "{end}");
        }
        for end in [
            "partition by range (a) in ((1))",
            "partition by range (a) split at values ()",
            "partition by range (a) split at values (1),",
            "partition by range (a) split at values (1), 2",
            "partition by range (a) split at ((1))",
            "partition by hash (a) split at values ((1))",
            "split at values ((1))",
        ] {
            assert_eq!(tree(end).unwrap_err().code.as_str(), "42601", "{end}");
        }
    }
}
