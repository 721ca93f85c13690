//! Runs the scenarios of the repository with a few seeds on each protocol.

use std::path::{Path, PathBuf};

use pangea_protocols::calvin::{self, Calvin};
use pangea_protocols::minerva::{self, Minerva};
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
        let scenario = Scenario::read(&text, &["minerva"]).unwrap();
        for seed in 0..3 {
            let settings = Settings { seed, ..Settings::default() };
            let settings = scenario.apply(settings).unwrap();
            let rules = settings.rules.as_ref().map_or(0, Vec::len) as u64;
            for report in [minerva(&settings), calvin(&settings)] {
                assert!(report.violation.is_none(), "{}: {report}", file.display());
                assert_eq!(report.counts.faults.values().sum::<u64>(), rules, "{report}");
                assert!(report.counts.committed > 0, "{report}");
            }
        }
    }
}

fn minerva(settings: &Settings) -> Report {
    let options = minerva::Options { checkpoint_bytes: 100_000, ..minerva::Options::default() };
    run::<Minerva>(settings, &options).unwrap()
}

fn calvin(settings: &Settings) -> Report {
    let options = calvin::Options { checkpoint_bytes: 300_000, ..calvin::Options::default() };
    run::<Calvin>(settings, &options).unwrap()
}
