//! Binding of operators and tests.

use sqlparser::ast;
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Location;

use super::arithmetic::Arithmetic;
use super::arrays::Test;
use super::bind::{Binder, Bound};
use super::functions::Function;
use super::regexes::RegexFunction;
use super::{Binary, Comparison, Expr, Unary, cast, temporal};
use crate::error::{SqlError, code};
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;

pub(super) fn comparison(op: &ast::BinaryOperator) -> Option<Comparison> {
    use ast::BinaryOperator as O;
    Some(match op {
        O::Eq => Comparison::Equal,
        O::NotEq => Comparison::NotEqual,
        O::Lt => Comparison::Less,
        O::LtEq => Comparison::LessOrEqual,
        O::Gt => Comparison::Greater,
        O::GtEq => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn arithmetic(op: &ast::BinaryOperator) -> Option<Arithmetic> {
    use ast::BinaryOperator as O;
    Some(match op {
        O::Plus => Arithmetic::Add,
        O::Minus => Arithmetic::Subtract,
        O::Multiply => Arithmetic::Multiply,
        O::Divide => Arithmetic::Divide,
        O::Modulo => Arithmetic::Remainder,
        O::BitwiseAnd => Arithmetic::BitAnd,
        O::BitwiseOr => Arithmetic::BitOr,
        O::PGBitwiseXor => Arithmetic::BitXor,
        _ => return None,
    })
}

/// Returns the digits of an integer literal with its signs, in parentheses or not.
fn whole_number(operand: &ast::Expr) -> Option<String> {
    match operand {
        ast::Expr::Nested(inner) => whole_number(inner),
        ast::Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr } => whole_number(expr).map(minus),
        ast::Expr::Value(value) => {
            let ast::Value::Number(digits, _) = &value.value else { return None };
            digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.clone())
        }
        _ => None,
    }
}

/// Returns the name of the function that shifts the bits of an integer.
fn shift(base: SqlType, is_left: bool) -> &'static str {
    match (base, is_left) {
        (SqlType::Int2, true) => "int2shl",
        (SqlType::Int2, false) => "int2shr",
        (SqlType::Int4, true) => "int4shl",
        (SqlType::Int4, false) => "int4shr",
        (_, true) => "int8shl",
        (_, false) => "int8shr",
    }
}

fn minus(number: String) -> String {
    number.strip_prefix('-').map_or_else(|| format!("-{number}"), str::to_owned)
}

pub(super) fn binary(op: Binary, left: Expr, right: Expr) -> Expr {
    Expr::Binary(op, Box::new(left), Box::new(right))
}

