//! Lowering of bound queries to DataFusion's logical plans.

use std::sync::Arc;

use datafusion::arrow::datatypes::Field;
use datafusion::common::{Column, Spans};
use datafusion::error::Result;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, Exists};
use datafusion::logical_expr::{
    Expr as Logical, JoinType, LogicalPlan, LogicalPlanBuilder, Operator, Subquery as Nested,
    binary_expr, lit, not,
};

use super::aggregate;
use super::apply::{Apply, answer};
use super::block::{Block, Distinct, Numbers};
use super::error::{unwrapped, wrapped};
use super::function::{Computed, KeyOf, is_volatile};
use super::leaf::columns_of;
use super::parts::expanded;
use super::values::{arrow_type, is_ordered, scalar};
use super::volatile::Chance;
use super::windows::windowed;
use crate::error::{SqlError, code};
use crate::expr::query::{Aggregate, Called, Keyed, Query, Shape, Subquery, SubqueryKind};
use crate::expr::{Binary, Comparison, Expr, Typed, Unary};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::{ColumnId, SortKey, relation_name};

/// Returns the next relation number.
pub(super) fn next(numbers: &mut Numbers) -> u32 {
    *numbers += 1;
    *numbers
}

/// The maximum number of conditions in one filter: DataFusion turns them into a chain.
const CONDITIONS_MAX: usize = 2_500;

/// Returns the conjunction of all conditions, as a balanced tree.
pub(super) fn all_of(mut conditions: Vec<Logical>) -> Result<Option<Logical>> {
    if conditions.len() > CONDITIONS_MAX {
        let message = format!("a clause can have at most {CONDITIONS_MAX} conditions");
        let error = SqlError::new(code::TOO_COMPLEX, message);
        return Err(wrapped(error.with_hint("Use a list, as in x NOT IN (1, 2).")));
    }
    while conditions.len() > 1 {
        let mut pairs = conditions.into_iter();
        let mut joined = Vec::new();
        while let Some(left) = pairs.next() {
            joined.push(match pairs.next() {
                Some(right) => left.and(right),
                None => left,
            });
        }
        conditions = joined;
    }
    Ok(conditions.pop())
}

/// Returns the plan of a query, whose columns are those of the relation with this number.
///
/// # Errors
/// If DataFusion cannot plan it.
pub(crate) fn lower(
    block: Block,
    relation: u32,
    numbers: &mut Numbers,
) -> std::result::Result<LogicalPlan, SqlError> {
    lowered(block, relation, numbers).map_err(|error| unwrapped(&error))
}

fn lowered(block: Block, relation: u32, numbers: &mut Numbers) -> Result<LogicalPlan> {
    let mut scope = PlanScope::new(block.from.source(), &block.columns, numbers);
    if let Some(filter) = block.filter {
        scope.filter(filter)?;
    }
    if let Some(group) = block.group {
        super::grouping::grouped(&mut scope, group)?;
    }
    if !block.windows.is_empty() {
        windowed(&mut scope, block.windows)?;
    }
    if !block.functions.is_empty() {
        scope = scope.expanded(block.functions)?;
    }
    let types: Vec<SqlType> = block.output.iter().map(|(_, base)| *base).collect();
    let mut exprs = Vec::with_capacity(block.output.len());
    for (expr, base) in block.output {
        let expr = scope.resolve(expr)?;
        exprs.push(scope.value(&expr, base));
    }
    // The sort columns stay until the last step, which drops them.
    let is_last = exprs.len() == block.width;
    let inner = if is_last { relation } else { next(scope.numbers) };
    let mut plan = projected(scope.plan, exprs, inner)?;
    let numbers = scope.numbers;
    match block.distinct {
        Distinct::No => {}
        Distinct::Yes => plan = distinct(plan, inner, &types)?,
        Distinct::On(keys) => {
            plan =
                super::windows::first_of_each(plan, (inner, &types), &keys, &block.sort, numbers)?;
        }
    }
    plan = sorted(plan, inner, &types, &block.sort)?;
    plan = limited(plan, block.limit, block.offset)?;
    if !is_last {
        let exprs = (0..block.width).map(|at| named(inner, at)).collect();
        plan = projected(plan, exprs, relation)?;
    }
    Ok(plan)
}

