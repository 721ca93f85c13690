//! Fuzzing of nearly correct segments and checkpoints.

use std::fmt::Debug;

use bytes::Bytes;

use super::frame::checksum;
use super::*;
use crate::codec::Reader;
use crate::fuzzing::{Outcome, Target, run, size};
use crate::ids::{LogPosition, SnapshotVersion, TableId, TxnId};
use crate::key::Key;
use crate::store::{RecordHeader, Version};
use crate::value::Value;

const SALT: u64 = 0x5a17;

/// The maximum payload of a frame.
const PAYLOAD_MAX: usize = 60;

/// Builds a segment with records of these lengths and trailing zeros. A mark precedes each empty
/// record.
fn segment(first: u64, records: &[usize], zeros: usize) -> Vec<u8> {
    let mut bytes = SegmentHeader { salt: SALT, first: LogPosition(first) }.encode();
    let mut synced = bytes.len() as u64;
    for (next, (index, &len)) in (first..).zip(records.iter().enumerate()) {
        if index % 2 == 0 {
            synced = bytes.len() as u64;
        }
        if len == 0 {
            let mark = Mark { below: LogPosition(first), checkpoint: SnapshotVersion(3) };
            let position = LogPosition(next - 1);
            let header = FrameHeader { kind: Kind::Mark, position, synced };
            header.encode(SALT, &[mark.encode()], &mut bytes);
        }
        let record = Bytes::from(vec![index as u8; len]);
        encode_record((LogPosition(next), synced), SALT, &[record], PAYLOAD_MAX, &mut bytes);
    }
    bytes.resize(bytes.len() + zeros, 0);
    bytes
}

/// Corrects the checksums of the header and of all frames that the lengths lead to.
fn mend_segment(bytes: &mut [u8]) {
    if bytes.len() < SEGMENT_HEADER_LEN {
        return;
    }
    let crc = crc32c::crc32c(&bytes[16..SEGMENT_HEADER_LEN]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let salt = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
    let mut at = SEGMENT_HEADER_LEN;
    while let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        let len = u32::from_le_bytes(*length) as usize;
        let Some(frame) = bytes.get_mut(at..at.saturating_add(len.max(FRAME_HEADER_LEN))) else {
            return;
        };
        let crc = checksum(salt, frame);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
        at += frame.len();
    }
}

type Scanned = (Vec<Item>, Result<End, SegmentError>);

fn scan(bytes: &[u8]) -> Scanned {
    let mut items = Vec::new();
    let mut scan = match SegmentScan::open(Bytes::copy_from_slice(bytes)) {
        Ok(scan) => scan,
        Err(error) => return (items, Err(error)),
    };
    loop {
        assert!(
            items.len() <= bytes.len() / FRAME_HEADER_LEN,
            "more frames than the bytes have room for"
        );
        match scan.advance() {
            Ok(Item::End(end)) => {
                assert_eq!(scan.advance(), Ok(Item::End(end)), "the end repeats");
                return (items, Ok(end));
            }
            Ok(item) => items.push(item),
            Err(error) => return (items, Err(error)),
        }
    }
}

fn look_at_segment(bytes: &[u8]) -> Outcome {
    let (items, ended) = scan(bytes);
    let end = match ended {
        Ok(end) => end,
        Err(error) => return Outcome::refused((error.to_string(), size(items.len()))),
    };
    // A torn tail is overwritten with zeros before anything else. A scan must then find the same
    // frames and a clean end.
    let torn = end.torn.unwrap_or(Torn { len: 0, frames: 0 });
    let mut cut = bytes.to_vec();
    cut[end.offset..end.offset + torn.len].fill(0);
    let clean = End { offset: end.offset, torn: None };
    assert_eq!(scan(&cut), (items.clone(), Ok(clean)), "after the torn tail is cut off");
    let marks = items.iter().filter(|item| matches!(item, Item::Mark(_))).count();
    Outcome::taken((size(items.len()), size(marks), end.torn.is_some(), size(torn.frames)))
}

#[test]
fn segments() {
    run(Target {
        name: "log-segment",
        seeds: vec![
            segment(1, &[], 64),
            segment(100, &[3, 0, 40, 5, 0, 7], 100),
            segment(7, &[200; 5], 0),
        ],
        mend: mend_segment,
        look: look_at_segment,
        bytes_max: 4 << 10,
        // Four copies of the bytes, and an item for each frame.
        bytes_per_byte: 32,
    });
}

