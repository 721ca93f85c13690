//! Planned statements, with names and types resolved: the input of the executors.
//!
//! Planning reads the schemas of tables through the context in which the statement then runs. A
//! schema change in between is therefore detected like any other conflict. A plan stores the
//! records that it read: it is valid as long as they are unchanged.

mod alter;
pub(crate) mod cache;
mod comments;
mod constraints;
mod copy;
mod ddl;
mod ddl_plans;
mod deltas;
mod dml;
mod enums;
mod from;
mod grouping;
mod locks;
mod multi_table_dml;
mod names;
mod output;
mod procedures;
mod query;
mod recorder;
mod renames;
mod resolve;
mod returning;
mod roles;
mod row_assignment;
mod select;
mod sequences;
mod statement_plan;
mod steps;
mod subquery_unnesting;
mod system_views;
mod table_functions;
pub(crate) mod target;
mod utility;
mod views;
mod with;
mod write_target;

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::txn::Context;
use sqlparser::ast;

use crate::access::Access;
use crate::access::path::Paths;
use crate::authorization::Required;
use crate::catalog::role::Privileges;
use crate::catalog::{CATALOG, CheckOption, Enums, QualifiedName, Relation, Table, relation_key};
use crate::copy::Options;
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Binder, Params, Scope};
use crate::expr::query::{Aggregate, Query};
use crate::guarded::Hold;
use crate::relational::Numbers;
use crate::rows::Columns;
use crate::search_path::SearchPath;
use crate::sequence::{SequenceValues, Used};
use crate::syntax::sequences::Said;
use crate::syntax::{self, Altered, Parsed, command_of};
use crate::types::{Reg, SqlType};
use crate::vocabulary::column::{Origin, OutputColumn, SortKey};
use crate::vocabulary::variables::Signature;
pub(crate) use comments::Comment;
pub(crate) use copy::{CopyFrom, CopyTo};
pub(crate) use ddl::check_name;
pub(crate) use ddl_plans::{
    Alter, AlterSequence, Change, Checked, CreateSequence, CreateTable, DropSequences, DropTables,
    DropTypes, DropViews, RenameSequence, ShowTables, Truncate,
};
pub(crate) use dml::{Delete, Insert, OnConflict, Update};
pub(crate) use enums::{AlterType, CreateType, LabelChange, Neighbour};
pub(crate) use multi_table_dml::Joined;
pub(crate) use procedures::{
    Bodies, Call, Calls, CreateProcedure, DropProcedures, OwnProcedure, Seen,
};
use recorder::{Recorder, Records};
pub(crate) use resolve::DropTarget;
pub(crate) use returning::{Asked, Returning};
pub(crate) use statement_plan::Plan;
pub(crate) use steps::Steps;
pub(crate) use system_views::system_view_columns;
use target::Targets;
pub(crate) use utility::{Utility, utilities};
pub(crate) use views::{
    AlterView, CreateView, ViewChange, system_columns, types_of as types_of_view,
};
pub(crate) use write_target::ViewCheck;

/// A statement that is ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub plan: Plan,
    /// The types of `$1`, `$2`, ...
    pub params: Vec<SqlType>,
    /// The columns that it returns; empty for a statement that returns no rows.
    pub columns: Vec<OutputColumn>,
    /// The catalog records that planning read.
    pub schemas: Records,
    /// The privileges that its user needs.
    pub required: Vec<Required>,
    /// The sequences that its expressions refer to by position.
    pub sequences: Vec<Used>,
    /// Whether it may call `setval`.
    pub sets_sequences: bool,
    /// Whether it needs the system catalog when it runs.
    pub reads_catalog: bool,
    /// Whether its rows depend on the catalog. Those of tables about this node do not.
    pub depends_on_catalog: bool,
    /// The schemas in which names were looked up.
    pub path: SearchPath,
    /// Whether it reads facts that only this node has.
    pub reads_node: bool,
    /// Whether it locks the rows that it reads: FOR UPDATE or FOR SHARE.
    pub locks_rows: bool,
    /// The columns that contain numbers of the catalog and are displayed as names.
    pub named: Vec<(usize, Reg)>,
    /// The names of relations that DataFusion reads, by relation number.
    pub labels: Vec<(u32, String)>,
    /// The enums that planning used.
    pub enums: Enums,
}

