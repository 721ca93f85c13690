//! Real clients over real sockets, against an in-memory engine.

mod cancel;
mod copy;
mod drivers;
mod hostile;
mod losses;
mod security;
mod server;
mod streams;
mod timeouts;

use std::time::Duration;

use futures_util::future::join_all;
use pangea_sql::engine::Engine;
use pangea_sql::memory::MemoryEngine;
use server::{Server, connect, connection, one_thread, with_server};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

fn cells(messages: &[SimpleQueryMessage]) -> Vec<String> {
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            let cell = |at| row.get(at).unwrap_or("NULL").to_owned();
            Some((0..row.len()).map(cell).collect::<Vec<_>>().join("|"))
        }
        _ => None,
    };
    messages.iter().filter_map(row).collect()
}

#[test]
fn simple_queries_come_as_text() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        let script = "create table t (id int primary key, x numeric(6,2)); \
                      insert into t values (1, 1.5), (2, null); select * from t";
        let messages = client.simple_query(script).await.unwrap();
        assert_eq!(cells(&messages), ["1|1.50", "2|NULL"]);
        let error = client.simple_query("select * from t where y = 1").await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::UNDEFINED_COLUMN);
        let position = tokio_postgres::error::ErrorPosition::Original(23);
        assert_eq!(error.position(), Some(&position));
        let shown = client.simple_query("select current_database(), current_user").await.unwrap();
        assert_eq!(cells(&shown), ["db|me"]);
    });
}

#[test]
fn parameters_and_results_come_in_binary() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client
            .batch_execute(
                "create table t (a smallint, b int, c bigint primary key, d real, \
                 e double precision, f text, g bytea, h boolean)",
            )
            .await
            .unwrap();
        let insert =
            client.prepare("insert into t values ($1, $2, $3, $4, $5, $6, $7, $8)").await.unwrap();
        let types = [
            Type::INT2,
            Type::INT4,
            Type::INT8,
            Type::FLOAT4,
            Type::FLOAT8,
            Type::TEXT,
            Type::BYTEA,
            Type::BOOL,
        ];
        assert_eq!(insert.params(), types);
        let count = client
            .execute(
                &insert,
                &[&1i16, &-2i32, &3i64, &0.5f32, &-0.25f64, &"é", &&b"\0\xff"[..], &true],
            )
            .await
            .unwrap();
        assert_eq!(count, 1);
        let row = client.query_one("select * from t where c = $1", &[&3i64]).await.unwrap();
        assert_eq!((row.get::<_, i16>(0), row.get::<_, i32>(1), row.get::<_, i64>(2)), (1, -2, 3));
        assert_eq!((row.get::<_, f32>(3), row.get::<_, f64>(4)), (0.5, -0.25));
        assert_eq!((row.get::<_, &str>(5), row.get::<_, &[u8]>(6)), ("é", &b"\0\xff"[..]));
        assert!(row.get::<_, bool>(7));
        let none: Option<i32> = None;
        let update = "update t set b = $1 where c = $2 and (b = $3 or $3 is null) returning b";
        let row = client.query_one(update, &[&none, &3i64, &-2i32]).await.unwrap();
        assert_eq!(row.get::<_, Option<i32>>(0), None);
        let error = client.query("select 1 / $1::int", &[&0i32]).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::DIVISION_BY_ZERO));
        // The connection remains usable after an error.
        let row = client.query_one("select $1::text || 'b'", &[&"a"]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "ab");
    });
}

#[test]
fn the_second_of_two_conflicting_transactions_fails_with_40001() {
    with_server(|address, _| async move {
        let (mut a, mut b) = (connect(address).await, connect(address).await);
        a.batch_execute("create table t (id int primary key, n int); insert into t values (1, 0)")
            .await
            .unwrap();
        let first = a.transaction().await.unwrap();
        let second = b.transaction().await.unwrap();
        let read = "select n from t where id = 1";
        let n: i32 = first.query_one(read, &[]).await.unwrap().get(0);
        assert_eq!(second.query_one(read, &[]).await.unwrap().get::<_, i32>(0), n);
        let write = "update t set n = $1 where id = 1";
        first.execute(write, &[&(n + 1)]).await.unwrap();
        second.execute(write, &[&(n + 1)]).await.unwrap();
        first.commit().await.unwrap();
        let error = second.commit().await.unwrap_err();
        let error = error.as_db_error().unwrap().clone();
        assert_eq!(error.code(), &SqlState::T_R_SERIALIZATION_FAILURE);
        assert!(error.detail().unwrap().contains("table t "), "{:?}", error.detail());
        assert_eq!(b.query_one(read, &[]).await.unwrap().get::<_, i32>(0), 1);
    });
}

