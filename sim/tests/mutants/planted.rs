//! Planted bugs: each must be caught by a swarm of bounded size. `PANGEA_WRITE_PROOF=1` hunts from
//! the first seed and rewrites the table in docs/PROOF.md. Without it, the seed of the table is
//! tried first.

mod geogauss_profiles;
mod lists;
mod mako_profiles;
mod named;
mod tiga_profiles;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pangea_core::planted::Bug;
use pangea_core::time::Span;
use pangea_protocols::calvin::{self, Calvin, Checkpoints};
use pangea_protocols::geogauss::GeoGauss;
use pangea_protocols::minerva::{Minerva, Options};
use pangea_sim::{FaultKind, RealTime, Report, Settings, run};

use crate::kinds;
use lists::{
    OF_CALVIN, OF_GEOGAUSS, OF_MAKO, OF_MAKO_SHARDS, OF_MASTERS, OF_PHASES, OF_SEARCH, OF_SHARDS,
    OF_SHARDS_OF_MASTERS, OF_TIGA,
};

/// The maximum number of seeds for any bug.
const SEEDS_MAX: u64 = 3_000;

const PROOF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/PROOF.md");
const BEGIN: &str = "<!-- planted: begin -->";
const END: &str = "<!-- planted: end -->";

/// A kind of run. Seeds alternate between those that suit a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile {
    /// Lists, with any fault.
    Lists,
    /// Accounts, with any fault.
    Bank,
    /// Lists to which many transactions only append, with any fault. For several shards.
    Adds,
    /// Lists on few keys, with few faults.
    Hot,
    /// Nodes and disks fail repeatedly.
    Crashes,
    /// Nodes are lost permanently while others crash.
    Losses,
    /// Nodes are unreachable for long while little is retained for them.
    Away,
    /// TPC-C orders, which delete rows.
    Orders,
    /// The paper's protocol.
    Paper,
    /// Large epochs over many lists that are read in ranges before they are written.
    Wide,
    /// Connections are lost and restored.
    Flaps,
    /// A source is lost permanently when only one peer can have its batches, and that peer crashes.
    Ambush,
    /// A cut is applied before the next is proposed: runs of one epoch are on both sides of it.
    Apart,
    /// Many transactions of a slice leave notes (see list-append), and nodes restart late.
    Notes,
    /// No faults, so no replica needs a checkpoint from a peer.
    Calm,
    /// Disks are lost at bad moments.
    Replaced,
    /// The coordinator is down for a moment, or a node is cut off for longer.
    Masters,
    /// Little memory for rows.
    Cold,
    /// What a node took from a peer is in its memory alone while the source of the rest is lost.
    Behind,
    /// All nodes start from checkpoints alone before a disk is lost.
    Quiet,
    /// A node is removed from the configuration and comes back.
    Removed,
    /// Many clients, and a connection that is cut for two seconds, perhaps the coordinator's.
    Severed,
    /// Nodes stop in order, and start with a later version of the program.
    Upgraded,
    /// Nodes are killed, and start with a later version of the program.
    Killed,
    /// Nodes are cut off until they are removed, and come back. For GeoGauss.
    CutOff,
    /// A node is cut off until it is removed, and has nothing to wait for. For GeoGauss.
    LeftIdle,
    /// Parents and children, below the serializable level. For GeoGauss.
    References,
    /// A node with a cache is cut off until it is removed. For GeoGauss.
    Cached,
    /// Rows to which transactions add. For GeoGauss.
    Tallies,
    /// A node that answers early is not heard, and crashes. For GeoGauss.
    Mute,
    /// A node that answers early is not heard, and does not crash. For GeoGauss.
    Unheard,
    /// The batches of a node that answers early reach one other node. For GeoGauss.
    ToldToOne,
    /// Everything is drawn from the seed. For GeoGauss and Tiga.
    Drawn,
    /// The same with several shards. For Tiga.
    DrawnDivided,
    /// The same with the fast path, and leaders that do not agree first. For Tiga.
    DrawnFast,
    /// Like [`Profile::Away`] with two shards. For Tiga.
    AwayDivided,
    /// Like [`Profile::Replaced`] with two shards. For Tiga.
    ReplacedDivided,
    /// Like [`Profile::Upgraded`] with several shards. For Tiga.
    UpgradedDivided,
    /// All nodes stop at nearly the same time. For Tiga.
    Stopped,
    /// A link to a leader is lost, with two shards. For Tiga.
    CutDivided,
    /// A leader hears replicas without a vote alone, and fails. For Tiga.
    CutFromVoters,
    /// A leader is not heard, or hears nobody, and goes on. For Mako.
    Deposed,
    /// Leaders fail one after the other. For Mako.
    Successive,
    /// The same as [`Profile::Deposed`], with shards that share entries of clocks. For Mako.
    Grouped,
    /// Slots move between shards; nodes fail meanwhile in every other run. For Mako.
    Moved,
}

