//! Typed expressions and their evaluation.
//!
//! The binder resolves names, types and casts, so that evaluation never has to infer a type. NULL
//! is unknown: every operator returns NULL for a NULL operand, except those that test for NULL.

mod aggregates;
pub(crate) mod arithmetic;
mod array_calls;
pub(crate) mod arrays;
pub(crate) mod bind;
mod calls;
pub(crate) mod cast;
pub(crate) mod catalog_calls;
mod dates;
pub(crate) mod enums;
mod env;
pub(crate) mod functions;
mod json;
mod json_calls;
mod math;
mod node_calls;
pub(crate) mod operators;
pub(crate) mod query;
pub(crate) mod regexes;
mod row_values;
mod scope;
pub(crate) mod sequences;
mod session_calls;
pub(crate) mod set_calls;
pub(crate) mod signatures;
mod strings;
mod subqueries;
pub(crate) mod temporal;
mod text_functions;
mod time_functions;
mod times;
mod to_char;
mod type_names;
mod whole_rows;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::error::{SqlError, code};
use crate::expr::query::Subquery;
use crate::types::datum::Datum;
use crate::types::text::shortened;
use crate::types::{ColumnType, SqlType};
use crate::vocabulary::column::ColumnId;
use arithmetic::Arithmetic;
pub(crate) use env::Env;
use functions::Function;
use temporal::Temporal;

/// An expression over the columns of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Const(Datum),
    /// A column of the row, by position.
    Column(usize),
    /// `$n`, from 0.
    Param(usize),
    /// The result of an aggregate; grouping replaces it by a column.
    Aggregate(usize),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `operand IN (list)`, negated or not.
    In {
        operand: Box<Expr>,
        list: Vec<Expr>,
        is_negated: bool,
    },
    /// The result of the first branch whose condition is true, or the default.
    Case(Vec<(Expr, Expr)>, Box<Expr>),
    Coalesce(Vec<Expr>),
    Call(Function, Vec<Expr>),
    /// A call on the sequence at a position in the plan.
    Sequence(SequenceCall, usize, Vec<Expr>),
    /// The result of a window function; the windows' output column replaces it.
    Window(usize),
    /// A column of a set-returning function: the positions of the call and of the column.
    Rows(usize, usize),
    /// A column of an outer query.
    Outer(ColumnId, SqlType),
    /// The value of a subquery, for each row.
    Subquery(Box<Subquery>),
}

/// An expression with its type.
pub(crate) type Typed = (Expr, SqlType);

/// A sequence function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceCall {
    Next,
    Current,
    /// `lastval`: the value drawn last from any sequence.
    Last,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    Not,
    Negate(SqlType),
    IsNull {
        is_negated: bool,
    },
    /// `IS TRUE`, `IS FALSE` and `IS UNKNOWN`.
    IsTruth {
        value: Option<bool>,
        is_negated: bool,
    },
    /// Converts a value to another type. Explicit casts truncate strings.
    Cast {
        from: SqlType,
        to: ColumnType,
        is_explicit: bool,
    },
    /// Removes the trailing blanks of `char(n)`, which comparisons ignore.
    TrimBlanks,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Binary {
    And,
    Or,
    /// Compares two values of this type.
    Compare(Comparison, SqlType),
    IsDistinct {
        is_negated: bool,
    },
    Arithmetic(Arithmetic, SqlType),
    Concat,
    /// date + integer, date - integer
    ShiftDate {
        is_backwards: bool,
    },
    /// date - date
    DaysBetween,
    /// An operator over times and intervals.
    Temporal(Temporal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub(crate) fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }

    /// Returns the comparison with its operands exchanged.
    pub(crate) fn mirrored(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }
}

