//! What PostgreSQL's protocol costs: point selects a second over loopback, without a cluster.
//!
//! ```text
//! cargo bench -p pangea-node --bench pgwire
//! ```
//!
//! One client on one connection: a prepared select at a time, many of them in flight, and the same
//! select as a simple query. The server and the client have a thread each.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_node::pgwire::serve;
use pangea_sql::memory::MemoryEngine;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

const RUN: Duration = Duration::from_secs(1);
/// Machines are noisy: the best of so many runs says what the code can do.
const RUNS: usize = 5;
const ROWS: i32 = 1_000;
const IN_FLIGHT: i32 = 64;
const SELECT: &str = "select v from t where id = $1";

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
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
    let mut best = 0;
    for _ in 0..RUNS {
        best = best.max(run().await);
    }
    println!("{name:<24} {:>8.0} requests/s", best as f64 / RUN.as_secs_f64());
}

fn main() {
    let (server, client) = (runtime(), runtime());
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    server.spawn(serve(listener, MemoryEngine::new(), std::future::pending()));
    client.block_on(async {
        let client = Arc::new(connect(port).await);
        load(&client).await;
        report("prepared, one at a time", || select_prepared(client.clone(), 0)).await;
        report("prepared, 64 in flight", || select_pipelined(client.clone())).await;
        report("simple, one at a time", || select_simple(client.clone())).await;
    });
    server.shutdown_background();
}
