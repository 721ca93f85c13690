//! The same benchmark of another database: Galera, PostgreSQL or etcd, on loopback.
//!
//! Clients, calls, phases and counts are those of a cluster of ours; what differs is who answers.
//! Servers run as long as the benchmark, and are ended by whatever ends it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pangea_core::workload::{self, Workload};
use pangea_node::log::Durability;
use pangea_peers::{Kind, Options, Peer, Place};

use super::check::{self as checks, Checked};
use super::faults::Happened;
use super::report::Report;
use super::usage::Usage;
use super::{Arguments, END_DEADLINE, Measured, Subject, bar, measure_all};
use crate::cluster::Plan;
use crate::drive::{self, Connection, Drive, PeerSession};
use crate::failure::Failure;
use crate::signals::Signals;

/// A majority is left when one is lost.
const PLACES_MIN: usize = 3;
/// Each client is a session, and each session a process of PostgreSQL.
const CLIENTS_MAX: u32 = 4_000;
/// Memory that a server may hold of its tables: all that is loaded, and what comes.
const CACHE_MB: u32 = 2_048;

/// Looks whether a peer can be given the work, and says where it would run.
///
/// # Errors
/// Why it can't.
pub fn check(arguments: &Arguments, kind: Kind) -> Result<Plan, Failure> {
    let plan = plan(arguments, kind)?;
    if arguments.script()?.is_some() {
        super::scripted::check_peer(kind)?;
        options(arguments)?;
        return Ok(plan);
    }
    let settings = arguments.workload_settings();
    kind.check(&arguments.workload()?, &settings, &options(arguments)?)?;
    Ok(plan)
}

/// Starts a peer, gives it the work, and stops it.
pub fn run(arguments: &Arguments, kind: Kind) -> Result<Report, Failure> {
    let (plan, options) = (check(arguments, kind)?, options(arguments)?);
    let (workload, settings) = (arguments.workload()?, arguments.workload_settings());
    let places = Place::loopback(&plan.regions);
    let runtime = crate::runtime(1)?;
    let measured = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let work = async {
            let peer = Peer::start(kind, &places, &options).await?;
            let measured = measure(arguments, &peer, &workload, &settings).await;
            // Whatever was asked of a server that has ended failed for that.
            let measured = measured.map_err(|failure| match peer.is_running() {
                Ok(()) => failure,
                Err(ended) => Failure::failed(ended, failure),
            })?;
            peer.stop().await?;
            Ok(measured)
        };
        tokio::select! {
            done = work => done,
            () = signals.received() => Err(Failure::Interrupted("interrupted".to_owned())),
        }
    })?;
    Ok(Report::new(arguments, &plan, measured))
}

/// Where servers run, for the report: all on loopback.
pub(super) fn plan(arguments: &Arguments, kind: Kind) -> Result<Plan, Failure> {
    let plan = arguments.regions.plan(&arguments.protocol, Some(0.0))?;
    let is_plain = |name: &String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    if let Some(name) = plan.regions.iter().find(|name| !is_plain(name)) {
        let message = format!("region {name:?}: a peer's are of letters, digits and -");
        return Err(Failure::Usage(message));
    }
    if plan.regions.len() < PLACES_MIN {
        return Err(Failure::Usage(format!("a peer has {PLACES_MIN} regions at least")));
    }
    if arguments.clients > CLIENTS_MAX {
        let message = format!("a peer has a session for each client, and {CLIENTS_MAX} at most");
        return Err(Failure::Usage(message));
    }
    let durability = arguments.durability;
    Ok(Plan { protocol: kind.name().to_owned(), durability, workers: 0, ..plan })
}

/// How it is started.
pub(super) fn options(arguments: &Arguments) -> Result<Options, Failure> {
    let durability = match arguments.durability {
        Durability::Fsync => pangea_peers::Durability::Fsync,
        Durability::Os => pangea_peers::Durability::Os,
        Durability::Memory => {
            let message = "--durability memory: a peer has fsync and os".to_owned();
            return Err(Failure::Usage(message));
        }
    };
    let isolation = match arguments.isolation {
        None | Some(super::Isolation::ReadCommitted) => pangea_peers::Isolation::ReadCommitted,
        Some(super::Isolation::Serializable) => pangea_peers::Isolation::Serializable,
    };
    let within = arguments.data_dir.clone();
    if let Some(path) = &within {
        let made = std::fs::create_dir_all(path);
        made.map_err(|error| Failure::failed(format!("can't use {}", path.display()), error))?;
    }
    let sessions = arguments.clients;
    let options = Options { durability, isolation, sessions, within, ..Options::default() };
    Ok(Options { cache_mb: CACHE_MB, ..options })
}

/// Loads, warms up, measures and checks.
async fn measure(
    arguments: &Arguments,
    peer: &Peer,
    workload: &Workload,
    settings: &workload::Settings,
) -> Result<Measured, Failure> {
    let began = Instant::now();
    let bar = bar("{prefix:>8} {wide_bar} {pos}/{len} calls", "load");
    let progress = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    peer.load(workload, progress).await?;
    bar.finish_and_clear();
    let load_secs = began.elapsed().as_secs_f64();
    let connections = connections(arguments, peer, workload).await?;
    let drive_settings = drive::Settings {
        clients: arguments.clients,
        seed: arguments.seed,
        pace: arguments.pace(),
    };
    let drive = Drive::start(workload, &connections, &drive_settings);
    let mut runs = measure_all(arguments, &drive, &mut Theirs { peer }).await?;
    let committed = drive.end(END_DEADLINE).await?;
    drop(connections);
    let checked = peer.check(workload, settings, committed.as_ref()).await;
    let checked = checked.map_err(|error| checks::failed_check(&error))?;
    runs.sort_by(|a, b| b.throughput_per_sec().total_cmp(&a.throughput_per_sec()));
    let digest = format!("{:016x}", checked.digest);
    let checked = Checked { digest, version: None, workload: checked.facts };
    Ok(Measured { runs, load_secs, checked })
}

/// A peer's servers. Nothing happens to them.
pub(super) struct Theirs<'a> {
    pub(super) peer: &'a Peer,
}

impl Subject for Theirs<'_> {
    async fn used(&mut self) -> Result<(Usage, BTreeMap<String, u64>), Failure> {
        // What was undone before belongs to no run.
        let undone = self.peer.retries().take();
        Ok((Usage::of_peer(self.peer)?, undone))
    }

    async fn harm(&mut self, _: Instant) -> Result<Vec<Happened>, Failure> {
        Ok(Vec::new())
    }

    fn is_harmed(&self) -> bool {
        false
    }
}

/// A session for each client.
async fn connections(
    arguments: &Arguments,
    peer: &Peer,
    workload: &Workload,
) -> Result<Vec<Vec<Connection>>, Failure> {
    let places = peer.pids().len();
    let mut all: Vec<Vec<Connection>> = (0..places).map(|_| Vec::new()).collect();
    // Clients are dealt over the regions in turn, and each region has one at least.
    for index in 0..(arguments.clients as usize).max(places) {
        let place = index % places;
        let session = peer.session(workload, place).await?;
        all[place].push(Connection::Peer(Arc::new(PeerSession::new(session))));
    }
    Ok(all)
}
