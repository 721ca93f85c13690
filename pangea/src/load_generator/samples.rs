//! Statistics of the clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use pangea_core::txn::Outcome;
use pangea_node::client::ClientError;

use super::{Timeline, TracedCalls};

/// The longest latency that is recorded exactly: one hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// The significant digits of recorded latencies.
const DIGITS: u8 = 3;

/// Latencies of committed transactions.
#[derive(Clone, Debug)]
pub struct Samples {
    latency_us: Histogram<u64>,
}

impl Default for Samples {
    fn default() -> Self {
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS);
        Self { latency_us: latency_us.expect("the bounds are valid constants") }
    }
}

impl Samples {
    pub(super) fn add(&mut self, latency: Duration) {
        self.latency_us.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds the latencies of another set.
    pub fn merge(&mut self, other: &Self) {
        self.latency_us.add(&other.latency_us).expect("all have the same bounds");
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.latency_us.len()
    }

    /// Returns the quantile of the latencies for this fraction, in ms.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        self.latency_us.value_at_quantile(share) as f64 / 1_000.0
    }

    /// Returns all latencies in the encoding of [HdrHistogram] (V2, base64). Tools that read it can
    /// merge runs and compute any quantile.
    ///
    /// [HdrHistogram]: https://github.com/HdrHistogram
    pub fn to_hdr(&self) -> String {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(&self.latency_us, &mut bytes);
        written.expect("writing to a vector does not fail, and the histogram is small");
        BASE64_STANDARD.encode(bytes)
    }

    /// Returns the mean in ms.
    pub fn mean_ms(&self) -> f64 {
        self.latency_us.mean() / 1_000.0
    }

    /// Returns the longest in ms.
    pub fn max_ms(&self) -> f64 {
        self.latency_us.max() as f64 / 1_000.0
    }
}

/// Aborts that no client saw, because its session retried the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetriedAborts {
    /// The kind of the transactions, if the session knows it.
    pub kind: Option<&'static str>,
    /// Their SQLSTATE.
    pub code: String,
    /// The number of aborts.
    pub count: u64,
}

/// Calls without an outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Counts by the kind of the error.
    pub counts: BTreeMap<&'static str, u64>,
    /// The regions whose clients made the calls.
    pub regions: BTreeSet<usize>,
    /// The first error, as text.
    pub first: Option<String>,
}

impl Errors {
    /// Counts an error in a region.
    pub(super) fn add(&mut self, region: usize, error: &ClientError) {
        let what = match error {
            ClientError::Connect { .. } | ClientError::NotSent(_) => "not sent",
            ClientError::Refused(_) => "refused",
            ClientError::Ambiguous(_) => "outcome unknown",
        };
        *self.counts.entry(what).or_default() += 1;
        self.regions.insert(region);
        self.first.get_or_insert_with(|| error.to_string());
    }
}

/// All statistics.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Latencies by region, then by the kind of transaction.
    pub regions: Vec<BTreeMap<&'static str, Samples>>,
    /// Transactions that aborted, by SQLSTATE.
    pub aborts: BTreeMap<String, u64>,
    /// Aborts by region, then by the kind of transaction. Aborts that no client saw are not
    /// included.
    pub aborts_of: Vec<BTreeMap<&'static str, BTreeMap<String, u64>>>,
    /// Aborts that no client saw, because its session retried the transaction: by SQLSTATE,
    /// prefixed with the kind of transaction if the session knows it.
    pub retries: BTreeMap<String, u64>,
    /// Calls that nodes may have traced, by region.
    pub traced_calls: Vec<TracedCalls>,
    /// Calls without an outcome.
    pub errors: Errors,
    /// The delay of calls after their due time. It grows if the load generator does not keep up.
    pub late: Samples,
    /// Calls that were skipped because too many were in flight.
    pub shed: u64,
    /// The times of commits by region, from the start of the measured time.
    pub timeline: Timeline,
    committed: Vec<u64>,
}

