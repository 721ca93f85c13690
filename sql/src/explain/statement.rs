//! The plan of a statement in PostgreSQL's terms.

use pangea_core::ids::TableId;
use pangea_core::key::Direction;
use pangea_core::txn::Context;
use sqlparser::ast;

use super::expression::{Known, Names};
use super::{Detail, Node};
use crate::access::Access;
use crate::catalog::QualifiedName;
use crate::error::{Failure, SqlError};
use crate::expr::{Env, Expr};
use crate::plan::{Insert, OnConflict, Plan, Planned, Select, Source};
use crate::profile::{Actual, Profile, Step};
use crate::syntax::explain::Options;
use crate::syntax::{self, Parsed, quoted};
use crate::types::datum::Datum;
use crate::vocabulary::column::SortKey;

/// A scanned table, as a plan names it.
pub(crate) struct Read<'a> {
    pub schema: &'a str,
    pub name: &'a str,
    pub alias: &'a str,
    pub is_verbose: bool,
}

impl Read<'_> {
    fn shown(&self) -> String {
        let name = if self.name.starts_with('*') {
            format!("\"{}\"", self.name)
        } else {
            quoted(self.name)
        };
        let schema = if self.is_verbose && !self.schema.is_empty() {
            format!("{}.", self.schema)
        } else {
            String::new()
        };
        match self.alias == self.name {
            true => schema + &name,
            false => format!("{schema}{name} {}", quoted(self.alias)),
        }
    }

    fn facts(&self, node: &mut Node) {
        let text = |text: &str| Detail::Text(text.to_owned());
        if !self.name.starts_with('*') {
            node.facts.push(("Relation Name", text(self.name)));
        }
        if self.is_verbose && !self.schema.is_empty() {
            node.facts.push(("Schema", text(self.schema)));
        }
        node.facts.push(("Alias", text(self.alias)));
    }
}

/// Formats a column, qualified if there are several relations.
pub(crate) fn column(relation: Option<&str>, name: &str) -> String {
    match relation {
        Some("*VALUES*") => format!("\"*VALUES*\".{}", quoted(name)),
        Some(relation) => format!("{}.{}", quoted(relation), quoted(name)),
        None => quoted(name),
    }
}

/// Formats the conjunction of conditions.
fn all_of(conditions: &[&Expr], names: &Names<'_>) -> String {
    let shown: Vec<String> = conditions.iter().map(|it| names.shown(it, None)).collect();
    if shown.len() == 1 { shown[0].clone() } else { format!("({})", shown.join(" AND ")) }
}

/// Returns the node for a scan of a whole relation.
pub(crate) fn whole(
    (kind, read): (&str, &Read<'_>),
    filter: Option<&Expr>,
    names: &Names<'_>,
) -> Node {
    let mut node = Node::new(kind);
    node.title = format!("{kind} on {}", read.shown());
    read.facts(&mut node);
    if let Some(filter) = filter {
        node.note_text("Filter", all_of(&filter.conjuncts(), names));
    }
    node
}

/// Returns the node for an access to a table. `is_ordered` means that the order of the rows
/// matters.
pub(crate) fn access(
    access: &Access,
    filter: Option<&Expr>,
    names: &Names<'_>,
    read: &Read<'_>,
    is_ordered: bool,
) -> Node {
    let has_key = !access.path.parts.is_empty();
    let is_backward = access.direction == Direction::Reverse;
    if access.is_whole_table() && !is_backward && !(is_ordered && has_key) {
        return whole(("Seq Scan", read), filter, names);
    }
    let (narrowing, rest) = access.split(filter);
    let mut node = Node::new("Index Scan");
    let backward = if is_backward { " Backward" } else { "" };
    let index = quoted(&access.path.name);
    node.title = format!("Index Scan{backward} using {index} on {}", read.shown());
    let direction = if is_backward { "Backward" } else { "Forward" };
    node.facts.push(("Scan Direction", Detail::Text(direction.to_owned())));
    node.facts.push(("Index Name", Detail::Text(access.path.name.clone())));
    read.facts(&mut node);
    if !narrowing.is_empty() {
        node.note_text("Index Cond", all_of(&narrowing, names));
    }
    if !rest.is_empty() {
        node.note_text("Filter", all_of(&rest, names));
    }
    node
}

/// The context in which a plan is shown.
pub(super) struct Showing<'a> {
    pub planned: &'a Planned,
    pub options: Options,
    pub env: &'a Env,
    pub profile: Option<&'a Profile>,
    known: Known,
    /// Alias of the table, for a query of one table.
    alias: Option<String>,
    /// Whether the query has an ORDER BY that its plan may satisfy without sorting.
    is_ordered: bool,
}

