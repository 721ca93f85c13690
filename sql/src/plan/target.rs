//! Tables that a statement writes, with their constraints and foreign keys bound.
//!
//! A statement writes its own table, and other tables through actions of foreign keys. All of them
//! are resolved when it is planned, so that a schema change in any of them conflicts with it.

use std::sync::Arc;

use pangea_core::txn::Context;

use super::Planner;
use crate::access::path::{Path, Paths};
use crate::access::{Access, text};
use crate::catalog::{self, Action, ForeignKey, QualifiedName, Relation, Table};
use crate::error::Failure;
use crate::expr::bind::{Params, SequenceName};
use crate::expr::{Binary, Comparison, Expr, SequenceCall, Unary};
use crate::types::datum::Datum;

/// All tables that a statement may write, its own table first.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    pub all: Vec<Target>,
}

/// A table that is written.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub table: Arc<Table>,
    pub paths: Vec<Arc<Path>>,
    /// The check constraints, in the table's order.
    pub checks: Vec<Expr>,
    /// The generated columns.
    pub generated: Vec<(usize, Expr)>,
    /// The foreign keys of the table.
    pub parents: Vec<Parent>,
    /// The foreign keys that refer to the table.
    pub children: Vec<Child>,
}

/// A foreign key, from the referencing table's side.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    pub key: ForeignKey,
    /// Finds the referenced row; parameters are the values of the key's columns.
    pub access: Access,
    pub filter: Expr,
}

/// A foreign key, from the referenced table's side.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub key: ForeignKey,
    pub table: Arc<Table>,
    /// The position of the referencing table among the targets, if its rows may change.
    pub target: Option<usize>,
    /// Finds the referencing rows; parameters are the values of the referenced columns.
    pub access: Access,
    pub filter: Expr,
    /// Finds the referenced row by these values: the access and the condition.
    pub back: (Access, Expr),
    /// The values of the columns for `SET DEFAULT`.
    pub defaults: Vec<Expr>,
}

impl Targets {
    /// Returns the statement's own table.
    pub(crate) fn own(&self) -> &Target {
        &self.all[0]
    }
}

impl Planner<'_> {
    /// Resolves a table that is written, and the tables that are written with it. If rows are only
    /// added, no referenced row changes.
    pub(super) fn targets(&mut self, paths: &Paths, only_adds: bool) -> Result<Targets, Failure> {
        let mut targets = vec![target(paths)?];
        let mut at = 0;
        while at < targets.len() {
            let table = targets[at].table.clone();
            for key in &table.foreign_keys {
                let parent = match key.parent == table.name {
                    true => Paths { table: table.clone(), all: targets[at].paths.clone() },
                    false => self.paths_of(&key.parent)?,
                };
                targets[at].parents.push(self::parent(&table, key, &parent));
            }
            let names = if only_adds { &[][..] } else { &table.children };
            for name in names {
                self.children(&mut targets, at, name)?;
            }
            at += 1;
        }
        Ok(Targets { all: targets })
    }

    /// Adds the foreign keys by which a table refers to a target.
    fn children(
        &mut self,
        targets: &mut Vec<Target>,
        at: usize,
        name: &QualifiedName,
    ) -> Result<(), Failure> {
        let paths = self.paths_of(name)?;
        let parent = targets[at].table.clone();
        let keys = paths.table.foreign_keys.iter().filter(|key| key.parent == parent.name);
        for key in keys {
            let changes = |action: Action| !matches!(action, Action::NoAction | Action::Restrict);
            let known = targets.iter().position(|target| target.table.id == paths.table.id);
            let target = match known {
                _ if !changes(key.on_delete) && !changes(key.on_update) => None,
                Some(known) => Some(known),
                None => {
                    targets.push(target(&paths)?);
                    Some(targets.len() - 1)
                }
            };
            let filter = refers(&paths.table, &key.columns, &parent, &key.parent_columns);
            let mut defaults = Vec::new();
            if [key.on_delete, key.on_update].contains(&Action::SetDefault) {
                for &column in &key.columns {
                    defaults.push(default_of(&paths.table, column, &mut self.params)?);
                }
            }
            let own = Paths { table: parent.clone(), all: targets[at].paths.clone() };
            let there = refers(&parent, &key.parent_columns, &parent, &key.parent_columns);
            let child = Child {
                back: (Access::new(&own, Some(&there)), there),
                key: key.clone(),
                table: paths.table.clone(),
                target,
                access: Access::new(&paths, Some(&filter)),
                filter,
                defaults,
            };
            targets[at].children.push(child);
        }
        Ok(())
    }
}