impl Stats {
    /// Creates empty statistics.
    pub fn new(regions: usize) -> Self {
        Self {
            regions: vec![BTreeMap::new(); regions],
            aborts: BTreeMap::new(),
            aborts_of: vec![BTreeMap::new(); regions],
            retries: BTreeMap::new(),
            traced_calls: vec![TracedCalls::default(); regions],
            errors: Errors::default(),
            late: Samples::default(),
            shed: 0,
            timeline: Timeline::new(regions),
            committed: vec![0; regions],
        }
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Returns the number of commits of each region.
    pub fn committed(&self) -> Vec<u64> {
        self.committed.clone()
    }

    /// Counts the end of one call.
    pub fn add(
        &mut self,
        region: usize,
        label: &'static str,
        latency: Duration,
        result: &Result<Outcome, ClientError>,
    ) {
        match result {
            Ok(outcome @ Outcome::Committed { .. }) => {
                self.committed[region] += 1;
                self.regions[region].entry(label).or_default().add(latency);
                self.traced_calls[region].add(label, latency, outcome);
            }
            Ok(Outcome::Aborted(abort)) => {
                let code = abort.code.to_string();
                // A kind whose transactions all abort is listed, too.
                self.regions[region].entry(label).or_default();
                let of_kind = self.aborts_of[region].entry(label).or_default();
                *of_kind.entry(code.clone()).or_default() += 1;
                *self.aborts.entry(code).or_default() += 1;
            }
            Err(error) => self.errors.add(region, error),
        }
    }

    /// Counts aborts that no client saw.
    pub fn add_retries(&mut self, retried: Vec<RetriedAborts>) {
        for RetriedAborts { kind, code, count } in retried {
            let what = kind.map_or_else(|| code.clone(), |kind| format!("{kind} {code}"));
            *self.retries.entry(what).or_default() += count;
            *self.aborts.entry(code).or_default() += count;
        }
    }

    /// Returns the aborts that clients saw, by SQLSTATE, of the given region and kind or of all.
    pub fn aborts_seen(&self, region: Option<usize>, label: Option<&str>) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (index, kinds) in self.aborts_of.iter().enumerate() {
            let is_region = region.is_none_or(|region| region == index);
            for (kind, codes) in kinds {
                if !is_region || label.is_some_and(|label| label != *kind) {
                    continue;
                }
                for (code, count) in codes {
                    *all.entry(code.clone()).or_default() += count;
                }
            }
        }
        all
    }

    /// Returns all latencies of a region.
    pub fn of_region(&self, region: usize) -> Samples {
        merged(self.regions[region].values())
    }

    /// Returns all latencies by the kind of transaction.
    pub fn by_label(&self) -> BTreeMap<&'static str, Samples> {
        let mut all: BTreeMap<&'static str, Samples> = BTreeMap::new();
        for (label, samples) in self.regions.iter().flatten() {
            all.entry(label).or_default().merge(samples);
        }
        all
    }

    /// Returns all latencies.
    pub fn all(&self) -> Samples {
        merged(self.regions.iter().flat_map(BTreeMap::values))
    }
}

fn merged<'a>(parts: impl Iterator<Item = &'a Samples>) -> Samples {
    let mut all = Samples::default();
    parts.for_each(|part| all.merge(part));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::{SnapshotVersion, TxnId};
    use pangea_core::txn::{Abort, SqlState};

    #[test]
    fn each_end_is_counted_once_and_where_it_belongs() {
        let mut stats = Stats::new(2);
        let (txn, version) = (TxnId::default(), SnapshotVersion(1));
        let committed = Ok(Outcome::Committed { txn, version, result: Vec::new() });
        let aborted = Ok(Outcome::Aborted(Abort::new(SqlState::RAISE_EXCEPTION, "no item")));
        for ms in 1..=100 {
            stats.add(0, "pay", Duration::from_millis(ms), &committed);
        }
        stats.add(1, "order", Duration::from_millis(7), &committed);
        stats.add(1, "order", Duration::from_millis(9), &aborted);
        stats.add(1, "order", Duration::ZERO, &Err(ClientError::Refused("no".to_owned())));
        assert_eq!(stats.committed(), [100, 1]);
        assert_eq!(stats.all().count(), 101);
        assert_eq!(stats.by_label()["order"].count(), 1);
        assert_eq!(stats.aborts["P0001"], 1);
        assert_eq!(stats.aborts_seen(Some(1), Some("order"))["P0001"], 1);
        assert!(stats.aborts_seen(Some(0), None).is_empty());
        let retried = |kind, count| RetriedAborts { kind, code: "40001".to_owned(), count };
        stats.add_retries(vec![retried(None, 3), retried(Some("pay"), 2)]);
        assert_eq!(stats.aborts["40001"], 5);
        assert_eq!((stats.retries["40001"], stats.retries["pay 40001"]), (3, 2));
        assert_eq!(stats.aborts_seen(None, None).len(), 1, "clients did not see those");
        assert_eq!(stats.errors.counts["refused"], 1);
        let median = stats.of_region(0).quantile_ms(0.5);
        assert!((49.9..=50.1).contains(&median), "{median}");
    }
}
