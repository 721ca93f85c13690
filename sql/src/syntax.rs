//! Parses texts to syntax trees, with PostgreSQL's syntax errors.

mod alter_other_objects;
pub(crate) mod as_of;
mod copy;
pub(crate) mod cursors;
mod depth;
mod dialect;
pub(crate) mod explain;
mod extended_grammar;
pub(crate) mod inserts;
mod kinds;
mod names;
mod normalize;
mod only;
pub(crate) mod procedures;
mod qualify;
mod ranges;
mod rename;
pub(crate) mod roles;
pub(crate) mod sequences;
mod unsupported;
mod views;
mod walk;
pub(crate) mod words;
mod writes;

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};

pub(crate) use self::alter_other_objects::Altered;
pub(crate) use self::cursors::CursorStatement;
use self::depth::Shape;
pub(crate) use self::dialect::Postgres;
pub(crate) use self::names::{name, name_from_text, name_parts, object_from_text, table_name};
use self::procedures::ProcedureStatement;
pub(crate) use self::qualify::qualify;
pub(crate) use self::rename::{names_word, renamed};
pub(crate) use self::roles::RoleStatement;
pub(crate) use self::unsupported::{check_locks, system_column};
pub(crate) use self::walk::{for_each_expr, walk};
pub(crate) use self::writes::{is_write, names_write};
use crate::catalog::CheckOption;
use crate::copy::Options as CopyOptions;
use crate::error::{SqlError, byte_offset, code};
pub(crate) use crate::vocabulary::quoting::{Written, quoted, quoted_ident, quoted_name};
pub(crate) use crate::vocabulary::reserved::RESERVED;

/// Maximum length of a query text in bytes. A longer text is refused because of the memory that its
/// tree would take.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// One statement of a query text.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    /// The syntax tree. Shared because trees are large.
    pub ast: Arc<ast::Statement>,
    /// Set for a statement about roles. The tree is then a placeholder.
    pub role: Option<Arc<RoleStatement>>,
    /// The text of this statement.
    pub text: Arc<str>,
    /// The whole query text. Positions in the tree count from its start.
    pub source: Arc<str>,
    /// Set for a statement about a cursor. The tree is then a placeholder.
    pub cursor: Option<Arc<CursorStatement>>,
    /// The CHECK OPTION of a CREATE VIEW, which the tree cannot represent.
    pub check: Option<CheckOption>,
    /// The kind of relation that an ALTER names. The tree is an ALTER TABLE in any case.
    pub altered: Altered,
    /// The options of a COPY. The tree cannot represent all of them.
    pub copy: Option<Arc<CopyOptions>>,
    /// Set for a statement about procedures. The tree is then a placeholder.
    pub procedure: Option<Arc<ProcedureStatement>>,
    /// The options and the explained statement of an EXPLAIN. The tree is then a placeholder.
    pub explain: Option<Arc<explain::Explain>>,
    /// The moment of AS OF SYSTEM TIME.
    pub as_of: Option<Arc<as_of::AsOf>>,
    /// Options of a sequence that the tree cannot represent.
    pub sequence: Arc<sequences::Said>,
}

/// Parses all statements of a query text before any of them runs, as PostgreSQL does.
pub(crate) fn parse(source: &str) -> Result<Vec<Parsed>, SqlError> {
    if source.len() > TEXT_BYTES_MAX {
        let most = TEXT_BYTES_MAX >> 20;
        let message = format!("the query is longer than {most} MiB");
        return Err(SqlError::new(code::LIMIT_EXCEEDED, message)
            .with_hint("Send large values as parameters, or insert fewer rows at a time."));
    }
    let dialect = Postgres;
    let tokens = tokens(source)?;
    let shared: Arc<str> = Arc::from(source);
    let statements = tokens.split(|token| token.token == Token::SemiColon);
    let is_blank = |tokens: &&[TokenWithSpan]| {
        tokens.iter().all(|token| matches!(token.token, Token::Whitespace(_) | Token::EOF))
    };
    let mut place = Place::start_of(source);
    statements
        .filter(|tokens| !is_blank(tokens))
        .map(|tokens| parse_one(&dialect, &shared, &mut place, tokens))
        .collect()
}

