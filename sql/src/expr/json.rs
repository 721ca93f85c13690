//! JSON functions. A `json` value is its text and a `jsonb` value is a tree; apart from that, most
//! functions treat both identically.

mod edit;
mod make;

use std::sync::Arc;

use super::functions::text;
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::array::Array;
use crate::types::datum::Datum;
use crate::types::json::{self, Json, Parts};
use crate::types::zone::Zone;

/// A function over JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonFunction {
    /// `->` and `->>`, by key or by index.
    Get {
        as_text: bool,
    },
    /// `#>` and `#>>`
    Path {
        as_text: bool,
    },
    Contains,
    IsContained,
    Exists,
    ExistsAny,
    ExistsAll,
    Concat,
    Delete,
    DeletePath,
    Set,
    Insert,
    Kind,
    Length,
    StripNulls,
    Pretty,
    /// Converts a value of the type to JSON. NULL stays NULL if strict; otherwise it becomes a JSON
    /// null.
    Make {
        base: SqlType,
        is_binary: bool,
        is_strict: bool,
    },
    MakeArray {
        is_binary: bool,
    },
    /// Builds an object from keys that are text and values that are JSON.
    MakeObject {
        is_binary: bool,
    },
    /// Builds an object from the columns of a row, without blanks.
    MakeRow,
    /// Returns its argument, which is JSON already.
    Same,
}

use JsonFunction as F;

fn tree(datum: &Datum) -> &Json {
    match datum {
        Datum::Jsonb(json) => json,
        other => panic!("{other:?} is not a jsonb"),
    }
}

fn array(datum: &Datum) -> &Array {
    match datum {
        Datum::Array(array) => array,
        other => panic!("{other:?} is not an array"),
    }
}

fn made(json: Json) -> Result<Datum, SqlError> {
    json.check_depth()?;
    Ok(Datum::Jsonb(Arc::new(json)))
}

impl JsonFunction {
    /// Whether the function handles NULL arguments itself.
    pub(super) fn takes_nulls(self) -> bool {
        matches!(
            self,
            F::Make { is_strict: false, .. }
                | F::MakeArray { .. }
                | F::MakeObject { .. }
                | F::MakeRow
        )
    }

    /// Evaluates the function.
    pub(super) fn call(self, args: &[Datum], zone: &Zone) -> Result<Datum, SqlError> {
        match self {
            F::Get { as_text } => get(&args[0], &args[1], as_text),
            F::Path { as_text } => path(&args[0], array(&args[1]), as_text),
            F::Contains => Ok(Datum::Bool(tree(&args[0]).contains(tree(&args[1])))),
            F::IsContained => Ok(Datum::Bool(tree(&args[1]).contains(tree(&args[0])))),
            F::Exists => Ok(Datum::Bool(exists(tree(&args[0]), text(&args[1])))),
            F::ExistsAny | F::ExistsAll => {
                let within = tree(&args[0]);
                let mut keys = array(&args[1]).items().iter().filter(|key| !key.is_null());
                let is_there = |key: &Datum| exists(within, text(key));
                let holds = match self {
                    F::ExistsAny => keys.any(is_there),
                    _ => keys.all(is_there),
                };
                Ok(Datum::Bool(holds))
            }
            F::Concat => made(edit::concat(tree(&args[0]), tree(&args[1]))),
            F::Delete => edit::delete(tree(&args[0]), &args[1]).and_then(made),
            F::DeletePath | F::Set | F::Insert => edit::at_path(self, args).and_then(made),
            F::Kind => kind(&args[0]).map(|kind| Datum::Text(kind.to_owned())),
            F::Length => length(&args[0]),
            F::StripNulls => match &args[0] {
                Datum::Jsonb(json) => made(edit::strip_nulls(json)),
                text => make::strip_nulls(self::text(text)).map(Datum::Text),
            },
            F::Pretty => Ok(Datum::Text(tree(&args[0]).pretty())),
            F::Make { base, is_binary: true, .. } => {
                make::tree(base, &args[0], zone).and_then(made)
            }
            F::Make { base, .. } => make::text(base, &args[0], zone).map(Datum::Text),
            F::MakeArray { is_binary } => make::array(args, is_binary),
            F::MakeObject { is_binary } => make::object(args, is_binary),
            F::MakeRow => Ok(make::row(args)),
            F::Same => Ok(args[0].clone()),
        }
    }
}

