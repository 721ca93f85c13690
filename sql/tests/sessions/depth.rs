//! Long chains and deep nests: statements within the limits fit a thread's stack, others are
//! refused. A stack overflow would terminate the whole node.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::ready;

/// Stack size of a node's threads, in bytes.
const STACK_BYTES: usize = 2 << 20;

/// Returns the SQLSTATE of a statement, `00000` if it succeeds.
fn state_of(sql: String) -> String {
    let run = move || {
        let plans = Arc::new(Shared::default());
        let mut session =
            Session::new(Arc::new(MemoryEngine::new()), plans, &BTreeMap::new()).unwrap();
        match ready(session.simple_query(&sql)).last() {
            Some(Response::Error(error)) => error.code.to_string(),
            _ => "00000".to_owned(),
        }
    };
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).unwrap().join().unwrap()
}

#[test]
fn chains_up_to_the_limit_run_and_longer_ones_are_refused() {
    for link in ["1 + ", "'a' || ", "null is null = "] {
        let last = link.split(' ').next().unwrap();
        let chain = |links: usize| format!("select {}{last} is null", link.repeat(links));
        assert_eq!(state_of(chain(150)), "00000", "{link}");
        for links in [1_000, 100_000] {
            assert_eq!(state_of(chain(links)), "54001", "{link}");
        }
    }
    let long = |links: usize| format!("select {}1", "1 + ".repeat(links));
    assert_eq!(state_of(long(798)), "00000");
    assert_eq!(state_of(long(801)), "54001");
    assert_eq!(state_of(format!("select 1{}", "::int".repeat(100_000))), "54001");
    assert_eq!(state_of(format!("select 1{}", " union select 1".repeat(100_000))), "54001");
    assert_eq!(state_of(format!("select {}1", "not ".repeat(100_000))), "54001");
    assert_eq!(state_of(format!("select {}1{}", "(".repeat(9_999), ")".repeat(9_999))), "54001");
    assert_eq!(state_of(format!("select 1,1{}", " union select 1,1".repeat(100_000))), "54001");
    assert_eq!(state_of(format!("select array[1,1]{}", " || array[1,1]".repeat(100_000))), "54001");
    let nested = "(1 + 1 + ".repeat(5_000) + "1" + &")".repeat(5_000);
    assert_eq!(state_of(format!("select {nested}")), "54001");
}

#[test]
fn queries_within_queries_fit_or_are_refused() {
    let within = |depth: usize, open: &str, close: &str| {
        format!("{}select 1 as a{}", open.repeat(depth), close.repeat(depth))
    };
    for (open, close) in [
        ("select a from (", ") t"),
        ("select a + 1 as a from (", ") t where a > 0"),
        ("select 1 as a where 1 in (", ")"),
        ("select (", ") as a"),
        ("select count(*) as a from (", ") t group by a"),
        ("select a from (", " order by 1 limit 1) t"),
        ("select sum(a) over () as a from (", ") t"),
        ("with t as (", ") select a from t"),
    ] {
        assert_eq!(state_of(within(15, open, close)), "00000", "{open}");
        for depth in [200, 2_000] {
            let state = state_of(within(depth, open, close));
            assert!(["00000", "54001"].contains(&state.as_str()), "{state} {open}");
        }
    }
    let chain = |link: &str, count: usize| format!("select 1 as a{}", link.repeat(count));
    for link in
        [" union select 2", " union all select 2", " intersect select 1", " except select 2"]
    {
        assert_eq!(state_of(chain(link, 40)), "00000", "{link}");
        assert_eq!(state_of(chain(link, 2_000)), "54001", "{link}");
    }
    let joins = |count: usize| {
        let joined = (1..count).map(|at| format!(" join generate_series(1, 1) t{at} on true"));
        format!("select count(*) from generate_series(1, 1) t0{}", joined.collect::<String>())
    };
    assert_eq!(state_of(joins(40)), "00000");
    assert_eq!(state_of(joins(2_000)), "54001");
}

