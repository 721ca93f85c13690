//! What clients and nodes say to each other, as bytes.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::key::Direction;
use pangea_core::protocol::Status;
use pangea_core::txn::Outcome;
use pangea_core::workload;
use serde::{Deserialize, Serialize};

use crate::driver::Way;
use crate::transport::{LinkReport, LinkSettings};

/// What a client can ask of a node. New ones go to the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// What the node's protocol says of itself.
    Status,
    /// A digest of the store at a version, or at the newest one: equal on equal replicas.
    Digest {
        /// At which version.
        version: Option<SnapshotVersion>,
    },
    /// A version that holds everything acknowledged anywhere before the query.
    Fresh,
    /// Some rows of a table at a version, or at the newest one, in order.
    Table {
        /// Which table.
        table: TableId,
        /// At which version.
        version: Option<SnapshotVersion>,
        /// The rows from this key on.
        start: Vec<u8>,
        /// The rows before this key, or to the last.
        end: Option<Vec<u8>>,
        /// From which end.
        direction: Direction,
        /// How many at most.
        rows_max: u32,
    },
    /// What the node knows of the way to each peer. Answered by the transport.
    Links,
    /// Hold what `from` sends to `to`. Answered by the transport, to clients on loopback.
    Cut {
        /// The sender: a node that is another answers with `Refused`.
        from: NodeId,
        /// The receiver.
        to: NodeId,
    },
    /// Let through everything that this node holds. Answered by the transport, on loopback.
    Heal,
    /// Change what is emulated on the way from this node. Answered by the transport, on loopback.
    SetLink {
        /// To whom.
        to: NodeId,
        /// From now on.
        settings: LinkSettings,
    },
    /// Whether what must hold of a workload's rows holds of them, at the newest version.
    Check {
        /// The workload's name.
        workload: String,
        /// How large it is.
        settings: workload::Settings,
        /// What clients know of what has committed since the load, where they have counted.
        commits: Option<workload::Commits>,
    },
    /// Where the time of this node's transactions went, of some that ended since this was last
    /// asked, by anybody.
    Ways,
    /// Keep a version readable, for as long as this connection lasts.
    Hold {
        /// Which.
        version: SnapshotVersion,
    },
    /// Let it go.
    Release {
        /// What was held.
        hold: u64,
    },
}

/// What a node answers. New ones go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// How a transaction ended.
    Outcome(Outcome),
    /// The request makes no sense here, and changed nothing.
    Refused(String),
    /// The node can't answer. Whether a transaction committed is not known.
    Unavailable(String),
    /// To [`Query::Status`].
    Status(Status),
    /// To [`Query::Digest`].
    Digest {
        /// The version that was asked for, or the newest.
        version: SnapshotVersion,
        /// The digest.
        digest: u64,
    },
    /// To [`Query::Fresh`].
    Fresh(SnapshotVersion),
    /// To [`Query::Table`].
    Rows {
        /// The rows, in the order of their keys.
        rows: Vec<Row>,
        /// Whether these are the last.
        is_end: bool,
    },
    /// To [`Query::Links`].
    Links(Vec<LinkReport>),
    /// What was asked for is done.
    Done,
    /// To [`Query::Check`].
    Checked {
        /// The version that was looked at.
        version: SnapshotVersion,
        /// What was counted, or which rule is broken.
        verdict: Result<String, String>,
    },
    /// To [`Query::Ways`].
    Ways(Vec<Way>),
    /// To [`Query::Hold`]: what is held is called so; nothing where the node has not come to it.
    Held(Option<u64>),
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

/// One call of a frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WireCall {
    pub request: u64,
    pub procedure: Arc<str>,
    pub args: Bytes,
}

/// Calls that wait to be sent, encoded but for the table of names before them.
#[derive(Debug, Default)]
pub(crate) struct SubmitBuffer {
    names: Vec<Box<str>>,
    calls: Vec<u8>,
    count: u64,
}

impl SubmitBuffer {
    pub(crate) fn push(&mut self, request: u64, procedure: &str, args: &[u8]) {
        // A frame has few names: a walk is faster than a map.
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

    /// The body of a frame of these calls.
    pub(crate) fn into_body(self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.calls.len() + 64);
        body.put_varint(self.names.len() as u64);
        self.names.iter().for_each(|name| body.put_bytes(name.as_bytes()));
        body.put_varint(self.count);
        body.extend_from_slice(&self.calls);
        body
    }
}

/// The calls of a frame, their arguments slices of it.
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
    postcard::to_allocvec(&(request, query)).expect("a query has nothing that can't be written")
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
    *body = postcard::to_extend(answer, unsized_body).expect("an answer can be written");
    let len = body.len() - at - 4;
    let len = u32::try_from(len).expect("an answer is checked against the frame's limit");
    body[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// The answers of a frame.
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