/// Returns the tokens of a text, including blanks.
///
/// # Errors
/// 42601 if the text cannot be tokenized.
pub(crate) fn tokens(source: &str) -> Result<Vec<TokenWithSpan>, SqlError> {
    let mut tokens = Tokenizer::new(&Postgres, source)
        .tokenize_with_location()
        .map_err(|error| untokenized(source, &error.message, error.location))?;
    unsupported::read_numbers(source, &mut tokens)?;
    normalize::normalize(source, &mut tokens)?;
    Ok(tokens)
}

/// A position in a text that only moves forward, so that all statements are located in one pass.
struct Place<'a> {
    rest: std::str::Chars<'a>,
    here: Location,
}

impl<'a> Place<'a> {
    fn start_of(source: &'a str) -> Self {
        Self { rest: source.chars(), here: Location { line: 1, column: 1 } }
    }

    /// Returns the byte offset of a location that is not before the previous one.
    fn byte_offset(&mut self, source: &str, location: Location) -> usize {
        let is_before =
            |here: Location| (here.line, here.column) < (location.line, location.column);
        while is_before(self.here)
            && let Some(char) = self.rest.next()
        {
            self.here = match char {
                '\n' => Location { line: self.here.line + 1, column: 1 },
                _ => Location { column: self.here.column + 1, ..self.here },
            };
        }
        source.len() - self.rest.as_str().len()
    }
}

fn parse_one(
    dialect: &Postgres,
    source: &Arc<str>,
    place: &mut Place<'_>,
    tokens: &[TokenWithSpan],
) -> Result<Parsed, SqlError> {
    let is_word =
        |token: &&TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    let first = tokens.iter().find(is_word).map_or(Span::empty(), |token| token.span);
    let last = tokens.iter().rfind(is_word).map_or(Span::empty(), |token| token.span);
    let start = place.byte_offset(source, first.start);
    let end = place.byte_offset(source, last.end);
    let text: Arc<str> = Arc::from(&source[start..end]);
    let words: Vec<&TokenWithSpan> = tokens.iter().filter(is_word).collect();
    if let Some(parsed) = extended_grammar::parse(dialect, source, tokens, (start, &words, &text))?
    {
        return Ok(parsed);
    }
    kinds::check(tokens.iter().filter(is_word)).map_err(|error| error.at(source, first.start))?;
    unsupported::check_tokens(source, tokens.iter().filter(is_word))?;
    let shape = Shape::check(tokens)?;
    let mut tokens = tokens.to_vec();
    let as_of = as_of::take(source, &mut tokens)?;
    let sequence = sequences::take(source, &mut tokens)?;
    sequences::reorder(&mut tokens);
    let check = views::take_check_option(&mut tokens);
    let altered = alter_other_objects::as_table(&mut tokens);
    ranges::as_list(source, &mut tokens)?;
    only::take_only(&mut tokens);
    inserts::normalize(source, &mut tokens);
    replace_abort(&mut tokens);
    truncate_maintenance(&mut tokens);
    let mut parser = Parser::new(dialect).with_tokens_with_locations(tokens.clone());
    let is_copy = matches!(&parser.peek_token().token, Token::Word(word)
        if word.keyword == Keyword::COPY);
    let mut copy = None;
    let parsed = shape.parse(|| {
        let ast = if is_copy {
            let (ast, options) = copy::parse(source, &mut parser)?;
            copy = Some(Arc::new(options));
            ast
        } else {
            parser.parse_statement().map_err(|error| syntax_error(source, &error))?
        };
        let next = parser.peek_token();
        if next.token != Token::EOF {
            let message = format!("syntax error at or near \"{}\"", next.token);
            return Err(SqlError::new(code::SYNTAX, message).at(source, next.span.start));
        }
        Ok(ast)
    });
    let is_deeper = || shape.is_deeper_than_parsed(dialect, &tokens);
    let ast = parsed.map_err(|error| if is_deeper() { depth::too_deep() } else { error })?;
    unsupported::check_statement(source, &ast)?;
    let (text, source) = (Arc::from(&source[start..end]), source.clone());
    if as_of.is_some() {
        as_of::check(&ast, &source)?;
    }
    let (ast, as_of, sequence) = (Arc::new(ast), as_of.map(Arc::new), Arc::new(sequence));
    Ok(Parsed {
        ast,
        copy,
        check,
        altered,
        as_of,
        sequence,
        ..extended_grammar::of_no_tree(&text, &source)
    })
}

/// Removes the arguments of VACUUM and ANALYZE, which are accepted with any: old versions are
/// discarded automatically, and no statistics are gathered.
fn truncate_maintenance(tokens: &mut Vec<TokenWithSpan>) {
    let is_word = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    if let Some(at) = tokens.iter().position(is_word)
        && matches!(words::word(&tokens[at].token).as_deref(), Some("VACUUM" | "ANALYZE"))
    {
        tokens.truncate(at + 1);
    }
}

