//! The measures of runs: their names, units, and paths in the results.

use serde_json::Value;

use crate::plan_error::unknown;

/// A measure.
struct Measure {
    /// The first part of its path.
    head: &'static str,
    /// The label of its axis.
    label: &'static str,
    /// The allowed next parts; empty if these are the names of regions or kinds.
    parts: &'static [&'static str],
}

const QUANTILES: &[&str] = &["p50", "p90", "p95", "p99", "p999", "mean", "max"];
/// The quantiles that have a latency breakdown.
const BARS: &[&str] = &["p50", "p99"];
/// Measures with nested parts, of which the last one is the name.
const DEEP: &[&str] = &["links", "stages_us_per_txn", "stages_ms_per_epoch", "waterfall"];
/// Measures of a node that are averaged over several nodes.
const MEANS: &[&str] = &["latency_ms", "reexecuted"];
const SHARES: &[&str] = &["valid", "stale", "conflicting", "ordered", "re-executed"];

const fn measure(
    head: &'static str,
    label: &'static str,
    parts: &'static [&'static str],
) -> Measure {
    Measure { head, label, parts }
}

/// All measures that a figure can show.
const ALL: [Measure; 32] = [
    measure("throughput_per_sec", "transactions a second", &[]),
    measure("latency_ms", "latency, ms", QUANTILES),
    measure("late_ms", "lateness of calls, ms", QUANTILES),
    measure("shares", "share of transactions", SHARES),
    measure("cpu_us_per_txn", "CPU time of a transaction, µs", &[]),
    measure("cores_used", "cores busy", &[]),
    measure("memory_mb", "memory, MB", &[]),
    measure("memory_peak_mb", "peak memory, MB", &[]),
    measure("fsyncs_per_sec", "fsyncs a second", &[]),
    measure("fsyncs_per_txn", "fsyncs for a transaction", &[]),
    measure("links", "between two nodes", &[]),
    measure("payload_bytes_per_txn", "compressed bytes of a transaction's batch", &[]),
    measure("wan_bytes_over_payload", "bytes sent, relative to compressed batches", &[]),
    measure("stages_us_per_txn", "CPU time of a transaction, µs", &[]),
    measure("stages_ms_per_epoch", "CPU time of an epoch on a node, ms", &[]),
    measure("waterfall", "latency of a transaction, ms", BARS),
    measure("retries", "retried aborts", &[]),
    measure("reexecuted", "share of re-executed transactions", &[]),
    measure("wan_bytes_per_txn", "bytes between nodes for a transaction", &[]),
    measure("wan_bytes_per_txn_uncompressed", "uncompressed bytes for a transaction", &[]),
    measure("wan_frames_per_txn", "frames between nodes for a transaction", &[]),
    measure("link_bytes_per_txn", "bytes between regions for a transaction", &[]),
    measure("link_packets_per_txn", "packets between regions for a transaction", &[]),
    measure("router_cpu_us_per_txn", "CPU time of the lab's router for a transaction, µs", &[]),
    measure("link_overruns", "packets dropped by a busy machine", &[]),
    measure("load_secs", "loading, s", &[]),
    measure("shed", "calls not made", &[]),
    measure("aborts", "aborted transactions", &[]),
    measure("aborted", "aborted transactions", &[]),
    measure("stalls_ms", "longest time without a commit, ms", &[]),
    measure("regions", "", &[]),
    measure("transactions", "", &[]),
];

/// Checks that a path can refer to a number.
///
/// # Errors
/// A message that suggests the most similar name.
pub fn check(path: &str) -> Result<(), String> {
    let mut parts = path.split('.');
    let head = parts.next().unwrap_or_default();
    if head == "counters" {
        return Ok(());
    }
    let Some(measure) = ALL.iter().find(|measure| measure.head == head) else {
        return Err(unknown("measure", head, ALL.iter().map(|measure| measure.head)));
    };
    match (parts.next(), measure.parts) {
        (_, []) => Ok(()),
        (Some(part), known) if known.contains(&part) => Ok(()),
        (part, known) => {
            let what = format!("part of {head}");
            Err(unknown(&what, part.unwrap_or_default(), known.iter().copied()))
        }
    }
}

/// Returns the label of the axis of a measure.
pub fn label(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('.').collect();
    // For a region or a kind of transaction, the label is that of the rest of the path.
    let of = ["regions", "transactions"].contains(&parts[0]) && parts.len() > 2;
    let of = of.then(|| format!(" ({})", parts.drain(..2).nth(1).unwrap_or_default()));
    let known = ALL.iter().find(|measure| measure.head == parts[0]);
    let label = known.map_or("", |measure| measure.label);
    let label = if label.is_empty() { parts[0] } else { label };
    let detail = parts.get(1).filter(|_| ["latency_ms", "late_ms"].contains(&parts[0]));
    let detail = detail.map(|part| format!("{} ", quantile(part))).unwrap_or_default();
    format!("{detail}{label}{}", of.unwrap_or_default())
}

/// Returns the label of the axis of several measures: the part that they have in common.
pub fn label_of_all(paths: &[String]) -> String {
    match paths {
        [] => String::new(),
        [path] => label(path),
        [path, ..] => label(path.split('.').next().unwrap_or(path)),
    }
}

