//! The simulator on a small protocol: a right one passes, a broken one is caught.

mod toy;

use pangea_core::time::Span;
use pangea_sim::trace::Lines;
use pangea_sim::{Settings, run};
use toy::{Bug, Toy, ToyOptions};

fn short(seed: u64, workload: &str) -> Settings {
    let workload = workload.to_owned();
    Settings { seed, workload, duration: Span::from_ms(4_000), ..Settings::default() }
}

#[test]
fn the_right_protocol_passes_under_faults() {
    for workload in ["list-append", "bank"] {
        for seed in 0..15 {
            let report = run::<Toy>(&short(seed, workload), &ToyOptions::default()).unwrap();
            assert!(report.violation.is_none(), "{report}");
            assert!(report.counts.committed > 0, "{report}");
        }
    }
}
