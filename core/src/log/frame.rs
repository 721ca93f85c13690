//! One frame of the log: how it is written, and whether bytes are one.

use bytes::Bytes;

use crate::codec::{Reader, Writer};
use crate::ids::{LogPosition, SnapshotVersion};
use crate::planted::{Bug, is_planted};

/// The version byte of the frames that this program writes.
pub const FRAME_VERSION: u8 = 1;

/// The bytes of a frame before its payload.
pub const FRAME_HEADER_LEN: usize = 26;

/// The longest payload of a frame, as long as the longest message between nodes: most records are
/// in one frame. A longer one is in several.
pub const PAYLOAD_LEN_MAX: usize = 64 << 20;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A record of the protocol.
    Record,
    /// A [`Mark`].
    Mark,
    /// The first part of a record that is too long for a frame.
    First,
    /// A later part of it, but for the last.
    Middle,
    /// The last part of it.
    Last,
}

impl Kind {
    const RECORD: u8 = 1;
    const MARK: u8 = 2;
    const FIRST: u8 = 3;
    const MIDDLE: u8 = 4;
    const LAST: u8 = 5;

    fn to_byte(self) -> u8 {
        match self {
            Self::Record => Self::RECORD,
            Self::Mark => Self::MARK,
            Self::First => Self::FIRST,
            Self::Middle => Self::MIDDLE,
            Self::Last => Self::LAST,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            Self::RECORD => Some(Self::Record),
            Self::MARK => Some(Self::Mark),
            Self::FIRST => Some(Self::First),
            Self::MIDDLE => Some(Self::Middle),
            Self::LAST => Some(Self::Last),
            _ => None,
        }
    }
}

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it holds.
    pub kind: Kind,
    /// The record's number; for a mark, the number of the record before it.
    pub position: LogPosition,
    /// How much of the segment was durable when the frame was written, in bytes from its start.
    pub synced: u64,
}

impl FrameHeader {
    /// Appends a frame with this payload, given in parts, to `out`.
    ///
    /// # Panics
    /// When the payload is longer than [`PAYLOAD_LEN_MAX`].
    pub fn encode(&self, salt: u64, payload: &[Bytes], out: &mut Vec<u8>) {
        let payload_len: usize = payload.iter().map(Bytes::len).sum();
        assert!(payload_len <= PAYLOAD_LEN_MAX, "a frame of {payload_len} bytes");
        let start = out.len();
        out.put_u32((FRAME_HEADER_LEN + payload_len) as u32);
        out.put_u32(0);
        out.put_u8(FRAME_VERSION);
        out.put_u8(self.kind.to_byte());
        out.put_u64(self.position.0);
        out.put_u64(self.synced);
        payload.iter().for_each(|part| out.extend_from_slice(part));
        let checksum = checksum(salt, &out[start..]);
        out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Appends a record, given in parts, to `out`: in one frame, or in several where it has more bytes
/// than `most`, which is [`PAYLOAD_LEN_MAX`] or less. They belong into one segment, and into one
/// group.
///
/// # Panics
/// When `most` is 0, or more than a frame can hold.
pub fn encode_record(
    (position, synced): (LogPosition, u64),
    salt: u64,
    record: &[Bytes],
    most: usize,
    out: &mut Vec<u8>,
) {
    assert!((1..=PAYLOAD_LEN_MAX).contains(&most), "frames of {most} bytes");
    let len: usize = record.iter().map(Bytes::len).sum();
    let mut put = |kind, payload: &[Bytes]| {
        FrameHeader { kind, position, synced }.encode(salt, payload, out);
    };
    if len <= most {
        return put(Kind::Record, record);
    }
    for from in (0..len).step_by(most) {
        let kind = match from {
            0 => Kind::First,
            _ if from + most >= len => Kind::Last,
            _ => Kind::Middle,
        };
        put(kind, &cut(record, from, most));
    }
}

/// How long a record of so many bytes is in a segment, in frames of which none holds more than
/// `most`.
pub fn encoded_len(record_len: usize, most: usize) -> usize {
    record_len + FRAME_HEADER_LEN * record_len.div_ceil(most).max(1)
}

/// So many bytes of a record from there on, or what there is.
fn cut(record: &[Bytes], from: usize, most: usize) -> Vec<Bytes> {
    let mut end = 0;
    let within = |part: &Bytes| {
        let start = end;
        end += part.len();
        let (first, last) = (from.max(start), (from + most).min(end));
        (first < last).then(|| part.slice(first - start..last - start))
    };
    record.iter().filter_map(within).collect()
}

/// The records below a position are given up, because a checkpoint holds what they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The first record that is kept.
    pub below: LogPosition,
    /// The checkpoint that the kept records begin from: an older one can't be used any more.
    pub checkpoint: SnapshotVersion,
}

impl Mark {
    /// The payload of the frame.
    pub fn encode(&self) -> Bytes {
        let mut payload = Vec::with_capacity(16);
        payload.put_u64(self.below.0);
        payload.put_u64(self.checkpoint.0);
        Bytes::from(payload)
    }

