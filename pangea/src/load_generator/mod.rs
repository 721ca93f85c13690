//! The load generator: clients over one native connection for each node, over sessions of
//! PostgreSQL's protocol or of a baseline, or in the process of the nodes ([`InProcessNode`]).
//!
//! - A **closed loop**: clients with one call in flight each. The measured system sets their pace:
//!   while it is blocked, they make no calls.
//! - An **open loop** ([`arrivals`]): calls arrive at random times with a given rate, regardless of
//!   the number in flight. A latency counts from the time at which a call was due, so it includes
//!   any time spent waiting for the client.
//!
//! A client is a task of some hundred bytes. Its cost is the generation of its transaction, an
//! entry in the connection's frame and a wake-up, so that the load leaves the machine to the nodes.

mod arrivals;
mod connection;
mod in_process;
mod samples;
mod timeline;
mod traced_calls;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pangea_core::time::Timestamp;
use pangea_core::txn::{Outcome, SqlState};
use pangea_core::workload::commits::{CallOutcome, Written};
use pangea_core::workload::{self, Call, Commits, Ledger, Watch, Workload};
use pangea_node::client::{Client, ClientError};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::failure::Failure;
pub use connection::{AccessPoint, Connection, sessions};
pub use in_process::THREADS;
pub use samples::{Errors, RetriedAborts, Samples, Stats};
pub use timeline::Timeline;
pub use traced_calls::TracedCalls;

/// The number of concurrent calls to each node that load tables. Each writes about ten thousand
/// rows.
const LOAD_CALLS_PER_NODE: usize = 2;
/// The delay of a client after a request that could not be sent.
const NOT_SENT_PAUSE: Duration = Duration::from_millis(20);
/// Distributes the clients' seeds over the seed space of the generator.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The phase of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Clients work, but calls are not counted.
    Unmeasured = 0,
    /// Clients work and calls are counted.
    Measured = 1,
    /// Clients stop after their current call.
    Ending = 2,
}

/// The settings of the load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of clients in all regions. They are assigned to regions round robin.
    pub clients: u32,
    /// The regions that have clients, by number, if not all have.
    pub homes: Option<Vec<usize>>,
    /// The seed of all random choices.
    pub seed: u64,
    /// The times at which clients call.
    pub pace: ArrivalModel,
}

/// The times at which clients call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalModel {
    /// Each client has one call in flight, and pauses between calls.
    Closed {
        /// The think time.
        pause: Duration,
    },
    /// Calls arrive at random times with this rate, in all regions together.
    Open {
        /// Calls a second.
        per_sec: f64,
    },
}

/// The generator of one client's calls.
pub trait Calls: Send {
    /// Generates the next call. `now` is the client's current time.
    fn next(&mut self, rng: &mut fastrand::Rng, now: Timestamp) -> Call;
}

impl Calls for workload::Generator {
    fn next(&mut self, rng: &mut fastrand::Rng, now: Timestamp) -> Call {
        self.next(rng, now)
    }
}

/// A running load.
pub struct Drive {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    phase: AtomicU8,
    /// The start of the first client.
    started: Instant,
    watch: Watch,
    counted: Mutex<Counted>,
}

/// The outcomes of all calls since the start.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// The commits.
    pub commits: Commits,
    /// Calls without an outcome, measured or not.
    pub errors: Errors,
}

struct Counted {
    /// Statistics of the calls that ended in the measured time.
    stats: Stats,
    /// The start of the measured time.
    began: Instant,
    /// The commits since the start.
    ledger: Ledger,
    /// Calls without an outcome since the start, measured or not.
    errors: Errors,
}

/// A call in flight.
struct Made {
    label: &'static str,
    written: Written,
    /// The time at which it was made.
    at: Instant,
}

impl Counted {
    fn new(regions: usize) -> Self {
        Self {
            stats: Stats::new(regions),
            began: Instant::now(),
            ledger: Ledger::default(),
            errors: Errors::default(),
        }
    }

