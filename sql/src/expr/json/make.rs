//! Conversion of SQL values to JSON: `to_json`, `json_build_object` and similar functions.

use super::made;
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datetime::{INFINITY, MINUS_INFINITY};
use crate::types::datum::Datum;
use crate::types::json::{self, Json, Parts, put_string};
use crate::types::text::format;
use crate::types::zone::Zone;

/// Returns a value as `json`.
pub(super) fn text(base: SqlType, value: &Datum, zone: &Zone) -> Result<String, SqlError> {
    let mut out = String::new();
    put(base, value, zone, &mut out);
    Ok(out)
}

/// Returns a value as `jsonb`.
pub(super) fn tree(base: SqlType, value: &Datum, zone: &Zone) -> Result<Json, SqlError> {
    match value {
        Datum::Jsonb(json) => Ok((**json).clone()),
        value => json::parse(&text(base, value, zone)?),
    }
}

fn put(base: SqlType, value: &Datum, zone: &Zone, out: &mut String) {
    match value {
        Datum::Null => out.push_str("null"),
        Datum::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Datum::Int(_) | Datum::Numeric(_) => out.push_str(&format(base, value, zone)),
        Datum::Float(number) if number.is_finite() => out.push_str(&format(base, value, zone)),
        Datum::Jsonb(json) => out.push_str(&json.to_string()),
        Datum::Text(text) if base == SqlType::Json => out.push_str(text),
        Datum::Timestamp(micros) => put_string(&timestamp(base, *micros, zone), out),
        Datum::Array(array) => {
            let element = base.element().expect("an array's type is one");
            put_items(element, array.dims(), array.items(), zone, out);
        }
        value => put_string(&format(base, value, zone), out),
    }
}

fn put_items(base: SqlType, dims: &[usize], items: &[Datum], zone: &Zone, out: &mut String) {
    out.push('[');
    let parts = dims.first().copied().unwrap_or(0);
    for at in 0..parts {
        if at > 0 {
            out.push(',');
        }
        let size = items.len() / parts;
        let part = &items[at * size..(at + 1) * size];
        match dims.len() {
            1 => put(base, &part[0], zone, out),
            _ => put_items(base, &dims[1..], part, zone, out),
        }
    }
    out.push(']');
}

/// Formats a timestamp as in XML Schema: with a T before the time, and an offset with minutes.
fn timestamp(base: SqlType, micros: i64, zone: &Zone) -> String {
    let shown = format(base, &Datum::Timestamp(micros), zone);
    if micros == INFINITY || micros == MINUS_INFINITY {
        return shown;
    }
    let (shown, era) = match shown.strip_suffix(" BC") {
        Some(rest) => (rest.to_owned(), " BC"),
        None => (shown, ""),
    };
    let shown = shown.replacen(' ', "T", 1);
    let time = shown.find('T').unwrap_or(0);
    let offset = shown[time..].find(['+', '-']).map(|at| &shown[time + at..]);
    let minutes = if offset.is_some_and(|offset| !offset.contains(':')) { ":00" } else { "" };
    format!("{shown}{minutes}{era}")
}

/// `json_build_array`; the values are JSON already.
pub(super) fn array(args: &[Datum], is_binary: bool) -> Result<Datum, SqlError> {
    if is_binary {
        return made(Json::Array(args.iter().map(|arg| super::tree(arg).clone()).collect()));
    }
    let parts: Vec<&str> = args.iter().map(super::text).collect();
    Ok(Datum::Text(format!("[{}]", parts.join(", "))))
}

/// `json_build_object`; the keys are text and the values are JSON already.
pub(super) fn object(args: &[Datum], is_binary: bool) -> Result<Datum, SqlError> {
    let mut members = Vec::with_capacity(args.len() / 2);
    let mut shown = Vec::with_capacity(args.len() / 2);
    for (at, pair) in args.chunks(2).enumerate() {
        if pair[0].is_null() {
            let message = match is_binary {
                true => format!("argument {}: key must not be null", 2 * at + 1),
                false => format!("argument {} cannot be null", 2 * at + 1),
            };
            let error = SqlError::new(code::INVALID_PARAMETER, message);
            let hint = "Object keys should be text.";
            return Err(if is_binary { error } else { error.with_hint(hint) });
        }
        let key = super::text(&pair[0]);
        if is_binary {
            members.push((key.to_owned(), super::tree(&pair[1]).clone()));
        } else {
            let mut member = String::new();
            put_string(key, &mut member);
            shown.push(format!("{member} : {}", super::text(&pair[1])));
        }
    }
    if is_binary {
        return made(json::object(members));
    }
    Ok(Datum::Text(format!("{{{}}}", shown.join(", "))))
}

/// `row_to_json`, from names and values that are JSON already.
pub(super) fn row(args: &[Datum]) -> Datum {
    let mut out = String::from("{");
    for (at, pair) in args.chunks(2).enumerate() {
        out.push_str(if at > 0 { "," } else { "" });
        put_string(super::text(&pair[0]), &mut out);
        out.push(':');
        out.push_str(super::text(&pair[1]));
    }
    out.push('}');
    Datum::Text(out)
}

/// Returns a `json` text without the members that are null, and without blanks.
pub(super) fn strip_nulls(text: &str) -> Result<String, SqlError> {
    let mut out = String::with_capacity(text.len());
    put_stripped(text, &mut out)?;
    Ok(out)
}

fn put_stripped(text: &str, out: &mut String) -> Result<(), SqlError> {
    match json::parts(text)? {
        Parts::Scalar(scalar) => match json::string_of(scalar)? {
            Some(string) => put_string(&string, out),
            None => out.push_str(scalar),
        },
        Parts::Array(items) => {
            out.push('[');
            for (at, item) in items.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                put_stripped(item, out)?;
            }
            out.push(']');
        }
        Parts::Object(members) => {
            out.push('{');
            let mut is_first = true;
            for (key, value) in members.into_iter().filter(|(_, value)| *value != "null") {
                if !is_first {
                    out.push(',');
                }
                is_first = false;
                put_string(&key, out);
                out.push(':');
                put_stripped(value, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}
