//! DataFusion plans in the format of PostgreSQL's EXPLAIN.
//!
//! Names of columns are found bottom-up. A scan uses the names of its table. A step that computes a
//! column names it by its expression. Steps that PostgreSQL does not have (projections, changes of
//! the batch size) are left out. A condition is shown with the step whose rows it filters.

mod text;

use datafusion::common::JoinType;
use datafusion::common::stats::Precision;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, JoinOnRef, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::work_table::WorkTableExec;
use pangea_core::txn::Context;

use super::expression::{Known, Names};
use super::statement::{self, Read, Showing};
use super::{Detail, Node};
use crate::access::Access;
use crate::catalog::sequence;
use crate::data_fusion::Physical;
use crate::error::Failure;
use crate::expr::query::Query;
use crate::relational::{self, Leaf, Scan, actual, joins_rows};
use crate::sequence::Used;
use crate::syntax::explain::Options;
use crate::syntax::quoted;
use crate::types::zone::Zone;

/// Steps that PostgreSQL does not have or does not show.
const PASSED_OVER: &[&str] = &[
    "CoalesceBatchesExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "RepartitionExec",
    "Serial",
    "SortPreservingMergeExec",
];

/// The condition of a scan that a join restricts at run time.
const MET: &str = "values found by the join above";

impl Showing<'_> {
    /// Returns the plan of a query that DataFusion runs, with its InitPlans.
    pub(super) fn query(&self, query: &Query, cx: &mut dyn Context) -> Result<Node, Failure> {
        let ran = self.profile.map(|profile| profile.plans()).unwrap_or_default();
        let (before, plan) = match ran.split_last() {
            Some((plan, before)) => (before.to_vec(), plan.clone()),
            None => relational::physical(query, self.env, cx)?,
        };
        let all = before.iter().chain([&plan]);
        let has_prefix = all.map(scans).sum::<usize>() > 1;
        let shower = |known: Known| Shower {
            options: self.options,
            labels: &self.planned.labels,
            sequences: &self.planned.sequences,
            zone: &self.env.zone,
            has_prefix,
            known,
            statistics: StatisticsContext::new(),
        };
        let mut showing = shower(Known::new());
        let mut node = showing.node(&plan);
        if self.options.is_verbose {
            let output = self.output(&plan, &showing.known);
            node.details.insert(0, ("Output", Detail::List(output)));
        }
        for (at, plan) in before.iter().enumerate() {
            let child = shower(Known::new()).node(plan);
            let role = match self.profile {
                Some(_) => format!("InitPlan {}", at + 1),
                None => format!("InitPlan {} (returns ${at})", at + 1),
            };
            let child = Node { role: Some(role), relationship: Some("InitPlan"), ..child };
            node.children.insert(at, child);
        }
        Ok(node)
    }

    fn output(&self, plan: &Physical, known: &Known) -> Vec<String> {
        let schema = plan.schema();
        let shown =
            |name: &String| known.get(name).map_or(name.clone(), |(shown, _)| shown.clone());
        schema.fields().iter().map(|field| shown(field.name())).collect()
    }
}

/// The context in which a plan is displayed.
struct Shower<'a> {
    options: Options,
    /// The displayed names of relations, by number.
    labels: &'a [(u32, String)],
    sequences: &'a [Used],
    zone: &'a Zone,
    /// Whether columns are qualified, because the plan reads several relations.
    has_prefix: bool,
    known: Known,
    statistics: StatisticsContext,
}

