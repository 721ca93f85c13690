//! What a replica writes down: the bytes of its log and of its checkpoints, without the files.
//!
//! Everything here is a function of bytes. A driver reads and writes the files and decides when
//! they are durable; this module says what is in them and, after a crash, how far they can be
//! believed.
//!
//! # The log
//!
//! The log is a row of segments, each a file of a fixed size that was filled in advance, so that a
//! sync has no metadata to write. A segment is a header and then frames, one after the other:
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
//! Numbers are little-endian. The length counts the whole frame, so it is never 0: four zero bytes
//! where a frame would begin are the end. The CRC covers the segment's salt, the length and all
//! that follows it. The salt differs in every life of a file, so that neither what a recycled file
//! held before nor a payload that looks like a frame can pass for one.
//!
//! Records are numbered without gaps. A mark has the number of the record before it, and says that
//! the records below a position are given up, and for which checkpoint. Each segment begins with
//! one.
//!
//! A record that is longer than a frame may be is in several, one behind the other, all with its
//! number. They are in one segment and in one group.
//!
//! ## Torn or corrupt
//!
//! Frames are written in groups and a group is synced as a whole, so that after a crash any part of
//! the last group may be missing: its end, but also a page in its middle. A frame that was durable
//! can't be missing. `synced` tells the two apart: it is how many bytes of the segment were durable
//! when the frame was written. Where a frame is bad and a good one follows that was written when
//! the bad one's place was durable, something durable was lost: that log is
//! [`SegmentError::Corrupt`]. Otherwise the tail is [torn](Torn): nothing in it was ever
//! acknowledged, and it is cut off. A record of which a frame is missing belongs to the tail with
//! all that is there of it. (The last group of a log has nothing after it to vouch for it: damage
//! to it looks like a torn tail. All of a segment is durable before the next one is written to.)
//!
//! # A checkpoint
//!
//! One file: the rows of the store that a reader at one version sees, sorted within each table.
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
//! `bytes` is a varint length and that many bytes; a row's header is the protocol's
//! ([`RecordHeader::encode`](crate::store::RecordHeader::encode)). Tables ascend from block to block and keys
//! within a table, so that a block that was lost, repeated or swapped is seen. A file without its
//! footer is not a checkpoint.

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
