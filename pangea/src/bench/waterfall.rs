//! The latency breakdown of the median and of the p99 transaction.
//!
//! Nodes trace some of their transactions ([`LatencySample`]), and clients record their own latency
//! for the same transactions ([`TracedCalls`]). A single transaction is not representative, because
//! its breakdown is its own. Therefore a bar is the mean of the transactions around the quantile,
//! and its parts add up to the clients' latency. The difference between the client's and the node's
//! latency is a separate part: the network both ways and the scheduling of the client.

use std::collections::BTreeMap;
use std::fmt;

use pangea_core::protocol::{STAGES, Words};
use pangea_node::driver::{LatencySample, LatencyStage, RunKind};
use serde::Serialize;

use crate::load_generator::TracedCalls;

/// The part of the latency that no node sees.
const OTHER: &str = "other";
/// The fraction of all transactions on either side of the median and of the p99 that is averaged.
const MEDIAN_HALF: f64 = 0.025;
const P99_HALF: f64 = 0.005;
/// With fewer transactions than these, the quantile is not meaningful and has no bar.
const MEDIAN_OF_MIN: usize = 10;
const P99_OF_MIN: usize = 200;
/// The width of a bar on a terminal.
const BAR_WIDTH: f64 = 40.0;

/// Its description. Those of the other parts are the protocol's.
const OTHER_WORDS: &str = "client and network";
/// A node records the stages of which protocols have words.
const _: () = assert!(LatencyStage::ALL.len() == STAGES);

/// A transaction that both its node and its client traced.
#[derive(Clone, Debug)]
struct Known {
    label: &'static str,
    region: usize,
    ran: RunKind,
    latency_us: f64,
    us: [u32; LatencyStage::ALL.len()],
}

/// The number of invalid first executions among the traced transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Runs {
    /// The number of traced transactions.
    pub followed: u64,
    /// The number of them that were re-executed in order.
    pub again: u64,
    /// The number of them that ran only in order.
    pub in_order: u64,
}

impl Runs {
    fn add(&mut self, ran: RunKind) {
        self.followed += 1;
        match ran {
            RunKind::FirstRunValid => {}
            RunKind::ReExecuted => self.again += 1,
            RunKind::OrderedOnly => self.in_order += 1,
        }
    }

    /// Returns the fraction of traced transactions that was re-executed.
    pub fn share_again(&self) -> Option<f64> {
        (self.followed > 0).then(|| self.again as f64 / self.followed as f64)
    }
}

/// All traced transactions.
#[derive(Debug, Default)]
pub struct TracedTransactions {
    all: Vec<Known>,
    /// Set if only nodes traced transactions: clients of PostgreSQL's protocol do not receive
    /// transaction numbers.
    is_of_nodes: bool,
}

impl TracedTransactions {
    /// Joins the traces of nodes and clients by transaction, for each region.
    pub fn new(nodes: &[Vec<LatencySample>], clients: &[TracedCalls]) -> Self {
        let is_of_nodes = clients.iter().all(TracedCalls::is_empty);
        let of_region =
            |(region, (traces, calls)): (usize, (&Vec<LatencySample>, &TracedCalls))| {
                let known = |trace: &LatencySample| {
                    let LatencySample { ran, us, .. } = *trace;
                    let at_node = us.iter().map(|&us| f64::from(us)).sum();
                    let (label, latency_us) = match calls.call(trace.sequence) {
                        Some(call) => (call.label, call.latency.as_secs_f64() * 1e6),
                        None if is_of_nodes => ("", at_node),
                        None => return None,
                    };
                    Some(Known { label, region, ran, latency_us, us })
                };
                traces.iter().filter_map(known).collect::<Vec<_>>()
            };
        let all = nodes.iter().zip(clients).enumerate().flat_map(of_region).collect();
        Self { all, is_of_nodes }
    }

    /// Returns the results of first executions in the given region and of the given kind, or in
    /// all.
    pub fn runs(&self, region: Option<usize>, label: Option<&str>) -> Runs {
        let mut runs = Runs::default();
        let is_it = |known: &&Known| {
            region.is_none_or(|region| known.region == region)
                && label.is_none_or(|label| known.label == label)
        };
        self.all.iter().filter(is_it).for_each(|known| runs.add(known.ran));
        runs
    }

