//! The end of a node that is stopped in order: its exit code, its last words, and its clients.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::processes::{Process, free_addresses, log_text, node_toml};
use crate::start_errors::end;
use crate::support::{DEADLINE, wait_until};

/// The only node of a cluster.
struct Single {
    process: Process,
    url: String,
}

impl Single {
    /// Starts it, and waits until it is ready.
    fn start(directory: &Path) -> Self {
        let addresses = &free_addresses()[..1];
        std::fs::write(directory.join("node.toml"), node_toml(0, addresses)).unwrap();
        let mut process = Process::spawn(directory);
        let is_ready = process.lines().any(|line| line.starts_with("ready:"));
        assert!(is_ready, "{}", log_text(directory));
        Self { process, url: format!("postgres://pangea@{}/pangea", addresses[0].sql) }
    }

    fn sql(&self, text: &str) {
        let command = Command::new(env!("CARGO_BIN_EXE_pangea"))
            .args(["sql", &self.url, "-c", text])
            .output()
            .unwrap();
        assert!(command.status.success(), "{}", String::from_utf8_lossy(&command.stderr));
    }

    /// Waits for the end, and returns the exit code.
    fn end(&mut self) -> i32 {
        end(&mut self.process, DEADLINE)
    }
}

/// Story: a torture that was killed just when it had stopped a node left that node behind for ever.
/// The shell is killed while the node is stopped, which is of a process group that goes on.
#[test]
#[cfg(target_os = "linux")]
fn a_node_that_is_stopped_goes_on_and_ends_when_its_parent_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let addresses = &free_addresses()[..1];
    let toml = directory.path().join("node.toml");
    std::fs::write(&toml, node_toml(0, addresses)).unwrap();
    let script =
        r#"exec 3<&0; "$0" start --stop-with-stdin --config "$1" <&3 & echo "pid: $!"; wait"#;
    let mut shell = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_pangea"), toml.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines().map(Result::unwrap);
    let node = lines.find_map(|line| line.strip_prefix("pid: ")?.parse().ok()).unwrap();
    assert!(lines.any(|line| line.starts_with("ready:")), "the node is ready");
    kill_process(Pid::from_raw(node).unwrap(), Signal::STOP).unwrap();
    let stat = || std::fs::read_to_string(format!("/proc/{node}/stat")).unwrap_or_default();
    wait_until("the node is stopped", || stat().contains(") T "));
    shell.kill().unwrap();
    shell.wait().unwrap();
    wait_until("the node is gone", || stat().is_empty());
}

/// Story: `pangea start .. 2>&1 | head` left a node behind that no signal ended: writing a line of
/// the log was a panic, of the thread for which the others waited.
#[test]
fn a_node_whose_output_nobody_reads_ends_at_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let toml = directory.path().join("node.toml");
    std::fs::write(&toml, node_toml(0, &free_addresses()[..1])).unwrap();
    let mut node = Command::new(env!("CARGO_BIN_EXE_pangea"))
        .args(["start", "--config", toml.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines().map(Result::unwrap);
    let is_ready = lines.any(|line| line.starts_with("ready:"));
    drop((lines, node.stderr.take()));
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    // A child can't be waited for with a deadline, so it is polled.
    let began = Instant::now();
    while node.try_wait().unwrap().is_none() && began.elapsed() < DEADLINE {
        std::thread::sleep(Duration::from_millis(10));
    }
    let end = node.try_wait().unwrap();
    let _ = node.kill();
    node.wait().unwrap();
    assert!(is_ready && end.is_some(), "it was ready: {is_ready}, and ended: {end:?}");
}

/// Story: a node that ended without its last checkpoint had the exit code 0, and a node with it
/// did not say so. An upgrade that needs the checkpoint went on.
#[test]
fn the_exit_code_and_the_last_line_say_whether_the_last_checkpoint_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Single::start(directory.path());
    node.sql("create table t (id int primary key); insert into t values (1)");
    node.process.ask_to_stop();
    assert_eq!(node.end(), 0, "{}", log_text(directory.path()));
    let log = log_text(directory.path());
    let last = log.lines().last().unwrap();
    assert!(last.contains(" INFO ") && last.contains("the checkpoint of epoch "), "{log}");
    assert!(last.ends_with("is written, and the node has stopped"), "{log}");

    let mut node = Single::start(directory.path());
    node.sql("insert into t values (2)");
    let checkpoints = directory.path().join("data/checkpoints");
    std::fs::rename(&checkpoints, directory.path().join("away")).unwrap();
    std::fs::write(&checkpoints, "no directory").unwrap();
    node.process.ask_to_stop();
    assert_eq!(node.end(), 3, "{}", log_text(directory.path()));
    let log = log_text(directory.path());
    let last = log.lines().last().unwrap();
    assert!(last.contains("without its last checkpoint, because it could not be written"), "{log}");

    // Nothing is lost.
    std::fs::remove_file(&checkpoints).unwrap();
    std::fs::rename(directory.path().join("away"), &checkpoints).unwrap();
    let mut node = Single::start(directory.path());
    node.sql("insert into t values (3); delete from t where id = 2");
    node.process.ask_to_stop();
    assert_eq!(node.end(), 0, "{}", log_text(directory.path()));
}