#[test]
fn chains_of_and_and_or_are_as_long_as_people_need() {
    let links =
        ["true and ", "1 = 2 or ", "1 = 2 or 1 = 1 and ", "1 between 1 and 2 and not false or "];
    for link in links {
        for count in [10, 33, 1_000, 20_000] {
            assert_eq!(state_of(format!("select {}true", link.repeat(count))), "00000", "{link}");
            let unfinished = format!("select {}+", link.repeat(count));
            assert_eq!(state_of(unfinished), "42601", "{link}");
        }
        assert_eq!(state_of(format!("select {}true", link.repeat(100_001))), "54001", "{link}");
    }
    let longest = "true or ".repeat(100_000);
    assert_eq!(state_of(format!("select {longest}true")), "00000");
    assert_eq!(state_of(format!("select {longest}+")), "42601");
    // The AND of a BETWEEN ends no chain.
    let betweens = " between 0 and 1".repeat(5_000);
    assert_eq!(state_of(format!("select 1{betweens}")), "54001");
    let cases = "case when true and true then 1 end + ".repeat(5_000);
    assert_eq!(state_of(format!("select {cases}1")), "54001");
    let whens = "when 1 = 2 and true then 3 ".repeat(5_000);
    assert_eq!(state_of(format!("select case {whens} end")), "00000");
}

#[test]
fn long_lists_are_no_nests() {
    let list = (0..20_000).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    assert_eq!(state_of(format!("select 7 in ({list})")), "00000");
    let rows = (0..5_000).map(|n| format!("({n}, 'x' || {n})")).collect::<Vec<_>>().join(", ");
    let sql = format!("create table t (a int primary key, b text); insert into t values {rows}");
    assert_eq!(state_of(sql), "00000");
}

/// The catalog stores a view as text, which is parsed again when a later statement needs it.
#[test]
fn a_view_over_a_long_chain_follows_the_name_of_its_table() {
    let chain = "a = 1 or ".repeat(20_000);
    let made =
        format!("create table t (a int); create view v as select a from t where {chain} a = 2");
    assert_eq!(state_of(format!("{made}; alter table t rename to u; select * from v")), "00000");
}

#[test]
fn declarations_within_declarations_are_refused() {
    let nested = "declare c cursor for ".repeat(50_000);
    assert_eq!(state_of(format!("{nested} select 1")), "42601");
}

#[test]
fn views_over_views_fit() {
    let views = |count: usize| {
        let one = |at: usize| format!("create view v{at} as select * from v{};", at - 1);
        let all: String = (1..=count).map(one).collect();
        format!("create view v0 as select 1 as a;{all} select * from v{count}")
    };
    assert_eq!(state_of(views(200)), "00000");
}

#[test]
fn conditions_over_several_relations_run_up_to_the_limit_and_more_are_refused() {
    let many = |count: usize, condition: &dyn Fn(usize) -> String| {
        (0..count).map(condition).collect::<Vec<_>>().join(" and ")
    };
    let of_catalog = |count| {
        format!("select count(*) from pg_class where {}", many(count, &|i| format!("oid <> {i}")))
    };
    let tables = "create table s (k int primary key); insert into s values (1), (2)";
    let of_join = |count| {
        let conditions = many(count, &|i| format!("a.k <> b.k + {}", i + 5));
        format!("{tables}; select count(*) from s a join s b on {conditions}")
    };
    let of_comma = |count| {
        let conditions = many(count, &|i| format!("a.k <> b.k + {}", i + 5));
        format!("{tables}; select count(*) from s a, s b where {conditions}")
    };
    for count in [1, 2, 2_400] {
        assert_eq!(state_of(of_catalog(count)), "00000", "{count}");
        assert_eq!(state_of(of_join(count)), "00000", "{count}");
        assert_eq!(state_of(of_comma(count)), "00000", "{count}");
    }
    for count in [3_000, 20_000] {
        assert_eq!(state_of(of_catalog(count)), "54001", "{count}");
        assert_eq!(state_of(of_join(count)), "54001", "{count}");
        assert_eq!(state_of(of_comma(count)), "54001", "{count}");
    }
}
