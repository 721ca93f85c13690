//! Binding of aggregates and window functions.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::bind::{Aggregates, Binder, Bound};
use super::cast::Level;
use super::signatures::{self, Found};
use super::{Expr, Typed};
use crate::error::{SqlError, code};
use crate::expr::query::{Aggregate, Over, Window};
use crate::syntax;
use crate::types::SqlType;
use crate::vocabulary::aggregate::AggregateKind;
use crate::vocabulary::column::SortKey;
use crate::vocabulary::window::WindowFunction;

/// Marks the arguments of an aggregate; not the name of a clause.
pub(super) const NESTED: &str = "an aggregate";

/// Sort expressions, and sort keys that refer to them by position.
type Sorted = (Vec<Typed>, Vec<SortKey>);

impl Binder<'_> {
    pub(super) fn aggregate(
        &mut self,
        kind: AggregateKind,
        function: &ast::Function,
        location: Location,
    ) -> Result<Bound, SqlError> {
        if let Aggregates::Forbidden(clause) = self.aggregates {
            let message = if clause == NESTED {
                "aggregate function calls cannot be nested".to_owned()
            } else {
                format!("aggregate functions are not allowed in {clause}")
            };
            return Err(self.error_at(SqlError::new(code::GROUPING, message), location));
        }
        let collected = std::mem::replace(&mut self.aggregates, Aggregates::Forbidden(NESTED));
        let bound = self.aggregate_args(kind, function, location);
        self.aggregates = collected;
        let (aggregate, result) = bound?;
        self.refuse_outer(&aggregate, location)?;
        let Aggregates::Allowed(collected, _) = &mut self.aggregates else {
            unreachable!("aggregates are allowed here")
        };
        let list = &mut collected.aggregates;
        let at = list.iter().position(|known| *known == aggregate).unwrap_or_else(|| {
            list.push(aggregate);
            list.len() - 1
        });
        Ok(Bound::new(Expr::Aggregate(at), result, location))
    }

    /// Rejects an aggregate whose columns are all of an outer query, because it belongs to that
    /// query.
    fn refuse_outer(&self, aggregate: &Aggregate, location: Location) -> Result<(), SqlError> {
        let mut args = aggregate.args.iter().map(|(arg, _)| arg);
        let has_own = args.clone().any(Expr::names_own);
        let has_outer = args.any(Expr::names_outer);
        if has_outer && !has_own {
            let feature = "an aggregate of columns of an outer query";
            return Err(self.error_at(SqlError::unsupported(feature), location));
        }
        Ok(())
    }

    fn aggregate_args(
        &mut self,
        kind: AggregateKind,
        function: &ast::Function,
        location: Location,
    ) -> Result<(Aggregate, SqlType), SqlError> {
        let ast::FunctionArguments::List(list) = &function.args else {
            return Err(self.no_function(&function.name.to_string(), &[], location));
        };
        let is_distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        let filter = match &function.filter {
            Some(filter) => Some(self.condition(filter, "FILTER")?),
            None => None,
        };
        let (order, sort) = self.aggregate_order(&list.clauses, location)?;
        let is_star =
            matches!(&list.args[..], [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)]);
        if is_star && kind == AggregateKind::Count {
            let args = Vec::new();
            let aggregate = Aggregate { kind, args, is_distinct: false, filter, order, sort };
            return Ok((aggregate, SqlType::Int8));
        }
        let mut bounds = Vec::with_capacity(list.args.len());
        for arg in &list.args {
            let bound = self.argument(arg, location)?;
            bounds.push(self.output(bound)?);
        }
        let types: Vec<SqlType> = bounds.iter().map(Bound::base).collect();
        let name = function.name.to_string().to_lowercase();
        let missing = |this: &Self| this.no_function(&name, &types, location);
        if bounds.len() != kind.arity() {
            return Err(missing(self));
        }
        self.make_json(kind, &mut bounds, location)?;
        let Some((inputs, result)) = kind.types(bounds[0].base()) else {
            return Err(missing(self));
        };
        let mut args = Vec::with_capacity(bounds.len());
        for (bound, input) in bounds.into_iter().zip(inputs) {
            args.push((self.cast(bound, input.into(), Level::Assignment)?.expr, input));
        }
        if is_distinct && order.iter().any(|key| !args.contains(key)) {
            let message = "in an aggregate with DISTINCT, ORDER BY expressions must appear in \
                           argument list";
            let error = SqlError::new(code::INVALID_COLUMN_REFERENCE, message);
            return Err(self.error_at(error, location));
        }
        Ok((Aggregate { kind, args, is_distinct, filter, order, sort }, result))
    }

    /// Converts the value that a JSON aggregate collects to JSON.
    fn make_json(
        &mut self,
        kind: AggregateKind,
        bounds: &mut [Bound],
        location: Location,
    ) -> Result<(), SqlError> {
        let (AggregateKind::Json { is_binary } | AggregateKind::Object { is_binary }) = kind else {
            return Ok(());
        };
        let name = if is_binary { "to_jsonb" } else { "to_json" };
        let value = bounds.last_mut().expect("it has an argument");
        *value = self.call(name, vec![value.clone()], location)?;
        Ok(())
    }

    fn aggregate_order(
        &mut self,
        clauses: &[ast::FunctionArgumentClause],
        location: Location,
    ) -> Result<Sorted, SqlError> {
        match clauses {
            [] => Ok((Vec::new(), Vec::new())),
            [ast::FunctionArgumentClause::OrderBy(list)] => self.order(list),
            _ => {
                let clauses: Vec<_> = clauses.iter().map(ToString::to_string).collect();
                let feature = format!("the clause {} in an aggregate", clauses.join(" "));
                Err(self.error_at(SqlError::unsupported(feature), location))
            }
        }
    }

    /// Sort expressions, and sort keys that refer to them by position.
    fn order(&mut self, list: &[ast::OrderByExpr]) -> Result<Sorted, SqlError> {
        let mut exprs = Vec::with_capacity(list.len());
        let mut sort = Vec::with_capacity(list.len());
        for (column, item) in list.iter().enumerate() {
            let bound = self.bind(&item.expr)?;
            let bound = self.output(bound)?;
            let base = bound.base();
            exprs.push((bound.expr, base));
            sort.push(SortKey::new(column, &item.options));
        }
        Ok((exprs, sort))
    }

    /// Binds a window function, or an aggregate with an OVER clause.
    pub(super) fn windowed(
        &mut self,
        name: &str,
        function: &ast::Function,
        over: &ast::WindowType,
        location: Location,
    ) -> Result<Bound, SqlError> {
        let forbidden = match &self.aggregates {
            Aggregates::Forbidden(NESTED) => {
                let message = "aggregate function calls cannot contain window function calls";
                return Err(self.error_at(SqlError::new(code::GROUPING, message), location));
            }
            Aggregates::Forbidden(clause) => Some(*clause),
            Aggregates::Allowed(_, clause) => *clause,
        };
        if let Some(clause) = forbidden {
            let message = match clause {
                WINDOW => "window function calls cannot be nested".to_owned(),
                clause => format!("window functions are not allowed in {clause}"),
            };
            return Err(self.error_at(SqlError::new(code::WINDOWING, message), location));
        }
        self.forbid_windows(Some(WINDOW));
        let window = self.window(name, function, over, location);
        self.forbid_windows(None);
        let window = window?;
        let base = window.base;
        let Aggregates::Allowed(collected, _) = &mut self.aggregates else {
            unreachable!("windows are allowed here")
        };
        let known = collected.windows.iter().position(|known| *known == window);
        let at = known.unwrap_or_else(|| {
            collected.windows.push(window);
            collected.windows.len() - 1
        });
        Ok(Bound::new(Expr::Window(at), base, location))
    }

    fn forbid_windows(&mut self, clause: Option<&'static str>) {
        if let Aggregates::Allowed(_, forbidden) = &mut self.aggregates {
            *forbidden = clause;
        }
    }

    fn window(
        &mut self,
        name: &str,
        function: &ast::Function,
        over: &ast::WindowType,
        location: Location,
    ) -> Result<Window, SqlError> {
        let over = self.over(over, location)?;
        if let Some(kind) = AggregateKind::named(name) {
            let (aggregate, base) = self.aggregate_args(kind, function, location)?;
            if aggregate.is_distinct {
                let feature = "DISTINCT is not implemented for window functions";
                return Err(
                    self.error_at(SqlError::new(code::FEATURE_NOT_SUPPORTED, feature), location)
                );
            }
            if !aggregate.order.is_empty() {
                let feature = "aggregate ORDER BY is not implemented for window functions";
                return Err(
                    self.error_at(SqlError::new(code::FEATURE_NOT_SUPPORTED, feature), location)
                );
            }
            let filter = aggregate.filter.clone();
            let args = aggregate.args.clone();
            let function = WindowFunction::Aggregate(kind);
            return Window::new(function, (args, filter), over, base)
                .map_err(|error| self.error_at(error, location));
        }
        let ast::FunctionArguments::List(list) = &function.args else {
            return Err(self.no_function(name, &[], location));
        };
        if function.filter.is_some() {
            let message = "FILTER is not implemented for non-aggregate window functions";
            return Err(
                self.error_at(SqlError::new(code::FEATURE_NOT_SUPPORTED, message), location)
            );
        }
        let mut bounds = Vec::with_capacity(list.args.len());
        for arg in &list.args {
            let bound = self.argument(arg, location)?;
            bounds.push(self.output(bound)?);
        }
        let types: Vec<SqlType> = bounds.iter().map(Bound::base).collect();
        let Some(kind) = WindowFunction::named(name) else {
            if matches!(signatures::find(name, &types), Found::Nothing) {
                return Err(self.no_function(name, &types, location));
            }
            let message = format!(
                "OVER specified, but {name} is not a window function nor an aggregate function"
            );
            return Err(self.error_at(SqlError::new(code::WRONG_OBJECT_TYPE, message), location));
        };
        let Some((inputs, base)) = kind.types(&types) else {
            return Err(self.no_function(name, &types, location));
        };
        let mut args = Vec::with_capacity(bounds.len());
        for (bound, input) in bounds.into_iter().zip(inputs) {
            args.push((self.cast(bound, input.into(), Level::Implicit)?.expr, input));
        }
        Window::new(kind, (args, None), over, base).map_err(|error| self.error_at(error, location))
    }

    fn over(&mut self, over: &ast::WindowType, location: Location) -> Result<Over, SqlError> {
        match over {
            ast::WindowType::NamedWindow(name) => {
                let spec = self.named_window(&syntax::name(name), location)?;
                self.over_spec(&spec, location)
            }
            ast::WindowType::WindowSpec(spec) => self.over_spec(spec, location),
        }
    }

    fn named_window(&self, name: &str, location: Location) -> Result<ast::WindowSpec, SqlError> {
        let Aggregates::Allowed(collected, _) = &self.aggregates else {
            unreachable!("windows are allowed here")
        };
        let found = collected.named.iter().find(|known| syntax::name(&known.0) == name);
        match found.map(|known| &known.1) {
            Some(ast::NamedWindowExpr::WindowSpec(spec)) => Ok(spec.clone()),
            Some(ast::NamedWindowExpr::NamedWindow(other)) => {
                self.named_window(&syntax::name(other), location)
            }
            None => {
                let message = format!("window \"{name}\" does not exist");
                Err(self.error_at(SqlError::new(code::UNDEFINED_OBJECT, message), location))
            }
        }
    }

    fn over_spec(&mut self, spec: &ast::WindowSpec, location: Location) -> Result<Over, SqlError> {
        let mut over = match &spec.window_name {
            Some(name) => {
                let base = self.named_window(&syntax::name(name), location)?;
                self.over_spec(&base, location)?
            }
            None => Over::default(),
        };
        if spec.window_frame.is_some() {
            over.frame = spec.window_frame.clone();
        }
        for expr in &spec.partition_by {
            let bound = self.bind(expr)?;
            let bound = self.output(bound)?;
            let base = bound.base();
            over.partition.push((bound.expr, base));
        }
        if !spec.order_by.is_empty() {
            (over.order, over.sort) = self.order(&spec.order_by)?;
        }
        Ok(over)
    }
}

/// Marks the arguments of a window function; not the name of a clause.
const WINDOW: &str = "a window";
