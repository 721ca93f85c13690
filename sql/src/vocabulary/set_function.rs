//! The set-returning functions, by name and type.

use crate::types::{Reg, SqlType, TEXTS};

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
}