/// Returns the plan of a statement. `profile` contains the measurements if it was run.
///
/// # Errors
/// Fails for statements without a plan, and if DataFusion can't plan a query.
pub(crate) fn tree(
    (parsed, planned): (&Parsed, &Planned),
    options: Options,
    profile: Option<&Profile>,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Node, Failure> {
    let plan = &planned.plan;
    let is_several = matches!(plan, Plan::Steps(_));
    let (alias, is_ordered) = shape_of(&parsed.ast);
    let (known, alias) = (Known::new(), alias.filter(|_| !is_several));
    // The profile measures one step. With several steps it is unknown which one.
    let profile = profile.filter(|_| !is_several && !plan.asks());
    Showing { planned, options, env, profile, known, alias, is_ordered }.plan(plan, cx)
}

/// Returns the alias of a statement's only table, and whether the statement has an ORDER BY.
fn shape_of(statement: &ast::Statement) -> (Option<String>, bool) {
    let of_factor = |factor: &ast::TableFactor| match factor {
        ast::TableFactor::Table { alias: Some(alias), .. } => Some(syntax::name(&alias.name)),
        _ => None,
    };
    let of_query = |query: &ast::Query| {
        let alias = match &*query.body {
            ast::SetExpr::Select(select) => {
                select.from.first().and_then(|from| of_factor(&from.relation))
            }
            _ => None,
        };
        (alias, query.order_by.is_some())
    };
    match statement {
        ast::Statement::Query(query) => of_query(query),
        ast::Statement::Insert(insert) => {
            insert.source.as_deref().map(of_query).unwrap_or_default()
        }
        ast::Statement::Update(update) => (of_factor(&update.table.relation), false),
        ast::Statement::Delete(delete) => {
            let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) =
                &delete.from;
            (from.first().and_then(|from| of_factor(&from.relation)), false)
        }
        _ => (None, false),
    }
}

/// Returns the measurements of a step that begins after its child has ended.
fn after(below: Option<Actual>, own: Option<Actual>) -> Option<Actual> {
    let (below, own) = (below.unwrap_or_default(), own?);
    let total_ms = below.total_ms + own.total_ms;
    Some(Actual { startup_ms: total_ms, total_ms, ..own })
}

