//! Execution of CREATE TYPE, ALTER TYPE and DROP TYPE.

use std::ops::ControlFlow;

use pangea_core::key::Direction;
use pangea_core::txn::{Context, Scan};

use super::{Executed, roles};
use crate::catalog::enums::{self, next_oid};
use crate::catalog::{
    self, CATALOG, Enum, EnumLabel, PUBLIC, QualifiedName, Relation, Table, comment, procedure,
};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::notice::Notice;
use crate::plan::{AlterType, CreateType, DropTypes, LabelChange, Neighbour, Utility, utilities};
use crate::search_path::shown;
use crate::syntax::names_word;
use crate::types::label::Place;
use crate::types::{EnumId, SqlType};
use crate::vocabulary::system::PG_TYPE;

utilities! {
    CreateType: "CREATE TYPE", create;
    AlterType: "ALTER TYPE", alter;
    DropTypes: "DROP TYPE", drop_types;
}

fn create(create: &CreateType, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let CreateType { name, labels } = create;
    check_free(name, cx)?;
    let oid = next_oid(cx)?;
    let mut all: Vec<EnumLabel> = Vec::with_capacity(labels.len());
    for text in labels {
        if all.iter().any(|known| known.text == *text) {
            let index = "pg_enum_typid_label_index";
            let detail = format!("Key (enumtypid, enumlabel)=({oid}, {text}) already exists.");
            return Err(SqlError::duplicate_key(index).with_detail(detail).into());
        }
        let place = Place::between(all.last().map(|label| &label.place), None);
        let sort_order = (all.len() + 1) as f32;
        let id = catalog::next_table_id(cx)?.0;
        all.push(EnumLabel { id, place, sort_order, text: text.clone() });
    }
    enums::put(&Enum::new(oid, name, all), cx)?;
    roles::adopt(&QualifiedName::public(name), env, cx)?;
    Ok(Executed::default())
}

/// # Errors
/// Fails if the name is taken by a type, or by a relation, which has a type of its own.
fn check_free(name: &str, cx: &mut dyn Context) -> Result<(), Failure> {
    let is_table = match catalog::find(&QualifiedName::public(name), cx)? {
        Some(Relation::Table(_) | Relation::View(_)) => true,
        Some(Relation::Sequence(_) | Relation::Index { .. }) | None => false,
    };
    if is_table || enums::find_named(name, cx)?.is_some() {
        let message = format!("type \"{name}\" already exists");
        return Err(SqlError::new(code::DUPLICATE_OBJECT, message).into());
    }
    Ok(())
}

/// # Errors
/// Fails if a type has the name of the new relation.
pub(super) fn check_no_type(name: &QualifiedName, cx: &mut dyn Context) -> Result<(), Failure> {
    if name.schema() != PUBLIC || enums::find_named(name.name(), cx)?.is_none() {
        return Ok(());
    }
    let message = format!("type \"{name}\" already exists");
    let hint = "A relation has an associated type of the same name, so you must use a name that \
                doesn't conflict with any existing type.";
    Err(SqlError::new(code::DUPLICATE_OBJECT, message).with_hint(hint).into())
}