    /// Computes the bars. If only nodes traced transactions, a quantile of theirs is paired with
    /// the same quantile of all clients' latencies, from `quantile_ms`.
    pub fn waterfall(mut self, words: Words, quantile_ms: impl Fn(f64) -> f64) -> Waterfall {
        self.all.sort_by(|a, b| a.latency_us.total_cmp(&b.latency_us));
        let bar = |quantile, half, least| {
            let waited = self.is_of_nodes.then(|| quantile_ms(quantile));
            (self.all.len() >= least).then(|| Bar::new(around(&self.all, quantile, half), waited))
        };
        Waterfall {
            words,
            followed: self.all.len(),
            p50: bar(0.5, MEDIAN_HALF, MEDIAN_OF_MIN),
            p99: bar(0.99, P99_HALF, P99_OF_MIN),
        }
    }
}

/// Returns the transactions around a quantile.
fn around(sorted: &[Known], quantile: f64, half: f64) -> &[Known] {
    let count = sorted.len() as f64;
    let from = ((quantile - half) * count).floor() as usize;
    let to = ((quantile + half) * count).ceil() as usize;
    &sorted[from..to.clamp(from + 1, sorted.len())]
}

/// The latency breakdown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Waterfall {
    /// The protocol's descriptions of the parts.
    #[serde(skip)]
    words: Words,
    /// The number of traced transactions.
    followed: usize,
    /// The bar of the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50: Option<Bar>,
    /// The bar of the p99.
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<Bar>,
}

/// The latency of a quantile, and its parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Bar {
    latency_ms: f64,
    /// The number of transactions that are averaged.
    of: usize,
    parts_ms: BTreeMap<&'static str, f64>,
}

impl Bar {
    /// Creates a bar from the mean of some transactions. `waited_ms` is the clients' latency, if it
    /// is known separately.
    fn new(of: &[Known], waited_ms: Option<f64>) -> Self {
        let count = of.len() as f64;
        let mean = |sum: f64| sum / count / 1e3;
        let mean_ms = mean(of.iter().map(|known| known.latency_us).sum());
        let latency_ms = waited_ms.map_or(mean_ms, |waited| waited.max(mean_ms));
        let part = |part: LatencyStage| {
            let sum = of.iter().map(|known| f64::from(known.us[part as usize])).sum();
            (part.name(), mean(sum))
        };
        let mut parts_ms: BTreeMap<_, _> = LatencyStage::ALL.into_iter().map(part).collect();
        let known: f64 = parts_ms.values().sum();
        parts_ms.insert(OTHER, (latency_ms - known).max(0.0));
        Self { latency_ms, of: of.len(), parts_ms }
    }
}

