//! Binding of JSON operators, and of JSON functions that take arguments of any type.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::Expr;
use super::arrays::ArrayFunction;
use super::bind::{Binder, Bound};
use super::cast::{self, Level};
use super::functions::Function;
use super::json::JsonFunction as F;
use super::signatures::{Signature, of};
use super::whole_rows::ROW;
use crate::error::{SqlError, code};
use crate::types::SqlType::{self, Bool, Int4, Json, Jsonb, Text};
use crate::types::TEXTS;

const fn json(
    name: &'static str,
    args: &'static [SqlType],
    result: SqlType,
    function: F,
) -> Signature {
    of(name, args, result, Function::Json(function))
}

pub(super) const SIGNATURES: &[Signature] = &[
    json("jsonb_set", &[Jsonb, TEXTS, Jsonb], Jsonb, F::Set),
    json("jsonb_set", &[Jsonb, TEXTS, Jsonb, Bool], Jsonb, F::Set),
    json("jsonb_insert", &[Jsonb, TEXTS, Jsonb], Jsonb, F::Insert),
    json("jsonb_insert", &[Jsonb, TEXTS, Jsonb, Bool], Jsonb, F::Insert),
    json("jsonb_typeof", &[Jsonb], Text, F::Kind),
    json("json_typeof", &[Json], Text, F::Kind),
    json("jsonb_array_length", &[Jsonb], Int4, F::Length),
    json("json_array_length", &[Json], Int4, F::Length),
    json("jsonb_strip_nulls", &[Jsonb], Jsonb, F::StripNulls),
    json("json_strip_nulls", &[Json], Json, F::StripNulls),
    json("jsonb_pretty", &[Jsonb], Text, F::Pretty),
];

fn call(function: F, args: Vec<Expr>) -> Expr {
    Expr::Call(Function::Json(function), args)
}

fn is_json(base: SqlType) -> bool {
    base == Json || base == Jsonb
}

