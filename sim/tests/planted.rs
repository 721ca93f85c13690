//! Planted bugs: each must be caught by a swarm of bounded size. With `PANGEA_WRITE_PROOF=1` the
//! table in docs/PROOF.md is written anew.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pangea_core::planted::Bug;
use pangea_core::time::Span;
use pangea_protocols::minerva::{Minerva, Options};
use pangea_sim::{FaultKind, Settings, run};

/// So many seeds must be enough for any bug.
const SEEDS_MAX: u64 = 200;

const BEGIN: &str = "<!-- planted: begin -->";
const END: &str = "<!-- planted: end -->";

/// A kind of run. Seeds turn through those that suit a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile {
    /// Lists, with any fault.
    Lists,
    /// Accounts, with any fault.
    Bank,
    /// Lists on few keys, few faults.
    Hot,
    /// Nodes and disks fail, over and over.
    Crashes,
    /// Nodes are lost for good while others crash.
    Losses,
    /// Nodes are away for long while little is kept for them.
    Away,
    /// Orders, which delete rows.
    Orders,
    /// The paper's protocol.
    Paper,
}

impl Profile {
    const ALL: [Self; 8] = [
        Self::Lists,
        Self::Hot,
        Self::Crashes,
        Self::Losses,
        Self::Away,
        Self::Bank,
        Self::Paper,
        Self::Orders,
    ];

    /// Where a bug is looked for first.
    fn of(bug: Bug) -> &'static [Self] {
        match bug {
            Bug::SendBeforeFsync
            | Bug::VoteBeforeFsync
            | Bug::CutLostWithTerm
            | Bug::HeadsGoBack
            | Bug::PromiseForgotten
            | Bug::EntriesKept
            | Bug::EpochNotLogged
            | Bug::LoggedInQueueOrder
            | Bug::BoundaryReplayed
            | Bug::NumbersReused
            | Bug::ReplayedTwice
            | Bug::TornTrusted
            | Bug::ValidBitsReversed
            | Bug::CheckpointOfOldRows
            | Bug::TruncatedTooFar
            | Bug::DurableNotAwaited
            | Bug::HeldPastGap => &[Self::Crashes, Self::Losses],
            Bug::AckBeforeFsync | Bug::AckCountedTwice | Bug::CutPastGap => &[Self::Losses],
            Bug::ChunkRowLost | Bug::TransferMixesVersions | Bug::CollectedForOne => &[Self::Away],
            Bug::DeletionsNotTransferred | Bug::DeletionLostInCodec => &[Self::Orders],
            Bug::ModeDecides
            | Bug::ReadersDoNotWait
            | Bug::WritersDoNotWait
            | Bug::KeysIntendNothing
            | Bug::RangesNotValidated
            | Bug::PhantomsPass
            | Bug::RangeEdgesLost
            | Bug::OwnChainsFirst
            | Bug::ScanUnsettled => &[Self::Hot, Self::Lists],
            _ => &[Self::Lists, Self::Hot],
        }
    }

    fn settings(self, seed: u64) -> (Settings, Options) {
        let any = Settings { seed, duration: Span::from_ms(4_000), ..Settings::default() };
        let small = Options {
            checkpoint_bytes: 30_000,
            chunk_bytes: 500,
            slice_txns: NonZeroUsize::new(4).unwrap(),
            cuts_kept: 20,
            ..Options::default()
        };
        match self {
            Self::Lists => (any, small),
            Self::Bank => (Settings { workload: "bank".to_owned(), ..any }, small),
            Self::Hot => {
                let settings = Settings { lists: 5, clients_per_node: 6, faults_max: 3, ..any };
                let options = Options {
                    high_contention_ms: 30,
                    high_contention_hold_ms: 200,
                    slice_txns: NonZeroUsize::new(64).unwrap(),
                    ..small
                };
                (settings, options)
            }
            Self::Crashes => {
                use FaultKind::*;
                let faults =
                    vec![Crash, CoordinatorCrash, FullStop, SlowDisk, StuckDisk, Partition];
                (Settings { faults, faults_max: 25, ..any }, small)
            }
            Self::Losses => {
                use FaultKind::*;
                let faults = vec![Crash, Destroy, SlowDisk, HeldLane, StuckDisk];
                (Settings { faults, faults_max: 25, ..any }, small)
            }
            Self::Away => {
                use FaultKind::*;
                let faults = vec![Crash, Partition, Partial, OneWay, SlowLink];
                let options = Options { checkpoint_bytes: 4_096, cuts_kept: 1, ..small };
                (Settings { faults, faults_max: 8, ..any }, options)
            }
            Self::Orders => {
                let options = Options { cuts_kept: 1, chunk_bytes: 10_000, ..small };
                (Settings { workload: "tpcc".to_owned(), ..any }, options)
            }
            Self::Paper => (any, Options { checkpoint_bytes: 30_000, ..Options::paper() }),
        }
    }
}