impl Expr {
    /// Evaluates the expression for a row.
    #[recursive::recursive]
    pub(crate) fn eval(&self, row: &[Datum], env: &Env) -> Result<Datum, SqlError> {
        match self {
            Self::Const(datum) => Ok(datum.clone()),
            Self::Column(at) => Ok(row[*at].clone()),
            Self::Param(at) => Ok(env.params[*at].clone()),
            Self::Aggregate(_)
            | Self::Window(_)
            | Self::Rows(..)
            | Self::Outer(..)
            | Self::Subquery(_) => {
                unreachable!("columns take their place")
            }
            Self::Unary(op, operand) => op.apply(operand.eval(row, env)?, env),
            Self::Binary(op, left, right) => op.eval(left, right, row, env),
            Self::In { operand, list, is_negated } => {
                let found = eval_in(&operand.eval(row, env)?, list, row, env)?;
                Ok(found.map_or(Datum::Null, |found| Datum::Bool(found != *is_negated)))
            }
            Self::Case(branches, otherwise) => {
                for (condition, result) in branches {
                    if condition.eval(row, env)?.truth() == Some(true) {
                        return result.eval(row, env);
                    }
                }
                otherwise.eval(row, env)
            }
            Self::Coalesce(list) => {
                for item in list {
                    let datum = item.eval(row, env)?;
                    if !datum.is_null() {
                        return Ok(datum);
                    }
                }
                Ok(Datum::Null)
            }
            Self::Call(Function::Like { is_negated, is_case_blind }, args) if args.len() == 2 => {
                match (&*args[0].value(row, env)?, &*args[1].value(row, env)?) {
                    (Datum::Text(text), Datum::Text(pattern)) => {
                        let is_like = strings::like(text, pattern, "\\", *is_case_blind)?;
                        Ok(Datum::Bool(is_like != *is_negated))
                    }
                    (Datum::Null, _) | (_, Datum::Null) => Ok(Datum::Null),
                    (a, b) => panic!("{a:?} LIKE {b:?}"),
                }
            }
            Self::Call(function, args) => {
                let args = args.iter().map(|arg| arg.eval(row, env));
                function.call(&args.collect::<Result<Vec<_>, _>>()?, env)
            }
            Self::Sequence(call, at, args) => {
                let args = args.iter().map(|arg| arg.eval(row, env));
                call.apply(*at, &args.collect::<Result<Vec<_>, _>>()?, env)
            }
        }
    }

