//! The catalog: which tables there are, kept in the store like any other data.
//!
//! Table 1 holds one record for each table, under its name, and a counter from which tables get
//! their numbers. A schema change is therefore a transaction like any other, and a statement that
//! planned with a schema has read that schema's record.
//!
//! ```text
//!   00         -> next table number, u32
//!   01 name    -> version u8, schema
//! ```

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::TableId;
use pangea_core::key::{Key, KeyRange};
use pangea_core::txn::{Context, Stop};
use pangea_core::value::Value;

use crate::error::Failure;
use crate::types::{ColumnType, SqlType};

/// The table that holds the catalog.
pub const CATALOG: TableId = TableId(1);
/// The first number that a user's table gets; those below belong to the system and to workloads.
pub const USER_TABLE_FIRST: u32 = 1_000;

const COUNTER_KEY: &[u8] = &[0];
const TABLE_PREFIX: u8 = 1;
/// The layout of a schema that this code writes.
const VERSION: u8 = 1;

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: ColumnType,
    /// Whether NULL is refused.
    pub is_not_null: bool,
    /// The SQL text of its default.
    pub default: Option<String>,
}

/// A table's schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its number in the store.
    pub id: TableId,
    /// Its name.
    pub name: String,
    /// Its columns, in order.
    pub columns: Vec<Column>,
    /// The positions of the columns of its primary key, in the key's order. None means that rows
    /// are kept under hidden keys.
    pub primary_key: Vec<usize>,
    /// The name of the primary key's constraint.
    pub primary_key_name: String,
}

impl Table {
    /// The types of the columns.
    pub fn types(&self) -> impl ExactSizeIterator<Item = SqlType> + '_ {
        self.columns.iter().map(|column| column.ty.base)
    }

    fn encode(&self) -> Value {
        let mut out = Vec::new();
        out.put_u8(VERSION);
        out.put_varint(self.id.0.into());
        out.put_bytes(self.name.as_bytes());
        out.put_varint(self.columns.len() as u64);
        for column in &self.columns {
            out.put_bytes(column.name.as_bytes());
            out.put_u32(column.ty.base.oid());
            out.put_u32(column.ty.modifier as u32);
            out.put_u8(u8::from(column.is_not_null) | u8::from(column.default.is_some()) << 1);
            if let Some(default) = &column.default {
                out.put_bytes(default.as_bytes());
            }
        }
        out.put_varint(self.primary_key.len() as u64);
        self.primary_key.iter().for_each(|&column| out.put_varint(column as u64));
        out.put_bytes(self.primary_key_name.as_bytes());
        Value::from(out)
    }

    /// Reads a schema.
    ///
    /// # Errors
    /// When the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        if from.u8("schema version")? != VERSION {
            return Err(DecodeError::new("schema version"));
        }
        let id =
            u32::try_from(from.varint("table id")?).map_err(|_| DecodeError::new("table id"))?;
        let name = text(&mut from)?;
        let columns = (0..from.count("columns")?)
            .map(|_| decode_column(&mut from))
            .collect::<Result<Vec<_>, _>>()?;
        let primary_key = (0..from.count("primary key")?)
            .map(|_| {
                let column = from.varint("primary key")? as usize;
                (column < columns.len()).then_some(column).ok_or(DecodeError::new("primary key"))
            })
            .collect::<Result<_, _>>()?;
        let primary_key_name = text(&mut from)?;
        Ok(Self { id: TableId(id), name, columns, primary_key, primary_key_name })
    }
}

fn text(from: &mut Reader<'_>) -> Result<String, DecodeError> {
    let bytes = from.bytes("name")?.to_vec();
    String::from_utf8(bytes).map_err(|_| DecodeError::new("name"))
}

fn decode_column(from: &mut Reader<'_>) -> Result<Column, DecodeError> {
    let name = text(from)?;
    let base = SqlType::from_oid(from.u32("type")?).ok_or(DecodeError::new("type"))?;
    let modifier = from.u32("type modifier")? as i32;
    let flags = from.u8("column flags")?;
    let default = if flags & 2 == 2 { Some(text(from)?) } else { None };
    Ok(Column { name, ty: ColumnType { base, modifier }, is_not_null: flags & 1 == 1, default })
}

/// The key of a table's schema.
pub fn table_key(name: &str) -> Key {
    let mut key = Vec::with_capacity(name.len() + 1);
    key.push(TABLE_PREFIX);
    key.extend_from_slice(name.as_bytes());
    Key::from(&key[..])
}

/// The name of the table whose schema has this key.
pub(crate) fn table_of_key(key: &[u8]) -> Option<&str> {
    let (&prefix, name) = key.split_first()?;
    std::str::from_utf8(name).ok().filter(|_| prefix == TABLE_PREFIX)
}

/// The keys of all schemas.
pub fn table_keys() -> KeyRange {
    KeyRange::prefix(&[TABLE_PREFIX])
}

/// Writes a table's schema.
///
/// # Errors
/// When the executor needs the run to end.
pub fn create(table: &Table, cx: &mut dyn Context) -> Result<(), Stop> {
    cx.put(CATALOG, table_key(&table.name), table.encode())
}

/// Deletes a table's schema.
///
/// # Errors
/// When the executor needs the run to end.
pub fn drop(name: &str, cx: &mut dyn Context) -> Result<(), Stop> {
    cx.delete(CATALOG, table_key(name))
}

/// The number of a new table. Numbers are never used again.
///
/// # Errors
/// When the counter is malformed, or the executor needs the run to end.
pub(crate) fn next_table_id(cx: &mut dyn Context) -> Result<TableId, Failure> {
    let next = match cx.get(CATALOG, COUNTER_KEY)? {
        Some(counter) => Reader::new(&counter).u32("table counter")?,
        None => USER_TABLE_FIRST,
    };
    assert!(next < u32::MAX, "table numbers ran out");
    cx.put(CATALOG, Key::from(COUNTER_KEY), Value::copy_from(&(next + 1).to_le_bytes()))?;
    Ok(TableId(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_survives_its_encoding() {
        let column = |name: &str, base, default: Option<&str>| Column {
            name: name.to_owned(),
            ty: ColumnType::from(base),
            is_not_null: default.is_none(),
            default: default.map(str::to_owned),
        };
        let table = Table {
            id: TableId(1_234),
            name: "t".to_owned(),
            columns: vec![
                column("a", SqlType::Int4, None),
                column("b", SqlType::Text, Some("'x'")),
            ],
            primary_key: vec![1, 0],
            primary_key_name: "t_pkey".to_owned(),
        };
        let bytes = table.encode();
        assert_eq!(Table::decode(&bytes), Ok(table));
        for len in 0..bytes.len() {
            assert!(Table::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }
}
