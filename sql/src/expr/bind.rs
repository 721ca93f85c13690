//! Name and type resolution: converts syntax trees to typed expressions.
//!
//! A string literal, NULL or a parameter has no type at first. It takes its type from the context:
//! the other operand, the column that it is assigned to, or the argument that it is passed for.

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::cast::{self, Level};
pub(crate) use super::scope::Qualifier;
pub(crate) use super::type_names::column_type;
use super::{Expr, Unary, row_values};
use crate::catalog::role::Privileges;
use crate::catalog::{Enums, QualifiedName};
use crate::error::{SqlError, code};
use crate::expr::query::{Aggregate, Called, Query, Shape, Window};
use crate::syntax::{self, Written};
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::types::{ColumnType, NO_MODIFIER, SqlType, text};
use crate::vocabulary::column::ColumnId;
use crate::vocabulary::variables::{Signature, unassigned};

/// Maximum number of parameters of a statement; the limit of the wire protocol.
const PARAMS_MAX: usize = 65_535;

/// An expression with its type.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub expr: Expr,
    pub ty: ColumnType,
    pub location: Location,
}

/// A column that expressions can refer to.
#[derive(Clone, Debug)]
pub(crate) struct ScopeColumn {
    /// Schema of its table, if the column can be qualified with it.
    pub schema: Option<Arc<str>>,
    /// Name or alias of its table.
    pub table: String,
    pub name: String,
    pub ty: ColumnType,
    /// Whether the column exists but can't be referenced, because it was dropped.
    pub is_hidden: bool,
    /// Whether the column can only be referenced with its table, because a join has merged it.
    pub is_merged: bool,
    /// Whether `*` omits the column.
    pub is_unlisted: bool,
    /// Whether the column is part of its table's primary key.
    pub is_key: bool,
    /// Identity of the column in subqueries.
    pub id: ColumnId,
}

/// The columns that expressions can refer to, in row order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub columns: Vec<ScopeColumn>,
}

/// Types of `$1`, `$2`, ..., if known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Params {
    pub types: Vec<Option<SqlType>>,
    /// Sequences that expressions name, and whether numbers are drawn from them. Expressions refer
    /// to them by position.
    pub sequences: Vec<(SequenceName, bool)>,
    /// Required privileges on sequences; any one of them suffices.
    pub needs: Vec<(SequenceName, Privileges)>,
    /// Whether the statement reads the catalog, for more than the tables about this node.
    pub reads_catalog: bool,
    /// Whether the statement reads state that only this node has.
    pub reads_node: bool,
    /// Whether an expression repositions a sequence.
    pub sets_sequences: bool,
    /// Whether the SQL text is stored in the catalog. Unqualified names refer to `public` then.
    pub is_kept: bool,
    /// Columns of outer queries that the query refers to.
    pub outer: Vec<(ColumnId, SqlType)>,
    /// Names of the parameters in a procedure.
    pub variables: Option<Arc<Signature>>,
    /// Enums loaded so far.
    pub enums: Enums,
}

/// A reference to a sequence in an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SequenceName {
    /// By its resolved name.
    Known(QualifiedName),
    Named(Written),
    /// The sequence owned by a column.
    OfColumn {
        table: Written,
        column: String,
    },
}

impl Params {
    /// State for binding a standalone expression, which has no parameters.
    pub(crate) fn of_text(enums: &Enums) -> Self {
        Self { enums: enums.clone(), ..Self::default() }
    }

    /// Returns the position of a sequence; adds the sequence if needed.
    pub(crate) fn sequence(&mut self, name: SequenceName, is_drawn: bool) -> usize {
        let known = self.sequences.iter().position(|(known, _)| *known == name);
        let at = known.unwrap_or_else(|| {
            self.sequences.push((name, false));
            self.sequences.len() - 1
        });
        self.sequences[at].1 |= is_drawn;
        at
    }
}

/// Whether aggregates are allowed in a clause, and where they are collected.
pub(crate) enum Aggregates<'a> {
    /// Not allowed in this clause: `WHERE`, ...
    Forbidden(&'static str),
    /// Allowed. Window functions are allowed as well, unless a clause that forbids them is given.
    Allowed(&'a mut Collected, Option<&'static str>),
}

