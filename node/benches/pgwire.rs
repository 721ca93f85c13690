//! The cost of PostgreSQL's protocol: point selects a second over loopback, without a cluster.
//!
//! ```text
//! cargo bench -p pangea-node --bench pgwire
//! ```
//!
//! One client on one connection runs a prepared select: first one at a time, then many in flight.
//! It then runs the same select as a simple query. The server and the client have a thread each. On
//! a machine with other load, compare the CPU time of the server's thread per request.

use std::fs;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_node::pgwire::serve;
use pangea_sql::memory::MemoryEngine;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

const RUN: Duration = Duration::from_secs(1);
/// The number of runs. Machines are noisy, so the best run shows the cost of the code.
const RUNS: usize = 5;
const SERVER: &str = "server";
const ROWS: i32 = 1_000;
const IN_FLIGHT: i32 = 64;
const SELECT: &str = "select v from t where id = $1";

fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
}

/// The CPU time of the server's threads, if the operating system reports it.
fn server_time() -> Duration {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let times = tasks.filter_map(|task| {
        let path = task.ok()?.path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let times = fs::read_to_string(path.join("schedstat")).ok()?;
        let ran = times.split(' ').next()?.parse().ok()?;
        (name.trim() == SERVER).then(|| Duration::from_nanos(ran))
    });
    times.sum()
}

async fn connect(port: u16) -> Client {
    let config = format!("host=127.0.0.1 port={port} user=me");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn load(client: &Client) {
    client.batch_execute("create table t (id int primary key, v text)").await.unwrap();
    for id in 0..ROWS {
        let insert = format!("insert into t values ({id}, 'value {id}')");
        client.batch_execute(&insert).await.unwrap();
    }
}

async fn select_prepared(client: Arc<Client>, task: i32) -> u64 {
    let select = client.prepare(SELECT).await.unwrap();
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        let id = (task + count as i32) % ROWS;
        let row = client.query_one(&select, &[&id]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), format!("value {id}"));
        count += 1;
    }
    count
}

async fn select_pipelined(client: Arc<Client>) -> u64 {
    let run = |task| tokio::spawn(select_prepared(client.clone(), task));
    let tasks: Vec<_> = (0..IN_FLIGHT).map(run).collect();
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
    }
    count
}

async fn select_simple(client: Arc<Client>) -> u64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        let id = count as i32 % ROWS;
        let query = format!("select v from t where id = {id}");
        assert_eq!(client.simple_query(&query).await.unwrap().len(), 3);
        count += 1;
    }
    count
}

async fn report<F: Future<Output = u64>>(name: &str, run: impl Fn() -> F) {
    let (mut best, mut total) = (0, 0);
    let before = server_time();
    for _ in 0..RUNS {
        let count = run().await;
        best = best.max(count);
        total += count;
    }
    let micros = (server_time() - before).as_secs_f64() * 1e6 / total as f64;
    let best = best as f64 / RUN.as_secs_f64();
    println!("{name:<24} {best:>8.0} requests/s {micros:>8.2} us of the server's time each");
}

fn main() {
    let (server, client) = (runtime(SERVER), runtime("client"));
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    server.spawn(serve(listener, std::sync::Arc::new(MemoryEngine::new()), std::future::pending()));
    client.block_on(async {
        let client = Arc::new(connect(port).await);
        load(&client).await;
        report("prepared, one at a time", || select_prepared(client.clone(), 0)).await;
        report("prepared, 64 in flight", || select_pipelined(client.clone())).await;
        report("simple, one at a time", || select_simple(client.clone())).await;
    });
    server.shutdown_background();
}
