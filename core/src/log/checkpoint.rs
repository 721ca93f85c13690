//! Streaming encoding and decoding of a checkpoint. Neither side buffers more than a block.

use std::fmt;

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::store::{RecordHeader, Version};
use crate::value::Value;

/// The checkpoint format that this program writes, and the newest that it reads.
pub const CHECKPOINT_FORMAT: u16 = 1;

/// The maximum length of a block in bytes. One row or the protocol's state must fit, so it is four
/// times the longest message.
pub const BLOCK_LEN_MAX: usize = 256 << 20;

/// A block of rows is closed at this length in bytes. It is long enough to make the header's cost
/// negligible, and short enough to stay in a core's cache while it is written and checked.
const BLOCK_LEN_TARGET: usize = 256 << 10;

const MAGIC: [u8; 8] = *b"PANGACKP";
const PRELUDE_LEN: usize = 12;
const BLOCK_HEADER_LEN: usize = 9;

const TAG_HEADER: u8 = 1;
const TAG_ROWS: u8 = 2;
const TAG_FOOTER: u8 = 3;

/// The header of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// The snapshot version of its rows.
    pub version: SnapshotVersion,
    /// The protocol that wrote it.
    pub protocol: String,
    /// The protocol's own state.
    pub meta: Bytes,
}

/// One row of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The key.
    pub key: Key,
    /// The version: always a value, never a deletion.
    pub version: Version,
}

/// The elements of a checkpoint, in the order in which a [`Decoder`] returns them.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The header. First, once.
    Header(CheckpointHeader),
    /// Rows of one table, in ascending order.
    Rows(TableId, Vec<Row>),
    /// The end: all elements before it are complete.
    Footer {
        /// The total number of rows.
        rows: u64,
    },
}

/// The reason why bytes are not a checkpoint. The caller prefixes the message with the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointError {
    /// The file is not a checkpoint.
    NotACheckpoint,
    /// The file has a format that this program does not know.
    NewerFormat {
        /// The file's format.
        found: u16,
    },
    /// A block is damaged.
    Corrupt {
        /// The file offset of the block.
        offset: u64,
        /// The defect.
        what: &'static str,
    },
    /// The file is truncated.
    Incomplete {
        /// The length of the file in bytes.
        len: u64,
    },
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotACheckpoint => f.write_str("not a checkpoint file"),
            Self::NewerFormat { found } => write!(
                f,
                "checkpoint format {found} was written by a newer version of Pangea; this version \
                 reads formats up to {CHECKPOINT_FORMAT}"
            ),
            Self::Corrupt { offset, what } => write!(f, "corrupt at offset {offset}: {what}"),
            Self::Incomplete { len } => write!(f, "incomplete: the file ends after {len} bytes"),
        }
    }
}

impl std::error::Error for CheckpointError {}

/// Encodes a checkpoint. Each call appends the blocks that it completes to `out`; the rest is
/// buffered.
#[derive(Debug)]
pub struct Encoder {
    version: SnapshotVersion,
    table: TableId,
    /// The encoded rows of `table` whose block is not complete.
    waiting: Vec<u8>,
    waiting_rows: u64,
    last: Option<(TableId, Key)>,
    rows: u64,
    blocks: u64,
}