impl Showing<'_> {
    fn plan(&self, plan: &Plan, cx: &mut dyn Context) -> Result<Node, Failure> {
        match plan {
            Plan::Select(select) => self.select(select, cx),
            Plan::Insert(insert) => self.insert(insert, cx),
            Plan::Update(update) => {
                let node = self.written("Update", &update.access.table.name);
                let child = match &update.joined {
                    Some(joined) => self.select(&joined.rows, cx)?,
                    None => self.read(&update.access, update.filter.as_ref(), false, cx),
                };
                Ok(node.with_child("Outer", child))
            }
            Plan::Delete(delete) => {
                let node = self.written("Delete", &delete.access.table.name);
                let child = match &delete.joined {
                    Some(joined) => self.select(&joined.rows, cx)?,
                    None => self.read(&delete.access, delete.filter.as_ref(), false, cx),
                };
                Ok(node.with_child("Outer", child))
            }
            Plan::Steps(steps) => {
                let mut node = self.plan(&steps.last, cx)?;
                for (at, step) in steps.writes.iter().enumerate() {
                    let (role, relationship) = (Some(format!("CTE {}", step.name)), "InitPlan");
                    let child = self.plan(&step.plan, cx)?;
                    let child = Node { role, relationship: Some(relationship), ..child };
                    node.children.insert(at, child);
                }
                Ok(node)
            }
            other => Err(SqlError::unsupported(format!("EXPLAIN {}", other.command())).into()),
        }
    }

    fn names(&self, columns: Vec<String>) -> Names<'_> {
        let (sequences, outer) = (&self.planned.sequences[..], &self.known);
        Names { columns, sequences, outer, zone: &self.env.zone }
    }

    /// Returns the measurements of a step. A step that was not reached is shown as never executed.
    fn actual(&self, step: Step) -> Option<Actual> {
        self.profile.map(|profile| profile.actual(step).unwrap_or_default())
    }

    /// Returns the node that writes rows of a table.
    fn written(&self, operation: &str, of: &QualifiedName) -> Node {
        let (schema, table) = (of.schema(), of.name());
        let alias = self.alias.as_deref().filter(|_| operation != "Insert").unwrap_or(table);
        let is_verbose = self.options.is_verbose;
        let read = Read { schema, name: table, alias, is_verbose };
        let mut node = Node::new("ModifyTable");
        node.title = format!("{operation} on {}", read.shown());
        node.facts.push(("Operation", Detail::Text(operation.to_owned())));
        read.facts(&mut node);
        node.rows = Some(0);
        node.actual = self.actual(Step::Modify);
        node
    }

    fn insert(&self, insert: &Insert, cx: &mut dyn Context) -> Result<Node, Failure> {
        let own = insert.targets.own();
        let mut node = self.written("Insert", &own.table.name);
        let arbiters = |node: &mut Node, path: usize| {
            let name = own.paths[path].name.clone();
            node.note("Conflict Arbiter Indexes", Detail::List(vec![name]));
        };
        match &insert.on_conflict {
            OnConflict::Fail => {}
            OnConflict::Skip { path } => {
                node.note_text("Conflict Resolution", "NOTHING".to_owned());
                path.iter().for_each(|path| arbiters(&mut node, *path));
            }
            OnConflict::Update { path, filter, .. } => {
                node.note_text("Conflict Resolution", "UPDATE".to_owned());
                arbiters(&mut node, *path);
                if let Some(filter) = filter {
                    let columns = || own.table.columns.iter().map(|column| &column.name);
                    let old = columns().map(|name| column(Some(own.table.name.name()), name));
                    let new = columns().map(|name| column(Some("excluded"), name));
                    let names = self.names(old.chain(new).collect());
                    node.note_text("Conflict Filter", names.shown(filter, None));
                }
            }
        }
        Ok(node.with_child("Outer", self.select(&insert.source, cx)?))
    }

    /// Returns the node that reads rows of one table.
    fn read(
        &self,
        path: &Access,
        filter: Option<&Expr>,
        is_ordered: bool,
        cx: &mut dyn Context,
    ) -> Node {
        let columns = path.table.columns.iter().map(|it| column(None, &it.name));
        let names = self.names(columns.collect());
        let (schema, name) = (path.table.name.schema(), path.table.name.name());
        let alias = self.alias.as_deref().unwrap_or(name);
        let read = Read { schema, name, alias, is_verbose: self.options.is_verbose };
        let mut node = access(path, filter, &names, &read, is_ordered);
        let size = |table: TableId| cx.estimate(table).map(|rows| rows as u64);
        node.rows =
            size(path.table.id).map(|rows| path.estimate(rows as usize, filter.is_some()) as u64);
        node.actual = self.actual(Step::Scan);
        let has_filter = node.details.iter().any(|(name, _)| *name == "Filter");
        if let (Some(profile), Some(actual)) = (self.profile, node.actual)
            && has_filter
        {
            let removed = profile.visited().saturating_sub(actual.rows);
            node.note_removed("Rows Removed by Filter", Some(removed));
        }
        node
    }

    /// Returns the plan of a query, which this executor or DataFusion runs.
    fn select(&self, select: &Select, cx: &mut dyn Context) -> Result<Node, Failure> {
        let filter = select.filter.as_ref();
        let is_plain = select.grouping.is_none() && !select.is_distinct;
        let (mut node, columns) = match &select.source {
            Source::Query(query) => return self.query(query, cx),
            Source::Nothing => (self.result(filter), Vec::new()),
            Source::Values(rows) => (self.values(select, rows), value_columns(rows)),
            Source::Table(path) => {
                let is_ordered = self.is_ordered && select.sort.is_empty() && is_plain;
                let columns = path.table.columns.iter().map(|it| column(None, &it.name));
                (self.read(path, filter, is_ordered, cx), columns.collect())
            }
        };
        let mut columns = columns;
        if let Some(grouping) = &select.grouping {
            let names = self.names(columns);
            let keys: Vec<String> =
                grouping.keys.iter().map(|(key, base)| names.shown(key, Some(*base))).collect();
            let aggregates = grouping.aggregates.iter().map(|it| names.aggregate(it));
            columns = keys.iter().cloned().chain(aggregates).collect();
            let kind = if keys.is_empty() { "Aggregate" } else { "HashAggregate" };
            node = Node::over(kind, node);
            node.rows = if keys.is_empty() { Some(1) } else { None };
            if !keys.is_empty() {
                node.note("Group Key", Detail::List(keys));
            }
            if let Some(having) = &grouping.having {
                node.note_text("Filter", all_of(&having.conjuncts(), &self.names(columns.clone())));
            }
            node.actual = self.actual(Step::Group);
        }
        let names = self.names(columns);
        let output: Vec<String> = select.output.iter().map(|it| names.shown(it, None)).collect();
        if self.options.is_verbose && !output.is_empty() {
            let shown = output[..select.types.len().min(output.len())].to_vec();
            node.details.insert(0, ("Output", Detail::List(shown)));
        }
        Ok(self.arranged(select, node, &output))
    }

    /// Adds the nodes for DISTINCT, ORDER BY and LIMIT.
    fn arranged(&self, select: &Select, mut node: Node, output: &[String]) -> Node {
        if select.is_distinct {
            let actual = after(node.actual, self.actual(Step::Distinct));
            node = Node { actual, rows: None, ..Node::over("HashAggregate", node) };
            node.note("Group Key", Detail::List(output[..select.types.len()].to_vec()));
        }
        if !select.sort.is_empty() {
            let actual = after(node.actual, self.actual(Step::Sort));
            node = Node { actual, ..Node::over("Sort", node) };
            let keys = select.sort.iter().map(|key| sort_key(key, output));
            node.note("Sort Key", Detail::List(keys.collect()));
        }
        if select.limit.is_some() || select.offset.is_some() {
            let actual = after(node.actual, self.actual(Step::Limit));
            let most = select.limit.as_ref().and_then(|limit| self.count(limit));
            let rows = match (node.rows, most) {
                (Some(rows), Some(most)) => Some(rows.min(most)),
                (rows, most) => most.or(rows),
            };
            // Rows past the limit were not read, so the child's time to its first row is the
            // limit's, too.
            let actual = match (select.sort.is_empty(), node.actual, actual) {
                (true, Some(below), Some(own)) => {
                    Some(Actual { startup_ms: below.startup_ms, ..own })
                }
                (_, _, actual) => actual,
            };
            node = Node { actual, rows, ..Node::over("Limit", node) };
        }
        node
    }

    /// Returns the value of a LIMIT, if known.
    fn count(&self, limit: &Expr) -> Option<u64> {
        match limit.eval(&[], self.env).ok()? {
            Datum::Int(count) => u64::try_from(count).ok(),
            _ => None,
        }
    }

    /// Returns the node for one row without columns.
    fn result(&self, filter: Option<&Expr>) -> Node {
        let mut node = Node { rows: Some(1), ..Node::new("Result") };
        if let Some(filter) = filter {
            let names = self.names(Vec::new());
            node.note_text("One-Time Filter", all_of(&filter.conjuncts(), &names));
        }
        node.actual = self.actual(Step::Scan);
        node
    }

    fn values(&self, select: &Select, rows: &[Vec<Expr>]) -> Node {
        if rows.len() == 1 {
            return self.result(select.filter.as_ref());
        }
        let names = self.names(value_columns(rows));
        let (name, is_verbose) = ("*VALUES*", self.options.is_verbose);
        let read = Read { schema: "", name, alias: name, is_verbose };
        let mut node = whole(("Values Scan", &read), select.filter.as_ref(), &names);
        node.rows = Some(rows.len() as u64);
        node.actual = self.actual(Step::Scan);
        node
    }
}

/// Returns the names of the columns of VALUES.
fn value_columns(rows: &[Vec<Expr>]) -> Vec<String> {
    let width = rows.first().map_or(0, Vec::len);
    (1..=width).map(|at| format!("column{at}")).collect()
}

/// Adds parentheses to a computed sort key, as PostgreSQL does.
pub(crate) fn in_parentheses(shown: &str) -> String {
    let is_computed = shown.contains(['(', ':']) && !shown.starts_with('"');
    if is_computed { format!("({shown})") } else { shown.to_owned() }
}

fn sort_key(key: &SortKey, output: &[String]) -> String {
    let shown = &in_parentheses(&output[key.column]);
    match (key.is_descending, key.is_nulls_first) {
        (false, false) => shown.clone(),
        (true, true) => format!("{shown} DESC"),
        (false, true) => format!("{shown} NULLS FIRST"),
        (true, false) => format!("{shown} DESC NULLS LAST"),
    }
}
