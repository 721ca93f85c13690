//! The read and write sets of a run.

use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{SnapshotVersion, TableId, TxnId};
use crate::key::{Key, KeyRange};
use crate::mutate;
use crate::value::Value;

/// The version of a key that a read returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadVersion {
    /// The key did not exist.
    Absent,
    /// The version that became final at this point of the serial order.
    At(SnapshotVersion),
    /// The value written by an uncommitted transaction of the reader's node.
    Local(TxnId),
    /// No value, because an uncommitted transaction of the reader's node deleted the key.
    LocalDeleted(TxnId),
    /// Any version: the reader depends only on the existence of the key.
    Present,
}

/// A read of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct PointRead {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: Key,
    /// The version that the read returned.
    pub seen: ReadVersion,
}

/// A read of a range, with all keys in it, so that insertions and deletions are detected.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeRead {
    /// The table.
    pub table: TableId,
    /// The range that was read, truncated where the scan stopped.
    pub range: KeyRange,
    /// The keys found, in ascending order, with their versions. Includes keys that an uncommitted
    /// local transaction deleted, as [`ReadVersion::LocalDeleted`].
    pub rows: Vec<(Key, ReadVersion)>,
}

/// The reads of a run, except those of its own writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadSet {
    /// Keys read one by one.
    pub points: Vec<PointRead>,
    /// Ranges read.
    pub ranges: Vec<RangeRead>,
}

/// One key written.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: Key,
    /// The new value; `None` deletes the key.
    pub value: Option<Value>,
}

impl ReadSet {
    /// Whether there are no reads.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.ranges.is_empty()
    }

    /// Adds the reads of another set.
    pub fn append(&mut self, mut other: Self) {
        self.points.append(&mut other.points);
        self.ranges.append(&mut other.ranges);
    }

    /// Appends the read set to `out`. [`ReadSet::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.points.len() as u64);
        for read in &self.points {
            out.put_varint(u64::from(read.table.0));
            out.put_bytes(&read.key);
            read.seen.encode(out);
        }
        out.put_varint(self.ranges.len() as u64);
        for read in &self.ranges {
            out.put_varint(u64::from(read.table.0));
            encode_range(&read.range, out);
            out.put_varint(read.rows.len() as u64);
            for (key, seen) in &read.rows {
                out.put_bytes(key);
                seen.encode(out);
            }
        }
    }

    /// Decodes the bytes that [`ReadSet::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let points = (0..from.count("read set")?)
            .map(|_| {
                Ok(PointRead {
                    table: decode_table(from)?,
                    key: Key::from(from.bytes("key")?),
                    seen: ReadVersion::decode(from)?,
                })
            })
            .collect::<Result<_, DecodeError>>()?;
        let ranges = (0..from.count("read set")?)
            .map(|_| {
                let table = decode_table(from)?;
                let range = decode_range(from)?;
                let rows = (0..from.count("range read")?)
                    .map(|_| Ok((Key::from(from.bytes("key")?), ReadVersion::decode(from)?)))
                    .collect::<Result<_, DecodeError>>()?;
                Ok(RangeRead { table, range, rows })
            })
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self { points, ranges })
    }
}

impl ReadVersion {
    const ABSENT: u8 = 0;
    const AT: u8 = 1;
    const LOCAL: u8 = 2;
    const LOCAL_DELETED: u8 = 3;
    const PRESENT: u8 = 4;

    /// The read of a value or deletion that an uncommitted local transaction wrote.
    pub fn local(txn: TxnId, is_live: bool) -> Self {
        if is_live { Self::Local(txn) } else { Self::LocalDeleted(txn) }
    }

