//! Write-set caches of GeoGauss (§5.2), with real processes: what the loss of a node and of a whole
//! region costs.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, NoTls};

use crate::prompt::end;
use crate::support::demo::Demo;
use crate::support::{DEADLINE, processes_of};

/// The distances of these regions are below 100 ms.
const REGIONS: &str = "us-east,ca-central,us-central";
/// A commit that is older than this is on other disks, also on a busy machine.
const REPLICATED_WITHIN: Duration = Duration::from_millis(1_500);

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Kills the process of a node or cache.
fn kill(directory: &Path, name: &str) {
    let file = format!("/{name}/node.toml");
    let is_it = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&file)
    };
    let pid = processes_of(directory).into_iter().find(is_it).expect("the process runs");
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Inserts rows in the first region until its processes are killed. Returns the time of each
/// acknowledgement before the kill.
async fn insert_until_killed(directory: &Path, url: &str, killed: &[&str]) -> Vec<Duration> {
    let client = connect(url).await;
    client.batch_execute("create table t (id int primary key)").await.unwrap();
    let (mut acknowledged, began) = (Vec::new(), Instant::now());
    let kill_at = Duration::from_secs(3);
    let inserts = async {
        for id in 0_i32.. {
            let text = format!("insert into t values ({id})");
            if client.batch_execute(&text).await.is_err() {
                break;
            }
            acknowledged.push(began.elapsed());
        }
    };
    let killing = async {
        tokio::time::sleep(kill_at).await;
        killed.iter().for_each(|name| kill(directory, name));
    };
    tokio::join!(inserts, killing);
    acknowledged.into_iter().map(|at| kill_at.saturating_sub(at)).collect()
}

/// The rows in a region, once it commits again.
async fn rows_at(url: &str, id: i32) -> Vec<i32> {
    let client = connect(url).await;
    let began = Instant::now();
    let text = format!("insert into t values ({id})");
    while let Err(error) = client.batch_execute(&text).await {
        assert!(began.elapsed() < DEADLINE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.batch_execute("set reads = 'strict'").await.unwrap();
    let rows = client.query("select id from t where id >= 0 order by id", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The number of caches in the tables about a node: of the cluster, with a row, and connected.
async fn caches_seen(url: &str) -> (i32, i64, i64) {
    let client = connect(url).await;
    let text = "select (select caches from pangea.cluster), count(*), \
                count(*) filter (where is_connected and version is null and cache_of = node - 3) \
                from pangea.replication where role = 'cache'";
    let row = client.query_one(text, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// Returns how long before the kill each acknowledgement was received, and the rows that are left.
fn lose(killed: &[&str]) -> (Vec<Duration>, Vec<i32>) {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--regions", REGIONS, "--protocol", "geogauss", "--caches"];
    let arguments = [&arguments[..], &["--set", "geogauss.ack=cached"]].concat();
    let mut demo = Demo::start(directory.path(), &arguments);
    let urls = demo.urls(3);
    assert_eq!(processes_of(directory.path()).len(), 6, "each region has a node and a cache");
    let found = tokio::runtime::Runtime::new().unwrap().block_on(async {
        assert_eq!(caches_seen(&urls[0].1).await, (3, 3, 3), "all caches are connected");
        let before = insert_until_killed(directory.path(), &urls[0].1, killed).await;
        let rows = rows_at(&urls[1].1, -1).await;
        assert_eq!(rows_at(&urls[2].1, -2).await, rows, "the other regions agree");
        (before, rows)
    });
    demo.signal(Signal::TERM);
    assert!(demo.process.wait().is_ok());
    found
}

#[test]
fn a_killed_node_loses_nothing_that_its_cache_has() {
    let (before, rows) = lose(&["us-east"]);
    assert!(before.len() > 10, "only {} rows were inserted", before.len());
    assert!(rows.len() >= before.len(), "{} of {} rows are left", rows.len(), before.len());
}

#[test]
fn a_killed_region_loses_its_last_commits_and_no_others() {
    let (before, rows) = lose(&["us-east", "us-east.cache"]);
    assert!(before.len() > 10, "only {} rows were inserted", before.len());
    let expected: Vec<i32> = (0..rows.len() as i32).collect();
    assert_eq!(rows, expected, "only the last ones are lost");
    let lost = before.get(rows.len()..).unwrap_or_default();
    assert!(lost.iter().all(|age| *age < REPLICATED_WITHIN), "lost before the kill: {lost:?}");
}

/// The words of each line of an output.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_demo_shows_kills_and_starts_caches() {
    let directory = tempfile::tempdir().unwrap();
    let script = "create table t (id int primary key);\n\
        insert into t values (1);\n\
        \\status\n\
        \\kill us-east.cache\n\
        \\kill us-east.cache\n\
        \\status\n\
        insert into t values (2);\n\
        \\start us-east.cache\n\
        \\c us-east.cache\n\
        \\cut us-east.cache us-east\n\
        \\heal\n\
        \\status\n\
        \\q\n";
    let arguments = ["--regions", REGIONS, "--protocol", "geogauss", "--caches"];
    let demo = Demo::start_script(directory.path(), &arguments, script);
    let (code, out, err) = end(demo);
    let lines = lines(&out);
    let shown: Vec<&String> =
        lines.iter().filter(|line| line.starts_with("us-east.cache ")).collect();
    assert!(shown[0].ends_with("keeps the last batches of us-east"), "{out}");
    let [running, down, started] = shown[1..] else { panic!("{out}") };
    let [.., link] = running.split(' ').collect::<Vec<_>>()[..] else { panic!("{running}") };
    assert_eq!(link, "connected", "{out}");
    assert_eq!(down, "us-east.cache down ? ? ?");
    assert!(started.split(' ').nth(1).unwrap().parse::<u32>().is_ok(), "{started}");
    let is_there = |word: &str| lines.iter().any(|line| line.contains(word));
    assert!(is_there("killed process") && is_there("started process"), "{out}");
    assert!(is_there("the link between us-east.cache and us-east is cut"), "{out}");
    for refused in
        ["cache us-east.cache is already down", "us-east.cache is a cache, which has no tables"]
    {
        assert!(err.contains(refused), "{err}");
    }
    assert_eq!(code, Some(1), "two commands of the script failed: {err}");
}