impl ColumnId {
    /// Returns its name in DataFusion's logical plans.
    pub(super) fn name(self) -> Column {
        Column::new(Some(relation_name(self.relation)), self.physical_name())
    }
}

/// Returns a column of a relation.
pub(super) fn named(relation: u32, at: usize) -> Logical {
    Logical::Column(ColumnId { relation, column: at as u32 }.name())
}

/// Projects the rows onto these values, as the relation with this number.
pub(super) fn projected(
    plan: LogicalPlan,
    mut exprs: Vec<Logical>,
    relation: u32,
) -> Result<LogicalPlan> {
    if exprs.is_empty() {
        exprs.push(lit(true));
    }
    let exprs = exprs.into_iter().enumerate().map(|(at, expr)| {
        let name = ColumnId { relation, column: at as u32 }.name();
        expr.alias_qualified(name.relation, name.name)
    });
    LogicalPlanBuilder::from(plan).project(exprs)?.build()
}

/// Returns a value that Arrow compares like SQL.
pub(super) fn comparable(value: Logical, base: SqlType) -> Logical {
    if is_ordered(base) { value } else { KeyOf::call(base, value) }
}

/// Returns the first value of a column in a group.
pub(super) fn first_of(column: Logical) -> Logical {
    let function = first_value_udaf();
    let first = AggregateFunction::new_udf(function, vec![column], false, None, vec![], None);
    Logical::AggregateFunction(first)
}

/// Removes duplicate rows of a relation.
pub(super) fn distinct(plan: LogicalPlan, relation: u32, types: &[SqlType]) -> Result<LogicalPlan> {
    if types.iter().all(|base| is_ordered(*base)) {
        return LogicalPlanBuilder::from(plan).distinct()?.build();
    }
    let columns: Vec<Logical> = (0..types.len()).map(|at| named(relation, at)).collect();
    let keys: Vec<Logical> = columns
        .iter()
        .zip(types)
        .enumerate()
        .map(|(at, (column, base))| {
            comparable(column.clone(), *base).alias(format!("r{relation}k{at}"))
        })
        .collect();
    let firsts = columns
        .into_iter()
        .enumerate()
        .map(|(at, column)| first_of(column).alias(format!("r{relation}v{at}")));
    let plan = LogicalPlanBuilder::from(plan).aggregate(keys, firsts)?.build()?;
    let values = (0..types.len()).map(|at| {
        // If a group's key is NULL, the column is NULL in all of its rows, so the first value is,
        // too.
        Logical::Column(Column::new_unqualified(format!("r{relation}v{at}")))
    });
    projected(plan, values.collect(), relation)
}

pub(super) fn sorted(
    plan: LogicalPlan,
    relation: u32,
    types: &[SqlType],
    sort: &[SortKey],
) -> Result<LogicalPlan> {
    if sort.is_empty() {
        return Ok(plan);
    }
    let keys = sort.iter().map(|key| {
        let value = comparable(named(relation, key.column), types[key.column]);
        value.sort(!key.is_descending, key.is_nulls_first)
    });
    LogicalPlanBuilder::from(plan).sort(keys)?.build()
}

/// Applies LIMIT and OFFSET. Their values are known only when the plan runs.
pub(super) fn limited(
    plan: LogicalPlan,
    limit: Option<Expr>,
    offset: Option<Expr>,
) -> Result<LogicalPlan> {
    if limit.is_none() && offset.is_none() {
        return Ok(plan);
    }
    let number = |expr: Expr| Computed::call(expr, Vec::new(), SqlType::Int8);
    LogicalPlanBuilder::from(plan).limit_by_expr(offset.map(number), limit.map(number))?.build()
}

/// A plan under construction, with the meaning of the columns in expressions over it.
pub(super) struct PlanScope<'a> {
    pub plan: LogicalPlan,
    /// The columns that expressions refer to by position.
    pub columns: Vec<(Logical, SqlType)>,
    pub numbers: &'a mut Numbers,
}

