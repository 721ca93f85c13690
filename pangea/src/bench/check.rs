//! Whether what the cluster did is right: every call has its outcome, the replicas are equal, and
//! the workload's own rules hold.

use std::time::{Duration, Instant};

use pangea_core::ids::SnapshotVersion;
use pangea_core::workload::{self, Workload};
use pangea_node::client::{Client, ClientError};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::drive::Stats;
use crate::failure::Failure;

/// How long replicas may be behind the most advanced one.
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);
/// How often to look.
const SETTLE_POLL: Duration = Duration::from_millis(10);

/// What was found to be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The digest of every replica.
    pub digest: String,
    /// A version that every replica had reached when it was looked at.
    pub version: u64,
    /// What the workload's own check counted.
    pub workload: String,
}

/// Waits until every replica has applied all that was acknowledged, and returns that version.
///
/// # Errors
/// When one does not get there.
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
                    "check failed: {region} is at {version} and does not reach {target}"
                )));
            }
            tokio::time::sleep(SETTLE_POLL).await;
        }
    }
    Ok(target)
}

/// Checks everything. No client works any more.
///
/// # Errors
/// What is wrong.
pub async fn all(
    clients: &[Client],
    workload: &Workload,
    settings: &workload::Settings,
    stats: &Stats,
) -> Result<Checked, Failure> {
    let failed = |what: String| Err(Failure::Failed(format!("check failed: {what}")));
    if let Some(first) = &stats.first_error {
        let counts: Vec<String> =
            stats.errors.iter().map(|(what, count)| format!("{count} {what}")).collect();
        return failed(format!("calls without an outcome: {}; {first}", counts.join(", ")));
    }
    if stats.committed().iter().all(|&count| count == 0) {
        return failed("nothing was committed in the measured time".to_owned());
    }
    let version = settled(clients).await?;
    // Nothing is written any more, so any later version holds the same.
    let digests = digests(clients).await.map_err(|error| Failure::failed("check failed", error))?;
    if let Some(different) = digests.iter().position(|digest| *digest != digests[0]) {
        let (a, b) = (clients[0].region(), clients[different].region());
        return failed(format!(
            "replicas differ: digest {:016x} in {a}, {:016x} in {b}",
            digests[0], digests[different]
        ));
    }
    // Replicas are equal, so one of them answers for all.
    let verdict = clients[0].check(workload.name(), settings).await;
    match verdict.map_err(|error| Failure::failed("check failed", error))? {
        Ok(workload) => {
            Ok(Checked { digest: format!("{:016x}", digests[0]), version: version.0, workload })
        }
        Err(violation) => failed(violation),
    }
}

/// The digest of every node's newest version, in order.
async fn digests(clients: &[Client]) -> Result<Vec<u64>, ClientError> {
    let mut asking = JoinSet::new();
    for (index, client) in clients.iter().enumerate() {
        let client = client.clone();
        asking.spawn(async move { (index, client.digest(None).await) });
    }
    let mut digests = vec![0; clients.len()];
    while let Some(answer) = asking.join_next().await {
        let (index, answer) = answer.expect("a question does not panic");
        digests[index] = answer?.1;
    }
    Ok(digests)
}
