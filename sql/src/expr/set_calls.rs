//! Set-returning functions used as values: `SELECT unnest(a)`.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::Expr;
use super::aggregates::NESTED;
use super::bind::{Aggregates, Binder, Bound, ScopeColumn};
use super::cast::Level;
use super::functions::Function;
use crate::error::{SqlError, code};
use crate::expr::query::Called;
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::set_function::SetFunction;

/// The columns of a function, as values.
type Parts = Vec<(&'static str, Bound)>;

/// The position of a call among those of its query, and its columns.
type Noted = (usize, Vec<(&'static str, SqlType)>);

/// The hint of errors about misplaced calls.
const INSTEAD: &str =
    "You might be able to move the set-returning function into a LATERAL FROM item.";

/// Returns the internal column name of a record's field. The NUL byte keeps users from naming it.
pub(crate) fn part_name(record: &str, part: &str) -> String {
    format!("{record}\0{part}")
}

/// `(x).column`: returns the expression in parentheses and the column name.
fn field_of<'a>(root: &'a ast::Expr, chain: &[ast::AccessExpr]) -> Option<(&'a ast::Expr, String)> {
    match (root, chain) {
        (ast::Expr::Nested(inner), [ast::AccessExpr::Dot(ast::Expr::Identifier(column))]) => {
            Some((inner, syntax::name(column)))
        }
        _ => None,
    }
}

impl Binder<'_> {
    /// Binds a call of a function with one column as a value.
    pub(super) fn set_call(
        &mut self,
        name: &str,
        args: &[ast::FunctionArg],
        location: Location,
    ) -> Result<Bound, SqlError> {
        let (at, columns) = self.called(name, args, location)?;
        match columns[..] {
            [(_, base)] => Ok(Bound::new(Expr::Rows(at, 0), base, location)),
            _ => {
                let feature = format!("a row of {name}() as a value");
                let error = SqlError::unsupported(feature)
                    .with_hint("Call it in FROM, or select one of its columns: (f(x)).column.");
                Err(self.error_at(error, location))
            }
        }
    }

    /// Binds a call as a value, and each of its columns if it has several; the value is then the
    /// text of the record. `None` if the expression is not such a call.
    pub(crate) fn record_call(
        &mut self,
        ast: &ast::Expr,
        location: Location,
    ) -> Result<Option<(Bound, Parts)>, SqlError> {
        let ast::Expr::Function(function) = ast else { return Ok(None) };
        let name = syntax::name_parts(&function.name)?.pop().unwrap_or_default();
        let ast::FunctionArguments::List(list) = &function.args else { return Ok(None) };
        if !SetFunction::is_name(&name) {
            return Ok(None);
        }
        let (at, columns) = self.called(&name, &list.args, location)?;
        if let [(_, base)] = columns[..] {
            return Ok(Some((Bound::new(Expr::Rows(at, 0), base, location), Vec::new())));
        }
        let text = |text: &str| Expr::Const(Datum::Text(text.to_owned()));
        let (mut parts, mut shown) = (Vec::new(), Vec::new());
        for (place, (name, base)) in columns.into_iter().enumerate() {
            let part = Bound::new(Expr::Rows(at, place), base, location);
            shown.push(text(if place == 0 { "(" } else { "," }));
            shown.push(self.cast(part.clone(), SqlType::Text.into(), Level::Explicit)?.expr);
            parts.push((name, part));
        }
        shown.push(text(")"));
        let whole = Expr::Call(Function::Concat, shown);
        Ok(Some((Bound::new(whole, SqlType::Text, location), parts)))
    }

    /// Binds a field of a record that a query in FROM returns: `(t.record).column`. `None` if the
    /// expression is something else.
    pub(super) fn record_part(
        &mut self,
        root: &ast::Expr,
        chain: &[ast::AccessExpr],
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        let (inner, column) = field_of(root, chain)?;
        let (table, record) = match inner {
            ast::Expr::Identifier(record) => (None, record),
            ast::Expr::CompoundIdentifier(idents) => match &idents[..] {
                [table, record] => (Some(syntax::name(table)), record),
                _ => return None,
            },
            _ => return None,
        };
        let name = part_name(&syntax::name(record), &column);
        let is_it = |column: &ScopeColumn| {
            column.name == name && table.as_ref().is_none_or(|table| column.table == *table)
        };
        let at = self.scope.columns.iter().position(is_it)?;
        let ty = self.scope.columns[at].ty;
        Some(Ok(Bound { expr: Expr::Column(at), ty, location }))
    }

    /// Binds a column of a call: `(f(x)).column`. `None` if the expression is something else.
    pub(super) fn set_column(
        &mut self,
        root: &ast::Expr,
        chain: &[ast::AccessExpr],
        location: Location,
    ) -> Option<Result<Bound, SqlError>> {
        let (ast::Expr::Function(function), column) = field_of(root, chain)? else { return None };
        let name = syntax::name_parts(&function.name).ok()?.pop()?;
        let ast::FunctionArguments::List(list) = &function.args else { return None };
        if !SetFunction::is_name(&name) {
            return None;
        }
        Some(self.called(&name, &list.args, location).and_then(|(at, columns)| {
            let found = columns.iter().position(|(known, _)| *known == column);
            let place = found.ok_or_else(|| {
                let message = format!("column \"{column}\" not found in data type record");
                self.error_at(SqlError::new(code::UNDEFINED_COLUMN, message), location)
            })?;
            Ok(Bound::new(Expr::Rows(at, place), columns[place].1, location))
        }))
    }

    /// Records a call and returns its position and columns. Identical calls share one position.
    fn called(
        &mut self,
        name: &str,
        args: &[ast::FunctionArg],
        location: Location,
    ) -> Result<Noted, SqlError> {
        if let Aggregates::Forbidden(NESTED) = &self.aggregates {
            let message = "aggregate function calls cannot contain set-returning function calls";
            let error = SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_hint(INSTEAD);
            return Err(self.error_at(error, location));
        }
        if let Aggregates::Forbidden(clause) | Aggregates::Allowed(_, Some(clause)) =
            &self.aggregates
        {
            let message = format!("set-returning functions are not allowed in {clause}");
            return Err(
                self.error_at(SqlError::new(code::FEATURE_NOT_SUPPORTED, message), location)
            );
        }
        // Arguments may contain aggregates, but no other set-returning function.
        let bounds = args.iter().map(|arg| self.argument(arg, location));
        let bounds = bounds.collect::<Result<Vec<_>, _>>()?;
        if bounds.iter().any(|bound| bound.expr.has(|part| matches!(part, Expr::Rows(..)))) {
            let feature = "a set-returning function in an argument of another";
            return Err(self.error_at(SqlError::unsupported(feature), location));
        }
        let types: Vec<SqlType> = bounds.iter().map(Bound::base).collect();
        let Some((function, inputs, columns)) = SetFunction::named(name, &types) else {
            return Err(self.no_function(name, &types, location));
        };
        self.params.reads_catalog |= function.reads_catalog();
        let mut list = Vec::with_capacity(bounds.len());
        for (bound, input) in bounds.into_iter().zip(inputs) {
            list.push((self.cast(bound, input.into(), Level::Assignment)?.expr, input));
        }
        let types = columns.iter().map(|(_, base)| *base).collect();
        let called = Called { function, args: list, types };
        let Aggregates::Allowed(collected, _) = &mut self.aggregates else {
            unreachable!("such functions are allowed here")
        };
        let known = collected.functions.iter().position(|known| *known == called);
        let at = known.unwrap_or_else(|| {
            collected.functions.push(called);
            collected.functions.len() - 1
        });
        Ok((at, columns))
    }

    /// Rejects a set-returning function in a conditional construct: it would be evaluated before
    /// the condition.
    ///
    /// # Errors
    /// If an operand contains one.
    pub(super) fn refuse_rows(
        &self,
        bounds: &[Bound],
        construct: &str,
        location: Location,
    ) -> Result<(), SqlError> {
        let is_one = |part: &Expr| matches!(part, Expr::Rows(..));
        if !bounds.iter().any(|bound| bound.expr.has(is_one)) {
            return Ok(());
        }
        let message = format!("set-returning functions are not allowed in {construct}");
        let error = SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_hint(INSTEAD);
        Err(self.error_at(error, location))
    }
}
