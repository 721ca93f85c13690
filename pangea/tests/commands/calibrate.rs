//! `pangea calibrate` on real processes, and `pangea sim --predict` on its output.

use std::path::Path;

use crate::support::{processes_of, run};

/// Predicts with a file of costs.
fn predict(costs: &Path, more: &str) -> std::process::Output {
    let line = "sim --predict --workload ycsb-a --rows 1000 --rtt 10 --clients 12 --secs 1";
    let mut all: Vec<&str> = line.split(' ').chain(["--warmup", "1", "--costs"]).collect();
    all.push(costs.to_str().unwrap());
    all.extend(more.split(' ').filter(|word| !word.is_empty()));
    run(&all)
}

#[test]
fn what_was_measured_is_read_and_predicts_about_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let (path, costs) = (directory.path().join("nodes"), directory.path().join("costs.toml"));
    let line = "calibrate --workload ycsb-a --rows 1000 --rtt 10 --clients 12 --secs 1 --warmup 1";
    let mut all: Vec<&str> = line.split(' ').collect();
    all.extend(["--data-dir", path.to_str().unwrap(), "--out", costs.to_str().unwrap()]);
    let output = run(&all);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(processes_of(directory.path()), [] as [u32; 0]);
    let text = std::fs::read_to_string(&costs).unwrap();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["calibration"]["workload"].as_str(), Some("ycsb-a"));
    let explained = table["calibration"]["explained_percent"].as_float().unwrap();
    // On a machine with other load, some of that load is measured, too.
    assert!((25.0..200.0).contains(&explained), "{text}");
    for kind in ["submit", "message_batch", "work_execute", "log_write", "send", "client_answer"] {
        assert!(table["lines"][kind]["samples"].as_integer().unwrap() > 0, "{kind}: {text}");
    }

    let output = predict(&costs, "--shared-cores 2 --json");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["note"], "predicted, not measured");
    let predicted = json["predictions"][0]["throughput_per_sec"].as_f64().unwrap();
    let measured = table["calibration"]["txns_per_sec"].as_float().unwrap();
    // A debug build concurrent with other tests: only the order of magnitude is checked.
    assert!((0.25..4.0).contains(&(predicted / measured)), "{predicted} for {measured}");
    assert_eq!(predict(&costs, "--shared-cores 2 --json").stdout, output.stdout);

    let output = predict(&costs, "--replicas 3,5 --cores 4");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("predicted, not measured"), "{stdout}");
    for (more, word) in [
        ("--replicas 2", "must be 1, or from 3 to 15"),
        ("--replicas 3,16", "--replicas 16"),
        ("--regions us-east,eu-west", "--replicas 2"),
        ("--regions us-east,eu-west,us-west --replicas 5", "--regions has 3"),
        ("--bandwidth 0", "0"),
        ("--matrix /no/such.csv", "cannot be used with"),
        ("--cores 0", "0"),
        ("--set minerva.speed=9", "speed"),
    ] {
        let output = predict(&costs, more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more}: {stderr}");
        assert!(stderr.contains(word), "{more}: {stderr}");
    }
    std::fs::write(&costs, text.replace("version = 2", "version = 7")).unwrap();
    let stderr = String::from_utf8_lossy(&predict(&costs, "").stderr).into_owned();
    assert!(stderr.contains("version: expected 2, found 7"), "{stderr}");
}

#[test]
fn predictions_need_costs_and_their_options_need_predict() {
    for (line, word) in [
        ("sim --predict", "--costs"),
        ("sim --predict --costs /no/such.toml --workload bank", "/no/such.toml"),
        ("sim --seed 1 --replicas 3", "--predict"),
        ("sim", "--seed"),
    ] {
        let output = run(&line.split(' ').collect::<Vec<_>>());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
}
