//! Cancel requests, against an engine whose cluster does not answer.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::server::{STRICT, connect, with_cluster, with_server};

#[test]
fn a_read_that_waits_for_the_cluster_is_cancelled_and_the_session_goes_on() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute(STRICT).await.unwrap();
        let error = cluster.cancelled(&client, "select * from r").await;
        assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        // The request was for that statement only.
        assert_eq!(client.query("select 1", &[]).await.unwrap().len(), 1);
    });
}

#[test]
fn a_read_that_is_cancelled_in_a_transaction_fails_the_transaction() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute(STRICT).await.unwrap();
        client.batch_execute("begin").await.unwrap();
        let error = cluster.cancelled(&client, "select 1").await;
        assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        let error = client.batch_execute("select 1").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
        client.batch_execute("rollback; select 1").await.unwrap();
    });
}

#[test]
fn a_write_whose_wait_is_cancelled_may_have_committed() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute("create table t (id int primary key)").await.unwrap();
        let error = cluster.cancelled(&client, "insert into t values (1)").await;
        assert_eq!(error.code(), Some(&SqlState::TRANSACTION_RESOLUTION_UNKNOWN));
        let error = error.as_db_error().unwrap();
        assert_eq!(error.message(), "canceling statement due to user request");
        assert!(error.detail().is_some_and(|detail| detail.contains("may have committed")));
        client.batch_execute("begin; insert into t values (2)").await.unwrap();
        let error = cluster.cancelled(&client, "commit").await;
        assert_eq!(error.code(), Some(&SqlState::TRANSACTION_RESOLUTION_UNKNOWN));
        client.batch_execute("insert into t values (3)").await.unwrap();
    });
}

/// The process id of a client's session.
async fn process(client: &Client) -> i32 {
    client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0)
}

#[test]
fn another_session_ends_a_statement_and_a_session() {
    with_server(|address, _| async move {
        let (sleeper, other) = (connect(address).await, connect(address).await);
        let number = process(&sleeper).await;
        let sleep = sleeper.batch_execute("select pg_sleep(3600)");
        let cancel = async {
            // The statement may not have begun yet.
            let runs = "select 1 from pg_stat_activity where pid = $1 and query like '%3600%'";
            while other.query(runs, &[&number]).await.unwrap().is_empty() {}
            other.query_one("select pg_cancel_backend($1)", &[&number]).await.unwrap()
        };
        let (slept, cancelled) = tokio::join!(sleep, cancel);
        assert_eq!(slept.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
        assert!(cancelled.get::<_, bool>(0));
        assert_eq!(process(&sleeper).await, number);

        let ended = other.query_one("select pg_terminate_backend($1)", &[&number]).await.unwrap();
        assert!(ended.get::<_, bool>(0));
        let error = sleeper.batch_execute("select 1").await.unwrap_err();
        assert!(error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN), "{error}");
        let gone = other.query_one("select pg_terminate_backend($1)", &[&number]).await.unwrap();
        assert!(!gone.get::<_, bool>(0));
    });
}

#[test]
fn more_sessions_that_sleep_than_threads_hold_up_no_other() {
    with_server(|address, _| async move {
        let mut sleepers = Vec::new();
        for _ in 0..5 {
            let sleeper = connect(address).await;
            let number = process(&sleeper).await;
            let sleep = async move { sleeper.batch_execute("select pg_sleep(3600)").await };
            sleepers.push((number, tokio::spawn(sleep)));
        }
        let other = connect(address).await;
        let asleep = "select count(*) from pg_stat_activity where query like '%3600%'";
        // The counting query matches itself.
        while other.query_one(asleep, &[]).await.unwrap().get::<_, i64>(0) < 6 {}
        for (number, sleeper) in sleepers {
            other.query_one("select pg_cancel_backend($1)", &[&number]).await.unwrap();
            let error = sleeper.await.unwrap().unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        }
    });
}
