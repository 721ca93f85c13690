//! Views: queries that are planned in place of the view's name.

use std::sync::Arc;

use sqlparser::ast;

use super::alter::nothing;
use super::from::{Side, derived_scope};
use super::write_target::{NO_SINGLE, over_one};
use super::{Plan, Planner, check_name, plan_of, refuse, renames};
use crate::access::text;
use crate::authorization::Required;
use crate::catalog::role::{Object, Privileges};
use crate::catalog::{Column, QualifiedName, Relation, Sequence, Table, View, ViewColumn, stored};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::Params;
use crate::expr::query::Query;
use crate::relational::{self, From};
use crate::syntax::{self, Altered};
use crate::types::{ColumnType, SqlType};
use crate::vocabulary::column::OutputColumn;
use pangea_core::ids::TableId;
use pangea_core::txn::Context;

/// The stack that the parser may use, in bytes.
const PARSER_STACK_BYTES: usize = 2 << 20;

/// CREATE VIEW.
#[derive(Clone, Debug)]
pub(crate) struct CreateView {
    /// The number is assigned at run time.
    pub view: View,
    pub or_replace: bool,
}

/// ALTER VIEW.
#[derive(Clone, Debug)]
pub(crate) struct AlterView {
    /// The command tag.
    pub command: &'static str,
    pub name: QualifiedName,
    pub change: ViewChange,
}

/// A change of a view.
#[derive(Clone, Debug)]
pub(crate) enum ViewChange {
    /// Renames the view.
    Name(QualifiedName),
    /// Renames a column.
    Column(usize, String),
    /// Sets the default of a column; `None` drops it.
    Default(usize, Option<String>),
}

/// A view whose query is being planned.
#[derive(Clone, Debug)]
pub(super) enum Within {
    View(Arc<View>),
    /// A view that is being created.
    New {
        name: QualifiedName,
        reads: Vec<(QualifiedName, usize)>,
        relies_on_keys: bool,
    },
    /// A view of the system catalog, which every user may read.
    System(String),
}

impl Within {
    /// Whether both are the same view.
    fn is_same(&self, other: &Self) -> bool {
        match (self.relation(), other.relation()) {
            (Some(one), Some(other)) => one == other,
            (None, None) => self.name() == other.name(),
            _ => false,
        }
    }

    fn relation(&self) -> Option<&QualifiedName> {
        match self {
            Self::View(view) => Some(&view.name),
            Self::New { name, .. } => Some(name),
            Self::System(_) => None,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::View(view) => view.name.name(),
            Self::New { name, .. } => name.name(),
            Self::System(name) => name,
        }
    }
}

/// A resolved name in FROM.
pub(super) enum Named {
    Table(Arc<Table>),
    View(View),
    Sequence(QualifiedName, Sequence),
}

