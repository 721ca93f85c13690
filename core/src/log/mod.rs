//! The formats of a replica's log and checkpoints, without file access.
//!
//! This module contains only functions of bytes. A driver reads and writes the files and decides
//! when they are durable. The module defines their content and determines, after a crash, which
//! part of it is intact.
//!
//! # The log
//!
//! The log is a sequence of segments. Each is a file of a fixed size that is filled in advance, so
//! that a sync need not write metadata. A segment is a header followed by frames:
//!
//! ```text
//! segment   0          8         10         12         16        24        32
//!           | PANGALOG | version | reserved | crc32c   | salt    | first   | frame | frame | 0 0 0
//!           | 8 bytes  | u16     | u16      | u32 of   | u64     | u64     |
//!                                             16..32
//!
//! frame     0        4        8         9      10         18       26
//!           | length | crc32c | version | kind | position | synced | payload ... |
//!           | u32    | u32    | u8      | u8   | u64      | u64    | length - 26  |
//!                                     kind 1: a record, the payload is the record
//!                                     kind 2: a mark, the payload is truncated below u64,
//!                                             checkpoint u64
//!                                     kind 3, 4, 5: the first, a later and the last part of a
//!                                             record
//! ```
//!
//! Numbers are little-endian. The length counts the whole frame, so it is never 0; four zero bytes
//! in place of a frame mark the end. The CRC covers the segment's salt, the length and all bytes
//! after the CRC itself. Each reuse of a file gets a new salt. Neither the old content of a
//! recycled file nor a payload that looks like a frame can therefore pass for a frame.
//!
//! Records are numbered without gaps. A truncation mark has the number of the record before it. It
//! states that records below a position are no longer needed, and which checkpoint replaces them.
//! Each segment begins with a mark.
//!
//! A record that is longer than the maximum frame is split into several consecutive frames, all
//! with its number. They are in one segment and in one group.
//!
//! ## Torn or corrupt
//!
//! Frames are written in groups, and a group is synced as a whole. After a crash any part of the
//! last group may be missing: not only its end, but also a page in its middle. A frame that was
//! durable cannot be missing. The field `synced`, the number of durable bytes of the segment when
//! the frame was written, distinguishes the two cases:
//!
//! - Corrupt: a good frame follows a bad one, and was written when the bad one's place was already
//!   durable. Durable data was lost, and the scan fails with [`SegmentError::Corrupt`].
//! - Torn: in all other cases the tail is [torn](Torn). None of it was ever acknowledged, and it is
//!   cut off. If any frame of a record is missing, the whole record belongs to the torn tail.
//!
//! The last group of a log has no later frame to vouch for it, so damage to it looks like a torn
//! tail. All of a segment is durable before the next one is written to.
//!
//! # A checkpoint
//!
//! A checkpoint is one file. It contains the rows of the store that a reader at one version sees,
//! sorted within each table.
//!
//! ```text
//! prelude   | PANGACKP | format u16 | reserved u16 |
//! block     | length u32 | crc32c u32 of tag and body | tag u8 | body ... |
//!   tag 1   header: version u64, protocol bytes, meta bytes       (first, once)
//!   tag 2   rows:   table varint, rows varint, rows ...           (any number)
//!             row:  version varint, key bytes, header, value bytes
//!   tag 3   footer: rows u64, row blocks u64                      (last, once; then the file ends)
//! ```
//!
//! `bytes` is a varint length followed by that many bytes. A row's header is encoded by
//! [`RecordHeader::encode`](crate::store::RecordHeader::encode). Tables ascend from block to block,
//! and keys ascend within a table, so a lost, repeated or swapped block is detected. A file without
//! a footer is not a checkpoint.

mod checkpoint;
mod frame;
mod segment;

pub use checkpoint::{
    BLOCK_LEN_MAX, CHECKPOINT_FORMAT, CheckpointError, CheckpointHeader, Decoder, Encoder, Part,
    Row,
};
pub use frame::{
    FRAME_HEADER_LEN, FRAME_VERSION, FrameHeader, Kind, Mark, PAYLOAD_LEN_MAX, encode_record,
    encoded_len,
};
pub use segment::{
    End, Item, SEGMENT_FORMAT, SEGMENT_HEADER_LEN, SegmentError, SegmentHeader, SegmentScan, Torn,
};

#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod segment_tests;