/// Returns one member or element of a `json` text, by key or by index.
fn part<'a>(json: &'a str, key: &Datum) -> Result<Option<&'a str>, SqlError> {
    Ok(match (json::parts(json)?, key) {
        // The last of equal keys wins.
        (Parts::Object(members), Datum::Text(key)) => {
            members.into_iter().rev().find(|(known, _)| known == key).map(|(_, value)| value)
        }
        (Parts::Array(items), Datum::Int(place)) => {
            json::index(*place, items.len()).map(|at| items[at])
        }
        _ => None,
    })
}

/// Returns a part of a `jsonb` value as the operator's result type; the text of a JSON null is
/// NULL.
fn shown(json: &Json, as_text: bool) -> Datum {
    match json {
        json if !as_text => Datum::Jsonb(Arc::new(json.clone())),
        Json::Null => Datum::Null,
        Json::String(text) => Datum::Text(text.clone()),
        other => Datum::Text(other.to_string()),
    }
}

fn shown_text(json: &str, as_text: bool) -> Result<Datum, SqlError> {
    if as_text {
        if json.trim() == "null" {
            return Ok(Datum::Null);
        }
        if let Some(string) = json::string_of(json)? {
            return Ok(Datum::Text(string));
        }
    }
    Ok(Datum::Text(json.to_owned()))
}

fn get(value: &Datum, key: &Datum, as_text: bool) -> Result<Datum, SqlError> {
    if let Datum::Text(json) = value {
        return part(json, key)?.map_or(Ok(Datum::Null), |part| shown_text(part, as_text));
    }
    let found = match key {
        // PostgreSQL stores a bare scalar as an array with one element, and this operator exposes
        // that.
        Datum::Int(0 | -1) if tree(value).is_scalar() => Some(tree(value)),
        Datum::Int(place) => tree(value).at(*place),
        key => tree(value).member(text(key)),
    };
    Ok(found.map_or(Datum::Null, |json| shown(json, as_text)))
}

/// Parses a path step as an array index.
fn place(step: &str) -> Option<i64> {
    step.trim_start().parse::<i32>().ok().map(i64::from)
}

fn path(value: &Datum, steps: &Array, as_text: bool) -> Result<Datum, SqlError> {
    if steps.items().iter().any(Datum::is_null) {
        return Ok(Datum::Null);
    }
    let steps = steps.items().iter().map(text);
    if let Datum::Text(json) = value {
        let mut found = json.as_str();
        for step in steps {
            let is_array = matches!(json::parts(found)?, Parts::Array(_));
            let key = match (is_array, place(step)) {
                (true, Some(place)) => Datum::Int(place),
                (true, None) => return Ok(Datum::Null),
                (false, _) => Datum::Text(step.to_owned()),
            };
            match part(found, &key)? {
                Some(part) => found = part,
                None => return Ok(Datum::Null),
            }
        }
        return shown_text(found, as_text);
    }
    let mut found = tree(value);
    for step in steps {
        let next = match found {
            Json::Array(_) => place(step).and_then(|place| found.at(place)),
            other => other.member(step),
        };
        match next {
            Some(next) => found = next,
            None => return Ok(Datum::Null),
        }
    }
    Ok(shown(found, as_text))
}

/// Whether a string is a key of the object, an element of the array, or the value itself.
fn exists(within: &Json, wanted: &str) -> bool {
    match within {
        Json::Object(_) => within.member(wanted).is_some(),
        Json::Array(items) => {
            items.iter().any(|item| matches!(item, Json::String(text) if text == wanted))
        }
        Json::String(text) => text == wanted,
        _ => false,
    }
}

fn kind(value: &Datum) -> Result<&'static str, SqlError> {
    let Datum::Text(json) = value else { return Ok(tree(value).kind()) };
    Ok(match json::parts(json)? {
        Parts::Array(_) => "array",
        Parts::Object(_) => "object",
        Parts::Scalar(scalar) => match scalar.as_bytes().first() {
            Some(b'"') => "string",
            Some(b't' | b'f') => "boolean",
            Some(b'n') => "null",
            _ => "number",
        },
    })
}

fn length(value: &Datum) -> Result<Datum, SqlError> {
    let wrong = |what: &str| {
        let message = format!("cannot get array length of a {what}");
        Err(SqlError::new(code::INVALID_PARAMETER, message))
    };
    let length = match value {
        Datum::Text(json) => match json::parts(json)? {
            Parts::Array(items) => items.len(),
            Parts::Object(_) => return wrong("non-array"),
            Parts::Scalar(_) => return wrong("scalar"),
        },
        value => match tree(value) {
            Json::Array(items) => items.len(),
            Json::Object(_) => return wrong("non-array"),
            _ => return wrong("scalar"),
        },
    };
    Ok(Datum::Int(length as i64))
}
