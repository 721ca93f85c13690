//! Tests of the damage that a crash or a failing disk can cause to a segment, and of the resulting
//! scan.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::ids::{LogPosition, SnapshotVersion};

const SALT: u64 = 0x5a17;
const FIRST: LogPosition = LogPosition(100);

/// Builds a segment of groups of records, each group synced before the next. Also returns the
/// offset of each record.
fn segment(groups: &[Vec<Vec<u8>>], zeros: usize) -> (Vec<u8>, Vec<usize>) {
    segment_of(groups, zeros, PAYLOAD_LEN_MAX)
}

/// Like `segment`, with frames of at most `most` bytes.
fn segment_of(groups: &[Vec<Vec<u8>>], zeros: usize, most: usize) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = SegmentHeader { salt: SALT, first: FIRST }.encode();
    let mut starts = Vec::new();
    let mut position = FIRST;
    for group in groups {
        let synced = bytes.len() as u64;
        for record in group {
            starts.push(bytes.len());
            let (first, second) = record.split_at(record.len() / 3);
            let parts = [Bytes::copy_from_slice(first), Bytes::copy_from_slice(second)];
            encode_record((position, synced), SALT, &parts, most, &mut bytes);
            position = LogPosition(position.0 + 1);
        }
    }
    bytes.resize(bytes.len() + zeros, 0);
    (bytes, starts)
}

/// The records that a scan returns, and its end.
fn scan(bytes: &[u8]) -> (Vec<Bytes>, Result<End, SegmentError>) {
    let mut records = Vec::new();
    let mut scan = match SegmentScan::open(Bytes::copy_from_slice(bytes)) {
        Ok(scan) => scan,
        Err(error) => return (records, Err(error)),
    };
    loop {
        match scan.advance() {
            Ok(Item::Record { position, record }) => {
                assert_eq!(position.0, FIRST.0 + records.len() as u64);
                records.push(record);
            }
            Ok(Item::Mark(_)) => {}
            Ok(Item::End(end)) => return (records, Ok(end)),
            Err(error) => return (records, Err(error)),
        }
    }
}

fn three_groups() -> Vec<Vec<Vec<u8>>> {
    vec![vec![b"one".to_vec()], vec![b"two".to_vec(), Vec::new()], vec![b"four".to_vec(); 2]]
}

#[test]
fn zeros_after_the_last_frame_are_the_normal_end() {
    for zeros in [0, 3, 4, 25, 26, 5_000] {
        let (bytes, _) = segment(&three_groups(), zeros);
        let (records, end) = scan(&bytes);
        assert_eq!(records, ["one", "two", "", "four", "four"].map(Bytes::from));
        assert_eq!(end, Ok(End { offset: bytes.len() - zeros, torn: None }), "{zeros} zeros");
    }
}

#[test]
fn an_incomplete_last_frame_is_a_torn_tail() {
    let (bytes, starts) = segment(&three_groups(), 0);
    for len in starts[4] + 4..bytes.len() {
        let mut cut = bytes[..len].to_vec();
        cut.resize(bytes.len() + 100, 0);
        let (records, end) = scan(&cut);
        let torn = Some(Torn { len: FRAME_HEADER_LEN, frames: 0 });
        assert_eq!(
            (records.len(), end),
            (4, Ok(End { offset: starts[4], torn })),
            "truncated to {len}"
        );
    }
}

#[test]
fn a_hole_in_the_last_group_is_a_torn_tail_whose_good_frames_are_counted() {
    let (mut bytes, starts) = segment(&three_groups(), 64);
    bytes[starts[3]..starts[4]].fill(0);
    let (records, end) = scan(&bytes);
    assert_eq!(records.len(), 3);
    let torn = Some(Torn { len: bytes.len() - 64 - starts[3], frames: 1 });
    assert_eq!(end, Ok(End { offset: starts[3], torn }));
}

