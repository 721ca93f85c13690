//! `pangea bench` on tiny workloads.

mod support;

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{pangea, processes_of, run, wait_until};

fn bench(arguments: &str) -> (std::process::Output, serde_json::Value) {
    let directory = tempfile::tempdir().unwrap();
    let (path, json) = (directory.path().join("nodes"), directory.path().join("out.json"));
    let mut all = vec!["bench", "--rtt", "10", "--warmup", "1", "--clients", "12"];
    if !arguments.contains("--secs") {
        all.extend(["--secs", "2"]);
    }
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
        ("--peer etcd --workload ycsb-a --rtt 50", "add --lab"),
        ("--peer etcd --workload ycsb-a --keep", "cannot be used with"),
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
fn a_node_that_is_killed_on_purpose_comes_back_and_everything_is_checked() {
    let line = "--workload smallbank --customers 500 --hot 50 --secs 4 --fault";
    for fault in ["kill:follower@1+1", "cut:region-1@1+1", "slow:coordinator@1+1"] {
        let (output, json) = bench(&format!("{line} {fault}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{fault}: {stderr}");
        let (kind, _) = fault.split_once(':').unwrap();
        let happened = &json["faults"][0];
        assert!(happened["what"].as_str().unwrap().starts_with(kind), "{happened}");
        let [from, to] = ["from_secs", "to_secs"].map(|key| happened[key].as_f64().unwrap());
        assert!(from >= 1.0 && to >= from + 1.0, "{happened}");
        let timeline = &json["timeline"];
        assert_eq!(timeline["step_ms"], 100.0);
        let steps = timeline["regions"]["region-1"].as_array().unwrap();
        assert!((39..=45).contains(&steps.len()), "{}", steps.len());
        let sum = |region: &serde_json::Value| {
            region.as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).sum::<u64>()
        };
        let commits: u64 = timeline["regions"].as_object().unwrap().values().map(sum).sum();
        let all = json["committed"].as_u64().unwrap();
        assert!(commits <= all && commits > all * 9 / 10, "{commits} of {all}");
        if kind != "slow" {
            let stalls = json["stalls_ms"].as_object().unwrap().values();
            let longest = stalls.filter_map(serde_json::Value::as_f64).fold(0.0, f64::max);
            assert!(longest > 900.0, "{fault}: {}", json["stalls_ms"]);
        }
        assert!(json["check"]["workload"].as_str().unwrap().contains("customers"), "{json}");
    }
}

#[test]
fn a_sweep_has_a_report_goes_on_where_it_was_and_ends_with_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let (path, out) = (directory.path().join("plan.toml"), directory.path().join("out"));
    let nodes = directory.path().join("nodes");
    let text = "title = \"Two\"\n[base]\nworkload = \"bank\"\nclients = 12\nsecs = 1\n\
                warmup = 0\n[sweep]\nrtt = [0, 10]\n[[figure]]\ntitle = \"Rate\"\nx = \"rtt\"\n\
                y = \"throughput_per_sec\"\n";
    std::fs::write(&path, text).unwrap();
    let sweep = |more: &[&str]| {
        let mut all = vec!["bench", "sweep", path.to_str().unwrap()];
        all.extend(["--out", out.to_str().unwrap(), "--data-dir", nodes.to_str().unwrap()]);
        all.extend(more);
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run_all = |more: &[&str]| run(&sweep(more).iter().map(String::as_str).collect::<Vec<_>>());
    let outline = run_all(&["--dry-run"]);
    let stdout = String::from_utf8_lossy(&outline.stdout);
    assert!(stdout.starts_with("Two: 2 runs (1 of each)"), "{stdout}");
    assert!(!out.exists());
    let output = run_all(&[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("2 of 2, 1 of each point") && report.contains("<svg"), "{report}");
    let again = run_all(&["--resume"]);
    assert!(again.status.success());
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert!(!stderr.contains("1/2"), "nothing is run again: {stderr}");
    assert_eq!(run_all(&[]).status.code(), Some(2), "results are there, and nobody said --resume");
    // A long run, ended by a signal once its nodes are there.
    std::fs::write(&path, text.replace("secs = 1", "secs = 60")).unwrap();
    std::fs::remove_dir_all(&out).unwrap();
    let child = Command::new(pangea()).args(sweep(&[])).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("three nodes run", || processes_of(&nodes).len() == 3);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("2 runs are left; --resume makes them"), "{stderr}");
    assert_eq!(processes_of(directory.path()), [] as [u32; 0]);
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("2 not made"));
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
