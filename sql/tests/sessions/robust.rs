//! Statements combined from random parts: each is answered, whether valid or not, and none panics.
//! A panic in a procedure would occur on every replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};
use pangea_sql::types::text;
use proptest::prelude::*;

use crate::ready;

fn session() -> Session {
    let plans = Arc::new(Shared::default());
    let mut session = Session::new(Arc::new(MemoryEngine::new()), plans, &BTreeMap::new()).unwrap();
    let setup = "create table t (a int, b bigint, c text, d numeric(9,2), e double precision, \
                 f char(3), g bytea, h date, i timestamptz, j boolean, k uuid, l real, \
                 m smallint, n varchar(4), primary key (a, f, d)); \
                 insert into t values (1, -1, 'x', 1.5, 0.5, 'c', '\\x00', '2026-01-01', \
                 '2026-01-01 00:00+00', true, gen_random_uuid(), 1.5, 3, 'v'), \
                 (-2147483648, null, null, 0, null, '', null, null, null, null, null, null, null, \
                 null)";
    let responses = ready(session.simple_query(setup));
    assert!(!matches!(responses.last(), Some(Response::Error(_))), "{responses:?}");
    session
}

const ATOMS: &[&str] = &[
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "j",
    "k",
    "l",
    "m",
    "n",
    "null",
    "true",
    "0",
    "1",
    "-7",
    "2147483647",
    "9223372036854775807",
    "1.5",
    "1e30",
    "0.000001",
    "'x'",
    "''",
    "'12'",
    "'2026-11-21'",
    "'infinity'::timestamptz",
    "date 'infinity'",
    "interval '1 mon -1 day 00:00:01'",
    "interval '178956970 years'",
    "time '23:59:59.5'",
    "array[1,null,3]",
    "'{\"a\": [1, 2.50], \"b\": null}'::jsonb",
    "'[1, {\"a\":\"x\"}]'::json",
    "'[]'::jsonb",
    "'{a,0}'",
    "'{{a,b},{c,d}}'::text[]",
    "array[]::numeric[]",
    "now()",
    "current_date",
    "'\\xff'::bytea",
    "'NaN'::float8",
    "'-Infinity'::float8",
    "version()",
    "'é%_'",
    "'%3$s %-4I'",
    "'^[^]a-z[:alpha:]](x{2}|\\\\d)*?$'",
    "'FMMonth DDth IYYY \"q'",
    "count(*)",
    "sum(d)",
    "max(c)",
    "avg(b)",
];

const OPERATORS: &[&str] = &[
    "+",
    "-",
    "*",
    "/",
    "%",
    "=",
    "<>",
    "<",
    ">=",
    "and",
    "or",
    "||",
    "like",
    "&",
    "#",
    "is distinct from",
    "~",
    "!~*",
    "at time zone",
    "@>",
    "->",
    "->>",
    "#>",
    "#-",
    "?",
    "&&",
];

const CALLS: &[&str] = &[
    "abs",
    "ceil",
    "round",
    "trunc",
    "sqrt",
    "lower",
    "length",
    "substr",
    "left",
    "right",
    "lpad",
    "repeat",
    "split_part",
    "replace",
    "concat",
    "coalesce",
    "nullif",
    "greatest",
    "mod",
    "date_trunc",
    "age",
    "regexp_replace",
    "regexp_match",
    "regexp_split_to_array",
    "format",
    "initcap",
    "translate",
    "overlay",
    "quote_ident",
    "power",
    "ln",
    "gcd",
    "lcm",
    "div",
    "factorial",
    "width_bucket",
    "make_date",
    "to_timestamp",
    "date_bin",
    "to_char",
    "num_nulls",
    "to_jsonb",
    "to_json",
    "jsonb_set",
    "jsonb_insert",
    "jsonb_build_object",
    "json_build_array",
    "jsonb_pretty",
    "json_strip_nulls",
    "jsonb_extract_path_text",
    "array_append",
    "array_cat",
    "array_position",
    "array_remove",
    "array_to_string",
    "array_length",
    "array_fill",
    "string_to_array",
    "justify_interval",
    "make_interval",
    "to_hex",
    "chr",
    "encode",
    "decode",
    "strpos",
    "sign",
    "min",
];