    /// Reads what [`Mark::encode`] wrote.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        let below = LogPosition(reader.u64("mark").ok()?);
        let checkpoint = SnapshotVersion(reader.u64("mark").ok()?);
        reader.is_empty().then_some(Self { below, checkpoint })
    }
}

/// What there is at some place of a segment.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// Where a frame would begin there are zeros, or the segment ends.
    Nothing,
    /// A whole frame; its payload is what follows the header, up to `len` from its start.
    Frame { header: FrameHeader, len: usize },
    /// Bytes that are no frame, or not all of one.
    Bad,
    /// A whole frame that a newer program wrote.
    Newer(u8),
}

/// Looks at what begins with `bytes[0]`. Reads nothing past the frame.
pub(super) fn find(salt: u64, bytes: &[u8]) -> Found {
    let Some(length) = bytes.first_chunk::<4>() else { return Found::Nothing };
    let len = u32::from_le_bytes(*length) as usize;
    if len == 0 {
        return Found::Nothing;
    }
    let Some(frame) = bytes.get(..len) else { return Found::Bad };
    if !(FRAME_HEADER_LEN..=FRAME_HEADER_LEN + PAYLOAD_LEN_MAX).contains(&len) {
        return Found::Bad;
    }
    let mut reader = Reader::new(&frame[4..FRAME_HEADER_LEN]);
    // The header's 22 bytes are there, so none of these reads can fail.
    let mut next = || -> Option<_> {
        Some((
            reader.u32("frame").ok()?,
            reader.u8("frame").ok()?,
            reader.u8("frame").ok()?,
            LogPosition(reader.u64("frame").ok()?),
            reader.u64("frame").ok()?,
        ))
    };
    let Some((expected, version, kind, position, synced)) = next() else { return Found::Bad };
    if checksum(salt, frame) != expected && !is_planted(Bug::TornTrusted) {
        return Found::Bad;
    }
    if version != FRAME_VERSION {
        return Found::Newer(version);
    }
    match Kind::from_byte(kind) {
        Some(kind) => Found::Frame { header: FrameHeader { kind, position, synced }, len },
        None => Found::Bad,
    }
}

/// The position that a frame with these first bytes would have, were it one. A cheap look before
/// its checksum is worked out.
pub(super) fn claimed_position(header: &[u8; FRAME_HEADER_LEN]) -> Option<LogPosition> {
    let mut reader = Reader::new(&header[8..]);
    let is_ours = reader.u8("frame").ok()? == FRAME_VERSION;
    Kind::from_byte(reader.u8("frame").ok()?)?;
    is_ours.then_some(LogPosition(reader.u64("frame").ok()?))
}

/// The CRC32C of the salt and of a frame but for its own field.
pub(super) fn checksum(salt: u64, frame: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &frame[..4]);
    crc32c::crc32c_append(crc, &frame[8..])
}
