//! Set-returning functions.

use std::sync::Arc;

use crate::error::{SqlError, code};
use crate::exec::{ROWS_MAX, check_size};
use crate::expr::arithmetic::{self, Arithmetic};
use crate::expr::signatures::TEXTS;
use crate::expr::temporal::{self, Temporal};
use crate::expr::{Env, Expr, Typed};
use crate::syntax::RESERVED;
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::types::json::Json;
use crate::types::{Reg, SqlType};

/// A set-returning function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SetFunction {
    /// `generate_series` over values of a type
    Series(SqlType),
    /// `generate_subscripts`, with the lowest subscript
    Subscripts { first: i64 },
    /// `unnest`
    Unnest,
    /// `jsonb_array_elements`, `jsonb_array_elements_text`
    Elements { as_text: bool },
    /// `jsonb_object_keys`
    Keys,
    /// `jsonb_each`, `jsonb_each_text`
    Each { as_text: bool },
    /// `string_to_table`
    Split,
    /// `information_schema._pg_expandarray`: values with their positions
    Numbered,
    /// `pg_options_to_table`: splits `name=value` into two columns
    Options,
    /// `aclexplode`: grantor, grantee and privilege
    Privileges,
    /// `pg_get_keywords`
    Keywords,
    /// A function that never returns rows, e.g. `pg_partition_ancestors`.
    Nothing,
}

/// A resolved call: the function, the types of its arguments, and its columns.
pub(crate) type SetCall = (SetFunction, Vec<SqlType>, Vec<(&'static str, SqlType)>);

/// A call of a set-returning function in a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Called {
    pub function: SetFunction,
    pub args: Vec<Typed>,
    /// Types of its columns.
    pub types: Vec<SqlType>,
}

impl Called {
    /// The expressions of the call.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        self.args.iter_mut().map(|(expr, _)| expr)
    }
}

impl SetFunction {
    /// Whether a set-returning function of this name exists, for any arguments.
    pub(crate) fn is_name(name: &str) -> bool {
        let names = [
            "generate_series",
            "generate_subscripts",
            "unnest",
            "jsonb_array_elements",
            "jsonb_array_elements_text",
            "jsonb_object_keys",
            "jsonb_each",
            "jsonb_each_text",
            "string_to_table",
            "_pg_expandarray",
            "pg_options_to_table",
            "aclexplode",
            "pg_get_keywords",
            "pg_partition_ancestors",
            "pg_get_publication_tables",
        ];
        names.contains(&name)
    }

    /// Resolves a function by name and argument types.
    pub(crate) fn named(name: &str, args: &[SqlType]) -> Option<SetCall> {
        use SqlType::{Int4, Int8, Interval, Numeric, Text, Timestamp, Timestamptz};
        Some(match (name, args) {
            ("generate_series", [_, _] | [_, _, _]) => {
                let is = |base| args[..2].contains(&base);
                let base = if is(Timestamptz) {
                    Timestamptz
                } else if is(Timestamp) {
                    Timestamp
                } else if is(SqlType::Date) {
                    // PostgreSQL's preferred type for otherwise ambiguous arguments.
                    Timestamptz
                } else if args.contains(&Numeric) {
                    Numeric
                } else if args.contains(&Int8) {
                    Int8
                } else if args.iter().all(|base| base.is_integer()) {
                    Int4
                } else {
                    return None;
                };
                let mut types = vec![base; args.len()];
                if base.is_datetime() {
                    *types.get_mut(2)? = Interval;
                }
                (Self::Series(base), types, vec![("generate_series", base)])
            }
            ("generate_subscripts", [array, _]) if array.element().is_some() => {
                let first = i64::from(!array.is_vector());
                let columns = vec![("generate_subscripts", Int4)];
                (Self::Subscripts { first }, vec![*array, Int4], columns)
            }
            ("unnest", [array]) => (Self::Unnest, vec![*array], vec![("unnest", array.element()?)]),
            ("string_to_table", [_, _]) => {
                (Self::Split, vec![Text, Text], vec![("string_to_table", Text)])
            }
            (name, args) => {
                return Self::of_json(name, args).or_else(|| Self::of_catalog(name, args));
            }
        })
    }

    /// Resolves a function over JSON.
    fn of_json(name: &str, args: &[SqlType]) -> Option<SetCall> {
        use SqlType::{Jsonb, Text};
        let json = |as_text| if as_text { Text } else { Jsonb };
        Some(match (name, args) {
            ("jsonb_array_elements" | "jsonb_array_elements_text", [_]) => {
                let as_text = name.ends_with("_text");
                (Self::Elements { as_text }, vec![Jsonb], vec![("value", json(as_text))])
            }
            ("jsonb_object_keys", [_]) => {
                (Self::Keys, vec![Jsonb], vec![("jsonb_object_keys", Text)])
            }
            ("jsonb_each" | "jsonb_each_text", [_]) => {
                let as_text = name.ends_with("_text");
                let columns = vec![("key", Text), ("value", json(as_text))];
                (Self::Each { as_text }, vec![Jsonb], columns)
            }
            _ => return None,
        })
    }

    /// Resolves a function of the system catalog.
    fn of_catalog(name: &str, args: &[SqlType]) -> Option<SetCall> {
        use SqlType::{Int4, Text};
        Some(match (name, args) {
            ("_pg_expandarray", [array]) => {
                (Self::Numbered, vec![*array], vec![("x", array.element()?), ("n", Int4)])
            }
            ("pg_options_to_table", [_]) => {
                let columns = vec![("option_name", Text), ("option_value", Text)];
                (Self::Options, vec![TEXTS], columns)
            }
            ("aclexplode", [_]) => {
                let names = [
                    ("grantor", SqlType::Oid),
                    ("grantee", SqlType::Oid),
                    ("privilege_type", Text),
                    ("is_grantable", SqlType::Bool),
                ];
                (Self::Privileges, vec![TEXTS], names.to_vec())
            }
            ("pg_get_keywords", []) => {
                let names = [("word", Text), ("catcode", SqlType::InternalChar), ("catdesc", Text)];
                (Self::Keywords, Vec::new(), names.to_vec())
            }
            ("pg_partition_ancestors", [_]) => {
                let class = SqlType::Reg(Reg::Class);
                (Self::Nothing, vec![class], vec![("relid", class)])
            }
            ("pg_get_publication_tables", [_]) => {
                (Self::Nothing, vec![Text], vec![("relid", SqlType::Oid)])
            }
            _ => return None,
        })
    }

    /// Whether the function reads the catalog.
    pub(crate) fn reads_catalog(self) -> bool {
        self == Self::Privileges
    }

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
