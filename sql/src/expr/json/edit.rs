//! Modification of `jsonb`: `||`, `-`, `#-`, `jsonb_set`, `jsonb_insert`, `jsonb_strip_nulls`.

use super::{JsonFunction, array, place, text, tree};
use crate::error::{SqlError, code};
use crate::types::datum::Datum;
use crate::types::json::{self, Json, object};

fn invalid(message: &str) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER, message)
}

/// `||`: merges two objects; concatenates anything else as arrays, with a non-array as an array of
/// one element.
pub(super) fn concat(left: &Json, right: &Json) -> Json {
    if let (Json::Object(a), Json::Object(b)) = (left, right) {
        return object([a.as_slice(), b].concat());
    }
    let list = |json: &Json| match json {
        Json::Array(items) => items.clone(),
        other => vec![other.clone()],
    };
    Json::Array([list(left), list(right)].concat())
}

/// `-`: deletes a key or string, the element at an index, or each of an array of keys.
pub(super) fn delete(json: &Json, what: &Datum) -> Result<Json, SqlError> {
    if json.is_scalar() {
        return Err(invalid("cannot delete from scalar"));
    }
    let keys: Vec<&str> = match what {
        Datum::Int(at) => {
            let Json::Array(items) = json else {
                return Err(invalid("cannot delete from object using integer index"));
            };
            let mut items = items.clone();
            if let Some(at) = json::index(*at, items.len()) {
                items.remove(at);
            }
            return Ok(Json::Array(items));
        }
        Datum::Array(keys) => keys.items().iter().filter(|k| !k.is_null()).map(text).collect(),
        key => vec![text(key)],
    };
    let is_key = |known: &str| keys.contains(&known);
    Ok(match json {
        Json::Object(members) => {
            let kept = members.iter().filter(|(key, _)| !is_key(key));
            Json::Object(kept.cloned().collect())
        }
        Json::Array(items) => {
            let is_kept = |item: &&Json| !matches!(item, Json::String(text) if is_key(text));
            Json::Array(items.iter().filter(is_kept).cloned().collect())
        }
        _ => unreachable!("scalars are refused"),
    })
}

/// The modification at the end of a path.
enum Change<'a> {
    Delete,
    Set { value: &'a Json, is_created: bool },
    Insert { value: &'a Json, is_after: bool },
}

/// `#-`, `jsonb_set` and `jsonb_insert`.
pub(super) fn at_path(function: JsonFunction, args: &[Datum]) -> Result<Json, SqlError> {
    let flag = |default: bool| args.get(3).map_or(default, |flag| flag.truth() == Some(true));
    let change = match function {
        JsonFunction::DeletePath => Change::Delete,
        JsonFunction::Set => Change::Set { value: tree(&args[2]), is_created: flag(true) },
        _ => Change::Insert { value: tree(&args[2]), is_after: flag(false) },
    };
    let json = tree(&args[0]);
    if json.is_scalar() {
        let what = if matches!(change, Change::Delete) { "delete" } else { "set" };
        return Err(invalid(&format!("cannot {what} path in scalar")));
    }
    let steps = array(&args[1]).items();
    if steps.is_empty() {
        return Ok(json.clone());
    }
    changed(json, steps, 0, &change)
}

fn changed(json: &Json, steps: &[Datum], at: usize, change: &Change) -> Result<Json, SqlError> {
    if json.is_scalar() {
        return Ok(json.clone());
    }
    if steps[at].is_null() {
        let message = format!("path element at position {} is null", at + 1);
        return Err(SqlError::new(code::NULL_NOT_ALLOWED, message));
    }
    let step = text(&steps[at]);
    match json {
        Json::Object(members) => changed_member(members, step, steps, at, change),
        Json::Array(items) => changed_item(items, step, steps, at, change),
        scalar => Ok(scalar.clone()),
    }
}

fn changed_member(
    members: &[(String, Json)],
    step: &str,
    steps: &[Datum],
    at: usize,
    change: &Change,
) -> Result<Json, SqlError> {
    let mut members = members.to_vec();
    let is_last = at + 1 == steps.len();
    let Some(found) = members.iter().position(|(key, _)| key == step) else {
        match change {
            Change::Set { value, is_created: true } | Change::Insert { value, .. } if is_last => {
                members.push((step.to_owned(), (*value).clone()));
            }
            _ => {}
        }
        return Ok(object(members));
    };
    if !is_last {
        members[found].1 = changed(&members[found].1, steps, at + 1, change)?;
        return Ok(Json::Object(members));
    }
    match change {
        Change::Delete => {
            members.remove(found);
        }
        Change::Set { value, .. } => members[found].1 = (*value).clone(),
        Change::Insert { .. } => {
            return Err(invalid("cannot replace existing key")
                .with_hint("Try using the function jsonb_set to replace key value."));
        }
    }
    Ok(Json::Object(members))
}

fn changed_item(
    items: &[Json],
    step: &str,
    steps: &[Datum],
    at: usize,
    change: &Change,
) -> Result<Json, SqlError> {
    let Some(asked) = place(step) else {
        let message = format!("path element at position {} is not an integer: \"{step}\"", at + 1);
        return Err(SqlError::new(code::INVALID_TEXT, message));
    };
    let mut items = items.to_vec();
    let is_last = at + 1 == steps.len();
    let Some(found) = json::index(asked, items.len()) else {
        // A new element with an index past either end is inserted at that end.
        match change {
            Change::Set { value, is_created: true } | Change::Insert { value, .. } if is_last => {
                let end = if asked < 0 { 0 } else { items.len() };
                items.insert(end, (*value).clone());
            }
            _ => {}
        }
        return Ok(Json::Array(items));
    };
    if !is_last {
        items[found] = changed(&items[found], steps, at + 1, change)?;
        return Ok(Json::Array(items));
    }
    match change {
        Change::Delete => {
            items.remove(found);
        }
        Change::Set { value, .. } => items[found] = (*value).clone(),
        Change::Insert { value, is_after } => {
            items.insert(found + usize::from(*is_after), (*value).clone());
        }
    }
    Ok(Json::Array(items))
}

/// Removes object members that are null, at all levels.
pub(super) fn strip_nulls(json: &Json) -> Json {
    match json {
        Json::Array(items) => Json::Array(items.iter().map(strip_nulls).collect()),
        Json::Object(members) => {
            let kept = members.iter().filter(|(_, value)| !matches!(value, Json::Null));
            Json::Object(kept.map(|(key, value)| (key.clone(), strip_nulls(value))).collect())
        }
        scalar => scalar.clone(),
    }
}
