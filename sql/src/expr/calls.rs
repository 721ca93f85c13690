//! Binding of function calls: ordinary calls, calls with special syntax, and aggregates.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::bind::{Binder, Bound};
use super::cast::{self, Level};
use super::functions::Function;
use super::math::WITHOUT_NUMERIC;
use super::signatures::{self, Found};
use super::strings::TrimSide;
use super::time_functions::MAKE_INTERVAL_NAMES;
use super::{Binary, Comparison, Expr, Unary};
use crate::error::{SqlError, code};
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::vocabulary::aggregate::AggregateKind;
use crate::vocabulary::set_function::SetFunction;
use crate::vocabulary::window::WindowFunction;

/// Functions of PostgreSQL that Pangea does not support, or not with all arguments.
const UNSUPPORTED: [&str; 7] =
    ["to_char", "to_date", "to_timestamp", "to_number", "txid_current", "row_to_json", "grouping"];

/// Formats a boolean as output does: `t` or `f`. A cast to text gives `true` or `false`.
fn letter(expr: Expr) -> Expr {
    let text = |letter: &str| Expr::Const(Datum::Text(letter.to_owned()));
    let is_false = Expr::Unary(Unary::Not, Box::new(expr.clone()));
    let branches = vec![(expr, text("t")), (is_false, text("f"))];
    Expr::Case(branches, Box::new(Expr::Const(Datum::Null)))
}

