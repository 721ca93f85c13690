//! Evaluation of set-returning functions.

use std::sync::Arc;

use crate::error::{SqlError, code};
use crate::exec::{ROWS_MAX, check_size};
use crate::expr::Env;
use crate::expr::arithmetic::{self, Arithmetic};
use crate::expr::temporal::{self, Temporal};
use crate::syntax::RESERVED;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::types::json::Json;
use crate::vocabulary::set_function::SetFunction;

impl SetFunction {
    /// Returns the rows of a call.
    pub(crate) fn rows(self, args: &[Datum], env: &Env) -> Result<Vec<Vec<Datum>>, SqlError> {
        let is_null = |at: usize| args.get(at).is_some_and(Datum::is_null);
        if is_null(0) || is_null(2) || is_null(1) && self != Self::Split {
            return Ok(Vec::new());
        }
        let one = |values: Vec<Datum>| values.into_iter().map(|value| vec![value]).collect();
        Ok(match (self, args) {
            (Self::Series(base), _) => series(base, args, env)?,
            (Self::Unnest, [Datum::Array(array)]) => one(array.items().to_vec()),
            (Self::Subscripts { first }, [Datum::Array(array), Datum::Int(dimension)]) => {
                let dimension = usize::try_from(*dimension).ok().and_then(|at| at.checked_sub(1));
                let length = dimension.and_then(|at| array.dims().get(at)).copied().unwrap_or(0);
                one((first..first + length as i64).map(Datum::Int).collect())
            }
            (Self::Elements { as_text }, [Datum::Jsonb(json)]) => match &**json {
                Json::Array(items) => one(items.iter().map(|item| shown(item, as_text)).collect()),
                Json::Object(_) => return Err(not_json("extract elements from an object")),
                _ => return Err(not_json("extract elements from a scalar")),
            },
            (Self::Keys, [Datum::Jsonb(json)]) => match &**json {
                Json::Object(members) => {
                    one(members.iter().map(|(key, _)| Datum::Text(key.clone())).collect())
                }
                Json::Array(_) => {
                    return Err(not_json("call jsonb_object_keys on an array"));
                }
                _ => return Err(not_json("call jsonb_object_keys on a scalar")),
            },
            (Self::Each { as_text }, [Datum::Jsonb(json)]) => match &**json {
                Json::Object(members) => {
                    let row = |(key, value): &(String, Json)| {
                        vec![Datum::Text(key.clone()), shown(value, as_text)]
                    };
                    members.iter().map(row).collect()
                }
                _ => {
                    let name = if as_text { "jsonb_each_text" } else { "jsonb_each" };
                    return Err(not_json(&format!("call {name} on a non-object")));
                }
            },
            (Self::Split, [Datum::Text(text), between]) => {
                let part = |part: &str| Datum::Text(part.to_owned());
                one(match between {
                    Datum::Text(between) if between.is_empty() => vec![part(text)],
                    Datum::Text(_) if text.is_empty() => Vec::new(),
                    Datum::Text(between) => text.split(between.as_str()).map(part).collect(),
                    _ => text.chars().map(|char| Datum::Text(char.to_string())).collect(),
                })
            }
            (function, args) => function.rows_of_catalog(args, env)?,
        })
    }

    /// Returns the rows of a function of the system catalog.
    fn rows_of_catalog(self, args: &[Datum], env: &Env) -> Result<Vec<Vec<Datum>>, SqlError> {
        Ok(match (self, args) {
            (Self::Numbered, [Datum::Array(array)]) => {
                let numbered = array.items().iter().cloned().zip(1..);
                numbered.map(|(item, at)| vec![item, Datum::Int(at)]).collect()
            }
            (Self::Options, [Datum::Array(array)]) => {
                let option = |item: &Datum| {
                    let Datum::Text(text) = item else { return vec![Datum::Null, Datum::Null] };
                    let (name, value) = text.split_once('=').unwrap_or((text, ""));
                    vec![Datum::Text(name.to_owned()), Datum::Text(value.to_owned())]
                };
                array.items().iter().map(option).collect()
            }
            (Self::Privileges, [Datum::Array(array)]) => {
                let catalog = env.catalog()?;
                let texts = array.items().iter().filter_map(|item| match item {
                    Datum::Text(text) => Some(text.as_str()),
                    _ => None,
                });
                texts.flat_map(|text| catalog.privileges_of(text)).collect()
            }
            (Self::Keywords, []) => {
                let row = |word: &&str| {
                    let columns = [*word, "R", "reserved"];
                    columns.map(|text| Datum::Text(text.to_owned())).to_vec()
                };
                RESERVED.iter().map(row).collect()
            }
            (Self::Nothing, _) => Vec::new(),
            (function, args) => panic!("{function:?} of {args:?}"),
        })
    }
}

fn not_json(what: &str) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER, format!("cannot {what}"))
}

fn shown(json: &Json, as_text: bool) -> Datum {
    match (as_text, json) {
        (false, json) => Datum::Jsonb(Arc::new(json.clone())),
        (true, Json::Null) => Datum::Null,
        (true, Json::String(text)) => Datum::Text(text.clone()),
        (true, json) => Datum::Text(json.to_string()),
    }
}

fn series(base: SqlType, args: &[Datum], env: &Env) -> Result<Vec<Vec<Datum>>, SqlError> {
    let (from, to) = (args[0].clone(), &args[1]);
    let zero = match base {
        SqlType::Numeric => Datum::Numeric(0.into()),
        base if base.is_datetime() => Datum::Interval(Interval { months: 0, days: 0, micros: 0 }),
        _ => Datum::Int(0),
    };
    let step = match args.get(2) {
        Some(step) => step.clone(),
        None if base == SqlType::Numeric => Datum::Numeric(1.into()),
        None => Datum::Int(1),
    };
    let is_up = match step.compare(&zero) {
        std::cmp::Ordering::Equal => {
            return Err(SqlError::new(code::INVALID_PARAMETER, "step size cannot equal zero"));
        }
        ordering => ordering.is_gt(),
    };
    let mut rows = Vec::new();
    let mut next = from;
    loop {
        let is_past = if is_up { next.compare(to).is_gt() } else { next.compare(to).is_lt() };
        if is_past {
            return Ok(rows);
        }
        rows.push(vec![next.clone()]);
        check_size(rows.len(), 0)?;
        let following = match base {
            base if base.is_datetime() => {
                temporal::apply(Temporal::Later(base), next, step.clone(), &env.zone)
            }
            base => arithmetic::apply(Arithmetic::Add, base, next, step.clone()),
        };
        match following {
            Ok(value) => next = value,
            // The type's last value.
            Err(error) if error.code == code::NUMERIC_OUT_OF_RANGE => return Ok(rows),
            Err(error) => return Err(error),
        }
        debug_assert!(rows.len() <= ROWS_MAX);
    }
}
