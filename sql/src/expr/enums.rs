//! Values of enums: lookup of labels, and functions over them.
//!
//! An expression contains the enum that it needs as constants among its arguments: all values, and
//! the name.

use sqlparser::tokenizer::Location;

use super::Expr;
use super::arrays;
use super::bind::{Binder, Bound};
use super::functions::Function;
use crate::catalog::Enum;
use crate::catalog::enums::value_among;
use crate::error::{SqlError, code};
use crate::syntax::quoted_ident;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// A function over values of an enum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnumFunction {
    /// Looks a label up in the enum, for each element if the value is an array. The argument may be
    /// only the label's text.
    Value,
    /// The values between two bounds, inclusive. A NULL bound means the first or the last value.
    Range,
}

/// Returns an expression that looks the value up in its enum.
pub(crate) fn value(known: &Enum, expr: Expr) -> Expr {
    let name = Expr::Const(Datum::Text(quoted_ident(&known.name)));
    call(EnumFunction::Value, known, vec![expr], name)
}

/// Returns the expression under the enum lookup, or the expression itself if it is not a lookup.
pub(crate) fn given(expr: &Expr) -> &Expr {
    match expr {
        Expr::Call(Function::Enum(EnumFunction::Value), args) => &args[0],
        other => other,
    }
}

fn call(function: EnumFunction, known: &Enum, mut args: Vec<Expr>, last: Expr) -> Expr {
    args.push(Expr::Const(Datum::array(known.values().to_vec())));
    args.push(last);
    Expr::Call(Function::Enum(function), args)
}

impl EnumFunction {
    pub(super) fn call(self, args: &[Datum]) -> Result<Datum, SqlError> {
        match (self, args) {
            (Self::Value, [value, Datum::Array(all), Datum::Text(name)]) => {
                looked_up(value, all.items(), name)
            }
            (Self::Range, [from, to, Datum::Array(all), _]) => Ok(range(from, to, all.items())),
            (function, args) => panic!("{function:?} of {args:?}"),
        }
    }
}

fn looked_up(value: &Datum, all: &[Datum], name: &str) -> Result<Datum, SqlError> {
    match value {
        Datum::Array(array) => arrays::map(array, |item| looked_up(&item, all, name)),
        Datum::Enum(label) => value_among(all, name, label),
        other => panic!("{other:?} is no value of an enum"),
    }
}

fn range(from: &Datum, to: &Datum, all: &[Datum]) -> Datum {
    let is_in = |value: &&Datum| {
        (from.is_null() || value.compare(from).is_ge())
            && (to.is_null() || value.compare(to).is_le())
    };
    Datum::array(all.iter().filter(is_in).cloned().collect())
}

impl Binder<'_> {
    /// Adds the enum lookup to a value of an enum type, which turns its text into a value with a
    /// sort position.
    pub(super) fn looked_up(&self, bound: Bound) -> Result<Bound, SqlError> {
        match bound.base().enumeration() {
            Some(id) => match self.params.enums.get(id) {
                Some(known) => Ok(Bound { expr: value(known, bound.expr), ..bound }),
                None => Err(SqlError::undefined_type(&id.mark())),
            },
            None => Ok(bound),
        }
    }

    /// Resolves a literal of an enum type to the value with its sort position.
    pub(super) fn known_value(&self, base: SqlType, datum: Datum) -> Result<Datum, SqlError> {
        match base.enumeration().filter(|id| self.params.enums.get(*id).is_none()) {
            Some(id) => Err(SqlError::undefined_type(&id.mark())),
            None => self.params.enums.value(base, datum),
        }
    }

    /// Binds a call of a function over an enum; `None` for any other name.
    pub(super) fn enum_call(
        &mut self,
        name: &str,
        args: &[Bound],
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        if !matches!((name, args.len()), ("enum_first" | "enum_last", 1) | ("enum_range", 1 | 2)) {
            return None;
        }
        Some(self.over_enum(name, args, location))
    }

    fn over_enum(
        &mut self,
        name: &str,
        args: &[Bound],
        location: Location,
    ) -> Result<Bound, SqlError> {
        let types: Vec<SqlType> = args.iter().map(Bound::base).collect();
        let mut known = types.iter().filter(|base| **base != SqlType::Unknown);
        let (base, id) = match known.next() {
            Some(SqlType::Enum(id)) if known.all(|other| *other == SqlType::Enum(*id)) => {
                (SqlType::Enum(*id), *id)
            }
            Some(_) | None => return Err(self.no_function(name, &types, location)),
        };
        let Some(known) = self.params.enums.get(id).cloned() else {
            return Err(SqlError::undefined_type(&id.mark()));
        };
        let array = base.array().expect("there are arrays of enums");
        if let [from, to] = args {
            let from = self.coerce(from.clone(), base)?.expr;
            let to = self.coerce(to.clone(), base)?.expr;
            let nothing = Expr::Const(Datum::Null);
            let expr = call(EnumFunction::Range, &known, vec![from, to], nothing);
            return Ok(Bound::new(expr, array, location));
        }
        // The result depends only on the type.
        let (value, result) = match name {
            "enum_first" => (known.values().first().cloned(), base),
            "enum_last" => (known.values().last().cloned(), base),
            _ => (Some(Datum::array(known.values().to_vec())), array),
        };
        let Some(value) = value else {
            let message = format!("enum {} contains no values", quoted_ident(&known.name));
            return Err(SqlError::new(code::NOT_PREREQUISITE, message));
        };
        Ok(Bound::new(Expr::Const(value), result, location))
    }
}