/// An UPDATE of a row that another session had inserted, and that was not in the snapshot yet, once
/// changed no row, and the COMMIT succeeded.
#[test]
fn an_update_that_misses_a_newer_row_fails_with_40001() {
    with_server(|address, _| async move {
        let (mut a, b) = (connect(address).await, connect(address).await);
        a.batch_execute("create table t (id int primary key, n int)").await.unwrap();
        let stale = a.transaction().await.unwrap();
        assert!(stale.query("select n from t", &[]).await.unwrap().is_empty());
        b.batch_execute("insert into t values (1, 0)").await.unwrap();
        assert_eq!(stale.execute("update t set n = 1 where id = 1", &[]).await.unwrap(), 0);
        let error = stale.commit().await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
        // A read-only transaction sees its snapshot and commits. A transaction whose writes match
        // no row commits too.
        let reader = a.transaction().await.unwrap();
        reader.query("select n from t", &[]).await.unwrap();
        b.batch_execute("update t set n = 2").await.unwrap();
        reader.commit().await.unwrap();
        let idle = a.transaction().await.unwrap();
        assert_eq!(idle.execute("delete from t where id = 7", &[]).await.unwrap(), 0);
        idle.commit().await.unwrap();
    });
}

/// Rows that DataFusion finds for a write are found on a snapshot, and are searched again if the
/// snapshot was outdated.
#[test]
fn writes_that_ask_queries_lose_no_update_to_each_other() {
    const CLIENTS: usize = 4;
    const TURNS: usize = 25;
    with_server(|address, _| async move {
        let admin = connect(address).await;
        admin
            .batch_execute(
                "create table t (id int primary key, n int); insert into t values (1, 0)",
            )
            .await
            .unwrap();
        let clients = (0..CLIENTS).map(|_| async move {
            let client = connect(address).await;
            for _ in 0..TURNS {
                let update = "update t set n = n + (select count(*) from t where id = 1)::int";
                // The server retries the statement a few times; after that the client must retry.
                while let Err(error) = client.batch_execute(update).await {
                    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
                }
            }
        });
        join_all(clients.map(tokio::spawn)).await.into_iter().for_each(|ended| ended.unwrap());
        let n: i32 = admin.query_one("select n from t", &[]).await.unwrap().get(0);
        assert_eq!(n, (CLIENTS * TURNS) as i32);
    });
}

#[test]
fn a_pipeline_up_to_its_sync_is_one_transaction() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (id int primary key)").await.unwrap();
        let error = client
            .batch_execute("insert into t values (1); insert into t values (1)")
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::UNIQUE_VIOLATION));
        let count: i64 = client.query_one("select count(*) from t", &[]).await.unwrap().get(0);
        assert_eq!(count, 0, "the first insert was rolled back with the second");
    });
}

#[test]
fn a_client_that_vanishes_gives_back_its_snapshot_and_hurts_no_other() {
    with_server(|address, engine| async move {
        let other = connect(address).await;
        other.batch_execute("create table t (id int primary key)").await.unwrap();
        let vanishing = connect(address).await;
        vanishing.batch_execute("begin").await.unwrap();
        vanishing.batch_execute("insert into t values (1)").await.unwrap();
        let pinned = engine.store().published();
        other.batch_execute("insert into t values (2)").await.unwrap();
        assert_eq!(engine.store().oldest_pinned(), pinned);
        drop(vanishing);
        let freed = async {
            while engine.store().oldest_pinned() == pinned {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), freed).await.expect("the pin is released");
        let rows = other.query("select id from t", &[]).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), [2]);
    });
}

#[test]
fn an_idle_client_is_told_when_the_server_stops() {
    one_thread().block_on(async {
        let server = Server::start(MemoryEngine::new()).await;
        let (_client, connection) = connection(server.address).await;
        let stop = server.stop();
        let (end, ()) = tokio::join!(connection, stop);
        assert_eq!(end.unwrap_err().code(), Some(&SqlState::ADMIN_SHUTDOWN));
    });
}

#[test]
fn a_portal_gives_as_many_rows_as_are_asked_for_and_goes_on() {
    with_server(|address, _| async move {
        let mut client = connect(address).await;
        client.batch_execute("create table t (id int primary key)").await.unwrap();
        client.batch_execute("insert into t values (1), (2), (3), (4), (5)").await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let portal = transaction.bind("select id from t order by id", &[]).await.unwrap();
        for expected in [&[1, 2][..], &[3, 4], &[5], &[]] {
            let rows = transaction.query_portal(&portal, 2).await.unwrap();
            let ids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
            assert_eq!(ids, expected);
        }
        transaction.commit().await.unwrap();
    });
}