    /// Evaluates like `eval`, but borrows values that exist already.
    pub(crate) fn value<'a>(
        &'a self,
        row: &'a [Datum],
        env: &'a Env,
    ) -> Result<Cow<'a, Datum>, SqlError> {
        match self {
            Self::Const(datum) => Ok(Cow::Borrowed(datum)),
            Self::Column(at) => Ok(Cow::Borrowed(&row[*at])),
            Self::Param(at) => Ok(Cow::Borrowed(&env.params[*at])),
            other => other.eval(row, env).map(Cow::Owned),
        }
    }

    /// Whether a condition is true; unknown counts as false.
    pub(crate) fn is_true(&self, row: &[Datum], env: &Env) -> Result<bool, SqlError> {
        Ok(self.eval(row, env)?.truth() == Some(true))
    }

    /// Calls `visit` for the expression and all its parts, until it returns false. Returns whether
    /// it never did.
    #[recursive::recursive]
    pub(crate) fn all(&self, visit: &mut dyn FnMut(&Expr) -> bool) -> bool {
        visit(self)
            && match self {
                Self::Const(_)
                | Self::Column(_)
                | Self::Param(_)
                | Self::Aggregate(_)
                | Self::Window(_)
                | Self::Rows(..)
                | Self::Outer(..) => true,
                Self::Subquery(subquery) => subquery.parts().all(|part| part.all(visit)),
                Self::Unary(_, operand) => operand.all(visit),
                Self::Binary(_, left, right) => left.all(visit) && right.all(visit),
                Self::In { operand, list, .. } => {
                    operand.all(visit) && list.iter().all(|item| item.all(visit))
                }
                Self::Case(branches, otherwise) => {
                    let is_ok =
                        branches.iter().all(|(when, then)| when.all(visit) && then.all(visit));
                    is_ok && otherwise.all(visit)
                }
                Self::Coalesce(list) | Self::Call(_, list) | Self::Sequence(_, _, list) => {
                    list.iter().all(|item| item.all(visit))
                }
            }
    }

    /// Returns the expression with each part replaced for which `change` returns a replacement.
    #[recursive::recursive]
    pub(crate) fn rewrite<E>(
        self,
        change: &mut dyn FnMut(&Expr) -> Result<Option<Expr>, E>,
    ) -> Result<Expr, E> {
        if let Some(replacement) = change(&self)? {
            return Ok(replacement);
        }
        let mut each = |list: Vec<Expr>| -> Result<Vec<Expr>, E> {
            list.into_iter().map(|item| item.rewrite(change)).collect()
        };
        Ok(match self {
            Self::Const(_)
            | Self::Column(_)
            | Self::Param(_)
            | Self::Aggregate(_)
            | Self::Window(_)
            | Self::Rows(..)
            | Self::Outer(..) => self,
            Self::Subquery(mut subquery) => {
                for part in subquery.parts_mut() {
                    *part = std::mem::replace(part, Self::Param(0)).rewrite(change)?;
                }
                Self::Subquery(subquery)
            }
            Self::Unary(op, operand) => Self::Unary(op, Box::new(operand.rewrite(change)?)),
            Self::Binary(op, left, right) => {
                Self::Binary(op, Box::new(left.rewrite(change)?), Box::new(right.rewrite(change)?))
            }
            Self::In { operand, list, is_negated } => {
                let list = each(list)?;
                Self::In { operand: Box::new(operand.rewrite(change)?), list, is_negated }
            }
            Self::Case(branches, otherwise) => {
                let branches = branches
                    .into_iter()
                    .map(|(when, then)| Ok((when.rewrite(change)?, then.rewrite(change)?)))
                    .collect::<Result<_, E>>()?;
                Self::Case(branches, Box::new(otherwise.rewrite(change)?))
            }
            Self::Coalesce(list) => Self::Coalesce(each(list)?),
            Self::Call(function, list) => Self::Call(function, each(list)?),
            Self::Sequence(call, at, list) => Self::Sequence(call, at, each(list)?),
        })
    }

    /// Returns how often the expression calls `nextval` on the sequence at a position.
    pub(crate) fn draws(&self, sequence: usize) -> u64 {
        let mut draws = 0;
        self.all(&mut |expr| {
            let is_one =
                matches!(expr, Self::Sequence(SequenceCall::Next, at, _) if *at == sequence);
            draws += u64::from(is_one);
            true
        });
        draws
    }

    /// Whether the value depends only on the row: not on the time, the session or randomness.
    pub(crate) fn is_immutable(&self) -> bool {
        self.all(&mut |expr| match expr {
            Self::Param(_) | Self::Sequence(..) | Self::Subquery(_) => false,
            Self::Call(function, _) => function.is_immutable(),
            Self::Unary(Unary::Cast { from, to, .. }, _) => {
                // These casts depend on the session's time zone.
                let zoned = |base: SqlType| base.element().unwrap_or(base) == SqlType::Timestamptz;
                let is_name = |base: SqlType| matches!(base, SqlType::Reg(_));
                zoned(*from) == zoned(to.base) && is_name(*from) == is_name(to.base)
            }
            Self::Binary(Binary::Temporal(Temporal::Later(base) | Temporal::Earlier(base)), ..) => {
                *base != SqlType::Timestamptz
            }
            _ => true,
        })
    }

    /// Whether the predicate holds for the expression or one of its parts.
    pub(crate) fn has(&self, is_such: impl Fn(&Expr) -> bool) -> bool {
        !self.all(&mut |part| !is_such(part))
    }

    /// Returns the conjunction of two conditions.
    pub(crate) fn and(self, other: Self) -> Self {
        Self::Binary(Binary::And, Box::new(self), Box::new(other))
    }

    /// Splits a condition into the conjuncts that must all hold.
    pub(crate) fn conjuncts(&self) -> Vec<&Expr> {
        let mut found = Vec::new();
        let mut rest = vec![self];
        while let Some(condition) = rest.pop() {
            match condition {
                Self::Binary(Binary::And, left, right) => rest.extend([&**right, &**left]),
                condition => found.push(condition),
            }
        }
        found
    }

    /// The positions of the columns that it references, in ascending order.
    pub(crate) fn columns(&self) -> Vec<usize> {
        let mut columns = BTreeSet::new();
        self.all(&mut |part| {
            if let Self::Column(at) = part {
                columns.insert(*at);
            }
            true
        });
        columns.into_iter().collect()
    }

    /// Whether it contains a subquery.
    pub(crate) fn holds_subquery(&self) -> bool {
        self.has(|part| matches!(part, Self::Subquery(_)))
    }

    /// Whether it references columns of its own query.
    pub(crate) fn names_own(&self) -> bool {
        self.has(|part| matches!(part, Self::Column(_)))
    }

    /// Whether it references columns of outer queries.
    pub(crate) fn names_outer(&self) -> bool {
        self.has(|part| matches!(part, Self::Outer(..)))
    }

    /// Whether the value is the same for every row.
    pub(crate) fn is_constant(&self) -> bool {
        self.all(&mut |expr| match expr {
            Self::Column(_)
            | Self::Aggregate(_)
            | Self::Sequence(..)
            | Self::Window(_)
            | Self::Rows(..)
            | Self::Outer(..)
            | Self::Subquery(_) => false,
            Self::Call(function, _) => !function.is_volatile(),
            _ => true,
        })
    }
}

/// Whether the operand equals an element of the list; `None` if that is unknown.
fn eval_in(
    operand: &Datum,
    list: &[Expr],
    row: &[Datum],
    env: &Env,
) -> Result<Option<bool>, SqlError> {
    let mut has_null = operand.is_null();
    for item in list {
        let item = item.eval(row, env)?;
        if item.is_null() || operand.is_null() {
            has_null = true;
        } else if operand.compare(&item).is_eq() {
            return Ok(Some(true));
        }
    }
    Ok((!has_null).then_some(false))
}

/// Whether a cast looks a name up in the catalog: from text to a `reg*` type.
fn is_name_of(from: SqlType, to: SqlType) -> bool {
    (from.is_string() || from == SqlType::Unknown) && matches!(to, SqlType::Reg(_))
}