    /// Counts the end of a call. `elapsed` is the time since the call was due.
    fn end(
        &mut self,
        region: usize,
        made: &Made,
        (elapsed, is_measured): (Duration, bool),
        result: &Result<Outcome, ClientError>,
        started: Instant,
    ) {
        let settled = settled(result);
        let result = &*settled;
        let ns = |at: Instant| (at - started).as_nanos() as u64;
        let fate = match result {
            Ok(Outcome::Committed { .. }) => {
                Some(CallOutcome::Committed { at: ns(Instant::now()) })
            }
            Err(ClientError::Ambiguous(_)) => Some(CallOutcome::Unknown),
            Ok(Outcome::Aborted(_)) | Err(_) => None,
        };
        if let Ok(Outcome::Committed { result, .. }) = result {
            self.ledger.add_result(made.label, result);
        }
        if let Some(fate) = fate {
            self.ledger.add(made.label, &made.written, ns(made.at), fate);
        }
        if let Err(error) = result {
            self.errors.add(region, error);
        }
        if is_measured {
            self.stats.add(region, made.label, elapsed, result);
            if matches!(result, Ok(Outcome::Committed { .. })) {
                let at = self.began.elapsed();
                self.stats.timeline.add(region, at);
            }
        }
    }
}

/// Returns the outcome of a call, if it is known. A node that was cut off and does not know how a
/// transaction ended reports [`SqlState::OUTCOME_UNKNOWN`]; this does not count as an abort.
fn settled(result: &Result<Outcome, ClientError>) -> Cow<'_, Result<Outcome, ClientError>> {
    match result {
        Ok(Outcome::Aborted(abort)) if abort.code == SqlState::OUTCOME_UNKNOWN => {
            Cow::Owned(Err(ClientError::Ambiguous(abort.message.clone())))
        }
        _ => Cow::Borrowed(result),
    }
}

