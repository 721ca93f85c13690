//! When nodes write checkpoints while they are measured: `--mark-checkpoints`.
//!
//! Nodes are asked again and again whether they write one. When they do follows from their
//! settings, `checkpoint_bytes` before all; what is seen here is as exact as they are asked often.

use std::time::{Duration, Instant};

use pangea_node::client::Client;

use super::faults::Happened;

/// Nodes are asked this often.
const EVERY: Duration = Duration::from_millis(50);
/// One that does not answer within this time is asked again later.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks one node until `end`, and returns the times between which it was writing, in seconds since
/// `began`.
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

/// The checkpoints that nodes, which are called so, wrote in so long a time.
pub async fn watch(
    clients: &[Client],
    places: &[String],
    (began, lasts): (Instant, Duration),
) -> Vec<Happened> {
    let end = began + lasts;
    let mut asking = tokio::task::JoinSet::new();
    for (client, place) in clients.iter().cloned().zip(places.iter().cloned()) {
        asking.spawn(async move { (place, follow(&client, began, end).await) });
    }
    let mut all = Vec::new();
    while let Some(followed) = asking.join_next().await {
        let (place, times) = followed.expect("asking does not panic");
        let what = format!("checkpoint {place}");
        all.extend(times.into_iter().map(|times| Happened::elsewhere(what.clone(), times)));
    }
    all.sort_by(Happened::by_time);
    all
}
