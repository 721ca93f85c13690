//! Timeouts of statements, transactions and clients, and the warnings before them.

use std::future::poll_fn;

use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::AsyncMessage;
use tokio_postgres::error::{DbError, Error, SqlState};

use super::cells;
use super::server::{
    STRICT, connect, connection, one_thread, start_cluster, with_cluster, with_server,
};

/// The number of rows, so that a scan takes well over a millisecond.
const ROWS: usize = 30_000;

const TIMED_OUT: &str = "canceling statement due to statement timeout";

fn reported(error: &Error) -> &DbError {
    error.as_db_error().expect("the server sends the error")
}

#[test]
fn a_read_that_waits_for_longer_than_statement_timeout_is_cancelled() {
    with_cluster(|cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute(STRICT).await.unwrap();
        client.batch_execute("set statement_timeout = '50ms'").await.unwrap();
        let error = cluster.given_up(&client, "select * from r").await;
        assert_eq!(reported(&error).code(), &SqlState::QUERY_CANCELED);
        assert_eq!(reported(&error).message(), TIMED_OUT);
        // The same in the extended protocol, where the Parse waits.
        cluster.cut();
        let error = client.query("select * from r", &[]).await.unwrap_err();
        assert_eq!(reported(&error).message(), TIMED_OUT);
        cluster.heal();
        assert_eq!(client.query("select 1", &[]).await.unwrap().len(), 1);
        // A timeout in a transaction fails the transaction.
        client.batch_execute("begin").await.unwrap();
        cluster.given_up(&client, "select 1").await;
        let error = client.batch_execute("select 1").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
        client.batch_execute("rollback; select 1").await.unwrap();
    });
}

#[test]
fn a_write_that_waits_for_longer_than_statement_timeout_may_have_committed() {
    with_cluster(|cluster| async move {
        let client = connect(cluster.address).await;
        let setup = "create table t (id int primary key); set statement_timeout = 50";
        client.batch_execute(setup).await.unwrap();
        let check = |error: &Error| {
            let error = reported(error);
            assert_eq!(error.code(), &SqlState::TRANSACTION_RESOLUTION_UNKNOWN);
            assert_eq!(error.message(), TIMED_OUT);
            assert!(error.detail().is_some_and(|detail| detail.contains("may have committed")));
            assert!(error.hint().is_some_and(|hint| hint.contains("before you retry")));
        };
        check(&cluster.given_up(&client, "insert into t values (1)").await);
        client.batch_execute("begin; insert into t values (2)").await.unwrap();
        check(&cluster.given_up(&client, "commit").await);
        // Two statements form one transaction, which commits after the second one.
        check(&cluster.given_up(&client, "insert into t values (3); select 1").await);
        let insert = client.prepare("insert into t values ($1)").await.unwrap();
        cluster.cut();
        check(&client.execute(&insert, &[&4i32]).await.unwrap_err());
        cluster.heal();
        client.batch_execute("insert into t values (5)").await.unwrap();
    });
}

#[test]
fn statement_timeout_is_of_each_statement_and_0_is_none() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute(STRICT).await.unwrap();
        // SET LOCAL lasts until the end of the transaction, after which the earlier value applies
        // again.
        client.batch_execute("begin; set local statement_timeout = 50").await.unwrap();
        assert_eq!(reported(&cluster.given_up(&client, "select 1").await).message(), TIMED_OUT);
        client.batch_execute("rollback").await.unwrap();
        let shown = client.simple_query("show statement_timeout").await.unwrap();
        assert_eq!(cells(&shown), ["0"]);
        let error = cluster.cancelled(&client, "select * from r").await;
        assert_eq!(reported(&error).message(), "canceling statement due to user request");
    });
}

#[test]
fn a_read_that_computes_for_longer_than_statement_timeout_is_cancelled() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (id int primary key)").await.unwrap();
        let rows: Vec<String> = (0..ROWS).map(|id| format!("({id})")).collect();
        client.batch_execute(&format!("insert into t values {}", rows.join(", "))).await.unwrap();
        client.batch_execute("set statement_timeout = 1").await.unwrap();
        let scan = "select count(*) from t where repeat('x', id % 7) || 'y' = 'y'";
        let error = client.batch_execute(scan).await.unwrap_err();
        assert_eq!(reported(&error).message(), TIMED_OUT);
        client.batch_execute("set statement_timeout = 0").await.unwrap();
        client.batch_execute(scan).await.unwrap();
    });
}

