//! ALTER VIEW, ALTER INDEX and ALTER SEQUENCE .. RENAME, which share the forms of ALTER TABLE.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::words::word;

/// The kind of relation that an ALTER names. The tree is an ALTER TABLE in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Altered {
    /// A table, or another relation that ALTER TABLE accepts.
    #[default]
    Table,
    View,
    Index,
    Sequence,
}

impl Altered {
    /// Returns PostgreSQL's name of the statement.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Table => "ALTER TABLE",
            Self::View => "ALTER VIEW",
            Self::Index => "ALTER INDEX",
            Self::Sequence => "ALTER SEQUENCE",
        }
    }
}

/// Rewrites an ALTER VIEW, ALTER INDEX or ALTER SEQUENCE as an ALTER TABLE. Returns the kind of
/// relation that it named.
pub(super) fn as_table(tokens: &mut [TokenWithSpan]) -> Altered {
    let is_word = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    let mut first = (0..tokens.len()).filter(|at| is_word(&tokens[*at]));
    let (Some(alter), Some(kind)) = (first.next(), first.next()) else { return Altered::Table };
    drop(first);
    if word(&tokens[alter].token).as_deref() != Some("ALTER") {
        return Altered::Table;
    }
    let altered = match word(&tokens[kind].token).as_deref() {
        Some("VIEW") => Altered::View,
        Some("INDEX") => Altered::Index,
        Some("SEQUENCE") => Altered::Sequence,
        _ => return Altered::Table,
    };
    tokens[kind].token = Token::make_keyword("TABLE");
    altered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::parse;

    #[test]
    fn what_is_altered_is_known_beside_the_tree() {
        let cases = [
            ("alter table v rename to w", Altered::Table),
            ("alter view v rename to w", Altered::View),
            ("alter index if exists v rename to w", Altered::Index),
            ("alter index if exists s.\"V\" rename to w", Altered::Index),
            ("alter index \"v\" rename to w", Altered::Index),
            ("alter sequence if exists s.v rename to w", Altered::Sequence),
            ("alter sequence v increment 2", Altered::Table),
        ];
        for (text, altered) in cases {
            assert_eq!(parse(text).unwrap()[0].altered, altered, "{text}");
        }
    }
}