impl Profile {
    /// Those of GeoGauss.
    const OF_GEOGAUSS: [Self; 9] = [
        Self::Drawn,
        Self::CutOff,
        Self::LeftIdle,
        Self::References,
        Self::Cached,
        Self::Tallies,
        Self::Mute,
        Self::Unheard,
        Self::ToldToOne,
    ];

    /// Those of the other protocols.
    const ALL: [Self; 23] = [
        Self::Lists,
        Self::Hot,
        Self::Crashes,
        Self::Losses,
        Self::Away,
        Self::Bank,
        Self::Paper,
        Self::Orders,
        Self::Wide,
        Self::Flaps,
        Self::Ambush,
        Self::Apart,
        Self::Notes,
        Self::Calm,
        Self::Replaced,
        Self::Masters,
        Self::Cold,
        Self::Behind,
        Self::Quiet,
        Self::Removed,
        Self::Severed,
        Self::Upgraded,
        Self::Killed,
    ];

    /// The profiles that are tried first for a bug.
    fn of(bug: Bug) -> &'static [Self] {
        match bug {
            _ if OF_GEOGAUSS.contains(&bug) => Self::of_bug_in_geogauss(bug),
            _ if OF_TIGA.contains(&bug) => Self::of_bug_in_tiga(bug),
            _ if OF_MAKO.contains(&bug) => Self::of_bug_in_mako(bug),
            _ if OF_MAKO_SHARDS.contains(&bug) => Self::of_bug_in_mako_shards(bug),
            Bug::SendBeforeFsync
            | Bug::OldCutDropped
            | Bug::HeadsGoBack
            | Bug::PromiseForgotten
            | Bug::EntriesKept
            | Bug::EpochNotLogged
            | Bug::BoundaryReplayed
            | Bug::NumbersReused
            | Bug::ReplayedBySource
            | Bug::ReceivedNotLogged
            | Bug::TornTrusted
            | Bug::ValidBitsReversed
            | Bug::CheckpointOfOldRows
            | Bug::TruncatedTooFar => &[Self::Crashes],
            Bug::VoteBeforeFsync => &[Self::Losses, Self::Crashes],
            Bug::DividedOnFirst | Bug::DividedWithoutLocks => &[Self::Adds],
            Bug::EarlyBeforeFsync | Bug::OverwrittenUndecided => &[Self::Masters],
            Bug::MasterStays | Bug::VoidRunLater | Bug::VoidItemsUsed | Bug::NeighbourStays => {
                &[Self::Masters, Self::Lists]
            }
            Bug::HeldPastGap | Bug::SentNotKept => &[Self::Flaps],

            Bug::AckBeforeFsync | Bug::AckCountedTwice | Bug::CutPastGap => &[Self::Ambush],
            Bug::ChunkRowLost | Bug::TransferMixesVersions | Bug::OverwrittenPinned => {
                &[Self::Away]
            }
            Bug::AckedBehindCheckpoint => &[Self::Behind],
            Bug::SequencesForgotten => &[Self::Quiet],
            Bug::MembersForgotten | Bug::MembersNotTransferred => &[Self::Removed],
            Bug::CollectedForOne | Bug::FrozenTogether => &[Self::Calm],
            Bug::RejoinedAfterOne
            | Bug::RejoinForgetsVotes
            | Bug::RejoinReusesNumbers
            | Bug::OrphansKept
            | Bug::VotesWhileRejoining => &[Self::Replaced],
            Bug::DeletionsNotTransferred | Bug::DeletionLostInCodec => &[Self::Orders],
            Bug::LoggedInQueueOrder => &[Self::Notes],
            Bug::EvictedUnchecked | Bug::ColdIsAbsent | Bug::HeldForgotten => &[Self::Cold],
            Bug::DoomedTooMuch => &[Self::Apart],
            Bug::StepsUnbounded => &[Self::Severed],
            Bug::ProposesWhileStopping => &[Self::Upgraded],
            Bug::OtherCodeRuns => &[Self::Killed],
            Bug::ReadersDoNotWait
            | Bug::WritersDoNotWait
            | Bug::OwnChainsFirst
            | Bug::FreshWithoutCut
            | Bug::SlicesDiffer
            | Bug::ModeDecides => &[Self::Hot],
            Bug::RangesNotValidated
            | Bug::PhantomsPass
            | Bug::RangeEdgesLost
            | Bug::ReverseEdgeLost
            | Bug::WriteEdgesOnly
            | Bug::CertifiedPointsOnly
            | Bug::KeysIntendNothing
            | Bug::ScanUnsettled => &[Self::Wide],
            _ => &[Self::Lists, Self::Hot],
        }
    }

    fn settings(self, seed: u64) -> (Settings, Options) {
        use FaultKind::*;
        let any = Settings { seed, duration: Span::from_ms(3_500), ..Settings::default() };
        let small = Options {
            checkpoint_bytes: 30_000,
            chunk_bytes: 500,
            slice_txns: NonZeroUsize::new(4).unwrap(),
            cuts_kept: 20,
            ..Options::default()
        };
        let least =
            Options { checkpoint_bytes: 4_096, chunk_bytes: 64, cuts_kept: 1, ..small.clone() };
        match self {
            Self::Lists => (any, small),
            Self::Bank => (Settings { workload: "bank".to_owned(), ..any }, small),
            Self::Adds => (Settings { workload: "list-add".to_owned(), ..any }, small),
            Self::Hot | Self::Wide | Self::Apart | Self::Notes => self.crowd(any, small),
            Self::Crashes => {
                let faults =
                    vec![Crash, CoordinatorCrash, FullStop, SlowDisk, StuckDisk, Partition];
                let options = Options { checkpoint_bytes: 10_000, ..small };
                (Settings { faults, faults_max: 25, ..any }, options)
            }
            Self::Losses => {
                let faults = vec![Crash, Destroy, SlowDisk, HeldLane, StuckDisk];
                (Settings { faults, faults_max: 25, ..any }, small)
            }
            Self::Away => {
                let faults = vec![Crash, Partition, Partial, OneWay, SlowLink];
                (Settings { faults, faults_max: 8, lists: 60, ..any }, least)
            }
            Self::Orders => {
                let options = Options { cuts_kept: 6, chunk_bytes: 10_000, ..small };
                (Settings { workload: "tpcc".to_owned(), ..any }, options)
            }
            Self::Flaps => {
                let faults = vec![Flap, SlowProcessor, SlowDisk, Partial];
                (Settings { faults, faults_max: 30, ..any }, small)
            }
            Self::Ambush => (Settings { rules: Some(kinds::ambush(seed)), ..any }, small),
            Self::Cold => (Settings { memory_bytes: Some(1_000), faults_max: 4, ..any }, small),
            Self::Calm => (Settings { faults: Vec::new(), ..any }, small),
            Self::Replaced => {
                let duration = Span::from_ms(6_000);
                (Settings { rules: Some(kinds::replaced(seed)), duration, ..any }, small)
            }
            Self::Masters => (Settings { rules: Some(kinds::masters(seed)), ..any }, small),
            Self::Behind => {
                let duration = Span::from_ms(5_000);
                let rules = Some(kinds::behind(seed));
                (Settings { rules, duration, lists: 60, ..any }, least)
            }
            Self::Quiet => {
                let duration = Span::from_ms(6_000);
                let options = Options { checkpoint_bytes: 4_096, ..small };
                (Settings { rules: Some(kinds::quiet(seed)), duration, ..any }, options)
            }
            Self::Removed => {
                let duration = Span::from_ms(6_000);
                let options = Options { checkpoint_bytes: 10_000, removal_ms: 500, ..small };
                (Settings { rules: Some(kinds::removed(seed)), duration, ..any }, options)
            }
            Self::Severed => (kinds::severed(any), Options::default()),
            Self::Upgraded => (kinds::upgraded(any), small),
            Self::Killed => (kinds::killed(any), small),
            Self::Paper => (any, Options { checkpoint_bytes: 30_000, ..Options::paper() }),
            _ => (self.of_geogauss(seed), small),
        }
    }

    /// Many clients and long epochs, which are applied at once.
    fn crowd(self, any: Settings, small: Options) -> (Settings, Options) {
        let long = Options {
            epoch_ms: 60,
            high_contention_ms: 30,
            slice_txns: NonZeroUsize::new(64).unwrap(),
            ..small
        };
        match self {
            Self::Hot => {
                let options = Options { epoch_ms: 50, high_contention_hold_ms: 200, ..long };
                (Settings { lists: 5, clients_per_node: 6, faults_max: 3, ..any }, options)
            }
            Self::Wide => {
                let options = Options { high_contention_mode: !any.seed.is_multiple_of(3), ..long };
                let faults = vec![FaultKind::SlowLink];
                (Settings { lists: 30, clients_per_node: 8, faults, ..any }, options)
            }
            Self::Notes => {
                let faults = vec![FaultKind::Crash, FaultKind::FullStop, FaultKind::SlowLink];
                let options = Options { checkpoint_bytes: 1_000_000, ..long };
                (Settings { clients_per_node: 8, faults, ..any }, options)
            }
            _ => {
                let (faults, one_way_max) = (Vec::new(), Span::from_ms(40));
                let settings =
                    Settings { lists: 60, clients_per_node: 12, faults, one_way_max, ..any };
                let slice_txns = NonZeroUsize::new(4).unwrap();
                let options =
                    Options { epoch_ms: 150, high_contention_mode: false, slice_txns, ..long };
                (settings, options)
            }
        }
    }
}

