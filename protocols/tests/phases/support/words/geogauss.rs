//! The words of GeoGauss.

use pangea_core::txn::Write;
use pangea_protocols::geogauss::batch::{Batch, TxnRecord, Work};
use pangea_protocols::geogauss::views::{Change, Seal, View};
use pangea_protocols::geogauss::{GeoGauss, Message, Options};
use pangea_protocols::streams;

use super::{
    NEVER_MS, Transcribed, agreement, locks, name_of, nodes, presence_message, program, sets,
    streams_message, text, transfer_message, u64_of, vector,
};

impl Transcribed for GeoGauss {
    type Batch = Batch;

    fn of_streams(message: streams::Message) -> Message {
        message.into()
    }

    fn agreement(bytes: &[u8]) -> String {
        agreement(bytes, |number, change: &Change| match change {
            Change::Seal(Seal { out, joining, .. }) => {
                format!("seal {number}{}{}", nodes("removes", out), nodes("readmits", joining))
            }
            Change::View { view, .. } => format!("view {}: {}", view.number.0, members(view)),
        })
    }

    fn record(kind: u8, rest: &[u8]) -> Option<String> {
        match kind {
            10 => Some(format!("that it may end epochs up to {}", u64_of(rest))),
            11 => Some("its report on a seal".to_owned()),
            12 => Some("its view".to_owned()),
            _ => None,
        }
    }

    fn message(message: &Message) -> String {
        match message {
            Message::Streams(message) => streams_message::<Self>(message),
            Message::Presence(message) => presence_message(message),
            Message::Transfer(message) => transfer_message(message),
            Message::Eof { through, reached, last, .. } => {
                let ahead = if reached < through { ", ahead" } else { "" };
                format!("Eof through epoch {}{ahead}, last batch {}", through.0, last.0)
            }
            Message::Agreement { .. } => "Agreement".to_owned(),
            Message::Report { seal, .. } => format!("Report on seal {seal}"),
            Message::Progress { applied, durable, view, heads, .. } => format!(
                "Progress, view {view}, applied {}, durable {}, heads {}",
                applied.0,
                durable.0,
                vector(heads)
            ),
            Message::MembershipRequest { .. } => "MembershipRequest".to_owned(),
            Message::Membership { is_member: false, .. } => "Membership, none".to_owned(),
            Message::Membership { known, .. } => format!("Membership, known epoch {}", known.0),
            Message::Stopping { is_settled: false } => "Stopping, with transactions".to_owned(),
            Message::Stopping { is_settled: true } => "Stopping, settled".to_owned(),
            Message::Digests { digests } => {
                let epochs: Vec<u64> = digests.iter().map(|digest| digest.epoch.0).collect();
                format!("Digests of epochs {epochs:?}")
            }
            Message::Keep { bytes, .. } => format!("Keep {}", name_of::<Self>(bytes)),
            Message::Kept { head } => format!("Kept up to {}", head.0),
            Message::Collected { upto } => format!("Collected up to {}", upto.0),
            Message::CacheRequest { .. } => "CacheRequest".to_owned(),
            Message::CacheHead { head, .. } => format!("CacheHead {}", head.0),
            Message::Ends { ends } => {
                let ends = ends.iter().map(|it| {
                    let unheard = if it.is_heard { "" } else { ", not heard" };
                    format!("{} through {}{unheard}", it.source, it.through.0)
                });
                format!("Ends, {}", ends.collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn transactions(batch: &Self::Batch) -> Vec<String> {
        let end = batch.is_last.then(|| format!("the end of epoch {}", batch.epoch.0));
        batch.records.iter().map(record_of_geogauss).chain(end).collect()
    }

    /// A replica ends an epoch after a hundred years, when its timer fires, or when a peer has.
    fn by_hand() -> Options {
        Options {
            epoch_ms: CENTURY_MS,
            batch_ms: NEVER_MS,
            horizon_ms: 1_000 * CENTURY_MS,
            silence_epochs: 0,
            ..Options::default()
        }
    }
}

const CENTURY_MS: u64 = 100 * 365 * 24 * 3_600_000;

fn members(view: &View) -> String {
    let members: Vec<String> = view.members().map(|node| node.to_string()).collect();
    members.join(" ")
}

fn record_of_geogauss(record: &TxnRecord) -> String {
    let txn = record.inputs.txn;
    let attempt = match record.inputs.attempt {
        0 => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    match &record.work {
        Work::Merge { base, checks } => {
            let writes: Vec<Write> = checks.writes.iter().map(|it| it.write.clone()).collect();
            let checked = checks.writes.iter().filter(|it| it.is_checked);
            let checked: Vec<String> = checked.map(|it| text(&it.write.key)).collect();
            let checked = match checked.is_empty() {
                true => String::new(),
                false => format!(", checks {}", checked.join(" ")),
            };
            let adds = checks.adds.iter();
            let adds =
                adds.map(|add| format!(", adds {} to {}", text(&add.amount), text(&add.key)));
            let adds: String = adds.collect();
            let sets = sets(&checks.reads, &writes);
            format!("{txn}: ran on epoch {}{attempt}, {sets}{checked}{adds}", base.0)
        }
        Work::InOrder { program: it, footprint } => {
            let locks = locks(footprint.as_ref());
            format!("{txn} {}: not run{attempt}, {locks}", program(it))
        }
    }
}
