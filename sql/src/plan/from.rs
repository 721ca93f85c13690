//! Planning of FROM: relations and joins.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::table_functions::FunctionFrom;
use super::views::Named;
use super::{Planner, refuse};
use crate::access::path::Paths;
use crate::access::text::scope_as;
use crate::catalog::{sequence, stored};
use crate::data_fusion::LogicalPlan;
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{Aggregates, Bound, Scope, ScopeColumn};
use crate::expr::{Binary, Comparison, Expr, cast};
use crate::relational::{self, From, JoinKind};
use crate::syntax;
use crate::system::Found;
use crate::types::{ColumnType, SqlType};
use crate::vocabulary::column::{ColumnId, OutputColumn};

/// The relations planned so far, and their columns.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub from: From,
    pub scope: Scope,
}

impl Scope {
    /// Concatenates the columns of both scopes.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.columns.extend(other.columns);
        self
    }

    /// Returns the columns with their ids, as DataFusion has them.
    pub(super) fn ids(&self) -> Vec<(ColumnId, SqlType)> {
        self.columns.iter().map(|column| (column.id, column.ty.base)).collect()
    }
}

impl Planner<'_> {
    /// Plans the relations of FROM.
    pub(super) fn from(&mut self, from: &[ast::TableWithJoins]) -> Result<Side, Failure> {
        let mut all: Option<Side> = None;
        for table in from {
            let side = self.with_joins(table, all.as_ref())?;
            all = Some(match (all, side) {
                (None, (side, _)) => side,
                // The item is already joined with the preceding ones, which it references.
                (Some(_), (side, true)) => side,
                (Some(left), (right, false)) => {
                    self.join(left, right, JoinKind::Inner, &ast::JoinConstraint::None)?
                }
            });
        }
        Ok(all.unwrap_or_else(|| Side { from: From::Nothing, scope: Scope::default() }))
    }

    /// Plans a relation and the relations joined to it. Returns whether the preceding items are
    /// among them already.
    fn with_joins(
        &mut self,
        table: &ast::TableWithJoins,
        before: Option<&Side>,
    ) -> Result<(Side, bool), Failure> {
        let inner = JoinKind::Inner;
        let (mut side, has_before) = self.factor(&table.relation, before, inner)?;
        for join in &table.joins {
            let (kind, constraint) = kind_of(&join.join_operator)?;
            let (right, is_joined) = self.factor(&join.relation, Some(&side), kind)?;
            side = match is_joined {
                true => {
                    self.check_lateral(kind, constraint)?;
                    right
                }
                false => self.join(side, right, kind, constraint)?,
            };
        }
        Ok((side, has_before))
    }

    /// Checks a join whose right side runs for each row of the left side. It is INNER or LEFT, and
    /// has no condition except TRUE.
    fn check_lateral(
        &self,
        kind: JoinKind,
        constraint: &ast::JoinConstraint,
    ) -> Result<(), SqlError> {
        if matches!(kind, JoinKind::Right | JoinKind::Full) {
            let message = "invalid reference to FROM-clause entry: the combining JOIN type must \
                           be INNER or LEFT for a LATERAL reference";
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message));
        }
        let is_true = match constraint {
            ast::JoinConstraint::None => true,
            ast::JoinConstraint::On(ast::Expr::Value(value)) => {
                matches!(value.value, ast::Value::Boolean(true))
            }
            _ => false,
        };
        refuse(&[(!is_true, "LATERAL with a condition other than ON TRUE")])
    }

    /// Plans one relation. Returns whether it is already joined with the preceding items, which it
    /// references.
    fn factor(
        &mut self,
        factor: &ast::TableFactor,
        before: Option<&Side>,
        kind: JoinKind,
    ) -> Result<(Side, bool), Failure> {
        use ast::TableFactor as T;
        match factor {
            T::Table { name, alias, args: Some(args), with_ordinality, .. } => {
                let location = syntax::location(name);
                let name = syntax::name_parts(name)?.pop().unwrap_or_default();
                let (args, is_numbered) = (&args.args[..], *with_ordinality);
                let alias = alias.as_ref();
                let call = FunctionFrom { name, args, is_numbered, alias, location };
                self.function_from(&call, before, kind)
            }
            T::Function { name, args, alias, with_ordinality, .. } => {
                let location = syntax::location(name);
                let name = syntax::name_parts(name)?.pop().unwrap_or_default();
                let (is_numbered, alias) = (*with_ordinality, alias.as_ref());
                let call = FunctionFrom { name, args, is_numbered, alias, location };
                self.function_from(&call, before, kind)
            }
            T::UNNEST { alias, array_exprs, with_ordinality, with_offset: false, .. } => {
                let arg = |expr: &ast::Expr| {
                    ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr.clone()))
                };
                let args: Vec<_> = array_exprs.iter().map(arg).collect();
                let (name, alias) = ("unnest".to_owned(), alias.as_ref());
                let (args, is_numbered) = (&args[..], *with_ordinality);
                let location = Location::empty();
                let call = FunctionFrom { name, args, is_numbered, alias, location };
                self.function_from(&call, before, kind)
            }
            T::Table { name, alias, sample, .. } => {
                refuse(&[(sample.is_some(), "TABLESAMPLE")])?;
                Ok((self.named_relation(name, alias.as_ref())?, false))
            }
            T::Derived { lateral, subquery, alias, .. } => {
                self.derived(*lateral, subquery, alias.as_ref(), before, kind)
            }
            T::NestedJoin { table_with_joins, alias } => {
                refuse(&[(alias.is_some(), "an alias of a join")])?;
                let (side, _) = self.with_joins(table_with_joins, None)?;
                Ok((side, false))
            }
            other => Err(SqlError::unsupported(format!("the FROM item {other}")).into()),
        }
    }

    /// Plans a table, view or WITH query.
    pub(super) fn named_relation(
        &mut self,
        name: &ast::ObjectName,
        alias: Option<&ast::TableAlias>,
    ) -> Result<Side, Failure> {
        if let [part] = &name.0[..]
            && let Some(ident) = part.as_ident()
            && let Some((query, columns)) = self.with_named(ident)?
        {
            let known = syntax::name(ident);
            let relation = self.number();
            let plan = relational::renamed(&query, relation)?;
            self.shows_query(relation, &columns);
            let scope = derived_scope(&columns, alias, &known, relation)?;
            return Ok(Side { from: From::Plan(plan), scope });
        }
        if let Some(found) = self.system_relation(name)? {
            return self.system_side(found, alias);
        }
        let table = match self.readable(name)? {
            Named::Table(table) => table,
            Named::View(view) => return self.view(view, alias),
            Named::Sequence(name, sequence) => {
                let columns = sequence::COLUMNS.map(|(name, base)| OutputColumn::new(name, base));
                let relation = self.number();
                let mut scope = derived_scope(&columns, alias, name.name(), relation)?;
                if alias.is_none() {
                    scope.is_of(name.schema());
                }
                self.label(alias, name.name(), relation);
                let plan = relational::sequence_scan(name.to_string(), sequence, relation)?;
                return Ok(Side { from: From::Plan(plan), scope });
            }
        };
        let width = self.noted(&table.name, table.columns.len());
        let known = alias.map_or_else(|| table.name.name().to_owned(), |it| syntax::name(&it.name));
        let relation = self.number();
        self.label(alias, table.name.name(), relation);
        self.is_kept(relation, stored(table.id.0), table.columns.len());
        let mut scope = scope_as(&table, &known, relation);
        scope.columns.iter_mut().skip(width).for_each(|column| column.is_hidden = true);
        let names = alias.map_or(&[][..], |alias| &alias.columns[..]);
        rename(&mut scope, names, &known)?;
        if alias.is_none() {
            scope.is_of(table.name.schema());
        }
        Ok(Side { from: From::Table(Paths::new(table)?, relation), scope })
    }

    /// Plans a relation of the system catalog.
    fn system_side(
        &mut self,
        found: Found,
        alias: Option<&ast::TableAlias>,
    ) -> Result<Side, Failure> {
        let table = match found {
            Found::Table(table) => table,
            Found::View(view) => {
                let name = format!("{}.{}", view.schema, view.name);
                let mut side = self.system_view((&name, view.oid), &view.query, alias)?;
                if alias.is_none() {
                    side.scope.is_of(&view.schema);
                }
                return Ok(side);
            }
        };
        match table.is_of_node() {
            true => self.params.reads_node = true,
            false => self.params.reads_catalog = true,
        }
        let relation = self.number();
        let columns = table.all_columns();
        let columns = columns.map(|(name, base)| OutputColumn::new(name, base));
        let columns: Vec<_> = columns.collect();
        self.is_kept(relation, table.oid, table.columns.len());
        let mut scope = derived_scope(&columns, alias, &table.name, relation)?;
        self.label(alias, &table.name, relation);
        let own = table.columns.len();
        scope.columns.iter_mut().skip(own).for_each(|column| column.is_unlisted = true);
        if alias.is_none() {
            scope.is_of(table.schema);
        }
        let plan = relational::system_scan(table, relation)?;
        Ok(Side { from: From::Plan(plan), scope })
    }

    /// Records the name of a relation, for EXPLAIN.
    fn label(&mut self, alias: Option<&ast::TableAlias>, name: &str, relation: u32) {
        let label = alias.map_or_else(|| name.to_owned(), |alias| syntax::name(&alias.name));
        self.labels.push((relation, label));
    }

    fn derived(
        &mut self,
        is_lateral: bool,
        query: &ast::Query,
        alias: Option<&ast::TableAlias>,
        before: Option<&Side>,
        kind: JoinKind,
    ) -> Result<(Side, bool), Failure> {
        let Some(alias) = alias else {
            let message = "subquery in FROM must have an alias";
            let hint = "For example, FROM (SELECT ...) [AS] foo.";
            return Err(SqlError::new(code::SYNTAX, message).with_hint(hint).into());
        };
        let left = before.filter(|_| is_lateral);
        if let Some(left) = left {
            self.outer.push(left.scope.clone());
        }
        self.depth += 1;
        let planned = self.nested(query);
        self.depth -= 1;
        if left.is_some() {
            self.outer.pop();
        }
        let (nested, columns) = planned?;
        let relation = self.number();
        let known = syntax::name(&alias.name);
        self.shows_query(relation, &columns);
        let scope = derived_scope(&columns, Some(alias), &known, relation)?;
        let is_own = |id: &ColumnId| {
            left.is_some_and(|left| left.scope.columns.iter().any(|column| column.id == *id))
        };
        let (own, others): (Vec<_>, Vec<_>) =
            nested.refs.into_iter().partition(|(id, _)| is_own(id));
        for outer in others {
            if !self.params.outer.contains(&outer) {
                self.params.outer.push(outer);
            }
        }
        let Some(left) = left.filter(|_| !own.is_empty()) else {
            let plan = relational::renamed(&nested.query, relation)?;
            return Ok((Side { from: From::Plan(plan), scope }, false));
        };
        check_names(&left.scope, &scope)?;
        let is_kept = kind == JoinKind::Left;
        let plan = left.from.clone().plan()?;
        let plan = relational::lateral(plan, &nested.query, &own, relation, is_kept)?;
        let scope = left.scope.clone().and(scope);
        Ok((Side { from: From::Plan(plan), scope }, true))
    }

    pub(super) fn join(
        &mut self,
        left: Side,
        right: Side,
        kind: JoinKind,
        constraint: &ast::JoinConstraint,
    ) -> Result<Side, Failure> {
        check_names(&left.scope, &right.scope)?;
        let names = match constraint {
            ast::JoinConstraint::Using(names) => {
                let name = |object| Ok(syntax::name_parts(object)?.pop().unwrap_or_default());
                names.iter().map(name).collect::<Result<Vec<_>, SqlError>>()?
            }
            ast::JoinConstraint::Natural => {
                let is_shown = |column: &&ScopeColumn| {
                    !column.is_hidden && !column.is_merged && !column.is_unlisted
                };
                let there = |name: &str| {
                    right.scope.columns.iter().filter(is_shown).any(|column| column.name == name)
                };
                let shown = left.scope.columns.iter().filter(is_shown);
                shown.filter(|it| there(&it.name)).map(|it| it.name.clone()).collect()
            }
            ast::JoinConstraint::On(_) | ast::JoinConstraint::None => Vec::new(),
        };
        let width = left.scope.columns.len();
        let mut both = left.scope.clone().and(right.scope);
        let mut merged = Vec::with_capacity(names.len());
        let mut condition = None;
        for name in &names {
            let (on, pair) = self.using(&both, width, name)?;
            condition = Some(match condition {
                None => on,
                Some(before) => Expr::and(before, on),
            });
            merged.push(pair);
        }
        if let ast::JoinConstraint::On(on) = constraint {
            let forbidden = Aggregates::Forbidden("JOIN conditions");
            let mut binder = self.binder(&both, forbidden, &[on])?;
            condition = Some(binder.condition(on, "JOIN/ON")?);
        }
        let mut sides = [left.from.plan()?, right.from.plan()?];
        if let Some(asked) = condition.take_if(|it| kind != JoinKind::Inner && it.holds_subquery())
        {
            let (placed, answered) = self.answered(asked, width, &mut both, sides)?;
            (condition, sides) = (Some(placed), answered);
        }
        let [one, other] = sides;
        let plan = match condition {
            // A condition with a subquery filters the joined pairs; an inner join has no unmatched
            // rows.
            Some(asked) if kind == JoinKind::Inner && asked.holds_subquery() => {
                let plan = relational::join(one, other, kind, None, &[])?;
                relational::filtered(plan, asked, &both.ids(), &mut self.numbers)?
            }
            condition => relational::join(one, other, kind, condition, &both.ids())?,
        };
        if merged.is_empty() {
            return Ok(Side { from: From::Plan(plan), scope: both });
        }
        let (plan, scope) = self.merge(plan, both, kind, &merged)?;
        Ok(Side { from: From::Plan(plan), scope })
    }

    /// Plans the condition of an outer join. Its subqueries are evaluated beforehand for the rows
    /// of one side; their results are hidden columns there. Returns the condition over both sides.
    fn answered(
        &mut self,
        condition: Expr,
        width: usize,
        both: &mut Scope,
        [left, right]: [LogicalPlan; 2],
    ) -> Result<(Expr, [LogicalPlan; 2]), Failure> {
        let relations = [self.number(), self.number()];
        let mut asked: [Vec<(Expr, SqlType)>; 2] = [Vec::new(), Vec::new()];
        let ids = both.ids();
        let condition = condition.rewrite(&mut |part| {
            let Expr::Subquery(subquery) = part else { return Ok(None) };
            let columns = subquery.parts().flat_map(Expr::columns).collect::<Vec<_>>();
            let is_right = columns.iter().any(|at| *at >= width);
            if is_right && columns.iter().any(|at| *at < width) {
                let feature = "a subquery over both sides of an outer JOIN in its condition";
                return Err(SqlError::unsupported(feature));
            }
            let side = usize::from(is_right);
            let column = asked[side].len() as u32;
            asked[side].push((part.clone(), subquery.base));
            both.columns.push(ScopeColumn {
                schema: None,
                table: String::new(),
                name: String::new(),
                ty: subquery.base.into(),
                is_hidden: true,
                is_merged: false,
                is_unlisted: false,
                is_key: false,
                id: ColumnId { relation: relations[side], column },
            });
            Ok(Some(Expr::Column(both.columns.len() - 1)))
        })?;
        let mut side = |plan, queries: Vec<(Expr, SqlType)>, relation| match queries.is_empty() {
            true => Ok(plan),
            false => relational::answered(plan, &ids, queries, relation, &mut self.numbers),
        };
        let [of_left, of_right] = asked;
        let left = side(left, of_left, relations[0])?;
        Ok((condition, [left, side(right, of_right, relations[1])?]))
    }

    /// Returns the condition that columns of a name are equal, with their positions and common
    /// type.
    fn using(
        &mut self,
        both: &Scope,
        width: usize,
        name: &str,
    ) -> Result<(Expr, (usize, usize, SqlType)), Failure> {
        let find = |range: std::ops::Range<usize>, side: &str| {
            let is_it = |at: &usize| {
                let column = &both.columns[*at];
                !column.is_hidden && !column.is_merged && column.name == name
            };
            let mut found = range.filter(is_it);
            match (found.next(), found.next()) {
                (Some(at), None) => Ok(at),
                (Some(_), Some(_)) => {
                    let message = format!(
                        "common column name \"{name}\" appears more than once in {side} table"
                    );
                    Err(SqlError::new(code::AMBIGUOUS_COLUMN, message))
                }
                (None, _) => {
                    let message = format!(
                        "column \"{name}\" specified in USING clause does not exist in {side} table"
                    );
                    Err(SqlError::new(code::UNDEFINED_COLUMN, message))
                }
            }
        };
        let left = find(0..width, "left")?;
        let right = find(width..both.columns.len(), "right")?;
        let (a, b) = (both.columns[left].ty.base, both.columns[right].ty.base);
        let Some(common) = cast::common(a, b) else {
            let message = format!("JOIN/USING types {a} and {b} cannot be matched");
            return Err(SqlError::new(code::TYPE_MISMATCH, message).into());
        };
        let bound =
            |at: usize| Bound::new(Expr::Column(at), both.columns[at].ty.base, Location::empty());
        let forbidden = Aggregates::Forbidden("JOIN/USING");
        let mut binder = self.binder(both, forbidden, &[])?;
        let (one, other, base) =
            binder.comparable(bound(left), bound(right), "=", Location::empty())?;
        let op = Binary::Compare(Comparison::Equal, base);
        Ok((Expr::Binary(op, Box::new(one), Box::new(other)), (left, right, common)))
    }

    /// Replaces each pair of USING columns by one column, before all others.
    fn merge(
        &mut self,
        plan: LogicalPlan,
        mut both: Scope,
        kind: JoinKind,
        pairs: &[(usize, usize, SqlType)],
    ) -> Result<(LogicalPlan, Scope), Failure> {
        let relation = self.number();
        let mut merged = Vec::with_capacity(pairs.len());
        let mut values = Vec::with_capacity(pairs.len());
        for (at, (left, right, common)) in pairs.iter().enumerate() {
            let side = |at: usize| {
                let base = both.columns[at].ty.base;
                let column = Box::new(Expr::Column(at));
                let op = crate::expr::Unary::Cast {
                    from: base,
                    to: (*common).into(),
                    is_explicit: false,
                };
                if base == *common { *column } else { Expr::Unary(op, column) }
            };
            let value = match kind {
                JoinKind::Inner | JoinKind::Left => side(*left),
                JoinKind::Right => side(*right),
                JoinKind::Full => Expr::Coalesce(vec![side(*left), side(*right)]),
            };
            values.push((value, *common));
            let of = if kind == JoinKind::Right { *right } else { *left };
            let ty = match both.columns[*left].ty == both.columns[*right].ty {
                true => both.columns[of].ty,
                false => ColumnType::from(*common),
            };
            merged.push(ScopeColumn {
                schema: None,
                table: String::new(),
                name: both.columns[*left].name.clone(),
                ty,
                is_hidden: false,
                is_merged: false,
                is_unlisted: false,
                is_key: false,
                id: ColumnId { relation, column: at as u32 },
            });
        }
        let plan = relational::with_columns(plan, &both.ids(), values, relation)?;
        for (left, right, _) in pairs {
            both.columns[*left].is_merged = true;
            both.columns[*right].is_merged = true;
        }
        merged.extend(both.columns);
        Ok((plan, Scope { columns: merged }))
    }
}