impl Encoder {
    /// Begins a checkpoint.
    ///
    /// # Panics
    /// If the protocol's state does not fit into a block.
    pub fn new(header: &CheckpointHeader, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&MAGIC);
        out.put_u16(CHECKPOINT_FORMAT);
        out.put_u16(0);
        let mut body = Vec::with_capacity(header.meta.len() + header.protocol.len() + 32);
        body.put_u64(header.version.0);
        body.put_bytes(header.protocol.as_bytes());
        body.put_bytes(&header.meta);
        put_block(TAG_HEADER, &[&body], out);
        Self {
            version: header.version,
            table: TableId(0),
            waiting: Vec::with_capacity(BLOCK_LEN_TARGET),
            waiting_rows: 0,
            last: None,
            rows: 0,
            blocks: 0,
        }
    }

    /// Adds a row. Deletions are left out, because a missing key is equivalent.
    ///
    /// # Panics
    /// If rows do not ascend by table and key, or the row is newer than the checkpoint.
    pub fn push(&mut self, table: TableId, key: &Key, version: &Version, out: &mut Vec<u8>) {
        assert!(version.version <= self.version, "a row is newer than its checkpoint");
        if let Some((last_table, last_key)) = &self.last {
            assert!(
                (*last_table, last_key) < (table, key),
                "rows are pushed in the order of tables and keys"
            );
        }
        let Some(value) = &version.value else { return };
        if table != self.table || self.waiting.len() >= BLOCK_LEN_TARGET {
            self.close_block(out);
        }
        self.table = table;
        self.waiting.put_varint(version.version.0);
        self.waiting.put_bytes(key);
        version.header.encode(&mut self.waiting);
        self.waiting.put_bytes(value);
        self.waiting_rows += 1;
        self.last = Some((table, key.clone()));
    }

    /// Ends the checkpoint and returns its number of rows.
    pub fn finish(mut self, out: &mut Vec<u8>) -> u64 {
        self.close_block(out);
        let mut body = Vec::with_capacity(16);
        body.put_u64(self.rows);
        body.put_u64(self.blocks);
        put_block(TAG_FOOTER, &[&body], out);
        self.rows
    }

    fn close_block(&mut self, out: &mut Vec<u8>) {
        if self.waiting_rows == 0 {
            return;
        }
        let mut counts = Vec::with_capacity(16);
        counts.put_varint(u64::from(self.table.0));
        counts.put_varint(self.waiting_rows);
        put_block(TAG_ROWS, &[&counts, &self.waiting], out);
        self.rows += self.waiting_rows;
        self.blocks += 1;
        self.waiting.clear();
        self.waiting_rows = 0;
    }
}

