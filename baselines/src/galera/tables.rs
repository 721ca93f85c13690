//! Loading of the tables, and checks of their rows.

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, future, stream};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use pangea_core::workload::ycsb::OPS_PER_TXN;
use pangea_core::workload::{Call, Commits, Settings, Workload};

use crate::baseline::Checked;
use crate::conditions;
use crate::failure::Failure;
use crate::rows::{self, Rowset};

/// The maximum length of `ycsb.value`.
pub(crate) const VALUE_LEN_MAX: u32 = 8_192;

const YCSB: &str = include_str!("../sql/galera_ycsb.sql");
const TPCC: &str = include_str!("../sql/galera_tpcc.sql");
/// The separator of statements, because procedures contain semicolons.
const SEPARATOR: &str = "\n;;\n";

/// The number of parts loaded concurrently.
const LOADERS: usize = 4;
/// The number of bytes of rows in one packet.
const SLICE_LEN: usize = 1 << 20;

pub(super) async fn load(
    address: SocketAddr,
    workload: &Workload,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), Failure> {
    let mut conn = super::connect(address).await?;
    let schema = match workload {
        Workload::Ycsb(_) => ycsb_schema(),
        _ => TPCC.to_owned(),
    };
    for statement in schema.split(SEPARATOR) {
        execute(&mut conn, statement).await?;
    }
    let calls = workload.load_calls();
    let all = calls.len() as u64;
    progress(0, all);
    let mut lanes = Vec::new();
    for lane in 0..LOADERS {
        let of_lane: Vec<Call> = calls.iter().skip(lane).step_by(LOADERS).cloned().collect();
        let conn = super::connect(address).await?;
        let parts =
            stream::try_unfold((conn, of_lane.into_iter()), |(mut conn, mut rest)| async move {
                let Some(call) = rest.next() else { return Ok::<_, Failure>(None) };
                for rowset in rows::of_load(&call, rows::Bytes::Plain)? {
                    load_rows(&mut conn, rowset).await?;
                }
                Ok(Some(((), (conn, rest))))
            });
        lanes.push(parts.boxed_local());
    }
    let (mut loaded, mut done) = (stream::select_all(lanes), 0);
    while let Some(()) = loaded.try_next().await? {
        done += 1;
        progress(done, all);
    }
    for table in conditions::tables(workload) {
        execute(&mut conn, &format!("ANALYZE TABLE {table}")).await?;
    }
    Ok(())
}

/// A procedure with one parameter and one variable for each of a transaction's operations.
fn ycsb_schema() -> String {
    let each = |part: &dyn Fn(usize) -> String, between: &str| {
        (0..OPS_PER_TXN).map(part).collect::<Vec<_>>().join(between)
    };
    let ids = each(&|i| format!("k{i} bigint"), ", ");
    let values = each(&|i| format!("v{i} varbinary({VALUE_LEN_MAX})"), ", ");
    let variables = each(&|i| format!("DECLARE r{i} varbinary({VALUE_LEN_MAX});"), " ");
    let operations = each(
        &|i| {
            format!(
                "IF k{i} IS NOT NULL THEN IF v{i} IS NULL THEN SELECT value INTO r{i} FROM ycsb \
                 WHERE id = k{i}; ELSE UPDATE ycsb SET value = v{i} WHERE id = k{i}; END IF; \
                 END IF;"
            )
        },
        "\n    ",
    );
    YCSB.replace("@PARAMETERS@", &format!("{ids}, {values}"))
        .replace("@VARIABLES@", &variables)
        .replace("@OPERATIONS@", &operations)
        .replace("@RESULTS@", &each(&|i| format!("r{i}"), ", "))
}

async fn execute(conn: &mut Conn, statement: &str) -> Result<(), Failure> {
    let first = statement.trim().lines().next().unwrap_or_default();
    conn.query_drop(statement).await.map_err(|error| Failure::failed(first, error))
}

async fn load_rows(conn: &mut Conn, Rowset { table, text }: Rowset) -> Result<(), Failure> {
    let columns = if table == "ycsb" { "(id, @hex) SET value = unhex(@hex)" } else { "" };
    let statement =
        format!("LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET latin1 {columns}");
    let mut text = Bytes::from(text);
    let slices = std::iter::from_fn(move || {
        let slice = text.split_to(text.len().min(SLICE_LEN));
        (!slice.is_empty()).then_some(Ok(slice))
    });
    conn.set_infile_handler(async move { Ok(stream::iter(slices).boxed()) });
    execute(conn, &statement).await?;
    // A value that did not fit, or a row that existed already, is only a warning.
    match conn.get_warnings() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("{table}: {count} warnings during the load"))),
    }
}

pub(super) async fn check(
    mut conns: Vec<(String, Conn)>,
    workload: &Workload,
    settings: &Settings,
    commits: &Commits,
) -> Result<Checked, Failure> {
    for (_, conn) in &mut conns {
        // From now on a read waits until its node has applied all earlier commits.
        execute(conn, "SET SESSION wsrep_sync_wait = 1").await?;
    }
    let conditions = conditions::all(workload, settings, commits);
    for condition in &conditions {
        condition.judge(number(&mut conns[0].1, &condition.query).await?)?;
    }
    let (mut digest, mut rows) = (0_u64, 0);
    for table in conditions::tables(workload) {
        let each = conns.iter_mut().map(|(name, conn)| {
            let digest = table_digest(conn, table);
            digest.map(|digest| Ok::<_, Failure>((name.clone(), digest?)))
        });
        let digests = future::try_join_all(each).await?;
        conditions::judge_equal(table, &digests)?;
        let (count, sum) = digests[0].1;
        digest = digest.wrapping_mul(31).wrapping_add(sum);
        rows += count;
    }
    let (conditions, places) = (conditions.len(), conns.len());
    let facts = format!("{rows} rows, the same in {places} places; {conditions} conditions");
    Ok(Checked { digest, facts })
}

async fn number(conn: &mut Conn, query: &str) -> Result<i64, Failure> {
    let found: Result<Option<i64>, _> = conn.query_first(query).await;
    let found = found.map_err(|error| Failure::failed(query, error))?;
    found.ok_or_else(|| Failure::failed(query, "no result"))
}

/// The row count of a table, and MariaDB's checksum over its rows.
async fn table_digest(conn: &mut Conn, table: &str) -> Result<(i64, u64), Failure> {
    let count = number(conn, &format!("SELECT count(*) FROM {table}")).await?;
    let query = format!("CHECKSUM TABLE {table} EXTENDED");
    let found: Result<Option<(String, Option<u64>)>, _> = conn.query_first(&query).await;
    let found = found.map_err(|error| Failure::failed(&query, error))?;
    let sum = found.and_then(|(_, sum)| sum);
    sum.map(|sum| (count, sum)).ok_or_else(|| Failure::failed(query, "no result"))
}
