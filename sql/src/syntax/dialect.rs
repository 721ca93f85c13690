//! PostgreSQL's grammar for the parser, with PostgreSQL's operator precedence.
//!
//! The parser's own dialect differs in four points, each of which changes results without an error:
//!
//! - The right side of `IS DISTINCT FROM` is everything that follows, including ANDs.
//! - Prefix operators such as `~` and `@` bind more tightly than `+`.
//! - `-2 ^ 2` is `-(2 ^ 2)`.
//! - In `NOT EXISTS (..) IS NULL` the IS NULL applies to the NOT.
//!
//! It also accepts chains of comparisons, such as `a < b < c`, which are errors in PostgreSQL.

use std::any::TypeId;

use sqlparser::ast::{BinaryOperator, Expr, UnaryOperator};
use sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token;

const PARSERS: PostgreSqlDialect = PostgreSqlDialect {};

/// Precedence of a sign: below `[`, `::` and `.`, above all other operators.
const SIGN: u8 = 125;

/// PostgreSQL's grammar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Postgres;

/// Delegates methods to the parser's own dialect.
macro_rules! as_in_parser {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            PARSERS.$name($($argument),*)
        })*
    };
}

impl Dialect for Postgres {
    /// Returns the type of the parser's own dialect: the parser checks for it in many places.
    fn dialect(&self) -> TypeId {
        TypeId::of::<PostgreSqlDialect>()
    }

    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        let other = self.prec_value(Precedence::PgOther);
        let (op, precedence) = match parser.peek_token_ref().token {
            Token::Minus => (UnaryOperator::Minus, SIGN),
            Token::Plus => (UnaryOperator::Plus, SIGN),
            Token::Tilde => (UnaryOperator::BitwiseNot, other),
            Token::AtSign => (UnaryOperator::PGAbs, other),
            Token::PGSquareRoot => (UnaryOperator::PGSquareRoot, other),
            Token::PGCubeRoot => (UnaryOperator::PGCubeRoot, other),
            Token::Word(ref word) if word.keyword == Keyword::NOT => {
                (UnaryOperator::Not, self.prec_value(Precedence::UnaryNot))
            }
            _ => return None,
        };
        parser.advance_token();
        let operand = parser.parse_subexpr(precedence);
        Some(operand.map(|expr| Expr::UnaryOp { op, expr: Box::new(expr) }))
    }

    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        left: &Expr,
        precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        use Keyword::{DISTINCT, FROM, IS, NOT};
        if matches!(left, Expr::BinaryOp { op, .. } if is_comparison(op))
            && precedence == self.prec_value(Precedence::Eq)
        {
            return Some(parser.expected("an operand", parser.peek_token()));
        }
        let op = if parser.parse_keywords(&[IS, DISTINCT, FROM]) {
            Expr::IsDistinctFrom
        } else if parser.parse_keywords(&[IS, NOT, DISTINCT, FROM]) {
            Expr::IsNotDistinctFrom
        } else {
            return None;
        };
        let right = parser.parse_subexpr(precedence);
        Some(right.map(|right| op(Box::new(left.clone()), Box::new(right))))
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        let is_operator = match &parser.peek_token_ref().token {
            Token::Tilde
            | Token::TildeAsterisk
            | Token::ExclamationMarkTilde
            | Token::ExclamationMarkTildeAsterisk
            | Token::DoubleTilde
            | Token::DoubleTildeAsterisk
            | Token::ExclamationMarkDoubleTilde
            | Token::ExclamationMarkDoubleTildeAsterisk => true,
            Token::Word(word) => word.keyword == Keyword::OPERATOR,
            _ => false,
        };
        match is_operator {
            true => Some(Ok(self.prec_value(Precedence::PgOther))),
            false => PARSERS.get_next_precedence(parser),
        }
    }

    as_in_parser! {
        identifier_quote_style(identifier: &str) -> Option<char>;
        is_delimited_identifier_start(ch: char) -> bool;
        is_identifier_start(ch: char) -> bool;
        is_identifier_part(ch: char) -> bool;
        is_reserved_for_identifier(keyword: Keyword) -> bool;
        is_custom_operator_part(ch: char) -> bool;
        prec_value(precedence: Precedence) -> u8;
        supports_unicode_string_literal() -> bool;
        supports_filter_during_aggregation() -> bool;
        supports_group_by_expr() -> bool;
        allow_extract_custom() -> bool;
        allow_extract_single_quotes() -> bool;
        supports_create_index_with_clause() -> bool;
        supports_explain_with_utility_options() -> bool;
        supports_listen_notify() -> bool;
        supports_factorial_operator() -> bool;
        supports_bitwise_shift_operators() -> bool;
        supports_comment_on() -> bool;
        supports_load_extension() -> bool;
        supports_named_fn_args_with_colon_operator() -> bool;
        supports_named_fn_args_with_expr_name() -> bool;
        supports_empty_projections() -> bool;
        supports_nested_comments() -> bool;
        supports_string_escape_constant() -> bool;
        supports_numeric_literal_underscores() -> bool;
        supports_array_typedef_with_brackets() -> bool;
        supports_geometric_types() -> bool;
        supports_set_names() -> bool;
        supports_alter_column_type_using() -> bool;
        supports_notnull_operator() -> bool;
        supports_interval_options() -> bool;
        supports_insert_table_alias() -> bool;
        supports_create_table_like_parenthesized() -> bool;
        supports_select_wildcard_with_alias() -> bool;
        supports_comma_separated_trim() -> bool;
        supports_xml_expressions() -> bool;
        supports_comment_optimizer_hint() -> bool;
    }
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | Gt | GtEq | Lt | LtEq | NotEq)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats an expression with parentheses around every operand.
    fn shape(text: &str) -> String {
        fn show(expr: &Expr) -> String {
            match expr {
                Expr::Nested(inner) => show(inner),
                Expr::BinaryOp { left, op, right } => {
                    format!("({} {op} {})", show(left), show(right))
                }
                Expr::UnaryOp { op: UnaryOperator::Not, expr } => format!("(NOT {})", show(expr)),
                Expr::UnaryOp { op, expr } => format!("({op}{})", show(expr)),
                Expr::IsDistinctFrom(left, right) => {
                    format!("({} <> {})", show(left), show(right))
                }
                Expr::IsNotDistinctFrom(left, right) => {
                    format!("({} <=> {})", show(left), show(right))
                }
                Expr::Cast { expr, data_type, .. } => format!("({}::{data_type})", show(expr)),
                other => other.to_string(),
            }
        }
        let mut parser = Parser::new(&Postgres).try_with_sql(text).unwrap();
        let expr = parser.parse_expr().unwrap();
        assert_eq!(parser.peek_token().token, Token::EOF, "{text}");
        show(&expr)
    }

    #[test]
    fn operators_bind_as_close_as_in_postgresql() {
        let cases = [
            ("~1 + 1", "(~(1 + 1))"),
            ("~1 | 2", "((~1) | 2)"),
            ("@ -5 + 1", "(@((-5) + 1))"),
            ("|/ 4 + 5 * 2", "(|/(4 + (5 * 2)))"),
            ("||/ 8 = 2", "((||/8) = 2)"),
            ("-2 ^ 2", "((-2) ^ 2)"),
            ("- a::int * b", "((-(a::INT)) * b)"),
            ("- -a + b", "((-(-a)) + b)"),
            ("NOT EXISTS (SELECT 1) = b", "(NOT (EXISTS (SELECT 1) = b))"),
            ("NOT a AND NOT NOT b", "((NOT a) AND (NOT (NOT b)))"),
            ("a ~ b || c", "((a ~ b) || c)"),
            ("a || b ~ c", "((a || b) ~ c)"),
            ("a !~~* b = c", "((a !~~* b) = c)"),
            ("a + b OPERATOR(+) c * d", "((a + b) OPERATOR(+) (c * d))"),
            ("NOT a = 1 IS DISTINCT FROM b AND c", "((NOT ((a = 1) <> b)) AND c)"),
            ("a IS NOT DISTINCT FROM b + 1 OR c", "((a <=> (b + 1)) OR c)"),
            ("a AND b IS DISTINCT FROM c = d AND e", "((a AND (b <> (c = d))) AND e)"),
            ("a BETWEEN 1 AND 2 IS DISTINCT FROM b OR c", "((a BETWEEN 1 AND 2 <> b) OR c)"),
        ];
        for (text, expected) in cases {
            assert_eq!(shape(text), expected, "{text}");
        }
    }

    #[test]
    fn comparisons_in_a_row_are_none() {
        for text in ["a < b < c", "a = b = c", "a <> b + 1 >= c AND d"] {
            let mut parser = Parser::new(&Postgres).try_with_sql(text).unwrap();
            assert!(parser.parse_expr().is_err(), "{text}");
        }
        assert_eq!(shape("(a < b) = (c < d)"), "((a < b) = (c < d))");
    }
}