/// Converts the settings to those of Calvin, as far as it has them.
fn of_calvin(options: &Options, checkpoints: Checkpoints) -> calvin::Options {
    let &Options { epoch_ms, slice_txns, chunk_bytes, cuts_kept, removal_ms, .. } = options;
    // A transaction counts as a kilobyte.
    let checkpoint_bytes = options.checkpoint_bytes.saturating_mul(3);
    let own = calvin::Options::default();
    calvin::Options {
        epoch_ms,
        slice_txns,
        chunk_bytes,
        cuts_kept,
        removal_ms,
        checkpoint_bytes,
        checkpoints,
        ..own
    }
}

/// The checkpoint mode in which a bug is searched for.
fn mode_of(bug: Bug) -> Checkpoints {
    match bug {
        Bug::OverwrittenPinned | Bug::BeforeOverwritten | Bug::OverwrittenUndecided => {
            Checkpoints::Zigzag
        }
        Bug::FrozenTogether | Bug::FrozenReadsAtOnce | Bug::OutcomesInvented => Checkpoints::Frozen,
        _ => Checkpoints::Versions,
    }
}

/// The protocol and mode in which a bug is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Minerva,
    Calvin,
    /// Calvin with two shards.
    Divided,
    /// Calvin with asynchronous replication.
    Asynchronous,
    /// Calvin with asynchronous replication and two shards.
    DividedAsynchronous,
    /// GeoGauss, whose options are drawn from the seed.
    GeoGauss,
    /// Tiga, of which everything is drawn from the seed.
    Tiga,
    /// Mako, of which everything is drawn from the seed.
    Mako,
    /// The same with several shards.
    MakoShards,
}

