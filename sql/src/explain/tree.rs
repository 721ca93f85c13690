//! Plans as JSON and XML, in PostgreSQL's layout.

use super::output::{Summary, committed};
use super::{Detail, Node};
use crate::syntax::explain::Options;
use crate::types::json::Json;

/// XML namespace of PostgreSQL's plans.
const NAMESPACE: &str = "http://www.postgresql.org/2009/explain";

/// Properties, by name.
type Fields = Vec<(&'static str, Said)>;

enum Said {
    Detail(Detail),
    Fields(Fields),
    Plans(Vec<Fields>),
}

fn details(details: impl IntoIterator<Item = (&'static str, Detail)>) -> Fields {
    details.into_iter().map(|(name, detail)| (name, Said::Detail(detail))).collect()
}

/// Returns all properties of a plan.
fn said(plan: &Node, options: Options, summary: &Summary<'_>) -> Fields {
    let mut fields = vec![("Plan", Said::Fields(step(plan, options)))];
    let number = |number| Said::Detail(Detail::Number(number));
    if options.has_summary {
        fields.push(("Planning Time", number(summary.planning_ms)));
    }
    let Some(profile) = summary.profile else { return fields };
    if options.has_summary {
        fields.push(("Execution Time", number(profile.execution_ms())));
    }
    if let Some((title, mut parts)) = committed(options, summary) {
        let title = title.trim_start_matches("Commit: ").to_owned();
        parts.insert(0, ("Way", Detail::Text(title)));
        fields.push(("Commit", Said::Fields(details(parts))));
    }
    fields
}

fn step(node: &Node, options: Options) -> Fields {
    let text = |text: &str| Detail::Text(text.to_owned());
    let mut fields = vec![("Node Type", text(&node.kind))];
    fields.extend(node.relationship.map(|it| ("Parent Relationship", text(it))));
    fields.extend(node.role.as_deref().map(|role| ("Subplan Name", text(role))));
    fields.push(("Parallel Aware", Detail::Bool(false)));
    fields.push(("Async Capable", Detail::Bool(false)));
    fields.extend(node.facts.iter().cloned());
    if let (true, Some(rows)) = (options.has_costs, node.rows) {
        fields.push(("Plan Rows", Detail::Count(rows)));
    }
    if let Some(actual) = node.actual.filter(|_| options.is_analyzed) {
        if options.has_timing {
            fields.push(("Actual Startup Time", Detail::Number(actual.startup_ms)));
            fields.push(("Actual Total Time", Detail::Number(actual.total_ms)));
        }
        fields.push(("Actual Rows", Detail::Count(actual.rows)));
        fields.push(("Actual Loops", Detail::Count(actual.loops)));
    }
    fields.extend(node.details.iter().cloned());
    let mut fields = details(fields);
    if !node.children.is_empty() {
        let plans = node.children.iter().map(|child| step(child, options)).collect();
        fields.push(("Plans", Said::Plans(plans)));
    }
    fields
}

/// Formats a plan as JSON.
pub(super) fn json(plan: &Node, options: Options, summary: &Summary<'_>) -> String {
    let mut out = String::from("[\n  {\n");
    write_json(&said(plan, options, summary), 2, &mut out);
    out.push_str("\n  }\n]");
    out
}

fn write_json(fields: &Fields, indent: usize, out: &mut String) {
    let pad = "  ".repeat(indent);
    for (at, (name, said)) in fields.iter().enumerate() {
        out.push_str(if at > 0 { ",\n" } else { "" });
        out.push_str(&format!("{pad}\"{name}\": "));
        match said {
            Said::Detail(detail) => out.push_str(&detail_json(detail)),
            Said::Fields(fields) => {
                out.push_str("{\n");
                write_json(fields, indent + 1, out);
                out.push_str(&format!("\n{pad}}}"));
            }
            Said::Plans(plans) => {
                out.push_str("[\n");
                for (at, plan) in plans.iter().enumerate() {
                    out.push_str(if at > 0 { ",\n" } else { "" });
                    out.push_str(&format!("{pad}  {{\n"));
                    write_json(plan, indent + 2, out);
                    out.push_str(&format!("\n{pad}  }}"));
                }
                out.push_str(&format!("\n{pad}]"));
            }
        }
    }
}

fn detail_json(detail: &Detail) -> String {
    let text = |text: &String| Json::String(text.clone()).to_string();
    match detail {
        Detail::Text(said) => text(said),
        Detail::List(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            format!("[{}]", items.join(", "))
        }
        Detail::Count(count) => count.to_string(),
        Detail::Number(number) => format!("{number:.3}"),
        Detail::Bool(value) => value.to_string(),
    }
}

/// Formats a plan as XML.
pub(super) fn xml(plan: &Node, options: Options, summary: &Summary<'_>) -> String {
    let mut out = format!("<explain xmlns=\"{NAMESPACE}\">\n  <Query>\n");
    write_xml(&said(plan, options, summary), 2, &mut out);
    out.push_str("  </Query>\n</explain>");
    out
}

fn write_xml(fields: &Fields, indent: usize, out: &mut String) {
    let pad = "  ".repeat(indent);
    for (name, said) in fields {
        let tag = name.replace(' ', "-");
        match said {
            Said::Detail(Detail::List(items)) => {
                let item = |item: &String| format!("{pad}  <Item>{}</Item>\n", escaped(item));
                let items: String = items.iter().map(item).collect();
                out.push_str(&format!("{pad}<{tag}>\n{items}{pad}</{tag}>\n"));
            }
            Said::Detail(detail) => {
                let said = match detail {
                    Detail::Text(text) => escaped(text),
                    other => detail_json(other),
                };
                out.push_str(&format!("{pad}<{tag}>{said}</{tag}>\n"));
            }
            Said::Fields(fields) => {
                out.push_str(&format!("{pad}<{tag}>\n"));
                write_xml(fields, indent + 1, out);
                out.push_str(&format!("{pad}</{tag}>\n"));
            }
            Said::Plans(plans) => {
                out.push_str(&format!("{pad}<{tag}>\n"));
                for plan in plans {
                    out.push_str(&format!("{pad}  <Plan>\n"));
                    write_xml(plan, indent + 2, out);
                    out.push_str(&format!("{pad}  </Plan>\n"));
                }
                out.push_str(&format!("{pad}</{tag}>\n"));
            }
        }
    }
}

/// Escapes text for use in an XML element.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\r' => out.push_str("&#x0d;"),
            other => out.push(other),
        }
    }
    out
}
