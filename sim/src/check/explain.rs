//! Describes transactions, keys and cycles in English.

use super::graph::{Edge, Kind, Walk};
use crate::record::{Class, Name, Op, Outcome, Range, Recorded, Txn};

/// Describes a transaction by its number, client and time.
pub fn txn(recorded: &Recorded, txn: u32) -> String {
    let Txn { id, client, begin, end, level, note, is_final, .. } = &recorded.txns[txn as usize];
    if *is_final {
        return format!("T{id} (the final state)");
    }
    let note = note.as_ref().map_or(String::new(), |note| format!(", {note}"));
    let level = level.map_or(String::new(), |level| format!(", {level}"));
    let end = end.map_or("?".to_owned(), |end| end.to_string());
    format!("T{id} (client {client}{level}{note}, {begin} to {end})")
}

/// Formats a list of names.
pub fn values(recorded: &Recorded, values: &[Name]) -> String {
    let all: Vec<String> = values.iter().map(|v| recorded.names.atom(*v).to_string()).collect();
    format!("[{}]", all.join(", "))
}

/// Formats a range.
pub fn range(recorded: &Recorded, range: Range) -> String {
    let bound = |bound: Option<Name>| {
        bound.map_or(String::new(), |name| recorded.names.atom(name).to_string())
    };
    format!("{}..{}", bound(range.from), bound(range.to))
}

/// Describes an outcome.
pub fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Committed => "acknowledged",
        Outcome::Unknown => "partly visible",
        Outcome::Aborted => "aborted",
    }
}

/// Describes a cycle, one line for each of its transactions.
pub fn cycle(recorded: &Recorded, class: &dyn Fn(Name) -> Class, cycle: &Walk) -> String {
    let is_txn = |vertex: u32| (vertex as usize) < recorded.txns.len();
    // Begin at a transaction, so that each path through junctions has both of its ends.
    let first = cycle.iter().position(|(from, _)| is_txn(*from)).unwrap_or_default();
    let (mut lines, mut way) = (Vec::new(), Vec::new());
    let mut from = cycle[first].0;
    for (_, edge) in cycle[first..].iter().chain(&cycle[..first]) {
        way.push(edge);
        if !is_txn(edge.to) {
            continue;
        }
        // The first edge has the reason, the last one the next version.
        let why = reason(recorded, class, from, &Edge { kind: way[0].kind, ..*edge });
        let id = recorded.txns[edge.to as usize].id;
        lines.push(format!("\n    {}: {why} T{id}", txn(recorded, from)));
        from = edge.to;
        way.clear();
    }
    format!("{} transactions each come before the next:{}", lines.len(), lines.concat())
}

fn reason(recorded: &Recorded, class: &dyn Fn(Name) -> Class, from: u32, edge: &Edge) -> String {
    let Some(key) = edge.key else {
        return match edge.kind {
            Kind::Rt => "it ended before the beginning of".to_owned(),
            _ => "it ended before the final state was read by".to_owned(),
        };
    };
    let is_list = class(key) == Class::List;
    let k = recorded.names.atom(key);
    let value = edge.value.map(|value| recorded.names.atom(value));
    match (edge.kind, value, is_list) {
        (Kind::Ww, Some(v), true) => {
            format!("to list {k}, it appended before {v} was appended by")
        }
        (Kind::Wr, Some(v), true) => format!("it appended {v} to list {k}, which was read by"),
        (Kind::Rw, Some(v), true) => format!("it read list {k} without {v}, appended by"),
        (Kind::Ww, Some(v), false) => format!("it wrote {k} before {v} was written to it by"),
        (Kind::Ww, None, _) => format!("it wrote {k} before it was deleted by"),
        (Kind::Wr, Some(v), false) => format!("it wrote {v} to {k}, which was read by"),
        (Kind::Wr, None, _) => format!("it deleted {k}, which was found deleted by"),
        (Kind::Rw, Some(v), false) => format!("it read {k} before {v} was written to it by"),
        (Kind::Rw, None, _) => format!("it read {k} before it was deleted by"),
        (Kind::PredicateRw, ..) => {
            let scan = scan_over(recorded, from, key);
            let of = value.map_or(String::new(), |v| format!(" with {v}"));
            format!("its scan of {scan} did not find row {k}, inserted{of} by")
        }
        (Kind::Rt | Kind::On, ..) => unreachable!("real-time and junction edges have no key"),
    }
}

/// Describes the scan of a transaction that did not find a key.
fn scan_over(recorded: &Recorded, txn: u32, key: Name) -> String {
    let ops = &recorded.txns[txn as usize].ops;
    let scan = ops.iter().find_map(|op| match op {
        Op::Scan { range, rows } => {
            let is_missing = rows.iter().all(|(row, _)| *row != key);
            (is_missing && range.contains(&recorded.names, key)).then_some(*range)
        }
        _ => None,
    });
    scan.map_or("its range".to_owned(), |scan| range(recorded, scan))
}