impl<'a> PlanScope<'a> {
    /// Starts from a plan whose columns expressions refer to by position.
    pub(super) fn new(
        plan: LogicalPlan,
        columns: &[(ColumnId, SqlType)],
        numbers: &'a mut Numbers,
    ) -> Self {
        let column = |(id, base): &(ColumnId, SqlType)| (Logical::Column(id.name()), *base);
        Self { plan, columns: columns.iter().map(column).collect(), numbers }
    }

    /// Joins rows with those of the functions called for each.
    fn expanded(mut self, mut functions: Vec<Called>) -> Result<Self> {
        // Later expressions do not refer to the answers of subqueries in the arguments.
        let mut columns = self.columns.clone();
        self.resolve_args(&mut functions)?;
        let relation = next(self.numbers);
        let types = functions.iter().flat_map(|called| called.types.iter().copied());
        columns.extend(types.enumerate().map(|(at, base)| (named(relation, at), base)));
        let mut numbers = *self.numbers;
        let scope = PlanScope { plan: self.plan, columns: self.columns, numbers: &mut numbers };
        let plan = expanded(scope, &functions, (false, false), relation)?;
        Ok(Self { plan, columns, numbers: self.numbers })
    }

    /// Resolves the subqueries in arguments.
    pub(super) fn resolve_args(&mut self, functions: &mut [Called]) -> Result<()> {
        for (arg, _) in functions.iter_mut().flat_map(|called| &mut called.args) {
            *arg = self.resolve(std::mem::replace(arg, Expr::Param(0)))?;
        }
        Ok(())
    }

    /// Filters the rows by a condition.
    pub(super) fn filter(&mut self, condition: Expr) -> Result<()> {
        let mut conditions: Vec<Expr> = condition.conjuncts().into_iter().cloned().collect();
        // Conditions without subqueries come first, so that subqueries run for fewer rows.
        conditions.sort_by_key(Expr::holds_subquery);
        let width = self.columns.len();
        // All of these conditions form one filter, so that the plan does not get deeper for each.
        let asked = conditions.split_off(conditions.partition_point(|it| !it.holds_subquery()));
        let (chances, conditions): (Vec<Expr>, Vec<Expr>) =
            conditions.into_iter().partition(is_volatile);
        let mut plain = Vec::with_capacity(conditions.len());
        for condition in conditions {
            let condition = self.resolve(condition)?;
            plain.push(self.value(&condition, SqlType::Bool));
        }
        if let Some(predicate) = all_of(plain)? {
            let plan = std::mem::take(&mut self.plan);
            self.plan = LogicalPlanBuilder::from(plan).filter(predicate)?.build()?;
        }
        for chance in chances {
            let condition = self.value(&chance, SqlType::Bool);
            self.plan = Chance::plan(std::mem::take(&mut self.plan), condition);
        }
        for condition in asked {
            let is_chance = is_volatile(&condition);
            let predicate = match self.join_like(&condition)? {
                Some(predicate) => predicate,
                None => {
                    let condition = self.resolve(condition)?;
                    self.value(&condition, SqlType::Bool)
                }
            };
            let plan = std::mem::take(&mut self.plan);
            self.plan = match is_chance {
                true => Chance::plan(plan, predicate),
                false => LogicalPlanBuilder::from(plan).filter(predicate)?.build()?,
            };
            // Later expressions do not refer to the answers of the condition's subqueries.
            self.columns.truncate(width);
        }
        Ok(())
    }

