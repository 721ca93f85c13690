//! The settings that a swarm draws, and the given ones that it must not change.

use pangea_core::protocol::Protocol;
use pangea_protocols::calvin::{Calvin, Checkpoints, Options, Reads, Replication};
use pangea_sim::{RealTime, drawn, drawn_beside};

const SEEDS: u64 = 300;

fn given(text: &str) -> toml::Table {
    text.parse().unwrap()
}

/// `--swarm --set calvin.replication=asynchronous` ended at the first seed that drew `frozen`.
#[test]
fn what_is_drawn_gives_way_to_what_is_given() {
    let is_asynchronous = given("replication = \"asynchronous\"");
    let mut gave_way = 0;
    for seed in 0..SEEDS {
        let (_, drawn) = drawn::<Calvin>(seed);
        let (settings, options) = drawn_beside::<Calvin>(seed, &is_asynchronous);
        assert_eq!(Calvin::check_options(&options, &settings.topology()), Ok(()), "seed {seed}");
        // All other settings are as drawn.
        let checkpoints = match drawn.checkpoints {
            Checkpoints::Frozen => Checkpoints::Versions,
            other => other,
        };
        gave_way += u64::from(drawn.checkpoints == Checkpoints::Frozen);
        let replication = Replication::Asynchronous;
        assert_eq!(options, Options { replication, checkpoints, ..drawn }, "seed {seed}");
    }
    assert!(gave_way > 0, "none of {SEEDS} seeds shows it");
}

#[test]
fn what_is_given_stays_where_either_could_give_way() {
    let is_frozen = given("checkpoints = \"frozen\"");
    for seed in 0..SEEDS {
        let (settings, options) = drawn_beside::<Calvin>(seed, &is_frozen);
        assert_eq!(Calvin::check_options(&options, &settings.topology()), Ok(()), "seed {seed}");
        assert_eq!(options.checkpoints, Checkpoints::Frozen, "seed {seed}");
    }
}

#[test]
fn a_run_is_held_to_what_the_given_settings_promise() {
    for (reads, text, promised) in [
        (Reads::Snapshot, "reads = \"snapshot\"", RealTime::Writes),
        (Reads::Strict, "reads = \"strict\"", RealTime::Ordered),
    ] {
        for seed in 0..SEEDS {
            let (settings, options) = drawn_beside::<Calvin>(seed, &given(text));
            assert_eq!((options.reads, settings.real_time), (reads, promised), "seed {seed}");
        }
    }
}
