//! `pangea bench` on tiny workloads.

use std::process::{Command, Stdio};

use crate::support::{pangea, processes_of, run, wait_until};
use rustix::process::{Pid, Signal, kill_process};

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
    links_are_all_that_is_sent(&json, 3);
    waterfall_is_what_clients_waited(&json, 0.5);
    for region in ["region-1", "region-2", "region-3"] {
        assert!(number(&json["fsyncs_per_sec"][region]) > 1.0, "{}", json["fsyncs_per_sec"]);
        let (now, peak) = (&json["memory_mb"][region], &json["memory_peak_mb"][region]);
        assert!(number(peak) >= number(now) * 0.99 && number(now) > 10.0, "{peak} and {now}");
    }
    assert!(json["stages_us_per_txn"].is_null(), "stages were not requested");
    let again = number(&json["transactions"]["write"]["reexecuted"]);
    assert!((0.0..=1.0).contains(&again), "{again}");
}

fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

/// The sums over all links equal the totals, and are at least the size of the batches.
fn links_are_all_that_is_sent(json: &serde_json::Value, nodes: usize) {
    let links = json["links"].as_object().unwrap();
    let of = |what: &str| -> f64 {
        let all = links.values().flat_map(|sent| sent.as_object().unwrap().values());
        all.map(|link| number(&link[what])).sum()
    };
    assert_eq!(links.values().map(|it| it.as_object().unwrap().len()).sum::<usize>(), nodes * 2);
    for (what, total) in [
        ("bytes_per_txn", "wan_bytes_per_txn"),
        ("bytes_per_txn_uncompressed", "wan_bytes_per_txn_uncompressed"),
        ("messages_per_txn", "wan_frames_per_txn"),
    ] {
        let (sum, total) = (of(what), number(&json[total]));
        assert!((sum - total).abs() < 1e-6 * total, "{what}: {sum} of {total}");
    }
    // A batch may be read within one measured interval and sent in another.
    let over = number(&json["wan_bytes_over_payload"]);
    assert!((0.9..20.0).contains(&over), "{over}");
    assert!(number(&json["payload_bytes_per_txn"]) > 0.0);
}

/// The parts of each bar add up to it, and the bar matches the clients' latency.
fn waterfall_is_what_clients_waited(json: &serde_json::Value, within: f64) {
    let waterfall = &json["waterfall"];
    assert!(waterfall["followed"].as_u64().unwrap() >= 10, "{waterfall}");
    let bar = &waterfall["p50"];
    let parts = bar["parts_ms"].as_object().unwrap();
    let sum: f64 = parts.values().map(number).sum();
    let latency = number(&bar["latency_ms"]);
    assert!((sum - latency).abs() < 0.05 * latency, "{sum} of {latency}: {bar}");
    let waited = number(&json["latency_ms"]["p50"]);
    assert!((latency - waited).abs() < within * waited, "{latency} and {waited}");
    // Acknowledging batches and agreeing on cuts takes 10 ms of round trips.
    assert!(number(&parts["replicate"]) + number(&parts["agree"]) > 2.0, "{bar}");
    assert!(number(&parts["other"]) < 0.5 * latency, "{bar}");
}

#[test]
fn stages_are_all_of_the_cpu_time_and_every_one_of_a_commit_is_there() {
    let line = "--workload ycsb-a --rows 1000 --zipf 0.9 --stages --long 10 --long-times 5";
    let (output, json) = bench(line);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    for region in ["region-1", "region-2", "region-3"] {
        let stages = json["stages_us_per_txn"][region].as_object().unwrap();
        let staged: f64 = stages.values().map(number).sum();
        let cpu = number(&json["cpu_us_per_txn"][region]);
        // The kernel counts the process in ticks of 10 ms, but its threads exactly.
        assert!(staged >= 0.8 * cpu && staged <= 1.5 * cpu, "{region}: {staged} of {cpu} us");
        for stage in ["execute", "stale", "graph", "solver", "apply", "send", "log", "client"] {
            assert!(number(&stages[stage]) > 0.0, "{region} {stage}: {stages:?}");
        }
    }
    assert!(number(&json["stages_ms_per_epoch"]["stale"]) > 0.0);
    let mut counters = json["counters"]["region-1"].as_object().unwrap().keys();
    assert!(counters.all(|name| !name.starts_with("meter_")), "metered time is reported by stage");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("stale check") && stdout.contains("region-1 to region-2"), "{stdout}");
    let long = json["transactions"]["long-write"]["committed"].as_u64().unwrap();
    let all = json["committed"].as_u64().unwrap();
    assert!(long > 0 && long < all / 4, "{long} of {all} are long");
}