impl Shared {
    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drive {
    /// Starts clients in [`Phase::Unmeasured`].
    ///
    /// Client `i` of a region uses connection `i` modulo the number of connections. Native
    /// connections carry any number of concurrent calls, sessions one at a time. Each region's
    /// clients are tasks of its runtime, so that their sockets belong to its threads.
    ///
    /// # Panics
    /// If a region has no connection or no runtime.
    pub fn start(
        workload: &Workload,
        connections: &[Vec<Connection>],
        runtimes: &[Handle],
        settings: &Settings,
    ) -> Self {
        let calls = |client| -> Box<dyn Calls> { Box::new(workload.generator(client)) };
        Self::start_watched(&calls, workload.watch(), connections, runtimes, settings)
    }

    /// Does the same with any generator of calls.
    ///
    /// # Panics
    /// If a region has no connection or no runtime.
    pub fn start_calls(
        calls: &dyn Fn(workload::Client) -> Box<dyn Calls>,
        connections: &[Vec<Connection>],
        runtimes: &[Handle],
        settings: &Settings,
    ) -> Self {
        Self::start_watched(calls, Watch::default(), connections, runtimes, settings)
    }

    fn start_watched(
        calls: &dyn Fn(workload::Client) -> Box<dyn Calls>,
        watch: Watch,
        connections: &[Vec<Connection>],
        runtimes: &[Handle],
        settings: &Settings,
    ) -> Self {
        let all = || (0..connections.len()).collect();
        let homes = settings.homes.clone().unwrap_or_else(all);
        let regions = u32::try_from(homes.len()).expect("as many regions as processes");
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(Phase::Unmeasured as u8),
            started: Instant::now(),
            watch,
            counted: Mutex::new(Counted::new(connections.len())),
        });
        let mut tasks = JoinSet::new();
        let mut by_region: Vec<Vec<Terminal>> = connections.iter().map(|_| Vec::new()).collect();
        for index in 0..settings.clients {
            let client = workload::Client::new(index, settings.clients, regions);
            let seed = settings.seed ^ u64::from(index + 1).wrapping_mul(SEED_STEP);
            let rng = fastrand::Rng::with_seed(seed);
            let terminal = Terminal { calls: calls(client), rng };
            by_region[homes[client.region() as usize]].push(terminal);
        }
        for (region, terminals) in by_region.into_iter().enumerate() {
            let line = |index: usize| {
                let of_region = &connections[region];
                let connection = of_region[index % of_region.len()].clone();
                Line { connection, region, shared: shared.clone() }
            };
            match (settings.pace, &connections[region][0]) {
                (ArrivalModel::Closed { pause }, Connection::InProcess(node))
                    if pause.is_zero() =>
                {
                    in_process::spawn(&mut tasks, node.clone(), region, terminals, shared.clone());
                }
                (ArrivalModel::Closed { pause }, _) => {
                    for (index, terminal) in terminals.into_iter().enumerate() {
                        tasks.spawn_on(work(terminal, line(index), pause), &runtimes[region]);
                    }
                }
                (ArrivalModel::Open { per_sec }, _) if !terminals.is_empty() => {
                    let rng = fastrand::Rng::with_seed(!settings.seed ^ region as u64);
                    let per_sec = per_sec / f64::from(regions.min(settings.clients));
                    let lines = (0..connections[region].len()).map(line).collect();
                    let arriving = arrivals::arrive(terminals, lines, per_sec, rng);
                    tasks.spawn_on(arriving, &runtimes[region]);
                }
                (ArrivalModel::Open { .. }, _) => {}
            }
        }
        Self { shared, tasks }
    }

    /// Begins another phase.
    pub fn enter(&self, phase: Phase) {
        if phase == Phase::Measured {
            self.shared.counted().began = Instant::now();
        }
        self.shared.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Returns the number of measured commits of each region.
    pub fn committed(&self) -> Vec<u64> {
        self.shared.counted().stats.committed()
    }

    /// Returns the statistics so far and resets them.
    pub fn take_stats(&self) -> Stats {
        let stats = &mut self.shared.counted().stats;
        let regions = stats.regions();
        std::mem::replace(stats, Stats::new(regions))
    }

    /// Lets every client finish its call. Returns the outcomes of all calls since the start.
    ///
    /// # Errors
    /// If a call has no response before the deadline.
    pub async fn end(mut self, deadline: Duration) -> Result<Ended, Failure> {
        self.enter(Phase::Ending);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.map_err(|error| Failure::failed("a client panicked", error))?;
            }
            Ok(())
        };
        match tokio::time::timeout(deadline, all).await {
            Ok(Ok(())) => {
                let counted = self.shared.counted();
                let commits = counted.ledger.commits();
                Ok(Ended { commits, errors: counted.errors.clone() })
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                let (count, seconds) = (self.tasks.len(), deadline.as_secs());
                Err(Failure::Failed(format!(
                    "{count} calls have no response {seconds} s after the last one was made"
                )))
            }
        }
    }
}

/// The generator of one client's transactions, with its random numbers.
struct Terminal {
    calls: Box<dyn Calls>,
    rng: fastrand::Rng,
}

impl Terminal {
    fn next(&mut self) -> Call {
        self.next_at(now())
    }

    fn next_at(&mut self, date: Timestamp) -> Call {
        self.calls.next(&mut self.rng, date)
    }
}

/// The shared context of calls over one connection of a region.
#[derive(Clone)]
struct Line {
    connection: Connection,
    region: usize,
    shared: Arc<Shared>,
}

impl Line {
    /// Makes a call that was due at `due`, and counts it.
    async fn call(&self, call: &Call, due: Instant) -> Result<Outcome, ClientError> {
        let Shared { watch, started, .. } = *self.shared;
        let made = Made { label: call.label, written: watch.written(call), at: Instant::now() };
        let late = made.at - due;
        let result = self.connection.call(call.procedure, &call.args).await;
        let elapsed = due.elapsed();
        let mut counted = self.shared.counted();
        let is_measured = self.shared.is_in(Phase::Measured);
        counted.end(self.region, &made, (elapsed, is_measured), &result, started);
        if is_measured {
            counted.stats.late.add(late);
        }
        drop(counted);
        result
    }
}

