//! The effect of `kill -9`: three real processes in three regions, 50 ms apart, with all data on
//! disk, and PostgreSQL clients that write continuously.
//!
//! ```text
//!   steady    kill 1        restart 1   steady    kill 2        restart 2       read everything
//!   ------------|--------------|------------------|--------------|-------------------|
//!               coordinator    caught up?         another node   caught up?          compare
//! ```
//!
//! - [`cluster`]: the processes, which are killed only by their handles;
//! - [`load`]: the clients, and the acknowledgements that each received;
//! - [`recovery`]: the time until the other regions commit again;
//! - [`replace`]: nodes whose disks are lost or damaged;
//! - [`foreign`]: a node with the directory or an address of another cluster;
//! - [`million`]: a large load, with indexes created concurrently;
//! - [`checks`]: whether the database contains what was acknowledged.
//!
//! Events are printed with the time since the load began; `--nocapture` shows them also on success.

mod checks;
mod cluster;
mod foreign;
mod load;
mod million;
#[path = "../processes/mod.rs"]
mod processes;
mod recovery;
mod replace;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

use checks::Contents;
use cluster::Cluster;
use load::{Ack, AttemptOutcome, Load, Record, SCHEMA, TALLIES};
use processes::REGIONS;
use recovery::{BACK_WITHIN, BUCKET, Recovery};

/// The healthy time before each kill, during which the rate is measured.
const STEADY: Duration = Duration::from_secs(4);
/// The time for which a killed node is down.
const DEAD: Duration = Duration::from_secs(5);
/// The time for which the load continues at the end, with all nodes running.
const WHOLE: Duration = Duration::from_secs(1);
/// The time limit for clients to resume work at a restarted node, and to end.
const CLIENTS_DEADLINE: Duration = Duration::from_secs(30);
/// The polling interval of conditions.
const POLL: Duration = Duration::from_millis(20);
/// The number of commits after which a node's clients count as working.
const WORKING: usize = 10;
/// The minimum rate before a kill for which the rate after it is meaningful.
const BEFORE_MIN: f64 = 2.0;

/// The kill of one node.
#[derive(Clone, Copy, Debug)]
struct Kill {
    node: usize,
    at: Duration,
}

/// Prints an event with its time.
fn say(load: &Load, what: &str) {
    println!("{:>7} ms  {what}", load.started.elapsed().as_millis());
}

#[test]
fn kill_9_loses_nothing_that_was_acknowledged_and_stops_the_others_for_2_s_at_most() {
    one_at_a_time(run());
}

/// Runs a test of processes while no other runs: two would slow each other down.
fn one_at_a_time(test: impl Future<Output = ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}

/// A cluster, and clients that have worked at each of its nodes for a while.
struct Scene {
    cluster: Cluster,
    load: Arc<Load>,
    clients: Vec<JoinHandle<Record>>,
    _shown_on_panic: ShownOnPanic,
}

async fn start() -> Scene {
    let cluster = Cluster::start().await;
    create_tables(&cluster).await;
    let load = Load::new(&cluster.addresses);
    let shown_on_panic = ShownOnPanic(load.clone());
    let clients = load.start();
    for node in 0..REGIONS.len() {
        wait_working(&load, node).await;
    }
    say(&load, &format!("{} clients make progress", clients.len()));
    sleep(STEADY).await;
    Scene { cluster, load, clients, _shown_on_panic: shown_on_panic }
}

async fn run() {
    let Scene { mut cluster, load, clients, _shown_on_panic } = start().await;
    let first = cluster.coordinator().await;
    let mut kills = vec![kill_and_restart(&mut cluster, &load, first).await];
    sleep(STEADY).await;
    let coordinator = cluster.coordinator().await;
    let others = [coordinator, (first + 1) % REGIONS.len()];
    let second = others.into_iter().find(|node| *node != first).expect("there are other nodes");
    kills.push(kill_and_restart(&mut cluster, &load, second).await);
    sleep(WHOLE).await;

    let records = end(&load, clients).await;
    cluster.assert_alive();
    let mut wrong = check_recovery(&load.acks(), &kills);
    wrong.extend(check_contents(&cluster, &records).await);
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), cluster.log_ends());
    cluster.stop().await;
}

async fn create_tables(cluster: &Cluster) {
    let client = load::connect(&cluster.addresses[0]).await.expect("a session");
    client.batch_execute(SCHEMA).await.expect("tables");
    for tally in 0..TALLIES {
        let insert = "insert into tallies values ($1, 0)";
        client.execute(insert, &[&tally]).await.expect("a tally");
    }
    // From here on, every new session on any node sees the tables.
    for node in 0..REGIONS.len() {
        cluster.fresh(node).await;
    }
}

/// Waits until clients have committed at a node from now on.
async fn wait_working(load: &Load, node: usize) {
    let enough = load.acks_of(node) + WORKING;
    let wait = async {
        let mut poll = interval(POLL);
        while load.acks_of(node) < enough {
            poll.tick().await;
        }
    };
    let waited = timeout(CLIENTS_DEADLINE, wait).await;
    assert!(waited.is_ok(), "no client commits at {}", REGIONS[node]);
}