impl fmt::Display for Waterfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let followed = self.followed;
        for (name, bar) in [("median", &self.p50), ("p99", &self.p99)] {
            let Some(Bar { latency_ms, of, parts_ms }) = bar else { continue };
            writeln!(
                f,
                "  breakdown of the {name}, {latency_ms:.1} ms (mean of {of} of {followed} traced \
                 transactions)"
            )?;
            let mut before = 0.0;
            let names = LatencyStage::ALL.into_iter().map(LatencyStage::name);
            let parts = names.zip(self.words.stages).chain([(OTHER, OTHER_WORDS)]);
            for (part, words) in parts {
                let ms = parts_ms[part];
                if ms < 0.005 {
                    // The protocol does not have this part, or it would be too small to see.
                    continue;
                }
                let column = |ms: f64| (ms / latency_ms * BAR_WIDTH).round() as usize;
                let (from, to) = (column(before), column(before + ms));
                let bar = format!("{}{}", " ".repeat(from), "█".repeat(to.saturating_sub(from)));
                before += ms;
                let percent = ms / latency_ms * 100.0;
                let line = format!("    {words:<34} {ms:>9.2} ms {percent:>5.1} %  {bar}");
                writeln!(f, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
    use pangea_core::txn::Outcome;
    use std::time::Duration;

    /// `count` transactions of a region: transaction `n` took `n` ms at its node, in nine equal
    /// parts, and its client waited 1 ms longer.
    fn region(node: u16, count: u64) -> (Vec<LatencySample>, TracedCalls) {
        let (mut traces, mut followed) = (Vec::new(), TracedCalls::default());
        for sequence in 1..=count {
            let ran = if sequence.is_multiple_of(4) {
                RunKind::ReExecuted
            } else {
                RunKind::FirstRunValid
            };
            traces.push(LatencySample { sequence, ran, us: [sequence as u32 * 1_000 / 9; 9] });
            let txn = TxnId::new(NodeId(node), sequence);
            let outcome =
                Outcome::Committed { txn, version: SnapshotVersion(1), result: Vec::new() };
            followed.add("pay", Duration::from_millis(sequence + 1), &outcome);
        }
        (traces, followed)
    }

    #[test]
    fn parts_add_up_to_what_clients_waited() {
        let (a, b) = (region(0, 1_000), region(1, 1_000));
        let traces = TracedTransactions::new(&[a.0, b.0], &[a.1, b.1]);
        assert_eq!(traces.runs(None, None), Runs { followed: 2_000, again: 500, in_order: 0 });
        assert_eq!(traces.runs(Some(1), Some("pay")).share_again(), Some(0.25));
        assert_eq!(traces.runs(Some(1), Some("order")).share_again(), None);
        let waterfall = traces.waterfall(Words::OF_EPOCHS, |_| panic!("clients know"));
        let (p50, p99) = (waterfall.p50.clone().unwrap(), waterfall.p99.clone().unwrap());
        assert!((p50.latency_ms - 501.5).abs() < 2.0, "{p50:?}");
        assert!((p99.latency_ms - 991.0).abs() < 2.0, "{p99:?}");
        for bar in [&p50, &p99] {
            let sum: f64 = bar.parts_ms.values().sum();
            assert!((sum - bar.latency_ms).abs() < 1e-6, "{bar:?}");
            assert!((bar.parts_ms[OTHER] - 1.0).abs() < 0.01, "{bar:?}");
            assert_eq!(bar.parts_ms.len(), STAGES + 1);
        }
        let text = waterfall.to_string();
        assert!(text.contains("breakdown of the median, 501.5 ms (mean of 100 of 2000"), "{text}");
        assert_eq!(text.lines().count(), 2 * (STAGES + 2));
        let leader = Words { stages: ["the stamp"; STAGES], ..Words::OF_EPOCHS };
        let text = Waterfall { words: leader, ..waterfall }.to_string();
        assert_eq!(text.matches("    the stamp   ").count(), 2 * STAGES, "{text}");
    }

    #[test]
    fn a_few_have_no_p99_and_what_one_side_alone_knows_is_left_out() {
        let (mut traces, followed) = region(0, 100);
        traces.extend(region(0, 150).0.split_off(100));
        let waterfall =
            TracedTransactions::new(&[traces], &[followed]).waterfall(Words::OF_EPOCHS, |_| 0.0);
        assert_eq!(waterfall.followed, 100);
        assert!(waterfall.p50.is_some() && waterfall.p99.is_none());
        let none = TracedTransactions::new(&[], &[]).waterfall(Words::OF_EPOCHS, |_| 0.0);
        assert_eq!(none.to_string(), "");
    }

    #[test]
    fn what_nodes_alone_know_is_laid_beside_the_clients_quantiles() {
        let (traces, _) = region(0, 1_000);
        let waterfall = TracedTransactions::new(&[traces], &[TracedCalls::default()])
            .waterfall(Words::OF_EPOCHS, |_| 2_000.0);
        let p50 = waterfall.p50.unwrap();
        assert!((p50.latency_ms - 2_000.0).abs() < 1e-9, "{p50:?}");
        assert!((p50.parts_ms[OTHER] - 1_500.0).abs() < 2.0, "{p50:?}");
    }
}
