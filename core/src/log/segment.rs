//! One segment: its header, and a scan that stops where the content is no longer intact.

use std::fmt;

use bytes::Bytes;

use super::frame::{self, FRAME_HEADER_LEN, Found, Kind, Mark};
use crate::codec::{Reader, Writer};
use crate::ids::LogPosition;

/// The segment format that this program writes. It also reads the one before. It is also raised
/// when the content of protocol records changes, because records have no version of their own.
///
/// | format | since then |
/// |---|---|
/// | 1 | |
/// | 2 | Minerva's batches do not repeat values that are arguments of a call |
/// | 3 | footprints mark rows that are written and not read |
/// | 4 | Calvin's cuts contain the master term, and may be fixed before they are decided |
/// | 5 | cuts name the replica that has the checkpoint turn |
/// | 6 | messages between shards name the cuts that they belong to |
/// | 7 | a record may be split into several frames; rows for other shards may exceed a limit |
/// | 8 | records name procedures by a hash |
/// | 9 | records name the epochs that are skipped |
/// | 10 | Mako's epochs name slots that move |
pub const SEGMENT_FORMAT: u16 = 10;

/// The oldest format that this program reads: what it contains has not changed since.
const SEGMENT_FORMAT_MIN: u16 = 10;

/// The length of a segment's header in bytes.
pub const SEGMENT_HEADER_LEN: usize = 32;

const MAGIC: [u8; 8] = *b"PANGALOG";

/// The highest number of a segment's first record. No log reaches it, and counting further records
/// from it cannot overflow. The first record of a log has number 1.
const FIRST_MAX: u64 = 1 << 62;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Part of each frame's checksum. Differs each time the file is reused.
    pub salt: u64,
    /// The number of the segment's first record.
    pub first: LogPosition,
}

impl SegmentHeader {
    /// Encodes the header.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(16);
        body.put_u64(self.salt);
        body.put_u64(self.first.0);
        let mut out = Vec::with_capacity(SEGMENT_HEADER_LEN);
        out.extend_from_slice(&MAGIC);
        out.put_u16(SEGMENT_FORMAT);
        out.put_u16(0);
        out.put_u32(crc32c::crc32c(&body));
        out.extend_from_slice(&body);
        assert_eq!(out.len(), SEGMENT_HEADER_LEN);
        out
    }

    /// Decodes the bytes that [`SegmentHeader::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a segment, or have another format.
    pub fn decode(bytes: &[u8]) -> Result<Self, SegmentError> {
        let header = bytes.get(..SEGMENT_HEADER_LEN).ok_or(SegmentError::NotASegment)?;
        let fields = || -> Result<_, crate::codec::DecodeError> {
            let mut reader = Reader::new(header);
            let magic = reader.take(MAGIC.len(), "segment")?;
            let format = reader.u16("segment")?;
            reader.u16("segment")?;
            let crc = reader.u32("segment")?;
            let body = reader.rest();
            Ok((magic, format, crc, body, reader.u64("segment")?, reader.u64("segment")?))
        };
        let (magic, format, crc, body, salt, first) =
            fields().map_err(|_| SegmentError::NotASegment)?;
        if magic != MAGIC {
            return Err(SegmentError::NotASegment);
        }
        // Checked before the checksum, because another format may store its checksum elsewhere.
        if !(SEGMENT_FORMAT_MIN..=SEGMENT_FORMAT).contains(&format) && format != 0 {
            return Err(SegmentError::OtherFormat { found: format });
        }
        let is_position = (1..=FIRST_MAX).contains(&first);
        if format == 0 || crc32c::crc32c(body) != crc || !is_position {
            return Err(SegmentError::NotASegment);
        }
        Ok(Self { salt, first: LogPosition(first) })
    }
}

