//! Plans cached by a node must not change the rows that a program reads.

use pangea_core::exec::ordered::Finished;

use crate::testing::{Replica, cold, program};

/// Tables, types, views and procedures that refer to each other.
const SETUP: [&str; 17] = [
    "create type mood as enum ('sad', 'happy')",
    "create schema other",
    "create table a_parent (a int primary key, m mood)",
    "create table b_child (a int primary key, p int constraint b_fk references a_parent (a))",
    "create table c_moods (a int primary key, m mood unique)",
    "create table other.t (a int primary key)",
    "create table other.b_child (a int primary key)",
    "create view v as select a from b_child where p = 1",
    "create sequence s",
    "insert into a_parent values (1, 'sad')",
    "create procedure p(k int) language plpgsql as
     'begin insert into b_child values (k, 1); end'",
    "create procedure nested(k int) language plpgsql as
     'begin update a_parent set m = ''happy'' where a = k; call p(k); end'",
    "create procedure moody(m mood) language sql as 'insert into c_moods values (1, m)'",
    "create procedure shaped() language plpgsql as
     'declare r b_child%rowtype; held a_parent.m%type; begin
      select * into r from b_child where a = 1;
      held := ''happy''; update c_moods set m = held where a = r.a; end'",
    "create procedure computed(t text) language plpgsql as
     'begin execute ''insert into '' || t || '' values (9)''; end'",
    "create procedure caught(k int) language plpgsql as
     'begin insert into b_child values (k, k); exception when others then
      insert into other.t values (k); end'",
    "create role r",
];

/// Statements that run repeatedly.
const STATEMENTS: [&str; 22] = [
    "call p(7)",
    "call nested(1)",
    "call moody('sad')",
    "call moody('sad'::mood)",
    "call shaped()",
    "call caught(8)",
    "call computed('other.t')",
    "insert into b_child values (3, 1)",
    "insert into b_child values (3, 1) on conflict (a) do update set p = 1",
    "insert into c_moods values (2, 'happy'::mood)",
    "insert into c_moods select a, 'happy'::mood from b_child where p = 1",
    "insert into other.t select a from v",
    "update a_parent set m = 'sad'::mood where m <> 'happy'::mood",
    "delete from a_parent where a = 5 and m = any (array['sad']::mood[])",
    "update c_moods set a = a where m in (select m from a_parent)",
    "do $$ declare held mood; begin held := 'sad'; delete from c_moods where m = held; end $$",
    "comment on schema public is 'x'",
    "comment on schema other is 'x'",
    "comment on type mood is 'x'",
    "create table if not exists d (a mood, b int references a_parent)",
    "grant select on b_child to r",
    "truncate other.t",
];

const CHANGES: [&str; 18] = [
    "select 1",
    "alter table b_child drop constraint b_fk",
    "alter table a_parent add column x int",
    "alter table a_parent rename to z_parent",
    "alter table b_child add column x mood",
    "alter table c_moods rename column m to n",
    "alter type mood add value 'new'",
    "alter type mood rename to z_mood",
    "drop view v",
    "create or replace view v as select a from other.t",
    "drop procedure p(int)",
    "create or replace procedure p(k int) language sql as 'insert into other.t values (k)'",
    "create procedure moody(m text) language sql as 'delete from c_moods'",
    "drop schema other cascade",
    "create schema me",
    "create index b_p on b_child (p)",
    "drop table b_child cascade",
    "create type z_label as enum ('sad')",
];

#[test]
fn what_a_program_reads_does_not_depend_on_the_plans_that_are_kept() {
    for change in CHANGES {
        let mut replica = Replica::new();
        replica.have(&SETUP);
        for sql in STATEMENTS {
            let _ = replica.run(&[(program(sql, None), None)]);
        }
        for sql in STATEMENTS {
            let kept = replica.footprint(&replica.registry, sql);
            assert_eq!(kept, replica.footprint(&cold(), sql), "{sql}");
        }
        replica.have(&[change]);
        for sql in STATEMENTS {
            let stale = replica.footprint(&replica.registry, sql);
            let again = replica.footprint(&replica.registry, sql);
            let fresh = replica.footprint(&cold(), sql);
            assert_eq!(stale, fresh, "{sql}, after {change}");
            assert_eq!(again, fresh, "{sql} once more, after {change}");
        }
    }
}

/// A replica that had run a CALL before a foreign key was dropped read the parent's record again,
/// because of its cached plan. The footprint found by another replica did not contain that record.
/// On this replica the call violated its footprint and ran after all other transactions of its
/// slice; on the other replica it ran at its place in the order.
#[test]
fn a_call_whose_plan_is_old_runs_at_its_place() {
    let sql = "call p(7)";
    let last = "insert into b_child values (7, 0) on conflict do nothing";
    let run = |is_restarted: bool| -> Vec<Finished> {
        let mut replica = Replica::new();
        replica.have(&SETUP);
        replica.have(&[sql, "delete from b_child where a = 7"]);
        replica.have(&["alter table b_child drop constraint b_fk"]);
        if is_restarted {
            replica.registry = cold();
        }
        let footprint = replica.footprint(&cold(), sql);
        replica.run(&[(program(sql, None), Some(footprint)), (program(last, None), None)])
    };
    let (old, new) = (run(false), run(true));
    assert_eq!(old, new);
    assert!(old.iter().all(|done| done.passes == 1 && done.outcome.is_ok()), "{old:?}");
    assert!(old[1].writes.is_empty(), "{old:?}");
}