/// Kills a node, restarts it after a while, and waits until it has caught up and its clients work
/// again.
async fn kill_and_restart(cluster: &mut Cluster, load: &Load, node: usize) -> Kill {
    let region = REGIONS[node];
    let coordinates = cluster.coordinator().await == node;
    let role = if coordinates { ", the coordinator" } else { "" };
    say(load, &format!("kill -9 {region}{role}"));
    let killed = cluster.kill(node);
    let kill = Kill { node, at: killed - load.started };
    let next = wait_other_coordinator(cluster, node).await;
    say(load, &format!("{} coordinates", REGIONS[next]));
    sleep(DEAD.saturating_sub(killed.elapsed())).await;
    cluster.assert_alive();
    let survivor = cluster.running()[0];
    say(load, &format!("start {region}"));
    cluster.restart(node).await;
    say(load, &format!("{region} serves"));
    let version = cluster.fresh(survivor).await;
    cluster.wait_applied(node, version).await;
    say(load, &format!("{region} has caught up with version {}", version.0));
    wait_working(load, node).await;
    say(load, &format!("clients of {region} make progress"));
    kill
}

/// Waits until the live nodes agree on a live coordinator.
async fn wait_other_coordinator(cluster: &Cluster, dead: usize) -> usize {
    let wait = async {
        let mut poll = interval(POLL);
        loop {
            poll.tick().await;
            let coordinator = cluster.coordinator().await;
            if coordinator != dead {
                break coordinator;
            }
        }
    };
    timeout(DEAD, wait).await.expect("another node becomes the coordinator")
}

/// Ends the load and collects the clients' reports.
async fn end(load: &Arc<Load>, clients: Vec<JoinHandle<Record>>) -> Vec<Record> {
    load.end();
    let mut records = Vec::new();
    for client in clients {
        let record = timeout(CLIENTS_DEADLINE, client).await.expect("every client ends");
        records.push(record.expect("no client panics"));
    }
    say(load, "every client has ended");
    records
}

fn check_recovery(acks: &[Ack], kills: &[Kill]) -> Vec<String> {
    let mut wrong = Vec::new();
    for kill in kills {
        let recovery = Recovery::measure(acks, kill.node, kill.at);
        let per_second = |per_bucket: f64| per_bucket / BUCKET.as_secs_f64();
        let back =
            recovery.back_after.map_or("not".to_owned(), |it| format!("{} ms", it.as_millis()));
        let (region, gap) = (REGIONS[kill.node], recovery.gap.as_millis());
        let text = format!(
            "{region} killed: the others committed {:.0}/s before and {:.0}/s from {} s after; \
             longest gap {gap} ms, back after {back}",
            per_second(recovery.before),
            per_second(recovery.later),
            BACK_WITHIN.as_secs(),
        );
        println!("{text}");
        if recovery.before < BEFORE_MIN || !recovery.is_in_time() {
            wrong.push(format!("throughput has not recovered: {text}"));
        }
    }
    wrong
}

/// Compares the contents of every node with the acknowledgements, and the replicas with each other.
async fn check_contents(cluster: &Cluster, records: &[Record]) -> Vec<String> {
    let mut wrong: Vec<String> =
        records.iter().flat_map(|record| record.wrong.iter().cloned()).collect();
    let (version, digests) = cluster.digests().await;
    assert_eq!(digests.len(), REGIONS.len(), "every node runs");
    if digests.iter().any(|digest| *digest != digests[0]) {
        wrong.push(format!("the replicas differ at version {}: {digests:x?}", version.0));
    }
    let mut rows = 0;
    for (region, address) in REGIONS.iter().zip(&cluster.addresses) {
        let client = load::connect(address).await.expect("a session");
        let contents = Contents::read(&client).await;
        rows = contents.rows();
        wrong.extend(contents.check(records).into_iter().map(|it| format!("{region}: {it}")));
    }
    let count = |fate| records.iter().map(|record| record.count(fate)).sum::<usize>();
    let sum = |of: fn(&Record) -> u64| records.iter().map(of).sum::<u64>();
    if sum(|record| record.conflicts) == 0 {
        wrong.push("no transfers conflicted, so conflicts were not tested".to_owned());
    }
    println!(
        "{rows} rows on each of {} equal replicas; {} commits acknowledged, {} ambiguous, {} not \
         committed ({} for conflicts); {} reconnections",
        digests.len(),
        count(AttemptOutcome::Acknowledged),
        count(AttemptOutcome::Ambiguous),
        count(AttemptOutcome::Never),
        sum(|record| record.conflicts),
        sum(|record| record.connections_lost),
    );
    wrong
}

/// Prints the commits that each node acknowledged in each bucket, if the test fails.
struct ShownOnPanic(Arc<Load>);

impl Drop for ShownOnPanic {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let acks = self.0.acks();
        let bucket_of = |ack: &Ack| ack.at.div_duration_f64(BUCKET) as usize;
        let last = acks.iter().map(bucket_of).max().unwrap_or(0);
        println!("commits acknowledged from then on by {}", REGIONS.join(", "));
        for bucket in 0..=last {
            let is_in = |ack: &&Ack, node| ack.node == node && bucket_of(ack) == bucket;
            let count = |node| acks.iter().filter(|ack| is_in(ack, node)).count();
            let counts: Vec<String> =
                (0..REGIONS.len()).map(|node| format!("{:>5}", count(node))).collect();
            println!("{:>7} ms {}", BUCKET.as_millis() * bucket as u128, counts.concat());
        }
    }
}