/// Story: clients that came while a node stopped waited in the backlog of its port, and were then
/// reset, or were refused as if there were no node. PostgreSQL's fast shutdown says why.
#[test]
fn sessions_get_57p01_and_new_ones_57p03_while_a_node_stops() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Single::start(directory.path());
    node.sql("create table t (id int primary key)");
    let url = node.url.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let connect = async || {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            Ok::<_, tokio_postgres::Error>((client, tokio::spawn(connection)))
        };
        let in_transaction = connect().await.unwrap();
        in_transaction.0.batch_execute("begin; insert into t values (1)").await.unwrap();
        let idle = connect().await.unwrap();
        // It keeps the server until its grace period is over.
        let busy = connect().await.unwrap();
        let pid: i32 = pid_of(&busy.0).await;
        let sleep = async move { busy.0.batch_execute("select pg_sleep(60)").await };
        let sleeping = tokio::spawn(sleep);
        // Without a prepared statement, whose end would be another request.
        let is_asleep =
            format!("select 1 from pg_stat_activity where pid = {pid} and state = 'active'");
        let is_row = |it: &SimpleQueryMessage| matches!(it, SimpleQueryMessage::Row(_));
        while !idle.0.simple_query(&is_asleep).await.unwrap().iter().any(is_row) {}
        node.process.ask_to_stop();
        for (client, connection) in [in_transaction, idle] {
            let end = connection.await.unwrap().expect_err("the server ends the session");
            assert_eq!(end.code(), Some(&SqlState::ADMIN_SHUTDOWN), "{end}");
            drop(client);
        }
        let refused = connect().await.expect_err("the node stops");
        assert_eq!(refused.code(), Some(&SqlState::CANNOT_CONNECT_NOW), "{refused}");
        assert!(refused.to_string().contains("db error"), "{refused}");
        let message = refused.as_db_error().unwrap().message();
        assert_eq!(message, "the database system is shutting down");
        let ended = sleeping.await.unwrap().expect_err("the server ends the statement");
        assert_eq!(ended.code(), Some(&SqlState::ADMIN_SHUTDOWN), "{ended}");
    });
    assert_eq!(node.end(), 0, "{}", log_text(directory.path()));
    let node = Single::start(directory.path());
    node.sql("insert into t values (1)");
}

async fn pid_of(client: &Client) -> i32 {
    client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Story: an operator listed the number of another epoch in `skip_epochs`. Its acknowledged
/// transactions were discarded, and no line of the log told of it.
#[test]
fn a_skipped_epoch_is_named_in_the_log_with_its_transactions() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Single::start(directory.path());
    node.sql("create table t (id int primary key); insert into t values (1)");
    node.process.kill();
    let listed: Vec<String> = (1..=16).map(|epoch: u32| epoch.to_string()).collect();
    let toml = std::fs::read_to_string(directory.path().join("node.toml")).unwrap();
    let toml = toml + &format!("\n[minerva]\nskip_epochs = [{}]\n", listed.join(", "));
    std::fs::write(directory.path().join("node.toml"), toml).unwrap();
    let _node = Process::spawn(directory.path());
    let told = "is listed in skip_epochs in the table [minerva], but this node had applied it";
    let is_told = || {
        let log = log_text(directory.path());
        log.lines().any(|line| line.contains(" WARN ") && line.contains(told))
    };
    wait_until("the epoch is named", is_told);
}