    /// Turns a condition on a subquery into a join if possible, and returns the remaining
    /// condition.
    fn join_like(&mut self, condition: &Expr) -> Result<Option<Logical>> {
        let (subquery, negated) = match condition {
            Expr::Subquery(subquery) => (subquery, false),
            Expr::Unary(Unary::Not, inner) => match &**inner {
                Expr::Subquery(subquery) => (subquery, true),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        if subquery.parts().any(Expr::holds_subquery) {
            return Ok(None);
        }
        let is_correlated = !subquery.refs.is_empty();
        let none = &[][..];
        let operands = match &subquery.kind {
            SubqueryKind::Exists if is_correlated => none,
            SubqueryKind::Quantified { op: Comparison::Equal, is_all: false, operands } => operands,
            _ => return Ok(None),
        };
        let kind = match (negated, operands) {
            (true, []) => JoinType::LeftAnti,
            (false, _) => JoinType::LeftSemi,
            // NOT IN is unknown if a value is NULL, which an anti join cannot express.
            (true, _) => return Ok(None),
        };
        let (query, conditions) = match (&subquery.shape, is_correlated) {
            (Shape::Rows(split), true) => (&split.query, &split.conditions[..]),
            (_, false) => (&*subquery.query, none_of()),
            _ => return Ok(None),
        };
        self.semi_join(query, conditions, subquery, operands, kind)?;
        Ok(Some(lit(true)))
    }

    /// Retains the rows for which the query has a matching row (semi join), or has none (anti
    /// join).
    fn semi_join(
        &mut self,
        query: &Query,
        conditions: &[Expr],
        subquery: &Subquery,
        operands: &[Typed],
        kind: JoinType,
    ) -> Result<()> {
        let relation = next(self.numbers);
        let right = query.as_relation(relation)?;
        let width = self.columns.len();
        let theirs = query.types.iter().enumerate().map(|(at, base)| (named(relation, at), *base));
        self.columns.extend(theirs);
        let mut on = Vec::with_capacity(conditions.len() + operands.len());
        for (at, (operand, base)) in operands.iter().enumerate() {
            let left = comparable(self.value(operand, *base), *base);
            on.push(left.eq(comparable(named(relation, at), *base)));
        }
        for condition in conditions {
            let placed = condition.clone().rewrite::<()>(&mut |part| {
                Ok(match part {
                    Expr::Column(at) => Some(Expr::Column(width + at)),
                    Expr::Outer(id, _) => {
                        let found = subquery.refs.iter().find(|(known, ..)| known == id);
                        found.map(|(.., expr)| expr.clone())
                    }
                    _ => None,
                })
            });
            on.push(self.value(&placed.expect("nothing fails"), SqlType::Bool));
        }
        self.columns.truncate(width);
        let own = std::mem::take(&mut self.plan);
        self.plan = LogicalPlanBuilder::from(own).join_on(right, kind, on)?.build()?;
        Ok(())
    }

    /// Replaces the subqueries in an expression by columns.
    pub(super) fn resolve(&mut self, expr: Expr) -> Result<Expr> {
        if !expr.holds_subquery() {
            return Ok(expr);
        }
        expr.rewrite(&mut |part| match part {
            Expr::Subquery(subquery) => self.column_of(subquery.as_ref().clone()).map(Some),
            _ => Ok(None),
        })
    }

    fn column_of(&mut self, mut subquery: Subquery) -> Result<Expr> {
        for part in subquery.parts_mut() {
            *part = self.resolve(part.clone())?;
        }
        let base = subquery.base;
        if let (SubqueryKind::Scalar, Shape::Aggregate(keyed)) = (&subquery.kind, &subquery.shape)
            && !subquery.refs.is_empty()
        {
            return self.joined(keyed, &subquery.refs);
        }
        if let Some(value) = settled_first(&subquery) {
            self.columns.push((value, base));
            return Ok(Expr::Column(self.columns.len() - 1));
        }
        let named = subquery.refs.iter();
        let refs = named.map(|(id, base, expr)| (id.name(), self.value(expr, *base))).collect();
        let operands = match &subquery.kind {
            SubqueryKind::Quantified { operands, .. } => &operands[..],
            _ => &[],
        };
        let operands = operands.iter().map(|(expr, base)| self.value(expr, *base)).collect();
        let id = ColumnId { relation: next(self.numbers), column: 0 };
        let added = columns_of(&[base], id.relation)?;
        let query = Arc::unwrap_or_clone(subquery.query);
        let answer = answer(&subquery.kind, &query.types);
        let plan = std::mem::take(&mut self.plan);
        self.plan = Apply::plan(plan, query.plan, refs, operands, (answer, added))?;
        self.columns.push((Logical::Column(id.name()), base));
        Ok(Expr::Column(self.columns.len() - 1))
    }

    /// Returns the column of an aggregate that is computed for all rows at once and joined to them.
    fn joined(&mut self, keyed: &Keyed, refs: &[(ColumnId, SqlType, Expr)]) -> Result<Expr> {
        let relation = next(self.numbers);
        let query = keyed.query.as_relation(relation)?;
        let equal = keyed.outer.iter().enumerate().map(|(at, (expr, base))| {
            let placed = expr.clone().rewrite::<()>(&mut |part| {
                let Expr::Outer(id, _) = part else { return Ok(None) };
                let named = refs.iter().find(|(known, ..)| known == id);
                Ok(named.map(|(.., expr)| expr.clone()))
            });
            let value = self.value(&placed.expect("nothing fails"), *base);
            comparable(value, *base).eq(comparable(named(relation, at + 1), *base))
        });
        let equal: Vec<Logical> = equal.collect();
        let plan = std::mem::take(&mut self.plan);
        let joined = LogicalPlanBuilder::from(plan).join_on(query, JoinType::Left, equal)?;
        self.plan = joined.build()?;
        let base = keyed.query.types[0];
        self.columns.push((named(relation, 0), base));
        let column = Expr::Column(self.columns.len() - 1);
        let zero = Expr::Const(Datum::Int(0));
        Ok(if keyed.is_count { Expr::Coalesce(vec![column, zero]) } else { column })
    }

    /// Converts an expression over the rows. It must not contain a subquery.
    pub(super) fn value(&self, expr: &Expr, base: SqlType) -> Logical {
        match expr {
            Expr::Column(at) => self.columns[*at].0.clone(),
            Expr::Outer(id, base) => outer(*id, *base),
            Expr::Const(datum) => Logical::Literal(scalar(base, datum), None),
            Expr::Binary(op @ (Binary::And | Binary::Or), left, right) => {
                let op = if *op == Binary::And { Operator::And } else { Operator::Or };
                let (left, right) = (self.condition(left), self.condition(right));
                binary_expr(left, op, right)
            }
            Expr::Unary(Unary::Not, inner) => not(self.condition(inner)),
            Expr::Unary(Unary::IsNull { is_negated }, inner) => match (&**inner, is_negated) {
                (Expr::Column(_) | Expr::Outer(..), false) => self.value(inner, base).is_null(),
                (Expr::Column(_) | Expr::Outer(..), true) => self.value(inner, base).is_not_null(),
                _ => self.computed(expr, base),
            },
            Expr::Unary(Unary::Cast { from, to, .. }, inner) if keeps_value(*from, to.base) => {
                self.value(inner, *from)
            }
            Expr::Binary(Binary::Compare(op, of), left, right) => {
                let is_join = *op == Comparison::Equal && names(left) && names(right);
                if !is_ordered(*of) && !is_join {
                    return self.computed(expr, base);
                }
                let left = comparable(self.value(left, *of), *of);
                let right = comparable(self.value(right, *of), *of);
                binary_expr(left, operator(*op), right)
            }
            other => self.computed(other, base),
        }
    }

    fn condition(&self, expr: &Expr) -> Logical {
        self.value(expr, SqlType::Bool)
    }

    /// Converts an expression that Pangea's own code evaluates.
    fn computed(&self, expr: &Expr, base: SqlType) -> Logical {
        let mut args: Vec<(Logical, SqlType)> = Vec::new();
        let mut place = |arg: (Logical, SqlType)| {
            let known = args.iter().position(|known| known.0 == arg.0);
            known.unwrap_or_else(|| {
                args.push(arg);
                args.len() - 1
            })
        };
        let placed = expr.clone().rewrite::<()>(&mut |part| {
            Ok(match part {
                Expr::Column(at) => Some(Expr::Column(place(self.columns[*at].clone()))),
                Expr::Outer(id, base) => Some(Expr::Column(place((outer(*id, *base), *base)))),
                _ => None,
            })
        });
        let placed = placed.expect("nothing fails");
        Computed::call(placed, args, base)
    }
}

/// Returns an uncorrelated subquery with a single value: it runs before the outer query.
fn settled_first(subquery: &Subquery) -> Option<Logical> {
    let plan = Arc::new(subquery.query.plan.clone());
    let nested = Nested { subquery: plan, outer_ref_columns: Vec::new(), spans: Spans::new() };
    match subquery.kind {
        _ if !subquery.refs.is_empty() => None,
        SubqueryKind::Exists => Some(Logical::Exists(Exists { subquery: nested, negated: false })),
        SubqueryKind::Scalar => Some(Logical::ScalarSubquery(nested)),
        SubqueryKind::Array(_) | SubqueryKind::Quantified { .. } => None,
    }
}

fn none_of() -> &'static [Expr] {
    &[]
}

/// Whether an expression refers to columns.
fn names(expr: &Expr) -> bool {
    expr.names_own() || expr.names_outer()
}

fn operator(op: Comparison) -> Operator {
    match op {
        Comparison::Equal => Operator::Eq,
        Comparison::NotEqual => Operator::NotEq,
        Comparison::Less => Operator::Lt,
        Comparison::LessOrEqual => Operator::LtEq,
        Comparison::Greater => Operator::Gt,
        Comparison::GreaterOrEqual => Operator::GtEq,
    }
}

/// Whether a cast does not change the Arrow representation of a value.
fn keeps_value(from: SqlType, to: SqlType) -> bool {
    use SqlType::{Int2, Int4, Int8, Text, Varchar};
    matches!((from, to), (Int2, Int4 | Int8) | (Int4, Int8) | (Varchar, Text))
}

/// Returns a column of an outer query.
fn outer(id: ColumnId, base: SqlType) -> Logical {
    let name = id.name();
    let field = Arc::new(Field::new(&name.name, arrow_type(base), true));
    Logical::OuterReferenceColumn(field, name)
}

/// Returns the call of an aggregate over columns of a relation, starting at position `first`.
pub(super) fn aggregated(aggregate: &Aggregate, relation: u32, first: usize) -> Logical {
    let count = aggregate.args.len() + aggregate.order.len();
    let args = (first..first + count).map(|at| named(relation, at)).collect();
    let filter = aggregate.filter.as_ref().map(|_| named(relation, first + count));
    let over_columns = aggregate.over_columns();
    aggregate::call(&over_columns, args, filter, aggregate.result())
}

impl Query {
    /// Returns the query as the relation with this number.
    pub(super) fn as_relation(&self, relation: u32) -> Result<LogicalPlan> {
        let columns = self.plan.schema().columns().into_iter().take(self.types.len());
        projected(self.plan.clone(), columns.map(Logical::Column).collect(), relation)
    }