/// Finds rows: the access and the condition. Parameters are the values of a foreign key.
pub(crate) type ReferencePath = (Access, Expr);

/// Returns how to find the rows with a foreign key's values, and the row that they refer to. `None`
/// if the foreign key no longer exists.
pub(crate) fn both_sides(
    child: &QualifiedName,
    key: &str,
    cx: &mut dyn Context,
) -> Result<Option<(ReferencePath, ReferencePath)>, Failure> {
    let Some(Relation::Table(child)) = catalog::find(child, cx)? else { return Ok(None) };
    let Some(key) = child.foreign_keys.iter().find(|known| known.name == key).cloned() else {
        return Ok(None);
    };
    let Some(Relation::Table(parent)) = catalog::find(&key.parent, cx)? else { return Ok(None) };
    let (child, parent) = (Paths::new(Arc::new(child))?, Paths::new(Arc::new(parent))?);
    let way = |paths: &Paths, columns: &[usize]| {
        let filter = refers(&paths.table, columns, &child.table, &key.columns);
        (Access::new(paths, Some(&filter)), filter)
    };
    Ok(Some((way(&child, &key.columns), way(&parent, &key.parent_columns))))
}

/// Returns the value of a column that a statement does not set.
pub(super) fn default_of(
    table: &Table,
    at: usize,
    sequences: &mut Params,
) -> Result<Expr, Failure> {
    let column = &table.columns[at];
    if let Some(identity) = &column.identity {
        let name = SequenceName::Known(identity.sequence.clone());
        return Ok(Expr::Sequence(SequenceCall::Next, sequences.sequence(name, true), Vec::new()));
    }
    match &column.default {
        Some(default) => Ok(text::default(default, column, sequences)?),
        None => Ok(Expr::Const(Datum::Null)),
    }
}

fn parent(table: &Table, key: &ForeignKey, paths: &Paths) -> Parent {
    let filter = refers(&paths.table, &key.parent_columns, table, &key.columns);
    let access = Access::new(paths, Some(&filter));
    Parent { key: key.clone(), access, filter }
}

fn target(paths: &Paths) -> Result<Target, Failure> {
    let table = paths.table.clone();
    let checks =
        table.checks.iter().map(|check| text::condition(&table, &check.condition, "CHECK"));
    let checks = checks.collect::<Result<_, _>>()?;
    let generated = table.live_columns().filter_map(|(at, column)| {
        let sql = column.generated.as_deref()?;
        Some(text::generated(&table, column, sql).map(|expr| (at, expr)))
    });
    let generated = generated.collect::<Result<_, _>>()?;
    let (parents, children) = (Vec::new(), Vec::new());
    Ok(Target { table, paths: paths.all.clone(), checks, generated, parents, children })
}

/// Returns the condition that columns of a table equal parameters, which are columns of another
/// table.
fn refers(table: &Table, columns: &[usize], other: &Table, others: &[usize]) -> Expr {
    let equal = columns.iter().zip(others).enumerate().map(|(at, (&column, &from))| {
        let (to, from) = (table.columns[column].ty.base, other.columns[from].ty.base);
        let param = Expr::Param(at);
        let value = if to == from || to.is_integer() && from.is_integer() {
            param
        } else {
            let cast = Unary::Cast { from, to: to.into(), is_explicit: false };
            Expr::Unary(cast, Box::new(param))
        };
        let equal = Binary::Compare(Comparison::Equal, to);
        Expr::Binary(equal, Box::new(Expr::Column(column)), Box::new(value))
    });
    equal.reduce(Expr::and).expect("a foreign key has columns")
}
