//! Tiga with several shards.

use pangea_protocols::tiga::{Options, Tiga};
use pangea_sim::Settings;

use crate::runs::clean;
use crate::tiga_drawn::{WORKLOADS, drawn_divided, faults, settings};

#[test]
fn several_shards_are_serializable_without_faults() {
    for workload in WORKLOADS {
        for (seed, shards) in [(1_000, 2), (1_001, 3)] {
            let settings = Settings { shards, ..settings(seed, workload) };
            clean::<Tiga>(&settings, &Options::default());
        }
    }
}

#[test]
fn several_shards_keep_their_guarantee_and_lose_nothing_under_faults() {
    for workload in ["list-append", "bank", "ranges", "register"] {
        for seed in 1_000..1_008 {
            let settings = Settings { faults: faults(), shards: 2, ..settings(seed, workload) };
            clean::<Tiga>(&settings, &Options::default());
        }
    }
}

#[test]
fn drawn_runs_of_several_shards_are_clean() {
    for seed in 0..30 {
        let (settings, options) = drawn_divided(seed);
        clean::<Tiga>(&settings, &options);
    }
}