impl Planned {
    /// Whether it accesses no table but those about this node, so that its result is the same on
    /// any snapshot.
    pub(crate) fn touches_no_table(&self) -> bool {
        let is_query = matches!(self.plan, Plan::Select(_));
        is_query && self.schemas.is_empty() && !self.depends_on_catalog
    }

    /// Whether it may write.
    pub(crate) fn is_write(&self) -> bool {
        self.sets_sequences || self.plan.is_write()
    }

    /// What its reads must have in common with the database when the transaction commits, at every
    /// isolation level.
    pub(crate) fn hold(&self) -> Option<Hold> {
        match &self.plan {
            // An entry of a new index for each row, and no rows of a dropped table.
            Plan::Utility(statement) if statement.is_write() => Some(Hold::Reads),
            _ => self.locks_rows.then_some(Hold::Rows),
        }
    }

    /// Matches the reserved sequence values to this plan's sequences; sequences without reserved
    /// values get none.
    pub(crate) fn drawn(&self, mut drawn: Vec<SequenceValues>) -> Vec<SequenceValues> {
        let mut of = |used: &Used| {
            let found = drawn.iter().position(|drawn| drawn.id == used.sequence.id);
            let (name, id) = (used.name.clone(), used.sequence.id);
            let nothing = SequenceValues { name, id, ..SequenceValues::default() };
            found.map_or(nothing, |at| drawn.swap_remove(at))
        };
        self.sequences.iter().map(&mut of).collect()
    }

    /// Returns the minimum number of values that it draws from the sequence at a position, counting
    /// the rows of VALUES. For COPY, the number for each row.
    pub(crate) fn draws(&self, at: usize) -> u64 {
        if self.sequences[at].is_drawn { self.plan.draws(at).max(1) } else { 0 }
    }
}

/// A query over one table, a list of rows, or a single empty row.
#[derive(Clone, Debug)]
pub(crate) struct Select {
    pub source: Source,
    pub filter: Option<Expr>,
    pub grouping: Option<Grouping>,
    /// The expressions computed for each row or group: the result columns, followed by the sort
    /// columns.
    pub output: Vec<Expr>,
    /// The types of the result columns.
    pub types: Vec<SqlType>,
    pub sort: Vec<SortKey>,
    pub is_distinct: bool,
    pub limit: Option<Expr>,
    pub offset: Option<Expr>,
}

/// The source of rows.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// One row without columns.
    Nothing,
    Table(Access),
    Values(Vec<Vec<Expr>>),
    /// A query over several relations, run by DataFusion.
    Query(Arc<Query>),
}

/// `GROUP BY`: rows become groups, whose columns are the keys followed by the aggregates.
#[derive(Clone, Debug)]
pub(crate) struct Grouping {
    pub keys: Vec<(Expr, SqlType)>,
    pub aggregates: Vec<Aggregate>,
    pub having: Option<Expr>,
}

impl Select {
    /// Sets the columns that the access to its table reads.
    fn note_wanted(&mut self) {
        let Source::Table(access) = &mut self.source else { return };
        let mut read: Vec<&Expr> = self.filter.iter().collect();
        match &self.grouping {
            Some(grouping) => {
                read.extend(grouping.keys.iter().map(|(key, _)| key));
                for aggregate in &grouping.aggregates {
                    let sorted = aggregate.args.iter().chain(&aggregate.order);
                    read.extend(sorted.map(|(expr, _)| expr).chain(&aggregate.filter));
                }
            }
            None => read.extend(&self.output),
        }
        access.wanted = Columns::these(read.into_iter().flat_map(Expr::columns));
    }
}

/// Plans one statement.
pub(crate) struct Planner<'a> {
    cx: Recorder<'a>,
    calls: Calls<'a>,
    source: Arc<str>,
    params: Params,
    /// The scopes of the outer queries, innermost last.
    outer: Vec<Scope>,
    /// The WITH queries in scope.
    named: Vec<with::Named>,
    writes: with::Writes,
    /// The number of relations that have been numbered.
    numbers: Numbers,
    /// Whether the statement contains subqueries.
    has_queries: bool,
    /// Whether a query of the statement is FOR UPDATE or FOR SHARE.
    locks_rows: bool,
    /// The views whose queries are being planned, innermost last.
    within: Vec<views::Within>,
    /// The nesting depth of FROM subqueries.
    depth: usize,
    /// The options of a COPY.
    copy: Option<Arc<Options>>,
    /// The object kind in an ALTER statement.
    altered: Altered,
    /// Clauses about a sequence that the syntax tree does not contain.
    said: Arc<Said>,
    /// The CHECK OPTION of a CREATE VIEW.
    check: Option<CheckOption>,
    /// The schemas in which unqualified names are looked up.
    path: SearchPath,
    /// Required privileges on the schemas that the statement names; checked before all others.
    schemas_used: Vec<Required>,
    required: Vec<Required>,
    /// The names of relations, by relation number.
    labels: Vec<(u32, String)>,
    /// The origins of the columns of relations, by relation number.
    origins: BTreeMap<u32, Vec<Option<Origin>>>,
}