fn put_block(tag: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    assert!(len <= BLOCK_LEN_MAX, "a block of {len} bytes");
    out.put_u32(len as u32);
    let start = out.len();
    out.put_u32(0);
    out.put_u8(tag);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    let checksum = crc32c::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Decodes a checkpoint from chunks of any length.
#[derive(Debug)]
pub struct Decoder {
    /// The bytes received; those before `taken` have been decoded.
    buffer: Vec<u8>,
    taken: usize,
    /// The number of bytes before the buffer.
    offset: u64,
    stage: Stage,
    version: SnapshotVersion,
    last: Option<(TableId, Key)>,
    rows: u64,
    blocks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Prelude,
    Header,
    Rows,
    Done,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Creates a decoder at the start of a checkpoint.
    pub fn new() -> Self {
        Self {
            buffer: Vec::new(),
            taken: 0,
            offset: 0,
            stage: Stage::Prelude,
            version: SnapshotVersion::ZERO,
            last: None,
            rows: 0,
            blocks: 0,
        }
    }

    /// Appends the next bytes of the file.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.offset += self.taken as u64;
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next element, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// If the bytes are not those of a checkpoint.
    pub fn advance(&mut self) -> Result<Option<Part>, CheckpointError> {
        if self.stage == Stage::Prelude && !self.read_prelude()? {
            return Ok(None);
        }
        let Some((tag, body)) = self.read_block()? else { return Ok(None) };
        let part = match (self.stage, tag) {
            (Stage::Header, TAG_HEADER) => self.read_header(&body),
            (Stage::Rows, TAG_ROWS) => self.read_rows(&body),
            (Stage::Rows, TAG_FOOTER) => self.read_footer(&body),
            _ => Err(DecodeError::new("order of blocks")),
        };
        let offset = self.offset + self.taken as u64;
        let part = part.map_err(|error| CheckpointError::Corrupt { offset, what: error.what })?;
        self.taken += BLOCK_HEADER_LEN + body.len();
        Ok(Some(part))
    }

    /// Checks, after the last byte, that the checkpoint was complete.
    ///
    /// # Errors
    /// If it was not.
    pub fn finish(self) -> Result<(), CheckpointError> {
        let len = self.offset + self.buffer.len() as u64;
        if self.stage == Stage::Prelude && len == 0 {
            return Err(CheckpointError::NotACheckpoint);
        }
        if self.stage != Stage::Done {
            return Err(CheckpointError::Incomplete { len });
        }
        if self.taken < self.buffer.len() {
            let offset = self.offset + self.taken as u64;
            return Err(CheckpointError::Corrupt { offset, what: "bytes after the footer" });
        }
        Ok(())
    }

    fn read_prelude(&mut self) -> Result<bool, CheckpointError> {
        let Some(prelude) = self.buffer.first_chunk::<PRELUDE_LEN>() else { return Ok(false) };
        if prelude[..8] != MAGIC {
            return Err(CheckpointError::NotACheckpoint);
        }
        let found = u16::from_le_bytes([prelude[8], prelude[9]]);
        if found > CHECKPOINT_FORMAT {
            return Err(CheckpointError::NewerFormat { found });
        }
        if found == 0 || prelude[10..] != [0, 0] {
            return Err(CheckpointError::NotACheckpoint);
        }
        self.taken = PRELUDE_LEN;
        self.stage = Stage::Header;
        Ok(true)
    }

    /// Reads and checks the next complete block. The caller advances past it after decoding it.
    fn read_block(&self) -> Result<Option<(u8, Vec<u8>)>, CheckpointError> {
        let offset = self.offset + self.taken as u64;
        let corrupt = |what| CheckpointError::Corrupt { offset, what };
        let rest = &self.buffer[self.taken..];
        if self.stage == Stage::Done && !rest.is_empty() {
            return Err(corrupt("bytes after the footer"));
        }
        let Some(header) = rest.first_chunk::<BLOCK_HEADER_LEN>() else { return Ok(None) };
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if len > BLOCK_LEN_MAX {
            return Err(corrupt("length of a block"));
        }
        let Some(body) = rest.get(BLOCK_HEADER_LEN..BLOCK_HEADER_LEN + len) else {
            return Ok(None);
        };
        if crc32c::crc32c(&rest[8..BLOCK_HEADER_LEN + len]) != crc {
            return Err(corrupt("checksum of a block"));
        }
        Ok(Some((header[8], body.to_vec())))
    }

    fn read_header(&mut self, body: &[u8]) -> Result<Part, DecodeError> {
        const WHAT: &str = "header";
        let mut reader = Reader::new(body);
        self.version = SnapshotVersion(reader.u64(WHAT)?);
        let protocol = String::from_utf8(reader.bytes(WHAT)?.to_vec());
        let protocol = protocol.map_err(|_| DecodeError::new(WHAT))?;
        let meta = Bytes::copy_from_slice(reader.bytes(WHAT)?);
        expect_end(&reader, WHAT)?;
        self.stage = Stage::Rows;
        Ok(Part::Header(CheckpointHeader { version: self.version, protocol, meta }))
    }

    fn read_rows(&mut self, body: &[u8]) -> Result<Part, DecodeError> {
        const WHAT: &str = "rows";
        let mut reader = Reader::new(body);
        let table = u32::try_from(reader.varint(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let table = TableId(table);
        let count = reader.varint(WHAT)?;
        // A row takes at least three bytes, so a false count cannot reserve more memory than the
        // block allows.
        let mut rows = Vec::with_capacity(count.min(body.len() as u64 / 3) as usize);
        for _ in 0..count {
            let version = SnapshotVersion(reader.varint(WHAT)?);
            let key = Key::from(reader.bytes(WHAT)?);
            let header = RecordHeader::decode(&mut reader)?;
            let value = Some(Value::copy_from(reader.bytes(WHAT)?));
            let follows =
                self.last.as_ref().is_none_or(|(t, k)| (*t, k.as_bytes()) < (table, &key[..]));
            if !follows || version > self.version {
                return Err(DecodeError::new("order of rows"));
            }
            self.last = Some((table, key.clone()));
            rows.push(Row { key, version: Version { version, header, value } });
        }
        expect_end(&reader, WHAT)?;
        self.rows += count;
        self.blocks += 1;
        Ok(Part::Rows(table, rows))
    }

    fn read_footer(&mut self, body: &[u8]) -> Result<Part, DecodeError> {
        const WHAT: &str = "footer";
        let mut reader = Reader::new(body);
        let counts = (reader.u64(WHAT)?, reader.u64(WHAT)?);
        expect_end(&reader, WHAT)?;
        if counts != (self.rows, self.blocks) {
            return Err(DecodeError::new("footer: blocks are missing"));
        }
        self.stage = Stage::Done;
        Ok(Part::Footer { rows: self.rows })
    }
}

fn expect_end(reader: &Reader<'_>, what: &'static str) -> Result<(), DecodeError> {
    if reader.is_empty() { Ok(()) } else { Err(DecodeError::new(what)) }
}