fn alter(alter: &AlterType, _: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let Some(mut known) = enums::find_named(&alter.name, cx)? else {
        return Err(SqlError::undefined_type(&alter.name).into());
    };
    match &alter.change {
        LabelChange::Add { text, neighbour, if_not_exists } => {
            if known.labels.iter().any(|label| label.text == *text) {
                let error = label_exists(text);
                if !if_not_exists {
                    return Err(error.into());
                }
                let message = format!("{}, skipping", error.message);
                let notice = Notice { code: error.code, ..Notice::plain(message) };
                return Ok(Executed { notices: vec![notice], ..Executed::default() });
            }
            let at = match neighbour {
                Some(Neighbour { text, is_before }) => {
                    position(&known, text)? + usize::from(!is_before)
                }
                None => known.labels.len(),
            };
            let id = catalog::next_table_id(cx)?.0;
            insert(&mut known, at, id, text);
        }
        LabelChange::RenameValue { from, to } => {
            let at = position(&known, from)?;
            if known.labels.iter().any(|label| label.text == *to) {
                return Err(label_exists(to).into());
            }
            check_texts(&known, from, cx)?;
            known.labels[at].text.clone_from(to);
        }
        LabelChange::Rename { to } => {
            check_free(to, cx)?;
            check_texts(&known, &known.name, cx)?;
            enums::remove_name(&known.name, cx)?;
            let [before, after] = [&known.name, to].map(|name| QualifiedName::public(name));
            roles::follow_name(&before, &after, cx)?;
            known.name.clone_from(to);
        }
    }
    Ok(enums::put(&known, cx).map(|()| Executed::default())?)
}

fn label_exists(text: &str) -> SqlError {
    SqlError::new(code::DUPLICATE_OBJECT, format!("enum label \"{text}\" already exists"))
}

fn position(known: &Enum, text: &str) -> Result<usize, SqlError> {
    known.labels.iter().position(|label| label.text == *text).ok_or_else(|| {
        let message = format!("\"{text}\" is not an existing enum label");
        SqlError::new(code::INVALID_PARAMETER, message)
    })
}

/// Adds a label between two others. They keep their places, so stored values remain valid.
fn insert(known: &mut Enum, at: usize, id: u32, text: &str) {
    let low = at.checked_sub(1).map(|at| &known.labels[at]);
    let high = known.labels.get(at);
    let place = Place::between(low.map(|label| &label.place), high.map(|label| &label.place));
    // PostgreSQL's numbering. Labels are renumbered if no number is left in between.
    let (before, after) = (low.map(|label| label.sort_order), high.map(|label| label.sort_order));
    let sort_order = match (before, after) {
        (Some(before), Some(after)) => before.midpoint(after),
        (Some(before), None) => before + 1.0,
        (None, Some(after)) => after - 1.0,
        (None, None) => 1.0,
    };
    let is_between =
        before.is_none_or(|it| it < sort_order) && after.is_none_or(|it| sort_order < it);
    known.labels.insert(at, EnumLabel { id, place, sort_order, text: text.to_owned() });
    if !is_between {
        for (at, label) in known.labels.iter_mut().enumerate() {
            label.sort_order = (at + 1) as f32;
        }
    }
}

/// Returns all relations.
pub(super) fn relations(cx: &mut dyn Context) -> Result<Vec<Relation>, Failure> {
    let mut found = Vec::new();
    let (range, direction) = (catalog::relation_keys(), Direction::Forward);
    cx.scan(&Scan { table: CATALOG, range, direction }, &mut |_, record| {
        found.push(Relation::decode(record));
        ControlFlow::Continue(())
    })?;
    Ok(found.into_iter().collect::<Result<_, _>>()?)
}

/// Returns the SQL texts of a table's expressions.
pub(super) fn texts(table: &Table) -> Vec<&str> {
    let columns = table.columns.iter();
    let columns = columns.flat_map(|column| [&column.default, &column.generated]).flatten();
    let checks = table.checks.iter().map(|check| &check.condition);
    let keys = table.indexes.iter().flat_map(|index| {
        let exprs = index.keys.iter().filter_map(|key| match &key.target {
            catalog::KeyTarget::Expr(sql) => Some(sql),
            catalog::KeyTarget::Column(_) => None,
        });
        exprs.chain(&index.predicate)
    });
    columns.chain(checks).chain(keys).map(String::as_str).collect()
}

