//! `pangea bench --lab`: Pangea and baselines in the regions of a lab. The tests need root. They
//! fail with the reason if they do not have it, or if a baseline is not installed.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{pangea, run, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A benchmark in a lab.
struct Bench {
    directory: TempDir,
    command: Command,
}

impl Bench {
    fn new(line: &str) -> Self {
        // Servers that refuse to run as root must be able to enter the directory.
        let directory = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()
            .unwrap();
        let mut command = Command::new(pangea());
        command.args(["bench", "--lab", "--warmup", "1", "--clients", "9"]);
        if !line.contains("--secs") {
            command.args(["--secs", "3"]);
        }
        command.arg("--data-dir").arg(directory.path().join("servers"));
        command.arg("--json").arg(directory.path().join("out.json"));
        command.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { directory, command }
    }

    fn servers(&self) -> PathBuf {
        self.directory.path().join("servers")
    }

    /// Runs to completion and returns the results.
    fn finish(mut self) -> Value {
        let child = self.command.spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        self.is_gone(pid);
        let text = std::fs::read_to_string(self.directory.path().join("out.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// No namespaces, processes or files are left.
    fn is_gone(&self, pid: u32) {
        assert_eq!(namespaces_of(pid), [] as [String; 0]);
        assert_eq!(servers_in(self.directory.path()), [] as [String; 0]);
        assert_eq!(std::fs::read_dir(self.servers()).map_or(0, Iterator::count), 0);
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the namespaces of a process's labs.
fn namespaces_of(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(&format!("pangea-{pid}-"))).collect()
}

/// Returns the command lines of all processes that refer to a directory, except benchmarks.
fn servers_in(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(directory) && !line.contains(" bench ")).collect()
}

fn number(json: &Value, path: &str) -> f64 {
    let found = json.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{path} in {json}"))
}

fn median_ms(json: &Value, region: u32) -> f64 {
    number(json, &format!("/regions/region-{region}/latency_ms/p50"))
}

const SMALLBANK: &str = "--workload smallbank --customers 500 --hot 50";
const YCSB: &str = "--workload ycsb-a --rows 500";

#[test]
fn pangea_meets_the_distance_of_a_lab_whichever_way_clients_come() {
    for via in ["native", "postgres"] {
        let json = Bench::new(&format!("{SMALLBANK} --rtt 60 --via {via}")).finish();
        assert_eq!(json["settings"]["lab"], true);
        assert_eq!(json["settings"]["rtt_ms_max"], 60.0);
        for region in 1..=3 {
            // The clients are next to their node, and wait for another region at least once.
            let p50 = median_ms(&json, region);
            assert!((60.0..500.0).contains(&p50), "{via}, region {region}: {p50} ms");
        }
        assert!(number(&json, "/link_bytes_per_txn") > 100.0);
        assert!(number(&json, "/link_late_us/p50") < 60_000.0);
        // The nodes do not emulate the distance in addition to the lab.
        assert!(number(&json, "/latency_ms/p50") < 60.0 * 5.0, "{json}");
        assert!(json["check"]["workload"].as_str().unwrap().contains("customers"));
    }
}

#[test]
fn pangea_is_killed_and_cut_off_in_a_lab_and_its_sessions_come_back() {
    let line = format!("{SMALLBANK} --rtt 10 --via postgres --secs 8");
    for fault in ["kill:follower@1+1", "cut:region-3@1+2"] {
        let json = Bench::new(&format!("{line} --fault {fault}")).finish();
        assert!(json["faults"][0]["what"].as_str().unwrap().starts_with(&fault[..3]), "{json}");
        assert!(number(&json, "/stalls_ms/region-3") >= 1_000.0, "{}", json["stalls_ms"]);
        let steps = json["timeline"]["regions"]["region-3"].as_array().unwrap();
        let last: u64 = steps.iter().rev().take(10).filter_map(Value::as_u64).sum();
        assert!(last > 0, "{fault}: its clients make progress again at the end: {steps:?}");
    }
}

#[test]
fn a_peer_meets_the_same_distance_where_its_servers_are() {
    let json = Bench::new(&format!("{YCSB} --rtt 60 --baseline etcd")).finish();
    assert_eq!(json["settings"]["protocol"], "etcd");
    // The leader is in the first region: one round trip from there, and two from elsewhere.
    let [first, third] = [1, 3].map(|region| median_ms(&json, region));
    assert!(first >= 60.0 && third >= first + 30.0, "{first} and {third} ms");
    assert!(number(&json, "/link_bytes_per_txn") > 1_000.0, "values of 1 KB");
    let json = Bench::new(&format!("{YCSB} --rtt 60 --baseline postgres")).finish();
    // The same holds for PostgreSQL's primary, and clients of the third region are in that region.
    let [first, third] = [1, 3].map(|region| median_ms(&json, region));
    assert!(first >= 60.0 && third >= first + 50.0, "{first} and {third} ms");
}

#[test]
fn what_is_done_to_a_peers_servers_shows_in_its_pauses() {
    for fault in ["kill:coordinator@1+1", "cut:region-3@1+2", "slow:follower@1+1"] {
        let line = format!("{YCSB} --rtt 10 --baseline etcd --secs 9 --fault {fault}");
        let json = Bench::new(&line).finish();
        let happened = &json["faults"][0];
        assert!(happened["what"].as_str().unwrap().starts_with(&fault[..3]), "{happened}");
        let most = (1..=3).map(|region| number(&json, &format!("/stalls_ms/region-{region}")));
        let most = most.fold(0.0, f64::max);
        let least = if fault.starts_with("slow") { 20.0 } else { 1_000.0 };
        assert!(most >= least, "{fault}: {}", json["stalls_ms"]);
        assert!(json["check"]["workload"].as_str().unwrap().contains("the same in 3 places"));
    }
}

#[test]
fn a_master_and_a_primary_come_back_with_what_they_had_acknowledged() {
    for (peer, fault, victim) in
        [("galera", "kill:region-2@1+1", 2), ("postgres", "kill:coordinator@1+1", 1)]
    {
        let line = format!("{YCSB} --rtt 10 --baseline {peer} --secs 4 --fault {fault}");
        let json = Bench::new(&line).finish();
        let what = format!("kill region-{victim}");
        assert_eq!(json["faults"][0]["what"].as_str(), Some(&what[..]));
        let stall_ms = number(&json, &format!("/stalls_ms/region-{victim}"));
        assert!(stall_ms >= 1_000.0, "{peer}: {}", json["stalls_ms"]);
        assert!(json["check"]["workload"].as_str().unwrap().contains("the same in 3 places"));
    }
}

#[test]
fn ctrl_c_leaves_no_namespace_and_no_process() {
    for (line, servers) in [(SMALLBANK, "start"), (&format!("{YCSB} --baseline etcd"), "etcd")] {
        let mut bench = Bench::new(&format!("{line} --rtt 10 --secs 60"));
        let child = bench.command.spawn().unwrap();
        let pid = child.id();
        wait_until("three servers run", || {
            let all = servers_in(bench.directory.path());
            all.iter().filter(|line| line.contains(servers)).count() >= 3
        });
        assert_eq!(namespaces_of(pid).len(), 3);
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", said(&output));
        assert!(output.stdout.is_empty());
        bench.is_gone(pid);
    }
}

#[test]
fn what_can_not_be_is_refused_before_anything_is_made() {
    let cases = [
        ("--workload ycsb-a --lab --regions us-east", "from 2 to 32 regions, not 1"),
        ("--workload ycsb-a --lab --regions A_b,c,d --rtt 1", "not a valid region name"),
        ("--workload ycsb-a --bandwidth 100", "--lab"),
        ("--workload ycsb-a --lab --bandwidth 0", "must be from 0.001"),
        ("--workload ycsb-a --lab --rtt 99999", "must be from 0"),
        ("--workload ycsb-a --lab --baseline etcd --regions 2", "at least 3 regions"),
        ("--workload ycsb-a --lab --baseline etcd --clients 5000", "at most 4000"),
        ("--workload ycsb-a --lab --baseline etcd --fault kill:nobody@1+1", "no region \"nobody\""),
        (
            "--workload ycsb-a --lab --baseline galera --fault kill:coordinator@1+1",
            "all have the same role",
        ),
        ("--workload ycsb-a --baseline etcd --jitter 5", "add --lab"),
        ("--workload ycsb-a --baseline etcd --fault cut:region-1@1+1", "add --lab"),
    ];
    for (line, words) in cases {
        let output = run(&[&["bench"], &line.split(' ').collect::<Vec<_>>()[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{line}: {}", said(&output));
        assert!(said(&output).contains(words), "{line}: {}", said(&output));
    }
    let output = run(&["calibrate", "--lab", "--workload", "ycsb-a"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("--lab is only for `pangea bench`"), "{}", said(&output));
}

/// Runs a benchmark in a lab on a machine without some resource, which `hidden`, a line of shell,
/// hides within a separate mount namespace.
fn without(hidden: &str, line: &str) -> Output {
    let script = format!("{hidden} && exec {} bench --lab {line}", pangea().display());
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", &script]).output().unwrap()
}

#[test]
fn what_the_machine_lacks_is_said_with_what_to_do() {
    let output = without("mount -t tmpfs none /dev/net", YCSB);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("modprobe tun"), "{}", said(&output));
    let output =
        without("mount --bind /dev/null /usr/bin/etcd", &format!("{YCSB} --baseline etcd"));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("package etcd-server"), "{}", said(&output));
    // Root by name, but without its capabilities, as in most containers.
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all"])
        .arg(pangea())
        .args(["bench", "--lab"])
        .args(YCSB.split(' '))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("need root"), "{}", said(&output));
}
