//! Whether what the cluster did is right: every call has its outcome, the replicas are equal, the
//! workload's own rules hold, and its data are what comes of all that was committed.

use std::collections::BTreeMap;

use pangea_core::workload::{self, Workload};
use pangea_node::client::Client;
use serde::Serialize;

use crate::cluster::replicas;
use crate::drive::Stats;
use crate::failure::Failure;

/// What was found to be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The digest of every replica.
    pub digest: String,
    /// A version that every replica had reached when it was looked at; peers name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// What the workload's own check counted.
    pub workload: String,
}

/// A check that failed for this reason.
pub fn failed_check(what: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("check failed: {what}"))
}

fn failed<T>(what: impl std::fmt::Display) -> Result<T, Failure> {
    Err(failed_check(what))
}

/// What becomes of calls to a node that is killed or can't reach the others.
const OF_FAULTS: [&str; 2] = ["not sent", "outcome unknown"];

/// Checks that every call of a run has ended, and some with a commit. With faults, calls of the
/// regions that they are of may end without an outcome; no call may be refused.
///
/// # Errors
/// How many have not, and the first of them.
pub fn each_has_an_outcome(stats: &Stats, has_faults: bool) -> Result<(), Failure> {
    let is_of_faults = stats.errors.keys().all(|what| OF_FAULTS.contains(what));
    if let Some(first) = stats.first_error.as_ref().filter(|_| !(has_faults && is_of_faults)) {
        let counts: Vec<String> =
            stats.errors.iter().map(|(what, count)| format!("{count} {what}")).collect();
        return failed(format!("calls without an outcome: {}; {first}", counts.join(", ")));
    }
    if stats.committed().iter().all(|&count| count == 0) {
        return failed("nothing was committed in the measured time");
    }
    Ok(())
}

/// Checks the data. No client works any more.
///
/// # Errors
/// What is wrong.
pub async fn all(
    clients: &[Client],
    workload: &Workload,
    settings: &workload::Settings,
    committed: Option<BTreeMap<String, u64>>,
) -> Result<Checked, Failure> {
    let (version, digest) = replicas::equal(clients).await?;
    // Replicas are equal, so one of them answers for all.
    let verdict = clients[0].check(workload.name(), settings, committed).await;
    match verdict.map_err(|error| Failure::failed("check failed", error))? {
        Ok(workload) => {
            Ok(Checked { digest: format!("{digest:016x}"), version: Some(version.0), workload })
        }
        Err(violation) => failed(violation),
    }
}