/// Rejects a rename if a stored SQL text contains the old name of the type or the label.
fn check_texts(known: &Enum, word: &str, cx: &mut dyn Context) -> Result<(), Failure> {
    let is_named =
        |text: &str| text.contains(word) && (text.contains('\'') || names_word(text, word));
    let refused = |what: String| {
        let feature = format!("renaming a type or label that {what} refers to as \"{word}\"");
        Err(SqlError::unsupported(feature).into())
    };
    for relation in relations(cx)? {
        match relation {
            Relation::Table(table) => {
                let uses = table.types().any(|base| is_of(known, base)) || word == known.name;
                if uses && texts(&table).into_iter().any(is_named) {
                    return refused(format!("an expression of table {}", table.name));
                }
            }
            Relation::View(view) if is_named(&view.query) => {
                return refused(format!("view {}", view.name));
            }
            Relation::View(_) | Relation::Sequence(_) | Relation::Index { .. } => {}
        }
    }
    Ok(())
}

fn is_of(known: &Enum, base: SqlType) -> bool {
    base.enumeration().map(EnumId::oid) == Some(known.oid)
}

/// Describes the objects that depend on a type, as PostgreSQL does.
fn dependents(known: &Enum, env: &Env, cx: &mut dyn Context) -> Result<Vec<String>, Failure> {
    let name = &known.name;
    let (mut found, mut views) = (Vec::new(), Vec::new());
    for relation in relations(cx)? {
        match relation {
            Relation::Table(table) => {
                let of = table.live_columns().filter(|(_, column)| is_of(known, column.ty.base));
                let before = found.len();
                let shown = shown(&table.name, &env.path_setting(), cx)?;
                for (_, column) in of {
                    let (base, column, table) = (column.ty.base, &column.name, &shown);
                    let of = match base {
                        SqlType::Array(_) => format!("{name}[]"),
                        _ => name.clone(),
                    };
                    found.push(format!("column {column} of table {table} depends on type {of}"));
                }
                let is_named = texts(&table).into_iter().any(|text| names_word(text, name));
                if is_named && found.len() == before {
                    found.push(format!("an expression of table {shown} names type {name}"));
                }
            }
            Relation::View(view) => {
                let has_column = view.columns.iter().any(|column| is_of(known, column.ty.base));
                if has_column || names_word(&view.query, name) {
                    let view = shown(&view.name, &env.path_setting(), cx)?;
                    views.push(format!("view {view} depends on type {name}"));
                }
            }
            Relation::Sequence(_) | Relation::Index { .. } => {}
        }
    }
    found.append(&mut views);
    for procedure in procedure::all(cx)? {
        if procedure.types().any(|base| is_of(known, base)) {
            found.push(format!("function {} depends on type {name}", procedure.signature()));
        }
    }
    Ok(found)
}

fn drop_types(
    DropTypes(drop): &DropTypes,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let mut notices = Vec::new();
    for meant in &drop.names {
        let error = SqlError::undefined_type(&meant.written.to_string());
        let Some(name) = meant.existing(drop.if_exists, error.clone(), &mut notices)? else {
            continue;
        };
        let Some(known) = enums::find_named(name.name(), cx)? else { return Err(error.into()) };
        let dependents = dependents(&known, env, cx)?;
        if !dependents.is_empty() {
            let mut all = crate::catalog::Enums::default();
            all.insert(known.clone());
            let detail = all.unmarked(dependents.join("\n"));
            if drop.is_cascade {
                let feature = "DROP TYPE .. CASCADE of a type that is in use";
                return Err(SqlError::unsupported(feature).with_detail(detail).into());
            }
            let message = format!("cannot drop type {name} because other objects depend on it");
            let hint = "Use DROP ... CASCADE to drop the dependent objects too.";
            let error = SqlError::new(code::DEPENDENT_OBJECTS, message);
            return Err(error.with_detail(detail).with_hint(hint).into());
        }
        comment::forget(PG_TYPE, known.oid, cx)?;
        enums::remove(&known, cx)?;
        roles::forget(name, cx)?;
    }
    Ok(Executed { notices, ..Executed::default() })
}
