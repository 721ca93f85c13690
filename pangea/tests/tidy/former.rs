//! Checks for former names of types, modules and functions, which must not come back in code or
//! documents.

use super::source::{Finding, Source, idents};

/// Former names, each with the name that replaced it. Only names that mean nothing else.
const FORMER: [(&str, &str); 46] = [
    ("AskOutcomes", "OutcomesRequest"),
    ("Asker", "Requester"),
    ("Beyond", "RemoteRows, RemoteSnapshot"),
    ("BrokenOff", "SwarmAborted"),
    ("Carried", "LinkTraffic"),
    ("DIVIDES", "PARTITIONED"),
    ("Divides", "SupportsPartitions"),
    ("Door", "AccessPoint"),
    ("Drained", "Ready"),
    ("Gathered", "ReadsBuilder, MergedRows"),
    ("Gauge", "UsageProbe"),
    ("Keeper", "ColdThreads"),
    ("LeftItsFootprint", "FootprintViolated"),
    ("Losing", "RegionLoss"),
    ("Mend", "FaultEnd"),
    ("NotTaken", "ForwardRejected"),
    ("OfCut", "CutId"),
    ("PeerSession", "BaselineSession"),
    ("Picture", "CatalogSnapshot"),
    ("Preparer", "SegmentAllocator"),
    ("Pushed", "PushOutcome"),
    ("PutAway", "Eviction"),
    ("Recollection", "RejoinReply"),
    ("Reign", "MasterTerm"),
    ("Remembered", "DurableState"),
    ("Saw", "ReadVersion"),
    ("Scout", "ReconnaissanceContext"),
    ("Scouted", "Reconnaissance"),
    ("Sealer", "FrameEncoder"),
    ("Several", "ReplicatedLog"),
    ("Spot", "Placement"),
    ("Standing", "CurrentVersion"),
    ("Theirs", "BaselineTarget"),
    ("Unplaced", "UnsequencedRequest"),
    ("Warmer", "CachePrefetcher"),
    ("Went", "ShardOutcome"),
    ("Wish", "RequestMastership"),
    ("Witness", "LatencyObserver"),
    ("Wrote", "WriteSetRef"),
    ("Yield", "TransferMastership"),
    ("came_by", "predecessors"),
    ("cold_mark", "cold_placeholder"),
    ("hold_on", "pin_on"),
    ("pangea_peers", "pangea_baselines"),
    ("patiently", "with_wait_notice"),
    ("put_away", "evict, evict_chosen"),
];

/// Finds former names in code.
pub fn check(files: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for ident in idents(file.tokens()) {
            let is_it = |(former, _): &&(&str, &str)| ident == former;
            if let Some(former) = FORMER.iter().find(is_it) {
                findings.push(finding(file, ident.span().start().line, former));
            }
        }
    }
    findings
}

/// Finds former names in documents. Those that are also a word count in backticks only.
pub fn check_documents(docs: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for doc in docs {
        for (at, line) in doc.text.lines().enumerate() {
            for (index, part) in line.split('`').enumerate() {
                let names = part.split(|c: char| !c.is_alphanumeric() && c != '_');
                for name in names.filter(|name| index % 2 == 1 || is_no_word(name)) {
                    let former = FORMER.iter().find(|(former, _)| name == *former);
                    findings.extend(former.map(|former| finding(doc, at + 1, former)));
                }
            }
        }
    }
    findings
}

fn finding(file: &Source, line: usize, (former, now): &(&str, &str)) -> Finding {
    file.finding(line, format!("`{former}` is a former name: it is {now} now"))
}

/// Returns whether a name has several parts, as in `NotTaken` and `put_away`.
fn is_no_word(name: &str) -> bool {
    let is_seam = |(a, b): (char, char)| a.is_lowercase() && b.is_uppercase();
    name.contains('_') || name.chars().zip(name.chars().skip(1)).any(is_seam)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_name_is_found_in_code_only() {
        let found = |text: &str| check(&[Source::new("core/src/a.rs", text)]).len();
        assert_eq!(found("//! A module.\nuse crate::Went;\nfn f() { g(Went::Left) }\n"), 2);
        assert_eq!(found("//! `Went`.\nfn went() -> &'static str { \"Went\" }\n"), 0);
    }

    #[test]
    fn a_former_name_is_found_in_documents_unless_it_is_a_word() {
        let found = |text: &str| check_documents(&[Source::new("docs/A.md", text)]).len();
        assert_eq!(found("The master answers NotTaken,\nsee `Went` and `node::put_away`.\n"), 3);
        assert_eq!(found("Several nodes. `Several nodes` is the name of none.\n"), 1);
        assert_eq!(found("Beyond the `limit`. A Wish.\n"), 0);
    }
}