impl Planner<'_> {
    pub(super) fn create_view(&mut self, create: &ast::CreateView) -> Result<Plan, Failure> {
        let has_options = !matches!(create.options, ast::CreateTableOptions::None);
        refuse(&[
            (create.materialized, "CREATE MATERIALIZED VIEW"),
            (create.temporary, "CREATE TEMPORARY VIEW"),
            (create.if_not_exists, "CREATE VIEW IF NOT EXISTS"),
            (has_options, "an option of a view"),
        ])?;
        if syntax::names_write(&create.query) {
            let message = "views must not contain data-modifying statements in WITH";
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).into());
        }
        let before = self.required.len();
        let name = self.new_name(&create.name)?;
        let creates = self.required.split_off(before);
        let query = {
            let mut query = create.query.clone();
            self.keep(&mut query)?;
            query.to_string()
        };
        let new = Within::New { name: name.clone(), reads: Vec::new(), relies_on_keys: false };
        let (required, sequences) = (self.required.len(), self.params.sequences.clone());
        let (query_of, columns, within) = self.planned_view(&query, new)?;
        drop(query_of);
        let shows = self.shows(&query)?;
        // The privileges of its owner are checked when it is read.
        self.required.truncate(required);
        self.required.extend(creates);
        if create.or_replace {
            // A view that does not exist has no owner to check.
            self.required.push(Required::owner(Object::View(name.clone())));
        }
        self.params.sequences = sequences;
        self.params.needs.clear();
        if !self.params.types.is_empty() {
            let message = "there is no parameter $1";
            return Err(SqlError::new(code::UNDEFINED_PARAMETER, message).into());
        }
        let Within::New { reads, relies_on_keys, .. } = within else {
            unreachable!("it is a new one")
        };
        let columns = named_columns(columns, &create.columns)?;
        let check = self.check;
        if let (Some(_), Err(why)) = (check, &shows) {
            let message = "WITH CHECK OPTION is supported only on automatically updatable views";
            let error = SqlError::new(code::FEATURE_NOT_SUPPORTED, message);
            return Err(error.with_hint(*why).into());
        }
        let shows = shows.ok();
        let id = TableId(0);
        let view = View { id, name, query, columns, reads, relies_on_keys, shows, check };
        Ok(Plan::utility(CreateView { view, or_replace: create.or_replace }))
    }

    /// Plans ALTER TABLE, which may name a view, and ALTER VIEW.
    pub(super) fn alter_relation(&mut self, alter: &ast::AlterTable) -> Result<Plan, Failure> {
        let command = self.altered.command();
        let written = syntax::table_name(&alter.name)?;
        let Some((name, relation)) = self.found(&written)? else {
            if self.altered != Altered::Table && alter.if_exists {
                let name = &written.name;
                let notice = format!("relation \"{name}\" does not exist, skipping");
                return Ok(nothing(command, notice));
            }
            return self.alter_table(alter);
        };
        let is_it = match self.altered {
            Altered::Table | Altered::Index => true,
            Altered::View => matches!(relation, Relation::View(_)),
            Altered::Sequence => matches!(relation, Relation::Sequence(_)),
        };
        if !is_it {
            let kind = if self.altered == Altered::View { "view" } else { "sequence" };
            let message = format!("\"{name}\" is not a {kind}");
            return Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into());
        }
        let to = match &alter.operations[..] {
            [ast::AlterTableOperation::RenameTable { table_name }] => {
                Some(renames::new_name(table_name)?)
            }
            _ => None,
        };
        match (relation, to) {
            (Relation::View(view), _) => self.alter_view(view, alter, command),
            (Relation::Sequence(_), Some(to)) => Ok(self.rename_sequence(command, name, &to)),
            (Relation::Index { table }, Some(to)) => {
                self.rename_index(command, (&name, &table), &to)
            }
            _ => self.alter_table(alter),
        }
    }

    fn alter_view(
        &mut self,
        view: View,
        alter: &ast::AlterTable,
        command: &'static str,
    ) -> Result<Plan, Failure> {
        use ast::AlterTableOperation as O;
        let name = view.name.clone();
        self.required.push(Required::owner(Object::View(name.clone())));
        let [operation] = &alter.operations[..] else {
            return Err(SqlError::unsupported("several changes of a view").into());
        };
        let change = match operation {
            O::RenameTable { table_name } => {
                ViewChange::Name(name.beside(&renames::new_name(table_name)?))
            }
            O::RenameColumn { old_column_name, new_column_name } => {
                let [old, to] = [old_column_name, new_column_name].map(syntax::name);
                check_name(&to)?;
                let place = |name: &str| view.columns.iter().position(|it| it.name == name);
                let Some(at) = place(&old) else {
                    let message = format!("column \"{old}\" does not exist");
                    return Err(SqlError::new(code::UNDEFINED_COLUMN, message).into());
                };
                if place(&to).is_some() {
                    let message = format!("column \"{to}\" of relation \"{name}\" already exists");
                    return Err(SqlError::new(code::DUPLICATE_COLUMN, message).into());
                }
                ViewChange::Column(at, to)
            }
            O::AlterColumn { column_name, op } => {
                let column = syntax::name(column_name);
                let Some(at) = view.columns.iter().position(|it| it.name == column) else {
                    let message =
                        format!("column \"{column}\" of relation \"{name}\" does not exist");
                    return Err(SqlError::new(code::UNDEFINED_COLUMN, message).into());
                };
                let default = match op {
                    ast::AlterColumnOperation::SetDefault { value } => Some(self.kept_text(value)?),
                    ast::AlterColumnOperation::DropDefault => None,
                    _ => return Err(SqlError::unsupported("this form of ALTER VIEW").into()),
                };
                if let Some(default) = &default {
                    let column = Column::new(column, view.columns[at].ty);
                    self.enum_of(column.ty.base)?;
                    text::default(default, &column, &mut Params::of_text(&self.params.enums))?;
                }
                ViewChange::Default(at, default)
            }
            _ => return Err(SqlError::unsupported("this form of ALTER VIEW").into()),
        };
        Ok(Plan::utility(AlterView { command, name, change }))
    }

    /// Returns, for each column of a view, the column of its single relation that it shows; or the
    /// reason why its rows are not those of the relation.
    fn shows(&mut self, text: &str) -> Result<Result<Vec<Option<u32>>, &'static str>, Failure> {
        let query = parsed(text)?;
        let base = match over_one(&query) {
            Ok((_, base, _)) => base,
            Err(why) => return Ok(Err(why)),
        };
        let Ok(base) = syntax::table_name(base) else { return Ok(Err(NO_SINGLE)) };
        match self.relation_named(&base.kept())? {
            Some(Relation::Table(_) | Relation::View(_)) => {}
            _ => return Ok(Err(NO_SINGLE)),
        }
        let within = Within::System(String::new());
        Ok(self.within_view(text, within, |planner| planner.own_columns(&query))?.0)
    }

    /// Plans the query of a view, independently of the statement around it.
    fn planned_view(
        &mut self,
        text: &str,
        within: Within,
    ) -> Result<(Query, Vec<OutputColumn>, Within), Failure> {
        if self.within.iter().any(|known| known.is_same(&within)) {
            let name = within.name();
            let message = format!("infinite recursion detected in rules for relation \"{name}\"");
            return Err(SqlError::new(code::INVALID_OBJECT_DEFINITION, message).into());
        }
        let query = parsed(text)?;
        let (planned, within) = self.within_view(text, within, |planner| planner.nested(&query))?;
        let (nested, columns) = planned;
        Ok((nested.query.as_ref().clone(), columns, within))
    }

    /// Runs a planning function on a view's query, independently of the statement around it.
    pub(super) fn within_view<T>(
        &mut self,
        text: &str,
        within: Within,
        plan: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<(T, Within), Failure> {
        // Unqualified names in a stored text are in `public`.
        let path = std::mem::take(&mut self.path);
        let is_kept = std::mem::replace(&mut self.params.is_kept, true);
        let around = (
            std::mem::take(&mut self.outer),
            std::mem::take(&mut self.named),
            std::mem::replace(&mut self.source, Arc::from(text)),
            std::mem::replace(&mut self.has_queries, true),
            // A view cannot see the variables of a procedure.
            self.params.variables.take(),
        );
        self.within.push(within);
        let planned = plan(self);
        let within = self.within.pop().expect("it was put there");
        let variables;
        (self.outer, self.named, self.source, self.has_queries, variables) = around;
        self.params.variables = variables;
        (self.path, self.params.is_kept) = (path, is_kept);
        let planned = planned.map_err(|failure| match failure {
            // Error positions would refer to the view's text, not to the client's.
            Failure::Sql(error) => SqlError { position: None, ..error }.into(),
            interrupted => interrupted,
        })?;
        Ok((planned, within))
    }

    /// Resolves a name in FROM, which the statement reads.
    pub(super) fn readable(&mut self, object: &ast::ObjectName) -> Result<Named, Failure> {
        let location = syntax::location(object);
        let at =
            |planner: &Self, error: SqlError| Failure::Sql(error.at(&planner.source, location));
        let written = syntax::table_name(object).map_err(|error| at(self, error))?;
        let (name, relation) = match self.known(&written) {
            Err(Failure::Sql(error)) => return Err(at(self, error)),
            found => found?,
        };
        match relation {
            Relation::View(view) => {
                self.required.push(Required::select(Object::View(name)));
                Ok(Named::View(view))
            }
            Relation::Table(table) => {
                self.required.push(Required::select(Object::Table(name)));
                Ok(Named::Table(Arc::new(table)))
            }
            Relation::Sequence(sequence) => {
                self.required.push(Required::select(Object::Sequence(name.clone())));
                Ok(Named::Sequence(name, sequence))
            }
            _ => Ok(Named::Table(self.table_for(object, Privileges::SELECT)?)),
        }
    }

    /// Records that the view being planned reads a relation. Returns the number of its columns that
    /// the view sees.
    pub(super) fn noted(&mut self, name: &QualifiedName, width: usize) -> usize {
        match self.within.last_mut() {
            Some(Within::View(view)) => view.width_of(name).unwrap_or(width),
            Some(Within::New { reads, .. }) => {
                if !reads.iter().any(|(known, _)| known == name) {
                    reads.push((name.clone(), width));
                }
                width
            }
            Some(Within::System(_)) | None => width,
        }
    }

    /// Records that the view being planned relies on a primary key for functionally dependent
    /// columns in groups.
    pub(super) fn note_key(&mut self) {
        if let Some(Within::New { relies_on_keys, .. }) = self.within.last_mut() {
            *relies_on_keys = true;
        }
    }

    /// Plans the rows of a view.
    pub(super) fn view(
        &mut self,
        view: View,
        alias: Option<&ast::TableAlias>,
    ) -> Result<Side, Failure> {
        let width = self.noted(&view.name, view.columns.len());
        let view = Arc::new(view);
        let before = self.required.len();
        let (query, _, _) = self.planned_view(&view.query, Within::View(view.clone()))?;
        // The view reads its relations with its owner's privileges.
        for required in &mut self.required[before..] {
            required.through.get_or_insert_with(|| view.name.clone());
        }
        let column = |it: &ViewColumn| OutputColumn::new(&it.name, it.ty);
        let columns: Vec<OutputColumn> = view.columns.iter().take(width).map(column).collect();
        let oid = stored(view.id.0);
        let mut side = self.as_side(&query, &columns, alias, (view.name.name(), oid))?;
        if alias.is_none() {
            side.scope.is_of(view.name.schema());
        }
        Ok(side)
    }

    /// Plans the rows of a view of the system catalog.
    pub(super) fn system_view(
        &mut self,
        (name, oid): (&str, u32),
        text: &str,
        alias: Option<&ast::TableAlias>,
    ) -> Result<Side, Failure> {
        let before = self.required.len();
        let (query, columns, _) = self.planned_view(text, Within::System(name.to_owned()))?;
        self.required.truncate(before);
        let known = name.rsplit('.').next().unwrap_or(name);
        self.as_side(&query, &columns, alias, (known, oid))
    }

    fn as_side(
        &mut self,
        query: &Query,
        columns: &[OutputColumn],
        alias: Option<&ast::TableAlias>,
        (name, oid): (&str, u32),
    ) -> Result<Side, Failure> {
        let relation = self.number();
        let plan = relational::renamed(query, relation)?;
        self.is_kept(relation, oid, columns.len());
        let scope = derived_scope(columns, alias, name, relation)?;
        Ok(Side { from: From::Plan(plan), scope })
    }
}

