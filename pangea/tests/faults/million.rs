//! A table of a million rows: loaded by COPY and indexed under concurrent writes, with a node
//! killed in the middle of each.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::SinkExt;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_postgres::Client;

use crate::cluster::Cluster;
use crate::load::connect;
use crate::{POLL, one_at_a_time};

const ROWS: usize = 1_000_000;
/// The number of rows in one message of COPY.
const MESSAGE_ROWS: usize = 2_000;
/// The time limit for a load or an index on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);
/// The number of rows that writers change while an index is built.
const WRITTEN: usize = 5_000;

#[test]
fn a_million_rows_and_an_index_survive_kill_9_in_the_middle_of_each() {
    one_at_a_time(run());
}

async fn run() {
    let mut cluster = Cluster::start().await;
    let client = connect(&cluster.addresses[0]).await.expect("a session");
    let table = "create table million (id int primary key, n int not null, what text)";
    client.batch_execute(table).await.expect("a table");
    let started = Instant::now();
    load(&mut cluster, &client).await;
    println!("{ROWS} rows after {:.1?}", started.elapsed());
    let all = count(&client, "select count(*) from million").await;
    assert_eq!(all, ROWS as i64, "no row is lost or duplicated");

    let started = Instant::now();
    let writers = Writers::start(&cluster).await;
    index(&mut cluster, &client).await;
    println!("an index after {:.1?}", started.elapsed());
    let written = writers.end().await;
    assert!(written > 0, "writers continued while the index was built");
    check_index(&client, "million_n").await;

    lose_who_indexes(&mut cluster).await;
    cluster.fresh(0).await;
    check_index(&client, "million_what").await;
    let (version, digests) = cluster.digests().await;
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{version:?}: {digests:?}");
    cluster.assert_alive();
    drop(client);
    cluster.stop().await;
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("a number").get(0)
}

/// Loads the rows through one node, while another is killed and restarted.
async fn load(cluster: &mut Cluster, client: &Client) {
    let copy = client.copy_in::<_, Cursor<Vec<u8>>>("copy million from stdin").await;
    let mut sink = Box::pin(copy.expect("a COPY"));
    for first in (0..ROWS).step_by(MESSAGE_ROWS) {
        if first == ROWS / 3 / MESSAGE_ROWS * MESSAGE_ROWS {
            cluster.kill(1);
        }
        if first == ROWS / 3 * 2 / MESSAGE_ROWS * MESSAGE_ROWS {
            cluster.restart(1).await;
        }
        let rows = (first..first + MESSAGE_ROWS).map(|id| format!("{id}\t{}\tw{id}\n", id % 1_000));
        let message: String = rows.collect();
        let sent = timeout(DEADLINE, sink.send(Cursor::new(message.into_bytes()))).await;
        sent.expect("a message is accepted in time").expect("the COPY continues");
    }
    let rows = timeout(DEADLINE, sink.as_mut().finish()).await.expect("in time");
    assert_eq!(rows.expect("the COPY ends"), ROWS as u64);
}

/// Creates an index through one node, while another is killed and restarted.
async fn index(cluster: &mut Cluster, client: &Client) {
    let made = client.batch_execute("create index million_n on million (n, id)");
    let mut made = std::pin::pin!(timeout(DEADLINE, made));
    let watcher = connect(&cluster.addresses[2]).await.expect("a session");
    tokio::select! {
        done = &mut made => panic!("the index was ready before a node could be killed: {done:?}"),
        () = wait_begun(&watcher, "million_n") => {}
    }
    cluster.kill(1);
    let restart = cluster.restart(1);
    let (done, ()) = tokio::join!(made, restart);
    done.expect("in time").expect("an index");
}

/// Waits until the index exists and is not valid yet.
async fn wait_begun(client: &Client, name: &str) {
    let sql = "select 1 from pg_index i join pg_class c on c.oid = i.indexrelid
               where c.relname = $1 and not i.indisvalid";
    let mut poll = interval(POLL);
    loop {
        poll.tick().await;
        if !client.query(sql, &[&name]).await.expect("the catalog").is_empty() {
            return;
        }
    }
}

/// Checks that an index is valid, is used, and agrees with the rows.
async fn check_index(client: &Client, name: &str) {
    let valid = "select i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid
                 where c.relname = $1";
    let is_valid: bool = client.query_one(valid, &[&name]).await.expect("the index").get(0);
    assert!(is_valid, "{name} is ready");
    let column = name.strip_prefix("million_").expect("named after its column");
    let range = if column == "n" { "n >= -2000000000" } else { "what >= ''" };
    let plan = format!("explain select count(*) from million where {range}");
    let plan = client.query(&plan, &[]).await.expect("a plan");
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    assert!(plan.iter().any(|line| line.contains(name)), "{plan:?}");
    let sums = format!("select count(*), sum(id)::bigint, min({column})::text from million");
    let by_index = client.query_one(&format!("{sums} where {range}"), &[]).await.expect("sums");
    let by_rows = client.query_one(&sums, &[]).await.expect("sums");
    let read =
        |row: &tokio_postgres::Row| -> (i64, i64, String) { (row.get(0), row.get(1), row.get(2)) };
    assert_eq!(read(&by_index), read(&by_rows), "{name}");
}

/// Kills the node through which an index is created. The incomplete index can be dropped and
/// created again.
async fn lose_who_indexes(cluster: &mut Cluster) {
    let builder = connect(&cluster.addresses[2]).await.expect("a session");
    let watcher = connect(&cluster.addresses[0]).await.expect("a session");
    let create = "create index million_what on million (what)";
    let lost = tokio::spawn(async move { builder.batch_execute(create).await });
    timeout(DEADLINE, wait_begun(&watcher, "million_what")).await.expect("it begins");
    cluster.kill(2);
    assert!(lost.await.expect("no panic").is_err(), "its client receives an error");
    cluster.restart(2).await;
    watcher.batch_execute("drop index million_what").await.expect("its remains can be dropped");
    let again = watcher.batch_execute(create);
    timeout(DEADLINE, again).await.expect("in time").expect("an index");
}

/// Clients that change rows through two nodes.
struct Writers {
    is_over: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl Writers {
    async fn start(cluster: &Cluster) -> Self {
        let (is_over, written) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = Vec::new();
        for node in [0, 2] {
            let client = connect(&cluster.addresses[node]).await.expect("a session");
            let (is_over, written) = (is_over.clone(), written.clone());
            tasks.push(tokio::spawn(async move {
                let mut at = node;
                while !is_over.load(Ordering::Relaxed) {
                    at = (at + 7_919) % (ROWS - WRITTEN);
                    let new = ROWS + at * 3 + node;
                    let statements = format!(
                        "update million set n = n - 5000, what = what || 'x' where id = {at};
                         delete from million where id = {};
                         insert into million values ({new}, {at}, 'new')
                             on conflict (id) do update set n = 1",
                        at + 1
                    );
                    for statement in statements.split(';') {
                        // A killed node may delay a response, but causes no error.
                        client.batch_execute(statement).await.expect("a write");
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
        }
        Self { is_over, written, tasks }
    }

    async fn end(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a writer");
        }
        self.written.load(Ordering::Relaxed)
    }
}