#[test]
fn a_client_that_leaves_its_transaction_open_is_disconnected_and_an_idle_one_is_not() {
    with_server(|address, _| async move {
        let idle = connect(address).await;
        let set = "set idle_in_transaction_session_timeout = 50";
        idle.batch_execute(set).await.unwrap();
        let (client, connection) = connection(address).await;
        let connection = tokio::spawn(connection);
        client.batch_execute(set).await.unwrap();
        client.batch_execute("begin").await.unwrap();
        let end = connection.await.unwrap().unwrap_err();
        assert_eq!(reported(&end).severity(), "FATAL");
        assert_eq!(end.code(), Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT));
        idle.batch_execute("select 1").await.unwrap();
    });
}

#[test]
fn a_client_that_waits_for_a_majority_is_told_so_and_served_when_it_is_back() {
    with_cluster(|mut cluster| async move {
        let (client, mut connection) = connection(cluster.address).await;
        let (reported, mut notices) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let Ok(AsyncMessage::Notice(notice)) = message {
                    reported.send(notice).unwrap();
                }
            }
        });
        client.batch_execute("create table t (id int primary key)").await.unwrap();
        cluster.cut();
        let write = client.batch_execute("insert into t values (1)");
        let notice = async {
            let notice = notices.recv().await.unwrap();
            cluster.waiting.wait_for(|&count| count == 1).await.unwrap();
            client.cancel_token().cancel_query(tokio_postgres::NoTls).await.unwrap();
            notice
        };
        let (result, notice) = tokio::join!(write, notice);
        result.expect_err("the statement was cancelled");
        assert_eq!((notice.severity(), notice.code()), ("WARNING", &SqlState::WARNING));
        assert_eq!(notice.message(), "no node is reachable; waiting");
        cluster.heal();
        client.batch_execute("insert into t values (2)").await.unwrap();
        assert!(notices.is_empty(), "the warning is sent once");
    });
}

#[test]
fn a_client_that_vanishes_while_its_statement_waits_takes_the_statement_with_it() {
    with_cluster(|mut cluster| async move {
        let (client, connection) = connection(cluster.address).await;
        let connection = tokio::spawn(connection);
        client.batch_execute("create table t (id int primary key)").await.unwrap();
        cluster.cut();
        let write = tokio::spawn(async move {
            let _ = client.batch_execute("insert into t values (1)").await;
        });
        cluster.waiting.wait_for(|&count| count == 1).await.unwrap();
        write.abort();
        connection.abort();
        cluster.waiting.wait_for(|&count| count == 0).await.unwrap();
    });
}

#[test]
fn statements_that_wait_when_the_server_stops_are_told_what_became_of_them() {
    one_thread().block_on(async {
        let (mut cluster, server) = start_cluster().await;
        let (reader, writer) = (connect(cluster.address).await, connect(cluster.address).await);
        reader.batch_execute(STRICT).await.unwrap();
        writer.batch_execute("create table t (id int primary key)").await.unwrap();
        cluster.cut();
        let stop = async {
            cluster.waiting.wait_for(|&count| count == 2).await.unwrap();
            server.stop().await;
        };
        let read = reader.batch_execute("select * from r");
        let write = writer.batch_execute("insert into t values (1)");
        let (read, write, ()) = tokio::join!(read, write, stop);
        let message = "terminating connection due to administrator command";
        let (read, write) = (read.unwrap_err(), write.unwrap_err());
        assert_eq!(
            (reported(&read).code(), reported(&read).message()),
            (&SqlState::ADMIN_SHUTDOWN, message)
        );
        let unknown = &SqlState::TRANSACTION_RESOLUTION_UNKNOWN;
        assert_eq!((reported(&write).code(), reported(&write).message()), (unknown, message));
        assert!(reader.is_closed() || reader.batch_execute("").await.is_err());
    });
}
