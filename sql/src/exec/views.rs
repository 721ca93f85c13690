//! Execution of CREATE VIEW and DROP VIEW, and dependencies of views.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use pangea_core::key::Direction;
use pangea_core::txn::{Context, Scan};

use super::{Executed, roles};
use crate::catalog::{self, CATALOG, QualifiedName, Relation, Table, View, comment, stored};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::plan::{self, AlterView, CreateView, DropViews, Utility, ViewChange, utilities};
use crate::search_path::shown;
use crate::syntax;
use crate::vocabulary::system::PG_CLASS;

utilities! {
    CreateView: "CREATE VIEW", create;
    DropViews: "DROP VIEW", drop;
}

impl Utility for AlterView {
    fn command(&self) -> &'static str {
        self.command
    }

    fn run(&self, _: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
        alter(self, cx)
    }
}

fn create(create: &CreateView, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut view = create.view.clone();
    let name = view.name.clone();
    match catalog::find(&name, cx)? {
        Some(Relation::View(before)) if create.or_replace => {
            check_replaced(&before, &view)?;
            view.id = before.id;
            for (column, old) in view.columns.iter_mut().zip(&before.columns) {
                column.default = old.default.clone();
            }
            catalog::put(&name, &Relation::View(view), cx)?;
        }
        None => {
            view.id = catalog::next_table_id(cx)?;
            catalog::put(&name, &Relation::View(view), cx)?;
            roles::adopt(&name, env, cx)?;
        }
        Some(_) if create.or_replace => {
            let message = format!("\"{name}\" is not a view");
            return Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into());
        }
        Some(_) => {
            let message = format!("relation \"{name}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
        }
    }
    Ok(Executed::default())
}

fn alter(alter: &AlterView, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let name = &alter.name;
    let Some(Relation::View(mut view)) = catalog::find(name, cx)? else {
        return Err(SqlError::undefined_table(name).into());
    };
    match &alter.change {
        ViewChange::Name(to) => {
            if catalog::find(to, cx)?.is_some() {
                let message = format!("relation \"{to}\" already exists");
                return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
            }
            view.name = to.clone();
            catalog::remove(name, cx)?;
            catalog::put(to, &Relation::View(view), cx)?;
            roles::follow_name(name, to, cx)?;
            follow_name(name, to, cx)?;
        }
        ViewChange::Column(at, to) => {
            let old = std::mem::replace(&mut view.columns[*at].name, to.clone());
            for other in dependents(name, cx)? {
                let named = [&old, to].map(|column| syntax::names_word(&other.query, column));
                if named.contains(&true) || syntax::names_word(&other.query, "natural") {
                    let what = format!("renaming an object that view {} uses", other.name);
                    return Err(SqlError::unsupported(what).into());
                }
            }
            catalog::put(name, &Relation::View(view), cx)?;
        }
        ViewChange::Default(at, default) => {
            view.columns[*at].default = default.clone();
            catalog::put(name, &Relation::View(view), cx)?;
        }
    }
    Ok(Executed::default())
}

/// Checks that a replacement begins with the same columns.
fn check_replaced(before: &View, after: &View) -> Result<(), SqlError> {
    let invalid = |message: String| Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message));
    if after.columns.len() < before.columns.len() {
        return invalid("cannot drop columns from view".to_owned());
    }
    for (old, new) in before.columns.iter().zip(&after.columns) {
        if old.name != new.name {
            let message =
                format!("cannot change name of view column \"{}\" to \"{}\"", old.name, new.name);
            let hint =
                "Use ALTER VIEW ... RENAME COLUMN ... to change name of view column instead.";
            let error = SqlError::new(code::INVALID_TABLE_DEFINITION, message);
            return Err(error.with_hint(hint));
        }
        if old.ty != new.ty {
            return invalid(format!(
                "cannot change data type of view column \"{}\" from {} to {}",
                old.name, old.ty, new.ty
            ));
        }
    }
    Ok(())
}

fn drop(DropViews(drop): &DropViews, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut notices = Vec::new();
    let dropped = drop.dropped();
    for meant in &drop.names {
        let error = super::ddl::missing("view", &meant.written);
        let Some(name) = meant.existing(drop.if_exists, error.clone(), &mut notices)? else {
            continue;
        };
        match catalog::find(name, cx)? {
            Some(Relation::View(view)) => {
                drop_dependent(("view", name), (&dropped, drop.is_cascade), env, cx)?;
                forget(&view, cx)?;
            }
            Some(other) => return Err(super::ddl::wrong_kind(name, &other, "view").into()),
            None => return Err(error.into()),
        }
    }
    Ok(Executed { notices, ..Executed::default() })
}

pub(super) fn forget(view: &View, cx: &mut dyn Context) -> Result<(), Failure> {
    comment::forget(PG_CLASS, stored(view.id.0), cx)?;
    catalog::remove(&view.name, cx)?;
    roles::forget(&view.name, cx)
}

/// Returns the views that name a relation.
fn dependents(name: &QualifiedName, cx: &mut dyn Context) -> Result<Vec<View>, Failure> {
    let mut records = Vec::new();
    let (range, direction) = (catalog::relation_keys(), Direction::Forward);
    cx.scan(&Scan { table: CATALOG, range, direction }, &mut |_, record| {
        records.push(Relation::decode(record));
        ControlFlow::Continue(())
    })?;
    let mut found = Vec::new();
    for record in records {
        if let Relation::View(view) = record?
            && view.width_of(name).is_some()
        {
            found.push(view);
        }
    }
    Ok(found)
}

