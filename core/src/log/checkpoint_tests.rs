//! Tests of damaged checkpoints: damage leads to an error, never to other rows.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use crate::key::Key;
use crate::store::{RecordHeader, Version};
use crate::value::Value;

type Rows = Vec<(TableId, Row)>;

fn row(table: u32, key: &[u8], value: &[u8]) -> (TableId, Row) {
    let version = SnapshotVersion(key.len() as u64);
    let version = Version {
        version,
        header: RecordHeader::new(TxnId::new(NodeId(0), 9)),
        value: Some(Value::from(value)),
    };
    (TableId(table), Row { key: Key::from(key), version })
}

fn header() -> CheckpointHeader {
    let (protocol, meta) = ("toy".to_owned(), Bytes::from("meta"));
    CheckpointHeader { version: SnapshotVersion(1_000), protocol, meta }
}

fn encode(rows: &Rows) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&header(), &mut out);
    for (table, row) in rows {
        encoder.push(*table, &row.key, &row.version, &mut out);
    }
    assert_eq!(encoder.finish(&mut out), rows.len() as u64);
    out
}

/// Decodes a checkpoint in chunks. Returns its rows or the error.
fn decode(bytes: &[u8], chunk: usize) -> Result<Rows, CheckpointError> {
    let mut decoder = Decoder::new();
    let mut rows = Vec::new();
    for chunk in bytes.chunks(chunk) {
        decoder.feed(chunk);
        while let Some(part) = decoder.advance()? {
            match part {
                Part::Header(found) => assert_eq!(found, header()),
                Part::Rows(table, found) => rows.extend(found.into_iter().map(|r| (table, r))),
                Part::Footer { rows: count } => assert_eq!(count, rows.len() as u64),
            }
        }
    }
    decoder.finish().map(|()| rows)
}

fn some_rows() -> Rows {
    vec![row(1, b"a", b"1"), row(1, b"b", b""), row(2, b"", b"x"), row(7, b"a", &[5; 300])]
}

#[test]
fn a_checkpoint_comes_back_whatever_chunks_it_is_read_in() {
    let bytes = encode(&some_rows());
    for chunk in [1, 2, 7, 64, bytes.len()] {
        assert_eq!(decode(&bytes, chunk), Ok(some_rows()), "chunks of {chunk}");
    }
    assert_eq!(decode(&encode(&Vec::new()), 100), Ok(Vec::new()));
}

#[test]
fn many_rows_make_many_blocks_and_all_come_back() {
    let key = |i: u32| i.to_be_bytes();
    let rows: Rows = (0..3_000).map(|i| row(3, &key(i), &[i as u8; 300])).collect();
    let bytes = encode(&rows);
    assert_eq!(decode(&bytes, 65_536), Ok(rows));
}

#[test]
fn deletions_are_left_out() {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&header(), &mut out);
    let gone = Version {
        version: SnapshotVersion(3),
        header: RecordHeader::new(TxnId::new(NodeId(0), 9)),
        value: None,
    };
    encoder.push(TableId(1), &Key::from(&b"k"[..]), &gone, &mut out);
    assert_eq!(encoder.finish(&mut out), 0);
    assert_eq!(decode(&out, 100), Ok(Vec::new()));
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let mut bytes = encode(&some_rows());
    bytes[8] = 2;
    let error = decode(&bytes, 100).expect_err("a newer format");
    assert_eq!(error, CheckpointError::NewerFormat { found: 2 });
    assert!(error.to_string().contains("newer version of Pangea"), "{error}");
}

#[test]
fn a_file_that_ends_early_is_incomplete() {
    let bytes = encode(&some_rows());
    for len in 1..bytes.len() {
        let error = decode(&bytes[..len], 50).expect_err("cut");
        assert_eq!(error, CheckpointError::Incomplete { len: len as u64 }, "truncated to {len}");
    }
    assert_eq!(decode(b"", 50), Err(CheckpointError::NotACheckpoint));
    let more = [&bytes[..], b"x"].concat();
    assert!(matches!(decode(&more, 50), Err(CheckpointError::Corrupt { .. })));
}

#[test]
fn a_lost_block_is_seen() {
    let whole = encode(&some_rows());
    // The encoder's output for one row locates the table's blocks.
    let start = {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&header(), &mut out);
        let (table, row) = row(1, b"a", b"1");
        encoder.push(table, &row.key, &row.version, &mut out);
        out.len()
    };
    let len = u32::from_le_bytes([whole[start], whole[start + 1], whole[start + 2], 0]) as usize;
    let without = [&whole[..start], &whole[start + 9 + len..]].concat();
    let error = decode(&without, 50).expect_err("a block is missing");
    assert!(error.to_string().contains("blocks are missing"), "{error}");
    let twice = [&whole[..start + 9 + len], &whole[start..]].concat();
    let error = decode(&twice, 50).expect_err("a block is repeated");
    assert!(error.to_string().contains("order of rows"), "{error}");
}

#[test]
#[should_panic(expected = "in the order of tables")]
fn rows_out_of_order_are_a_bug() {
    let mut rows = some_rows();
    rows.swap(0, 1);
    encode(&rows);
}

proptest! {
    #[test]
    fn a_flipped_bit_is_an_error(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut bytes = encode(&some_rows());
        let damage = at.index(bytes.len());
        bytes[damage] ^= 1 << bit;
        prop_assert!(decode(&bytes, 64).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_an_error_and_no_panic(
        junk in prop::collection::vec(any::<u8>(), 0..300),
        keep in 0_usize..80,
    ) {
        let whole = encode(&some_rows());
        let bytes = [&whole[..keep], &junk].concat();
        prop_assert!(decode(&bytes, 33).is_err());
    }
}
