//! Loading of the tables, and checks of their rows.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, TryStreamExt, future, stream};
use pangea_core::workload::{Call, Commits, Settings, Workload};
use tokio_postgres::{Client, Config};

use crate::baseline::Checked;
use crate::conditions;
use crate::failure::Failure;
use crate::rows::{self, Rowset};

const YCSB: &str = include_str!("../sql/postgres_ycsb.sql");
const TPCC: &str = include_str!("../sql/postgres_tpcc.sql");

/// The number of parts loaded concurrently.
const LOADERS: usize = 4;
/// Timeout for standbys to catch up when no client writes any more.
const FOLLOW_DEADLINE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

pub(super) async fn load(
    config: &Config,
    workload: &Workload,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), Failure> {
    let client = super::connect(config).await?;
    let schema = if matches!(workload, Workload::Ycsb(_)) { YCSB } else { TPCC };
    execute(&client, schema).await?;
    let calls = workload.load_calls();
    let all = calls.len() as u64;
    let mut clients = Vec::new();
    for _ in 0..LOADERS {
        clients.push(super::connect(config).await?);
    }
    let clients = &clients;
    let each = |(index, call): (usize, Call)| async move {
        for rowset in rows::of_load(&call, rows::Bytes::Prefixed)? {
            copy(&clients[index % LOADERS], rowset).await?;
        }
        Ok::<(), Failure>(())
    };
    progress(0, all);
    let mut done = 0;
    // COPY occupies its connection, so each of the four connections loads every fourth part.
    let lanes = (0..LOADERS).map(|lane| {
        let calls = calls.iter().cloned().enumerate().skip(lane).step_by(LOADERS);
        stream::iter(calls.collect::<Vec<_>>()).then(each).boxed_local()
    });
    let mut loaded = stream::select_all(lanes);
    while let Some(()) = loaded.try_next().await? {
        done += 1;
        progress(done, all);
    }
    execute(&client, "VACUUM ANALYZE").await?;
    execute(&client, "CHECKPOINT").await
}

async fn execute(client: &Client, text: &str) -> Result<(), Failure> {
    let first = text.lines().next().unwrap_or_default();
    client.batch_execute(text).await.map_err(|error| said(first, &error))
}

/// An error with the server's message.
fn said(what: &str, error: &tokio_postgres::Error) -> Failure {
    match error.as_db_error() {
        Some(known) => Failure::failed(what, known),
        None => Failure::failed(what, error),
    }
}

async fn copy(client: &Client, Rowset { table, text }: Rowset) -> Result<(), Failure> {
    let cant = |error: tokio_postgres::Error| said(table, &error);
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN")).await.map_err(cant)?;
    let mut sink = Box::pin(sink);
    sink.send(Bytes::from(text)).await.map_err(cant)?;
    sink.as_mut().finish().await.map(drop).map_err(cant)
}

pub(super) async fn check(
    clients: &[(String, Client)],
    workload: &Workload,
    settings: &Settings,
    commits: &Commits,
) -> Result<Checked, Failure> {
    let primary = &clients[0].1;
    let conditions = conditions::all(workload, settings, commits);
    for condition in &conditions {
        condition.judge(number(primary, &condition.query).await?)?;
    }
    let (digest, rows) = equal(clients, conditions::tables(workload).iter().copied()).await?;
    let (conditions, places) = (conditions.len(), clients.len());
    let facts = format!("{rows} rows, the same in {places} places; {conditions} conditions");
    Ok(Checked { digest, facts })
}

/// Checks that all places have the same rows in all user tables.
pub(super) async fn check_equal(clients: &[(String, Client)]) -> Result<Checked, Failure> {
    let query = "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relkind = 'r' \
                 AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, \
                 'information_schema'::regnamespace) ORDER BY 1";
    let rows = clients[0].1.query(query, &[]).await.map_err(|error| said(query, &error))?;
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let (digest, rows) = equal(clients, tables.iter().map(String::as_str)).await?;
    let (tables, places) = (tables.len(), clients.len());
    let facts = format!("{rows} rows of {tables} tables, the same in {places} places");
    Ok(Checked { digest, facts })
}

/// Waits until the standbys have caught up, and compares the tables. Returns a digest and the
/// number of rows.
async fn equal<'t>(
    clients: &[(String, Client)],
    tables: impl IntoIterator<Item = &'t str>,
) -> Result<(u64, i64), Failure> {
    follow(clients).await?;
    let (mut digest, mut rows) = (0_u64, 0);
    for table in tables {
        let each = clients.iter().map(|(name, client)| async move {
            Ok::<_, Failure>((name.clone(), table_digest(client, table).await?))
        });
        let digests = future::try_join_all(each).await?;
        conditions::judge_equal(table, &digests)?;
        let (count, hash) = digests[0].1;
        digest = digest.wrapping_mul(31).wrapping_add(hash as u64);
        rows += count;
    }
    Ok((digest, rows))
}

async fn number(client: &Client, query: &str) -> Result<i64, Failure> {
    let row = client.query_one(query, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(|error| said(query, &error))
}

/// The row count of a table, and a checksum that does not depend on the order of its rows.
async fn table_digest(client: &Client, table: &str) -> Result<(i64, i64), Failure> {
    let query = format!(
        "SELECT count(*), coalesce(mod(sum(hashtextextended(t::text, 0)), 9223372036854775807), \
         0)::bigint FROM {table} AS t"
    );
    let row = client.query_one(&query, &[]).await;
    let read = row.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    read.map_err(|error| said(table, &error))
}

/// Waits until the standbys have replayed the primary's log.
async fn follow(clients: &[(String, Client)]) -> Result<(), Failure> {
    let (primary, standbys) = clients.split_first().expect("there is a primary");
    let query = "SELECT pg_current_wal_lsn()::text";
    let row = primary.1.query_one(query, &[]).await.map_err(|error| said(query, &error))?;
    let position: String = row.get(0);
    let deadline = Instant::now() + FOLLOW_DEADLINE;
    for (name, standby) in standbys {
        let query = format!(
            "SELECT count(*) FROM (SELECT 1) AS one \
             WHERE pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
        );
        while number(standby, &query).await? == 0 {
            if Instant::now() > deadline {
                return Err(Failure::Failed(format!("{name} does not follow the primary")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}
