//! `pangea bench --workload FILE.sql`: a user's own workload.

use std::path::{Path, PathBuf};

use crate::support::{processes_of, run};

/// The example for users.
fn shop() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/shop.sql")
}

/// Runs a file, which may be in `directory` or elsewhere, with these arguments.
fn bench(
    directory: &Path,
    file: &Path,
    arguments: &str,
) -> (std::process::Output, serde_json::Value) {
    let (nodes, json) = (directory.join("nodes"), directory.join("out.json"));
    let mut all = vec!["bench", "--workload", file.to_str().unwrap(), "--warmup", "1"];
    all.extend(["--data-dir", nodes.to_str().unwrap(), "--json", json.to_str().unwrap()]);
    all.extend(arguments.split(' '));
    let output = run(&all);
    assert_eq!(processes_of(directory), [] as [u32; 0]);
    let left = std::fs::read_dir(&nodes).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the servers' files are removed");
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    (output, serde_json::from_str(&text).unwrap_or_default())
}

fn words(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SMALL: &str = "--rtt 10 --secs 3 --clients 9 --define items=20,customers=50";

#[test]
fn the_example_runs_in_all_regions_and_its_checks_hold() {
    let directory = tempfile::tempdir().unwrap();
    let (output, json) = bench(directory.path(), &shop(), SMALL);
    assert!(output.status.success(), "{}", words(&output));
    for name in ["order", "history", "reprice", "bestsellers"] {
        let of_it = &json["transactions"][name]["committed"];
        assert!(of_it.as_u64().is_some_and(|count| count > 0), "{name}: {json}");
    }
    for region in ["region-1", "region-2", "region-3"] {
        assert!(json["regions"][region]["committed"].as_u64().unwrap() > 0, "{json}");
    }
    assert_eq!(json["settings"]["via"], "postgres");
    assert_eq!(json["settings"]["define"][0], "items=20");
    let check = json["check"]["workload"].as_str().unwrap();
    assert_eq!(check, "checks passed: stock_and_orders, every_order_once");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("  retried  "), "{stdout}");
}

#[test]
fn the_example_runs_over_two_nodes_of_each_region_whose_replicas_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!("{SMALL} --protocol calvin --partitions 2");
    let (output, json) = bench(directory.path(), &shop(), &line);
    assert!(output.status.success(), "{}", words(&output));
    for place in
        ["region-1.0", "region-1.1", "region-2.0", "region-2.1", "region-3.0", "region-3.1"]
    {
        assert!(json["regions"][place]["committed"].as_u64().unwrap() > 0, "{place}: {json}");
    }
    let check = json["check"]["workload"].as_str().unwrap();
    assert_eq!(check, "checks passed: stock_and_orders, every_order_once");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("of each of 2 partitions identical"), "{stdout}");
}

/// All clients read one counter and write the value plus one. Without retries after a 40001, most
/// increments would be lost; a retry of a committed one would count it twice.
const COUNTER: &str = "
\\set start 5
CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL);
-- rows counter 3
INSERT INTO counter VALUES (:row, :start);
-- transaction count
BEGIN;
SELECT n FROM counter WHERE id = 1 \\gset old_
\\set new :old_n + 1
UPDATE counter SET n = :new WHERE id = 1;
COMMIT;
-- check counted
SELECT n = :start + :committed_count FROM counter WHERE id = 1;
-- check others
SELECT id, n FROM counter WHERE id > 1 AND n <> :start;
";

#[test]
fn conflicts_are_tried_again_and_every_commit_is_accounted_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter.sql");
    std::fs::write(&file, COUNTER).unwrap();
    let (output, json) = bench(directory.path(), &file, "--rtt 10 --secs 3 --clients 6");
    assert!(output.status.success(), "{}", words(&output));
    assert!(json["retries"]["count 40001"].as_u64().unwrap() > 0, "{json}");
    let (committed, p50) = (&json["committed"], json["latency_ms"]["p50"].as_f64().unwrap());
    assert!(committed.as_u64().unwrap() > 0 && p50 > 10.0, "{json}");
    // The same at a rate, with two repeats.
    let line = "--rtt 10 --secs 2 --clients 6 --rate 10 --repeats 2";
    let (output, json) = bench(directory.path(), &file, line);
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(json["throughput_per_sec_of_runs"].as_array().unwrap().len(), 2);
    let rate = json["throughput_per_sec"].as_f64().unwrap();
    assert!(rate > 0.0 && rate < 40.0, "calls arrive at random, ten a second: {rate}");
    assert_eq!(json["settings"]["rate_per_sec"], 10.0);
}

