//! The times at which nodes write checkpoints during a measured run: `--mark-checkpoints`.
//!
//! Nodes are polled for whether they are writing a checkpoint. The time of a checkpoint follows
//! from the node's settings, primarily `checkpoint_bytes`. The precision of the reported times is
//! the polling interval.

use std::time::{Duration, Instant};

use pangea_node::client::Client;

use super::faults::FaultEvent;

/// The polling interval.
const EVERY: Duration = Duration::from_millis(50);
/// A node that does not respond within this time is polled again later.
const PATIENCE: Duration = Duration::from_secs(2);

/// Polls one node until `end` and returns the intervals during which it was writing, in seconds
/// since `began`.
async fn follow(client: &Client, began: Instant, end: Instant) -> Vec<(f64, f64)> {
    let (mut all, mut since) = (Vec::new(), None);
    while Instant::now() < end {
        if let Ok(Ok(status)) = tokio::time::timeout(PATIENCE, client.status()).await {
            let now = began.elapsed().as_secs_f64();
            let is_writing = status.counters.get("checkpoint_writing").is_some_and(|it| *it > 0);
            match since {
                None if is_writing => since = Some(now),
                Some(from) if !is_writing => {
                    all.push((from, now));
                    since = None;
                }
                None | Some(_) => {}
            }
        }
        tokio::time::sleep(EVERY).await;
    }
    all.extend(since.map(|from| (from, began.elapsed().as_secs_f64())));
    all
}

/// Returns the checkpoints that the nodes with these names wrote during the given time.
pub async fn watch(
    clients: &[Client],
    places: &[String],
    (began, lasts): (Instant, Duration),
) -> Vec<FaultEvent> {
    let end = began + lasts;
    let mut asking = tokio::task::JoinSet::new();
    for (client, place) in clients.iter().cloned().zip(places.iter().cloned()) {
        asking.spawn(async move { (place, follow(&client, began, end).await) });
    }
    let mut all = Vec::new();
    while let Some(followed) = asking.join_next().await {
        let (place, times) = followed.expect("a request does not panic");
        let what = format!("checkpoint {place}");
        all.extend(times.into_iter().map(|times| FaultEvent::elsewhere(what.clone(), times)));
    }
    all.sort_by(FaultEvent::by_time);
    all
}
