//! Samples resource usage at both ends of the measured time, also while faults affect the servers.
//!
//! ```text
//!   local       |<------------- measured ------------->|
//!   kernel, lab *                                      *        read at both ends
//!                \ request                              \ request
//!   a node        *                                      *      read half a round trip later
//! ```
//!
//! A value that is divided by the transactions or the seconds of the measured time must cover an
//! interval of the same length. The kernel and the lab are read at both ends, which takes no
//! waiting. All nodes are queried at both ends concurrently. A node's interval is shifted by half a
//! round trip to the node, but has the same length.

use std::sync::Arc;
use std::time::Duration;

use pangea_node::client::Client;
use tokio::task::JoinSet;

use super::environment::BenchEnvironment;
use super::usage::{NodeCounters, Usage};
use crate::cluster::ProcessHandle;
use crate::failure::Failure;
use crate::load_generator::RetriedAborts;
use crate::script::Retries;

/// The time limit for a node's report of its counters.
const ASK_DEADLINE: Duration = Duration::from_secs(30);

type Machine<'a> = Box<dyn Fn() -> Result<Usage, Failure> + 'a>;
type Again<'a> = Box<dyn Fn() -> Vec<RetriedAborts> + 'a>;

/// The sources of samples.
pub(super) struct UsageProbe<'a> {
    machine: Machine<'a>,
    again: Again<'a>,
    /// Clients of nodes that report counters; a baseline's servers do not.
    clients: &'a [Client],
}

impl<'a> UsageProbe<'a> {
    /// Samples the values that `machine` reads, and the nodes that these clients are connected to.
    pub fn new(machine: impl Fn() -> Result<Usage, Failure> + 'a, clients: &'a [Client]) -> Self {
        Self { machine: Box::new(machine), again: Box::new(Vec::new), clients }
    }

    /// For nodes that are processes.
    pub fn of_nodes(
        environment: &'a BenchEnvironment,
        process_handles: Vec<ProcessHandle>,
        clients: &'a [Client],
    ) -> Self {
        Self::new(
            move || Ok(Usage::of_nodes(&process_handles)?.in_lab(environment.usage()?)),
            clients,
        )
    }

    /// For the servers of a baseline.
    pub fn of_baseline(
        environment: &'a BenchEnvironment,
        baseline: &pangea_baselines::Baseline,
    ) -> Self {
        let (meter, retries) = (baseline.meter(), baseline.retries().clone());
        let again = move || {
            let retried = |(code, count)| RetriedAborts { kind: None, code, count };
            retries.take().into_iter().map(retried).collect()
        };
        let machine = move || Ok(Usage::of_baseline(&meter)?.in_lab(environment.usage()?));
        Self { again: Box::new(again), ..Self::new(machine, &[]) }
    }

    /// Adds the retries of clients that retry transactions on their own.
    #[must_use]
    pub fn with_retries(self, retries: Arc<Retries>) -> Self {
        let Self { machine, again, clients } = self;
        let again = Box::new(move || [again(), retries.take()].concat());
        Self { machine, again, clients }
    }

    /// Returns the counters of the kernel and the lab so far.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self) -> Result<Usage, Failure> {
        (self.machine)()
    }

    /// Returns the aborts since the last call that no client saw, because they were retried.
    pub fn retried(&self) -> Vec<RetriedAborts> {
        (self.again)()
    }

    /// Returns the counters of each node so far.
    ///
    /// # Errors
    /// If a node does not report, unless `may_be_silent` is set because a fault may affect it: its
    /// entry is then `None`.
    pub async fn ask(&self, may_be_silent: bool) -> Result<Vec<Option<NodeCounters>>, Failure> {
        let mut asking = JoinSet::new();
        let nodes = self.clients.len();
        for (index, client) in self.clients.iter().cloned().enumerate() {
            asking.spawn(async move {
                let answer =
                    tokio::time::timeout(ASK_DEADLINE, NodeCounters::ask(&client, nodes)).await;
                let silent = |_| {
                    let (region, secs) = (client.region(), ASK_DEADLINE.as_secs());
                    Failure::Failed(format!("{region} did not report its counters within {secs} s"))
                };
                (index, answer.map_err(silent).flatten())
            });
        }
        let mut all = vec![None; nodes];
        while let Some(answer) = asking.join_next().await {
            let (index, answer) = answer.expect("a request does not panic");
            all[index] = match answer {
                Ok(answer) => Some(answer),
                Err(_) if may_be_silent => None,
                Err(failure) => return Err(failure),
            };
        }
        Ok(all)
    }
}
