//! Clients: closed loops of a workload's transactions, each with one call in flight, over one
//! native connection a node.
//!
//! A client is a task of some hundred bytes: it costs its transaction's making, an entry in the
//! connection's frame and a wake-up, so that the load leaves the machine to the nodes.

mod samples;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pangea_core::time::Timestamp;
use pangea_core::txn::Outcome;
use pangea_core::workload::{self, Call, Workload};
use pangea_node::client::{Client, ClientError};
use tokio::task::JoinSet;

use crate::failure::Failure;
pub use samples::{Samples, Stats};

/// Calls that load tables, at a time and node: each writes ten thousand rows or so.
const LOAD_CALLS_PER_NODE: usize = 2;
/// How long a client waits after a request that could not be sent.
const NOT_SENT_PAUSE: Duration = Duration::from_millis(20);
/// Spreads seeds of clients over the generator's space.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What clients do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// They work, and nobody counts.
    Unmeasured = 0,
    /// They work and count.
    Measured = 1,
    /// They end when their call has.
    Ending = 2,
}

/// What clients are to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many clients there are in all regions; they are dealt over them.
    pub clients: u32,
    /// What everything random follows from.
    pub seed: u64,
    /// How long a client thinks between two transactions.
    pub pause: Duration,
}

/// Clients at work.
pub struct Drive {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    phase: AtomicU8,
    stats: Mutex<Stats>,
}

impl Shared {
    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drive {
    /// Starts clients. They are in [`Phase::Unmeasured`].
    pub fn start(workload: &Workload, connections: &[Client], settings: &Settings) -> Self {
        let regions = u32::try_from(connections.len()).expect("as many regions as processes");
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(Phase::Unmeasured as u8),
            stats: Mutex::new(Stats::new(connections.len())),
        });
        let mut tasks = JoinSet::new();
        for index in 0..settings.clients {
            let client = workload::Client::new(index, settings.clients, regions);
            let region = client.region() as usize;
            let seed = settings.seed ^ u64::from(index + 1).wrapping_mul(SEED_STEP);
            tasks.spawn(work(
                workload.generator(client),
                fastrand::Rng::with_seed(seed),
                connections[region].clone(),
                region,
                settings.pause,
                shared.clone(),
            ));
        }
        Self { shared, tasks }
    }

    /// Begins another phase.
    pub fn enter(&self, phase: Phase) {
        self.shared.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// How many transactions each region has committed while it was measured.
    pub fn committed(&self) -> Vec<u64> {
        self.shared.stats().committed()
    }

    /// What was counted so far, and forgets it.
    pub fn take_stats(&self) -> Stats {
        let mut stats = self.shared.stats();
        let regions = stats.regions();
        std::mem::replace(&mut *stats, Stats::new(regions))
    }

    /// Lets every client end its call.
    ///
    /// # Errors
    /// When a call is not answered before the deadline.
    pub async fn end(mut self, deadline: Duration) -> Result<(), Failure> {
        self.enter(Phase::Ending);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.map_err(|error| Failure::failed("a client broke", error))?;
            }
            Ok(())
        };
        match tokio::time::timeout(deadline, all).await {
            Ok(ended) => ended,
            Err(_) => {
                let (count, seconds) = (self.tasks.len(), deadline.as_secs());
                Err(Failure::Failed(format!(
                    "{count} calls have no answer {seconds} s after the last was made"
                )))
            }
        }
    }
}

/// One client's life.
async fn work(
    mut generator: workload::Generator,
    mut rng: fastrand::Rng,
    connection: Client,
    region: usize,
    pause: Duration,
    shared: Arc<Shared>,
) {
    while !shared.is_in(Phase::Ending) {
        let call = generator.next(&mut rng, now());
        let began = Instant::now();
        let result = connection.call(call.procedure, &call.args).await;
        if shared.is_in(Phase::Measured) {
            shared.stats().add(region, call.label, began.elapsed(), &result);
        }
        match result {
            Ok(_) => {}
            Err(ClientError::NotSent(_)) if connection.is_connected() => {
                tokio::time::sleep(NOT_SENT_PAUSE).await;
            }
            Err(_) => {
                let back = tokio::time::timeout(NOT_SENT_PAUSE, connection.connected());
                // Whether it is back is seen by the next call, and whether to end by the loop.
                let _ = back.await;
            }
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// What transactions take for the date.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_us(since.map_or(0, |since| since.as_micros() as u64))
}

/// Makes the workload's tables. `progress` is told how many calls of how many are done.
///
/// # Errors
/// When a call does not commit.
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
    joined.expect("there is one to wait for").expect("a load does not panic")
}