/// Replaces ABORT, PostgreSQL's synonym of ROLLBACK, which the parser does not know.
fn replace_abort(tokens: &mut [TokenWithSpan]) {
    let is_word = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    if let Some(token) = tokens.iter_mut().find(|token| is_word(token))
        && words::word(&token.token).as_deref() == Some("ABORT")
    {
        token.token = Token::make_keyword("ROLLBACK");
    }
}

/// Converts a parser error. The parser reports `Expected: x, found: y at Line: 1, Column: 2`;
/// PostgreSQL names only `y`.
pub(crate) fn syntax_error(source: &str, error: &ParserError) -> SqlError {
    let message = match error {
        ParserError::RecursionLimitExceeded => return depth::too_deep(),
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
    };
    let (what, location) = match message.rsplit_once(" at Line: ") {
        Some((what, place)) => (what, parse_location(place)),
        None => (message.as_str(), None),
    };
    let message = match what.rsplit_once("found: ") {
        Some((_, "EOF")) => {
            let end = SqlError::new(code::SYNTAX, "syntax error at end of input");
            return SqlError { position: Some(source.chars().count() as u32 + 1), ..end };
        }
        Some((_, found)) => format!("syntax error at or near \"{found}\""),
        None => format!("syntax error: {what}"),
    };
    let error = SqlError::new(code::SYNTAX, message);
    location.map_or(error.clone(), |location| error.at(source, location))
}

/// Returns the error of a text that cannot be tokenized, most often because of an unterminated
/// quote. As in PostgreSQL, it contains the rest of the text.
fn untokenized(source: &str, what: &str, location: Location) -> SqlError {
    let what = match what {
        "Unterminated string literal" => "unterminated quoted string",
        "Unterminated encoded string literal" => "unterminated quoted string",
        "Unterminated dollar-quoted string" => "unterminated dollar-quoted string",
        "Unterminated dollar-quoted, expected $" => "unterminated dollar-quoted string",
        "Expected close delimiter '\"' before EOF." => "unterminated quoted identifier",
        "Unexpected EOF while in a multi-line comment" => {
            let end = SqlError::new(code::SYNTAX, "unterminated /* comment");
            return end.at(source, location);
        }
        _ => "syntax error",
    };
    let rest = &source[byte_offset(source, location)..];
    let message = match rest {
        "" => format!("{what} at end of input"),
        rest => format!("{what} at or near \"{rest}\""),
    };
    SqlError::new(code::SYNTAX, message).at(source, location)
}

fn parse_location(text: &str) -> Option<Location> {
    let (line, column) = text.split_once(", Column: ")?;
    Some(Location { line: line.trim().parse().ok()?, column: column.trim().parse().ok()? })
}

/// Returns the location where an object's name begins.
pub(crate) fn location(object: &ast::ObjectName) -> Location {
    match object.0.first() {
        Some(ast::ObjectNamePart::Identifier(ident)) => ident.span.start,
        _ => Location::empty(),
    }
}

/// Returns the location where an expression begins. Descends its left edge in a loop, because a
/// walk over the whole expression would take stack for each level.
pub(crate) fn expr_location(mut expr: &ast::Expr) -> Location {
    use ast::Expr as A;
    loop {
        expr = match expr {
            A::Identifier(ident) => return ident.span.start,
            A::CompoundIdentifier(idents) => {
                return idents.first().map_or(Location::empty(), |ident| ident.span.start);
            }
            A::Value(value) => return value.span.start,
            A::Interval(interval) => &interval.value,
            A::TypedString(typed) => return typed.value.span.start,
            A::Function(function) => return location(&function.name),
            A::Case { case_token, .. } => return case_token.0.span.start,
            A::BinaryOp { left, .. }
            | A::IsDistinctFrom(left, _)
            | A::IsNotDistinctFrom(left, _) => left,
            A::Nested(inner)
            | A::IsNull(inner)
            | A::IsNotNull(inner)
            | A::IsTrue(inner)
            | A::IsNotTrue(inner)
            | A::IsFalse(inner)
            | A::IsNotFalse(inner)
            | A::IsUnknown(inner)
            | A::IsNotUnknown(inner) => inner,
            A::UnaryOp { expr, .. }
            | A::Cast { expr, .. }
            | A::InList { expr, .. }
            | A::Between { expr, .. }
            | A::Like { expr, .. }
            | A::ILike { expr, .. }
            | A::Extract { expr, .. }
            | A::Substring { expr, .. }
            | A::Trim { expr, .. } => expr,
            A::AnyOp { left, .. } | A::AllOp { left, .. } => left,
            A::CompoundFieldAccess { root, .. } => root,
            _ => return Location::empty(),
        };
    }
}