impl Binder<'_> {
    pub(super) fn function(
        &mut self,
        function: &ast::Function,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let mut parts = syntax::name_parts(&function.name)?;
        let name = parts.pop().unwrap_or_default();
        // Clients call only one function of `information_schema`.
        let is_known = parts.is_empty()
            || parts == ["pg_catalog"]
            || parts == ["information_schema"] && name == "_pg_expandarray";
        if !is_known {
            let message = format!("schema \"{}\" does not exist", parts.join("."));
            return Err(self.error_at(SqlError::new(code::UNDEFINED_SCHEMA, message), location));
        }
        let unsupported = [
            (!function.within_group.is_empty(), "WITHIN GROUP"),
            (function.null_treatment.is_some(), "IGNORE NULLS"),
        ];
        if let Some((_, feature)) = unsupported.iter().find(|(is_there, _)| *is_there) {
            return Err(self.error_at(SqlError::unsupported(feature), location));
        }
        let (list, clauses) = match &function.args {
            ast::FunctionArguments::None => (&[][..], &[][..]),
            ast::FunctionArguments::List(list) => (&list.args[..], &list.clauses[..]),
            ast::FunctionArguments::Subquery(query) if name == "array" => {
                return self.array_of_rows(query, location);
            }
            ast::FunctionArguments::Subquery(_) => {
                let feature = "a query as a function's arguments";
                return Err(self.error_at(SqlError::unsupported(feature), location));
            }
        };
        if let Some(function) = self.with_whole_row(&name, function, list)? {
            return self.function(&function, location);
        }
        if let Some(over) = &function.over {
            return self.windowed(&name, function, over, location);
        }
        if let Some(kind) = AggregateKind::named(&name) {
            return self.aggregate(kind, function, location);
        }
        if !clauses.is_empty() {
            let feature = "a clause in the arguments of a function";
            return Err(self.error_at(SqlError::unsupported(feature), location));
        }
        if WindowFunction::named(&name).is_some() {
            let message = format!("window function {name} requires an OVER clause");
            return Err(self.error_at(SqlError::new(code::WRONG_OBJECT_TYPE, message), location));
        }
        if function.filter.is_some() {
            let message = "FILTER specified, but the function is not an aggregate function";
            return Err(self.error_at(SqlError::new(code::WRONG_OBJECT_TYPE, message), location));
        }
        if let Some(bound) = self.sequence_call(&name, list, location)? {
            return Ok(bound);
        }
        if SetFunction::is_name(&name) {
            return self.set_call(&name, list, location);
        }
        if name == "make_interval" {
            return self.make_interval(list, location);
        }
        let args = list.iter().map(|arg| self.argument(arg, location));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        self.call(&name, args, location)
    }

    /// Binds `make_interval`, whose arguments are usually named: `make_interval(days => 1)`.
    fn make_interval(
        &mut self,
        list: &[ast::FunctionArg],
        location: Location,
    ) -> Result<Bound, SqlError> {
        let zero = Bound::new(Expr::Const(Datum::Int(0)), SqlType::Int4, location);
        let mut args = vec![zero; MAKE_INTERVAL_NAMES.len()];
        for (at, arg) in list.iter().enumerate() {
            let (name, value) = match arg {
                ast::FunctionArg::Named { name, arg, .. } => (Some(syntax::name(name)), arg),
                ast::FunctionArg::ExprNamed { name: ast::Expr::Identifier(name), arg, .. } => {
                    (Some(syntax::name(name)), arg)
                }
                ast::FunctionArg::ExprNamed { arg, .. } | ast::FunctionArg::Unnamed(arg) => {
                    (None, arg)
                }
            };
            let known = |name: &String| MAKE_INTERVAL_NAMES.iter().position(|n| n == name);
            let place = name.as_ref().map_or(Some(at), known).and_then(|at| args.get_mut(at));
            let value = self.argument(&ast::FunctionArg::Unnamed(value.clone()), location)?;
            match place {
                Some(place) => *place = value,
                None => return Err(self.no_function("make_interval", &[value.base()], location)),
            }
        }
        self.call("make_interval", args, location)
    }

    /// Binds `INTERVAL '1 day'`, `INTERVAL '1' DAY`, `INTERVAL '1-2' YEAR TO MONTH`.
    fn interval(
        &mut self,
        interval: &ast::Interval,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let Some(first) = &interval.leading_field else {
            let value = self.bind(&interval.value)?;
            return self.cast(value, SqlType::Interval.into(), Level::Explicit);
        };
        let unit = interval.last_field.as_ref().unwrap_or(first).to_string().to_lowercase();
        let is_minutes = interval.last_field.is_some() && *first == ast::DateTimeField::Minute;
        let is_known = ["year", "month", "day", "hour", "minute", "second"];
        if is_minutes || !is_known.contains(&unit.as_str()) || interval.leading_precision.is_some()
        {
            let feature = format!("INTERVAL with the fields {first} and {unit}");
            return Err(self.error_at(SqlError::unsupported(feature), location));
        }
        let value = self.bind(&interval.value)?;
        let Expr::Const(Datum::Text(text)) = &value.expr else {
            let feature = "INTERVAL of an expression that is not a literal";
            return Err(self.error_at(SqlError::unsupported(feature), location));
        };
        let parsed = Interval::parse_in(text, &unit);
        let parsed = parsed.map_err(|error| self.error_at(error, value.location))?;
        Ok(Bound::new(Expr::Const(Datum::Interval(parsed)), SqlType::Interval, location))
    }

    pub(super) fn argument(
        &mut self,
        arg: &ast::FunctionArg,
        location: Location,
    ) -> Result<Bound, SqlError> {
        match arg {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => self.bind(expr),
            _ => {
                let feature = format!("the function argument {arg}");
                Err(self.error_at(SqlError::unsupported(feature), location))
            }
        }
    }

    /// Binds a call by name.
    pub(super) fn call(
        &mut self,
        name: &str,
        args: Vec<Bound>,
        location: Location,
    ) -> Result<Bound, SqlError> {
        match (name, args.len()) {
            ("coalesce", 1..) => {
                self.refuse_rows(&args, "COALESCE", location)?;
                let args = self.unify(args, "COALESCE")?;
                let ty = args[0].ty;
                let list = args.into_iter().map(|arg| arg.expr).collect();
                return Ok(Bound { expr: Expr::Coalesce(list), ty, location });
            }
            ("greatest" | "least", 1..) => {
                let is_greatest = name == "greatest";
                let args = self.unify(args, if is_greatest { "GREATEST" } else { "LEAST" })?;
                let ty = args[0].ty;
                let list = args.into_iter().map(|arg| arg.expr).collect();
                let function = if is_greatest { Function::Greatest } else { Function::Least };
                return Ok(Bound { expr: Expr::Call(function, list), ty, location });
            }
            ("nullif", 2) => return self.null_if(args, location),
            ("mod", 2) => return self.remainder(args, location),
            ("num_nulls" | "num_nonnulls", 1..) => {
                let function = Function::CountNulls { is_counted: name == "num_nulls" };
                let list = args.into_iter().map(|arg| arg.expr).collect();
                return Ok(Bound::new(Expr::Call(function, list), SqlType::Int4, location));
            }
            (name, _) if is_of_numeric_alone(name, &args) => {
                let feature = format!("function {name}() of type numeric");
                return Err(self.error_at(SqlError::unsupported(feature), location));
            }
            ("pg_typeof", 1) => return Ok(self.type_of(args, location)),
            ("date_part", 2) => {
                let bound = self.call("extract", args, location)?;
                return self.cast(bound, SqlType::Float8.into(), Level::Explicit);
            }
            _ => {}
        }
        if let Some(bound) = self.enum_call(name, &args, location) {
            return bound;
        }
        if let Some(bound) = self.array_call(name, &args, location) {
            return bound;
        }
        if let Some(bound) = self.json_call(name, &args, location) {
            return bound;
        }
        self.plain_call(name, args, location)
    }

    /// Binds a call of a function with a signature.
    fn plain_call(
        &mut self,
        name: &str,
        args: Vec<Bound>,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let types: Vec<SqlType> = args.iter().map(Bound::base).collect();
        let signature = match signatures::find(name, &types) {
            Found::Signature(signature) => signature,
            // Some functions are supported, but not with these arguments.
            Found::OtherArgs | Found::Nothing if UNSUPPORTED.contains(&name) => {
                let feature = format!("function {name}()");
                return Err(self.error_at(SqlError::unsupported(feature), location));
            }
            Found::OtherArgs | Found::Nothing => {
                return match SqlType::ALL.into_iter().find(|base| base.internal_name() == name) {
                    // A type's name is a cast to that type.
                    Some(base) if args.len() == 1 => {
                        let arg = args.into_iter().next().expect("there is one");
                        self.cast(arg, base.into(), Level::Explicit)
                    }
                    _ => Err(self.no_function(name, &types, location)),
                };
            }
        };
        // The catalog determines who may cancel another session's statement.
        let is_of_node = matches!(signature.function, Function::Node(_));
        self.params.reads_node |= is_of_node;
        self.params.reads_catalog |=
            is_of_node || matches!(signature.function, Function::Catalog(_));
        let list = self.cast_args(name, args, signature.args)?;
        Ok(Bound::new(Expr::Call(signature.function, list), signature.result, location))
    }

    /// Returns the name of a value's type.
    fn type_of(&self, args: Vec<Bound>, location: Location) -> Bound {
        let base = args[0].base();
        let expr = match base.enumeration() {
            Some(_) => {
                let name = self.params.enums.unmarked(base.name().into_owned());
                Expr::Const(Datum::Text(name))
            }
            None => {
                let list = args.into_iter().map(|arg| arg.expr).collect();
                Expr::Call(Function::TypeName(base), list)
            }
        };
        Bound::new(expr, SqlType::Text, location)
    }

    /// Converts arguments to the parameter types. The last type also applies to all further
    /// arguments.
    fn cast_args(
        &mut self,
        name: &str,
        args: Vec<Bound>,
        types: &[SqlType],
    ) -> Result<Vec<Expr>, SqlError> {
        let is_shown = matches!(name, "concat" | "concat_ws" | "format");
        let mut list = Vec::with_capacity(args.len());
        for (at, arg) in args.into_iter().enumerate() {
            if is_shown && arg.base() == SqlType::Bool {
                list.push(letter(arg.expr));
                continue;
            }
            let wanted = types[at.min(types.len() - 1)];
            list.push(self.cast(arg, wanted.into(), Level::Assignment)?.expr);
        }
        Ok(list)
    }

    pub(crate) fn no_function(&self, name: &str, args: &[SqlType], location: Location) -> SqlError {
        let args = args.iter().map(|arg| arg.name().into_owned()).collect::<Vec<_>>().join(", ");
        let message = format!("function {name}({args}) does not exist");
        let error = SqlError::new(code::UNDEFINED_FUNCTION, message).with_hint(
            "No function matches the given name and argument types. \
             You might need to add explicit type casts.",
        );
        self.error_at(error, location)
    }

    fn null_if(&mut self, args: Vec<Bound>, location: Location) -> Result<Bound, SqlError> {
        let [value, other] = <[Bound; 2]>::try_from(args).expect("two arguments");
        let (left, right, base) = self.comparable(value.clone(), other, "=", location)?;
        let op = Binary::Compare(Comparison::Equal, base);
        let is_equal = Expr::Binary(op, Box::new(left), Box::new(right));
        // The value is returned with the type of the comparison. Integers and reals keep their own
        // type, because they are compared without conversion.
        let is_kept = base.is_integer() || value.base() == SqlType::Float4;
        let is_other = value.base() == SqlType::Unknown || base.is_number() && !is_kept;
        let value = if is_other { self.coerce(value, base)? } else { value };
        let branches = vec![(is_equal, Expr::Const(Datum::Null))];
        Ok(Bound { expr: Expr::Case(branches, Box::new(value.expr)), ty: value.ty, location })
    }

    fn remainder(&mut self, args: Vec<Bound>, location: Location) -> Result<Bound, SqlError> {
        let types: Vec<SqlType> = args.iter().map(Bound::base).collect();
        let common = cast::common(types[0], types[1])
            .filter(|base| base.is_integer() || *base == SqlType::Numeric)
            .ok_or_else(|| self.no_function("mod", &types, location))?;
        let mut args = args.into_iter();
        let mut next = || args.next().expect("two arguments");
        let (left, right) = (next(), next());
        let left = self.coerce(left, common)?.expr;
        let right = self.coerce(right, common)?.expr;
        let op = Binary::Arithmetic(super::arithmetic::Arithmetic::Remainder, common);
        Ok(Bound::new(Expr::Binary(op, Box::new(left), Box::new(right)), common, location))
    }

    /// Binds `CEIL(x)` and `FLOOR(x)`.
    fn whole(
        &mut self,
        name: &str,
        operand: &ast::Expr,
        field: &ast::CeilFloorKind,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let none = ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime);
        if *field != none {
            return Err(self.error_at(SqlError::unsupported("CEIL TO"), location));
        }
        let operand = self.bind(operand)?;
        self.call(name, vec![operand], location)
    }

    /// Binds calls with special syntax.
    pub(super) fn special_call(
        &mut self,
        ast: &ast::Expr,
        location: Location,
    ) -> Result<Bound, SqlError> {
        use ast::Expr as A;
        match ast {
            A::Extract { field, expr, .. } => {
                let unit = field.to_string().to_lowercase().trim_matches('\'').to_owned();
                let unit = Bound::new(Expr::Const(Datum::Text(unit)), SqlType::Text, location);
                let operand = self.bind(expr)?;
                self.call("extract", vec![unit, operand], location)
            }
            A::Position { expr, r#in } => {
                let (wanted, text) = (self.bind(expr)?, self.bind(r#in)?);
                self.call("position", vec![text, wanted], location)
            }
            A::Substring { expr, substring_from, substring_for, .. } => {
                let one = Bound::new(Expr::Const(Datum::Int(1)), SqlType::Int4, location);
                let mut args = vec![self.bind(expr)?];
                args.push(match substring_from {
                    Some(from) => self.bind(from)?,
                    None => one,
                });
                if let Some(length) = substring_for {
                    args.push(self.bind(length)?);
                }
                self.call("substring", args, location)
            }
            A::Trim { trim_where, trim_what, expr, trim_characters } => {
                let name = match side(*trim_where) {
                    TrimSide::Both => "btrim",
                    TrimSide::Left => "ltrim",
                    TrimSide::Right => "rtrim",
                };
                let mut args = vec![self.bind(expr)?];
                let listed = trim_characters.iter().flatten().next();
                if let Some(characters) = trim_what.as_deref().or(listed) {
                    args.push(self.bind(characters)?);
                }
                self.call(name, args, location)
            }
            A::Ceil { expr, field } => self.whole("ceil", expr, field, location),
            A::Floor { expr, field } => self.whole("floor", expr, field, location),
            A::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                let parts = [expr, overlay_what, overlay_from].into_iter().chain(overlay_for);
                let args = parts.map(|part| self.bind(part)).collect::<Result<_, _>>()?;
                self.call("overlay", args, location)
            }
            A::AtTimeZone { timestamp, time_zone } => {
                let args = vec![self.bind(time_zone)?, self.bind(timestamp)?];
                self.call("timezone", args, location)
            }
            A::Collate { expr, collation } => self.collate(expr, collation, location),
            A::Interval(interval) => self.interval(interval, location),
            A::Array(_)
            | A::CompoundFieldAccess { .. }
            | A::AnyOp { .. }
            | A::AllOp { .. }
            | A::Like { any: true, escape_char: None, .. }
            | A::ILike { any: true, escape_char: None, .. } => {
                self.any_or_all(ast, location).unwrap_or_else(|| self.array_syntax(ast, location))
            }
            other => Err(self.error_at(SqlError::unsupported(feature_of(other)), location)),
        }
    }
}

/// Whether a call needs the numeric form of a function that is only supported for floats.
fn is_of_numeric_alone(name: &str, args: &[Bound]) -> bool {
    let has = |base: SqlType| args.iter().any(|arg| arg.base() == base);
    WITHOUT_NUMERIC.contains(&name) && has(SqlType::Numeric) && !has(SqlType::Float8)
}

fn side(side: Option<ast::TrimWhereField>) -> TrimSide {
    match side {
        None | Some(ast::TrimWhereField::Both) => TrimSide::Both,
        Some(ast::TrimWhereField::Leading) => TrimSide::Left,
        Some(ast::TrimWhereField::Trailing) => TrimSide::Right,
    }
}

fn feature_of(ast: &ast::Expr) -> &'static str {
    use ast::Expr as A;
    match ast {
        A::Subquery(_) | A::Exists { .. } | A::InSubquery { .. } => "a subquery",
        A::Tuple(_) => "a row value",
        A::SimilarTo { .. } | A::RLike { .. } => "a regular expression",
        A::GroupingSets(_) | A::Cube(_) | A::Rollup(_) => "GROUPING SETS",
        A::JsonAccess { .. } => "JSON",
        _ => "this expression",
    }
}
