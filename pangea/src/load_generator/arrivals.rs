//! An open loop: calls at random times, regardless of the number in flight.
//!
//! The times between two calls of a region follow the exponential distribution, as those of many
//! independent clients do (a Poisson process). The schedule does not depend on the calls: if a call
//! is made late, its latency counts from the scheduled time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Line, Phase, Shared, Terminal};

/// The largest number of a region's calls in flight. A system with more in flight does not keep up,
/// and more calls would only measure the memory of the load generator. The number is below the
/// limit of a connection, which also carries requests for the node's counters.
const IN_FLIGHT_MAX: usize = pangea_node::client::REQUESTS_MAX / 2;
/// The longest time until the end of the load is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// Makes the calls of a region, `per_sec` a second, assigned to its clients round robin.
pub(super) async fn arrive(
    mut terminals: Vec<Terminal>,
    lines: Vec<Line>,
    per_sec: f64,
    mut rng: fastrand::Rng,
) {
    let slots = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut in_flight = JoinSet::new();
    let mut due = Instant::now() + gap(per_sec, &mut rng);
    let mut turn = 0;
    let shared = lines[0].shared.clone();
    while !shared.is_in(Phase::Ending) {
        let now = Instant::now();
        if due > now {
            tokio::time::sleep(LOOK.min(due - now)).await;
            continue;
        }
        while in_flight.try_join_next().is_some() {}
        match slots.clone().try_acquire_owned() {
            Ok(slot) => {
                let call = terminals[turn].next();
                let (line, due) = (lines[turn % lines.len()].clone(), due);
                in_flight.spawn(async move {
                    // A failed call is counted and not retried.
                    let made = line.call(&call, due).await;
                    drop(slot);
                    if made.is_err() && !line.connection.is_connected() {
                        line.connection.back(LOOK).await;
                    }
                });
            }
            Err(_) => shed(&shared),
        }
        turn = (turn + 1) % terminals.len();
        due += gap(per_sec, &mut rng);
        // Lets other tasks run if many calls are due at once.
        tokio::task::yield_now().await;
    }
    while in_flight.join_next().await.is_some() {}
}

/// Counts a skipped call, if it falls within the measured time.
fn shed(shared: &Shared) {
    let mut counted = shared.counted();
    if shared.is_in(Phase::Measured) {
        counted.stats.shed += 1;
    }
}

/// Draws the time until the next call.
fn gap(per_sec: f64, rng: &mut fastrand::Rng) -> Duration {
    let unit = 1.0 - rng.f64();
    Duration::from_secs_f64(-unit.ln() / per_sec)
}

#[cfg(test)]
mod tests {
    use super::super::{ArrivalModel, Drive, Settings};
    use super::*;

    #[test]
    fn calls_that_warming_up_did_not_make_are_not_those_of_the_first_run() {
        let pace = ArrivalModel::Open { per_sec: 1.0 };
        let settings = Settings { clients: 0, homes: None, seed: 1, pace };
        let calls = |_| unreachable!("there are no clients");
        let drive = Drive::start_calls(&calls, &[], &[], &settings);
        shed(&drive.shared);
        drive.enter(Phase::Measured);
        shed(&drive.shared);
        shed(&drive.shared);
        assert_eq!(drive.take_stats().shed, 2);
        drive.enter(Phase::Unmeasured);
        shed(&drive.shared);
        assert_eq!(drive.take_stats().shed, 0);
    }

    #[test]
    fn gaps_are_those_of_a_poisson_process() {
        let mut rng = fastrand::Rng::with_seed(4);
        let gaps: Vec<f64> = (0..100_000).map(|_| gap(500.0, &mut rng).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((0.00196..0.00204).contains(&mean), "{mean}");
        // In an exponential distribution, the standard deviation equals the mean.
        assert!((0.97..1.03).contains(&(variance.sqrt() / mean)), "{}", variance.sqrt());
    }
}