/// The parts of a query that are computed over several rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub aggregates: Vec<Aggregate>,
    pub windows: Vec<Window>,
    /// Set-returning functions.
    pub functions: Vec<Called>,
    /// Named windows of the query.
    pub named: Vec<ast::NamedWindowDefinition>,
}

/// A subquery in an expression, planned before the expression is bound.
#[derive(Clone, Debug)]
pub(crate) struct Nested {
    /// Its address in the syntax tree.
    pub place: usize,
    pub query: Arc<Query>,
    pub columns: Vec<ColumnType>,
    /// Columns of outer queries that it refers to.
    pub refs: Vec<(ColumnId, SqlType)>,
    pub shape: Shape,
}

/// Converts syntax trees over one scope to expressions.
pub(crate) struct Binder<'a> {
    /// Query text, for error positions.
    pub source: &'a str,
    pub scope: &'a Scope,
    pub params: &'a mut Params,
    pub aggregates: Aggregates<'a>,
    /// Scopes of the outer queries, innermost last.
    pub outer: &'a [Scope],
    /// Subqueries of the expressions.
    pub nested: Vec<Nested>,
}

impl Bound {
    pub(crate) fn new(expr: Expr, base: SqlType, location: Location) -> Self {
        Self { expr, ty: base.into(), location }
    }

    pub(crate) fn base(&self) -> SqlType {
        self.ty.base
    }
}

