//! Encoding and checking of one frame of the log.

use bytes::Bytes;

use crate::codec::{Reader, Writer};
use crate::ids::{LogPosition, SnapshotVersion};
use crate::mutate;

/// The version byte of the frames that this program writes.
pub const FRAME_VERSION: u8 = 1;

/// The bytes of a frame before its payload.
pub const FRAME_HEADER_LEN: usize = 26;

/// The maximum length of a frame's payload in bytes, equal to that of a message between nodes. Most
/// records are in one frame; a longer record is split into several.
pub const PAYLOAD_LEN_MAX: usize = 64 << 20;

/// The kind of a frame's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A record of the protocol.
    Record,
    /// A [`Mark`].
    Mark,
    /// The first part of a record that is too long for one frame.
    First,
    /// A part of a long record between the first and the last.
    Middle,
    /// The last part of a long record.
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

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of its content.
    pub kind: Kind,
    /// The record's number; for a mark, the number of the record before it.
    pub position: LogPosition,
    /// The number of bytes of the segment that were durable when the frame was written, counted
    /// from its start.
    pub synced: u64,
}

impl FrameHeader {
    /// Appends a frame with this payload, given in parts, to `out`.
    ///
    /// # Panics
    /// If the payload is longer than [`PAYLOAD_LEN_MAX`].
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

/// Appends a record, given in parts, to `out`. A record longer than `most` bytes is split into
/// several frames. The frames must go into one segment and one group.
///
/// # Panics
/// If `most` is 0, or more than [`PAYLOAD_LEN_MAX`].
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

/// The length of a record of `record_len` bytes in a segment, split into frames of at most `most`
/// bytes.
pub fn encoded_len(record_len: usize, most: usize) -> usize {
    record_len + FRAME_HEADER_LEN * record_len.div_ceil(most).max(1)
}

/// At most `most` bytes of a record, starting at `from`.
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

/// A truncation mark: records below a position are no longer needed, because a checkpoint contains
/// their effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The first record that is still needed.
    pub below: LogPosition,
    /// The checkpoint that the retained records follow. Older checkpoints can no longer be used.
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

    /// Decodes the bytes that [`Mark::encode`] wrote.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        let below = LogPosition(reader.u64("mark").ok()?);
        let checkpoint = SnapshotVersion(reader.u64("mark").ok()?);
        reader.is_empty().then_some(Self { below, checkpoint })
    }
}

/// The content of a segment at some offset.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// Zeros instead of a frame, or the end of the segment.
    Nothing,
    /// A complete frame. Its payload follows the header and ends at `len`, counted from the frame's
    /// start.
    Frame { header: FrameHeader, len: usize },
    /// Bytes that are not a complete frame.
    Bad,
    /// A complete frame written by a newer program.
    Newer(u8),
}

/// Decodes the content that begins at `bytes[0]`. Reads no bytes past the frame.
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
    // The header has all of these 22 bytes, so no read can fail.
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
    let is_whole = checksum(salt, frame) == expected;
    if !mutate!(TornTrusted: is_whole => true) {
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

/// The position in a frame that begins with these bytes, if it is a frame. A cheap test before its
/// checksum is computed.
pub(super) fn claimed_position(header: &[u8; FRAME_HEADER_LEN]) -> Option<LogPosition> {
    let mut reader = Reader::new(&header[8..]);
    let is_ours = reader.u8("frame").ok()? == FRAME_VERSION;
    Kind::from_byte(reader.u8("frame").ok()?)?;
    is_ours.then_some(LogPosition(reader.u64("frame").ok()?))
}

/// The CRC32C of the salt and a frame, without the checksum field.
pub(super) fn checksum(salt: u64, frame: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &frame[..4]);
    crc32c::crc32c_append(crc, &frame[8..])
}