/// Returns the name of one of several measures in a legend.
pub fn short(path: &str) -> String {
    let (head, rest) = path.split_once('.').unwrap_or(("", path));
    match head {
        "latency_ms" => quantile(rest).to_owned(),
        head if DEEP.contains(&head) => rest.rsplit('.').next().unwrap_or(rest).replace('_', " "),
        _ => rest.replace('_', " "),
    }
}

fn quantile(part: &str) -> &str {
    match part {
        "p50" => "median",
        "p999" => "p99.9",
        other => other,
    }
}

/// Returns the number at a path of a run's results. A table of numbers yields their sum, so
/// `memory_mb` is the total of all nodes. For a region with several nodes, which are named
/// `us-east.0` and so on, latencies and shares are averaged and all other values are summed.
pub fn find(results: &Value, path: &str) -> Option<f64> {
    number(results, path).or_else(|| {
        let (region, rest) = path.strip_prefix("regions.")?.split_once('.')?;
        let all = results.get("regions")?.as_object()?.iter();
        let is_there = |name: &str| name.strip_prefix(region).is_some_and(|it| it.starts_with('.'));
        let nodes = all.filter(|(name, _)| is_there(name)).map(|(_, node)| number(node, rest));
        let values = nodes.collect::<Option<Vec<f64>>>().filter(|values| !values.is_empty())?;
        let sum: f64 = values.iter().sum();
        let head = rest.split('.').next().unwrap_or(rest);
        let is_mean = MEANS.contains(&head);
        Some(if is_mean { sum / values.len() as f64 } else { sum })
    })
}

fn number(results: &Value, path: &str) -> Option<f64> {
    let found = path.split('.').try_fold(results, |value, part| match value {
        // Predictions have a list of regions.
        Value::Array(list) => list.iter().find(|element| element["name"] == part),
        value => value.get(part),
    })?;
    match found {
        Value::Object(table) => table.values().map(Value::as_f64).sum(),
        value => value.as_f64(),
    }
}

/// Returns the label of the axis of an option.
pub fn option_label(name: &str) -> &str {
    match name {
        "rtt" => "round trip between regions, ms",
        "regions" => "regions",
        "clients" => "clients in all regions",
        "rate" => "offered transactions a second",
        "zipf" => "exponent of Zipf's law",
        "jitter" => "jitter, ms",
        "warehouses" => "warehouses",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_numbers_and_sums() {
        let results = json!({
            "throughput_per_sec": 12.5,
            "latency_ms": {"p50": 3},
            "memory_mb": {"a": 1.0, "b": 2.0},
            "regions": [{"name": "a", "throughput_per_sec": 4}],
        });
        assert_eq!(find(&results, "throughput_per_sec"), Some(12.5));
        assert_eq!(find(&results, "latency_ms.p50"), Some(3.0));
        assert_eq!(find(&results, "memory_mb"), Some(3.0));
        assert_eq!(find(&results, "regions.a.throughput_per_sec"), Some(4.0));
        assert_eq!(find(&results, "latency_ms.p99"), None);
        assert_eq!(find(&results, "regions"), None, "names are not numbers");
    }

    #[test]
    fn a_region_is_its_nodes() {
        let node = |ms, count| {
            let again = ms / 10.0;
            json!({"latency_ms": {"p50": ms}, "committed": count, "reexecuted": again})
        };
        let results = json!({
            "regions": {"a.0": node(3.0, 5), "a.1": node(4.0, 6), "ab.0": node(90.0, 70)},
        });
        assert_eq!(find(&results, "regions.a.latency_ms.p50"), Some(3.5));
        assert_eq!(find(&results, "regions.a.committed"), Some(11.0));
        assert_eq!(find(&results, "regions.a.reexecuted"), Some(0.35));
        assert_eq!(find(&results, "regions.a.latency_ms.p99"), None);
        assert_eq!(find(&results, "regions.b.committed"), None);
    }

    #[test]
    fn measures_that_there_are_not_are_refused() {
        assert!(check("latency_ms.p99").is_ok() && check("memory_mb.region-1").is_ok());
        assert!(check("regions.us-east.latency_ms.p50").is_ok());
        assert!(check("waterfall.p99.parts_ms.agree").is_ok() && check("waterfall.p95").is_err());
        let error = check("throughput").unwrap_err();
        assert!(error.contains("did you mean \"throughput_per_sec\""), "{error}");
        assert!(check("latency_ms").unwrap_err().contains("p999"));
        assert!(check("latency_ms.p98").is_err());
    }

    #[test]
    fn labels_have_units() {
        assert_eq!(label("throughput_per_sec"), "transactions a second");
        assert_eq!(label("latency_ms.p50"), "median latency, ms");
        assert_eq!(label("regions.us-east.latency_ms.p99"), "p99 latency, ms (us-east)");
        let both = ["latency_ms.p50", "latency_ms.p99"].map(str::to_owned);
        assert_eq!(label_of_all(&both), "latency, ms");
        assert_eq!(label_of_all(&both[..1]), "median latency, ms");
        assert_eq!(short("shares.valid"), "valid");
        assert_eq!(short("waterfall.p50.parts_ms.batch"), "batch");
        assert_eq!(short("links.a.b.bytes_per_txn"), "bytes per txn");
    }
}
