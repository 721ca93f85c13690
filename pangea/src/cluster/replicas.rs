//! Comparison of the data of all replicas.

use std::time::{Duration, Instant};

use pangea_core::ids::SnapshotVersion;
use pangea_node::client::{Client, ClientError};
use tokio::task::JoinSet;

use crate::failure::Failure;

/// The time limit for replicas to catch up with the most advanced one.
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);
/// The polling interval.
const SETTLE_POLL: Duration = Duration::from_millis(10);

/// Waits until every replica has applied everything that was acknowledged, and returns that
/// version.
///
/// # Errors
/// If a replica does not reach it within the time limit.
pub async fn settled(clients: &[Client]) -> Result<SnapshotVersion, Failure> {
    let lost = |client: &Client, error| Failure::failed(client.region(), error);
    let mut target = SnapshotVersion::ZERO;
    for client in clients {
        let fresh = client.fresh().await.map_err(|error| lost(client, error))?;
        target = target.max(fresh);
    }
    let began = Instant::now();
    for client in clients {
        loop {
            let version = client.status().await.map_err(|error| lost(client, error))?.version;
            if version >= target {
                break;
            }
            if began.elapsed() > SETTLE_DEADLINE {
                let region = client.region();
                return Err(Failure::Failed(format!(
                    "check failed: {region} is at {version} and did not reach {target}"
                )));
            }
            tokio::time::sleep(SETTLE_POLL).await;
        }
    }
    Ok(target)
}

/// Waits until every replica has applied everything that was acknowledged, and compares the
/// replicas of each shard. The nodes of the shards alternate in `clients`. There must be no more
/// writes. Returns a version that all replicas have reached, and the digest of each shard.
///
/// # Errors
/// If replicas of a shard differ, or a replica does not catch up.
pub async fn equal_by_shard(
    clients: &[Client],
    shards: &[usize],
) -> Result<(SnapshotVersion, Vec<u64>), Failure> {
    let version = settled(clients).await?;
    // There are no more writes, so any later version has the same data.
    let digests = digests(clients).await.map_err(|error| Failure::failed("check failed", error))?;
    let firsts = first_of_each(shards);
    let differs = |index: &usize| digests[*index] != digests[firsts[shards[*index]]];
    if let Some(different) = (0..digests.len()).find(differs) {
        let first = firsts[shards[different]];
        let (a, b) = (clients[first].region(), clients[different].region());
        return Err(Failure::Failed(format!(
            "check failed: replicas differ: digest {:016x} in {a}, {:016x} in {b}",
            digests[first], digests[different]
        )));
    }
    Ok((version, firsts.iter().map(|first| digests[*first]).collect()))
}

/// Returns the first node of each shard, if the nodes have these shards.
pub fn first_of_each(shards: &[usize]) -> Vec<usize> {
    let count = shards.iter().max().map_or(0, |last| last + 1);
    let first = |shard| shards.iter().position(|it| *it == shard);
    (0..count).map(|shard| first(shard).expect("each shard has a node")).collect()
}

/// Returns the digest of every node's newest version, in order.
async fn digests(clients: &[Client]) -> Result<Vec<u64>, ClientError> {
    let mut asking = JoinSet::new();
    for (index, client) in clients.iter().enumerate() {
        let client = client.clone();
        asking.spawn(async move { (index, client.digest(None).await) });
    }
    let mut digests = vec![0; clients.len()];
    while let Some(answer) = asking.join_next().await {
        let (index, answer) = answer.expect("a request does not panic");
        digests[index] = answer?.1;
    }
    Ok(digests)
}