impl Under {
    /// Whether everything about a run is drawn for the protocol.
    fn has_own_runs(self) -> bool {
        matches!(self, Self::GeoGauss | Self::Tiga | Self::Mako | Self::MakoShards)
    }

    /// Those with a choice of profiles.
    const ALL: [Self; 5] =
        [Self::Minerva, Self::Calvin, Self::Divided, Self::Asynchronous, Self::DividedAsynchronous];

    fn of(bug: Bug) -> Self {
        match bug {
            _ if OF_SHARDS.contains(&bug) => Self::Divided,
            _ if OF_MASTERS.contains(&bug) => Self::Asynchronous,
            _ if OF_SHARDS_OF_MASTERS.contains(&bug) => Self::DividedAsynchronous,
            _ if OF_CALVIN.contains(&bug) => Self::Calvin,
            _ if OF_GEOGAUSS.contains(&bug) => Self::GeoGauss,
            _ if OF_TIGA.contains(&bug) => Self::Tiga,
            _ if OF_MAKO.contains(&bug) => Self::Mako,
            _ if OF_MAKO_SHARDS.contains(&bug) => Self::MakoShards,
            _ => Self::Minerva,
        }
    }

    fn run(
        self,
        profile: Profile,
        (settings, options): (&Settings, &Options),
        mode: Checkpoints,
    ) -> Report {
        let is_divided = matches!(self, Self::Divided | Self::DividedAsynchronous);
        let shards = if is_divided { 2 } else { 1 };
        // The guarantee of Calvin's default settings.
        let ordered = Settings { real_time: RealTime::Ordered, shards, ..settings.clone() };
        match self {
            Self::Minerva => run::<Minerva>(settings, options).unwrap(),
            Self::Calvin | Self::Divided => {
                run::<Calvin>(&ordered, &of_calvin(options, mode)).unwrap()
            }
            Self::Asynchronous | Self::DividedAsynchronous => {
                let replication = calvin::Replication::Asynchronous;
                let own = of_calvin(options, mode);
                let options = calvin::Options { replication, ..own };
                run::<Calvin>(&ordered, &options).unwrap()
            }
            Self::GeoGauss => {
                run::<GeoGauss>(settings, &profile.options_of_geogauss(settings.seed)).unwrap()
            }
            Self::Tiga => profile.run_tiga(settings.seed, settings.planted),
            Self::Mako => profile.run_mako(settings.seed, settings.planted),
            Self::MakoShards => profile.run_mako_shards(settings.seed, settings.planted),
        }
    }
}