impl Shower<'_> {
    /// Returns the node of a step, with the steps below it.
    #[recursive::recursive]
    fn node(&mut self, plan: &Physical) -> Node {
        let passed = PASSED_OVER.contains(&plan.name());
        if passed && let [input] = plan.children()[..] {
            return self.node(input);
        }
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            return self.projection(projection);
        }
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            return self.filter(plan, filter);
        }
        let node = self.known_step(plan);
        let mut node = node.unwrap_or_else(|| self.other_step(plan));
        node.rows = node.rows.or_else(|| self.estimate(plan));
        node.actual = node.actual.or_else(|| actual(plan));
        node
    }

    fn known_step(&mut self, plan: &Physical) -> Option<Node> {
        if let Some(scan) = plan.downcast_ref::<Scan>() {
            return Some(self.scan(plan, scan));
        }
        if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            return Some(self.hash_join(join));
        }
        if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
            let (outer, inner) = (self.node(join.left()), self.node(join.right()));
            let kind = joined("Nested Loop", *join.join_type(), false);
            let mut node = Node::new(&kind);
            if let Some(filter) = join.filter() {
                node.note_text("Join Filter", self.text(filter.expression()));
            }
            return Some(node.with_child("Outer", outer).with_child("Inner", inner));
        }
        if let Some(join) = plan.downcast_ref::<CrossJoinExec>() {
            let (outer, inner) = (self.node(join.left()), self.node(join.right()));
            let node = Node::new("Nested Loop");
            return Some(node.with_child("Outer", outer).with_child("Inner", inner));
        }
        if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
            let (outer, inner) = (self.node(join.left()), self.node(join.right()));
            let mut node = Node::new(&joined("Merge", join.join_type(), false));
            node.note_text("Merge Cond", self.conditions(join.on(), false));
            if let Some(filter) = join.filter() {
                node.note_text("Join Filter", self.text(filter.expression()));
            }
            return Some(node.with_child("Outer", outer).with_child("Inner", inner));
        }
        if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
            return Some(self.aggregate(aggregate));
        }
        self.ordered_step(plan)
    }

    /// Returns the node of a step that sorts, limits or numbers rows.
    fn ordered_step(&mut self, plan: &Physical) -> Option<Node> {
        if let Some(sort) = plan.downcast_ref::<SortExec>() {
            let child = self.node(sort.input());
            let mut node = Node::over("Sort", child);
            node.note("Sort Key", Detail::List(self.sort_keys(sort.expr())));
            let Some(fetch) = sort.fetch() else { return Some(node) };
            // As in PostgreSQL, Limit is a separate step above Sort.
            node.actual = actual(plan);
            if node.actual.is_some() {
                node.note_text("Sort Method", "top-N heapsort".to_owned());
            }
            let rows = node.rows.map(|rows| rows.min(fetch as u64));
            return Some(Node { rows, ..Node::over("Limit", node) });
        }
        if let Some(sort) = plan.downcast_ref::<PartialSortExec>() {
            let mut node = Node::over("Incremental Sort", self.node(sort.input()));
            let keys = self.sort_keys(sort.expr());
            let presorted = keys[..sort.common_prefix_length().min(keys.len())].to_vec();
            node.note("Sort Key", Detail::List(keys));
            node.note("Presorted Key", Detail::List(presorted));
            return Some(node);
        }
        let is_limit = plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>();
        if is_limit && let [input] = plan.children()[..] {
            let child = self.node(input);
            // A limit over a limit is not shown twice. The limit over a total aggregate is not
            // shown either: it only keeps conditions above the aggregate (`by_set` in
            // `grouping.rs`).
            let skips = plan.downcast_ref::<GlobalLimitExec>().is_some_and(|it| it.skip() > 0);
            let is_one = child.kind == "Aggregate" && !skips;
            if is_one || child.kind == "Limit" && plan.is::<LocalLimitExec>() {
                return Some(child);
            }
            return Some(Node { rows: self.estimate(plan), ..Node::over("Limit", child) });
        }
        let windows = plan.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr);
        let bounded = plan.downcast_ref::<BoundedWindowAggExec>();
        if let Some(windows) = windows.or_else(|| bounded.map(BoundedWindowAggExec::window_expr)) {
            let input = plan.children()[0];
            let node = Node::over("WindowAgg", self.node(input));
            for window in windows {
                let shown = format!("{} OVER (?)", self.window(window.as_ref()));
                self.known.insert(window.name().to_owned(), (shown, None));
            }
            return Some(node);
        }
        if plan.is::<UnionExec>() || plan.is::<InterleaveExec>() {
            let mut node = Node::new("Append");
            for (at, input) in plan.children().into_iter().enumerate() {
                let child = self.node(input);
                if at == 0 {
                    self.rename(plan, input);
                }
                node = node.with_child("Member", child);
            }
            return Some(node);
        }
        None
    }

    /// Returns the node of a step without input, or of a repeated step.
    fn other_step(&mut self, plan: &Physical) -> Node {
        if plan.is::<PlaceholderRowExec>() {
            return Node { rows: Some(1), ..Node::new("Result") };
        }
        if plan.is::<EmptyExec>() {
            let mut node = Node { rows: Some(0), ..Node::new("Result") };
            node.note_text("One-Time Filter", "false".to_owned());
            return node;
        }
        if let Some(recursive) = plan.downcast_ref::<RecursiveQueryExec>() {
            let first = self.node(recursive.static_term());
            self.rename(plan, recursive.static_term());
            let again = self.node(recursive.recursive_term());
            let node = Node::new("Recursive Union");
            return node.with_child("Outer", first).with_child("Inner", again);
        }
        if let Some(table) = plan.downcast_ref::<WorkTableExec>() {
            return self.work_table(plan, table.name());
        }
        if plan.name() == "Apply" {
            return self.applied(plan);
        }
        let kind = match plan.name() {
            "Function Scan" => "ProjectSet",
            name => name.strip_suffix("Exec").unwrap_or(name),
        };
        let mut node = Node::new(kind);
        for (at, input) in plan.children().into_iter().enumerate() {
            let child = self.node(input);
            node = node.with_child(if at == 0 { "Outer" } else { "Inner" }, child);
        }
        node
    }

    /// Returns the name of a relation defined in WITH, and those of its columns.
    fn labelled(&self, number: Option<u32>) -> Option<(String, Vec<String>)> {
        let (_, label) = self.labels.iter().find(|(of, _)| Some(*of) == number)?;
        let mut names = label.split('\0').map(str::to_owned);
        Some((names.next().unwrap_or_default(), names.collect()))
    }

    /// The work table of a recursive query.
    fn work_table(&mut self, plan: &Physical, work: &str) -> Node {
        let number = work.strip_prefix("work").and_then(|number| number.parse::<u32>().ok());
        let labelled = self.labelled(number);
        let (name, columns) = labelled.unwrap_or_else(|| (work.to_owned(), Vec::new()));
        for (field, column) in plan.schema().fields().iter().zip(columns) {
            self.known.insert(field.name().clone(), (column, None));
        }
        let mut node = Node::new("WorkTable Scan");
        node.title = format!("WorkTable Scan on {name}");
        node.facts.push(("CTE Name", Detail::Text(name)));
        node
    }

    /// Rows for each of which a query runs.
    fn applied(&mut self, plan: &Physical) -> Node {
        let input = plan.children()[0];
        let child = self.node(input);
        let (own, others) = (plan.schema(), input.schema());
        let added = own.fields().iter().filter(|it| others.field_with_name(it.name()).is_err());
        for field in added {
            self.known.insert(field.name().clone(), ("(SubPlan)".to_owned(), None));
        }
        let once = "run once for each combination of the values that it uses";
        let mut node = match joins_rows(plan) {
            true => Node::over("Nested Loop", child),
            // The answer is an additional column of the same rows.
            false => Node { actual: actual(plan), ..child },
        };
        node.note_text("SubPlan", once.to_owned());
        node
    }

    fn projection(&mut self, projection: &ProjectionExec) -> Node {
        let node = self.node(projection.input());
        for made in projection.expr() {
            let base = self.type_of(&made.expr);
            let shown = self.text(&made.expr);
            self.known.insert(made.alias.clone(), (shown, base));
        }
        node
    }

    /// A condition on the rows of the step below it.
    fn filter(&mut self, plan: &Physical, filter: &FilterExec) -> Node {
        let mut node = self.node(filter.input());
        let shown = self.text(filter.predicate());
        let takes_filter = ["Scan", "Join", "Loop", "Aggregate", "Append", "Result", "Set"];
        let has_filter = node.details.iter().any(|(name, _)| *name == "Filter");
        if has_filter || !takes_filter.iter().any(|kind| node.kind.ends_with(kind)) {
            node = Node::over("Result", node);
        }
        let removed = match (node.actual.or_else(|| actual(filter.input())), actual(plan)) {
            (Some(before), Some(after)) => {
                node.actual = Some(after);
                Some(before.rows.saturating_sub(after.rows))
            }
            _ => None,
        };
        node.rows = self.estimate(plan);
        node.note_text("Filter", shown);
        node.note_removed("Rows Removed by Filter", removed);
        node
    }

    fn scan(&mut self, plan: &Physical, scan: &Scan) -> Node {
        let number = scan.number();
        let label = self.labels.iter().find(|(of, _)| Some(*of) == number);
        let label = label.map(|(_, label)| label.clone());
        let (schema, name, columns): (&str, String, Vec<String>) = match scan.leaf() {
            Leaf::Table(paths) => {
                let columns = paths.table.columns.iter().map(|column| column.name.clone());
                let name = &paths.table.name;
                (name.schema(), name.name().to_owned(), columns.collect())
            }
            Leaf::System(table) => {
                let columns = table.all_columns().map(|(name, _)| name).collect();
                (table.schema, table.name.clone(), columns)
            }
            Leaf::Sequence(name, _) => {
                let columns = sequence::COLUMNS.map(|(name, _)| name.to_owned());
                ("public", name.clone(), columns.to_vec())
            }
            Leaf::Given(_) => {
                let (name, columns) = self.labelled(number).unwrap_or_default();
                ("", name, columns)
            }
            Leaf::Rows(_) => {
                let columns = (1..=scan.types().len()).map(|at| format!("column{at}"));
                ("", "*VALUES*".to_owned(), columns.collect())
            }
        };
        let alias = label.filter(|_| !schema.is_empty()).unwrap_or_else(|| name.clone());
        let shown = |has_prefix: bool| -> Vec<String> {
            let prefix = has_prefix.then_some(alias.as_str());
            columns.iter().map(|column| statement::column(prefix, column)).collect()
        };
        let above = shown(self.has_prefix || self.options.is_verbose);
        for (at, field) in scan.all_columns().iter().enumerate() {
            let shown = above.get(at).cloned().unwrap_or_else(|| "ctid".to_owned());
            self.known.insert(field.clone(), (shown, scan.types().get(at).copied()));
        }
        // As in PostgreSQL, columns within a scan are not qualified, because a scan reads one
        // relation.
        let names = self.names(shown(self.options.is_verbose));
        let read = Read { schema, name: &name, alias: &alias, is_verbose: self.options.is_verbose };
        let filter = scan.filter();
        let mut node = match scan.leaf() {
            Leaf::Table(paths) => {
                let access = Access::new(paths, filter);
                statement::access(&access, filter, &names, &read, false)
            }
            Leaf::Rows(_) => statement::whole(("Values Scan", &read), filter, &names),
            Leaf::Given(_) => statement::whole(("CTE Scan", &read), filter, &names),
            Leaf::System(_) | Leaf::Sequence(..) => {
                statement::whole(("Seq Scan", &read), filter, &names)
            }
        };
        if let Some(index) = scan.led_by() {
            node.kind = "Index Scan".to_owned();
            let shown = node.title.split_once(" on ").map_or("", |(_, on)| on);
            node.title = format!("Index Scan using {} on {shown}", quoted(index));
            node.details.insert(0, ("Index Cond", Detail::Text(MET.to_owned())));
        } else if scan.may_be_led() && actual(plan).is_none() {
            node.note_text("Runtime Filter", MET.to_owned());
        }
        node.rows = self.estimate(plan);
        node
    }

    fn hash_join(&mut self, join: &HashJoinExec) -> Node {
        // DataFusion builds the hash table from the left side, PostgreSQL from the inner side.
        let inner = self.node(join.left());
        let outer = self.node(join.right());
        let mut node = Node::new(&joined("Hash", *join.join_type(), true));
        node.note_text("Hash Cond", self.conditions(join.on(), true));
        if let Some(filter) = join.filter() {
            node.note_text("Join Filter", self.text(filter.expression()));
        }
        let actual = inner.actual;
        let hash = Node { actual, ..Node::over("Hash", inner) };
        node.with_child("Outer", outer).with_child("Inner", hash)
    }

    /// Displays the equality conditions of a join.
    fn conditions(&mut self, on: JoinOnRef<'_>, is_swapped: bool) -> String {
        let shown: Vec<String> = on
            .iter()
            .map(|(left, right)| {
                let (left, right) = if is_swapped { (right, left) } else { (left, right) };
                format!("({} = {})", self.text(left), self.text(right))
            })
            .collect();
        if shown.len() == 1 { shown[0].clone() } else { format!("({})", shown.join(" AND ")) }
    }

    fn aggregate(&mut self, aggregate: &AggregateExec) -> Node {
        let child = self.node(aggregate.input());
        let groups = aggregate.group_expr();
        let keys: Vec<String> = groups.expr().iter().map(|(expr, _)| self.text(expr)).collect();
        for ((expr, alias), shown) in groups.expr().iter().zip(&keys) {
            let base = self.type_of(expr);
            self.known.insert(alias.clone(), (shown.clone(), base));
        }
        for (function, filter) in aggregate.aggr_expr().iter().zip(aggregate.filter_expr()) {
            let shown = self.called(function, filter.as_ref());
            self.known.insert(function.name().to_owned(), (shown, None));
        }
        let kind = if keys.is_empty() { "Aggregate" } else { "HashAggregate" };
        let mut node = Node { rows: None, ..Node::over(kind, child) };
        if groups.has_grouping_set() {
            for set in groups.groups() {
                let of_set = keys.iter().zip(set).filter(|(_, is_out)| !**is_out);
                let of_set: Vec<String> = of_set.map(|(key, _)| key.clone()).collect();
                let shown = if of_set.is_empty() { vec!["()".to_owned()] } else { of_set };
                node.note("Group Key", Detail::List(shown));
            }
        } else if !keys.is_empty() {
            node.note("Group Key", Detail::List(keys));
        }
        node
    }

    /// Returns the estimated number of rows of a step.
    fn estimate(&self, plan: &Physical) -> Option<u64> {
        let computed = self.statistics.compute(plan.as_ref(), &StatisticsArgs::new());
        match computed.ok()?.num_rows {
            Precision::Exact(rows) | Precision::Inexact(rows) => Some(rows as u64),
            Precision::Absent => None,
        }
    }

    /// Names the columns of a step like those of its input.
    fn rename(&mut self, plan: &Physical, input: &Physical) {
        let (own, others) = (plan.schema(), input.schema());
        for (own, other) in own.fields().iter().zip(others.fields()) {
            if let Some(known) = self.known.get(other.name()).cloned() {
                self.known.insert(own.name().clone(), known);
            }
        }
    }

    pub(super) fn names(&self, columns: Vec<String>) -> Names<'_> {
        Names { columns, sequences: self.sequences, outer: &self.known, zone: self.zone }
    }
}

