//! `pangea advise`, from its two files to its three sentences.

use std::path::Path;
use std::process::Output;

use crate::support::{processes_of, run};

const REGIONS: &str = "regions = [\"a\", \"b\", \"c\"]\ncores = 2\nround_trips_ms = [
  [ 0, 10, 20],
  [10,  0, 20],
  [20, 20,  0],
]\n";

fn advise(directory: &Path, work: &str, regions: &str, more: &str) -> Output {
    let (w, r) = (directory.join("w.toml"), directory.join("r.toml"));
    std::fs::write(&w, work).unwrap();
    std::fs::write(&r, regions).unwrap();
    let nodes = directory.join("nodes");
    let mut all = vec!["advise", "--workload", w.to_str().unwrap()];
    all.extend(["--regions", r.to_str().unwrap(), "--data-dir", nodes.to_str().unwrap()]);
    all.extend(more.split(' ').filter(|word| !word.is_empty()));
    let output = run(&all);
    assert_eq!(processes_of(directory), [] as [u32; 0]);
    output
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn work_in_some_regions_gets_a_table_and_three_sentences() {
    let directory = tempfile::tempdir().unwrap();
    let work = "workload = \"smallbank\"\ncustomers = 500\nhot = 50\nclients_per_region = 4\n";
    let line = "--secs 2 --warmup 1 --finalists 1 --json";
    let output = advise(directory.path(), work, REGIONS, line);
    let stderr = words(&output);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("no --costs of minerva: measuring them for 4 s"), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.len() >= 3, "{json}");
    for row in rows {
        assert!(row["throughput_per_sec"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["is_measured"], false);
        // A commit waits for another region.
        let p50 = row["regions"][2]["p50_ms"].as_f64().unwrap();
        assert!(p50 > 10.0, "{row}");
        let loss = &row["loss"];
        assert!(loss["wrong"].is_null(), "{row}");
        // Only transactions acknowledged before the regions agree on them can be lost. How many
        // are lost depends on the costs, which this run measures: sometimes none.
        let set = row["set"].as_array().unwrap();
        let is_early = set.iter().any(|it| it == "calvin.replication=asynchronous");
        assert_eq!(row["may_lose"].as_bool().unwrap(), is_early, "{row}");
        assert!(is_early || loss["lost_txns"] == 0, "{row}");
        let pauses = loss["pauses_ms"].as_array().unwrap();
        assert_eq!(pauses.len(), 2, "eligible: {row}");
        assert!(pauses.iter().all(|it| it[1].as_f64().unwrap() > 0.0), "{row}");
    }
    let strict = rows.iter().find(|row| row["guarantee"] == "strict-serializable").unwrap();
    assert_eq!(strict["set"][0], "minerva.reads=strict");
    let take = json["advice"]["take"].as_u64().unwrap() as usize;
    assert_eq!(rows[take]["may_lose"], false, "{json}");
    let check = &rows[take]["check"];
    assert!(check["measured"]["Ok"]["throughput_per_sec"].as_f64().unwrap() > 0.0, "{check}");
    assert!(check["measured_pause_ms"].as_f64().unwrap() > 0.0, "{check}");
    // If one fails because nodes starve while other tests run, the next is tried.
    let checked: Vec<_> = rows.iter().filter(|row| !row["check"].is_null()).collect();
    let passed = checked.iter().filter(|row| row["check"]["measured"].get("Ok").is_some()).count();
    assert!(passed == 1 && checked.len() <= 2, "{json}");
    let sentences = json["advice"]["sentences"].as_array().unwrap();
    assert!(sentences[0].as_str().unwrap().starts_with("Take "), "{sentences:?}");
    assert!(sentences[2].as_str().unwrap().contains("were predicted"), "{sentences:?}");
    assert_eq!(std::fs::read_dir(directory.path().join("nodes")).unwrap().count(), 0);
}

#[test]
fn a_sql_file_is_run_for_real_and_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let sql = "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);\n\
               -- rows t 100\nINSERT INTO t VALUES (:row, 0);\n\
               -- transaction add\n\\set id random(1, 100)\n\
               UPDATE t SET n = n + 1 WHERE id = :id;\n\
               -- check sum\nSELECT sum(n) = :committed_add FROM t;\n";
    std::fs::write(directory.path().join("own.sql"), sql).unwrap();
    let work =
        "workload = \"own.sql\"\nclients_per_region = 2\nguarantee = \"strict-serializable\"\n";
    let output = advise(directory.path(), work, REGIONS, "--secs 1 --warmup 0");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), words(&output));
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("the simulator does not run"), "{stderr}");
    assert!(stdout.contains("measured on this machine"), "{stdout}");
    // The speed of the machine decides which of the rows with this guarantee is fastest.
    let taken = stdout.lines().find(|line| line.starts_with("Take ")).unwrap_or_default();
    let promised = ["minerva with minerva.reads=strict", "calvin", "mako"];
    assert!(promised.iter().any(|name| taken.contains(name)), "{stdout}");
    assert!(taken.contains("it is strict-serializable"), "{stdout}");
    let rows = |name: &str| stdout.lines().filter(|line| line.contains(name)).count();
    assert!(
        rows(" calvin ") >= 4 && rows(" mako ") >= 2 && rows(" minerva ") >= 5,
        "each with its variants: {stdout}"
    );
}

#[test]
fn what_is_wrong_is_said_with_file_and_line_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let work = "workload = \"bank\"\nclients_per_region = 4\n";
    let skewed = REGIONS.replace("[20, 20,  0]", "[20, 21,  0]");
    for (work, regions, more, said) in [
        (
            "workload = \"bnak\"\nclients_per_region = 4\n",
            REGIONS,
            "",
            "w.toml: line 1: there is no",
        ),
        ("workload = \"bank\"\nclients = 4\n", REGIONS, "", "w.toml: line 2: there is no key"),
        (work, skewed.as_str(), "", "r.toml: line 6: c to b is 21 ms"),
        (
            work,
            REGIONS,
            "--protocol raft",
            "[possible values: minerva, calvin, geogauss, tiga, mako]",
        ),
        (work, REGIONS, "--costs /no/such.toml", "--costs /no/such.toml: "),
        ("workload = \"no.sql\"\nclients_per_region = 4\n", REGIONS, "", "--workload no.sql: "),
    ] {
        let output = advise(directory.path(), work, regions, more);
        let stderr = words(&output);
        assert_eq!(output.status.code(), Some(2), "{said}: {stderr}");
        assert!(stderr.contains(said), "{said}: {stderr}");
        assert!(output.stdout.is_empty() && !stderr.contains("measuring"), "{stderr}");
    }
}