/// Parses the query of a view.
pub(super) fn parsed(text: &str) -> Result<Box<ast::Query>, SqlError> {
    // The parser gets a full stack, however deeply the query that names the view is nested.
    let parse = || syntax::parse(text);
    let parsed = stacker::maybe_grow(PARSER_STACK_BYTES, 2 * PARSER_STACK_BYTES, parse)?;
    match parsed.first().map(|parsed| &*parsed.ast) {
        Some(ast::Statement::Query(query)) => Ok(query.clone()),
        _ => Err(SqlError::new(code::INTERNAL, "a view without a query")),
    }
}

/// Returns the columns of a view with the given names.
fn named_columns(
    columns: Vec<OutputColumn>,
    names: &[ast::ViewColumnDef],
) -> Result<Vec<ViewColumn>, SqlError> {
    if names.len() > columns.len() {
        let message = "CREATE VIEW specifies more column names than columns";
        return Err(SqlError::new(code::SYNTAX, message));
    }
    let given = names.iter().map(|it| Some(syntax::name(&it.name)));
    let named = columns.into_iter().zip(given.chain(std::iter::repeat(None)));
    let mut all: Vec<ViewColumn> = Vec::new();
    for (column, given) in named {
        let name = given.unwrap_or(column.name);
        check_name(&name)?;
        if all.iter().any(|known| known.name == name) {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(code::DUPLICATE_COLUMN, message));
        }
        let base = match column.ty.base {
            SqlType::Unknown => SqlType::Text,
            base => base,
        };
        all.push(ViewColumn { name, ty: ColumnType { base, ..column.ty }, default: None });
    }
    Ok(all)
}

/// Returns the current types of a view's columns.
///
/// # Errors
/// If its query can no longer be planned.
pub(crate) fn types_of(view: &View, cx: &mut dyn Context) -> Result<Vec<ColumnType>, Failure> {
    let (_, columns, _) = plan_of(cx, |planner| {
        planner.planned_view(&view.query, Within::View(Arc::new(view.clone())))
    })?;
    Ok(columns.into_iter().map(|column| column.ty).collect())
}

/// Returns the columns of a view of the system catalog.
///
/// # Errors
/// If its query cannot be planned.
pub(crate) fn system_columns(
    name: &str,
    text: &str,
    cx: &mut dyn Context,
) -> Result<Vec<OutputColumn>, Failure> {
    let within = Within::System(name.to_owned());
    let planned = plan_of(cx, |planner| planner.planned_view(text, within.clone()));
    planned.map(|(_, columns, _)| columns)
}
