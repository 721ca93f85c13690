//! Fuzzing of the messages between clients and nodes, with inputs that are almost valid.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Direction;
use pangea_core::protocol::{Status, WaitsFor};
use pangea_core::txn::{Abort, Outcome as TxnOutcome, SqlState};
use pangea_core::workload;

use super::wire::{
    Answer, Query, Row, SubmitBuffer, decode_answers, decode_query, decode_submit, encode_query,
    push_answer,
};
use crate::fuzzing::{Outcome, Target, run, size};
use crate::transport::LinkSettings;

/// The name of a variant.
fn name(of: &impl std::fmt::Debug) -> String {
    let words = format!("{of:?}");
    words.split([' ', '(']).next().unwrap_or_default().to_owned()
}

fn submits() -> Vec<Vec<u8>> {
    let of = |count: u64| {
        let mut buffer = SubmitBuffer::default();
        for request in 0..count {
            let name = if request % 3 == 0 { "pay" } else { "order" };
            buffer.push(request * 100, name, &vec![request as u8; request as usize]);
        }
        buffer.into_body()
    };
    [0, 1, 20].map(of).to_vec()
}

fn look_at_submit(input: &[u8]) -> Outcome {
    let calls = match decode_submit(&Bytes::copy_from_slice(input)) {
        Ok(calls) => calls,
        Err(error) => return Outcome::refused(error),
    };
    let mut buffer = SubmitBuffer::default();
    calls.iter().for_each(|call| buffer.push(call.request, &call.procedure, &call.args));
    assert_eq!(
        decode_submit(&buffer.into_body().into()).as_ref(),
        Ok(&calls),
        "the encoding is reversible"
    );
    Outcome::taken((calls.is_empty(), size(calls.len()) > 3))
}

#[test]
fn calls() {
    run(Target {
        name: "client-submit",
        seeds: submits(),
        mend: |_| {},
        look: look_at_submit,
        bytes_max: 4 << 10,
        // A name of one byte takes 56 bytes with its slot in a growing list, and a call of three
        // takes 72.
        bytes_per_byte: 256,
    });
}

fn queries() -> Vec<Vec<u8>> {
    let version = SnapshotVersion(300);
    let settings = LinkSettings { bandwidth_bits: Some(1 << 30), ..LinkSettings::default() };
    let workload = "ycsb-a".to_owned();
    let all = [
        Query::Status,
        Query::Digest { version: Some(version) },
        Query::Fresh,
        Query::Table {
            table: TableId(7),
            version: Some(version),
            start: b"key".to_vec(),
            end: None,
            direction: Direction::Reverse,
            rows_max: 100,
        },
        Query::Links,
        Query::Cut { from: NodeId(0), to: NodeId(1) },
        Query::Heal,
        Query::SetLink { to: NodeId(2), settings },
        Query::Check { workload, settings: workload::Settings::default(), commits: None },
    ];
    all.iter().map(|query| encode_query(300, query)).collect()
}

fn look_at_query(input: &[u8]) -> Outcome {
    let (request, query) = match decode_query(input) {
        Ok(decoded) => decoded,
        Err(error) => return Outcome::refused(error),
    };
    // The encodings are compared because a NaN does not equal itself.
    let encoded = encode_query(request, &query);
    let (again, same) = decode_query(&encoded).expect("the encoding is reversible");
    assert_eq!(encode_query(again, &same), encoded);
    Outcome::taken(name(&query))
}

#[test]
fn questions() {
    run(Target {
        name: "client-query",
        seeds: queries(),
        mend: |_| {},
        look: look_at_query,
        bytes_max: 4 << 10,
        bytes_per_byte: 16,
    });
}

fn answers() -> Vec<Vec<u8>> {
    let version = SnapshotVersion(3);
    let row = |key: &[u8]| Row {
        key: key.to_vec(),
        version: SnapshotVersion(7),
        value: b"value".to_vec(),
    };
    let abort = Abort::new(SqlState::UNIQUE_VIOLATION, "the key exists").with_detail("k");
    let txn = TxnId::new(NodeId(1), 9);
    let committed = TxnOutcome::Committed { txn, version, result: b"result".to_vec() };
    let status = Status {
        version,
        coordinator: Some(NodeId(2)),
        members: vec![NodeId(0), NodeId(2)],
        first_start: None,
        is_restarting: true,
        refused: None,
        rejoin: None,
        waits_for: vec![WaitsFor { node: NodeId(1), what: "slices".to_owned(), epochs: 7 }],
        differing: vec![NodeId(0)],
        strangers: vec![NodeId(2)],
        counters: BTreeMap::from([("txns_committed".to_owned(), 7)]),
    };
    let all = [
        Answer::Outcome(committed),
        Answer::Outcome(TxnOutcome::Aborted(abort)),
        Answer::Refused("no".to_owned()),
        Answer::Unavailable("not now".to_owned()),
        Answer::Status(status),
        Answer::Digest { version, digest: u64::MAX },
        Answer::Fresh(version),
        Answer::Rows { rows: vec![row(b"a"), row(b"b")], is_end: true },
        Answer::Links(Vec::new()),
        Answer::Done,
        Answer::Checked { version, verdict: Err("a rule".to_owned()) },
    ];
    let encode = |answers: &[Answer]| {
        let mut body = Vec::new();
        answers.iter().for_each(|answer| push_answer(&mut body, 5, answer));
        body
    };
    all.chunks(1).chain([&all[..]]).map(encode).collect()
}

/// Limits the lengths so that none reaches past the end.
fn mend_answers(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        let rest = bytes.len() - at - 4;
        let len = (u32::from_le_bytes(*length) as usize).min(rest);
        bytes[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        at += 4 + len + 8;
    }
}

fn look_at_answers(input: &[u8]) -> Outcome {
    let answers = match decode_answers(input) {
        Ok(answers) => answers,
        Err(error) => return Outcome::refused(error),
    };
    let mut body = Vec::new();
    answers.iter().for_each(|(request, answer)| push_answer(&mut body, *request, answer));
    assert_eq!(decode_answers(&body).as_ref(), Ok(&answers), "the encoding is reversible");
    let last = answers.last().map(|(_, answer)| name(answer));
    Outcome::taken((last, answers.len() > 1))
}

#[test]
fn answers_of_a_node() {
    run(Target {
        name: "client-answers",
        seeds: answers(),
        mend: mend_answers,
        look: look_at_answers,
        // Serde reserves up to 1 MiB for a list of rows or links before it decodes it.
        bytes_max: 2 << 20,
        bytes_per_byte: 128,
    });
}
