//! How many programs a CALL submits, and the messages that its client receives.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::ready;

fn session(engine: &MemoryEngine) -> Session {
    Session::new(Arc::new(engine.clone()), Arc::new(Shared::default()), &BTreeMap::new()).unwrap()
}

fn run(session: &mut Session, sql: &str) {
    let responses = ready(session.simple_query(sql));
    assert!(!matches!(responses.last(), Some(Response::Error(_))), "{sql}: {responses:?}");
}

/// Returns the messages that a client receives for one statement: severities, codes and texts.
fn reported(session: &mut Session, sql: &str) -> Vec<String> {
    run(session, sql);
    let notices = session.take_notices().into_iter();
    let shown = |it: pangea_sql::notice::Notice| {
        let more = it.detail.map_or(String::new(), |detail| format!(" ({detail})"));
        format!("{} {} {}{more}", it.severity, it.code.as_str(), it.message)
    };
    notices.map(shown).collect()
}

#[test]
fn a_client_is_told_what_it_wants_to_hear() {
    let mut session = session(&MemoryEngine::new());
    let all = "do $$ begin
        raise debug 'd'; raise log 'l'; raise notice 'n %', 1; raise warning 'w'; raise info 'i';
        raise notice using message = 'm', detail = 'more', errcode = '01007';
        drop table if exists nothing;
    end $$";
    let plain = [
        "NOTICE 00000 n 1",
        "WARNING 01000 w",
        "INFO 00000 i",
        "NOTICE 01007 m (more)",
        "NOTICE 00000 table \"nothing\" does not exist, skipping",
    ];
    assert_eq!(reported(&mut session, all), plain);
    run(&mut session, "set client_min_messages = warning");
    assert_eq!(reported(&mut session, all), [plain[1], plain[2]]);
    run(&mut session, "set client_min_messages = debug1");
    assert_eq!(reported(&mut session, all).len(), 7);
    // In a transaction block the session itself runs the procedure.
    run(&mut session, "reset client_min_messages; begin");
    assert_eq!(reported(&mut session, all), plain);
}

#[test]
fn a_call_is_one_program_unless_it_asks_several_tables_at_once() {
    let engine = MemoryEngine::new();
    let mut session = session(&engine);
    run(&mut session, "create table t (id int primary key, n int)");
    run(&mut session, "create table u (id int primary key, n int)");
    run(
        &mut session,
        "create procedure simple(k int) language plpgsql as $$
         declare found_n int;
         begin
           select n into found_n from t where id = k;
           if found_n is null then insert into t values (k, 1);
           else update t set n = found_n + 1 where id = k; end if;
         end $$",
    );
    run(
        &mut session,
        "create procedure joined() language sql as
         'insert into u select t.id, t.n from t left join u on u.id = t.id where u.id is null'",
    );
    run(&mut session, "create procedure nested() language plpgsql as 'begin call joined(); end'");
    let mut programs = |sql: &str| {
        let before = engine.program_count();
        run(&mut session, sql);
        engine.program_count() - before
    };
    assert_eq!(programs("call simple(1)"), 1);
    assert_eq!(programs("call simple(1)"), 1);
    assert_eq!(programs("call joined()"), 0);
    assert_eq!(programs("call nested()"), 0);
    // A procedure that only reads needs no place in the order.
    assert_eq!(programs("do $$ declare n int; begin select count(*) into n from t; end $$"), 0);
    let rows = ready(session.simple_query("select u.id, u.n from u"));
    assert!(format!("{rows:?}").contains("[Int(1), Int(2)]"), "{rows:?}");
}

#[test]
fn a_query_within_an_expression_runs_by_itself() {
    let engine = MemoryEngine::new();
    let mut session = session(&engine);
    run(&mut session, "create table t (id int primary key, n int); insert into t values (1, 5)");
    let mut programs = |body: &str| {
        let before = engine.program_count();
        run(&mut session, &format!("do $$ declare k int := 1; v int; begin {body} end $$"));
        engine.program_count() - before
    };
    let upsert = "if exists (select 1 from t where id = k) then
                      update t set n = n + 1 where id = k;
                  else insert into t values (k, 0); end if;";
    assert_eq!(programs(upsert), 1);
    assert_eq!(programs(&upsert.replace(" k)", " k + 1)").replace("(k, 0)", "(k + 1, 0)")), 1);
    let several = "v := (select max(n) from t) + (select count(*) from t where id < 9);
                   if not exists (select from t where n > 100) and v = 8 then
                       insert into t values (v, (select 1)::int + 1); end if;";
    assert_eq!(programs(&several.replace("(select 1)::int + 1", "v")), 1);
    // A subquery of a statement runs within the statement.
    assert_eq!(programs("update t set n = (select max(id) from t) where id = 1;"), 0);
    let rows = format!("{:?}", ready(session.simple_query("select * from t order by id")));
    let expected = "[[Int(1), Int(8)], [Int(2), Int(0)], [Int(8), Int(8)]]";
    assert!(rows.contains(expected), "{rows}");
    let two = "do $$ declare v int; begin v := (select n from t); end $$";
    let refused = format!("{:?}", ready(session.simple_query(two)));
    assert!(refused.contains("more than one row returned by a subquery"), "{refused}");
}

/// Creates the procedures c.. of these numbers, whose bodies name the one before.
fn chain(
    session: &mut Session,
    numbers: std::ops::RangeInclusive<usize>,
    body: impl Fn(&str) -> String,
) {
    for number in numbers {
        let body = body(&format!("c{}()", number - 1));
        run(session, &format!("create procedure c{number}() language plpgsql as '{body}'"));
    }
}

/// The planning of a chain of 300 calls overflowed the stack of its node. In a chain that names
/// each procedure twice, each procedure doubled the time.
#[test]
fn chains_of_calls_are_looked_at_once_and_not_too_deep() {
    let mut session = session(&MemoryEngine::new());
    run(&mut session, "create procedure c0() language sql as 'select 1'");
    chain(&mut session, 1..=300, |before| {
        format!("begin if false then call {before}; call {before}; end if; end")
    });
    run(&mut session, "call c300()");
    run(&mut session, "call c40()");
}

/// Story: without optimization, nested calls overflowed the stack of the process long before their
/// limit.
#[test]
fn calls_are_nested_up_to_the_limit_and_deeper_ones_are_refused() {
    let mut session = session(&MemoryEngine::new());
    run(&mut session, "create table t (n int)");
    run(&mut session, "create procedure c1() language sql as 'insert into t values (1)'");
    chain(&mut session, 2..=51, |before| {
        format!("begin for i in 1 .. 1 loop if true then call {before}; end if; end loop; end")
    });
    run(&mut session, "call c50()");
    let responses = ready(session.simple_query("call c51()"));
    let Some(Response::Error(error)) = responses.last() else { panic!("{responses:?}") };
    assert!(error.message.contains("nested more than 50 deep"), "{error:?}");
}
