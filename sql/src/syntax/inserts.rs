//! Two clauses of INSERT that the parser does not know: OVERRIDING, and a conflict target that is
//! more than columns. Both are stored in fields of the tree that have no other use.

use sqlparser::ast;
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Span, Token, TokenWithSpan, Word};

use super::words::word;
use super::{Postgres, syntax_error, tokens};
use crate::error::{SqlError, byte_offset};

/// First character of the names that encode a clause. No name in a statement begins with it.
const MARK: char = '\0';

/// The treatment of values for identity columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overriding {
    /// The values are used.
    System,
    /// The values are ignored.
    User,
}

/// The conflict target of ON CONFLICT: expressions over columns, and the predicate of the index.
#[derive(Debug)]
pub(crate) struct Inferred {
    pub exprs: Vec<ast::Expr>,
    pub condition: Option<ast::Expr>,
}

/// Returns the OVERRIDING clause of an INSERT.
pub(crate) fn overriding(insert: &ast::Insert) -> Option<Overriding> {
    let Some([ast::Expr::Identifier(ident)]) = insert.partitioned.as_deref() else { return None };
    match ident.value.strip_prefix(MARK)? {
        "SYSTEM" => Some(Overriding::System),
        _ => Some(Overriding::User),
    }
}

/// Returns the conflict target, if it is more than columns.
pub(crate) fn inferred(object: &ast::ObjectName) -> Option<Result<Inferred, SqlError>> {
    let [part] = &object.0[..] else { return None };
    let text = part.as_ident()?.value.strip_prefix(MARK)?;
    Some(parse(text))
}

fn parse(text: &str) -> Result<Inferred, SqlError> {
    let dialect = Postgres;
    let mut parser = Parser::new(&dialect).with_tokens_with_locations(tokens(text)?);
    let mut read = || {
        parser.expect_token(&Token::LParen)?;
        let exprs = parser.parse_comma_separated(Parser::parse_expr)?;
        parser.expect_token(&Token::RParen)?;
        let has_condition = parser.parse_keyword(Keyword::WHERE);
        let condition = has_condition.then(|| parser.parse_expr()).transpose()?;
        parser.expect_token(&Token::EOF)?;
        Ok(Inferred { exprs, condition })
    };
    read().map_err(|error| SqlError { position: None, ..syntax_error(text, &error) })
}

/// Moves the clauses that the parser does not know to places that it accepts.
pub(super) fn normalize(source: &str, tokens: &mut Vec<TokenWithSpan>) {
    tokens.retain(|token| !matches!(token.token, Token::Whitespace(_)));
    let mut at = 0;
    while at < tokens.len() {
        if is(tokens, at, "OVERRIDING") && is(tokens, at + 2, "VALUE") {
            take_overriding(tokens, at);
        } else if is(tokens, at, "ON") && is(tokens, at + 1, "CONFLICT") {
            take_inferred(source, tokens, at + 2);
        }
        at += 1;
    }
}

fn is(tokens: &[TokenWithSpan], at: usize, wanted: &str) -> bool {
    tokens.get(at).and_then(|token| word(&token.token)).is_some_and(|word| word == wanted)
}

fn marked(text: &str) -> Token {
    let value = format!("{MARK}{text}");
    Token::Word(Word { value, quote_style: Some('"'), keyword: Keyword::NoKeyword })
}

/// Rewrites `OVERRIDING SYSTEM VALUE` as a partition of that name.
fn take_overriding(tokens: &mut Vec<TokenWithSpan>, at: usize) {
    let Some(kind) = tokens.get(at + 1).and_then(|token| word(&token.token)) else { return };
    if kind != "SYSTEM" && kind != "USER" || at == 0 {
        return;
    }
    let span = tokens[at].span;
    let mut new = Vec::with_capacity(6);
    // Without an alias the parser would take the next word for one.
    let has_columns = tokens[at - 1].token == Token::RParen;
    let has_alias = at > 2 && is(tokens, at - 2, "AS");
    if !has_columns && !has_alias {
        new.extend([Token::make_keyword("AS"), tokens[at - 1].token.clone()]);
    }
    new.extend([Token::make_keyword("PARTITION"), Token::LParen, marked(&kind), Token::RParen]);
    let new = new.into_iter().map(|token| TokenWithSpan { token, span });
    tokens.splice(at..at + 3, new);
}