/// The reason why a segment cannot be read. The caller prefixes the message with the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The header is damaged, or the file is not a segment.
    NotASegment,
    /// The file has a format that this program does not read.
    OtherFormat {
        /// The file's format.
        found: u16,
    },
    /// A frame has a version that this program does not know.
    NewerFrame {
        /// The offset of the frame.
        offset: usize,
        /// The frame's version.
        found: u8,
    },
    /// A durable record is damaged.
    Corrupt {
        /// The offset at which its frame should begin.
        offset: usize,
        /// The record's number.
        position: LogPosition,
    },
    /// A complete record does not have the next number.
    OutOfOrder {
        /// The offset of its frame.
        offset: usize,
        /// The next number in order.
        expected: LogPosition,
        /// The number found.
        found: LogPosition,
    },
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASegment => {
                f.write_str("the header is damaged, or the file is not a log segment")
            }
            Self::OtherFormat { found } => {
                let written = if *found > SEGMENT_FORMAT { "a newer" } else { "an older" };
                write!(
                    f,
                    "log format {found} was written by {written} version of Pangea; this version \
                     reads formats {SEGMENT_FORMAT_MIN} to {SEGMENT_FORMAT}: dump the data with \
                     the version that wrote it, and restore the dump with this one"
                )
            }
            Self::NewerFrame { offset, found } => write!(
                f,
                "the record at offset {offset} has version {found}, written by a newer version of \
                 Pangea; this version reads version {}",
                frame::FRAME_VERSION
            ),
            Self::Corrupt { offset, position } => write!(
                f,
                "corrupt at offset {offset}: record {} was durable and is damaged, but intact \
                 records follow",
                position.0
            ),
            Self::OutOfOrder { offset, expected, found } => write!(
                f,
                "corrupt at offset {offset}: expected record {}, found record {}",
                expected.0, found.0
            ),
        }
    }
}

impl std::error::Error for SegmentError {}

/// The elements that a scan returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Record {
        /// The record's number.
        position: LogPosition,
        /// The content of the record. Shares the segment's memory if it is in one frame.
        record: Bytes,
    },
    /// A truncation mark.
    Mark(Mark),
    /// The end of the segment.
    End(End),
}

/// The end of a segment's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The offset of the next frame to write.
    pub offset: usize,
    /// The remains of the last group, if it was not written completely.
    pub torn: Option<Torn>,
}

/// The remains of a group that was not durable when the node crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The number of bytes from the end's offset that must be overwritten with zeros. Otherwise
    /// some of them could pass for a frame later.
    pub len: usize,
    /// The number of complete frames among them.
    pub frames: usize,
}

/// Reads a segment's frames in order.
#[derive(Debug)]
pub struct SegmentScan {
    header: SegmentHeader,
    bytes: Bytes,
    offset: usize,
    /// The number of the next record.
    next: LogPosition,
}

impl SegmentScan {
    /// Begins a scan of the segment in `bytes`.
    ///
    /// # Errors
    /// If the header is invalid.
    pub fn open(bytes: Bytes) -> Result<Self, SegmentError> {
        let header = SegmentHeader::decode(&bytes)?;
        Ok(Self { header, bytes, offset: SEGMENT_HEADER_LEN, next: header.first })
    }

    /// The segment's header.
    pub fn header(&self) -> SegmentHeader {
        self.header
    }

    /// The number of the next record.
    pub fn next_position(&self) -> LogPosition {
        self.next
    }

    /// Returns the next item. After [`Item::End`], returns the same end again.
    ///
    /// # Errors
    /// If durable content is damaged.
    pub fn advance(&mut self) -> Result<Item, SegmentError> {
        let offset = self.offset;
        match frame::find(self.header.salt, &self.bytes[offset..]) {
            Found::Nothing | Found::Bad => self.end().map(Item::End),
            Found::Newer(found) => Err(SegmentError::NewerFrame { offset, found }),
            Found::Frame { header, len } => {
                let payload = self.bytes.slice(offset + FRAME_HEADER_LEN..offset + len);
                let position = self.next;
                let corrupt = SegmentError::Corrupt { offset, position };
                let item = match header.kind {
                    Kind::Record => {
                        self.expect(header.position, position)?;
                        self.next = LogPosition(position.0 + 1);
                        Item::Record { position, record: payload }
                    }
                    Kind::First => {
                        self.expect(header.position, position)?;
                        return self.rest_of_record(&payload, offset + len);
                    }
                    // The first part of the record is missing.
                    Kind::Middle | Kind::Last => return Err(corrupt),
                    Kind::Mark => {
                        self.expect(LogPosition(header.position.0.saturating_add(1)), position)?;
                        Item::Mark(Mark::decode(&payload).ok_or(corrupt)?)
                    }
                };
                self.offset += len;
                Ok(item)
            }
        }
    }

