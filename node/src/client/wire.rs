//! The encoding of the messages between clients and nodes.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::key::Direction;
use pangea_core::protocol::Status;
use pangea_core::txn::Outcome;
use pangea_core::workload;
use serde::{Deserialize, Serialize};

use crate::driver::LatencySample;
use crate::transport::{LinkReport, LinkSettings};

/// A client's query to a node. New queries are appended at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// The status of the node's protocol.
    Status,
    /// A digest of the store at a version, or at the newest one. Identical replicas have equal
    /// digests.
    Digest {
        /// The version to read.
        version: Option<SnapshotVersion>,
    },
    /// A version that contains every transaction acknowledged anywhere before the query.
    Fresh,
    /// Rows of a table at a version, or at the newest one, in key order.
    Table {
        /// The table.
        table: TableId,
        /// The version to read.
        version: Option<SnapshotVersion>,
        /// The inclusive start of the key range.
        start: Vec<u8>,
        /// The exclusive end of the key range, or `None` for no end.
        end: Option<Vec<u8>>,
        /// The end of the range to begin at.
        direction: Direction,
        /// The maximum number of rows.
        rows_max: u32,
    },
    /// The node's links to its peers. Answered by the transport.
    Links,
    /// Delay all frames from `from` to `to`. Answered by the transport, only for clients on
    /// loopback.
    Cut {
        /// The sender. Any other node answers with `Refused`.
        from: NodeId,
        /// The receiver.
        to: NodeId,
    },
    /// Release all frames that this node delays. Answered by the transport, only on loopback.
    Heal,
    /// Change the emulated link from this node to a peer. Answered by the transport, only on
    /// loopback.
    SetLink {
        /// The receiver.
        to: NodeId,
        /// The new settings.
        settings: LinkSettings,
    },
    /// Check the invariants of a workload's rows at the newest version.
    Check {
        /// The workload's name.
        workload: String,
        /// The workload's size.
        settings: workload::Settings,
        /// The clients' counts of commits since the load, if they have counted.
        commits: Option<workload::Commits>,
    },
    /// Latency breakdowns of a sample of this node's transactions that ended since any client last
    /// requested them.
    LatencySamples,
    /// Pin a version for as long as this connection lasts.
    Pin {
        /// The version.
        version: SnapshotVersion,
    },
    /// Unpin a version.
    Unpin {
        /// The number of the pin.
        pin: u64,
    },
}

/// A node's answer. New answers are appended at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The outcome of a transaction.
    Outcome(Outcome),
    /// The node rejected the request as invalid; it had no effect.
    Refused(String),
    /// The node can't answer. The outcome of a transaction is unknown.
    Unavailable(String),
    /// Answers [`Query::Status`].
    Status(Status),
    /// Answers [`Query::Digest`].
    Digest {
        /// The requested version, or the newest.
        version: SnapshotVersion,
        /// The digest.
        digest: u64,
    },
    /// Answers [`Query::Fresh`].
    Fresh(SnapshotVersion),
    /// Answers [`Query::Table`].
    Rows {
        /// The rows, in key order.
        rows: Vec<Row>,
        /// Whether no more rows follow.
        is_end: bool,
    },
    /// Answers [`Query::Links`].
    Links(Vec<LinkReport>),
    /// The request has been carried out.
    Done,
    /// Answers [`Query::Check`].
    Checked {
        /// The version that was checked.
        version: SnapshotVersion,
        /// The counts, or the violated invariant.
        verdict: Result<String, String>,
    },
    /// Answers [`Query::LatencySamples`].
    LatencySamples(Vec<LatencySample>),
    /// Answers [`Query::Pin`].
    Pinned(Pinned),
}

/// Whether a node has pinned a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pinned {
    /// It has: the number of the pin.
    Held(u64),
    /// It has not reached the version.
    NotReached,
    /// It has removed rows of the version. This is the oldest version that it can pin.
    Reclaimed(SnapshotVersion),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The encoded key.
    pub key: Vec<u8>,
    /// The version that wrote it.
    pub version: SnapshotVersion,
    /// The value.
    pub value: Vec<u8>,
}

/// A call within a frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WireCall {
    pub request: u64,
    pub procedure: Arc<str>,
    pub args: Bytes,
}

/// Pending calls, encoded except for the table of names before them.
#[derive(Debug, Default)]
pub(crate) struct SubmitBuffer {
    names: Vec<Box<str>>,
    calls: Vec<u8>,
    count: u64,
}

