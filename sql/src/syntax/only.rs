//! ONLY before a table has no effect, because tables have no children.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::words::word;

/// Words that precede a table.
const BEFORE_TABLES: [&str; 3] = ["FROM", "JOIN", "UPDATE"];

/// Replaces `ONLY t` and `ONLY (t)` with `t` where a statement names tables.
pub(super) fn take_only(tokens: &mut Vec<TokenWithSpan>) {
    let is_blank = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let places: Vec<usize> = (0..tokens.len()).filter(|at| !is_blank(&tokens[*at])).collect();
    let token = |at: usize| places.get(at).map(|at| &tokens[*at].token);
    let is = |at: usize, wanted: &[&str]| {
        token(at).and_then(word).is_some_and(|word| wanted.contains(&word.as_str()))
    };
    let mut taken = Vec::new();
    for at in 1..places.len() {
        // The preceding word may be a name after a period.
        let is_name = at > 1 && matches!(token(at - 2), Some(Token::Period));
        if !is(at, &["ONLY"]) || !is(at - 1, &BEFORE_TABLES) || is_name {
            continue;
        }
        match token(at + 1) {
            Some(Token::Word(_)) => taken.push(places[at]),
            Some(Token::LParen) => {
                let is_end = |end: &usize| token(*end) == Some(&Token::RParen);
                if let Some(end) = (at + 2..places.len()).find(is_end) {
                    taken.extend([places[at], places[at + 1], places[end]]);
                }
            }
            _ => {}
        }
    }
    let mut at = 0;
    tokens.retain(|_| {
        at += 1;
        !taken.contains(&(at - 1))
    });
}

#[cfg(test)]
mod tests {
    use crate::syntax::parse;

    #[test]
    fn only_says_nothing_before_a_table() {
        let cases = [
            ("update only t set a = 1", "UPDATE t SET a = 1"),
            ("update only (t) as x set a = 1", "UPDATE t AS x SET a = 1"),
            ("delete from only (public.t) where a = 1", "DELETE FROM public.t WHERE a = 1"),
            ("select 1 from only t join only (u) on true", "SELECT 1 FROM t JOIN u ON true"),
            ("select \"only\" from \"only\"", "SELECT \"only\" FROM \"only\""),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap()[0].ast.to_string(), expected, "{text}");
        }
    }
}
