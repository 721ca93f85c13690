//! The words of Tiga.

use pangea_core::codec::Reader;
use pangea_protocols::minerva::batch::Batch;
use pangea_protocols::streams;
use pangea_protocols::tiga::{Decided, Message, Options, Suffix, Tiga};

use super::{COMPLETE, Transcribed, agreement, presence_message, transfer_message, u64_of};

impl Transcribed for Tiga {
    /// It has no batches.
    type Batch = Batch;

    fn of_streams(_: streams::Message) -> Message {
        unreachable!("Tiga has no logs of batches")
    }

    fn agreement(bytes: &[u8]) -> String {
        agreement(bytes, |_, decided: &Decided| match decided {
            Decided::View { number, leaders, .. } => {
                let leaders: Vec<String> = leaders.iter().map(|it| it.to_string()).collect();
                format!("view {number} of {}", leaders.join(", "))
            }
            Decided::Start { number, logs, .. } => {
                let logs: Vec<String> = logs.iter().map(|log| cells(log)).collect();
                format!("the logs of view {number}: {}", logs.join("; "))
            }
        })
    }

    fn record(kind: u8, rest: &[u8]) -> Option<String> {
        match kind {
            14 => Some("transactions".to_owned()),
            15 => {
                let from = &mut Reader::new(rest);
                from.varint("base").expect(COMPLETE);
                from.varint("settled").expect(COMPLETE);
                Some(format!("the log, {}", cells(from.rest())))
            }
            16 => Some(format!("that it follows view {}", u64_of(rest))),
            17 => Some("its ceiling".to_owned()),
            _ => None,
        }
    }

    fn message(message: &Message) -> String {
        match message {
            Message::Presence(message) => presence_message(message),
            Message::Transfer(message) => transfer_message(message),
            Message::Submit { transactions } => format!("Submit {}", count(transactions)),
            Message::LogSync { suffix, .. } => format!("LogSync, {}", cells(suffix)),
            Message::Synced { view, upto } => format!("Synced, view {view}, up to cell {upto}"),
            Message::Fetch { txns } => format!("Fetch {}", txns.len()),
            Message::Found { transactions } => format!("Found {}", count(transactions)),
            Message::Agreement { .. } => "Agreement".to_owned(),
            Message::ViewChange { view, .. } => format!("ViewChange, view {view}"),
            Message::StartView { suffix } => format!("StartView, {}", cells(suffix)),
            Message::Progress { view, last, published, is_leaving, replaced, .. } => {
                let leaving = if *is_leaving { ", leaving" } else { "" };
                let replaced = if *replaced > 0 { ", replaced" } else { "" };
                format!(
                    "Progress, view {view}, cell {last}, published {published}{leaving}{replaced}"
                )
            }
            Message::FreshRequest { .. } => "FreshRequest".to_owned(),
            Message::FreshReply { version, .. } => format!("FreshReply {}", version.0),
            Message::FastReplies { view, .. } => format!("FastReplies, view {view}"),
            Message::Prepare { view, transactions } => {
                format!("Prepare, view {view}, {}", count(transactions))
            }
            Message::Prepared { view } => format!("Prepared, view {view}"),
            Message::Proposal { view, .. } => format!("Proposal, view {view}"),
            Message::View { view, started, .. } => format!("View {view}, begun {started}"),
            Message::Notices { view, .. } => format!("Notices, view {view}"),
            Message::Subscribe { kept, has } => format!("Subscribe after {}", (*kept).max(has.0)),
            Message::Resubscribe { has } => format!("Resubscribe after {}", has.0),
            Message::Truncated { upto } => format!("Truncated up to {}", upto.0),
            Message::Unsubscribe {} => "Unsubscribe".to_owned(),
            Message::Committed { view, through, .. } => {
                format!("Committed, view {view}, through {through}")
            }
            Message::Close { view, cell, .. } => format!("Close, view {view}, cell {cell}"),
            Message::Closed { view, cell } => format!("Closed, view {view}, cell {cell}"),
            Message::Items { .. } => "Items".to_owned(),
            Message::Outcome { version, .. } => format!("Outcome in {}", version.0),
            Message::LookupRequest { .. } => "LookupRequest".to_owned(),
            Message::LookupReply { .. } => "LookupReply".to_owned(),
            Message::Digests { digests } => format!("Digests of {}", digests.len()),
        }
    }

    fn transactions(_: &Batch) -> Vec<String> {
        Vec::new()
    }

    fn by_hand() -> Options {
        Options::default()
    }
}

/// The number of transactions.
fn count(transactions: &[u8]) -> u64 {
    Reader::new(transactions).varint("transactions").expect(COMPLETE)
}

fn cells(suffix: &[u8]) -> String {
    let Suffix { view, after, cells } = Suffix::decode(suffix).expect(COMPLETE);
    let cells = cells.iter().map(|cell| {
        let txns: Vec<String> = cell.txns.iter().map(|(txn, _)| txn.to_string()).collect();
        format!(" {}[{}]", cell.version.0, txns.join(" "))
    });
    format!("view {}, after cell {}:{}", view.0, after.0, cells.collect::<String>())
}
