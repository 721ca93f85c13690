//! The number of runs that the reconnaissance of a statement takes if tables are partitioned.

use super::*;
use crate::copy::Rows;
use crate::error::{SqlError, code};
use crate::testing::{Shards, program};
use crate::types::SqlType;

/// Three batches: `ROWS_FIRST` rows, as many again, and twice as many.
const ROWS: usize = 4 * ROWS_FIRST;
const BATCHES: usize = 3;

/// Formats each number with `row`.
fn listed(numbers: std::ops::Range<usize>, row: impl Fn(usize) -> String) -> String {
    numbers.map(row).collect::<Vec<_>>().join(",")
}

/// Creates tables with `ROWS` rows each, and an empty `child` that references `base`.
fn shards() -> Shards {
    let values = listed(0..ROWS, |at| format!("({at}, {at})"));
    Shards::with(&[
        "create table plain (a int primary key, n int)",
        "create table keyed (a int primary key, u int unique, n int)",
        "create table base (a int primary key, u int unique)",
        "create table child (a int primary key, p int references base (a),
                             u int references base (u), n int unique)",
        &format!("insert into plain values {values}"),
        "insert into base select a, a + 1 from plain",
        "insert into keyed select a, a, n from plain",
    ])
}

#[test]
fn a_statement_is_run_as_often_as_it_has_batches_and_not_as_rows() {
    let shards = shards();
    let all = listed(0..ROWS, |at| at.to_string());
    let new = |columns: usize| {
        let row = |at: usize| vec![(at + ROWS).to_string(); columns].join(",");
        listed(0..ROWS, |at| format!("({})", row(at)))
    };
    let old = listed(0..ROWS, |at| format!("({at}, {at}, {at})"));
    let moved = listed(0..ROWS, |at| format!("({}, {at}, {at})", at + ROWS));
    let children = listed(0..ROWS, |at| format!("({at}, {}, {}, {at})", at / 2, at + 1));
    let named = |of: &str| format!("where {of} = any ('{{{all}}}'::int[])");
    // Rows found by an index are read in batches of 8, 16, .. 128, and the rest.
    let by_index = 6;
    let cases = [
        (BATCHES, format!("insert into plain values {}", new(2))),
        (BATCHES, format!("insert into plain values {} returning a", new(2))),
        (BATCHES, format!("insert into keyed values {}", new(3))),
        (BATCHES, format!("insert into keyed values {old} on conflict do nothing")),
        (BATCHES, format!("insert into keyed values {old} on conflict (a) do update set n = 0")),
        // First the index entries, then the rows that they refer to.
        (
            2 * BATCHES,
            format!("insert into keyed values {moved} on conflict (u) do update set n = 0"),
        ),
        // First all referenced rows and index entries by key, then the rows that the entries refer
        // to.
        (BATCHES + 2, format!("insert into child values {children}")),
        (
            BATCHES,
            format!(
                "do $$ begin insert into plain values {}; exception when others then null; end $$",
                new(2)
            ),
        ),
        (1, format!("update plain set n = 0 {}", named("a"))),
        (2, format!("update plain set a = a + {ROWS} {}", named("a"))),
        (2, format!("update keyed set u = u + {ROWS} {}", named("a"))),
        (1 + by_index, format!("update keyed set n = 0 {}", named("u"))),
        (1, format!("delete from plain {}", named("a"))),
    ];
    for (most, sql) in cases {
        let shown = sql.get(..60).unwrap_or(&sql);
        // One more run has all rows that it reads.
        assert_eq!(shards.runs(&program(&sql, None), most + 1), Some(most + 1), "{shown}");
    }
}

#[test]
fn the_rows_of_a_copy_come_in_batches() {
    let shards = shards();
    let mut rows = Rows::new(vec![SqlType::Int4.into(); 2]);
    (ROWS..2 * ROWS).for_each(|at| rows.push(&[Datum::Int(at as i64), Datum::Null]));
    let copy = program("copy plain from stdin", Some(&rows));
    assert_eq!(shards.runs(&copy, BATCHES + 1), Some(BATCHES + 1));
}

#[test]
fn a_row_that_fails_does_so_behind_those_before_it() {
    let make = |number: usize| match number % (ROWS_FIRST + 2) {
        0 => Err(SqlError::new(code::INTERNAL, number.to_string()).into()),
        _ => Ok(number),
    };
    let mut batches = Batches::new(1..10_000);
    assert_eq!(batches.next(make).unwrap().len(), ROWS_FIRST);
    assert_eq!(batches.next(make).unwrap(), [ROWS_FIRST + 1]);
    assert!(batches.next(make).is_err());
    let mut batches = Batches::new(1..10_000);
    let mut lens = Vec::new();
    while let Some(len) = Some(batches.next(Ok).unwrap().len()).filter(|len| *len > 0) {
        lens.push(len);
    }
    assert_eq!(lens, [64, 64, 128, 256, 512, 1_024, 2_048, 4_096, 1_807]);
    let mut batches = Batches::one_by_one(0..3);
    assert_eq!(batches.next(Ok).unwrap(), [0]);
    assert_eq!(batches.next(Ok).unwrap(), [1]);
}
