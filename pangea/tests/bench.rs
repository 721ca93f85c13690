//! `pangea bench` on tiny workloads.

mod support;

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{pangea, processes_of, run, wait_until};

fn bench(arguments: &str) -> (std::process::Output, serde_json::Value) {
    let directory = tempfile::tempdir().unwrap();
    let (path, json) = (directory.path().join("nodes"), directory.path().join("out.json"));
    let mut all = vec!["bench", "--rtt", "10", "--warmup", "1", "--secs", "2", "--clients", "12"];
    all.extend(["--data-dir", path.to_str().unwrap(), "--json", json.to_str().unwrap()]);
    all.extend(arguments.split(' '));
    let output = run(&all);
    assert_eq!(processes_of(directory.path()), [] as [u32; 0]);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "the nodes' files are removed");
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    (output, serde_json::from_str(&text).unwrap_or_default())
}

#[test]
fn a_run_has_a_throughput_latencies_and_a_check() {
    let (output, json) = bench("--workload ycsb-a --rows 1000 --zipf 0.9");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(json["throughput_per_sec"].as_f64().unwrap() > 0.0);
    assert!(json["latency_ms"]["p50"].as_f64().unwrap() > 1.0);
    assert_eq!(json["regions"].as_object().unwrap().len(), 3);
    assert!(json["cpu_us_per_txn"]["load"].as_f64().unwrap() > 0.0);
    assert!(json["wan_bytes_per_txn"].as_f64().unwrap() > 1_000.0, "an update is of 1 KB");
    assert_eq!(json["settings"]["rtt_ms_max"], 10.0);
    assert!(json["shares"]["valid"].as_f64().unwrap() > 0.0);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("transactions a second"), "{stdout}");
}

#[test]
fn the_conditions_of_tpcc_are_checked() {
    let (output, json) = bench("--workload tpcc --tiny --warehouses 3");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(json["transactions"]["new-order"]["committed"].as_u64().unwrap() > 0, "{json}");
    assert!(json["check"]["workload"].as_str().unwrap().contains("orders"), "{json}");
}

#[test]
fn an_open_loop_keeps_its_rate_and_accounts_for_every_commit() {
    let line = "--workload smallbank --customers 500 --hot 50 --rate 300 --repeats 2";
    let (output, json) = bench(line);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let runs = json["throughput_per_sec_of_runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    // As many as come, but for those that abort because the money is not there.
    let rate = json["throughput_per_sec"].as_f64().unwrap();
    assert!((200.0..360.0).contains(&rate), "{rate}");
    assert_eq!(json["shed"], 0);
    assert!(json["check"]["workload"].as_str().unwrap().contains("customers"), "{json}");
    let region = json["regions"].as_object().unwrap().values().next().unwrap();
    assert!(region["transactions"]["deposit"]["committed"].as_u64().unwrap() > 0, "{region}");
    let hdr = json["transactions"]["deposit"]["hdr"].as_str().unwrap();
    assert!(hdr.starts_with("HISTEwAA"), "the mark of HdrHistogram V2: {hdr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("offered      300/s"), "{stdout}");
    assert!(stdout.contains("runs         2, of "), "{stdout}");
}

#[test]
fn clients_come_by_postgresqls_protocol_too() {
    for workload in ["smallbank --customers 500 --hot 50", "tpcc --tiny --warehouses 3"] {
        let (output, json) = bench(&format!("--via postgres --workload {workload}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{workload}: {stderr}");
        assert_eq!(json["settings"]["via"], "postgres");
        assert!(json["committed"].as_u64().unwrap() > 0, "{json}");
    }
}

#[test]
fn microbenchmarks_of_the_papers_run() {
    for workload in ["calvin-micro --remote 20 --hot 10", "mako-micro", "tiga-micro --zipf 0.9"] {
        let (output, json) = bench(&format!("--workload {workload} --rows 1000"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{workload}: {stderr}");
        let check = json["check"]["workload"].as_str().unwrap();
        assert!(check.contains("3000 counters"), "{check}");
    }
}

fn bench_peer(arguments: &str) -> (std::process::Output, serde_json::Value) {
    let directory = tempfile::tempdir().unwrap();
    let (path, json) = (directory.path().join("servers"), directory.path().join("out.json"));
    let mut all = vec!["bench", "--warmup", "1", "--secs", "2", "--clients", "6"];
    all.extend(["--data-dir", path.to_str().unwrap(), "--json", json.to_str().unwrap()]);
    all.extend(arguments.split(' '));
    let output = run(&all);
    assert_eq!(processes_of(directory.path()), [] as [u32; 0]);
    let left = std::fs::read_dir(&path).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the servers' files are removed");
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    (output, serde_json::from_str(&text).unwrap_or_default())
}

#[test]
fn a_peer_is_given_the_same_work_and_leaves_nothing() {
    let (output, json) = bench_peer("--peer etcd --workload ycsb-a --rows 1000");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(json["throughput_per_sec"].as_f64().unwrap() > 0.0);
    assert_eq!(json["settings"]["protocol"], "etcd");
    assert!(json["cpu_us_per_txn"]["region-1"].as_f64().unwrap() > 0.0);
    let check = json["check"]["workload"].as_str().unwrap();
    assert!(check.contains("1000 rows, the same in 3 places"), "{check}");
}

#[test]
fn what_a_peer_does_not_have_is_refused_before_anything_starts() {
    let cases = [
        ("--peer etcd --workload tpcc-nopay", "no procedures that TPC-C needs"),
        ("--peer etcd --workload ycsb-a --durability os", "always waits for its disks"),
        ("--peer galera --workload ycsb-a --isolation serializable", "does not have serializable"),
        ("--peer postgres --workload tpcc", "tpcc-nopay"),
        ("--peer postgres --workload ycsb-a --durability memory", "fsync and os"),
        ("--peer postgres --workload ycsb-a --regions 2", "3 regions at least"),
        ("--peer mysql --workload ycsb-a", "there is no peer"),
        ("--peer etcd --workload ycsb-a --rtt 50", "cannot be used with"),
        ("--workload ycsb-a --isolation serializable", "--peer"),
    ];
    for (line, words) in cases {
        let (output, _) = bench_peer(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(words), "{line}: {stderr}");
    }
}

#[test]
fn a_run_that_loses_a_node_has_no_throughput_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (path, json) = (directory.path().join("nodes"), directory.path().join("out.json"));
    let bench = Command::new(pangea())
        .args(["bench", "--workload", "bank", "--rtt", "10", "--secs", "30"])
        .args(["--data-dir", path.to_str().unwrap(), "--json", json.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("three nodes run", || processes_of(&path).len() == 3);
    let victim = Pid::from_raw(processes_of(&path)[0] as i32).unwrap();
    kill_process(victim, Signal::KILL).unwrap();
    let output = bench.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the node in region-"), "{stderr}");
    assert!(stderr.contains("was ended by signal 9 (SIGKILL)"), "{stderr}");
    assert!(!stderr.contains("INFO"), "{stderr}");
    assert!(output.stdout.is_empty() && !json.exists());
    assert_eq!(processes_of(&path), [] as [u32; 0]);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}
