//! Normalization of statements: texts without constants, as in `pg_stat_statements`.

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::tokenizer::{Token, Tokenizer};

/// The maximum length of a normalized statement, in bytes.
const TEXT_BYTES_MAX: usize = 4_096;
/// Longer statements are not tokenized: they are loads, which differ only in their rows.
const LOOKED_AT_MAX: usize = 64 << 10;

/// Statements in which numbers are constants; in other statements they are part of a definition.
const WITH_ROWS: [&str; 7] = ["DELETE", "EXPLAIN", "INSERT", "SELECT", "UPDATE", "VALUES", "WITH"];

/// Returns a statement with `$n` in place of constants, single blanks between words, and no
/// comments.
pub(crate) fn normal(text: &str) -> String {
    let is_long = text.len() > LOOKED_AT_MAX;
    let tokens = (!is_long).then(|| Tokenizer::new(&PostgreSqlDialect {}, text).tokenize());
    let Some(Ok(tokens)) = tokens else {
        let what = text.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        return format!("{} ...", what.chars().take(100).collect::<String>());
    };
    let words = tokens.iter().find_map(|token| match token {
        Token::Word(word) => Some(word.value.to_ascii_uppercase()),
        Token::LParen => Some("SELECT".to_owned()),
        _ => None,
    });
    let has_rows = words.is_some_and(|word| WITH_ROWS.contains(&word.as_str()));
    let number = |token: &Token| match token {
        Token::Placeholder(name) => name.strip_prefix('$').and_then(|n| n.parse::<usize>().ok()),
        _ => None,
    };
    let mut next = tokens.iter().filter_map(number).max().unwrap_or(0);
    let mut shown = String::with_capacity(text.len());
    for token in &tokens {
        match token {
            Token::Whitespace(_) if shown.is_empty() || shown.ends_with(' ') => {}
            Token::Whitespace(_) => shown.push(' '),
            token if is_constant(token, has_rows) => {
                next += 1;
                shown.push_str(&format!("${next}"));
            }
            token => shown.push_str(&token.to_string()),
        }
    }
    let mut end = shown.trim_end().len().min(TEXT_BYTES_MAX);
    while !shown.is_char_boundary(end) {
        end -= 1;
    }
    shown.truncate(end);
    shown
}

fn is_constant(token: &Token, has_rows: bool) -> bool {
    match token {
        Token::Number(..) => has_rows,
        Token::SingleQuotedString(_)
        | Token::DollarQuotedString(_)
        | Token::NationalStringLiteral(_)
        | Token::EscapedStringLiteral(_)
        | Token::UnicodeStringLiteral(_)
        | Token::SingleQuotedByteStringLiteral(_)
        | Token::HexStringLiteral(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_become_parameters_and_blanks_one() {
        let cases = [
            (
                "select  a\n from t where b = 5 and c='x' -- y",
                "select a from t where b = $1 and c=$2",
            ),
            ("select $2, 7, $1", "select $2, $3, $1"),
            ("insert into t values (1, e'\\n', $$z$$)", "insert into t values ($1, $2, $3)"),
            ("create table t (a numeric(6, 2))", "create table t (a numeric(6, 2))"),
            ("create role r password 'secret'", "create role r password $1"),
            ("select \"a b\" from \"T\"", "select \"a b\" from \"T\""),
        ];
        for (text, expected) in cases {
            assert_eq!(normal(text), expected);
        }
    }

    #[test]
    fn what_is_long_or_no_statement_is_cut() {
        let text = format!("insert into t values ({})", "1, ".repeat(LOOKED_AT_MAX));
        assert_eq!(normal(&text), "insert into t ...");
        assert_eq!(normal("select 'a"), "select 'a ...");
        assert!(normal(&"select ab ".repeat(1_000)).len() <= TEXT_BYTES_MAX);
    }
}
