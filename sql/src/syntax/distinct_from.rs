//! `IS DISTINCT FROM`, whose right side the parser would take to be all that follows.
//!
//! In PostgreSQL it binds closer than NOT, AND and OR, and less close than all else: in
//! `NOT a = 1 IS DISTINCT FROM b AND c` it is about `a = 1` and `b`.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::words::word;

/// Words that end an operand, or that one begins after: clauses and parts of them.
const BOUNDS: [&str; 47] = [
    "ALL",
    "AS",
    "ASC",
    "BY",
    "CROSS",
    "DEFAULT",
    "DESC",
    "DISTINCT",
    "DO",
    "ELSE",
    "ELSIF",
    "END",
    "EXCEPT",
    "FETCH",
    "FOR",
    "FROM",
    "FULL",
    "GROUP",
    "HAVING",
    "IF",
    "INNER",
    "INTERSECT",
    "IS",
    "JOIN",
    "LEFT",
    "LIMIT",
    "LOOP",
    "NATURAL",
    "NULLS",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "RETURN",
    "RETURNING",
    "RIGHT",
    "SELECT",
    "SET",
    "THEN",
    "UNION",
    "USING",
    "VALUES",
    "WHEN",
    "WHERE",
    "WHILE",
    "WINDOW",
    "WITH",
];

/// What NOT is a part of when it stands before them.
const NOT_OF: [&str; 5] = ["BETWEEN", "ILIKE", "IN", "LIKE", "SIMILAR"];

/// The tokens of a text that are no blanks.
struct Marks<'a> {
    tokens: &'a [TokenWithSpan],
    places: Vec<usize>,
    words: Vec<Option<String>>,
    /// For what opens or closes, its other end; for a CASE and its END too.
    pairs: Vec<Option<usize>>,
    /// Whether an AND is a BETWEEN's, and a comma one between the assignments of a SET.
    of_between: Vec<bool>,
    of_set: Vec<bool>,
}

/// Puts each into parentheses with both of its sides, where an AND or an OR follows it.
pub(super) fn enclose(tokens: &mut Vec<TokenWithSpan>) {
    let is_distinct = |token: &TokenWithSpan| word(&token.token).as_deref() == Some("DISTINCT");
    if !tokens.iter().any(is_distinct) {
        return;
    }
    let marks = Marks::of(tokens);
    let mut added = Vec::new();
    for at in 0..marks.places.len() {
        if let Some(first) = marks.begins(at)
            && let Some(end) = marks.end(first)
        {
            added.push((marks.places[marks.start(at)], Token::LParen));
            added.push((marks.places[end], Token::RParen));
        }
    }
    if added.is_empty() {
        return;
    }
    added.sort_by_key(|(at, _)| *at);
    let mut added = added.into_iter().peekable();
    let old = std::mem::take(tokens);
    for (at, token) in old.into_iter().enumerate() {
        while let Some((_, new)) = added.next_if(|(place, _)| *place == at) {
            tokens.push(TokenWithSpan { token: new, span: token.span });
        }
        tokens.push(token);
    }
}

impl<'a> Marks<'a> {
    fn of(tokens: &'a [TokenWithSpan]) -> Self {
        let is_word = |at: &usize| !matches!(tokens[*at].token, Token::Whitespace(_));
        let places: Vec<usize> = (0..tokens.len()).filter(is_word).collect();
        let words: Vec<_> = places.iter().map(|at| word(&tokens[*at].token)).collect();
        let mut pairs = vec![None; places.len()];
        let mut of_between = vec![false; places.len()];
        let mut of_set = vec![false; places.len()];
        // What is open, how many BETWEENs wait for their AND in it, and whether it is a SET's.
        let mut open: Vec<(usize, usize, bool)> = vec![(0, 0, false)];
        for (at, place) in places.iter().enumerate() {
            let token = &tokens[*place].token;
            let is_end = matches!(token, Token::RParen | Token::RBracket)
                || words[at].as_deref() == Some("END");
            if is_end && open.len() > 1 {
                let (begin, ..) = open.pop().expect("there are two");
                (pairs[begin], pairs[at]) = (Some(at), Some(begin));
                continue;
            }
            let Some((_, betweens, is_set)) = open.last_mut() else { continue };
            match (token, words[at].as_deref()) {
                (Token::LParen | Token::LBracket, _) | (_, Some("CASE")) => {
                    open.push((at, 0, false));
                }
                (Token::Comma, _) => of_set[at] = *is_set,
                (_, Some("BETWEEN")) => *betweens += 1,
                (_, Some("AND")) if *betweens > 0 => {
                    *betweens -= 1;
                    of_between[at] = true;
                }
                (_, Some("SET")) => *is_set = true,
                (_, Some("BY" | "FROM" | "RETURNING" | "SELECT" | "VALUES" | "WHERE")) => {
                    // That of IS DISTINCT FROM ends nothing.
                    *is_set &= at > 0 && words[at - 1].as_deref() == Some("DISTINCT");
                }
                _ => {}
            }
        }
        Self { tokens, places, words, pairs, of_between, of_set }
    }

    fn is(&self, at: usize, wanted: &str) -> bool {
        self.words.get(at).is_some_and(|it| it.as_deref() == Some(wanted))
    }

    fn token(&self, at: usize) -> &Token {
        &self.tokens[self.places[at]].token
    }

    /// Where the right side begins, where one begins at a place.
    fn begins(&self, at: usize) -> Option<usize> {
        let distinct = at + 1 + usize::from(self.is(at + 1, "NOT"));
        let is_one =
            self.is(at, "IS") && self.is(distinct, "DISTINCT") && self.is(distinct + 1, "FROM");
        is_one.then_some(distinct + 2)
    }

    /// The AND or OR behind the side that begins at a place; nothing where something else ends it.
    fn end(&self, first: usize) -> Option<usize> {
        let mut at = first;
        while at < self.places.len() {
            match self.pairs[at] {
                Some(close) if close > at => {
                    at = close + 1;
                    continue;
                }
                // What is around it ends.
                Some(_) => return None,
                None => {}
            }
            match self.words[at].as_deref() {
                Some("AND") if self.of_between[at] => {}
                Some("AND" | "OR") => return Some(at),
                Some(word) if BOUNDS.contains(&word) => return None,
                _ if matches!(self.token(at), Token::Comma | Token::SemiColon) => return None,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Where the left side begins of one that begins at a place.
    fn start(&self, is: usize) -> usize {
        let mut at = is;
        while at > 0 {
            let before = at - 1;
            match self.pairs[before] {
                Some(open) if open < before => {
                    at = open;
                    continue;
                }
                Some(_) => return at,
                None => {}
            }
            let ends = match self.words[before].as_deref() {
                Some("AND") => !self.of_between[before],
                Some("NOT") => !NOT_OF.iter().any(|word| self.is(at, word)),
                // `SET a = b IS DISTINCT FROM c`: what is assigned begins behind the sign.
                Some("SET") => return self.behind_sign(at, is),
                Some(word) => BOUNDS.contains(&word),
                None => match self.token(before) {
                    Token::Comma if self.of_set[before] => return self.behind_sign(at, is),
                    Token::Comma | Token::SemiColon | Token::Assignment | Token::RArrow => true,
                    _ => false,
                },
            };
            if ends {
                return at;
            }
            at = before;
        }
        at
    }

    fn behind_sign(&self, from: usize, to: usize) -> usize {
        (from..to).find(|at| *self.token(*at) == Token::Eq).map_or(from, |sign| sign + 1)
    }
}