impl Binder<'_> {
    /// Binds an operator that has its own meaning for JSON; `None` for any other operator or types.
    pub(super) fn json_operator(
        &mut self,
        op: &ast::BinaryOperator,
        left: &Bound,
        right: &Bound,
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        use ast::BinaryOperator as O;
        let (a, b) = (left.base(), right.base());
        let is_known = matches!(
            op,
            O::Arrow
                | O::LongArrow
                | O::HashArrow
                | O::HashLongArrow
                | O::AtArrow
                | O::ArrowAt
                | O::Question
                | O::QuestionPipe
                | O::QuestionAnd
                | O::StringConcat
                | O::Minus
                | O::HashMinus
        );
        if !is_known || !(is_json(a) || is_json(b)) {
            return None;
        }
        let is_place = |base: SqlType| matches!(base, SqlType::Int2 | Int4);
        // An index if the operand is an integer; otherwise, also for an untyped literal, a key.
        let key = if is_place(b) { Int4 } else { Text };
        let both = cast::common(a, b) == Some(Jsonb);
        let (function, wanted, result) = match op {
            O::Arrow if is_json(a) => (F::Get { as_text: false }, key, a),
            O::LongArrow if is_json(a) => (F::Get { as_text: true }, key, Text),
            O::HashArrow if is_json(a) => (F::Path { as_text: false }, TEXTS, a),
            O::HashLongArrow if is_json(a) => (F::Path { as_text: true }, TEXTS, Text),
            O::AtArrow if both => (F::Contains, Jsonb, Bool),
            O::ArrowAt if both => (F::IsContained, Jsonb, Bool),
            O::StringConcat if both => (F::Concat, Jsonb, Jsonb),
            // String concatenation converts any operand to text.
            O::StringConcat => return None,
            O::Question if a == Jsonb => (F::Exists, Text, Bool),
            O::QuestionPipe if a == Jsonb => (F::ExistsAny, TEXTS, Bool),
            O::QuestionAnd if a == Jsonb => (F::ExistsAll, TEXTS, Bool),
            O::Minus if a == Jsonb && b == TEXTS => (F::Delete, TEXTS, Jsonb),
            O::Minus if a == Jsonb => (F::Delete, key, Jsonb),
            O::HashMinus if a == Jsonb => (F::DeletePath, TEXTS, Jsonb),
            _ => return Some(Err(self.no_operator(&op.to_string(), a, b, location))),
        };
        if cast::level(b, wanted) != Some(Level::Implicit) {
            return Some(Err(self.no_operator(&op.to_string(), a, b, location)));
        }
        let mut bind = || {
            let left_type = if is_json(a) { a } else { Jsonb };
            let left = self.coerce(left.clone(), left_type)?.expr;
            let right = self.coerce(right.clone(), wanted)?.expr;
            Ok(Bound::new(call(function, vec![left, right]), result, location))
        };
        Some(bind())
    }

    /// `j['a'][1]`
    pub(super) fn json_subscripts(
        &mut self,
        operand: Bound,
        subscripts: &[&ast::Subscript],
        location: Location,
    ) -> Result<Bound, SqlError> {
        let mut expr = operand.expr;
        for subscript in subscripts {
            let ast::Subscript::Index { index } = subscript else {
                let message = "jsonb subscript does not support slices";
                let error = SqlError::new(code::TYPE_MISMATCH, message);
                return Err(self.error_at(error, location));
            };
            let index = self.bind(index)?;
            let base = index.base();
            let wanted = if matches!(base, SqlType::Int2 | Int4) { Int4 } else { Text };
            if cast::level(base, wanted) != Some(Level::Implicit) {
                let message = format!("subscript type {base} is not supported");
                let error = SqlError::new(code::TYPE_MISMATCH, message)
                    .with_hint("jsonb subscript must be coercible to either integer or text.");
                return Err(self.error_at(error, index.location));
            }
            let index = self.coerce(index, wanted)?.expr;
            expr = call(F::Get { as_text: false }, vec![expr, index]);
        }
        Ok(Bound::new(expr, Jsonb, location))
    }

    /// Binds a call of a function that builds or traverses JSON; `None` for any other name.
    pub(super) fn json_call(
        &mut self,
        name: &str,
        args: &[Bound],
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        let is_binary = name.starts_with("jsonb") || name == "to_jsonb";
        let base = if is_binary { Jsonb } else { Json };
        let bound = match (name, args.len()) {
            ("to_json" | "to_jsonb", 1) => {
                if args[0].base() == SqlType::Unknown {
                    let message =
                        "could not determine polymorphic type because input has type unknown";
                    let error = SqlError::new(code::TYPE_MISMATCH, message);
                    return Some(Err(self.error_at(error, location)));
                }
                self.made_json(&args[0], is_binary, true)
            }
            ("json_build_array" | "jsonb_build_array", _) => {
                let items = args.iter().map(|arg| self.made_json(arg, is_binary, false));
                items
                    .collect::<Result<_, _>>()
                    .map(|items| Expr::Call(Function::Json(F::MakeArray { is_binary }), items))
            }
            ("json_build_object" | "jsonb_build_object", _) => {
                self.json_object(name, args, is_binary, location)
            }
            (ROW, _) => {
                let item = |(at, arg): (usize, &Bound)| match at % 2 {
                    0 => Ok(arg.expr.clone()),
                    _ => self.made_json(arg, false, false),
                };
                let items = args.iter().enumerate().map(item);
                items.collect::<Result<_, _>>().map(|items| call(F::MakeRow, items))
            }
            // The binder has already converted a whole row to JSON.
            ("row_to_json", 1) if args[0].base() == Json => {
                Ok(call(F::Same, vec![args[0].expr.clone()]))
            }
            ("json_extract_path" | "jsonb_extract_path", 2..) => {
                return Some(self.json_path(base, args, false, location));
            }
            ("json_extract_path_text" | "jsonb_extract_path_text", 2..) => {
                return Some(self.json_path(base, args, true, location));
            }
            _ => return None,
        };
        Some(bound.map(|expr| Bound::new(expr, base, location)))
    }

    fn made_json(
        &mut self,
        arg: &Bound,
        is_binary: bool,
        is_strict: bool,
    ) -> Result<Expr, SqlError> {
        let arg = self.output(arg.clone())?;
        let function = F::Make { base: arg.base(), is_binary, is_strict };
        Ok(call(function, vec![arg.expr]))
    }

    fn json_object(
        &mut self,
        name: &str,
        args: &[Bound],
        is_binary: bool,
        location: Location,
    ) -> Result<Expr, SqlError> {
        if !args.len().is_multiple_of(2) {
            let message = "argument list must have even number of elements";
            let hint =
                format!("The arguments of {name}() must consist of alternating keys and values.");
            let error = SqlError::new(code::INVALID_PARAMETER, message).with_hint(hint);
            return Err(self.error_at(error, location));
        }
        let mut list = Vec::with_capacity(args.len());
        for pair in args.chunks(2) {
            let key = self.output(pair[0].clone())?;
            if is_json(key.base()) || key.base().element().is_some() {
                let message = "key value must be scalar, not array, composite, or json";
                let error = SqlError::new(code::INVALID_PARAMETER, message);
                return Err(self.error_at(error, location));
            }
            list.push(self.cast(key, Text.into(), Level::Explicit)?.expr);
            list.push(self.made_json(&pair[1], is_binary, false)?);
        }
        Ok(call(F::MakeObject { is_binary }, list))
    }

    fn json_path(
        &mut self,
        base: SqlType,
        args: &[Bound],
        as_text: bool,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let types: Vec<SqlType> = args.iter().map(Bound::base).collect();
        let wanted = std::iter::once(base).chain(std::iter::repeat(Text));
        let fits =
            |(from, to): (&SqlType, SqlType)| cast::level(*from, to) == Some(Level::Implicit);
        if !types.iter().zip(wanted).all(fits) {
            let name = if base == Json { "json_extract_path" } else { "jsonb_extract_path" };
            return Err(self.no_function(name, &types, location));
        }
        let value = self.coerce(args[0].clone(), base)?.expr;
        let steps = args[1..].iter().map(|arg| self.coerce(arg.clone(), Text).map(|b| b.expr));
        let steps = steps.collect::<Result<_, _>>()?;
        let steps = Expr::Call(Function::Array(ArrayFunction::Make), steps);
        let result = if as_text { Text } else { base };
        Ok(Bound::new(call(F::Path { as_text }, vec![value, steps]), result, location))
    }
}