impl Binder<'_> {
    /// Binds an expression that must be a condition.
    pub(crate) fn condition(
        &mut self,
        ast: &ast::Expr,
        clause: &'static str,
    ) -> Result<Expr, SqlError> {
        let bound = self.bind(ast)?;
        self.boolean(bound, clause)
    }

    pub(crate) fn boolean(&mut self, bound: Bound, clause: &str) -> Result<Expr, SqlError> {
        if bound.base() != SqlType::Bool && bound.base() != SqlType::Unknown {
            let ty = bound.ty.base;
            let message = format!("argument of {clause} must be type boolean, not type {ty}");
            return Err(self.error_at(SqlError::new(code::TYPE_MISMATCH, message), bound.location));
        }
        Ok(self.coerce(bound, SqlType::Bool)?.expr)
    }

    /// Binds an expression.
    #[recursive::recursive]
    pub(crate) fn bind(&mut self, ast: &ast::Expr) -> Result<Bound, SqlError> {
        use ast::Expr as A;
        let location = syntax::expr_location(ast);
        if let Some(test) = self.row_test(ast, location) {
            return test;
        }
        match ast {
            A::Identifier(ident) => self.column(None, ident, location),
            A::CompoundIdentifier(idents) => self.compound(idents, location),
            A::Nested(inner) => self.bind(inner),
            A::Value(value) => self.value(&value.value, value.span.start),
            A::TypedString(typed) => {
                let to = column_type(&typed.data_type, &self.params.enums)?;
                let value = self.value(&typed.value.value, typed.value.span.start)?;
                self.cast(value, to, Level::Explicit)
            }
            A::Cast { expr, data_type, array: false, kind, .. } => {
                if matches!(kind, ast::CastKind::TryCast | ast::CastKind::SafeCast) {
                    return Err(SqlError::unsupported("TRY_CAST"));
                }
                let to = column_type(data_type, &self.params.enums)
                    .map_err(|e| self.error_at(e, location))?;
                if let (A::Array(array), Some(_)) = (&**expr, to.element()) {
                    return self.array(&array.elem, Some(to), location);
                }
                let operand = self.bind(expr)?;
                self.cast(operand, to, Level::Explicit)
            }
            A::Function(function) if row_values::is_row(function) => {
                Err(self.error_at(SqlError::unsupported("ROW"), location))
            }
            A::BinaryOp { left, op, right } => self.binary(left, op, right, location),
            A::UnaryOp { op, expr } => self.unary(op, expr, location),
            A::IsNull(_)
            | A::IsNotNull(_)
            | A::IsTrue(_)
            | A::IsNotTrue(_)
            | A::IsFalse(_)
            | A::IsNotFalse(_)
            | A::IsUnknown(_)
            | A::IsNotUnknown(_) => self.test(ast, location),
            A::IsDistinctFrom(left, right) => self.distinct(left, right, false, location),
            A::IsNotDistinctFrom(left, right) => self.distinct(left, right, true, location),
            A::InList { expr, list, negated } => self.in_list(expr, list, *negated, location),
            A::Between { expr, negated, low, high } => {
                self.between(expr, low, high, *negated, location)
            }
            A::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_ref(), (*negated, false), location)
            }
            A::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_ref(), (*negated, true), location)
            }
            A::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref(), location)
            }
            A::Function(function) => self.function(function, location),
            A::Subquery(_) | A::Exists { .. } | A::InSubquery { .. } => {
                self.subquery(ast, location)
            }
            _ => self.special_call(ast, location),
        }
    }

    pub(crate) fn error_at(&self, error: SqlError, location: Location) -> SqlError {
        error.at(self.source, location)
    }

    fn column(
        &mut self,
        table: Option<Qualifier<'_>>,
        ident: &ast::Ident,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let name = syntax::name(ident);
        let variables = self.params.variables.as_ref().map(|signature| &signature.variables);
        let variable = variables.and_then(|variables| {
            let found = variables.find(table.map(|it| it.table), &name)?;
            Some((found.parameter, found.ty, variables.is_strict))
        });
        let is_unassigned = table.is_some_and(|table| {
            variables.is_some_and(|it| it.unassigned.iter().any(|record| record == table.table))
        });
        let found = self.column_of_relation(table, &name, ident, location);
        match (variable, found) {
            (Some((parameter, ty, _)), Err(error)) if error.code != code::AMBIGUOUS_COLUMN => {
                Ok(Bound::new(Expr::Param(parameter), ty, location))
            }
            (Some((.., true)), Ok(Bound { expr: Expr::Column(_) | Expr::Outer(..), .. })) => {
                let message = format!("column reference \"{name}\" is ambiguous");
                let detail = "It could refer to either a PL/pgSQL variable or a table column.";
                let error = SqlError::new(code::AMBIGUOUS_COLUMN, message).with_detail(detail);
                Err(self.error_at(error, location))
            }
            (None, Err(_)) if is_unassigned => Err(unassigned(table.map_or("", |it| it.table))),
            (_, found) => found,
        }
    }

    fn column_of_relation(
        &mut self,
        table: Option<Qualifier<'_>>,
        name: &str,
        ident: &ast::Ident,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let is_keyword = table.is_none() && ident.quote_style.is_none();
        match self.scope.find(table, name) {
            Ok(at) => Ok(Bound { expr: Expr::Column(at), ty: self.scope.columns[at].ty, location }),
            Err(error) if error.code != code::AMBIGUOUS_COLUMN && !self.outer.is_empty() => {
                match self.outer_column(table, name, location) {
                    Some(found) => found,
                    None if is_keyword && is_bare_function(name) => {
                        self.call(name, vec![], location)
                    }
                    None => Err(self.error_at(error, location)),
                }
            }
            // Some functions are called without parentheses.
            Err(_) if is_keyword && is_bare_function(name) => self.call(name, vec![], location),
            Err(error) => Err(self.error_at(error, location)),
        }
    }

    /// Resolves a column in the innermost outer query that has it.
    fn outer_column(
        &mut self,
        table: Option<Qualifier<'_>>,
        name: &str,
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        for scope in self.outer.iter().rev() {
            match scope.find(table, name) {
                Ok(at) => {
                    let ScopeColumn { ty, id, .. } = scope.columns[at];
                    let outer = (id, ty.base);
                    if !self.params.outer.contains(&outer) {
                        self.params.outer.push(outer);
                    }
                    return Some(Ok(Bound { expr: Expr::Outer(id, ty.base), ty, location }));
                }
                Err(error) if error.code == code::AMBIGUOUS_COLUMN => {
                    return Some(Err(self.error_at(error, location)));
                }
                Err(_) => {}
            }
        }
        None
    }

    fn compound(&mut self, idents: &[ast::Ident], location: Location) -> Result<Bound, SqlError> {
        match idents {
            [table, column] => {
                let qualifier = Qualifier { schema: None, table: &syntax::name(table) };
                self.column(Some(qualifier), column, location)
            }
            [schema, table, column] => {
                let (schema, table) = (syntax::name(schema), syntax::name(table));
                let qualifier = Qualifier { schema: Some(&schema), table: &table };
                self.column(Some(qualifier), column, location)
            }
            _ => {
                let feature = format!("a column name with {} parts", idents.len());
                Err(self.error_at(SqlError::unsupported(feature), location))
            }
        }
    }

    fn value(&mut self, value: &ast::Value, location: Location) -> Result<Bound, SqlError> {
        use ast::Value as V;
        let string = |text: &str| {
            let datum = Datum::Text(text.to_owned());
            Ok(Bound::new(Expr::Const(datum), SqlType::Unknown, location))
        };
        match value {
            V::Null => Ok(Bound::new(Expr::Const(Datum::Null), SqlType::Unknown, location)),
            V::Boolean(value) => {
                Ok(Bound::new(Expr::Const(Datum::Bool(*value)), SqlType::Bool, location))
            }
            V::Number(digits, _) => number(digits, location),
            V::SingleQuotedString(text)
            | V::EscapedStringLiteral(text)
            | V::UnicodeStringLiteral(text)
            | V::NationalStringLiteral(text) => string(text),
            V::DollarQuotedString(text) => string(&text.value),
            V::Placeholder(name) => self.param(name, location),
            other => {
                Err(self.error_at(SqlError::unsupported(format!("the literal {other}")), location))
            }
        }
    }

    fn param(&mut self, name: &str, location: Location) -> Result<Bound, SqlError> {
        let number = name.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok());
        let Some(number) = number.filter(|number| (1..=PARAMS_MAX).contains(number)) else {
            let message = format!("there is no parameter {name}");
            let error = SqlError::new(code::UNDEFINED_PARAMETER, message);
            return Err(self.error_at(error, location));
        };
        if self.params.types.len() < number {
            self.params.types.resize(number, None);
        }
        let base = self.params.types[number - 1].unwrap_or(SqlType::Unknown);
        self.looked_up(Bound::new(Expr::Param(number - 1), base, location))
    }

    /// Converts a value to a type by an implicit cast.
    pub(crate) fn coerce(&mut self, bound: Bound, base: SqlType) -> Result<Bound, SqlError> {
        self.cast(bound, base.into(), Level::Implicit)
    }

    /// Converts a value to a type.
    pub(crate) fn cast(
        &mut self,
        bound: Bound,
        to: ColumnType,
        allowed: Level,
    ) -> Result<Bound, SqlError> {
        let Bound { expr, ty: from, location } = bound;
        if from.base == SqlType::Unknown {
            return self.adopt(expr, to, allowed, location);
        }
        self.params.reads_catalog |= matches!(from.base, SqlType::Reg(_)) && to.base.is_string();
        self.params.reads_catalog |= matches!(to.base, SqlType::Reg(_)) && from.base.is_string();
        if cast::level(from.base, to.base).is_none_or(|level| level > allowed) {
            let message = format!("cannot cast type {} to {}", from.base, to.base);
            return Err(self.error_at(SqlError::new(code::CANNOT_COERCE, message), location));
        }
        let needs_fit = to.modifier != NO_MODIFIER && to != from;
        if from.base == to.base && !needs_fit {
            return Ok(Bound { expr, ty: from, location });
        }
        let is_explicit = allowed == Level::Explicit;
        let op = Unary::Cast { from: from.base, to, is_explicit };
        let bound = Bound { expr: Expr::Unary(op, Box::new(expr)), ty: to, location };
        if from.base == to.base { Ok(bound) } else { self.looked_up(bound) }
    }

    /// Gives a type to a value without one.
    fn adopt(
        &mut self,
        expr: Expr,
        to: ColumnType,
        allowed: Level,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let base = to.base;
        let is_name = matches!(base, SqlType::Reg(_));
        let expr = match expr {
            // Objects with OIDs are given by name, as text.
            Expr::Param(at) if is_name => {
                let known = *self.params.types[at].get_or_insert(SqlType::Text);
                let bound = Bound::new(Expr::Param(at), known, location);
                return self.cast_typed(bound, to, Level::Explicit);
            }
            Expr::Const(Datum::Text(name)) if is_name => {
                let bound = Bound::new(Expr::Const(Datum::Text(name)), SqlType::Text, location);
                return self.cast_typed(bound, to, Level::Explicit);
            }
            Expr::Param(at) => {
                // The type may have been determined elsewhere after this reference was bound
                // without one.
                let known = *self.params.types[at].get_or_insert(base);
                let bound = self.looked_up(Bound::new(Expr::Param(at), known, location))?;
                let is_same = known == base && to.modifier == NO_MODIFIER;
                return if is_same { Ok(bound) } else { self.cast_typed(bound, to, allowed) };
            }
            // A time without a zone depends on the session's zone, so the literal is converted at
            // run time.
            Expr::Const(Datum::Text(text))
                if base.element().unwrap_or(base) == SqlType::Timestamptz =>
            {
                let op = Unary::Cast { from: SqlType::Text, to, is_explicit: true };
                Expr::Unary(op, Box::new(Expr::Const(Datum::Text(text))))
            }
            Expr::Const(Datum::Text(literal)) => {
                let fitted = text::parse(base, &literal, &Zone::default())
                    .and_then(|datum| self.known_value(base, datum))
                    .and_then(|datum| text::fit(to, datum, allowed == Level::Explicit));
                Expr::Const(fitted.map_err(|error| self.error_at(error, location))?)
            }
            other => other,
        };
        Ok(Bound { expr, ty: to, location })
    }

    fn cast_typed(
        &mut self,
        bound: Bound,
        to: ColumnType,
        allowed: Level,
    ) -> Result<Bound, SqlError> {
        assert_ne!(bound.base(), SqlType::Unknown, "only once");
        self.cast(bound, to, allowed)
    }

    /// Converts a value to the type of a column that it is assigned to.
    pub(crate) fn assign(
        &mut self,
        bound: Bound,
        column: &str,
        to: ColumnType,
    ) -> Result<Expr, SqlError> {
        let (from, location) = (bound.base(), bound.location);
        if cast::level(from, to.base).is_none_or(|level| level > Level::Assignment) {
            let message = format!(
                "column \"{column}\" is of type {} but expression is of type {from}",
                to.base
            );
            let error = SqlError::new(code::TYPE_MISMATCH, message)
                .with_hint("You will need to rewrite or cast the expression.");
            return Err(self.error_at(error, location));
        }
        Ok(self.cast(bound, to, Level::Assignment)?.expr)
    }

    /// Prepares a value for output: a value without a type becomes text.
    pub(crate) fn output(&mut self, bound: Bound) -> Result<Bound, SqlError> {
        if bound.base() == SqlType::Unknown { self.coerce(bound, SqlType::Text) } else { Ok(bound) }
    }

    /// Converts values to their common type.
    pub(crate) fn unify(
        &mut self,
        mut bounds: Vec<Bound>,
        construct: &str,
    ) -> Result<Vec<Bound>, SqlError> {
        let mut meeting = SqlType::Unknown;
        for bound in &bounds {
            meeting = match cast::common(meeting, bound.base()) {
                // Unlike operands of an operator, which become double precision, values of a list
                // stay real.
                Some(SqlType::Float8)
                    if [meeting, bound.base()].contains(&SqlType::Float4)
                        && ![meeting, bound.base()].contains(&SqlType::Float8) =>
                {
                    SqlType::Float4
                }
                Some(common) => common,
                None => {
                    let message = format!(
                        "{construct} types {meeting} and {} cannot be matched",
                        bound.base()
                    );
                    let error = SqlError::new(code::TYPE_MISMATCH, message);
                    return Err(self.error_at(error, bound.location));
                }
            };
        }
        if meeting == SqlType::Unknown {
            meeting = SqlType::Text;
        }
        let is_same = bounds.windows(2).all(|pair| pair[0].ty == pair[1].ty);
        for bound in &mut bounds {
            let modifier = if is_same { bound.ty.modifier } else { NO_MODIFIER };
            *bound = self.coerce(bound.clone(), meeting)?;
            bound.ty = ColumnType { base: meeting, modifier };
        }
        Ok(bounds)
    }
}

fn is_bare_function(name: &str) -> bool {
    [
        "current_catalog",
        "current_date",
        "current_role",
        "current_schema",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "user",
    ]
    .contains(&name)
}

/// Binds a numeric literal as integer, bigint or numeric, whichever is the smallest that fits.
pub(super) fn number(digits: &str, location: Location) -> Result<Bound, SqlError> {
    if let Ok(value) = digits.parse::<i64>() {
        let base = if i32::try_from(value).is_ok() { SqlType::Int4 } else { SqlType::Int8 };
        return Ok(Bound::new(Expr::Const(Datum::Int(value)), base, location));
    }
    let value = digits.parse().map(Datum::Numeric)?;
    Ok(Bound::new(Expr::Const(value), SqlType::Numeric, location))
}