/// Returns the views that depend on a relation, directly or indirectly, each with a description of
/// the dependency. They are in order of creation.
pub(super) fn all_dependents(
    (kind, name): (&str, &QualifiedName),
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Vec<(View, String)>, Failure> {
    let mut found: Vec<(View, String)> = Vec::new();
    let mut open = VecDeque::from([(kind.to_owned(), name.clone())]);
    while let Some((kind, name)) = open.pop_front() {
        for view in dependents(&name, cx)? {
            if found.iter().any(|(known, _)| known.name == view.name) {
                continue;
            }
            let (of, on) = (
                shown(&view.name, &env.path_setting(), cx)?,
                shown(&name, &env.path_setting(), cx)?,
            );
            let line = format!("view {of} depends on {kind} {on}");
            open.push_back(("view".to_owned(), view.name.clone()));
            found.push((view, line));
        }
    }
    found.sort_by_key(|(view, _)| view.id);
    Ok(found)
}

/// Drops the views that depend on a dropped relation.
///
/// # Errors
/// Fails without CASCADE if a view depends on the relation and is not dropped by the same
/// statement.
pub(super) fn drop_dependent(
    (kind, name): (&str, &QualifiedName),
    (dropped, is_cascade): (&[QualifiedName], bool),
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let found = all_dependents((kind, name), env, cx)?;
    let found: Vec<_> =
        found.into_iter().filter(|(view, _)| !dropped.contains(&view.name)).collect();
    let lines: Vec<String> = found.iter().map(|(_, line)| line.clone()).collect();
    if lines.is_empty() {
        return Ok(());
    }
    if !is_cascade {
        let name = shown(name, &env.path_setting(), cx)?;
        let message = format!("cannot drop {kind} {name} because other objects depend on it");
        let error = SqlError::new(code::DEPENDENT_OBJECTS, message)
            .with_detail(lines.join("\n"))
            .with_hint("Use DROP ... CASCADE to drop the dependent objects too.");
        return Err(error.into());
    }
    found.iter().try_for_each(|(view, _)| forget(view, cx))
}

/// Renames a table in the views that name it. In their SQL texts, the old name becomes an alias.
///
/// # Errors
/// Fails if a view uses the name for another object.
pub(super) fn follow_name(
    old: &QualifiedName,
    new: &QualifiedName,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    for mut view in dependents(old, cx)? {
        view.query = syntax::renamed(&view.query, old, new)?;
        for (name, _) in view.reads.iter_mut().filter(|(name, _)| name == old) {
            *name = new.clone();
        }
        let name = view.name.clone();
        catalog::put(&name, &Relation::View(view), cx)?;
    }
    Ok(())
}

/// Checks that the views that name a changed table still have the same meaning.
///
/// # Errors
/// Fails if a view's meaning has changed.
pub(super) fn check_dependent(
    before: &Table,
    after: &Table,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let mut changed = Vec::new();
    // A lost name may now resolve to another column, or no longer take part in a NATURAL JOIN.
    let columns = before.columns.iter().zip(&after.columns);
    let gone =
        columns.filter(|(old, new)| old.name != new.name || old.is_dropped != new.is_dropped);
    let gone: Vec<&str> = gone.map(|(old, _)| old.name.as_str()).collect();
    for view in dependents(&after.name, cx)? {
        let types: Vec<_> = view.columns.iter().map(|column| column.ty).collect();
        let is_named = |name: &&str| syntax::names_word(&view.query, name);
        let may_differ = gone.iter().any(is_named)
            || !gone.is_empty() && syntax::names_word(&view.query, "natural");
        match plan::types_of_view(&view, cx) {
            Ok(now) if now == types && !may_differ => {}
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            _ => changed.push(view),
        }
    }
    changed.sort_by_key(|view| view.id);
    match changed.first() {
        None => Ok(()),
        Some(first) => Err(hindering((before, after), first, &changed, env, cx)?.into()),
    }
}

/// The error for a change of a table that views prevent.
fn hindering(
    (before, after): (&Table, &Table),
    first: &View,
    all: &[View],
    env: &Env,
    cx: &mut dyn Context,
) -> Result<SqlError, Failure> {
    let (name, view) = (
        shown(&before.name, &env.path_setting(), cx)?,
        shown(&first.name, &env.path_setting(), cx)?,
    );
    for (old, new) in before.columns.iter().zip(&after.columns) {
        let column = &old.name;
        if new.is_dropped && !old.is_dropped {
            let mut lines = Vec::new();
            for view in all {
                let others = all_dependents(("view", &view.name), env, cx)?;
                lines.extend(others.into_iter().map(|(view, line)| (view.id, line)));
            }
            for view in all {
                let of = shown(&view.name, &env.path_setting(), cx)?;
                let line = format!("view {of} depends on column {column} of table {name}");
                if !lines.iter().any(|(id, _)| *id == view.id) {
                    lines.push((view.id, line));
                }
            }
            lines.sort();
            lines.dedup_by_key(|(id, _)| *id);
            let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
            let message = format!(
                "cannot drop column {column} of table {name} because other objects depend on it"
            );
            return Ok(SqlError::new(code::DEPENDENT_OBJECTS, message)
                .with_detail(lines.join("\n"))
                .with_hint("Use DROP ... CASCADE to drop the dependent objects too."));
        }
        if old.ty != new.ty {
            let message = "cannot alter type of a column used by a view or rule";
            let detail = format!("rule _RETURN on view {view} depends on column \"{column}\"");
            let code = code::FEATURE_NOT_SUPPORTED;
            return Ok(SqlError::new(code, message).with_detail(detail));
        }
    }
    let hint = format!("Drop view {view}, rename the object, and create the view again.");
    Ok(SqlError::unsupported(format!("renaming an object that view {view} uses")).with_hint(hint))
}
