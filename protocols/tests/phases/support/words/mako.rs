//! The words of Mako.

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::SnapshotVersion;
use pangea_protocols::mako::log::Entry;
use pangea_protocols::mako::versions::{count_of, epoch_of};
use pangea_protocols::mako::{Decided, Mako, Message, Options};
use pangea_protocols::minerva::batch::Batch;
use pangea_protocols::{presence, streams};

use super::{COMPLETE, Transcribed, agreement, presence_message, rows, transfer_message};

impl Transcribed for Mako {
    /// It has no batches.
    type Batch = Batch;

    fn of_streams(_: streams::Message) -> Message {
        unreachable!("Mako has no logs of batches")
    }

    fn agreement(bytes: &[u8]) -> String {
        agreement(bytes, |_, decided: &Decided| match decided {
            Decided::Epoch { number, leader } => format!("epoch {number} of {leader}"),
            Decided::Closed { number, end } => {
                format!("the log before epoch {number} ends at {}", name_of(*end))
            }
            Decided::Leaders { number, leaders, .. } => {
                format!("epoch {number} of {leaders:?}")
            }
            Decided::ShardClosed { number, shard, closed } => {
                let closed = name_of(*closed);
                format!("shard {shard} is closed up to {closed} for epoch {number}")
            }
        })
    }

    fn record(kind: u8, rest: &[u8]) -> Option<String> {
        let from = &mut Reader::new(rest);
        let mut number = || from.varint("record").expect(COMPLETE);
        match kind {
            17 => Some(format!("that names below {} are reserved", number())),
            19 => {
                let (committed, after) = (SnapshotVersion(number()), SnapshotVersion(number()));
                let entries = entries(after, from.rest());
                Some(format!("entries {entries}, committed up to {}", name_of(committed)))
            }
            20 => {
                let (epoch, after) = (number(), SnapshotVersion(number()));
                Some(format!("the log of epoch {epoch}, {}", entries(after, from.rest())))
            }
            21 => Some(format!("that it follows epoch {}", number())),
            _ => None,
        }
    }

    fn message(message: &Message) -> String {
        match message {
            Message::Presence(message) => greeting(message),
            Message::Transfer(message) => transfer_message(message),
            Message::Forward { epoch, requests, .. } => {
                let count = Reader::new(requests).varint("transactions").expect(COMPLETE);
                format!("Forward {count}, epoch {epoch}")
            }
            Message::Append { epoch, after, committed, entries: bytes, .. } => {
                let entries = entries(*after, bytes);
                format!("Append, epoch {epoch}, {entries}, committed up to {}", name_of(*committed))
            }
            Message::Ack { epoch, upto } => format!("Ack, epoch {epoch}, up to {}", name_of(*upto)),
            Message::Report { epoch, log_epoch, last, published, is_whole, .. } => {
                let counts = if *is_whole { "" } else { ", does not count" };
                let (last, published) = (name_of(*last), name_of(*published));
                format!(
                    "Report, epoch {epoch}: log of epoch {log_epoch} up to {last}, published \
                     {published}{counts}"
                )
            }
            Message::Fetch { epoch, after } => {
                format!("Fetch, epoch {epoch}, after {}", name_of(*after))
            }
            Message::Tail { epoch, after, entries: bytes } => {
                format!("Tail, epoch {epoch}, {}", entries(*after, bytes))
            }
            Message::Agreement { .. } => "Agreement".to_owned(),
            Message::Progress { epoch, published, .. } => {
                format!("Progress, epoch {epoch}, published {}", name_of(*published))
            }
            Message::Refused { .. } => "Refused".to_owned(),
            Message::FreshRequest { .. } => "FreshRequest".to_owned(),
            Message::FreshReply { version, .. } => format!("FreshReply {}", name_of(*version)),
            Message::Digests { digests } => format!("Digests of {}", digests.len()),
            Message::Items { epoch, items } => {
                format!("Items, epoch {epoch}, {} bytes", items.len())
            }
            Message::Ended { version, committed, .. } => match committed {
                1 => format!("Ended, committed at {}", name_of(*version)),
                _ => "Ended, aborted".to_owned(),
            },
            Message::Watermark { epoch, version } => {
                format!("Watermark, epoch {epoch}, {}", name_of(*version))
            }
            Message::Config { closed, .. } => format!("Config, closed up to {}", name_of(*closed)),
            Message::Copy { epoch, .. } => format!("Copy, epoch {epoch}"),
            Message::Piece { epoch, .. } => format!("Piece, epoch {epoch}"),
            Message::Move { .. } => "Move".to_owned(),
            Message::MoveRefused { .. } => "MoveRefused".to_owned(),
            Message::Ask { epoch, .. } => format!("Ask, epoch {epoch}"),
            Message::Fates { epoch, .. } => format!("Fates, epoch {epoch}"),
        }
    }

    fn transactions(_: &Batch) -> Vec<String> {
        Vec::new()
    }

    fn by_hand() -> Options {
        Options::default()
    }

    fn version(version: SnapshotVersion) -> String {
        format!("slice {}", name_of(version))
    }
}

fn greeting(message: &presence::Message) -> String {
    let presence::Message::Greeting { known, .. } = message else {
        return presence_message(message);
    };
    let from = &mut Reader::new(known);
    let epoch = from.varint("greeting").expect("its first field");
    let upto = SnapshotVersion(from.varint("greeting").expect("its second field"));
    format!("Greeting, your log of epoch {epoch} up to {}", name_of(upto))
}

/// The epoch of a version, and its place there.
fn name_of(version: SnapshotVersion) -> String {
    format!("{}.{}", epoch_of(version).0, count_of(version))
}

/// The entries after a version, each with its transactions and its writes.
fn entries(after: SnapshotVersion, bytes: &[u8]) -> String {
    let (from, mut all) = (&mut Reader::new(bytes), format!("after {}:", name_of(after)));
    while !from.is_empty() {
        let entry = Bytes::copy_from_slice(from.bytes("entry").expect(COMPLETE));
        let entry = Entry::decode(&mut Reader::new(&entry)).expect(COMPLETE);
        let txns = entry.txns.iter().map(|executed| match executed.outcome {
            Ok(_) => executed.txn.to_string(),
            Err(_) => format!("{} aborted", executed.txn),
        });
        let txns: Vec<String> = txns.collect();
        let writes: Vec<_> = entry.writes.iter().map(|(_, write)| write.clone()).collect();
        let writes = if writes.is_empty() { String::new() } else { format!(": {}", rows(&writes)) };
        all += &format!(" {}[{}{writes}]", name_of(entry.version), txns.join(" "));
    }
    all
}
