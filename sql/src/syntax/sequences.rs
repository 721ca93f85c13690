//! The options of sequences, which PostgreSQL takes in any order and the parser in one.

use std::ops::Range;

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::words::word;

/// The order in which the parser takes them.
const ORDER: [&str; 9] =
    ["AS", "INCREMENT", "MINVALUE", "MAXVALUE", "START", "RESTART", "CACHE", "CYCLE", "OWNED"];

/// Puts the options of CREATE SEQUENCE, and of identity columns, into the parser's order.
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
        // What comes before the first option is the name.
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

/// The rank of the option that begins at a word.
fn option_of(words: &[Option<String>], at: usize) -> Option<usize> {
    let here = words[at].as_deref()?;
    let before = at.checked_sub(1).and_then(|at| words[at].as_deref());
    // The word after NO is of the same option.
    if before == Some("NO") {
        return None;
    }
    let name = if here == "NO" { words.get(at + 1)?.as_deref()? } else { here };
    ORDER.iter().position(|known| *known == name)
}