/// Returns the kind of a join and its constraint.
fn kind_of(op: &ast::JoinOperator) -> Result<(JoinKind, &ast::JoinConstraint), SqlError> {
    use ast::JoinOperator as J;
    Ok(match op {
        J::Join(on) | J::Inner(on) | J::CrossJoin(on) => (JoinKind::Inner, on),
        J::Left(on) | J::LeftOuter(on) => (JoinKind::Left, on),
        J::Right(on) | J::RightOuter(on) => (JoinKind::Right, on),
        J::FullOuter(on) => (JoinKind::Full, on),
        _ => return Err(SqlError::unsupported("this form of JOIN")),
    })
}

/// Returns the columns of a query under a relation name, which may be empty.
pub(super) fn scope_over(columns: &[OutputColumn], table: &str, relation: u32) -> Scope {
    let columns = columns.iter().enumerate().map(|(at, column)| ScopeColumn {
        schema: None,
        table: table.to_owned(),
        name: column.name.clone(),
        ty: column.ty,
        is_hidden: false,
        is_merged: false,
        // Fields of a record.
        is_unlisted: column.name.contains('\0'),
        is_key: false,
        id: ColumnId { relation, column: at as u32 },
    });
    Scope { columns: columns.collect() }
}

/// Returns the columns of a query under its alias.
pub(super) fn derived_scope(
    columns: &[OutputColumn],
    alias: Option<&ast::TableAlias>,
    known: &str,
    relation: u32,
) -> Result<Scope, SqlError> {
    let table = alias.map_or_else(|| known.to_owned(), |alias| syntax::name(&alias.name));
    let mut scope = scope_over(columns, &table, relation);
    rename(&mut scope, alias.map_or(&[][..], |alias| &alias.columns[..]), &table)?;
    Ok(scope)
}

