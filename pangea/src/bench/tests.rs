//! Tests of the arguments of a benchmark.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(line: &str) -> Arguments {
    Line::try_parse_from(format!("bench {line}").split(' ')).unwrap().arguments
}

#[derive(Parser)]
struct WholeLine {
    #[command(flatten)]
    line: CommandLine,
}

#[test]
fn a_line_is_one_benchmark_or_a_sweep() {
    let parse = |line: &str| WholeLine::try_parse_from(format!("bench {line}").split(' '));
    let one = parse("--workload bank --rtt 0 --rows 9").unwrap().line;
    assert!(one.many.is_none() && one.one.names() == ("bank", "minerva"));
    assert!(parse("sweep plan.toml --resume").unwrap().line.many.is_some());
    // The command line gives neither a workload nor a subcommand, or options that belong to a
    // sweep's plan.
    for wrong in ["--rtt 0", "--workload bank sweep plan.toml", "sweep plan.toml --rtt 0", "sweep"]
    {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn regions_are_a_number_or_names() {
    let plan = arguments("--workload bank --regions 5 --rtt 80").plan().unwrap();
    assert_eq!((plan.regions.len(), plan.round_trip_ms_max()), (5, 80.0));
    let plan = arguments("--workload bank --regions us-east,eu-west").plan().unwrap();
    assert_eq!(plan.round_trip_ms("eu-west", "us-east"), 68.0);
    let plan = arguments("--workload bank --regions us-east,eu-west --rtt 5").plan().unwrap();
    assert_eq!(plan.round_trip_ms("eu-west", "us-east"), 5.0);
    assert_eq!(arguments("--workload bank").plan().unwrap().round_trip_ms_max(), 50.0);
    assert!(arguments("--workload bank --regions nowhere").plan().is_err());
    assert!(arguments("--workload bank --regions 0").plan().is_err());
}

#[test]
fn settings_reach_the_plan_and_unknown_ones_are_refused() {
    let line = "--workload bank --set minerva.solver=greedy --set minerva.epoch_ms=30";
    let plan = arguments(line).plan().unwrap();
    assert_eq!(plan.options["solver"].as_str(), Some("greedy"));
    assert_eq!(plan.options["epoch_ms"].as_integer(), Some(30));
    for wrong in [
        "minerva.solver=oracle",
        "minerva.nothing=1",
        "minerva.slice_txns=9000000000000000000",
        "tiga.epoch_ms=1",
    ] {
        let error = arguments(&format!("--workload bank --set {wrong}")).plan().unwrap_err();
        assert!(matches!(error, Failure::Usage(_)), "{wrong}: {error}");
    }
}

#[test]
fn results_of_another_run_are_gone_before_this_one_can_fail() {
    let directory = tempfile::tempdir().unwrap();
    let [older, link] = ["older.json", "link"].map(|name| directory.path().join(name));
    std::fs::write(&older, "{}").unwrap();
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    for path in [&older, &link, &directory.path().join("none.json")] {
        make_way(path).unwrap();
    }
    assert!(!older.exists() && link.exists());
    assert!(make_way(&directory.path().join("no such directory/it.json")).is_err());
    assert!(make_way(directory.path()).is_err(), "a directory");
}

#[test]
fn what_says_nothing_of_a_peer_is_refused_with_one() {
    let parse = |line: &str| Line::try_parse_from(format!("bench {line}").split(' '));
    for option in ["--memory-mb 5", "--mark-checkpoints", "--memory-mb 5 --cold-latency-ms 3"] {
        let error = parse(&format!("--baseline etcd --workload ycsb-a {option}")).err();
        let error = error.expect(option).to_string();
        assert!(error.contains("--baseline") && error.contains("cannot be used with"), "{error}");
    }
}
