//! Sequences: their options, which PostgreSQL accepts in any order and the parser in only one, and
//! the clauses that the parser does not know.

use std::ops::Range;

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::Written;
use super::words::{Words, word};
use crate::error::{SqlError, code};

/// Parts of a statement about a sequence that its tree cannot represent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// Whether it is an ALTER SEQUENCE. Its tree is a CREATE SEQUENCE.
    pub is_alter: bool,
    pub if_exists: bool,
    /// RESTART, and its number. Without a number the sequence restarts at its start value.
    pub restart: Option<Option<i64>>,
    /// SEQUENCE NAME of an identity column.
    pub name: Option<Written>,
}

/// Removes the parts that the parser does not know from a statement's tokens, and returns them.
///
/// # Errors
/// 42601 if the statement is malformed, 0A000 for unsupported features.
pub(super) fn take(source: &str, tokens: &mut Vec<TokenWithSpan>) -> Result<Said, SqlError> {
    let is_blank = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let places: Vec<usize> = (0..tokens.len()).filter(|at| !is_blank(&tokens[*at])).collect();
    let (mut said, mut taken) = (Said::default(), Vec::new());
    {
        let shown: Vec<&TokenWithSpan> = places.iter().map(|at| &tokens[*at]).collect();
        let mut words = Words { source, start: 0, tokens: &shown, at: 0 };
        if words.take("ALTER SEQUENCE") {
            said.is_alter = true;
            let start = words.at;
            said.if_exists = words.take("IF EXISTS");
            taken.extend(start..words.at);
            words.relation()?;
            if words.take("RENAME") {
                // Handled like a RENAME of a table.
                return Ok(Said::default());
            }
            if words.take("SET") {
                return Err(SqlError::unsupported("ALTER SEQUENCE .. SET"));
            }
            while words.at < shown.len() {
                let start = words.at;
                if words.take("RESTART") {
                    said.restart = Some(words.restart()?);
                    taken.extend(start..words.at);
                } else {
                    words.at += 1;
                }
            }
        }
        for at in 0..shown.len() {
            words.at = at;
            let is_name = words.take("IDENTITY") && words.take_token(&Token::LParen);
            let start = words.at;
            if is_name && words.take("SEQUENCE NAME") {
                if said.name.is_some() {
                    return Err(SqlError::unsupported("SEQUENCE NAME of several columns"));
                }
                said.name = Some(words.relation()?);
                // Without other options the parentheses are removed too.
                let is_all = words.token() == Some(&Token::RParen);
                taken.extend(if is_all { start - 1..words.at + 1 } else { start..words.at });
            }
        }
    }
    if said.is_alter {
        tokens[places[0]].token = Token::make_keyword("CREATE");
    }
    for at in taken.into_iter().rev() {
        tokens.remove(places[at]);
    }
    Ok(said)
}

impl Words<'_> {
    /// Parses the number after RESTART, if there is one.
    fn restart(&mut self) -> Result<Option<i64>, SqlError> {
        let is_said = self.take("WITH");
        let is_negative = self.take_token(&Token::Minus);
        let Some(Token::Number(digits, _)) = self.token() else {
            return if is_said || is_negative { Err(self.unexpected()) } else { Ok(None) };
        };
        let text = if is_negative { format!("-{digits}") } else { digits.clone() };
        let number = text.parse().map_err(|_| {
            let message = format!("value \"{text}\" is out of range for type bigint");
            SqlError::new(code::NUMERIC_OUT_OF_RANGE, message)
        })?;
        self.at += 1;
        Ok(Some(number))
    }
}

/// The order in which the parser accepts the options.
const ORDER: [&str; 9] =
    ["AS", "INCREMENT", "MINVALUE", "MAXVALUE", "START", "RESTART", "CACHE", "CYCLE", "OWNED"];

/// Sorts the options of CREATE SEQUENCE and of identity columns into the parser's order.
pub(super) fn reorder(tokens: &mut [TokenWithSpan]) {
    let is_blank = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let places: Vec<usize> = (0..tokens.len()).filter(|at| !is_blank(&tokens[*at])).collect();
    let words: Vec<Option<String>> = places.iter().map(|at| word(&tokens[*at].token)).collect();
    let is =
        |at: usize, wanted: &str| words.get(at).is_some_and(|it| it.as_deref() == Some(wanted));
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let sequence = (0..3).find(|at| is(*at, "SEQUENCE"));
    if is(0, "CREATE")
        && let Some(sequence) = sequence
    {
        // The name precedes the first option.
        let first = (sequence + 2..places.len()).find(|at| option_of(&words, *at).is_some());
        ranges.extend(first.map(|first| first..places.len()));
    }
    for at in 0..places.len() {
        let opens = |at: usize| places.get(at).is_some_and(|it| tokens[*it].token == Token::LParen);
        if is(at, "IDENTITY") && opens(at + 1) {
            let is_end = |at: &usize| tokens[places[*at]].token == Token::RParen;
            ranges.extend((at + 2..places.len()).find(is_end).map(|end| at + 2..end));
        }
    }
    for range in ranges {
        let starts: Vec<usize> =
            range.clone().filter(|at| option_of(&words, *at).is_some()).collect();
        if starts.first() != Some(&range.start) {
            continue;
        }
        let ends = starts.iter().skip(1).copied().chain([range.end]);
        let mut options: Vec<(usize, Vec<TokenWithSpan>)> = starts
            .iter()
            .zip(ends)
            .map(|(&start, end)| {
                let own = places[start..end].iter().map(|at| tokens[*at].clone());
                (option_of(&words, start).unwrap_or(ORDER.len()), own.collect())
            })
            .collect();
        options.sort_by_key(|(rank, _)| *rank);
        let sorted = options.into_iter().flat_map(|(_, own)| own);
        for (place, token) in places[range].iter().zip(sorted) {
            tokens[*place] = token;
        }
    }
}

/// Returns the rank of the option that begins at a word.
fn option_of(words: &[Option<String>], at: usize) -> Option<usize> {
    let here = words[at].as_deref()?;
    let before = at.checked_sub(1).and_then(|at| words[at].as_deref());
    // The word after NO belongs to the same option.
    if before == Some("NO") {
        return None;
    }
    let name = if here == "NO" { words.get(at + 1)?.as_deref()? } else { here };
    ORDER.iter().position(|known| *known == name)
}

/// Returns the sequence that a default expression draws from.
pub(crate) fn sequence_of(default: &str) -> Option<Written> {
    let text = default.strip_prefix("nextval('")?;
    let name = text.strip_suffix("'::regclass)").or_else(|| text.strip_suffix("')"))?;
    // A quote inside the literal is doubled. A single one ends the literal early.
    let name = name.replace("''", "\0");
    if name.contains('\'') {
        return None;
    }
    super::name_from_text(&name.replace('\0', "'")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::QualifiedName;
    use crate::catalog::sequence::nextval_of;

    #[test]
    fn a_default_names_its_sequence_whatever_that_is_called() {
        for (schema, name) in [("public", "s"), ("a", "it's"), ("s'1", "Q \"x\""), ("public", "''")]
        {
            let sequence = QualifiedName::new(schema, name);
            let found = sequence_of(&nextval_of(&sequence)).map(|written| written.kept());
            assert_eq!(found, Some(sequence), "{schema}.{name}");
        }
        assert!(sequence_of("nextval('s')").is_some());
        for other in ["nextval('s') + 1", "nextval('a') || nextval('b')", "nextval('a'::text)"] {
            assert_eq!(sequence_of(other), None, "{other}");
        }
    }
}