/// Renames columns to the names in an alias.
pub(super) fn rename(
    scope: &mut Scope,
    names: &[ast::TableAliasColumnDef],
    table: &str,
) -> Result<(), SqlError> {
    let mut shown = scope.columns.iter_mut().filter(|column| !column.is_hidden);
    for (count, name) in names.iter().enumerate() {
        let Some(column) = shown.next() else {
            let given = names.len();
            let message = format!(
                "table \"{table}\" has {count} columns available but {given} columns specified"
            );
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message));
        };
        column.name = syntax::name(&name.name);
    }
    Ok(())
}

/// Checks that the relations of FROM have different names.
pub(super) fn check_names(left: &Scope, right: &Scope) -> Result<(), SqlError> {
    for column in &right.columns {
        // Tables of two schemas may have the same name.
        let is_other = |other: &ScopeColumn| {
            let schemas = (&other.schema, &column.schema);
            matches!(schemas, (Some(one), Some(other)) if one != other)
        };
        let is_same = |other: &ScopeColumn| other.table == column.table && !is_other(other);
        if !column.table.is_empty() && left.columns.iter().any(is_same) {
            let message = format!("table name \"{}\" specified more than once", column.table);
            return Err(SqlError::new(code::DUPLICATE_ALIAS, message));
        }
    }
    Ok(())
}