impl SubmitBuffer {
    pub(crate) fn push(&mut self, request: u64, procedure: &str, args: &[u8]) {
        // A frame has few names, so a linear search is faster than a map.
        let known = self.names.iter().position(|name| **name == *procedure);
        let index = known.unwrap_or_else(|| {
            self.names.push(procedure.into());
            self.names.len() - 1
        });
        self.calls.put_varint(request);
        self.calls.put_varint(index as u64);
        self.calls.put_bytes(args);
        self.count += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The body of a frame with these calls.
    pub(crate) fn into_body(self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.calls.len() + 64);
        body.put_varint(self.names.len() as u64);
        self.names.iter().for_each(|name| body.put_bytes(name.as_bytes()));
        body.put_varint(self.count);
        body.extend_from_slice(&self.calls);
        body
    }
}

/// Decodes the calls of a frame. Their arguments are slices of the body.
pub(crate) fn decode_submit(body: &Bytes) -> Result<Vec<WireCall>, DecodeError> {
    let mut from = Reader::new(body);
    let names = (0..from.count("names")?)
        .map(|_| {
            let name = std::str::from_utf8(from.bytes("name")?);
            name.map(Arc::<str>::from).map_err(|_| DecodeError::new("name"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let calls = (0..from.count("calls")?)
        .map(|_| {
            let request = from.varint("request")?;
            let index = usize::try_from(from.varint("name index")?).ok();
            let procedure = index.and_then(|index| names.get(index));
            let procedure = procedure.ok_or(DecodeError::new("name index"))?.clone();
            Ok(WireCall { request, procedure, args: body.slice_ref(from.bytes("args")?) })
        })
        .collect::<Result<Vec<_>, _>>()?;
    match from.is_empty() {
        true => Ok(calls),
        false => Err(DecodeError::new("end of calls")),
    }
}

pub(crate) fn encode_query(request: u64, query: &Query) -> Vec<u8> {
    postcard::to_allocvec(&(request, query)).expect("a query can be encoded")
}

pub(crate) fn decode_query(body: &[u8]) -> Result<(u64, Query), DecodeError> {
    postcard::from_bytes(body).map_err(|_| DecodeError::new("query"))
}

/// Appends an answer to the body of a frame.
pub(crate) fn push_answer(body: &mut Vec<u8>, request: u64, answer: &Answer) {
    body.put_u64(request);
    let at = body.len();
    body.put_u32(0);
    let unsized_body = std::mem::take(body);
    *body = postcard::to_extend(answer, unsized_body).expect("an answer can be encoded");
    let len = body.len() - at - 4;
    let len = u32::try_from(len).expect("an answer was checked against the frame limit");
    body[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Decodes the answers of a frame.
pub(crate) fn decode_answers(body: &[u8]) -> Result<Vec<(u64, Answer)>, DecodeError> {
    let mut from = Reader::new(body);
    let mut answers = Vec::new();
    while !from.is_empty() {
        let request = from.u64("request")?;
        let len = from.u32("answer length")? as usize;
        let answer = postcard::from_bytes(from.take(len, "answer")?);
        answers.push((request, answer.map_err(|_| DecodeError::new("answer"))?));
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_survive_their_encoding_and_share_their_names() {
        let mut buffer = SubmitBuffer::default();
        let calls: Vec<WireCall> = (0..300u64)
            .map(|request| WireCall {
                request,
                procedure: if request % 3 == 0 { "pay".into() } else { "order".into() },
                args: Bytes::from(vec![request as u8; request as usize]),
            })
            .collect();
        calls.iter().for_each(|call| buffer.push(call.request, &call.procedure, &call.args));
        let body = Bytes::from(buffer.into_body());
        assert_eq!(decode_submit(&body), Ok(calls));
        assert_eq!(body.windows(5).filter(|window| window == b"order").count(), 1);
        for len in 0..body.len() {
            assert!(decode_submit(&body.slice(..len)).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn answers_and_queries_survive_their_encoding() {
        let (key, value) = (b"k".to_vec(), b"v".to_vec());
        let row = Row { key, version: SnapshotVersion(2), value };
        let answers = vec![
            (u64::MAX, Answer::Refused("no".to_owned())),
            (0, Answer::Digest { version: SnapshotVersion(3), digest: 9 }),
            (7, Answer::Rows { rows: vec![row], is_end: true }),
        ];
        let mut body = Vec::new();
        answers.iter().for_each(|(request, answer)| push_answer(&mut body, *request, answer));
        assert_eq!(decode_answers(&body), Ok(answers));
        assert!(decode_answers(&body[..body.len() - 1]).is_err());
        let query = Query::Cut { from: NodeId(1), to: NodeId(2) };
        assert_eq!(decode_query(&encode_query(5, &query)), Ok((5, query)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            let _ = decode_submit(&bytes);
            let _ = decode_answers(&bytes);
            let _ = decode_query(&bytes);
        }
    }
}
