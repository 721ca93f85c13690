//! Execution of CREATE SEQUENCE, ALTER SEQUENCE and DROP SEQUENCE.

use pangea_core::txn::Context;

use super::alter::change_table;
use super::enums::{relations, texts};
use super::{Executed, ddl, roles};
use crate::catalog::role::Object;
use crate::catalog::sequence::{SEQUENCES, nextval_of};
use crate::catalog::{self, QualifiedName, Relation, Sequence, Table, comment, stored};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::notice::Notice;
use crate::plan::{
    AlterSequence, CreateSequence, DropSequences, RenameSequence, Utility, utilities,
};
use crate::search_path::shown;
use crate::syntax::sequences::sequence_of;
use crate::vocabulary::system::PG_CLASS;

utilities! {
    CreateSequence: "CREATE SEQUENCE", create;
    AlterSequence: "ALTER SEQUENCE", alter;
    DropSequences: "DROP SEQUENCE", drop;
}

impl Utility for RenameSequence {
    fn command(&self) -> &'static str {
        self.command
    }

    fn run(&self, _: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
        rename(self, cx)
    }
}

fn create(create: &CreateSequence, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let name = &create.name;
    if catalog::find(name, cx)?.is_some() && create.if_not_exists {
        let notice = format!("relation \"{name}\" already exists, skipping");
        return Ok(Executed { notices: vec![Notice::plain(notice)], ..Executed::default() });
    }
    make(name, &create.sequence, env, cx)?;
    if let (Some(table), Some(column)) = (&create.sequence.owner, create.column) {
        change_table(table, cx, |table| table.sequences.push((column, name.clone())))?;
    }
    Ok(Executed::default())
}

fn alter(alter: &AlterSequence, _: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let AlterSequence { name, before, after, column, restart } = alter;
    let is_other = Sequence { owner: before.owner.clone(), ..after.clone() } != *before;
    if is_other || restart.is_some() {
        after.follow(before, *restart, cx)?;
    }
    if let Some(column) = column {
        if let Some(table) = &before.owner {
            change_table(table, cx, |table| table.sequences.retain(|(_, of)| of != name))?;
        }
        if let (Some(table), Some(column)) = (&after.owner, column) {
            change_table(table, cx, |table| table.sequences.push((*column, name.clone())))?;
        }
    }
    catalog::put(name, &Relation::Sequence(after.clone()), cx)?;
    Ok(Executed::default())
}

/// Renames a sequence, also in the columns that draw from it.
///
/// # Errors
/// Fails with 42P07 if the name is taken. Fails with 0A000 if a stored SQL text that can't be
/// changed names the sequence.
fn rename(rename: &RenameSequence, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let RenameSequence { name, to, .. } = rename;
    let Some(known @ Relation::Sequence(_)) = catalog::find(name, cx)? else {
        return Err(SqlError::undefined_table(name).into());
    };
    if catalog::find(to, cx)?.is_some() {
        let message = format!("relation \"{to}\" already exists");
        return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
    }
    let refused = |what: String| {
        let feature = format!("renaming a sequence that {what} refers to");
        Err(SqlError::unsupported(feature).into())
    };
    let written = name.name().replace('"', "\"\"").replace('\'', "''");
    let is_named = |text: &str| text.contains(&written) && text.contains('\'');
    for relation in relations(cx)? {
        match relation {
            Relation::Table(mut table) => {
                if follow_name(&mut table, name, to) {
                    catalog::put_table(&table, cx)?;
                }
                let is_other = |text: &&str| is_named(text) && sequence_of(text).is_none();
                if texts(&table).iter().any(is_other) {
                    return refused(format!("an expression of table {}", table.name));
                }
            }
            Relation::View(view) if is_named(&view.query) => {
                return refused(format!("view {}", view.name));
            }
            Relation::View(_) | Relation::Sequence(_) | Relation::Index { .. } => {}
        }
    }
    catalog::remove(name, cx)?;
    catalog::put(to, &known, cx)?;
    roles::follow(&Object::Sequence(name.clone()), &Object::Sequence(to.clone()), cx)?;
    Ok(Executed::default())
}

/// Renames a sequence in the record of a table. Returns whether the record changed.
fn follow_name(table: &mut Table, from: &QualifiedName, to: &QualifiedName) -> bool {
    let mut is_changed = false;
    let mut follow = |name: &mut QualifiedName| {
        if *name == *from {
            name.clone_from(to);
            is_changed = true;
        }
    };
    table.sequences.iter_mut().for_each(|(_, name)| follow(name));
    for column in &mut table.columns {
        column.identity.iter_mut().for_each(|identity| follow(&mut identity.sequence));
        if let Some(default) = &mut column.default
            && let Some(mut name) = sequence_of(default).map(|written| written.kept())
        {
            follow(&mut name);
            if name == *to {
                *default = nextval_of(to);
            }
        }
    }
    is_changed
}