#[test]
fn a_killed_node_comes_back_and_its_sessions_too() {
    let directory = tempfile::tempdir().unwrap();
    let line = "--rtt 10 --secs 5 --clients 6 --define items=20,customers=50 \
                --fault kill:follower@1+1";
    let (output, json) = bench(directory.path(), &shop(), line);
    assert!(output.status.success(), "{}", words(&output));
    let victim = json["faults"][0]["what"].as_str().unwrap().strip_prefix("kill ").unwrap();
    let steps = json["timeline"]["regions"][victim].as_array().unwrap();
    let last: u64 = steps[steps.len() - 10..].iter().map(|it| it.as_u64().unwrap()).sum();
    assert!(last > 0, "clients of {victim} make progress again: {steps:?}");
    let check = json["check"]["workload"].as_str().unwrap();
    let held = ["stock_and_orders", "every_order_once"];
    assert!(held.iter().all(|name| check.contains(name)), "{check}");
    assert!(!check.contains("not run"), "{check}");
}

#[test]
fn a_check_that_fails_leaves_no_throughput() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wrong.sql");
    let wrong = COUNTER.replace("AND n <> :start", "AND n = :start");
    std::fs::write(&file, wrong).unwrap();
    let (output, json) = bench(directory.path(), &file, "--rtt 0 --secs 1 --clients 3");
    let stderr = words(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("check failed: ") && stderr.contains("check others: "), "{stderr}");
    assert!(stderr.contains("expected no rows or `true`, found 2 rows, with id = "), "{stderr}");
    assert!(output.stdout.is_empty() && json.is_null());
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_its_line_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file.sql");
    let shown = file.display();
    let cases = [
        (
            COUNTER.replace("(:row, :start)", "(:row, :strat)"),
            ":5: there is no variable \"strat\"",
            "",
        ),
        (COUNTER.replace("COMMIT;\n", ""), ":7: there is no COMMIT for this BEGIN", ""),
        (
            COUNTER.replace("-- rows", "-- row"),
            ":4: this is not a header; did you mean `-- rows`?",
            "",
        ),
        (COUNTER.to_owned(), "--define strat=1: there is no variable", "--define strat=1"),
        (COUNTER.to_owned(), "--rows does not apply to an SQL file", "--rows 5"),
        (COUNTER.to_owned(), "--baseline galera does not support", "--baseline galera"),
        (COUNTER.to_owned(), "use PostgreSQL sessions", "--via process"),
    ];
    for (text, said, more) in cases {
        std::fs::write(&file, text).unwrap();
        let line = format!("--secs 1 {more}");
        let (output, _) = bench(directory.path(), &file, line.trim_end());
        let stderr = words(&output);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(said), "{said}: {stderr}");
        assert!(!said.starts_with(':') || stderr.contains(&format!("{shown}{said}")), "{stderr}");
    }
    let output = run(&["bench", "--workload", "/no/such.sql"]);
    assert!(words(&output).contains("--workload /no/such.sql: "), "{}", words(&output));
    let output = run(&["bench", "--workload", "bank", "--define", "a=1"]);
    assert!(words(&output).contains("only an SQL file has variables"), "{}", words(&output));
    let file = shop();
    for command in ["calibrate", "sim --predict --costs /no/such.toml"] {
        let mut line: Vec<&str> = command.split(' ').collect();
        line.extend(["--workload", file.to_str().unwrap()]);
        let stderr = words(&run(&line));
        assert!(stderr.contains("can only be measured"), "{command}: {stderr}");
    }
}

#[test]
fn what_a_node_refuses_is_said_with_its_line_before_anything_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file.sql");
    let cases = [
        (COUNTER.replace("n bigint", "n bigitn"), ":3: "),
        (COUNTER.replace("INTO counter V", "INTO countre V"), ":5: rows of counter: "),
        (
            COUNTER.replace("SELECT n FROM counter WHERE id = 1 \\", "SELECT m FROM counter \\"),
            ":8: ",
        ),
        (COUNTER.replace("\\gset old_", "\\gset odl_"), ":9: there is no variable \"old_n\""),
        (COUNTER.replace(":old_n + 1", "'x' || :old_n"), ":6: transaction count: "),
        (COUNTER.replace(":old_n + 1", ":old_n / 0"), ":9: /: division by zero"),
    ];
    for (text, said) in cases {
        std::fs::write(&file, text).unwrap();
        let (output, _) = bench(directory.path(), &file, "--rtt 0 --secs 1 --clients 3");
        let stderr = words(&output);
        assert_eq!(output.status.code(), Some(1), "{said}: {stderr}");
        assert!(stderr.contains(&format!("{}{said}", file.display())), "{said}: {stderr}");
    }
}

#[test]
fn postgresql_takes_the_same_file() {
    let directory = tempfile::tempdir().unwrap();
    let line = "--baseline postgres --secs 2 --clients 6 --define items=20,customers=50";
    let (output, json) = bench(directory.path(), &shop(), line);
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(json["settings"]["protocol"], "postgres");
    let check = json["check"]["workload"].as_str().unwrap();
    assert!(check.contains("of 3 tables, the same in 3 places"), "{check}");
    assert!(check.contains("checks passed: stock_and_orders, every_order_once"), "{check}");
}