/// The run that caught a bug.
#[derive(Clone, Debug)]
struct Catch {
    seeds: u64,
    profile: Profile,
    checker: String,
}

/// The seeds that caught the bugs when the table of `docs/PROOF.md` was written.
fn known() -> BTreeMap<Bug, u64> {
    let text = proof();
    let (_, rest) = text.split_once(BEGIN).expect("docs/PROOF.md has both markers");
    let (rows, _) = rest.split_once(END).expect("docs/PROOF.md has both markers");
    let seed = |row: &str| {
        let mut cells = row.split('|').map(str::trim);
        let bug = cells.nth(1)?.trim_matches('`').parse().ok()?;
        Some((bug, cells.nth(1)?.parse::<u64>().ok()? - 1))
    };
    rows.lines().filter_map(seed).collect()
}

/// Runs seeds until one catches the bug. The first is the one that is known to, so that a test of
/// all bugs is short.
fn hunt(bug: Bug, known: Option<u64>) -> Option<Catch> {
    let (first, under) = (Profile::of(bug), Under::of(bug));
    for seed in known.into_iter().chain(0..seeds_max()) {
        // Every fourth seed uses another profile than those expected to catch the bug.
        let profile = match seed % 4 {
            3 if !under.has_own_runs() => Profile::ALL[(seed / 4) as usize % Profile::ALL.len()],
            turn => first[turn as usize % first.len()],
        };
        let (settings, options) = profile.settings(seed);
        let planted = Settings { planted: Some(bug), ..settings.clone() };
        let mode = mode_of(bug);
        let report = under.run(profile, (&planted, &options), mode);
        let checker = report.violation.as_ref().map(|it| match it.checker == it.anomaly {
            true => it.checker.to_owned(),
            false => format!("{}: {}", it.checker, it.anomaly),
        });
        if let Some(checker) = checker {
            let story = report.violation.map(|violation| violation.story).unwrap_or_default();
            let story = story.lines().next().unwrap_or_default();
            eprintln!("{bug}: seed {seed} {profile:?}: {checker}: {story}");
            let clean = under.run(profile, (&settings, &options), mode);
            assert!(clean.violation.is_none(), "false alarm, {profile:?}: {clean}");
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

/// Returns the bugs to search for: all, or those of `PANGEA_PLANTED`.
fn hunted() -> Vec<Bug> {
    match std::env::var("PANGEA_PLANTED") {
        Ok(names) => names.split(',').map(|name| name.parse().unwrap()).collect(),
        Err(_) => {
            let others = [OF_SEARCH, OF_PHASES].concat();
            Bug::ALL.iter().copied().filter(|bug| !others.contains(bug)).collect()
        }
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
    let others = [(OF_SEARCH, "exhaustive search"), (OF_PHASES, "tests of the phases")];
    for (bugs, by) in others {
        for bug in bugs.iter().filter(|bug| !caught.contains_key(bug)) {
            table += &format!("| `{bug}` | {} | | | {by} |\n", bug.mistake());
        }
    }
    table
}

fn write_proof(caught: &BTreeMap<Bug, Catch>) {
    let text = proof();
    let (before, rest) = text.split_once(BEGIN).expect("docs/PROOF.md has both markers");
    let (_, after) = rest.split_once(END).expect("docs/PROOF.md has both markers");
    let text = format!("{before}{BEGIN}\n{}{END}{after}", table(caught));
    std::fs::write(PROOF, text).unwrap();
}

fn proof() -> String {
    std::fs::read_to_string(PROOF).unwrap()
}

#[test]
fn every_planted_bug_is_caught() {
    let bugs = hunted();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let is_written = std::env::var("PANGEA_WRITE_PROOF").is_ok();
    // The table counts seeds from the first one.
    let known = if is_written { BTreeMap::new() } else { known() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let caught = hunt(bug, known.get(&bug).copied());
                    found.lock().unwrap().insert(bug, caught);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let missed: Vec<Bug> = bugs.iter().copied().filter(|bug| found[bug].is_none()).collect();
    let caught = found.into_iter().filter_map(|(bug, catch)| Some((bug, catch?))).collect();
    if is_written {
        write_proof(&caught);
    }
    assert!(missed.is_empty(), "not caught within {} seeds: {missed:?}", seeds_max());
}

#[test]
fn without_a_planted_bug_the_same_runs_are_clean() {
    for (at, profile) in Profile::ALL.into_iter().enumerate() {
        for (turn, under) in Under::ALL.into_iter().enumerate() {
            let seed = (at + turn) % 3;
            let mode = match (under, seed) {
                (_, 0) => Checkpoints::Versions,
                // The options reject `frozen` for a master.
                (Under::Asynchronous | Under::DividedAsynchronous, _) | (_, 1) => {
                    Checkpoints::Zigzag
                }
                _ => Checkpoints::Frozen,
            };
            let (settings, options) = profile.settings(seed as u64);
            let report = under.run(profile, (&settings, &options), mode);
            let what = format!("{under:?} {profile:?} {mode:?}: {report}");
            assert!(report.violation.is_none(), "{what}");
        }
    }
    for (profile, seed) in Profile::OF_GEOGAUSS.into_iter().zip(0..) {
        let (settings, options) = profile.settings(seed);
        let report = Under::GeoGauss.run(profile, (&settings, &options), Checkpoints::Versions);
        assert!(report.violation.is_none(), "{profile:?}: {report}");
    }
}
