//! Checks for former names of types, modules and functions, which must not come back in code or
//! documents.

use super::source::{Finding, Source, idents};

/// Former names, each with the name that replaced it. Only names that mean nothing else.
const FORMER: [(&str, &str); 90] = [
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
    ("OF_REIGN", "OF_MASTER"),
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
    ("Told", "Ended, OperationsOf"),
    ("Unplaced", "UnsequencedRequest"),
    ("Warmer", "CachePrefetcher"),
    ("Went", "ShardOutcome"),
    ("Wish", "RequestMastership"),
    ("Witness", "LatencyObserver"),
    ("Wrote", "WriteSetRef"),
    ("YIELD_MAX", "TRANSFER_MAX"),
    ("Yield", "TransferMastership"),
    ("ask_others", "replace_unreachable_sources"),
    ("ask_outcomes", "request_outcomes"),
    ("ask_to_lead", "request_mastership"),
    ("came", "received"),
    ("came_by", "predecessors"),
    ("cold_mark", "cold_placeholder"),
    ("confirm_or_give_up", "confirm_or_discard"),
    ("forget_told", "forget_reported"),
    ("give_way", "transfer_mastership"),
    ("go_on_alone", "propose_alone"),
    ("goes_on", "is_continued"),
    ("hold_if_cold", "delay_if_cold"),
    ("hold_on", "pin_on"),
    ("is_asked_again", "has_resubscribed"),
    ("is_kept_for", "outcomes_retained_for"),
    ("is_of_reign", "is_of_master"),
    ("keep_handed_on", "retain_handed_on"),
    ("keep_of_others", "retain_for_peer"),
    ("let_overwrite", "overwrite_unneeded"),
    ("look_again", "repeat_lookups"),
    ("missed_at", "truncated_at"),
    ("pangea_peers", "pangea_baselines"),
    ("patiently", "with_wait_notice"),
    ("put_away", "evict, evict_chosen"),
    ("reign", "master_term"),
    ("said_to_be", "with_decided"),
    ("scout", "run_reconnaissance"),
    ("scouted", "reconnaissance"),
    ("send_items", "send_results"),
    ("send_turn", "note_begun, send_checkpoint_turn"),
    ("settle_mine", "settle_local_request"),
    ("take_items", "apply_results"),
    ("take_mine", "remove_local_request"),
    ("take_recollection", "decode_rejoin_state"),
    ("takes_wish", "take_leadership_request"),
    ("tell_decided", "send_slices_decided"),
    ("tell_early", "answer_from_peer"),
    ("tell_frozen", "send_frozen"),
    ("tell_gone", "drop_cold_copies"),
    ("tell_void", "answer_void"),
    ("told_upto", "outcomes_upto"),
    ("turn_to", "switch_source"),
    ("update_reign", "update_master_term"),
    ("whose", "origin"),
    ("wish", "requests_leadership"),
    ("wishes", "preferred_tops"),
    ("yours", "receiver_identity"),
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
