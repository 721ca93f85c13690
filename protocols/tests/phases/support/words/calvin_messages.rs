//! The words of Calvin.

use pangea_protocols::calvin::Message;

use super::{keys_of, lookup_keys, lookup_rows, request, results_of, unnamed};

/// A message that only Calvin has.
pub(super) fn message(message: &Message) -> String {
    match message {
        Message::Inputs(_) => unreachable!("input_message has those"),
        Message::RequestMastership {} => "RequestMastership".to_owned(),
        Message::CheckpointTurn { wants, is_frozen, known } => format!(
            "CheckpointTurn, {}, {}, knows cut {}",
            if *wants { "wanted" } else { "not wanted" },
            if *is_frozen { "frozen" } else { "not frozen" },
            known.0
        ),
        Message::Subscribe { slices, results, is_continued } => {
            let on = if *is_continued { ", goes on" } else { "" };
            format!("Subscribe, slices after {}, items after {}{on}", slices.0, results.0)
        }
        Message::Unsubscribe {} => "Unsubscribe".to_owned(),
        Message::Slice { slice } => {
            let requests = slice.batches.iter().flat_map(|part| &part.requests);
            let all: Vec<String> = requests.map(request).collect();
            let all = if all.is_empty() { "nothing".to_owned() } else { all.join("; ") };
            let early = if slice.is_decided { "" } else { ", early" };
            format!("Slice of {}, epoch {}{early}: {all}", slice.shard, slice.epoch.0)
        }
        Message::SliceChunk { chunk } => format!("SliceChunk, epoch {}", chunk.epoch.0),
        Message::SlicesDecided { upto, .. } => format!("SlicesDecided up to epoch {}", upto.0),
        Message::Resubscribe {} => "Resubscribe".to_owned(),
        Message::RemoteResults { results } => {
            format!("RemoteResults, epoch {}: {}", results.epoch.0, results_of(results.read()))
        }
        Message::Sealed { at, is_sealed } => format!("Sealed at {}: {is_sealed}", at.0),
        Message::ShardProgress { upto, applied, waits_for } => {
            let waits = waits_for.map_or(String::new(), |node| format!(", waits for {node}"));
            format!("ShardProgress up to {}, applied {}{waits}", upto.0, applied.0)
        }
        Message::Truncated { upto } => format!("Truncated up to {}", upto.0),
        Message::Frozen { at } => format!("Frozen at {}", at.0),
        Message::OutcomesRequest { after, is_wanted } => {
            let wanted = if *is_wanted { "wanted" } else { "not wanted" };
            format!("OutcomesRequest after {}, {wanted}", after.0)
        }
        Message::Outcomes { outcomes } => {
            format!("Outcomes, epoch {}: {}", outcomes.epoch.0, results_of(outcomes.read()))
        }
        Message::GroupProgress { least, most } => {
            format!("GroupProgress, from {} to {}", least.0, most.0)
        }
        Message::WarmRequest { keys, .. } => format!("WarmRequest {}", keys_of(keys)),
        Message::WarmReply { .. } => "WarmReply".to_owned(),
        Message::ColdMapUpdate { map } => {
            let set: u32 = map.changes.iter().map(|(_, word)| word.count_ones()).sum();
            let all = if map.is_all { "the whole map" } else { "changes of the map" };
            format!("ColdMapUpdate, {all}, rows in the changed words: {set}")
        }
        Message::LookupRequest { keys, .. } => format!("LookupRequest {}", lookup_keys(keys)),
        Message::LookupReply { rows, .. } => format!("LookupReply {}", lookup_rows(rows)),
        Message::Forward { requests } => {
            let all: Vec<String> = requests.iter().map(|(_, it)| unnamed(it)).collect();
            format!("Forward {}", all.join("; "))
        }
        Message::ForwardAccepted { accepted } => {
            format!("ForwardAccepted, requests: {}", accepted.tokens.len())
        }
        Message::ForwardRejected { tokens } => {
            format!("ForwardRejected, requests: {}", tokens.len())
        }
    }
}