impl SequenceCall {
    fn apply(self, at: usize, args: &[Datum], env: &Env) -> Result<Datum, SqlError> {
        let number = match self {
            Self::Next => {
                let next = env.sequences[at].next()?;
                env.last_number.set(Some(next));
                next
            }
            Self::Current => env.sequences[at].current()?,
            Self::Last => env.last_number.get().ok_or_else(|| {
                let message = "lastval is not yet defined in this session";
                SqlError::new(code::NOT_PREREQUISITE, message)
            })?,
            Self::Set => {
                let (Some(Datum::Int(value)), is_called) = (args.first(), args.get(1)) else {
                    return Ok(Datum::Null);
                };
                let is_called = match is_called {
                    Some(Datum::Bool(is_called)) => *is_called,
                    Some(_) => return Ok(Datum::Null),
                    None => true,
                };
                env.set_sequences.borrow_mut().push((at, *value, is_called));
                *value
            }
        };
        Ok(Datum::Int(number))
    }
}

impl Unary {
    fn apply(self, operand: Datum, env: &Env) -> Result<Datum, SqlError> {
        match self {
            Self::IsNull { is_negated } => return Ok(Datum::Bool(operand.is_null() != is_negated)),
            Self::IsTruth { value, is_negated } => {
                return Ok(Datum::Bool((operand.truth() == value) != is_negated));
            }
            _ if operand.is_null() => return Ok(Datum::Null),
            _ => {}
        }
        match (self, operand) {
            (Self::Not, Datum::Bool(value)) => Ok(Datum::Bool(!value)),
            (Self::Negate(base), operand) => arithmetic::negate(base, operand),
            (Self::Cast { from, to, .. }, Datum::Text(text)) if is_name_of(from, to.base) => {
                let SqlType::Reg(kind) = to.base else { unreachable!("it is a name of something") };
                Ok(Datum::Int(env.catalog()?.number(kind, &text)?.into()))
            }
            (Self::Cast { from: SqlType::Reg(kind), to, .. }, Datum::Int(oid))
                if to.base.is_string() =>
            {
                let shown = env.catalog()?.shown(kind, oid as u32);
                Ok(Datum::Text(shortened(to.base, shown)))
            }
            (Self::Cast { from, to, is_explicit }, operand) => {
                cast::apply(operand, from, to, is_explicit, &env.zone)
            }
            (Self::TrimBlanks, Datum::Text(text)) => {
                Ok(Datum::Text(text.trim_end_matches(' ').to_owned()))
            }
            (op, operand) => panic!("{op:?} of {operand:?}"),
        }
    }
}

impl Binary {
    fn eval(self, left: &Expr, right: &Expr, row: &[Datum], env: &Env) -> Result<Datum, SqlError> {
        let left = left.value(row, env)?;
        // Three-valued logic: one operand may determine the result.
        match (self, &*left) {
            (Self::And, Datum::Bool(false)) => return Ok(Datum::Bool(false)),
            (Self::Or, Datum::Bool(true)) => return Ok(Datum::Bool(true)),
            _ => {}
        }
        let right = right.value(row, env)?;
        match self {
            Self::And => Ok(match (left.truth(), right.truth()) {
                (_, Some(false)) => Datum::Bool(false),
                (Some(true), Some(true)) => Datum::Bool(true),
                _ => Datum::Null,
            }),
            Self::Or => Ok(match (left.truth(), right.truth()) {
                (_, Some(true)) => Datum::Bool(true),
                (Some(false), Some(false)) => Datum::Bool(false),
                _ => Datum::Null,
            }),
            Self::IsDistinct { is_negated } => {
                let is_distinct = match (left.is_null(), right.is_null()) {
                    (false, false) => left.compare(&right).is_ne(),
                    (a, b) => a != b,
                };
                Ok(Datum::Bool(is_distinct != is_negated))
            }
            _ if left.is_null() || right.is_null() => Ok(Datum::Null),
            Self::Compare(op, _) => Ok(Datum::Bool(op.holds(left.compare(&right)))),
            other => other.compute(left.into_owned(), right.into_owned(), env),
        }
    }

    /// Applies the operator to two values that are not NULL.
    fn compute(self, left: Datum, right: Datum, env: &Env) -> Result<Datum, SqlError> {
        match self {
            Self::Arithmetic(op, base) => arithmetic::apply(op, base, left, right),
            Self::Concat => strings::concat(left, right),
            Self::ShiftDate { is_backwards } => arithmetic::shift_date(left, right, is_backwards),
            Self::DaysBetween => arithmetic::days_between(left, right),
            Self::Temporal(op) => temporal::apply(op, left, right, &env.zone),
            Self::And | Self::Or | Self::Compare(..) | Self::IsDistinct { .. } => {
                unreachable!("it looks at its values where they are")
            }
        }
    }
}