#[test]
fn nodes_can_be_in_the_process_of_their_clients() {
    let line = "--workload tpcc --tiny --warehouses 3 --via process --long 10 --long-times 3";
    let (output, json) = bench(&format!("{line} --regions us-east --durability memory --cores 1"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let settings = &json["settings"];
    assert_eq!(settings["via"], "process");
    assert_eq!(settings["cores"], 1);
    assert_eq!(settings["workers"], 1);
    for kind in ["new-order", "payment", "long-order"] {
        assert!(json["transactions"][kind]["committed"].as_u64().unwrap() > 0, "{kind}: {json}");
    }
    assert!(number(&json["cpu_us_per_txn"]["us-east"]) > 0.0);
    assert!(number(&json["cpu_us_per_txn"]["load"]) > 0.0);
    assert_eq!(number(&json["fsyncs_per_txn"]["us-east"]), 0.0, "no fsyncs are needed");
    assert!(json["cores_used"].as_f64().unwrap() < 1.2, "{}", json["cores_used"]);
    assert!(json["wan_bytes_over_payload"].is_null());

    let line = "--workload smallbank --customers 500 --hot 50 --via process";
    let (output, json) = bench(line);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    links_are_all_that_is_sent(&json, 3);
    waterfall_is_what_clients_waited(&json, 0.5);
    assert!(json["cpu_us_per_txn"]["nodes"].is_number(), "{}", json["cpu_us_per_txn"]);
    // Some withdrawals exceed the balance; they are reported by kind and by region.
    let aborted = |part: &serde_json::Value| {
        part["aborts"].as_object().unwrap().values().map(number).sum::<f64>()
    };
    let by_kind: f64 = json["transactions"].as_object().unwrap().values().map(aborted).sum();
    let by_region: f64 = json["regions"].as_object().unwrap().values().map(aborted).sum();
    let all: f64 = json["aborts"].as_object().unwrap().values().map(number).sum();
    assert_eq!((by_kind, by_region), (all, all));

    let (output, json) = bench("--workload bank --via process --rate 200");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(number(&json["cpu_us_per_txn"]["load"]) > 0.0, "{}", json["cpu_us_per_txn"]);

    for (line, words) in [
        ("--via process --workload bank --fault cut:region-1@1+1", "leave out --via process"),
        ("--workload bank --cores 1", "--cores requires --via process"),
        ("--via process --workload bank --cores 4096", "are available"),
        ("--workload bank --long 5", "--long does not apply to --workload bank"),
        ("--workload ycsb-a --long-times 5", "--long"),
        ("--workload ycsb-a --long 101", "long is 101"),
    ] {
        let (output, _) = bench_baseline(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(words), "{line}: {stderr}");
    }
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
    // All calls complete, except those that abort because of an insufficient balance.
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
    assert!(stdout.contains("runs         2, from "), "{stdout}");
}

#[test]
fn clients_come_by_postgresqls_protocol_too() {
    for workload in ["smallbank --customers 500 --hot 50", "tpcc --tiny --warehouses 3"] {
        let (output, json) = bench(&format!("--via postgres --workload {workload}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{workload}: {stderr}");
        assert_eq!(json["settings"]["via"], "postgres");
        assert!(json["committed"].as_u64().unwrap() > 0, "{json}");
        waterfall_is_what_clients_waited(&json, 0.5);
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

/// The experiment of Calvin §4: a fraction of the transactions use a record that is not in memory.
#[test]
fn cold_records_are_fetched_and_memory_stays_below_its_limit() {
    let work = "--protocol calvin --workload calvin-micro --rows 3000 --hot 10 --remote 20";
    let line = format!("{work} --payload 1000 --cold 30 --memory-mb 4 --secs 4");
    let (output, json) = bench(&line);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let committed = |kind: &str| json["transactions"][kind]["committed"].as_u64().unwrap_or(0);
    assert!(committed("cold") > 20, "{json}");
    assert!(committed("one-shard") > committed("cold"), "{json}");
    let mut held = 0.0;
    for region in ["region-1", "region-2", "region-3"] {
        let counter = |name: &str| number(&json["counters"][region][name]);
        // Rows fetched since the last pass of the clock may exceed the limit.
        let most = 4.5 * f64::from(1 << 20);
        assert!(counter("rows_bytes") < most, "{region}: {}", json["counters"][region]);
        assert!(counter("rows_cold") > 4_000.0, "{region}: {}", json["counters"][region]);
        let read = counter("cold_fetched_ahead") + counter("cold_reads");
        assert!(read > 20.0, "{region}: {}", json["counters"][region]);
        held += counter("txns_delayed");
    }
    assert!(held > 20.0, "{}", json["counters"]);
    assert!(json["check"]["workload"].as_str().unwrap().contains("9000 counters"), "{json}");

    for (line, words) in [
        ("--workload calvin-micro --cold 5", "--payload"),
        ("--workload calvin-micro --payload 8", "payload is 8; it must be from 16"),
        ("--workload bank --payload 100", "--payload does not apply to --workload bank"),
    ] {
        let (output, _) = bench_baseline(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(words), "{line}: {stderr}");
    }
}

fn bench_baseline(arguments: &str) -> (std::process::Output, serde_json::Value) {
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
    let (output, json) = bench_baseline("--baseline etcd --workload ycsb-a --rows 1000");
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
        ("--baseline etcd --workload tpcc-nopay", "no procedures, which TPC-C needs"),
        ("--baseline etcd --workload ycsb-a --durability os", "always syncs its disks"),
        (
            "--baseline galera --workload ycsb-a --isolation serializable",
            "does not support serializable",
        ),
        ("--baseline postgres --workload tpcc", "tpcc-nopay"),
        ("--baseline postgres --workload ycsb-a --durability memory", "fsync or os"),
        ("--baseline postgres --workload ycsb-a --regions 2", "at least 3 regions"),
        ("--baseline mysql --workload ycsb-a", "unknown baseline"),
        ("--baseline etcd --workload ycsb-a --rtt 50", "add --lab"),
        ("--baseline etcd --workload ycsb-a --keep", "cannot be used with"),
        ("--baseline postgres --workload ycsb-a --isolation repeatable-read", "or serializable"),
    ];
    for (line, words) in cases {
        let (output, _) = bench_baseline(line);
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
    assert_eq!(run_all(&[]).status.code(), Some(2), "results exist, and --resume is missing");
    // A long run, ended by a signal once its nodes are running.
    std::fs::write(&path, text.replace("secs = 1", "secs = 60")).unwrap();
    std::fs::remove_dir_all(&out).unwrap();
    let child = Command::new(pangea()).args(sweep(&[])).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("three nodes run", || processes_of(&nodes).len() == 3);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("2 runs left; --resume continues"), "{stderr}");
    assert_eq!(processes_of(directory.path()), [] as [u32; 0]);
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("2 not run"));
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
    assert!(stderr.contains("was terminated by signal 9 (SIGKILL)"), "{stderr}");
    assert!(!stderr.contains("INFO"), "{stderr}");
    assert!(output.stdout.is_empty() && !json.exists());
    assert_eq!(processes_of(&path), [] as [u32; 0]);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn divided_tables_are_checked_as_one_also_after_a_region_or_a_node_was_lost() {
    let calvin = "--protocol calvin --partitions 2 --secs 4";
    let mako = "--protocol mako --partitions 2 --secs 6";
    let micro = "--workload calvin-micro --shards 2 --rows 500 --remote 30";
    let tpcc = "--workload tpcc-nopay --warehouses 4 --tiny";
    for (line, kinds) in [
        (format!("{calvin} --regions 1 {micro}"), ["one-shard", "multi-shard"]),
        (format!("{calvin} {tpcc} --fault kill:region-3@1+1"), ["new-order", "payment"]),
        (format!("{calvin} {tpcc} --fault kill:region-2.1@1+1"), ["new-order", "payment"]),
        (format!("{calvin} {micro} --fault cut:region-3@1+1"), ["one-shard", "multi-shard"]),
        (format!("{mako} --regions 1 {micro}"), ["one-shard", "multi-shard"]),
        (format!("{mako} {tpcc} --fault kill:leader@1+1"), ["new-order", "payment"]),
    ] {
        let (output, json) = bench(&line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        for kind in kinds {
            assert!(number(&json["transactions"][kind]["committed"]) > 0.0, "{line}: {kind}");
        }
        assert!(number(&json["regions"]["region-1.1"]["committed"]) > 0.0, "{line}");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("of each of 2 partitions identical"), "{line}: {stdout}");
        let is_alone = line.contains("--regions 1");
        let wan = number(&json["wan_bytes_per_txn"]);
        assert_eq!(wan > 0.0, !is_alone, "{line}: traffic within a region is not counted");
    }
}

#[test]
fn tables_that_cant_be_divided_are_refused_before_anything_starts() {
    for (line, words) in [
        ("--workload bank --partitions 2", "protocol \"minerva\" stores all rows on each node"),
        ("--workload bank --protocol calvin --partitions 20", "are 60 nodes"),
        ("--workload bank --protocol calvin --partitions 200", "200"),
        (
            "--workload bank --protocol calvin --partitions 2 --via process",
            "leave out --via process",
        ),
        (
            "--workload bank --protocol calvin --partitions 2 --fault kill:region-1.2@1+1",
            "region-1.2",
        ),
    ] {
        let (output, _) = bench_baseline(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(words), "{line}: {stderr}");
    }
}
