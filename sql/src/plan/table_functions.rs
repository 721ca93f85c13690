//! Planning of set-returning functions in FROM.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::from::{Side, check_names, derived_scope};
use super::{Planner, refuse};
use crate::error::{Failure, SqlError};
use crate::expr::bind::{Aggregates, Bound};
use crate::expr::cast::Level;
use crate::expr::query::Called;
use crate::relational::{self, From, JoinKind};
use crate::syntax;
use crate::types::SqlType;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::set_function::{SetCall, SetFunction};

/// Functions that return the rows of a catalog table.
const CATALOG: [(&str, &str); 4] = [
    ("pg_available_extensions", "pg_available_extensions"),
    ("pg_cursor", "pg_cursors"),
    ("pg_lock_status", "pg_locks"),
    ("pg_show_all_settings", "pg_settings"),
];

/// A function in FROM, with WITH ORDINALITY and its alias.
pub(super) struct FunctionFrom<'a> {
    pub name: String,
    pub args: &'a [ast::FunctionArg],
    pub is_numbered: bool,
    pub alias: Option<&'a ast::TableAlias>,
    pub location: Location,
}

impl FunctionFrom<'_> {
    /// Returns the columns with their default names.
    fn outputs(&self, columns: &[(&'static str, SqlType)]) -> Vec<OutputColumn> {
        let is_single = columns.len() == 1;
        let output = |(name, base): &(&'static str, SqlType)| {
            // The alias of a function with one column also names that column.
            let alias = self.alias.filter(|_| is_single && *name != "value");
            let name = alias.map_or((*name).to_owned(), |alias| syntax::name(&alias.name));
            OutputColumn::new(name, *base)
        };
        let number = || OutputColumn::new("ordinality", SqlType::Int8);
        columns.iter().map(output).chain(self.is_numbered.then(number)).collect()
    }
}

impl Planner<'_> {
    /// Plans a set-returning function, which may reference the items before it.
    pub(super) fn function_from(
        &mut self,
        call: &FunctionFrom<'_>,
        before: Option<&Side>,
        kind: JoinKind,
    ) -> Result<(Side, bool), Failure> {
        if let Some((_, table)) = CATALOG.iter().find(|(name, _)| *name == call.name)
            && call.args.is_empty()
            && !call.is_numbered
        {
            let table = ast::ObjectName::from(vec![ast::Ident::new(*table)]);
            return Ok((self.named_relation(&table, call.alias)?, false));
        }
        let scope = before.map(|side| side.scope.clone()).unwrap_or_default();
        let exprs = call.args.iter().filter_map(|arg| match arg {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        });
        let exprs: Vec<&ast::Expr> = exprs.collect();
        let feature = "a named or wildcard argument of a function in FROM";
        refuse(&[(exprs.len() < call.args.len(), feature)])?;
        let forbidden = Aggregates::Forbidden("functions in FROM");
        let mut binder = self.binder(&scope, forbidden, &exprs)?;
        let mut bounds: Vec<Bound> = Vec::with_capacity(exprs.len());
        for expr in exprs {
            bounds.push(binder.bind(expr)?);
        }
        let types: Vec<SqlType> = bounds.iter().map(Bound::base).collect();
        // `unnest` of several arrays is one call for each, in parallel.
        let calls: Option<Vec<SetCall>> = match &types[..] {
            [_, _, ..] if call.name == "unnest" => {
                types.iter().map(|base| SetFunction::named("unnest", &[*base])).collect()
            }
            types => SetFunction::named(&call.name, types).map(|call| vec![call]),
        };
        let Some(calls) = calls else {
            let error = match SetFunction::is_name(&call.name) {
                true => binder.no_function(&call.name, &types, call.location),
                false => SqlError::unsupported(format!("function {}() in FROM", call.name)),
            };
            return Err(error.into());
        };
        let mut bounds = bounds.into_iter();
        let (mut functions, mut columns) = (Vec::with_capacity(calls.len()), Vec::new());
        for (function, inputs, own) in calls {
            let mut args = Vec::with_capacity(inputs.len());
            for (input, bound) in inputs.into_iter().zip(bounds.by_ref()) {
                args.push((binder.cast(bound, input.into(), Level::Assignment)?.expr, input));
            }
            let types = own.iter().map(|(_, base)| *base).collect();
            functions.push(Called { function, args, types });
            columns.extend(own);
        }
        self.params.reads_catalog |= functions.iter().any(|it| it.function.reads_catalog());
        let outputs = call.outputs(&columns);
        self.beside_functions(call, &functions, &outputs, before, kind)
    }

    /// Joins functions to the rows of the preceding items, whose columns their arguments may
    /// reference.
    fn beside_functions(
        &mut self,
        call: &FunctionFrom<'_>,
        functions: &[Called],
        outputs: &[OutputColumn],
        before: Option<&Side>,
        kind: JoinKind,
    ) -> Result<(Side, bool), Failure> {
        let mut args = functions.iter().flat_map(|called| &called.args);
        let names_before = args.any(|(arg, _)| arg.names_own());
        let relation = self.number();
        let known = call.alias.map_or(call.name.clone(), |alias| syntax::name(&alias.name));
        let own = derived_scope(outputs, call.alias, &known, relation)?;
        let left = before.filter(|_| names_before);
        let plan = match left {
            Some(left) => left.from.clone().plan()?,
            None => From::Nothing.plan()?,
        };
        let ids = left.map(|left| left.scope.ids()).unwrap_or_default();
        let flags = (call.is_numbered, left.is_some() && kind == JoinKind::Left);
        let plan = relational::expand(plan, &ids, functions, flags, relation, &mut self.numbers)?;
        let scope = match left {
            Some(left) => {
                check_names(&left.scope, &own)?;
                left.scope.clone().and(own)
            }
            None => own,
        };
        Ok((Side { from: From::Plan(plan), scope }, left.is_some()))
    }
}
