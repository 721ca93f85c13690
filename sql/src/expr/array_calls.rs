//! Binding of arrays: constructors, subscripts, ANY and ALL, and polymorphic functions and
//! operators over arrays.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::arithmetic::Arithmetic;
use super::arrays::{ArrayFunction as F, Test, array_of};
use super::bind::{Binder, Bound};
use super::cast::{self, Level};
use super::functions::Function;
use super::{Binary, Comparison, Expr, operators};
use crate::error::{SqlError, code};
use crate::types::array::DIMENSIONS_MAX;
use crate::types::datum::Datum;
use crate::types::{ColumnType, SqlType};

/// The type of an argument of an array function.
#[derive(Clone, Copy, PartialEq)]
enum Arg {
    /// An array.
    Any,
    /// An array whose element type agrees with the other arguments.
    Array,
    /// An element of the array.
    Item,
    Is(SqlType),
}

/// The result type of an array function.
#[derive(Clone, Copy)]
enum Gives {
    Array,
    Is(SqlType),
    Integers,
}

const INT: Arg = Arg::Is(SqlType::Int4);
const TEXT: Arg = Arg::Is(SqlType::Text);

/// Functions over arrays of any type.
const FUNCTIONS: &[(&str, &[Arg], Gives, F)] = &[
    ("array_length", &[Arg::Any, INT], Gives::Is(SqlType::Int4), F::Length),
    ("array_upper", &[Arg::Any, INT], Gives::Is(SqlType::Int4), F::Length),
    ("array_lower", &[Arg::Any, INT], Gives::Is(SqlType::Int4), F::Lower),
    ("array_ndims", &[Arg::Any], Gives::Is(SqlType::Int4), F::Dimensions),
    ("array_dims", &[Arg::Any], Gives::Is(SqlType::Text), F::DimensionsText),
    ("cardinality", &[Arg::Any], Gives::Is(SqlType::Int4), F::Cardinality),
    ("trim_array", &[Arg::Any, INT], Gives::Array, F::Trim),
    ("array_append", &[Arg::Array, Arg::Item], Gives::Array, F::Append),
    ("array_prepend", &[Arg::Item, Arg::Array], Gives::Array, F::Prepend),
    ("array_cat", &[Arg::Array, Arg::Array], Gives::Array, F::Concat),
    ("array_remove", &[Arg::Array, Arg::Item], Gives::Array, F::Remove),
    ("array_replace", &[Arg::Array, Arg::Item, Arg::Item], Gives::Array, F::Replace),
    ("array_position", &[Arg::Array, Arg::Item], Gives::Is(SqlType::Int4), F::Position),
    ("array_position", &[Arg::Array, Arg::Item, INT], Gives::Is(SqlType::Int4), F::Position),
    ("array_positions", &[Arg::Array, Arg::Item], Gives::Integers, F::Positions),
    ("array_to_string", &[Arg::Any, TEXT], Gives::Is(SqlType::Text), F::Join(SqlType::Text)),
    ("array_to_string", &[Arg::Any, TEXT, TEXT], Gives::Is(SqlType::Text), F::Join(SqlType::Text)),
];

fn call(function: F, args: Vec<Expr>) -> Expr {
    Expr::Call(Function::Array(function), args)
}

/// Adds a constant to an integer expression.
fn after(expr: Expr, add: i64) -> Expr {
    let op = Binary::Arithmetic(Arithmetic::Add, SqlType::Int4);
    Expr::Binary(op, Box::new(expr), Box::new(Expr::Const(Datum::Int(add))))
}