    /// Reads the rest of a record that begins at the scan's offset and whose second part is at
    /// `offset`. If the record was not written completely, the segment ends before it.
    fn rest_of_record(&mut self, first: &[u8], mut offset: usize) -> Result<Item, SegmentError> {
        let position = self.next;
        let mut record = first.to_vec();
        loop {
            let (header, len) = match frame::find(self.header.salt, &self.bytes[offset..]) {
                Found::Nothing | Found::Bad => return self.end().map(Item::End),
                Found::Newer(found) => return Err(SegmentError::NewerFrame { offset, found }),
                Found::Frame { header, len } => (header, len),
            };
            if !matches!(header.kind, Kind::Middle | Kind::Last) {
                // The record is incomplete, yet the log continues.
                return Err(SegmentError::Corrupt { offset: self.offset, position });
            }
            self.expect(header.position, position)?;
            record.extend_from_slice(&self.bytes[offset + FRAME_HEADER_LEN..offset + len]);
            offset += len;
            if header.kind == Kind::Last {
                (self.offset, self.next) = (offset, LogPosition(position.0 + 1));
                return Ok(Item::Record { position, record: record.into() });
            }
        }
    }

    fn expect(&self, found: LogPosition, expected: LogPosition) -> Result<(), SegmentError> {
        if found == expected {
            return Ok(());
        }
        Err(SegmentError::OutOfOrder { offset: self.offset, expected, found })
    }

    /// Decides whether the first incomplete frame or record is a torn tail or corruption: see "Torn
    /// or corrupt" in the parent module.
    fn end(&self) -> Result<End, SegmentError> {
        let offset = self.offset;
        let rest = &self.bytes[offset..];
        let begins_with_zeros = rest.iter().take(4).all(|&byte| byte == 0);
        let mut torn_len = if begins_with_zeros { 0 } else { rest.len().min(FRAME_HEADER_LEN) };
        let (mut frames, mut at) = (0, 0);
        while let Some(candidate) = next_candidate(rest, at, self.next) {
            match frame::find(self.header.salt, &rest[candidate..]) {
                Found::Frame { header, len } => {
                    if header.synced > offset as u64 {
                        return Err(SegmentError::Corrupt { offset, position: self.next });
                    }
                    frames += 1;
                    at = candidate + len;
                    torn_len = at;
                }
                Found::Nothing | Found::Bad | Found::Newer(_) => at = candidate + 1,
            }
        }
        let torn = (torn_len > 0).then_some(Torn { len: torn_len, frames });
        Ok(End { offset, torn })
    }
}

/// The first offset in `bytes`, at or after `from`, that looks like a frame after the record before
/// `next`.
fn next_candidate(bytes: &[u8], from: usize, next: LogPosition) -> Option<usize> {
    // Each record takes at least a frame header, which bounds its number. A mark has the number of
    // the record before it.
    let last = next.0.saturating_add((bytes.len() / FRAME_HEADER_LEN) as u64);
    let mut at = from;
    loop {
        // Skips zeros, of which most of the rest consists. A frame begins with its length, of which
        // the first three bytes may be zeros too.
        let zeros = bytes.get(at..)?.iter().position(|&byte| byte != 0)?;
        at += zeros.saturating_sub(3);
        for _ in 0..4 {
            let header = bytes.get(at..)?.first_chunk()?;
            let position = frame::claimed_position(header);
            if position.is_some_and(|it| (next.0.saturating_sub(1)..=last).contains(&it.0)) {
                return Some(at);
            }
            at += 1;
        }
    }
}