/// Returns the number of relations that a plan reads.
fn scans(plan: &Physical) -> usize {
    let own = usize::from(plan.is::<Scan>());
    own + plan.children().into_iter().map(scans).sum::<usize>()
}

/// Returns PostgreSQL's name of a join. `is_swapped`: the sides are exchanged.
fn joined(kind: &str, join: JoinType, is_swapped: bool) -> String {
    let (side, shown) = match join {
        JoinType::Inner => ("", ""),
        JoinType::Full => ("", " Full"),
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
            (if is_swapped { " Right" } else { "" }, of_side(join))
        }
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            (if is_swapped { "" } else { " Right" }, of_side(join))
        }
    };
    // A join that preserves the rows of one side is named only after that side.
    let is_outer = matches!(join, JoinType::Left | JoinType::Right);
    let shown = match (is_outer, side) {
        (true, "") => " Left",
        (true, _) => "",
        (false, _) => shown,
    };
    match (kind, join) {
        ("Nested Loop", JoinType::Inner) => kind.to_owned(),
        _ => format!("{kind}{side}{shown} Join"),
    }
}

fn of_side(join: JoinType) -> &'static str {
    match join {
        JoinType::LeftSemi | JoinType::RightSemi => " Semi",
        JoinType::LeftAnti | JoinType::RightAnti => " Anti",
        JoinType::LeftMark | JoinType::RightMark => " Mark",
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => "",
    }
}