impl Binder<'_> {
    /// Binds expressions with array syntax.
    ///
    /// # Panics
    /// Panics for any other expression.
    pub(super) fn array_syntax(
        &mut self,
        ast: &ast::Expr,
        location: Location,
    ) -> Result<Bound, SqlError> {
        use ast::Expr as A;
        match ast {
            A::Array(array) => self.array(&array.elem, None, location),
            A::CompoundFieldAccess { root, access_chain } => {
                self.subscripts(root, access_chain, location)
            }
            A::AnyOp { left, compare_op, right, .. } => {
                self.quantified((left, right), compare_op, false, location)
            }
            A::AllOp { left, compare_op, right } => {
                self.quantified((left, right), compare_op, true, location)
            }
            A::Like { negated, any: true, expr, pattern, escape_char: None }
            | A::ILike { negated, any: true, expr, pattern, escape_char: None } => {
                let is_case_blind = matches!(ast, A::ILike { .. });
                let test = Test::Like { is_negated: *negated, is_case_blind };
                let (operand, pattern) = (self.bind(expr)?, self.bind(pattern)?);
                self.quantified_test(test, "~~", operand, pattern, false, location)
            }
            other => unreachable!("{other} is no syntax of arrays"),
        }
    }

    /// Binds `ARRAY[..]`, with the type of a surrounding cast, if any.
    pub(super) fn array(
        &mut self,
        list: &[ast::Expr],
        wanted: Option<ColumnType>,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let element = wanted.and_then(ColumnType::element);
        if list.is_empty() && wanted.is_none() {
            let error =
                SqlError::new(code::INDETERMINATE_TYPE, "cannot determine type of empty array")
                    .with_hint(
                        "Explicitly cast to the desired type, for example ARRAY[]::integer[].",
                    );
            return Err(self.error_at(error, location));
        }
        let mut items = Vec::with_capacity(list.len());
        for item in list {
            items.push(match (item, wanted, element) {
                (ast::Expr::Array(inner), wanted, _) => {
                    self.array(&inner.elem, wanted, location)?
                }
                (item, Some(_), Some(element)) => {
                    let bound = self.bind(item)?;
                    // An array among the elements is a subarray of a multidimensional array.
                    let is_part = bound.base().element().is_some();
                    let to = if is_part { wanted.unwrap_or(element) } else { element };
                    self.cast(bound, to, Level::Explicit)?
                }
                (item, _, _) => self.bind(item)?,
            });
        }
        let (items, base) = match wanted {
            Some(wanted) => (items, wanted.base),
            None => {
                let items = self.unify(items, "ARRAY")?;
                let base = array_of(items[0].base()).map_err(|e| self.error_at(e, location))?;
                (items, base)
            }
        };
        let nested = items.iter().filter(|item| item.base().element().is_some()).count();
        if nested != 0 && nested != items.len() {
            let message = format!("ARRAY types {base} and {} cannot be matched", items[0].base());
            return Err(self.error_at(SqlError::new(code::TYPE_MISMATCH, message), location));
        }
        let function = if nested == 0 { F::Make } else { F::Nest };
        let expr = call(function, items.into_iter().map(|item| item.expr).collect());
        Ok(Bound { expr, ty: wanted.unwrap_or(base.into()), location })
    }

    /// Binds a subscript of a `name`. Its letters are counted from 0.
    fn letter(
        &mut self,
        name: Bound,
        index: &ast::Expr,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let index = self.bind(index)?;
        let mut index = self.coerce(index, SqlType::Int4)?;
        let add = Binary::Arithmetic(Arithmetic::Add, SqlType::Int4);
        index.expr = operators::binary(add, index.expr, Expr::Const(Datum::Int(1)));
        let text = Bound { ty: SqlType::Text.into(), ..name };
        let one = Bound::new(Expr::Const(Datum::Int(1)), SqlType::Int4, location);
        let letter = self.call("substr", vec![text, index, one], location)?;
        Ok(Bound { ty: SqlType::InternalChar.into(), ..letter })
    }

    /// Binds `a[1]`, `a[1:2][3]`, `t.a[1]`.
    pub(super) fn subscripts(
        &mut self,
        root: &ast::Expr,
        chain: &[ast::AccessExpr],
        location: Location,
    ) -> Result<Bound, SqlError> {
        let record = self.record_part(root, chain, location);
        if let Some(bound) = record.or_else(|| self.set_column(root, chain, location)) {
            return bound;
        }
        let mut names = match root {
            ast::Expr::Identifier(ident) => vec![ident.clone()],
            ast::Expr::CompoundIdentifier(idents) => idents.clone(),
            _ => vec![],
        };
        let mut rest = chain;
        while let [ast::AccessExpr::Dot(ast::Expr::Identifier(ident)), after @ ..] = rest {
            if names.is_empty() {
                break;
            }
            names.push(ident.clone());
            rest = after;
        }
        let operand = if names.len() > 1 {
            self.bind(&ast::Expr::CompoundIdentifier(names))?
        } else {
            self.bind(root)?
        };
        let mut subscripts = Vec::with_capacity(rest.len());
        for access in rest {
            let ast::AccessExpr::Subscript(subscript) = access else {
                return Err(self.error_at(SqlError::unsupported("a field of a value"), location));
            };
            subscripts.push(subscript);
        }
        match (operand.base(), &subscripts[..]) {
            (SqlType::Jsonb, all) => return self.json_subscripts(operand, all, location),
            (SqlType::Name, [ast::Subscript::Index { index }]) => {
                return self.letter(operand, index, location);
            }
            _ => {}
        }
        let Some(element) = operand.base().element() else {
            let message = format!(
                "cannot subscript type {} because it does not support subscripting",
                operand.base()
            );
            return Err(self.error_at(SqlError::new(code::TYPE_MISMATCH, message), location));
        };
        if subscripts.len() > DIMENSIONS_MAX {
            let message = format!(
                "number of array dimensions ({}) exceeds the maximum allowed ({DIMENSIONS_MAX})",
                subscripts.len()
            );
            return Err(self.error_at(SqlError::new(code::LIMIT_EXCEEDED, message), location));
        }
        let is_slice = |s: &&ast::Subscript| matches!(s, ast::Subscript::Slice { .. });
        if subscripts.iter().any(is_slice) {
            return self.slice(operand, &subscripts, location);
        }
        let ty = ColumnType { base: element, ..operand.ty };
        let is_vector = operand.base().is_vector();
        let mut args = vec![operand.expr];
        for subscript in subscripts {
            let ast::Subscript::Index { index } = subscript else { unreachable!("no slices") };
            let index = self.index(index)?;
            args.push(if is_vector { after(index, 1) } else { index });
        }
        Ok(Bound { expr: call(F::At, args), ty, location })
    }

    /// Binds a subscript.
    fn index(&mut self, index: &ast::Expr) -> Result<Expr, SqlError> {
        let bound = self.bind(index)?;
        let from = bound.base();
        if cast::level(from, SqlType::Int4).is_none_or(|level| level > Level::Assignment) {
            let message = "array subscript must have type integer";
            let error = SqlError::new(code::TYPE_MISMATCH, message);
            return Err(self.error_at(error, bound.location));
        }
        Ok(self.cast(bound, SqlType::Int4.into(), Level::Assignment)?.expr)
    }

    fn slice(
        &mut self,
        operand: Bound,
        subscripts: &[&ast::Subscript],
        location: Location,
    ) -> Result<Bound, SqlError> {
        let one = || Some(Expr::Const(Datum::Int(1)));
        let mut bounds = Vec::with_capacity(subscripts.len() * 2);
        for subscript in subscripts {
            match subscript {
                // Next to a slice, a single subscript n means 1:n.
                ast::Subscript::Index { index } => {
                    bounds.extend([one(), Some(self.index(index)?)]);
                }
                ast::Subscript::Slice { lower_bound, upper_bound, stride: None } => {
                    for bound in [lower_bound, upper_bound] {
                        bounds.push(bound.as_ref().map(|b| self.index(b)).transpose()?);
                    }
                }
                ast::Subscript::Slice { .. } => {
                    let error = SqlError::unsupported("a slice with a stride");
                    return Err(self.error_at(error, location));
                }
            }
        }
        let given = bounds.iter().enumerate();
        let given = given.fold(0, |bits, (at, bound)| bits | u16::from(bound.is_some()) << at);
        let mut args = vec![operand.expr];
        args.extend(bounds.into_iter().map(|b| b.unwrap_or(Expr::Const(Datum::Null))));
        Ok(Bound { expr: call(F::Slice { given }, args), ty: operand.ty, location })
    }

    /// Binds `x op ANY(array)` and `x op ALL(array)`.
    pub(super) fn quantified(
        &mut self,
        (left, right): (&ast::Expr, &ast::Expr),
        op: &ast::BinaryOperator,
        is_all: bool,
        location: Location,
    ) -> Result<Bound, SqlError> {
        use ast::BinaryOperator as O;
        let like = |is_negated, is_case_blind| Test::Like { is_negated, is_case_blind };
        let test = match op {
            O::PGLikeMatch => like(false, false),
            O::PGNotLikeMatch => like(true, false),
            O::PGILikeMatch => like(false, true),
            O::PGNotILikeMatch => like(true, true),
            op => match operators::comparison(op) {
                Some(comparison) => Test::Compare(comparison),
                None => {
                    let feature = format!("operator {op} with ANY or ALL");
                    return Err(self.error_at(SqlError::unsupported(feature), location));
                }
            },
        };
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        self.quantified_test(test, &op.to_string(), left, right, is_all, location)
    }

    /// Binds a test of each element of an array.
    pub(super) fn quantified_test(
        &mut self,
        test: Test,
        name: &str,
        left: Bound,
        mut right: Bound,
        is_all: bool,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let is_like = matches!(test, Test::Like { .. });
        if right.base() == SqlType::Unknown {
            let base = if left.base() == SqlType::Unknown { SqlType::Text } else { left.base() };
            let array = array_of(base).map_err(|e| self.error_at(e, location))?;
            right = self.coerce(right, array)?;
        }
        let Some(element) = right.base().element() else {
            let message = "op ANY/ALL (array) requires array on right side";
            return Err(self.error_at(SqlError::new(code::WRONG_OBJECT_TYPE, message), location));
        };
        let common = cast::common(left.base(), element)
            .filter(|base| !is_like || base.is_string())
            .filter(|base| *base != SqlType::Unknown && *base != SqlType::Json)
            .ok_or_else(|| self.no_operator(name, left.base(), element, location))?;
        let left = self.coerce(left, common)?;
        // Written as IN, because the planner can turn a list of values into lookups.
        if test == Test::Compare(Comparison::Equal) && !is_all && common != SqlType::Bpchar {
            let list: Option<Vec<Expr>> = match &right.expr {
                Expr::Call(Function::Array(F::Make), list) => Some(list.clone()),
                Expr::Const(Datum::Array(array)) => {
                    Some(array.items().iter().cloned().map(Expr::Const).collect())
                }
                _ => None,
            };
            if let Some(list) = list {
                let mut items = Vec::with_capacity(list.len());
                for item in list {
                    let item = Bound::new(item, element, right.location);
                    items.push(self.cast(item, common.into(), Level::Explicit)?.expr);
                }
                let operand = Box::new(left.expr);
                let expr = Expr::In { operand, list: items, is_negated: false };
                return Ok(Bound::new(expr, SqlType::Bool, location));
            }
        }
        let array = array_of(common).map_err(|e| self.error_at(e, location))?;
        let right = self.cast(right, array.into(), Level::Explicit)?;
        let expr = call(F::Quantified { test, is_all }, vec![left.expr, right.expr]);
        Ok(Bound::new(expr, SqlType::Bool, location))
    }

    /// Binds `x LIKE ALL(array)`, whose right side the parser takes for a function call. `None` for
    /// any other pattern.
    pub(super) fn like_all(
        &mut self,
        test: Test,
        operand: &ast::Expr,
        pattern: &ast::Expr,
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        let ast::Expr::Function(function) = pattern else { return None };
        let name = function.name.to_string().to_ascii_lowercase();
        let ast::FunctionArguments::List(list) = &function.args else { return None };
        let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(array))] = &list.args[..] else {
            return None;
        };
        if name != "all" {
            return None;
        }
        let mut bind = || {
            let (operand, array) = (self.bind(operand)?, self.bind(array)?);
            self.quantified_test(test, "~~", operand, array, true, location)
        };
        Some(bind())
    }

    /// Binds an operator with a special meaning for arrays. `None` for any other operator.
    pub(super) fn array_operator(
        &mut self,
        op: &ast::BinaryOperator,
        left: &Bound,
        right: &Bound,
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        use ast::BinaryOperator as O;
        let (a, b) = (left.base(), right.base());
        if a.element().is_none() && b.element().is_none() {
            return None;
        }
        let function = match op {
            O::AtArrow => F::Contains,
            O::ArrowAt => F::IsContained,
            O::PGOverlap => F::Overlaps,
            O::StringConcat => return self.array_concat(left, right, location),
            _ => return None,
        };
        let Some(common) = cast::common(a, b) else {
            return Some(Err(self.no_operator(&op.to_string(), a, b, location)));
        };
        let mut both = || {
            let args = [left, right].into_iter().map(|arg| self.coerce(arg.clone(), common));
            let args = args.map(|arg| arg.map(|arg| arg.expr)).collect::<Result<_, _>>()?;
            Ok(Bound::new(call(function, args), SqlType::Bool, location))
        };
        Some(both())
    }

    fn array_concat(
        &mut self,
        left: &Bound,
        right: &Bound,
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        let is_array = |bound: &Bound| bound.base().element().is_some();
        let is_unknown = |bound: &Bound| bound.base() == SqlType::Unknown;
        let name = match (is_array(left), is_array(right)) {
            (true, true) => "array_cat",
            (true, false) if is_unknown(right) => "array_cat",
            (false, true) if is_unknown(left) => "array_cat",
            (true, false) => "array_append",
            (false, true) => "array_prepend",
            (false, false) => return None,
        };
        let args = vec![left.clone(), right.clone()];
        let types = (left.base(), right.base());
        let bound = self.array_call(name, &args, location)?;
        Some(bound.map_err(|error| match error.code {
            code::UNDEFINED_FUNCTION => self.no_operator("||", types.0, types.1, location),
            _ => error,
        }))
    }

    /// Binds a call of an array function. `None` if no array function has this name and number of
    /// arguments.
    pub(super) fn array_call(
        &mut self,
        name: &str,
        args: &[Bound],
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        if name == "array_fill" && args.len() == 2 {
            return Some(self.array_fill(args, location));
        }
        let is_form = |row: &&(&str, &[Arg], Gives, F)| row.0 == name && row.1.len() == args.len();
        let (_, forms, gives, function) = FUNCTIONS.iter().find(is_form)?;
        let mut bind = || {
            let base = self.array_type(name, args, forms, location)?;
            let element = base.element().expect("an array's type");
            let mut list = Vec::with_capacity(args.len());
            for (arg, form) in args.iter().zip(*forms) {
                let to = match form {
                    Arg::Any | Arg::Array => base,
                    Arg::Item => element,
                    Arg::Is(wanted) => *wanted,
                };
                list.push(self.cast(arg.clone(), to.into(), Level::Implicit)?.expr);
            }
            let function = match function {
                F::Join(_) => F::Join(element),
                other => *other,
            };
            // Vectors are counted from 0.
            let is_bound = matches!(name, "array_lower" | "array_upper");
            if is_bound && args[0].base().is_vector() {
                let bound = after(call(function, list), -1);
                return Ok(Bound::new(bound, SqlType::Int4, location));
            }
            let result = match gives {
                Gives::Array => base,
                Gives::Is(result) => *result,
                Gives::Integers => array_of(SqlType::Int4)?,
            };
            Ok(Bound::new(call(function, list), result, location))
        };
        Some(bind())
    }

    /// Returns the common array type of the arguments of a call.
    fn array_type(
        &self,
        name: &str,
        args: &[Bound],
        forms: &[Arg],
        location: Location,
    ) -> Result<SqlType, SqlError> {
        let types: Vec<SqlType> = args.iter().map(Bound::base).collect();
        let mismatch = || self.no_function(name, &types, location);
        let mut element = SqlType::Unknown;
        for (&base, form) in types.iter().zip(forms) {
            let part = match form {
                Arg::Is(wanted) => {
                    let fits = cast::level(base, *wanted) == Some(Level::Implicit);
                    if fits { continue } else { return Err(mismatch()) }
                }
                _ if base == SqlType::Unknown => continue,
                Arg::Any | Arg::Array => base.element().ok_or_else(mismatch)?,
                Arg::Item if base.element().is_some() => return Err(mismatch()),
                Arg::Item => base,
            };
            element = cast::common(element, part).ok_or_else(mismatch)?;
        }
        if element == SqlType::Unknown {
            let message = "could not determine polymorphic type because input has type unknown";
            return Err(self.error_at(SqlError::new(code::TYPE_MISMATCH, message), location));
        }
        array_of(element).map_err(|error| self.error_at(error, location))
    }

    fn array_fill(&mut self, args: &[Bound], location: Location) -> Result<Bound, SqlError> {
        let value = self.output(args[0].clone())?;
        let base = match value.base().element() {
            None => array_of(value.base())?,
            Some(_) => return Err(self.no_function("array_fill", &[value.base()], location)),
        };
        let lengths = self.coerce(args[1].clone(), array_of(SqlType::Int4)?)?;
        Ok(Bound::new(call(F::Fill, vec![value.expr, lengths.expr]), base, location))
    }
}