    /// Returns the query with its columns cast to other types.
    pub(crate) fn with_types(self, types: &[SqlType]) -> std::result::Result<Self, SqlError> {
        if self.types == types {
            return Ok(self);
        }
        let columns = self.plan.schema().columns();
        let cast = |((column, from), to): ((Column, &SqlType), &SqlType)| {
            let value = Logical::Column(column);
            if from == to || keeps_value(*from, *to) {
                return value;
            }
            let op = Unary::Cast { from: *from, to: (*to).into(), is_explicit: false };
            let expr = Expr::Unary(op, Box::new(Expr::Column(0)));
            Computed::call(expr, vec![(value, *from)], *to)
        };
        let exprs: Vec<Logical> =
            columns.clone().into_iter().zip(&self.types).zip(types).map(cast).collect();
        let renamed =
            exprs.into_iter().zip(columns).map(|(expr, Column { relation, name, .. })| {
                match relation {
                    Some(relation) => expr.alias_qualified(Some(relation), name),
                    None => expr.alias(name),
                }
            });
        let plan = LogicalPlanBuilder::from(self.plan).project(renamed);
        let plan = plan.and_then(LogicalPlanBuilder::build).map_err(|error| unwrapped(&error))?;
        Ok(Self { plan, types: types.to_vec() })
    }
}
