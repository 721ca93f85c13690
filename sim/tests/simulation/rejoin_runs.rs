//! Nodes that lose their disks and the nodes that replace them, for a few seeds.

use std::num::NonZeroUsize;

use crate::runs::clean;
use pangea_core::time::Span;
use pangea_protocols::minerva::{Minerva, Options};
use pangea_sim::{FaultKind, Report, Settings};

/// Disks are lost, combined with faults that make rejoining hard.
fn settings(seed: u64, nodes: usize) -> Settings {
    use FaultKind::{
        BitFlip, CoordinatorCrash, Crash, DiskLoss, Flap, FullStop, HeldLane, Partial, SlowDisk,
    };
    let faults = vec![
        DiskLoss,
        DiskLoss,
        DiskLoss,
        BitFlip,
        Crash,
        CoordinatorCrash,
        Flap,
        FullStop,
        HeldLane,
        Partial,
        SlowDisk,
    ];
    let workload = ["list-append", "bank"][(seed % 2) as usize].to_owned();
    let duration = Span::from_ms(5_000);
    Settings { seed, nodes, workload, faults, faults_max: 20, duration, ..Settings::default() }
}

/// Little is retained, so that a rejoining node needs a checkpoint.
fn options(seed: u64) -> Options {
    let little = Options { checkpoint_bytes: 30_000, chunk_bytes: 500, ..Options::default() };
    match seed % 3 {
        0 => Options { cuts_kept: 20, ..little },
        1 => Options { slice_txns: NonZeroUsize::MIN, ..little },
        _ => Options { checkpoint_bytes: 100_000, ..Options::paper() },
    }
}

fn run_clean(seed: u64, nodes: usize) -> Report {
    clean::<Minerva>(&settings(seed, nodes), &options(seed))
}

/// A strict read was sent to the coordinator, which had been replaced and did not accept requests
/// yet, and waited forever.
#[test]
fn runs_that_found_a_bug_stay_clean() {
    run_clean(303, 5);
}

#[test]
fn a_node_whose_disk_is_lost_comes_back_and_nothing_is_lost_with_it() {
    let seeds: u64 = std::env::var("PANGEA_REJOIN_SEEDS").map_or(20, |n| n.parse().unwrap());
    let (mut replaced, mut rejoined) = (0, 0);
    for seed in 0..seeds {
        let nodes = if seed % 4 == 3 { 5 } else { 3 };
        let report = run_clean(seed, nodes);
        replaced += report.counts.replaced;
        rejoined += report.counts.mark("inputs.rejoined");
    }
    println!("{replaced} disks lost, {rejoined} rejoined");
    assert!(replaced >= seeds / 2, "only {replaced} disks in {seeds} runs");
    // Each run ends with all nodes rejoined. A node that crashes at the end of its rejoin detects
    // at its next start that it had rejoined.
    assert!(rejoined >= replaced * 3 / 4, "only {rejoined} of {replaced} rejoined in one run");
}