    /// The uncommitted local transaction whose write was read.
    pub fn local_writer(self) -> Option<TxnId> {
        match self {
            Self::Local(txn) | Self::LocalDeleted(txn) => Some(txn),
            Self::Absent | Self::At(_) | Self::Present => None,
        }
    }

    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Absent => out.put_u8(Self::ABSENT),
            Self::Present => out.put_u8(Self::PRESENT),
            Self::At(version) => {
                out.put_u8(Self::AT);
                out.put_varint(version.0);
            }
            Self::Local(txn) => {
                out.put_u8(Self::LOCAL);
                out.put_u64(txn.to_bits());
            }
            Self::LocalDeleted(txn) => {
                out.put_u8(Self::LOCAL_DELETED);
                out.put_u64(txn.to_bits());
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u8("version seen")? {
            Self::ABSENT => Ok(Self::Absent),
            Self::PRESENT => Ok(Self::Present),
            Self::AT => Ok(Self::At(SnapshotVersion(from.varint("version seen")?))),
            Self::LOCAL => Ok(Self::Local(TxnId::from_bits(from.u64("version seen")?))),
            Self::LOCAL_DELETED => {
                Ok(Self::LocalDeleted(TxnId::from_bits(from.u64("version seen")?)))
            }
            _ => Err(DecodeError::new("version seen")),
        }
    }
}

impl Write {
    /// Appends the write to `out`. [`Write::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(u64::from(self.table.0) << 1 | u64::from(self.value.is_some()));
        out.put_bytes(&self.key);
        if let Some(value) = &self.value {
            out.put_bytes(value);
        }
    }

    /// Decodes the bytes that [`Write::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let tagged = from.varint("write")?;
        let table = u32::try_from(tagged >> 1).map_err(|_| DecodeError::new("table id"))?;
        let key = Key::from(from.bytes("key")?);
        let is_put = tagged & 1 == 1;
        let value = is_put.then(|| from.bytes("value").map(Value::copy_from)).transpose()?;
        let value = mutate!(DeletionLostInCodec: value => value.or(Some(Value::copy_from(&[]))));
        Ok(Self { table: TableId(table), key, value })
    }
}

/// Appends a range to `out`.
pub(crate) fn encode_range(range: &KeyRange, out: &mut Vec<u8>) {
    out.put_bytes(&range.start);
    out.put_u8(u8::from(range.end.is_some()));
    if let Some(end) = &range.end {
        out.put_bytes(end);
    }
}

/// Decodes the bytes that [`encode_range`] wrote.
pub(crate) fn decode_range(from: &mut Reader<'_>) -> Result<KeyRange, DecodeError> {
    let start = from.bytes("range")?.to_vec();
    let end = match from.u8("range")? {
        0 => None,
        1 => Some(from.bytes("range")?.to_vec()),
        _ => return Err(DecodeError::new("range")),
    };
    Ok(KeyRange { start, end })
}

/// Decodes a table id.
pub(crate) fn decode_table(from: &mut Reader<'_>) -> Result<TableId, DecodeError> {
    let id = u32::try_from(from.varint("table id")?).map_err(|_| DecodeError::new("table id"))?;
    Ok(TableId(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    #[test]
    fn a_read_set_survives_its_encoding() {
        let seen = [
            ReadVersion::Absent,
            ReadVersion::At(SnapshotVersion(300)),
            ReadVersion::Local(TxnId::new(NodeId(2), 9)),
            ReadVersion::Present,
        ];
        let points = seen
            .iter()
            .map(|&seen| PointRead { table: TableId(7), key: Key::from(&b"k"[..]), seen })
            .collect();
        let rows = seen.iter().map(|&seen| (Key::from(&b"row"[..]), seen)).collect();
        let ranges = vec![RangeRead { table: TableId(1), range: KeyRange::prefix(b"r"), rows }];
        let set = ReadSet { points, ranges };
        let mut bytes = Vec::new();
        set.encode(&mut bytes);
        assert_eq!(ReadSet::decode(&mut Reader::new(&bytes)), Ok(set));
        for len in 0..bytes.len() {
            assert!(
                ReadSet::decode(&mut Reader::new(&bytes[..len])).is_err(),
                "truncated to {len}"
            );
        }
    }

    #[test]
    fn a_write_and_a_deletion_survive_their_encoding() {
        for value in [None, Some(Value::copy_from(b"")), Some(Value::copy_from(b"v"))] {
            let write = Write { table: TableId(300), key: Key::from(&b"k"[..]), value };
            let mut bytes = Vec::new();
            write.encode(&mut bytes);
            assert_eq!(Write::decode(&mut Reader::new(&bytes)), Ok(write));
        }
    }
}