fn checkpoint(tables: &[u32], rows: u8, value: usize) -> Vec<u8> {
    let header = CheckpointHeader {
        version: SnapshotVersion(9),
        protocol: "toy".to_owned(),
        meta: Bytes::from_static(b"meta"),
    };
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&header, &mut out);
    for &table in tables {
        for row in 0..rows {
            let version = Version {
                version: SnapshotVersion(u64::from(row) % 10),
                header: RecordHeader::new(TxnId::from_bits(u64::from(row))),
                value: Some(Value::copy_from(&vec![row; value])),
            };
            encoder.push(TableId(table), &Key::from(&[row][..]), &version, &mut out);
        }
    }
    encoder.finish(&mut out);
    out
}

const PRELUDE_LEN: usize = 12;
const BLOCK_HEADER_LEN: usize = 9;

/// The row count in a block of rows.
fn row_count(body: &[u8]) -> u64 {
    let mut reader = Reader::new(body);
    reader.varint("table").and_then(|_| reader.varint("rows")).unwrap_or(0)
}

/// Corrects the checksums of all blocks that the lengths lead to, the last length, and the counts
/// in the footer.
fn mend_checkpoint(bytes: &mut [u8]) {
    let mut at = PRELUDE_LEN;
    let mut counts = [0u64; 2];
    while let Some(header) = bytes.get(at..).and_then(|rest| rest.first_chunk::<9>().copied()) {
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let rest = bytes.len() - at - BLOCK_HEADER_LEN;
        let len = if len > rest { rest } else { len };
        bytes[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        let end = at + BLOCK_HEADER_LEN + len;
        let body = &mut bytes[at + BLOCK_HEADER_LEN..end];
        match header[8] {
            2 => counts = [counts[0].wrapping_add(row_count(body)), counts[1] + 1],
            3 if len == 16 => body.copy_from_slice(&counts.map(u64::to_le_bytes).concat()),
            _ => {}
        }
        let crc = crc32c::crc32c(&bytes[at + 8..end]);
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

type Parts = Vec<Part>;

/// The elements of a checkpoint decoded in chunks of `chunk` bytes, and its end.
fn parts(bytes: &[u8], chunk: usize) -> (Parts, Result<(), CheckpointError>) {
    let mut decoder = Decoder::new();
    let mut parts = Parts::new();
    for chunk in bytes.chunks(chunk) {
        decoder.feed(chunk);
        loop {
            match decoder.advance() {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => break,
                Err(error) => return (parts, Err(error)),
            }
        }
    }
    (parts, decoder.finish())
}

fn encode(parts: &Parts) -> Vec<u8> {
    let mut out = Vec::new();
    let Some((Part::Header(header), rest)) = parts.split_first() else {
        panic!("the header comes first")
    };
    let mut encoder = Encoder::new(header, &mut out);
    for part in rest {
        let Part::Rows(table, rows) = part else { continue };
        rows.iter().for_each(|row| encoder.push(*table, &row.key, &row.version, &mut out));
    }
    encoder.finish(&mut out);
    out
}

/// All rows, regardless of their division into blocks.
fn rows(parts: &Parts) -> Vec<(TableId, &Row)> {
    let of = |part| match part {
        &Part::Rows(table, ref rows) => rows.iter().map(|row| (table, row)).collect(),
        Part::Header(_) | Part::Footer { .. } => Vec::new(),
    };
    parts.iter().flat_map(of).collect()
}

fn alike<T: PartialEq + Debug>(a: T, b: T, why: &str) {
    assert_eq!(a, b, "{why}");
}

fn look_at_checkpoint(bytes: &[u8]) -> Outcome {
    let (whole, ended) = parts(bytes, usize::MAX);
    alike(parts(bytes, 7), (whole.clone(), ended.clone()), "the chunks make no difference");
    if let Err(error) = ended {
        return Outcome::refused((error.to_string(), size(whole.len())));
    }
    let encoded = encode(&whole);
    let (again, ended) = parts(&encoded, usize::MAX);
    assert_eq!(ended, Ok(()));
    alike(rows(&again), rows(&whole), "the rows are unchanged");
    alike(&again[0], &whole[0], "the header is unchanged");
    Outcome::taken((size(whole.len()), size(rows(&whole).len())))
}

#[test]
fn checkpoints() {
    run(Target {
        name: "checkpoint",
        seeds: vec![
            checkpoint(&[], 0, 0),
            checkpoint(&[1], 3, 5),
            checkpoint(&[1, 7, 300], 12, 3),
            checkpoint(&[2], 1, 400),
        ],
        mend: mend_checkpoint,
        look: look_at_checkpoint,
        // Three copies of a block of rows that is being filled.
        bytes_max: 1 << 20,
        // A row of 11 bytes takes about 200 bytes of memory, and there are four copies of it.
        bytes_per_byte: 128,
    });
}
