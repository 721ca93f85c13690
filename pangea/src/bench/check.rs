//! Checks of the result of a run: every call has an outcome, the replicas are identical, the
//! workload's own rules hold, and its data match the committed transactions.

use std::collections::BTreeSet;

use pangea_core::partition::Partitions;
use pangea_core::workload::{self, Commits, Rows, Workload};
use pangea_node::client::Client;
use serde::Serialize;

use crate::cluster::{replicas, rows};
use crate::failure::Failure;
use crate::load_generator::{Errors, Stats};

/// The result of successful checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The digest of every replica, or of every shard's replicas.
    pub digest: String,
    /// A version that every replica had reached at the time of the check. Baselines report none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The result of the workload's own check.
    pub workload: String,
}

/// Returns the error for a check that failed for this reason.
pub fn failed_check(what: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("check failed: {what}"))
}

fn failed<T>(what: impl std::fmt::Display) -> Result<T, Failure> {
    Err(failed_check(what))
}

/// The outcomes that are excused for calls to a node that is killed or disconnected.
const OF_FAULTS: [&str; 2] = ["not sent", "outcome unknown"];

/// Checks that every call has an outcome, measured or not: without an outcome, it is unknown
/// whether the call's effects are in the data. Calls of the regions in `hit`, which faults
/// affected, may lack one. No call may be rejected.
///
/// # Errors
/// The number of calls without an outcome, and the first of them.
pub fn each_has_an_outcome(errors: &Errors, hit: &BTreeSet<usize>) -> Result<(), Failure> {
    let is_of_faults = errors.counts.keys().all(|what| OF_FAULTS.contains(what));
    let is_excused = is_of_faults && errors.regions.is_subset(hit);
    let Some(first) = errors.first.as_ref().filter(|_| !is_excused) else { return Ok(()) };
    let counts = errors.counts.iter().map(|(what, count)| format!("{count} {what}"));
    let counts: Vec<String> = counts.collect();
    failed(format!("calls without an outcome: {}; {first}", counts.join(", ")))
}

/// Checks that a measured run has committed something and that each of its calls has an outcome.
///
/// # Errors
/// Those of [`each_has_an_outcome`], and if nothing was committed.
pub fn has_measured(stats: &Stats, hit: &BTreeSet<usize>) -> Result<(), Failure> {
    each_has_an_outcome(&stats.errors, hit)?;
    if stats.committed().iter().all(|&count| count == 0) {
        return failed("nothing was committed in the measured time");
    }
    Ok(())
}

/// Checks the data, whose shards are on these nodes. All clients must have finished.
///
/// # Errors
/// The violation.
pub async fn all(
    clients: &[Client],
    (partitions, of_nodes): (&Partitions, &[usize]),
    workload: &Workload,
    settings: &workload::Settings,
    commits: Commits,
) -> Result<Checked, Failure> {
    let shards = usize::from(partitions.shards());
    let (version, digests) = replicas::equal_by_shard(clients, of_nodes).await?;
    let (unknown, watched) = (commits.unknown.values().sum::<u64>(), commits.newest.len());
    // The replicas are identical, so one of them is checked for all.
    let verdict = match shards {
        1 => {
            let verdict = clients[0].check(workload.name(), settings, Some(commits)).await;
            verdict.map_err(|error| Failure::failed("check failed", error))?
        }
        _ => {
            let firsts = replicas::first_of_each(of_nodes).into_iter();
            let of_each = firsts.map(|node| clients[node].clone()).collect();
            let workload = workload.clone();
            let check = move |rows: &dyn Rows| {
                let report = workload.check(rows)?;
                workload.check_commits(&report, rows, &commits).map(|()| report.to_string())
            };
            let verdict = rows::look(partitions.clone(), of_each, check).await?;
            verdict.map_err(|violation| violation.to_string())
        }
    };
    match verdict {
        Ok(mut workload) => {
            if watched > 0 {
                let held = format!("; {watched} rows contain a newest acknowledged write");
                workload.push_str(&held);
            }
            if unknown > 0 {
                workload.push_str(&format!(
                    "; {unknown} calls of unknown outcome may or may not be included"
                ));
            }
            let digests: Vec<String> = digests.iter().map(|it| format!("{it:016x}")).collect();
            Ok(Checked { digest: digests.join(" "), version: Some(version.0), workload })
        }
        Err(violation) => failed(violation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(counts: &[(&'static str, u64)]) -> Errors {
        let first = counts.first().map(|(what, _)| format!("the first: {what}"));
        let regions = counts.iter().map(|_| 2).collect();
        Errors { counts: counts.iter().copied().collect(), regions, first }
    }

    #[test]
    fn only_calls_of_regions_that_were_hit_end_without_an_outcome_and_none_is_refused() {
        let (nobody, hit) = (BTreeSet::new(), BTreeSet::from([0, 2]));
        assert!(each_has_an_outcome(&Errors::default(), &nobody).is_ok());
        let of_faults = errors(&[("outcome unknown", 1), ("not sent", 2)]);
        assert!(each_has_an_outcome(&of_faults, &hit).is_ok());
        assert!(each_has_an_outcome(&of_faults, &BTreeSet::from([0, 1])).is_err());
        let failure = each_has_an_outcome(&of_faults, &nobody).unwrap_err().to_string();
        let expected = "check failed: calls without an outcome: 2 not sent, 1 outcome unknown; \
                        the first: outcome unknown";
        assert_eq!(failure, expected);
        let refused = errors(&[("refused", 1), ("outcome unknown", 1)]);
        assert!(each_has_an_outcome(&refused, &hit).is_err());
    }
}
