//! Runs the scenarios of the repository with a few seeds on each protocol.

use std::path::{Path, PathBuf};

use pangea_core::protocol::Protocol;
use pangea_protocols::{NAMES, WithProtocol, with_protocol};
use pangea_sim::{Report, Scenario, Settings, run};

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let entries = std::fs::read_dir(&directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}

#[test]
fn every_scenario_passes_with_all_of_its_faults() {
    let files = files();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let scenario = Scenario::read(&text, NAMES).unwrap();
        for seed in 0..3 {
            let settings = Settings { seed, ..Settings::default() };
            let settings = scenario.apply(settings).unwrap();
            let rules = settings.rules.as_ref().map_or(0, Vec::len) as u64;
            for name in NAMES {
                let report = with_protocol(name, Simulated(&settings)).unwrap();
                assert!(report.violation.is_none(), "{}: {report}", file.display());
                assert_eq!(report.counts.faults.values().sum::<u64>(), rules, "{report}");
                assert!(report.counts.committed > 0, "{report}");
            }
        }
    }
}

/// One run with frequent checkpoints.
struct Simulated<'a>(&'a Settings);

impl WithProtocol for Simulated<'_> {
    type Output = Report;

    fn run<P: Protocol>(self) -> Report {
        run::<P>(self.0, &P::scaled_down_options()).unwrap()
    }
}
