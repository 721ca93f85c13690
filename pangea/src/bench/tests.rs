//! What the arguments of a benchmark become.

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
    for wrong in ["minerva.solver=oracle", "minerva.nothing=1", "tiga.epoch_ms=1"] {
        let error = arguments(&format!("--workload bank --set {wrong}")).plan().unwrap_err();
        assert!(matches!(error, Failure::Usage(_)), "{wrong}: {error}");
    }
}