#[test]
fn damage_before_a_later_group_is_a_corrupt_middle_and_is_named() {
    let (bytes, starts) = segment(&three_groups(), 64);
    for (frame, &start) in starts.iter().enumerate().take(3) {
        let position = LogPosition(FIRST.0 + frame as u64);
        for damage in start..starts[frame + 1] {
            let mut bytes = bytes.clone();
            bytes[damage] ^= 0x10;
            let expected = SegmentError::Corrupt { offset: start, position };
            assert_eq!(scan(&bytes).1, Err(expected), "damage at {damage}");
        }
        let mut bytes = bytes.clone();
        bytes[start..starts[frame + 1]].fill(0);
        assert_eq!(scan(&bytes).1, Err(SegmentError::Corrupt { offset: start, position }));
    }
}

/// A mark does not have a number of its own, and once only the record after it could vouch for it.
/// That record was cut off as if it had never been durable.
#[test]
fn a_damaged_mark_before_a_durable_record_is_a_corrupt_middle() {
    let (mut bytes, _) = segment(&[vec![b"one".to_vec()]], 0);
    let start = bytes.len();
    let mark = Mark { below: FIRST, checkpoint: SnapshotVersion(7) };
    let header = FrameHeader { kind: Kind::Mark, position: FIRST, synced: start as u64 };
    header.encode(SALT, &[mark.encode()], &mut bytes);
    let position = LogPosition(FIRST.0 + 1);
    let header = FrameHeader { kind: Kind::Record, position, synced: bytes.len() as u64 };
    header.encode(SALT, &[Bytes::from("two")], &mut bytes);
    assert_eq!(scan(&bytes).0, ["one", "two"].map(Bytes::from));
    bytes[start + 9] ^= 1;
    assert_eq!(scan(&bytes).1, Err(SegmentError::Corrupt { offset: start, position }));
}

/// Bytes in which no two parts are equal.
fn long(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + 1) as u8).collect()
}

#[test]
fn a_record_that_is_longer_than_a_frame_comes_back_whole() {
    for len in [0, 1, 9, 10, 11, 20, 21, 100] {
        let groups = vec![vec![b"before".to_vec(), long(len)], vec![b"after".to_vec()]];
        let (bytes, starts) = segment_of(&groups, 40, 10);
        assert_eq!(starts[2] - starts[1], encoded_len(len, 10), "{len} bytes");
        let (records, end) = scan(&bytes);
        assert_eq!(records, groups.concat(), "{len} bytes");
        assert_eq!(end.map(|end| end.torn), Ok(None), "{len} bytes");
    }
}

/// A record of this length once failed an assertion, on every replica and after each restart.
#[test]
fn a_record_may_be_longer_than_the_longest_frame() {
    let record = Bytes::from(vec![7; PAYLOAD_LEN_MAX + 1]);
    let mut bytes = SegmentHeader { salt: SALT, first: FIRST }.encode();
    encode_record((FIRST, 32), SALT, std::slice::from_ref(&record), PAYLOAD_LEN_MAX, &mut bytes);
    let mut scan = SegmentScan::open(bytes.into()).unwrap();
    assert!(scan.advance() == Ok(Item::Record { position: FIRST, record }));
}

#[test]
fn a_record_that_was_not_written_whole_is_a_torn_tail_from_its_first_frame() {
    let groups = vec![vec![b"one".to_vec()], vec![b"two".to_vec(), long(45)]];
    let (bytes, starts) = segment_of(&groups, 0, 10);
    for len in starts[2] + 4..bytes.len() {
        let mut cut = bytes[..len].to_vec();
        cut.resize(bytes.len() + 100, 0);
        let (records, end) = scan(&cut);
        assert_eq!(records, ["one", "two"].map(Bytes::from), "truncated to {len}");
        let whole = (len - starts[2]) / (FRAME_HEADER_LEN + 10);
        let torn = match whole {
            0 => Torn { len: FRAME_HEADER_LEN, frames: 0 },
            _ => Torn { len: whole * (FRAME_HEADER_LEN + 10), frames: whole },
        };
        let end_at = |torn| Ok(End { offset: starts[2], torn });
        assert_eq!(end, end_at(Some(torn)), "truncated to {len}");
        cut[starts[2]..starts[2] + torn.len].fill(0);
        assert_eq!(scan(&cut), (records, end_at(None)), "truncated to {len}");
    }
}