/// How a bug was caught.
#[derive(Clone, Debug)]
struct Catch {
    seeds: u64,
    profile: Profile,
    checker: String,
}

/// Runs seeds until one catches the bug.
fn hunt(bug: Bug) -> Option<Catch> {
    let first = Profile::of(bug);
    for seed in 0..seeds_max() {
        // Every fourth seed somewhere else than where the bug is expected.
        let profile = match seed % 4 {
            3 => Profile::ALL[(seed / 4) as usize % Profile::ALL.len()],
            turn => first[turn as usize % first.len()],
        };
        let (settings, options) = profile.settings(seed);
        let report = run::<Minerva>(&Settings { planted: Some(bug), ..settings }, &options);
        if let Some(violation) = report.unwrap().violation {
            let story: String = violation.story.lines().next().unwrap_or_default().to_owned();
            eprintln!("{bug}: seed {seed} {profile:?}: {}: {story}", violation.anomaly);
            let checker = match violation.checker == violation.anomaly {
                true => violation.checker.to_owned(),
                false => format!("{}: {}", violation.checker, violation.anomaly),
            };
            return Some(Catch { seeds: seed + 1, profile, checker });
        }
    }
    eprintln!("{bug}: not caught");
    None
}

fn seeds_max() -> u64 {
    let given = std::env::var("PANGEA_PLANTED_SEEDS").ok();
    given.map_or(SEEDS_MAX, |seeds| seeds.parse().expect("a number of seeds"))
}

/// The bugs that are hunted: all, or those of `PANGEA_PLANTED`.
fn hunted() -> Vec<Bug> {
    match std::env::var("PANGEA_PLANTED") {
        Ok(names) => names.split(',').map(|name| name.parse().unwrap()).collect(),
        Err(_) => Bug::ALL.to_vec(),
    }
}

fn table(caught: &BTreeMap<Bug, Catch>) -> String {
    let mut table =
        "| bug | what is done wrong | seeds | runs | caught by |\n|---|---|---|---|---|\n"
            .to_owned();
    for (bug, Catch { seeds, profile, checker }) in caught {
        let profile = format!("{profile:?}").to_lowercase();
        let mistake = bug.mistake();
        table += &format!("| `{bug}` | {mistake} | {seeds} | {profile} | {checker} |\n");
    }
    table
}

fn write_proof(caught: &BTreeMap<Bug, Catch>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/PROOF.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("docs/PROOF.md has the markers");
    let (_, after) = rest.split_once(END).expect("docs/PROOF.md has the markers");
    let text = format!("{before}{BEGIN}\n{}{END}{after}", table(caught));
    std::fs::write(path, text).unwrap();
}

#[test]
fn every_planted_bug_is_caught() {
    let bugs = hunted();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let caught = hunt(bug);
                    found.lock().unwrap().insert(bug, caught);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let missed: Vec<Bug> = bugs.iter().copied().filter(|bug| found[bug].is_none()).collect();
    assert!(missed.is_empty(), "not caught within {} seeds: {missed:?}", seeds_max());
    let caught = found.into_iter().filter_map(|(bug, catch)| Some((bug, catch?))).collect();
    if std::env::var("PANGEA_WRITE_PROOF").is_ok() {
        write_proof(&caught);
    }
}

#[test]
fn without_a_planted_bug_the_same_runs_are_clean() {
    for profile in Profile::ALL {
        for seed in 0..2 {
            let (settings, options) = profile.settings(seed);
            let report = run::<Minerva>(&settings, &options).unwrap();
            assert!(report.violation.is_none(), "{profile:?}: {report}");
        }
    }
}