/// Plans a statement of a procedure, whose variables are its parameters.
pub(crate) fn plan_in(
    parsed: &Parsed,
    signature: &Arc<Signature>,
    calls: Calls<'_>,
    cx: &mut dyn Context,
) -> Result<Planned, Failure> {
    let types = signature.types.iter().copied().map(Some).collect();
    let params = Params { types, variables: Some(signature.clone()), ..Params::default() };
    plan(parsed, params, calls, cx)
}

/// Plans a statement with the known properties of its parameters.
pub(crate) fn plan<'a>(
    parsed: &Parsed,
    params: Params,
    calls: Calls<'a>,
    cx: &'a mut dyn Context,
) -> Result<Planned, Failure> {
    let has_queries = query::has_queries(&parsed.ast);
    let seen = calls.seen.map(Seen::procedures);
    enums::with_enums(cx, |planner| {
        if let (Some(all), Some(seen)) = (calls.seen, &seen) {
            all.set_procedures(seen);
        }
        let enums = std::mem::take(&mut planner.params.enums);
        planner.params = Params { enums, ..params.clone() };
        planner.calls = calls;
        planner.source = parsed.source.clone();
        planner.has_queries = has_queries;
        planner.copy = parsed.copy.clone();
        planner.check = parsed.check;
        planner.altered = parsed.altered;
        planner.said = parsed.sequence.clone();
        planner.path = calls.path.cloned().unwrap_or_default();
        planner.whole(parsed)
    })
}

