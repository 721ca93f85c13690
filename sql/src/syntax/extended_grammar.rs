//! Statements that this crate parses itself, and statements that contain another.

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::tokenizer::{Location, Span, TokenWithSpan};

use super::{
    Altered, CursorStatement, Parsed, Place, Postgres, cursors, explain, parse_one, procedures,
    roles, words,
};
use crate::error::{SqlError, code};

/// Returns a statement with a placeholder tree and no other fields set.
pub(super) fn of_no_tree(text: &Arc<str>, source: &Arc<str>) -> Parsed {
    Parsed {
        ast: Arc::new(ast::Statement::UnlockTables),
        role: None,
        text: text.clone(),
        source: source.clone(),
        cursor: None,
        check: None,
        altered: Altered::default(),
        copy: None,
        procedure: None,
        explain: None,
        as_of: None,
        sequence: Arc::default(),
    }
}

/// Parses a statement that does not use the parser, or uses it only for a part.
pub(super) fn parse(
    dialect: &Postgres,
    source: &Arc<str>,
    tokens: &[TokenWithSpan],
    (start, words, text): (usize, &[&TokenWithSpan], &Arc<str>),
) -> Result<Option<Parsed>, SqlError> {
    let nothing = || of_no_tree(text, source);
    if let Some(role) = roles::parse(source, start, words)? {
        return Ok(Some(Parsed { role: Some(Arc::new(role)), ..nothing() }));
    }
    if let Some((cursor, query)) = cursors::parse(source, start, words)? {
        let cursor = with_query(dialect, source, tokens, (cursor, query))?;
        return Ok(Some(Parsed { cursor: Some(Arc::new(cursor)), ..nothing() }));
    }
    if let Some((options, at)) = explain::parse(source, start, words)? {
        let rest = explain::behind(tokens, at);
        let parsed = parse_one(dialect, source, &mut Place::start_of(source), &rest)?;
        let explain = explain::Explain::of(options, parsed)
            .ok_or_else(|| explain::without_plan(source, &rest))?;
        return Ok(Some(Parsed { explain: Some(Arc::new(explain)), ..nothing() }));
    }
    let procedure = procedures::parse(source, start, words)?;
    Ok(procedure.map(|procedure| Parsed { procedure: Some(Arc::new(procedure)), ..nothing() }))
}

/// Parses a statement about a cursor, with the query that follows FOR.
fn with_query(
    dialect: &Postgres,
    source: &Arc<str>,
    tokens: &[TokenWithSpan],
    (cursor, query): (cursors::Begun, Option<Location>),
) -> Result<CursorStatement, SqlError> {
    let is_of_query = |token: &&TokenWithSpan| {
        let start = token.span.start;
        query.is_some_and(|from| (start.line, start.column) >= (from.line, from.column))
    };
    let rest: Vec<TokenWithSpan> = tokens.iter().filter(is_of_query).cloned().collect();
    let cursor_words = ["DECLARE", "FETCH", "MOVE", "CLOSE"];
    let first = rest.first().and_then(|token| words::word(&token.token));
    let is_query = first.is_none_or(|word| !cursor_words.contains(&word.as_str()));
    let parsed = match query.filter(|_| is_query) {
        Some(_) => Some(parse_one(dialect, source, &mut Place::start_of(source), &rest)?),
        None => None,
    };
    cursor.with(parsed).ok_or_else(|| {
        let first = rest.first().map_or(Span::empty(), |token| token.span);
        let word = rest.first().map(ToString::to_string).unwrap_or_default();
        let message = format!("syntax error at or near \"{word}\"");
        SqlError::new(code::SYNTAX, message).at(source, first.start)
    })
}
