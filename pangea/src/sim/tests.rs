//! Tests of the arguments of a simulation.

use pangea_sim::FaultKind;

use super::*;
use clap::Parser;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn parse(line: &str) -> Result<Arguments, clap::Error> {
    Line::try_parse_from(line.split_whitespace()).map(|line| line.arguments)
}

#[test]
fn a_replay_command_is_read_back_as_the_same_settings() {
    let settings = Settings {
        seed: 77,
        workload: "bank".to_owned(),
        nodes: 5,
        shards: 2,
        faults: vec![FaultKind::Crash, FaultKind::OneWay],
        one_way_max: Span::from_ms(20),
        real_time: RealTime::Ordered,
        given: vec!["minerva.solver=greedy".to_owned(), "minerva.epoch_ms=20".to_owned()],
        ..Settings::default()
    };
    for settings in [settings, Settings { faults: Vec::new(), ..Settings::default() }] {
        let command = settings.replay_command("minerva");
        let line = command.strip_prefix("pangea ").unwrap();
        assert_eq!(parse(line).unwrap().settings(RealTime::None), Ok(settings), "{command}");
    }
}

#[test]
fn what_says_nothing_of_a_prediction_is_refused_with_one() {
    let predict = "sim --predict --costs c.toml";
    assert!(parse(predict).is_ok());
    for option in [
        "--seeds 0..2",
        "--history h",
        "--trace",
        "--nodes 3",
        "--faults none",
        "--twice",
        "--ms 5",
        "--memory-bytes 5",
        "--real-time none",
    ] {
        let error = parse(&format!("{predict} {option}")).unwrap_err().to_string();
        let name = option.split(' ').next().unwrap();
        assert!(error.contains("--predict") && error.contains(name), "{error}");
    }
    let error = run(&parse("sim --seed 1 --zipf 0.9").unwrap()).unwrap_err().to_string();
    assert!(error.contains("--zipf") && error.contains("--predict"), "{error}");
}

#[test]
fn the_heading_of_predictions_is_over_their_options_alone() {
    use clap::CommandFactory;
    let command = Line::command();
    let heading = |name: &str| {
        let argument = command.get_arguments().find(|it| it.get_id() == name).unwrap();
        argument.get_help_heading().map(str::to_owned)
    };
    assert_eq!(heading("threads"), None);
    assert_eq!(heading("costs").as_deref(), Some("With --predict"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert!(parse("sim --seed 1 --clients 0").unwrap_err().to_string().contains("--clients"));
    let error = parse("sim --seed 1 --faults crash,none").unwrap_err().to_string();
    assert!(error.contains("none can't be combined with faults"), "{error}");
    for line in ["sim", "sim --seed 1 --seeds 1..2", "sim --seeds 5..5", "sim --seeds 7"] {
        assert!(parse(line).is_err(), "{line}");
    }
    assert!(parse("sim --seeds 1..2 --trace").is_err());
    assert!(parse("sim --seed 1 --faults earthquake").is_err());
    for line in ["sim --seed 1 --nodes 0", "sim --seed 1 --workload chess"] {
        assert!(parse(line).unwrap().settings(RealTime::None).is_err(), "{line}");
    }
    let error = parse("sim --protocol nosuch").unwrap_err().to_string();
    assert!(error.contains("--protocol") && error.contains("minerva, calvin"), "{error}");
    let error = run(&parse("sim --seed 1 --workload bnak").unwrap()).unwrap_err().to_string();
    assert!(error.contains("did you mean \"bank\"?"), "{error}");
}
