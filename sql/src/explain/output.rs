//! Plans as text, in PostgreSQL's layout.

use std::time::Duration;

use super::{Detail, Node, tree};
use crate::profile::{Actual, Commit, CommitPath, Profile};
use crate::syntax::explain::{Format, Options};

/// Indentation of a node's properties.
const INDENT: usize = 2;
/// Arrow before a child node.
const ARROW: &str = "->  ";

/// The information shown below a plan.
pub(crate) struct Summary<'a> {
    pub planning_ms: f64,
    pub profile: Option<&'a Profile>,
    /// Whether the statement is part of a transaction that commits later.
    pub is_in_transaction: bool,
}

/// Returns the rows of the column `QUERY PLAN`.
pub(crate) fn shown(plan: &Node, options: Options, summary: &Summary<'_>) -> Vec<String> {
    match options.format {
        Format::Text => {
            let mut lines = Vec::new();
            text(plan, options, None, &mut lines);
            below(options, summary, &mut lines);
            lines
        }
        Format::Json => vec![tree::json(plan, options, summary)],
        Format::Xml => vec![tree::xml(plan, options, summary)],
    }
}

fn text(node: &Node, options: Options, indent: Option<usize>, lines: &mut Vec<String>) {
    let mut line = match indent {
        None => node.title.clone(),
        Some(indent) => format!("{}{ARROW}{}", " ".repeat(indent), node.title),
    };
    if let (true, Some(rows)) = (options.has_costs, node.rows) {
        line.push_str(&format!("  (rows={rows})"));
    }
    if let Some(actual) = node.actual.filter(|_| options.is_analyzed) {
        line.push_str(&took(actual, options));
    }
    lines.push(line);
    let inner = indent.map_or(INDENT, |indent| indent + ARROW.len() + INDENT);
    for (name, detail) in &node.details {
        // As in PostgreSQL, the text format omits zero counts.
        if *detail != Detail::Count(0) {
            lines.push(format!("{}{name}: {}", " ".repeat(inner), detail_text(detail)));
        }
    }
    for child in &node.children {
        match &child.role {
            None => text(child, options, Some(inner), lines),
            Some(role) => {
                lines.push(format!("{}{role}", " ".repeat(inner)));
                text(child, options, Some(inner + INDENT), lines);
            }
        }
    }
}

fn took(actual: Actual, options: Options) -> String {
    let Actual { startup_ms, total_ms, rows, loops } = actual;
    match (loops, options.has_timing) {
        (0, _) => " (never executed)".to_owned(),
        (_, true) => {
            format!(" (actual time={startup_ms:.3}..{total_ms:.3} rows={rows} loops={loops})")
        }
        (_, false) => format!(" (actual rows={rows} loops={loops})"),
    }
}

fn detail_text(detail: &Detail) -> String {
    match detail {
        Detail::Text(text) => text.clone(),
        Detail::List(items) => items.join(", "),
        Detail::Count(count) => count.to_string(),
        Detail::Number(number) => format!("{number:.3}"),
        Detail::Bool(value) => if *value { "yes" } else { "no" }.to_owned(),
    }
}

fn below(options: Options, summary: &Summary<'_>, lines: &mut Vec<String>) {
    if options.has_summary {
        lines.push(format!("Planning Time: {:.3} ms", summary.planning_ms));
    }
    let Some(profile) = summary.profile else { return };
    if options.has_summary {
        lines.push(format!("Execution Time: {:.3} ms", profile.execution_ms()));
    }
    let Some((title, details)) = committed(options, summary) else { return };
    lines.push(title);
    for (name, detail) in details {
        let unit = if matches!(detail, Detail::Number(_)) { " ms" } else { "" };
        lines.push(format!("{}{name}: {}{unit}", " ".repeat(INDENT), detail_text(&detail)));
    }
}

/// Returns a title and the properties of the commit.
pub(super) fn committed(
    options: Options,
    summary: &Summary<'_>,
) -> Option<(String, Vec<(&'static str, Detail)>)> {
    let Some(commit) = summary.profile?.commit() else {
        let title = "Commit: with the transaction, certified by its reads and writes";
        return summary.is_in_transaction.then(|| (title.to_owned(), Vec::new()));
    };
    let Commit { way, bytes, reads, writes, snapshot, txn, version, .. } = commit;
    let title = match way {
        CommitPath::Program => "Commit: as a program, at its place in the order",
        CommitPath::Certified => "Commit: certified by its reads and writes on this node",
    };
    let count = |count: usize| Detail::Count(count as u64);
    let mut details = vec![("Transaction", Detail::Text(txn.to_string()))];
    match way {
        CommitPath::Program => details.push(("Program Bytes", count(bytes))),
        CommitPath::Certified => details.push(("Reads", count(reads))),
    }
    details.push(("Writes", count(writes)));
    let steps = format!("measured in a run on snapshot {snapshot}, before it was submitted");
    if way == CommitPath::Program {
        details.push(("Steps", Detail::Text(steps)));
    }
    details.push(("Version", Detail::Text(version.to_string())));
    details.push(("Run Again in Order", Detail::Bool(commit.ran_again)));
    details.push(("Submissions", Detail::Count(commit.tries.into())));
    if options.has_timing {
        let times = commit.times;
        let ms = |time: Duration| Detail::Number(time.as_secs_f64() * 1e3);
        let parts = [
            ("Queue Time", times.queue),
            ("Order Time", times.order),
            ("Durability Time", times.durability),
            ("Answer Time", times.answer),
        ];
        details.extend(parts.into_iter().filter_map(|(name, time)| Some((name, ms(time?)))));
        details.push(("Commit Time", ms(times.total)));
    }
    Some((title.to_owned(), details))
}