/// Runs a planning function on something other than a statement.
fn plan_of<T>(
    cx: &mut dyn Context,
    plan: impl FnMut(&mut Planner<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    enums::with_enums(cx, plan)
}

/// Converts columns with numbers of the catalog to columns of their names, and returns them.
fn named(columns: &mut [OutputColumn]) -> Vec<(usize, Reg)> {
    let mut found = Vec::new();
    for (at, column) in columns.iter_mut().enumerate() {
        if let SqlType::Reg(kind) = column.ty.base {
            found.push((at, kind));
            column.ty = SqlType::Text.into();
        }
    }
    found
}

impl<'a> Planner<'a> {
    /// Returns a planner in its initial state.
    fn new(cx: Recorder<'a>) -> Self {
        Self {
            cx,
            calls: Calls::default(),
            source: Arc::from(""),
            params: Params::default(),
            outer: Vec::new(),
            named: Vec::new(),
            writes: with::Writes::default(),
            numbers: 0,
            has_queries: true,
            locks_rows: false,
            within: Vec::new(),
            depth: 0,
            copy: None,
            check: None,
            altered: Altered::default(),
            said: Arc::default(),
            path: SearchPath::default(),
            schemas_used: Vec::new(),
            required: Vec::new(),
            labels: Vec::new(),
            origins: BTreeMap::new(),
        }
    }
}

/// Whether [`plan`] plans a statement that the database runs without exchanging rows with the
/// client, which a COPY does.
pub(crate) fn plans(statement: &ast::Statement) -> bool {
    use ast::Statement as S;
    matches!(
        statement,
        S::Query(_)
            | S::Insert(_)
            | S::Update(_)
            | S::Delete(_)
            | S::CreateTable(_)
            | S::CreateIndex(_)
            | S::CreateView(_)
            | S::CreateType { .. }
            | S::AlterType(_)
            | S::Comment { .. }
            | S::AlterTable(_)
            | S::CreateSequence { .. }
            | S::Drop { .. }
            | S::DropProcedure { .. }
            | S::Call(_)
            | S::Truncate(_)
            | S::Lock(_)
            | S::ShowTables { .. }
    )
}

impl Planner<'_> {
    /// Plans a whole statement.
    fn whole(&mut self, parsed: &Parsed) -> Result<Planned, Failure> {
        for base in self.params.types.clone().into_iter().flatten() {
            self.enum_of(base)?;
        }
        let (plan, mut columns) = match (&parsed.role, &parsed.procedure) {
            (Some(role), _) => (Planner::role_statement(role), Vec::new()),
            (None, Some(statement)) => (self.procedure_statement(statement)?, Vec::new()),
            (None, None) => self.statement(&parsed.ast)?,
        };
        let known = self.params.types.iter().enumerate().map(|(at, base)| {
            base.ok_or_else(|| {
                let message = format!("could not determine data type of parameter ${}", at + 1);
                SqlError::new(code::INDETERMINATE_TYPE, message)
            })
        });
        let params = known.collect::<Result<_, _>>()?;
        let mut sequences = self.sequences()?;
        if let Plan::Call(call) = &plan {
            // The sequences of the arguments come first, because expressions refer to them by
            // position.
            call.effects.sequences.iter().for_each(|used| used.add_to(&mut sequences));
        }
        let named = named(&mut columns);
        if matches!(plan, Plan::CopyTo(_)) && !named.is_empty() {
            let error = SqlError::unsupported("COPY of the number of a catalog object");
            return Err(error.with_hint("Cast it to text.").into());
        }
        let required = std::mem::take(&mut self.schemas_used);
        let required = required.into_iter().chain(std::mem::take(&mut self.required)).collect();
        Ok(Planned {
            plan,
            params,
            path: self.path.clone(),
            columns,
            schemas: self.cx.take(),
            required,
            sequences,
            sets_sequences: self.params.sets_sequences,
            reads_catalog: self.params.reads_catalog || self.params.reads_node || !named.is_empty(),
            depends_on_catalog: self.params.reads_catalog || !named.is_empty(),
            reads_node: self.params.reads_node,
            locks_rows: self.locks_rows,
            named,
            labels: std::mem::take(&mut self.labels),
            enums: self.params.enums.clone(),
        })
    }

    fn statement(
        &mut self,
        statement: &ast::Statement,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        use ast::Statement as S;
        match statement {
            S::Query(query) => self.with_steps(query),
            S::Insert(insert) => self.insert(insert),
            S::Update(update) => self.update(update),
            S::Delete(delete) => self.delete(delete),
            S::CreateTable(create) => Ok((self.create_table(create)?, Vec::new())),
            S::Drop { object_type, if_exists, names, cascade, .. } => {
                let plan = self.drop_objects(*object_type, names, (*if_exists, *cascade))?;
                Ok((plan, Vec::new()))
            }
            S::Truncate(truncate) => {
                let tables = truncate.table_names.iter();
                let tables =
                    tables.map(|target| self.own_table_for(&target.name, Privileges::TRUNCATE));
                let tables = tables.collect::<Result<_, _>>()?;
                let is_cascade = matches!(truncate.cascade, Some(ast::CascadeOption::Cascade));
                let restarts =
                    matches!(truncate.identity, Some(ast::TruncateIdentityOption::Restart));
                Ok((Plan::utility(Truncate { tables, is_cascade, restarts }), Vec::new()))
            }
            S::Comment { object_type, object_name, comment, .. } => {
                let plan = self.comment(*object_type, object_name, comment.as_deref())?;
                Ok((plan, Vec::new()))
            }
            S::CreateView(create) => Ok((self.create_view(create)?, Vec::new())),
            S::Call(call) => self.call(call),
            S::DropProcedure { if_exists, proc_desc, .. } => {
                Ok((self.drop_procedures(proc_desc, *if_exists)?, Vec::new()))
            }
            S::CreateType { name, representation } => {
                Ok((self.create_type(name, representation.as_ref())?, Vec::new()))
            }
            S::AlterType(alter) => Ok((self.alter_type(alter)?, Vec::new())),
            S::CreateIndex(create) => Ok((self.create_index(create)?, Vec::new())),
            S::CreateSequence { .. } if self.said.is_alter => {
                Ok((self.alter_sequence(statement)?, Vec::new()))
            }
            S::CreateSequence { .. } => Ok((self.create_sequence(statement)?, Vec::new())),
            S::AlterTable(alter) => Ok((self.alter_relation(alter)?, Vec::new())),
            S::Copy { source, to, target, .. } => {
                let options = self.copy.clone().expect("a COPY has options");
                Ok((self.copy(source, *to, target, options)?, Vec::new()))
            }
            S::Lock(lock) => Ok((self.lock(lock)?, Vec::new())),
            S::ShowTables { .. } => {
                let column = OutputColumn::new("table", SqlType::Text);
                Ok((Plan::utility(ShowTables), vec![column]))
            }
            other => Err(SqlError::unsupported(command_of(other)).into()),
        }
    }

    fn drop_objects(
        &mut self,
        kind: ast::ObjectType,
        names: &[ast::ObjectName],
        (if_exists, is_cascade): (bool, bool),
    ) -> Result<Plan, Failure> {
        if kind == ast::ObjectType::Type {
            return self.drop_types(names, if_exists, is_cascade);
        }
        let names = names.iter().map(|name| self.meant(name));
        let names: Vec<_> = names.collect::<Result<_, _>>()?;
        self.require_owner(kind, &names);
        if kind == ast::ObjectType::Index {
            return self.drop_index(&names, if_exists);
        }
        let drop = DropTables { names, if_exists, is_cascade };
        Ok(match kind {
            ast::ObjectType::Table => Plan::utility(drop),
            ast::ObjectType::Sequence => Plan::utility(DropSequences(drop)),
            ast::ObjectType::View => Plan::utility(DropViews(drop)),
            other => return Err(SqlError::unsupported(format!("DROP {other}")).into()),
        })
    }

    fn table_unchecked(&mut self, object: &ast::ObjectName) -> Result<Arc<Table>, Failure> {
        let location = syntax::location(object);
        let written =
            syntax::table_name(object).map_err(|error| error.at(&self.source, location))?;
        let found = self.known(&written).and_then(|(name, relation)| as_table(&name, relation));
        found.map_err(|failure| match failure {
            Failure::Sql(error) => error.at(&self.source, location).into(),
            interrupted => interrupted,
        })
    }

    /// Reads the record of a relation, on which the plan then depends.
    fn relation_named(&mut self, name: &QualifiedName) -> Result<Option<Relation>, Failure> {
        let key = relation_key(name);
        let record = self.cx.get(CATALOG, &key)?;
        let mut relation = record.map(|record| Relation::decode(&record)).transpose()?;
        if let Some(Relation::Table(table)) = &mut relation {
            table.live_columns().try_for_each(|(_, column)| self.enum_of(column.ty.base))?;
            table.enums = self.params.enums.clone();
        }
        Ok(relation)
    }

    fn table_named(&mut self, name: &QualifiedName) -> Result<Arc<Table>, Failure> {
        match self.relation_named(name)? {
            Some(relation) => as_table(name, relation),
            None => Err(SqlError::undefined_table(name).into()),
        }
    }

    /// Returns a table with its access paths.
    fn paths_of(&mut self, name: &QualifiedName) -> Result<Paths, Failure> {
        let table = self.table_named(name)?;
        Ok(Paths::new(table)?)
    }

    /// Returns a binder of expressions over a scope. Their subqueries are planned first.
    fn binder<'b>(
        &'b mut self,
        scope: &'b Scope,
        aggregates: Aggregates<'b>,
        exprs: &[&ast::Expr],
    ) -> Result<Binder<'b>, Failure> {
        let nested = if self.has_queries { self.nested_in(scope, exprs)? } else { Vec::new() };
        let (source, params, outer) = (&self.source, &mut self.params, &self.outer[..]);
        Ok(Binder { source, scope, params, aggregates, outer, nested })
    }

    /// Returns the next relation number.
    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    fn error_at(&self, error: SqlError, location: sqlparser::tokenizer::Location) -> Failure {
        error.at(&self.source, location).into()
    }
}

fn as_table(name: &QualifiedName, relation: Relation) -> Result<Arc<Table>, Failure> {
    match relation {
        Relation::Table(table) => Ok(Arc::new(table)),
        Relation::View(_) => {
            let message = format!("\"{name}\" is not a table");
            Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into())
        }
        other => {
            let message = format!("cannot open relation \"{name}\"");
            let kind = other.kind();
            let detail = format!("This operation is not supported for {kind}es.");
            Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).with_detail(detail).into())
        }
    }
}

/// Fails with the first unsupported clause that is present.
fn refuse(clauses: &[(bool, &str)]) -> Result<(), SqlError> {
    let found = clauses.iter().find(|(is_there, _)| *is_there);
    found.map_or(Ok(()), |(_, feature)| Err(SqlError::unsupported(feature)))
}