const TYPES: &[&str] = &[
    "int",
    "smallint",
    "bigint",
    "numeric",
    "numeric(5,2)",
    "text",
    "char(2)",
    "varchar(3)",
    "bytea",
    "date",
    "time(1)",
    "interval",
    "int[]",
    "json",
    "jsonb",
    "varchar(2)[]",
    "timestamp",
    "timestamptz(2)",
    "uuid",
    "boolean",
    "real",
    "double precision",
];

fn atom() -> impl Strategy<Value = String> {
    proptest::sample::select(ATOMS).prop_map(str::to_owned)
}

fn expression() -> impl Strategy<Value = String> {
    atom().prop_recursive(4, 24, 3, move |inner| {
        let two = (inner.clone(), inner.clone());
        let three = (inner.clone(), inner.clone(), inner.clone());
        prop_oneof![
            (two.clone(), proptest::sample::select(OPERATORS))
                .prop_map(|((x, y), op)| format!("({x} {op} {y})")),
            (inner.clone(), proptest::sample::select(CALLS))
                .prop_map(|(x, call)| format!("{call}({x})")),
            (two.clone(), proptest::sample::select(CALLS))
                .prop_map(|((x, y), call)| format!("{call}({x}, {y})")),
            (three.clone(), proptest::sample::select(CALLS))
                .prop_map(|((x, y, z), call)| format!("{call}({x}, {y}, {z})")),
            (inner.clone(), proptest::sample::select(TYPES))
                .prop_map(|(x, to)| format!("({x})::{to}")),
            three.clone().prop_map(|(x, y, z)| format!("case when {x} then {y} else {z} end")),
            three.clone().prop_map(|(x, y, z)| format!("({x} in ({y}, {z}))")),
            three.prop_map(|(x, y, z)| format!("({x} not between {y} and {z})")),
            inner.clone().prop_map(|x| format!("({x} is not null)")),
            two.clone().prop_map(|(x, y)| format!("({x} = any({y}))")),
            two.clone().prop_map(|(x, y)| format!("array[{x}, {y}]")),
            two.clone().prop_map(|(x, y)| format!("({x})[{y}:]")),
            two.prop_map(|(x, y)| format!("({x})[{y}]")),
            inner.clone().prop_map(|x| format!("extract(week from {x})")),
            inner.prop_map(|x| format!("(- {x})")),
        ]
    })
}

fn statement() -> impl Strategy<Value = String> {
    let expr = expression;
    prop_oneof![
        expr().prop_map(|x| format!("select {x} from t")),
        (expr(), expr()).prop_map(|(x, y)| format!("select * from t where {x} order by {y} desc")),
        (expr(), expr()).prop_map(|(x, y)| format!("select distinct {x}, {y} from t limit 1")),
        (expr(), expr())
            .prop_map(|(x, y)| format!("select {x}, count(*) from t group by {x}, {y} having {y}")),
        (expr(), expr()).prop_map(|(x, y)| format!("update t set b = {x}, c = {y} returning *")),
        (expr(), expr()).prop_map(|(x, y)| format!("update t set a = {x}, f = {y} where j")),
        (expr(), expr(), expr())
            .prop_map(|(x, y, z)| format!("insert into t (a, f, d) values ({x}, {y}, {z})")),
        expr().prop_map(|x| format!("delete from t where a = {x} and f > {x} returning d")),
        (expr(), expr()).prop_map(|(x, y)| format!("select a from t where a in ({x}) and d = {y}")),
        "[a-z0-9 (),.'\"$;:*=-]{0,40}".prop_map(|noise| format!("select {noise}")),
        "\\PC{0,40}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn every_statement_is_answered(sql in statement()) {
        let mut session = session();
        for response in ready(session.simple_query(&sql)) {
            match response {
                Response::Rows { columns, rows, .. } => {
                    for (datum, column) in rows.iter().flat_map(|row| row.iter().zip(&columns)) {
                        text::format(column.ty.base, datum, session.zone());
                    }
                }
                // Errors must be those of the statement, and never internal ones.
                Response::Error(error) => {
                    prop_assert!(!error.code.as_str().starts_with("XX"), "{sql}: {error}");
                }
                Response::Empty
                | Response::Command { .. }
                | Response::Stream { .. }
                | Response::CopyIn(_)
                | Response::CopyOut(_) => {}
            }
        }
    }
}
