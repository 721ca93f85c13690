//! One segment: its header, and a scan that stops where the segment can't be believed any more.

use std::fmt;

use bytes::Bytes;

use super::frame::{self, FRAME_HEADER_LEN, Found, Kind, Mark};
use crate::codec::{Reader, Writer};
use crate::ids::LogPosition;

/// The format of the segments that this program writes, and the only one that it reads. Raised when
/// what protocols keep in their records changes, too: nothing else says how those are to be read.
///
/// | format | since then |
/// |---|---|
/// | 1 | |
/// | 2 | Minerva's batches do not repeat values that a call was given |
/// | 3 | footprints say of a row that is written and not read that it is so |
/// | 4 | Calvin's cuts name the reign that they are of, and may be fixed before they are decided |
/// | 5 | cuts say whose turn it is to stand still for a checkpoint |
/// | 6 | what shards send each other says of which cuts it is |
/// | 7 | a record may be in several frames; of rows for other shards there may be too many |
pub const SEGMENT_FORMAT: u16 = 7;

/// The bytes of a segment before its first frame.
pub const SEGMENT_HEADER_LEN: usize = 32;

const MAGIC: [u8; 8] = *b"PANGALOG";

/// No segment begins after this record: there are never so many, and those in it can be counted on
/// from here. The first of all is number 1.
const FIRST_MAX: u64 = 1 << 62;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Mixed into each frame's checksum. Differs in every life of a file.
    pub salt: u64,
    /// The number of the first record in it.
    pub first: LogPosition,
}

impl SegmentHeader {
    /// The header's bytes.
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

    /// Reads what [`SegmentHeader::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not a segment's, or are of another format.
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
        // Before the checksum: another format may have its checksum elsewhere.
        if format != SEGMENT_FORMAT && format != 0 {
            return Err(SegmentError::OtherFormat { found: format });
        }
        let is_position = (1..=FIRST_MAX).contains(&first);
        if format == 0 || crc32c::crc32c(body) != crc || !is_position {
            return Err(SegmentError::NotASegment);
        }
        Ok(Self { salt, first: LogPosition(first) })
    }
}

/// Why a segment can't be read. The reader of the message needs the file's name before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The header is damaged, or the file is something else.
    NotASegment,
    /// The file is of a format that this program does not read.
    OtherFormat {
        /// Its format.
        found: u16,
    },
    /// A frame is of a version that this program does not know.
    NewerFrame {
        /// Where the frame begins.
        offset: usize,
        /// Its version.
        found: u8,
    },
    /// A record that was durable is damaged.
    Corrupt {
        /// Where its frame should begin.
        offset: usize,
        /// Its number.
        position: LogPosition,
    },
    /// A whole record has a number that is not the next.
    OutOfOrder {
        /// Where its frame begins.
        offset: usize,
        /// The number that comes next.
        expected: LogPosition,
        /// The number that is there.
        found: LogPosition,
    },
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASegment => {
                f.write_str("the header is damaged, or this is not a segment of a log")
            }
            Self::OtherFormat { found } => {
                let written = if *found > SEGMENT_FORMAT { "a newer" } else { "an older" };
                write!(
                    f,
                    "log format {found} was written by {written} version of Pangea; this one reads \
                     format {SEGMENT_FORMAT}: dump the data with the version that wrote it, and \
                     restore it with this one"
                )
            }
            Self::NewerFrame { offset, found } => write!(
                f,
                "the record at offset {offset} has version {found}, written by a newer version of \
                 Pangea; this one reads version {}",
                frame::FRAME_VERSION
            ),
            Self::Corrupt { offset, position } => write!(
                f,
                "corrupt at offset {offset}: record {} was durable and is damaged, and there are \
                 good records after it",
                position.0
            ),
            Self::OutOfOrder { offset, expected, found } => write!(
                f,
                "corrupt at offset {offset}: record {} comes next, but record {} is there",
                expected.0, found.0
            ),
        }
    }
}

impl std::error::Error for SegmentError {}

/// What a scan comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Record {
        /// Its number.
        position: LogPosition,
        /// What the protocol wrote. Shares the segment's bytes, if it is in one frame.
        record: Bytes,
    },
    /// Records below a position are given up.
    Mark(Mark),
    /// There is nothing more.
    End(End),
}

/// Where a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Where the next frame goes.
    pub offset: usize,
    /// What was found there instead of zeros, if the last group was not written whole.
    pub torn: Option<Torn>,
}

/// The remains of a group that was not durable when the node died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// How many bytes from the end's offset on have to be overwritten with zeros, so that none of
    /// them can pass for a frame later.
    pub len: usize,
    /// How many whole frames are among them.
    pub frames: usize,
}

/// Reads a segment's frames in order.
#[derive(Debug)]
pub struct SegmentScan {
    header: SegmentHeader,
    bytes: Bytes,
    offset: usize,
    /// The number that the next record has.
    next: LogPosition,
}

impl SegmentScan {
    /// Begins to read the segment that is in `bytes`.
    ///
    /// # Errors
    /// When its header is not good.
    pub fn open(bytes: Bytes) -> Result<Self, SegmentError> {
        let header = SegmentHeader::decode(&bytes)?;
        Ok(Self { header, bytes, offset: SEGMENT_HEADER_LEN, next: header.first })
    }

    /// What the segment says of itself.
    pub fn header(&self) -> SegmentHeader {
        self.header
    }

    /// The number that the next record has.
    pub fn next_position(&self) -> LogPosition {
        self.next
    }

    /// The next item. After [`Item::End`], the same end again.
    ///
    /// # Errors
    /// When something that was durable is damaged.
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
                    // What it is a part of began nowhere.
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

    /// The record whose first part is at the scan's place, and whose second one begins at `offset`.
    /// Where it was not written whole, the segment ends before it.
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
                // It breaks off, and the log goes on.
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

    /// Decides what the first bytes that are no frame mean, or no whole record: see "Torn or
    /// corrupt" in the parent.
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

/// The first place in `bytes`, from `from` on, that looks like a frame later than the one before
/// the record `next`.
fn next_candidate(bytes: &[u8], from: usize, next: LogPosition) -> Option<usize> {
    // Each record takes a frame's header at least, so none has a number further away than this. A
    // mark has the number of the record before it.
    let last = next.0.saturating_add((bytes.len() / FRAME_HEADER_LEN) as u64);
    let mut at = from;
    loop {
        // Most of what is looked at is the zeros of the rest. A frame begins with its length, of
        // which the first three bytes may be zeros too.
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