/// Changes the name of the table that owns a sequence.
pub(super) fn follow_owner(
    name: &QualifiedName,
    owner: &QualifiedName,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    if let Some(Relation::Sequence(mut sequence)) = catalog::find(name, cx)? {
        sequence.owner = Some(owner.clone());
        catalog::put(name, &Relation::Sequence(sequence), cx)?;
    }
    Ok(())
}

/// Draws `count` numbers of a sequence, for rows that are older than it.
pub(super) fn numbers(
    name: &QualifiedName,
    count: usize,
    cx: &mut dyn Context,
) -> Result<Vec<i64>, Failure> {
    let Some(Relation::Sequence(sequence)) = catalog::find(name, cx)? else {
        return Err(SqlError::undefined_table(name).into());
    };
    let mut numbers = Vec::with_capacity(count);
    while numbers.len() < count {
        let block = sequence.take(name, (count - numbers.len()) as u64, cx)?;
        // The products may overflow, but the wrapped sum is correct.
        let number = |at: i64| block.first.wrapping_add(at.wrapping_mul(block.increment));
        numbers.extend((0..block.count as i64).map(number));
    }
    Ok(numbers)
}

pub(super) fn make(
    name: &QualifiedName,
    sequence: &Sequence,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    if catalog::find(name, cx)?.is_some() {
        let message = format!("relation \"{name}\" already exists");
        return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
    }
    let id = catalog::next_table_id(cx)?.0;
    let sequence = Sequence { id, ..sequence.clone() };
    catalog::put(name, &Relation::Sequence(sequence), cx)?;
    roles::adopt(name, env, cx)
}

pub(super) fn forget(name: &QualifiedName, cx: &mut dyn Context) -> Result<(), Failure> {
    if let Some(Relation::Sequence(sequence)) = catalog::find(name, cx)? {
        cx.delete(SEQUENCES, sequence.key())?;
        comment::forget(PG_CLASS, stored(sequence.id), cx)?;
        catalog::remove(name, cx)?;
        roles::forget(name, cx)?;
    }
    Ok(())
}

/// Whether a column of the owner draws numbers from the sequence, so that it is more than just
/// owned.
fn is_needed(
    name: &QualifiedName,
    owner: &QualifiedName,
    cx: &mut dyn Context,
) -> Result<bool, Failure> {
    let Some(Relation::Table(table)) = catalog::find(owner, cx)? else { return Ok(false) };
    let takes = |default: &str| sequence_of(default).is_some_and(|it| it.kept() == *name);
    Ok(table.live_columns().any(|(_, column)| {
        let is_identity = column.identity.as_ref().is_some_and(|it| it.sequence == *name);
        is_identity || column.default.as_deref().is_some_and(takes)
    }))
}

/// The error for DROP of a sequence that a column needs.
fn needed_sequence(
    name: &QualifiedName,
    owner: &QualifiedName,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<SqlError, Failure> {
    let mut column = None;
    if let Some(Relation::Table(table)) = catalog::find(owner, cx)? {
        let at = table.sequences.iter().find(|(_, sequence)| sequence == name).map(|(at, _)| *at);
        column = at.map(|at| table.columns[at].clone());
    }
    let (column, is_identity) = column.map_or(("?".to_owned(), false), |column| {
        let is_identity = column.identity.is_some();
        (column.name, is_identity)
    });
    let (name, owner) =
        (shown(name, &env.path_setting(), cx)?, shown(owner, &env.path_setting(), cx)?);
    if is_identity {
        let message = format!(
            "cannot drop sequence {name} because column {column} of table {owner} requires it"
        );
        let hint = format!("You can drop column {column} of table {owner} instead.");
        return Ok(SqlError::new(code::DEPENDENT_OBJECTS, message).with_hint(hint));
    }
    let message = format!("cannot drop sequence {name} because other objects depend on it");
    let detail =
        format!("default value for column {column} of table {owner} depends on sequence {name}");
    let hint = "Use DROP ... CASCADE to drop the dependent objects too.";
    Ok(SqlError::new(code::DEPENDENT_OBJECTS, message).with_detail(detail).with_hint(hint))
}

fn drop(
    DropSequences(drop): &DropSequences,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let mut notices = Vec::new();
    for meant in &drop.names {
        let error = ddl::missing("sequence", &meant.written);
        let Some(name) = meant.existing(drop.if_exists, error.clone(), &mut notices)? else {
            continue;
        };
        match catalog::find(name, cx)? {
            Some(Relation::Sequence(sequence)) => {
                if let Some(owner) = sequence.owner {
                    if is_needed(name, &owner, cx)? {
                        return Err(needed_sequence(name, &owner, env, cx)?.into());
                    }
                    change_table(&owner, cx, |table| {
                        table.sequences.retain(|(_, of)| of != name);
                    })?;
                }
                forget(name, cx)?;
            }
            Some(other) => return Err(ddl::wrong_kind(name, &other, "sequence").into()),
            None => return Err(error.into()),
        }
    }
    Ok(Executed { notices, ..Executed::default() })
}