#[test]
fn a_frame_that_is_lost_of_a_durable_record_is_a_corrupt_middle() {
    let groups = vec![vec![b"one".to_vec()], vec![long(45)], vec![b"three".to_vec()]];
    let (bytes, starts) = segment_of(&groups, 64, 10);
    let (offset, position) = (starts[1], LogPosition(FIRST.0 + 1));
    let expected = Err(SegmentError::Corrupt { offset, position });
    for damage in starts[1]..starts[2] {
        let mut bytes = bytes.clone();
        bytes[damage] ^= 0x10;
        assert_eq!(scan(&bytes), (vec![Bytes::from("one")], expected), "damage at {damage}");
    }
    for frame in 0..5 {
        let start = starts[1] + frame * (FRAME_HEADER_LEN + 10);
        let mut bytes = bytes.clone();
        bytes[start..starts[2].min(start + FRAME_HEADER_LEN + 10)].fill(0);
        assert_eq!(scan(&bytes).1, expected, "frame {frame}");
    }
}

#[test]
fn a_record_that_breaks_off_where_the_log_goes_on_is_corrupt() {
    let put = |kinds: &[(Kind, u64)]| {
        let mut bytes = SegmentHeader { salt: SALT, first: FIRST }.encode();
        for (kind, position) in kinds {
            let header = FrameHeader { kind: *kind, position: LogPosition(*position), synced: 32 };
            header.encode(SALT, &[Bytes::from("part")], &mut bytes);
        }
        scan(&bytes)
    };
    let (one, two) = (FIRST.0, FIRST.0 + 1);
    let corrupt = Err(SegmentError::Corrupt { offset: 32, position: FIRST });
    for kinds in [
        &[(Kind::First, one), (Kind::Record, one)][..],
        &[(Kind::First, one), (Kind::First, one), (Kind::Last, one)],
        &[(Kind::First, one), (Kind::Middle, one), (Kind::Mark, one)],
        &[(Kind::Middle, one), (Kind::Last, one)],
        &[(Kind::Last, one)],
    ] {
        assert_eq!(put(kinds), (Vec::new(), corrupt), "{kinds:?}");
    }
    let found = LogPosition(two);
    let other = Err(SegmentError::OutOfOrder { offset: 32, expected: FIRST, found });
    assert_eq!(put(&[(Kind::First, one), (Kind::Last, two)]), (Vec::new(), other));
}

#[test]
fn what_a_recycled_file_held_before_is_no_frame() {
    let (mut old, _) = segment(&three_groups(), 64);
    let header = SegmentHeader { salt: SALT + 1, first: FIRST };
    old[..SEGMENT_HEADER_LEN].copy_from_slice(&header.encode());
    old[SEGMENT_HEADER_LEN..SEGMENT_HEADER_LEN + 4].fill(0);
    let (records, end) = scan(&old);
    assert_eq!((records.len(), end), (0, Ok(End { offset: SEGMENT_HEADER_LEN, torn: None })));
}

#[test]
fn a_record_out_of_order_is_corrupt() {
    let (mut bytes, _) = segment(&[vec![b"one".to_vec()]], 0);
    let offset = bytes.len();
    let found = LogPosition(FIRST.0 + 2);
    FrameHeader { kind: Kind::Record, position: found, synced: 0 }.encode(SALT, &[], &mut bytes);
    let expected = LogPosition(FIRST.0 + 1);
    assert_eq!(scan(&bytes).1, Err(SegmentError::OutOfOrder { offset, expected, found }));
}

#[test]
fn other_formats_are_refused_by_name() {
    let (mut bytes, _) = segment(&three_groups(), 64);
    let formats = [(11, "a newer version"), (9, "an older version"), (1, "an older version")];
    for (found, written) in formats {
        bytes[8] = found;
        let found = found.into();
        let error = scan(&bytes).1.expect_err("another format");
        assert_eq!(error, SegmentError::OtherFormat { found });
        assert!(error.to_string().contains(written), "{error}");
    }

    // A complete frame of a newer version with a correct checksum.
    let (mut bytes, starts) = segment(&[vec![b"one".to_vec()]], 64);
    let frame = starts[0]..bytes.len() - 64;
    bytes[starts[0] + 8] = 2;
    let crc = crc32c::crc32c(&SALT.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &bytes[frame.start..frame.start + 4]);
    let crc = crc32c::crc32c_append(crc, &bytes[frame.start + 8..frame.end]);
    bytes[frame.start + 4..frame.start + 8].copy_from_slice(&crc.to_le_bytes());
    let newer = SegmentError::NewerFrame { offset: starts[0], found: 2 };
    assert_eq!(scan(&bytes).1, Err(newer));
}