/// Returns the last name in a chain of accesses: `b` in `a.b[1]`.
pub(crate) fn accessed_name(chain: &[ast::AccessExpr]) -> Option<String> {
    chain.iter().rev().find_map(|access| match access {
        ast::AccessExpr::Dot(ast::Expr::Identifier(ident)) => Some(name(ident)),
        _ => None,
    })
}

/// Returns the first keywords of an unsupported statement.
pub(crate) fn command_of(statement: &ast::Statement) -> String {
    let text = statement.to_string();
    let is_upper = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase());
    let words: Vec<&str> = text.split_whitespace().take(2).take_while(is_upper).collect();
    if words.is_empty() { "this statement".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_cut_at_semicolons_outside_of_strings() {
        let parsed = parse(" SELECT ';' ;; select 2 -- ; \n;").unwrap();
        let texts: Vec<&str> = parsed.iter().map(|parsed| &*parsed.text).collect();
        assert_eq!(texts, ["SELECT ';'", "select 2"]);
        assert!(parse(" ; -- nothing\n").unwrap().is_empty());
    }

    #[test]
    fn syntax_errors_name_the_word_and_its_position() {
        let cases = [
            ("selec 1", "syntax error at or near \"selec\"", Some(1)),
            ("select 1;\ndrop tabl x", "syntax error at or near \"tabl\"", Some(16)),
            ("insert into", "syntax error at end of input", Some(12)),
            ("select 1 2", "syntax error at or near \"2\"", Some(10)),
            ("use db", "syntax error at or near \"use\"", Some(1)),
            ("select 1; \"copy\" t", "syntax error at or near \"\"copy\"\"", Some(11)),
            ("create tabl t (a int)", "syntax error at or near \"tabl\"", Some(8)),
            ("select 'a", "unterminated quoted string at or near \"'a\"", Some(8)),
            ("select \"é", "unterminated quoted identifier at or near \"\"é\"", Some(8)),
        ];
        for (text, message, position) in cases {
            let error = parse(text).unwrap_err();
            assert_eq!(
                (error.code.as_str(), error.position),
                ("42601", position),
                "{text} {error}"
            );
            assert_eq!((&*error.message, error.hint), (message, None), "{text}");
        }
    }

    #[test]
    fn statements_of_postgresql_that_are_missing_are_named() {
        let cases = [
            ("Reindex table t", "REINDEX"),
            ("table t", "TABLE"),
            ("prepare transaction 'x'", "PREPARE TRANSACTION"),
            ("commit prepared 'x'", "COMMIT PREPARED"),
            ("create or replace function f() returns int language sql", "CREATE FUNCTION"),
            ("create or replace rule r as on select to t", "CREATE RULE"),
            ("comment on constraint c on t is 'x'", "COMMENT ON CONSTRAINT"),
            ("create foreign table t (a int)", "CREATE FOREIGN TABLE"),
            ("alter default privileges grant select", "ALTER DEFAULT PRIVILEGES"),
            ("alter index i set (fillfactor = 70)", "ALTER INDEX"),
            ("drop materialized view v", "DROP MATERIALIZED VIEW"),
            ("refresh materialized view v", "REFRESH MATERIALIZED VIEW"),
            ("create unlogged table t (a int)", "CREATE UNLOGGED TABLE"),
        ];
        for (text, feature) in cases {
            let error = parse(text).unwrap_err();
            assert_eq!(error.code, code::FEATURE_NOT_SUPPORTED, "{text}: {error}");
            assert_eq!(error.message, format!("{feature} is not supported yet"));
            assert_eq!(error.position, Some(1), "{text}");
        }
        for text in [
            "vacuum",
            "declare c cursor for select 1",
            "abort",
            "end",
            "start transaction",
            "(select 1)",
            "values (1)",
        ] {
            assert_eq!(parse(text).unwrap().len(), 1, "{text}");
        }
    }

    /// Each statement's position was searched from the start of the text. A text of 100,000
    /// statements took a minute, and four of these texts blocked all sessions of a node.
    #[test]
    fn the_statements_of_a_text_are_found_in_one_pass() {
        let text = "select 'é;';\n\n  select\n 2 ; ;select 3";
        let parsed = parse(text).unwrap();
        let texts: Vec<&str> = parsed.iter().map(|parsed| &*parsed.text).collect();
        assert_eq!(texts, ["select 'é;'", "select\n 2", "select 3"]);
        let many = vec!["select 1"; 30_000].join(";");
        assert!(parse(&many).unwrap().iter().all(|parsed| &*parsed.text == "select 1"));
    }

    #[test]
    fn what_is_missing_within_a_statement_is_named_where_it_stands() {
        let cases = [
            ("select a from t order by a using <", "ORDER BY .. USING", Some(28)),
            ("select 0xffffffffffffffff", "a hexadecimal number beyond bigint", Some(8)),
            ("select a from t for update skip locked", "SKIP LOCKED", None),
        ];
        for (text, feature, position) in cases {
            let error = parse(text).unwrap_err();
            assert_eq!(error.code, code::FEATURE_NOT_SUPPORTED, "{text}: {error}");
            assert_eq!(error.message, format!("{feature} is not supported yet"));
            assert_eq!(error.position, position, "{text}");
        }
        for text in [
            "insert into row (a) values (1)",
            "select a from t for update nowait",
            "select skip locked from t",
            "select 1 as only, 2 as select",
            "delete from t using (values (1)) v",
            "select a from only t",
            "update only (t) set a = 1",
            "select \"only\" from \"only\"",
            "create table t (a int null, b int not null)",
        ] {
            assert_eq!(parse(text).unwrap().len(), 1, "{text}");
        }
        let hex = parse("select 0x1F, X'1F', '0x2'").unwrap();
        assert_eq!(hex[0].ast.to_string(), "SELECT 31, X'1F', '0x2'");
    }

    #[test]
    fn columns_that_can_not_be_are_refused() {
        let error = parse("create table t (a int, \"xmin\" int)").unwrap_err();
        assert_eq!((error.code, error.position), (code::DUPLICATE_COLUMN, Some(24)));
        assert_eq!(error.message, "column name \"xmin\" conflicts with a system column name");
        let error = parse("create table t (id int not null null)").unwrap_err();
        assert_eq!((error.code, error.position), (code::SYNTAX, Some(17)));
        let message = "conflicting NULL/NOT NULL declarations for column \"id\" of table \"t\"";
        assert_eq!(error.message, message);
        for text in ["alter table only t add cmin int", "alter table t rename a to ctid"] {
            assert_eq!(parse(text).unwrap_err().code, code::DUPLICATE_COLUMN, "{text}");
        }
    }

    #[test]
    fn tables_of_the_catalog_are_named_with_and_without_their_schema() {
        assert!(
            unsupported::is_of_catalog("pg_class")
                && unsupported::is_of_catalog("pg_stat_activity")
        );
        assert!(
            unsupported::is_of_catalog("pg_aggregate") && unsupported::is_of_catalog("pg_views")
        );
        assert!(unsupported::is_of_catalog("pg_type") && unsupported::is_of_catalog("pg_tables"));
        assert!(!unsupported::is_of_catalog("pg_mine") && !unsupported::is_of_catalog("class"));
    }

    #[test]
    fn nesting_has_a_limit() {
        let text = format!("select {}1{}", "(".repeat(10_000), ")".repeat(10_000));
        assert_eq!(parse(&text).unwrap_err().code.as_str(), "54001");
        for depth in [1, 10, 30, 49, 50, 60, 200, 790, 1_000, 100_000] {
            let not = format!("select {}true", "not ".repeat(depth));
            let case = "case when true then ".repeat(depth) + "1" + &" end".repeat(depth);
            let signs = format!("select {}1", "- ".repeat(depth));
            for text in [not, format!("select {case}"), signs] {
                let code = parse(&text).err().map(|error| error.code.as_str().to_owned());
                let expected = if depth <= 10 { None } else { Some("54001") };
                let fits = code.as_deref() == expected || (depth <= 60 && code.is_none());
                assert!(fits, "{depth} of {}: {code:?}", &text[..40.min(text.len())]);
                let wrong = format!("{text} frm x y z");
                let code = parse(&wrong).unwrap_err().code;
                assert!(depth > 10 || code.as_str() == "42601", "{depth}: {code}");
            }
        }
    }
}
