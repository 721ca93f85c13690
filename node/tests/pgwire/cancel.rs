//! Requests to cancel, against an engine whose cluster does not answer.

use tokio_postgres::error::SqlState;

use super::server::{STRICT, connect, with_cluster};

#[test]
fn a_read_that_waits_for_the_cluster_is_cancelled_and_the_session_goes_on() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute(STRICT).await.unwrap();
        let error = cluster.cancelled(&client, "select * from r").await;
        assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        // The request was for that statement, and not for the next one.
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
