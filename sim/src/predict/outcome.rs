//! What a prediction says.

use std::collections::BTreeMap;

use serde::Serialize;

/// What a cluster is predicted to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// How many replicas.
    pub replicas: usize,
    /// Over how many nodes each is spread.
    pub partitions: u16,
    /// Committed transactions a second, in all regions.
    pub throughput_per_sec: f64,
    /// From the call to its outcome, of all transactions that committed.
    pub latency_ms: Latency,
    /// By region.
    pub regions: Vec<Region>,
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions that aborted.
    pub aborted: u64,
    /// How the first execution of each transaction fared, in shares of all, at the first node.
    pub shares: BTreeMap<&'static str, f64>,
    /// CPU time of all nodes, and of clients on the same machine, for each transaction.
    pub cpu_us_per_txn: f64,
    /// Bytes between regions for each transaction, as they are on the wire.
    pub wan_bytes_per_txn: f64,
    /// The busiest of each kind of server.
    pub servers: Vec<Server>,
    /// What limits the throughput: the busiest server, or that clients wait for the network.
    pub bottleneck: String,
    /// The region of the node that coordinates in the end, where the protocol has one.
    pub coordinator: Option<String>,
    /// What came of the loss of a region, where one was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survived: Option<Survived>,
    /// What was simulated.
    pub events: u64,
}

/// What came of the loss of a region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Survived {
    /// Which was lost.
    pub region: String,
    /// Whether its node coordinated.
    pub was_coordinator: bool,
    /// How many transactions it had acknowledged that the others do not have, as it had run them
    /// before they were agreed on.
    pub lost_txns: u64,
    /// What is wrong with what the others hold: something acknowledged that is not there and could
    /// not be lost, rows that differ, or a rule of the workload that is broken.
    pub wrong: Option<String>,
}

/// Latencies in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half of all are not above it.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
}

/// A region's part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Committed transactions a second.
    pub throughput_per_sec: f64,
    /// Of those.
    pub latency_ms: Latency,
    /// The longest time in which it committed nothing.
    pub pause_ms: f64,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Its name.
    pub name: &'static str,
    /// Where the busiest of them is.
    pub region: String,
    /// The share of the time in which it was busy.
    pub utilisation: f64,
}

/// A server that is busier than this limits the throughput.
const IS_FULL: f64 = 0.85;

/// What limits, of servers that are there.
pub(super) fn bottleneck(servers: &[Server]) -> String {
    let busiest = servers.iter().max_by(|a, b| a.utilisation.total_cmp(&b.utilisation));
    match busiest {
        Some(server) if server.utilisation >= IS_FULL => server.name.to_owned(),
        _ => "round trips".to_owned(),
    }
}

/// How the first execution of each transaction fared, from a protocol that counts it.
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
    /// The share of all transactions that aborted, in the measured time.
    pub fn aborted_share(&self) -> f64 {
        self.aborted as f64 / (self.aborted + self.committed).max(1) as f64
    }
}

impl Latency {
    /// Of latencies in microseconds, in any order.
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