/// Rewrites a conflict target that is more than columns as the name of a constraint.
fn take_inferred(source: &str, tokens: &mut Vec<TokenWithSpan>, start: usize) {
    if tokens.get(start).is_none_or(|token| token.token != Token::LParen) {
        return;
    }
    let mut depth = 0_usize;
    let mut end = None;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ if depth == 0 && is(tokens, at, "DO") => {
                end = Some(at);
                break;
            }
            _ => {}
        }
    }
    let Some(end) = end else { return };
    // The parser knows a list of names.
    let inner = &tokens[start..end];
    let is_list = inner[1..].chunks(2).all(|pair| match pair {
        [name, next] => {
            matches!(name.token, Token::Word(_))
                && matches!(next.token, Token::Comma | Token::RParen)
        }
        _ => false,
    });
    if is_list && inner.last().is_some_and(|token| token.token == Token::RParen) {
        return;
    }
    let from = byte_offset(source, inner[0].span.start);
    let to = byte_offset(source, tokens[end - 1].span.end);
    let span = Span::new(inner[0].span.start, tokens[end - 1].span.end);
    let text = source.get(from..to).unwrap_or_default();
    let new = [Token::make_keyword("ON"), Token::make_keyword("CONSTRAINT"), marked(text)];
    let new = new.map(|token| TokenWithSpan { token, span });
    tokens.splice(start..end, new);
}

/// Whether an expression is the keyword `DEFAULT`.
pub(crate) fn is_default(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Identifier(ident)
        if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(text: &str) -> ast::Insert {
        let parsed = super::super::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        match &*parsed[0].ast {
            ast::Statement::Insert(insert) => insert.clone(),
            other => panic!("{other} is no INSERT"),
        }
    }

    #[test]
    fn overriding_is_read_with_and_without_columns_and_aliases() {
        let cases = [
            ("insert into t (a) overriding system value values (1)", Some(Overriding::System)),
            ("insert into t overriding user value values (1)", Some(Overriding::User)),
            ("insert into t as x overriding User Value select 1", Some(Overriding::User)),
            ("insert into public.t overriding system value (select 1)", Some(Overriding::System)),
            ("insert into t (overriding) values (1)", None),
        ];
        for (text, expected) in cases {
            assert_eq!(overriding(&insert(text)), expected, "{text}");
        }
        let alias = insert("insert into t as x overriding user value select 1").table_alias;
        assert_eq!(alias.unwrap().alias.value, "x");
    }

    #[test]
    fn a_conflict_is_about_columns_or_expressions() {
        let about = |text: &str| {
            let Some(ast::OnInsert::OnConflict(conflict)) = insert(text).on else {
                panic!("{text} has a conflict")
            };
            match conflict.conflict_target {
                Some(ast::ConflictTarget::OnConstraint(name)) => inferred(&name),
                _ => None,
            }
        };
        for text in [
            "insert into t values (1) on conflict (a, \"B\") do nothing",
            "insert into t values (1) on conflict on constraint c do nothing",
            "insert into t values (1) on conflict do nothing",
        ] {
            assert!(about(text).is_none(), "{text}");
        }
        let text = "insert into t values (1) on conflict (lower(a), (b + 1), c) where d > 'do' do \
                    update set a = 1 where t.a = 2";
        let found = about(text).unwrap().unwrap();
        let shown: Vec<String> = found.exprs.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["lower(a)", "(b + 1)", "c"]);
        assert_eq!(found.condition.unwrap().to_string(), "d > 'do'");
        let wrong = about("insert into t values (1) on conflict (a +) do nothing").unwrap();
        assert_eq!(wrong.unwrap_err().code.as_str(), "42601");
    }
}
