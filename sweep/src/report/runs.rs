//! All details of each run, collapsed.

use maud::{Markup, html};
use serde_json::Value;

use super::{Material, badge};
use crate::chart::number;
use crate::measure;
use crate::points::Point;
use crate::results::Entry;

/// The quantiles of latencies that are shown.
const QUANTILES: [&str; 6] = ["p50", "p90", "p95", "p99", "p999", "max"];

/// Renders all runs.
pub(super) fn all(material: &Material<'_>) -> Markup {
    let Material { checked, results, facts, .. } = material;
    html! {
        @for point in &checked.points {
            @for entry in results.repeats(&point.key(&facts.build)) {
                (one(point, entry, &results.name(entry)))
            }
        }
    }
}

fn one(point: &Point, entry: &Entry, name: &str) -> Markup {
    let rate = entry.number("throughput_per_sec");
    html! {
        details {
            summary {
                (point) ", " (name) ": "
                @match (&entry.failure, rate) {
                    (Some(_), _) => span.badge.failed { "failed" },
                    (None, Some(rate)) => { (number(rate)) " transactions a second" },
                    (None, None) => { "done" },
                }
            }
            div {
                p { (badge(entry.engine)) " ended " (entry.ended) " after " (entry.took_secs) " s" }
                p { code { (entry.command) } }
                @if let Some(why) = &entry.failure { p.failed { (why) } }
                @if let Some(results) = &entry.results { (known(results)) }
            }
        }
    }
}

/// Renders the details of a run's results.
fn known(results: &Value) -> Markup {
    let check = &results["check"];
    html! {
        (parts(results))
        (pairs("Aborts, by SQLSTATE", &results["aborts"], ""))
        (shares(&results["shares"]))
        (pairs("CPU time of a transaction, µs", &results["cpu_us_per_txn"], ""))
        (pairs("Memory, MB", &results["memory_mb"], ""))
        (pairs("Longest time without a commit, ms", &results["stalls_ms"], ""))
        @if let Some(bytes) = measure::find(results, "wan_bytes_per_txn") {
            p {
                "Between nodes: " (number(bytes)) " bytes a transaction"
                @if let Some(plain) = measure::find(results, "wan_bytes_per_txn_uncompressed") {
                    " (" (number(plain)) " before compression)"
                }
                @if let Some(frames) = measure::find(results, "wan_frames_per_txn") {
                    ", " (number(frames)) " frames"
                }
            }
        }
        @if let Some(limit) = results["bottleneck"].as_str() { p { "Limited by " (limit) } }
        @if let Some(digest) = check["digest"].as_str() {
            p {
                "Check passed: replicas are identical, " code { (digest) }
                @if let Some(facts) = check["workload"].as_str() { "; " (facts) }
            }
        }
    }
}

/// Throughput and latencies, in total, of each region, and of each kind of transaction.
fn parts(results: &Value) -> Markup {
    let mut rows: Vec<(String, &Value)> = vec![("all".to_owned(), results)];
    for part in ["regions", "transactions"] {
        match &results[part] {
            Value::Object(table) => {
                rows.extend(table.iter().map(|(name, value)| (name.clone(), value)));
            }
            Value::Array(list) => {
                rows.extend(list.iter().filter_map(|value| {
                    value["name"].as_str().map(|name| (name.to_owned(), value))
                }))
            }
            _ => {}
        }
    }
    let known: Vec<&str> = QUANTILES
        .into_iter()
        .filter(|quantile| results["latency_ms"].get(quantile).is_some())
        .collect();
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th scope="col" { "" }
                        th scope="col" { "txn/s" }
                        @for quantile in &known { th scope="col" { (quantile) " ms" } }
                    }
                }
                tbody {
                    @for (name, value) in rows {
                        tr {
                            th scope="row" { (name) }
                            td { (amount(&value["throughput_per_sec"])) }
                            @for quantile in &known {
                                td { (amount(&value["latency_ms"][*quantile])) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn amount(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), number)
}

/// Renders a small table of numbers as a sentence, or one number.
fn pairs(title: &str, table: &Value, unit: &str) -> Markup {
    let words = match table {
        Value::Object(table) => {
            let pair = |(name, value): (&String, &Value)| format!("{name} {}{unit}", amount(value));
            table.iter().map(pair).collect::<Vec<_>>().join(", ")
        }
        Value::Number(_) => amount(table),
        _ => String::new(),
    };
    html! { @if !words.is_empty() { p { (title) ": " (words) } } }
}

fn shares(shares: &Value) -> Markup {
    let Some(table) = shares.as_object().filter(|table| !table.is_empty()) else {
        return html! {};
    };
    let word = |(name, share): (&String, &Value)| {
        format!("{} % {name}", number(share.as_f64().unwrap_or(0.0) * 100.0))
    };
    html! { p { "Executions: " (table.iter().map(word).collect::<Vec<_>>().join(", ")) } }
}