#[test]
fn a_file_that_is_no_segment_is_refused() {
    assert_eq!(scan(b"").1, Err(SegmentError::NotASegment));
    assert_eq!(scan(&[0; 4096]).1, Err(SegmentError::NotASegment));
    let (mut bytes, _) = segment(&three_groups(), 0);
    bytes[20] ^= 1;
    assert_eq!(scan(&bytes).1, Err(SegmentError::NotASegment), "a damaged salt");
}

fn groups() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let record = prop::collection::vec(any::<u8>(), 0..80);
    prop::collection::vec(prop::collection::vec(record, 1..4), 1..6)
}

proptest! {
    #[test]
    fn a_truncated_segment_gives_a_prefix_of_its_records(
        groups in groups(),
        cut in any::<prop::sample::Index>(),
        zeros in 0_usize..100,
        most in 1_usize..100,
    ) {
        let (mut bytes, starts) = segment_of(&groups, 0, most);
        let all: Vec<Vec<u8>> = groups.concat();
        let total = bytes.len();
        let len = cut.index(total + 1);
        bytes.truncate(len);
        bytes.resize(len + zeros, 0);
        let (records, end) = scan(&bytes);
        prop_assert_eq!(&records[..], &all[..records.len()]);
        // The header ends with the first record's number, and the bytes cut off may have been
        // zeros.
        let is_whole_header = len > SEGMENT_HEADER_LEN - 8 && len + zeros >= SEGMENT_HEADER_LEN;
        if is_whole_header {
            let ends = starts.iter().skip(1).copied().chain([total]);
            let whole = ends.filter(|&end| end <= len).count();
            prop_assert!(records.len() >= whole && end.is_ok(), "{:?}", end);
        } else {
            prop_assert_eq!(end, Err(SegmentError::NotASegment));
        }
    }

    #[test]
    fn a_flipped_bit_never_gives_a_wrong_record(
        groups in groups(),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
        most in 1_usize..100,
    ) {
        let (mut bytes, starts) = segment_of(&groups, 40, most);
        let all: Vec<Vec<u8>> = groups.concat();
        let damage = at.index(bytes.len());
        bytes[damage] ^= 1 << bit;
        let (records, end) = scan(&bytes);
        prop_assert_eq!(&records[..], &all[..records.len()]);
        let last_group = starts[all.len() - groups[groups.len() - 1].len()];
        if (SEGMENT_HEADER_LEN..last_group).contains(&damage) {
            let is_corrupt = matches!(end, Err(SegmentError::Corrupt { .. }));
            prop_assert!(is_corrupt, "{:?}", end);
        }
        if damage >= last_group {
            prop_assert!(end.is_ok(), "{:?}", end);
        }
    }

    #[test]
    fn arbitrary_bytes_after_a_header_give_no_record_and_no_panic(
        junk in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bytes = SegmentHeader { salt: SALT, first: FIRST }.encode();
        bytes.extend_from_slice(&junk);
        let (records, end) = scan(&bytes);
        prop_assert_eq!(records.len(), 0);
        prop_assert_eq!(end.map(|end| end.offset), Ok(SEGMENT_HEADER_LEN));
        let _ = SegmentHeader::decode(&junk);
    }
}

/// The fuzzer put the highest possible number into a mark, and the scan overflowed counting from
/// it. The same happened with the header, and number 0 is invalid.
#[test]
fn a_position_that_can_not_be_is_an_error_and_nothing_is_counted_on_from_it() {
    for first in [0, (1 << 62) + 1, u64::MAX] {
        let bytes = SegmentHeader { salt: SALT, first: LogPosition(first) }.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Err(SegmentError::NotASegment), "{first}");
    }
    let (mut bytes, _) = segment(&[], 0);
    let position = LogPosition(u64::MAX);
    FrameHeader { kind: Kind::Mark, position, synced: 32 }.encode(SALT, &[], &mut bytes);
    let error = SegmentError::OutOfOrder { offset: 32, expected: FIRST, found: position };
    assert_eq!(scan(&bytes), (Vec::new(), Err(error)));
}