/// The loop of a client with one call in flight.
async fn work(mut terminal: Terminal, line: Line, pause: Duration) {
    let connection = &line.connection;
    while !line.shared.is_in(Phase::Ending) {
        let call = terminal.next();
        match line.call(&call, Instant::now()).await {
            Ok(_) => {}
            Err(ClientError::NotSent(_)) if connection.is_connected() => {
                tokio::time::sleep(NOT_SENT_PAUSE).await;
            }
            // The next call shows whether the connection is back, and the loop checks whether to
            // end.
            Err(_) => connection.back(NOT_SENT_PAUSE).await,
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Returns the current time, as seen by transactions.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_us(since.map_or(0, |since| since.as_micros() as u64))
}

/// Creates and loads the workload's tables. `progress` receives the number of completed calls and
/// the total.
///
/// # Errors
/// If a call does not commit.
pub async fn load_tables(
    workload: &Workload,
    connections: &[Client],
    mut progress: impl FnMut(u64, u64),
) -> Result<(), Failure> {
    let calls = workload.load_calls();
    let (mut done, all) = (0, calls.len() as u64);
    let at_a_time = LOAD_CALLS_PER_NODE * connections.len();
    let mut loading = JoinSet::new();
    progress(0, all);
    for (index, call) in calls.into_iter().enumerate() {
        if loading.len() >= at_a_time {
            loaded(loading.join_next().await)?;
            done += 1;
            progress(done, all);
        }
        let connection = connections[index % connections.len()].clone();
        loading.spawn(load(connection, call));
    }
    while !loading.is_empty() {
        loaded(loading.join_next().await)?;
        done += 1;
        progress(done, all);
    }
    Ok(())
}

async fn load(connection: Client, call: Call) -> Result<(), Failure> {
    let cant = |why: &dyn std::fmt::Display| {
        Err(Failure::Failed(format!("{} at {}: {why}", call.label, connection.region())))
    };
    match connection.call(call.procedure, &call.args).await {
        Ok(Outcome::Committed { .. }) => Ok(()),
        Ok(Outcome::Aborted(abort)) => cant(&abort),
        Err(error) => cant(&error),
    }
}

fn loaded(
    joined: Option<Result<Result<(), Failure>, tokio::task::JoinError>>,
) -> Result<(), Failure> {
    joined.expect("a load is running").expect("a load does not panic")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::{SnapshotVersion, TxnId};
    use pangea_core::txn::Abort;

    #[test]
    fn what_has_no_outcome_is_counted_in_every_phase_and_what_may_have_committed_by_its_label() {
        let started = Instant::now();
        let mut counted = Counted::new(1);
        let (txn, version) = (TxnId::default(), SnapshotVersion(1));
        let committed = Ok(Outcome::Committed { txn, version, result: Vec::new() });
        let ambiguous = Err(ClientError::Ambiguous("killed".to_owned()));
        let not_sent = Err(ClientError::NotSent("not there".to_owned()));
        let cut_off = Ok(Outcome::Aborted(Abort::new(SqlState::OUTCOME_UNKNOWN, "was cut off")));
        let made = Made { label: "pay", written: Written::default(), at: started };
        for is_measured in [false, true, false] {
            for result in [&committed, &ambiguous, &cut_off, &not_sent] {
                counted.end(0, &made, (Duration::ZERO, is_measured), result, started);
            }
        }
        assert_eq!(counted.stats.committed(), [1]);
        assert_eq!(counted.stats.errors.counts["outcome unknown"], 2);
        assert!(counted.stats.aborts.is_empty(), "an unknown outcome is not an abort");
        assert_eq!(counted.errors.counts["outcome unknown"], 6);
        assert_eq!(counted.errors.counts["not sent"], 3);
        let commits = counted.ledger.commits();
        assert_eq!((commits.committed["pay"], commits.unknown["pay"]), (3, 6));
        assert_eq!(commits.bounds("pay"), 3..=9, "a call that was not sent has not committed");
    }
}