impl Binder<'_> {
    pub(super) fn binary(
        &mut self,
        left: &ast::Expr,
        op: &ast::BinaryOperator,
        right: &ast::Expr,
        location: Location,
    ) -> Result<Bound, SqlError> {
        use ast::BinaryOperator as O;
        if let O::PGCustomBinaryOperator(parts) = op {
            let op = self.named_operator(parts, location)?;
            return self.binary(left, &op, right, location);
        }
        if let O::And | O::Or = op {
            let (name, op) = match op {
                O::And => ("AND", Binary::And),
                _ => ("OR", Binary::Or),
            };
            let left = self.condition(left, name)?;
            let right = self.condition(right, name)?;
            return Ok(Bound::new(binary(op, left, right), SqlType::Bool, location));
        }
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        if let Some(bound) = self.array_operator(op, &left, &right, location) {
            return bound;
        }
        if let Some(bound) = self.json_operator(op, &left, &right, location) {
            return bound;
        }
        if let Some(comparison) = comparison(op) {
            let (left, right, base) = self.comparable(left, right, &op.to_string(), location)?;
            let compared = binary(Binary::Compare(comparison, base), left, right);
            return Ok(Bound::new(compared, SqlType::Bool, location));
        }
        if let Some(arithmetic) = arithmetic(op) {
            return self.arithmetic(arithmetic, left, right, &op.to_string(), location);
        }
        match op {
            O::PGBitwiseShiftLeft | O::PGBitwiseShiftRight if left.base().is_integer() => {
                let name = shift(left.base(), *op == O::PGBitwiseShiftLeft);
                self.call(name, vec![left, right], location)
            }
            O::PGExp => self.call("power", vec![left, right], location),
            O::PGStartsWith => self.call("starts_with", vec![left, right], location),
            O::StringConcat => self.concat(left, right, location),
            O::PGLikeMatch | O::PGNotLikeMatch | O::PGILikeMatch | O::PGNotILikeMatch => {
                let is_negated = matches!(op, O::PGNotLikeMatch | O::PGNotILikeMatch);
                let is_case_blind = matches!(op, O::PGILikeMatch | O::PGNotILikeMatch);
                let function = Function::Like { is_negated, is_case_blind };
                self.text_call(function, vec![left, right], SqlType::Bool, location)
            }
            O::PGRegexMatch | O::PGRegexIMatch | O::PGRegexNotMatch | O::PGRegexNotIMatch => {
                let is_negated = matches!(op, O::PGRegexNotMatch | O::PGRegexNotIMatch);
                let is_case_blind = matches!(op, O::PGRegexIMatch | O::PGRegexNotIMatch);
                let is_text = |base: SqlType| base.is_string() || base == SqlType::Unknown;
                if !is_text(left.base()) || !is_text(right.base()) {
                    let (a, b) = (left.base(), right.base());
                    return Err(self.no_operator(&op.to_string(), a, b, location));
                }
                let function = RegexFunction::Matches { is_negated, is_case_blind };
                let function = Function::Regex(function);
                self.text_call(function, vec![left, right], SqlType::Bool, location)
            }
            other => {
                let feature = format!("operator {other}");
                Err(self.error_at(SqlError::unsupported(feature), location))
            }
        }
    }

    /// `OPERATOR(pg_catalog.+)`: an operator qualified with its schema.
    fn named_operator(
        &self,
        parts: &[String],
        location: Location,
    ) -> Result<ast::BinaryOperator, SqlError> {
        let (name, schema) = parts.split_last().expect("an operator has a name");
        if !matches!(schema, [] | [_]) || schema.iter().any(|schema| schema != "pg_catalog") {
            let message = format!("schema \"{}\" does not exist", schema.join("."));
            return Err(self.error_at(SqlError::new(code::UNDEFINED_SCHEMA, message), location));
        }
        let parser = Parser::new(&PostgreSqlDialect {}).try_with_sql(&format!("a {name} b"));
        match parser.and_then(|mut parser| parser.parse_expr()) {
            Ok(ast::Expr::BinaryOp { op, .. }) => Ok(op),
            _ => Err(self.error_at(SqlError::unsupported(format!("operator {name}")), location)),
        }
    }

    /// Binds COLLATE: all supported collations sort by bytes.
    pub(super) fn collate(
        &mut self,
        operand: &ast::Expr,
        collation: &ast::ObjectName,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let bound = self.bind(operand)?;
        let base = bound.base();
        if !base.is_string() && base != SqlType::Unknown {
            let message = format!("collations are not supported by type {base}");
            return Err(self.error_at(SqlError::new(code::TYPE_MISMATCH, message), location));
        }
        let name = syntax::name_parts(collation)?.pop().unwrap_or_default();
        if !["default", "C", "POSIX", "C.UTF-8", "ucs_basic"].contains(&name.as_str()) {
            let message = format!("collation \"{name}\" for encoding \"UTF8\" does not exist");
            let error = SqlError::new(code::UNDEFINED_OBJECT, message)
                .with_hint("All texts are sorted by their bytes, as in the collation \"C\".");
            return Err(self.error_at(error, location));
        }
        Ok(bound)
    }

    fn text_call(
        &mut self,
        function: Function,
        args: Vec<Bound>,
        result: SqlType,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let args = args
            .into_iter()
            .map(|arg| self.coerce(arg, SqlType::Text).map(|arg| arg.expr))
            .collect::<Result<_, _>>()?;
        Ok(Bound::new(Expr::Call(function, args), result, location))
    }

    pub(super) fn no_operator(
        &self,
        op: &str,
        a: SqlType,
        b: SqlType,
        location: Location,
    ) -> SqlError {
        let message = format!("operator does not exist: {a} {op} {b}");
        let error = SqlError::new(code::UNDEFINED_FUNCTION, message).with_hint(
            "No operator matches the given name and argument types. \
             You might need to add explicit type casts.",
        );
        self.error_at(error, location)
    }

    /// Converts two values to a common type that can be compared, and returns that type.
    pub(crate) fn comparable(
        &mut self,
        left: Bound,
        right: Bound,
        op: &str,
        location: Location,
    ) -> Result<(Expr, Expr, SqlType), SqlError> {
        let common = cast::common(left.base(), right.base())
            .ok_or_else(|| self.no_operator(op, left.base(), right.base(), location))?;
        use SqlType::{Bpchar, Varchar};
        // For character varying and character, the operator of character is the best match.
        let is_padded =
            matches!((left.base(), right.base()), (Varchar, Bpchar) | (Bpchar, Varchar));
        let common = if common == SqlType::Unknown { SqlType::Text } else { common };
        if common.element().unwrap_or(common) == SqlType::Json {
            return Err(self.no_operator(op, left.base(), right.base(), location));
        }
        let left = self.coerce(left, common)?.expr;
        let right = self.coerce(right, common)?.expr;
        if common != SqlType::Bpchar && !is_padded {
            return Ok((left, right, common));
        }
        let trimmed = |expr: Expr| Expr::Unary(Unary::TrimBlanks, Box::new(expr));
        Ok((trimmed(left), trimmed(right), SqlType::Text))
    }

    fn arithmetic(
        &mut self,
        op: Arithmetic,
        left: Bound,
        right: Bound,
        name: &str,
        location: Location,
    ) -> Result<Bound, SqlError> {
        if left.base().is_datetime() || right.base().is_datetime() {
            return self.date_arithmetic(op, left, right, name, location);
        }
        let common = cast::common(left.base(), right.base());
        let is_bitwise = matches!(op, Arithmetic::BitAnd | Arithmetic::BitOr | Arithmetic::BitXor);
        let is_defined = |base: SqlType| match op {
            _ if is_bitwise => base.is_integer(),
            Arithmetic::Remainder => base.is_integer() || base == SqlType::Numeric,
            _ => base.is_number(),
        };
        // Two untyped values resolve to text, which has no such operator.
        let Some(common) = common.filter(|&base| is_defined(base)) else {
            return Err(self.no_operator(name, left.base(), right.base(), location));
        };
        let left = self.coerce(left, common)?.expr;
        let right = self.coerce(right, common)?.expr;
        Ok(Bound::new(binary(Binary::Arithmetic(op, common), left, right), common, location))
    }

    fn date_arithmetic(
        &mut self,
        op: Arithmetic,
        left: Bound,
        right: Bound,
        name: &str,
        location: Location,
    ) -> Result<Bound, SqlError> {
        use SqlType::{Date, Int4, Unknown};
        let is_days = |base: SqlType| matches!(base, SqlType::Int2 | Int4);
        match (op, left.base(), right.base()) {
            (Arithmetic::Add | Arithmetic::Subtract, Date, days) if is_days(days) => {
                let is_backwards = op == Arithmetic::Subtract;
                let days = self.coerce(right, Int4)?.expr;
                let shifted = binary(Binary::ShiftDate { is_backwards }, left.expr, days);
                Ok(Bound::new(shifted, Date, location))
            }
            (Arithmetic::Add, days, Date) if is_days(days) => {
                let days = self.coerce(left, Int4)?.expr;
                let shifted = binary(Binary::ShiftDate { is_backwards: false }, right.expr, days);
                Ok(Bound::new(shifted, Date, location))
            }
            (Arithmetic::Subtract, Date, Date | Unknown)
            | (Arithmetic::Subtract, Unknown, Date) => {
                let left = self.coerce(left, Date)?.expr;
                let right = self.coerce(right, Date)?.expr;
                Ok(Bound::new(binary(Binary::DaysBetween, left, right), Int4, location))
            }
            (op, a, b) if temporal::is_ambiguous(op, a, b) => {
                let message = format!("operator is not unique: {a} {name} {b}");
                let error = SqlError::new(code::AMBIGUOUS_FUNCTION, message).with_hint(
                    "Could not choose a best candidate operator. \
                     You might need to add explicit type casts.",
                );
                Err(self.error_at(error, location))
            }
            (op, a, b) => {
                let Some(meaning) = temporal::meaning(op, a, b) else {
                    return Err(self.no_operator(name, a, b, location));
                };
                let (left, right) = if meaning.is_swapped { (right, left) } else { (left, right) };
                let left = self.coerce(left, meaning.left)?.expr;
                let right = self.coerce(right, meaning.right)?.expr;
                let expr = binary(Binary::Temporal(meaning.op), left, right);
                Ok(Bound::new(expr, meaning.result, location))
            }
        }
    }

    fn concat(&mut self, left: Bound, right: Bound, location: Location) -> Result<Bound, SqlError> {
        use SqlType::{Bytea, Text, Unknown};
        let base = match (left.base(), right.base()) {
            (Bytea, Bytea | Unknown) | (Unknown, Bytea) => Bytea,
            (a, b) if [a, b].into_iter().any(|base| base.is_string() || base == Unknown) => Text,
            (a, b) => return Err(self.no_operator("||", a, b, location)),
        };
        // If one operand is text, the other is converted to text, whatever its type.
        let left = self.cast(left, base.into(), cast::Level::Assignment)?.expr;
        let right = self.cast(right, base.into(), cast::Level::Assignment)?.expr;
        Ok(Bound::new(binary(Binary::Concat, left, right), base, location))
    }

    pub(super) fn unary(
        &mut self,
        op: &ast::UnaryOperator,
        operand: &ast::Expr,
        location: Location,
    ) -> Result<Bound, SqlError> {
        match op {
            ast::UnaryOperator::Not => {
                let operand = self.condition(operand, "NOT")?;
                Ok(Bound::new(Expr::Unary(Unary::Not, Box::new(operand)), SqlType::Bool, location))
            }
            ast::UnaryOperator::BitwiseNot => {
                let operand = self.bind(operand)?;
                let base = operand.base();
                if !base.is_integer() {
                    let message = format!("operator does not exist: {op} {base}");
                    let error = SqlError::new(code::UNDEFINED_FUNCTION, message);
                    return Err(self.error_at(error, location));
                }
                let all = Bound::new(Expr::Const(Datum::Int(-1)), base, location);
                self.arithmetic(Arithmetic::BitXor, operand, all, "~", location)
            }
            ast::UnaryOperator::PGAbs
            | ast::UnaryOperator::PGSquareRoot
            | ast::UnaryOperator::PGCubeRoot => {
                let mut operand = self.bind(operand)?;
                let name = match op {
                    ast::UnaryOperator::PGAbs => "abs",
                    ast::UnaryOperator::PGSquareRoot => "sqrt",
                    _ => "cbrt",
                };
                if name != "abs" {
                    operand = self.cast(operand, SqlType::Float8.into(), cast::Level::Implicit)?;
                }
                self.call(name, vec![operand], location)
            }
            // A number with its sign is one constant, so that -2147483648 is an integer.
            ast::UnaryOperator::Minus if let Some(number) = whole_number(operand) => {
                super::bind::number(&minus(number), location)
            }
            ast::UnaryOperator::Plus | ast::UnaryOperator::Minus => {
                let mut operand = self.bind(operand)?;
                if operand.base() == SqlType::Unknown {
                    operand = self.coerce(operand, SqlType::Float8)?;
                }
                let base = operand.base();
                if !base.is_number()
                    && (base != SqlType::Interval || *op == ast::UnaryOperator::Plus)
                {
                    let message = format!("operator does not exist: {op} {base}");
                    let error = SqlError::new(code::UNDEFINED_FUNCTION, message);
                    return Err(self.error_at(error, location));
                }
                if matches!(op, ast::UnaryOperator::Plus) {
                    return Ok(operand);
                }
                let negated = Expr::Unary(Unary::Negate(base), Box::new(operand.expr));
                Ok(Bound::new(negated, base, location))
            }
            other => {
                let feature = format!("operator {other}");
                Err(self.error_at(SqlError::unsupported(feature), location))
            }
        }
    }

    /// Binds `IS [NOT] NULL`, `TRUE`, `FALSE` and `UNKNOWN`.
    pub(super) fn test(&mut self, ast: &ast::Expr, location: Location) -> Result<Bound, SqlError> {
        use ast::Expr as A;
        let truth = |value, is_negated| Unary::IsTruth { value, is_negated };
        let (operand, op) = match ast {
            A::IsNull(operand) => (operand, Unary::IsNull { is_negated: false }),
            A::IsNotNull(operand) => (operand, Unary::IsNull { is_negated: true }),
            A::IsTrue(operand) => (operand, truth(Some(true), false)),
            A::IsNotTrue(operand) => (operand, truth(Some(true), true)),
            A::IsFalse(operand) => (operand, truth(Some(false), false)),
            A::IsNotFalse(operand) => (operand, truth(Some(false), true)),
            A::IsUnknown(operand) => (operand, truth(None, false)),
            A::IsNotUnknown(operand) => (operand, truth(None, true)),
            other => unreachable!("{other} is not a test"),
        };
        let operand = match op {
            // Any type is accepted, so that a parameter can still get its type elsewhere.
            Unary::IsNull { .. } => self.bind(operand)?.expr,
            _ => self.condition(operand, "IS")?,
        };
        Ok(Bound::new(Expr::Unary(op, Box::new(operand)), SqlType::Bool, location))
    }

    pub(super) fn distinct(
        &mut self,
        left: &ast::Expr,
        right: &ast::Expr,
        is_negated: bool,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        let (left, right, _) = self.comparable(left, right, "=", location)?;
        let expr = binary(Binary::IsDistinct { is_negated }, left, right);
        Ok(Bound::new(expr, SqlType::Bool, location))
    }

    pub(super) fn in_list(
        &mut self,
        operand: &ast::Expr,
        list: &[ast::Expr],
        is_negated: bool,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let operand = self.bind(operand)?;
        let items = list.iter().map(|item| self.bind(item)).collect::<Result<Vec<_>, _>>()?;
        let mut common = operand.base();
        for item in &items {
            common = cast::common(common, item.base())
                .ok_or_else(|| self.no_operator("=", common, item.base(), item.location))?;
        }
        let common = if common == SqlType::Unknown { SqlType::Text } else { common };
        if common.element().unwrap_or(common) == SqlType::Json {
            return Err(self.no_operator("=", common, common, location));
        }
        let mut prepare = |bound: Bound| {
            let expr = self.coerce(bound, common)?.expr;
            let is_padded = common == SqlType::Bpchar;
            let trimmed = |expr| Expr::Unary(Unary::TrimBlanks, Box::new(expr));
            Ok::<_, SqlError>(if is_padded { trimmed(expr) } else { expr })
        };
        let operand = Box::new(prepare(operand)?);
        let list = items.into_iter().map(prepare).collect::<Result<_, _>>()?;
        Ok(Bound::new(Expr::In { operand, list, is_negated }, SqlType::Bool, location))
    }

    pub(super) fn between(
        &mut self,
        operand: &ast::Expr,
        low: &ast::Expr,
        high: &ast::Expr,
        is_negated: bool,
        location: Location,
    ) -> Result<Bound, SqlError> {
        use ast::BinaryOperator as O;
        let above = self.binary(operand, &O::GtEq, low, location)?.expr;
        let below = self.binary(operand, &O::LtEq, high, location)?.expr;
        let both = binary(Binary::And, above, below);
        let negated = |expr| Expr::Unary(Unary::Not, Box::new(expr));
        let expr = if is_negated { negated(both) } else { both };
        Ok(Bound::new(expr, SqlType::Bool, location))
    }

    pub(super) fn like(
        &mut self,
        operand: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        (is_negated, is_case_blind): (bool, bool),
        location: Location,
    ) -> Result<Bound, SqlError> {
        let test = Test::Like { is_negated, is_case_blind };
        if let Some(bound) = self.like_all(test, operand, pattern, location) {
            return bound;
        }
        let mut args = vec![self.bind(operand)?, self.bind(pattern)?];
        if let Some(escape) = escape {
            args.push(self.bind(&ast::Expr::Value(escape.clone()))?);
        }
        if let Some(bad) =
            args.iter().find(|arg| !arg.base().is_string() && arg.base() != SqlType::Unknown)
        {
            return Err(self.no_operator("~~", args[0].base(), bad.base(), location));
        }
        let function = Function::Like { is_negated, is_case_blind };
        self.text_call(function, args, SqlType::Bool, location)
    }

    pub(super) fn case(
        &mut self,
        operand: Option<&ast::Expr>,
        branches: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let mut conditions = Vec::with_capacity(branches.len());
        let mut results = Vec::with_capacity(branches.len() + 1);
        for branch in branches {
            conditions.push(match operand {
                Some(operand) => {
                    let op = ast::BinaryOperator::Eq;
                    self.binary(operand, &op, &branch.condition, location)?.expr
                }
                None => self.condition(&branch.condition, "CASE/WHEN")?,
            });
            results.push(self.bind(&branch.result)?);
        }
        results.push(match otherwise {
            Some(otherwise) => self.bind(otherwise)?,
            None => Bound::new(Expr::Const(Datum::Null), SqlType::Unknown, location),
        });
        self.refuse_rows(&results, "CASE", location)?;
        let mut results = self.unify(results, "CASE")?;
        let ty = results[0].ty;
        let otherwise = Box::new(results.pop().expect("ELSE is there").expr);
        let branches = conditions.into_iter().zip(results.into_iter().map(|r| r.expr)).collect();
        Ok(Bound { expr: Expr::Case(branches, otherwise), ty, location })
    }
}
