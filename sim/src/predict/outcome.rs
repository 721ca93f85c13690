//! The result of a prediction.

use std::collections::BTreeMap;

use serde::Serialize;

/// The predicted behaviour of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The number of replicas.
    pub replicas: usize,
    /// The number of nodes of each replica.
    pub partitions: u16,
    /// Committed transactions per second, over all regions.
    pub throughput_per_sec: f64,
    /// From the call to its outcome, over all committed transactions.
    pub latency_ms: Latency,
    /// The results of each region.
    pub regions: Vec<Region>,
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions that aborted.
    pub aborted: u64,
    /// The outcomes of the first executions of transactions, as shares, at the first node.
    pub shares: BTreeMap<&'static str, f64>,
    /// CPU time of all nodes, and of clients on the same machine, per transaction.
    pub cpu_us_per_txn: f64,
    /// Bytes on the wire between regions, per transaction.
    pub wan_bytes_per_txn: f64,
    /// The busiest server of each kind.
    pub servers: Vec<Server>,
    /// The bottleneck of the throughput: the busiest server, or round trips if clients wait for the
    /// network.
    pub bottleneck: String,
    /// The region of the coordinator at the end, if the protocol has one.
    pub coordinator: Option<String>,
    /// The effect of the loss of a region, if one was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survived: Option<Survived>,
    /// The number of simulated events.
    pub events: u64,
}

/// The effect of the loss of a region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Survived {
    /// The region that was lost.
    pub region: String,
    /// Whether its node was the coordinator.
    pub was_coordinator: bool,
    /// The number of transactions that it had acknowledged before they were agreed on, and that the
    /// survivors do not have.
    pub lost_txns: u64,
    /// An error in the survivors' data: an acknowledged transaction is missing that must not be
    /// lost, rows differ, or a rule of the workload is violated.
    pub wrong: Option<String>,
}

/// Latencies in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// The results of a region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Region {
    /// The name.
    pub name: String,
    /// Committed transactions per second.
    pub throughput_per_sec: f64,
    /// The latency of these transactions.
    pub latency_ms: Latency,
    /// The longest time without a commit.
    pub pause_ms: f64,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Server {
    /// The name.
    pub name: &'static str,
    /// The location of the busiest server of this kind.
    pub region: String,
    /// The share of time in which it was busy.
    pub utilisation: f64,
}

/// A server with a utilisation of at least this limits the throughput.
const IS_FULL: f64 = 0.85;

/// Returns the bottleneck among these servers.
pub(super) fn bottleneck(servers: &[Server]) -> String {
    let busiest = servers.iter().max_by(|a, b| a.utilisation.total_cmp(&b.utilisation));
    match busiest {
        Some(server) if server.utilisation >= IS_FULL => server.name.to_owned(),
        _ => "round trips".to_owned(),
    }
}

/// Returns the outcomes of the first executions of transactions as shares, if the protocol counts
/// them.
pub(super) fn shares(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> BTreeMap<&'static str, f64> {
    let grown = |name: &str| {
        let of = |counters: &BTreeMap<String, u64>| counters.get(name).copied().unwrap_or(0);
        of(after).saturating_sub(of(before)) as f64
    };
    let valid = grown("txns_valid");
    let reexecuted = grown("txns_stale") + grown("txns_conflicting");
    let ordered = grown("txns_ordered");
    let all = valid + reexecuted + ordered;
    if all == 0.0 {
        return BTreeMap::new();
    }
    [("valid", valid), ("re-executed", reexecuted), ("ordered", ordered)]
        .map(|(name, count)| (name, count / all))
        .into()
}

impl Prediction {
    /// The share of aborted transactions in the measured time.
    pub fn aborted_share(&self) -> f64 {
        self.aborted as f64 / (self.aborted + self.committed).max(1) as f64
    }
}

impl Latency {
    /// Returns the percentiles of latencies in microseconds, which may be unsorted.
    pub(super) fn of(latencies_us: &mut [u32]) -> Self {
        latencies_us.sort_unstable();
        let quantile = |share: f64| {
            let place = (share * latencies_us.len() as f64).ceil() as usize;
            let found = latencies_us.get(place.max(1) - 1).copied().unwrap_or(0);
            f64::from(found) / 1e3
        };
        Self { p50: quantile(0.50), p95: quantile(0.95), p99: quantile(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_latencies() {
        let mut all: Vec<u32> = (1..=100).rev().map(|ms| ms * 1_000).collect();
        assert_eq!(Latency::of(&mut all), Latency { p50: 50.0, p95: 95.0, p99: 99.0 });
        assert_eq!(Latency::of(&mut []), Latency::default());
    }

    #[test]
    fn what_is_not_full_is_no_bottleneck() {
        let server = |name, utilisation| Server { name, region: "r".to_owned(), utilisation };
        assert_eq!(bottleneck(&[server("disk", 0.5), server("event loop", 0.9)]), "event loop");
        assert_eq!(bottleneck(&[server("disk", 0.5)]), "round trips");
    }
}
