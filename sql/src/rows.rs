//! The encoding of rows.
//!
//! ```text
//!   version u8 | columns, varint | NULL bitmap, a bit a column, lowest first | the other values
//! ```
//!
//! | type | bytes |
//! |---|---|
//! | boolean | one |
//! | integers, date, time, timestamps | zigzag varint |
//! | interval | zigzag varints: months, days, microseconds |
//! | floats | eight, little-endian |
//! | numeric | scale as varint, length, unscaled as signed little-endian |
//! | strings, json, bytea | length, bytes |
//! | uuid | sixteen |
//! | enums | length of the place, place; length of the text and one, text |
//! | jsonb | as encoded by [`Json::encode`] |
//! | arrays | number of dimensions, length of each; for each value 0, or 1 and the value |
//!
//! The text of an enum value belongs to its type, so rows in the store do not contain it.

use std::sync::Arc;

use pangea_core::codec::{DecodeError, Reader, Writer};

use crate::error::SqlError;
use crate::types::SqlType;
use crate::types::array::{Array, DIMENSIONS_MAX};
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::types::json::Json;
use crate::types::label::{Label, Place};
use crate::types::numeric::Numeric;

/// The version of the encoding.
const VERSION: u8 = 2;

/// Appends a row. [`decode`] is the inverse, given the same types.
pub(crate) fn encode(row: &[Datum], out: &mut Vec<u8>) {
    encode_as(Texts::Kept, row, out);
}

/// Appends a row for the store. Enum values are encoded without their texts.
pub(crate) fn encode_stored(row: &[Datum], out: &mut Vec<u8>) {
    encode_as(Texts::LeftOut, row, out);
}

/// Whether the texts of enum values are encoded.
#[derive(Clone, Copy, PartialEq)]
enum Texts {
    Kept,
    LeftOut,
}

fn encode_as(texts: Texts, row: &[Datum], out: &mut Vec<u8>) {
    out.put_u8(VERSION);
    out.put_varint(row.len() as u64);
    let bitmap = out.len();
    out.resize(bitmap + row.len().div_ceil(8), 0);
    for (at, datum) in row.iter().enumerate() {
        if datum.is_null() {
            out[bitmap + at / 8] |= 1 << (at % 8);
        } else {
            encode_datum(texts, datum, out);
        }
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn encode_datum(texts: Texts, datum: &Datum, out: &mut Vec<u8>) {
    match datum {
        Datum::Null => unreachable!("NULL is in the bitmap alone"),
        Datum::Bool(value) => out.put_u8(u8::from(*value)),
        Datum::Int(value) | Datum::Timestamp(value) | Datum::Time(value) => {
            out.put_varint(zigzag(*value))
        }
        Datum::Date(value) => out.put_varint(zigzag((*value).into())),
        Datum::Interval(value) => {
            for part in [value.months.into(), value.days.into(), value.micros] {
                out.put_varint(zigzag(part));
            }
        }
        Datum::Float(value) => out.put_u64(value.to_bits()),
        Datum::Numeric(value) => {
            out.put_varint(value.scale().into());
            value.with_bytes(|bytes| out.put_bytes(bytes));
        }
        Datum::Text(value) => out.put_bytes(value.as_bytes()),
        Datum::Bytea(value) => out.put_bytes(value),
        Datum::Uuid(value) => out.extend_from_slice(value),
        Datum::Jsonb(json) => json.encode(out),
        Datum::Enum(label) => {
            out.put_bytes(label.place().map_or(&[][..], Place::as_bytes));
            let text = label.text().filter(|_| texts == Texts::Kept);
            out.put_varint(text.map_or(0, |text| text.len() as u64 + 1));
            out.extend_from_slice(text.unwrap_or_default().as_bytes());
        }
        Datum::Array(array) => {
            out.put_varint(array.dims().len() as u64);
            array.dims().iter().for_each(|dim| out.put_varint(*dim as u64));
            for item in array.items() {
                out.put_u8(u8::from(!item.is_null()));
                if !item.is_null() {
                    encode_datum(texts, item, out);
                }
            }
        }
    }
}

/// The columns of a row that are needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Columns {
    #[default]
    All,
    /// The marked columns. The list ends at the last mark.
    These(Arc<[bool]>),
}

impl Columns {
    pub(crate) fn these(columns: impl IntoIterator<Item = usize>) -> Self {
        let mut marks = Vec::new();
        for column in columns {
            if column >= marks.len() {
                marks.resize(column + 1, false);
            }
            marks[column] = true;
        }
        Self::These(marks.into())
    }

    /// Returns the number of columns to read up to the last one that is needed.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::All => usize::MAX,
            Self::These(marks) => marks.len(),
        }
    }

    fn has(&self, column: usize) -> bool {
        match self {
            Self::All => true,
            Self::These(marks) => marks.get(column).is_some_and(|is_wanted| *is_wanted),
        }
    }
}

/// Decodes a row written by [`encode`]. It may have fewer columns than there are types.
pub(crate) fn decode(
    types: impl ExactSizeIterator<Item = SqlType>,
    from: &mut Reader<'_>,
) -> Result<Vec<Datum>, DecodeError> {
    let mut row = Vec::new();
    decode_wanted(types, &Columns::All, from, &mut row)?;
    Ok(row)
}

/// Decodes the needed columns of a row into `row`. Other columns are NULL; those after the last
/// needed column are omitted.
pub(crate) fn decode_wanted(
    types: impl ExactSizeIterator<Item = SqlType>,
    wanted: &Columns,
    from: &mut Reader<'_>,
    row: &mut Vec<Datum>,
) -> Result<(), DecodeError> {
    row.clear();
    if from.u8("row version")? != VERSION {
        return Err(DecodeError::new("row version"));
    }
    let count = usize::try_from(from.varint("row")?).unwrap_or(usize::MAX);
    if count > types.len() {
        return Err(DecodeError::new("row with more columns than its table"));
    }
    let bitmap = from.take(count.div_ceil(8), "row")?;
    row.reserve(types.len());
    for (at, base) in types.take(count.min(wanted.width())).enumerate() {
        let is_null = bitmap[at / 8] & 1 << (at % 8) != 0;
        row.push(match is_null {
            true => Datum::Null,
            false if wanted.has(at) => decode_datum(base, from)?,
            false => {
                pass(base, from)?;
                Datum::Null
            }
        });
    }
    Ok(())
}

/// An iterator over the encoded values of a row.
pub(crate) struct Fields<'a> {
    bitmap: &'a [u8],
    count: usize,
    at: usize,
    from: Reader<'a>,
}

impl<'a> Fields<'a> {
    /// Starts at the first value of a row.
    pub(crate) fn open(row: &'a [u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(row);
        if from.u8("row version")? != VERSION {
            return Err(DecodeError::new("row version"));
        }
        let count = usize::try_from(from.varint("row")?).unwrap_or(usize::MAX);
        let bitmap = from.take(count.div_ceil(8), "row")?;
        Ok(Self { bitmap, count, at: 0, from })
    }

    /// Returns the total number of values.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes of the next value, which is of type `base`; `None` if it is NULL.
    ///
    /// # Panics
    /// If there are no more values.
    pub(crate) fn next(&mut self, base: SqlType) -> Result<Option<&'a [u8]>, DecodeError> {
        let at = self.at;
        self.at += 1;
        if self.bitmap[at / 8] & 1 << (at % 8) != 0 {
            return Ok(None);
        }
        let before = self.from.rest();
        pass(base, &mut self.from)?;
        Ok(Some(&before[..before.len() - self.from.rest().len()]))
    }
}

/// Returns a row in which integers have changed. `change` gets the place and the value of each
/// integer that is not NULL among the first columns, of which these are the types. It returns the
/// new value, or `None` if the old one stays.
pub(crate) fn change_integers(
    types: &[SqlType],
    row: &[u8],
    mut change: impl FnMut(usize, i64) -> Result<Option<i64>, SqlError>,
) -> Result<Vec<u8>, SqlError> {
    let mut fields = Fields::open(row)?;
    let head = row.len() - fields.from.rest().len();
    let mut out = Vec::with_capacity(row.len() + 8);
    out.extend_from_slice(&row[..head]);
    for (at, base) in types.iter().enumerate().take(fields.count) {
        let Some(raw) = fields.next(*base)? else { continue };
        let changed = match base.is_integer() {
            true => change(at, integer(&mut Reader::new(raw))?)?,
            false => None,
        };
        match changed {
            Some(value) => out.put_varint(zigzag(value)),
            None => out.extend_from_slice(raw),
        }
    }
    out.extend_from_slice(fields.from.rest());
    Ok(out)
}

/// Decodes a row of a single value.
pub(crate) fn decode_alone(base: SqlType, row: &[u8]) -> Result<Datum, DecodeError> {
    let mut fields = Fields::open(row)?;
    match fields.count {
        1 => fields
            .next(base)?
            .map_or(Ok(Datum::Null), |raw| decode_datum(base, &mut Reader::new(raw))),
        _ => Err(DecodeError::new("row of one value")),
    }
}

/// Writes a row of a single value, given the bytes that [`Fields::next`] returned.
pub(crate) fn put_alone(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[VERSION, 1, 0]);
    out.extend_from_slice(value);
}

/// Reads an integer, or a value stored as one.
pub(crate) fn integer(from: &mut Reader<'_>) -> Result<i64, DecodeError> {
    let raw = from.varint("integer")?;
    Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

/// Skips a value.
fn pass(base: SqlType, from: &mut Reader<'_>) -> Result<(), DecodeError> {
    match base {
        SqlType::Bool => from.take(1, "boolean").map(drop),
        SqlType::Int2
        | SqlType::Int4
        | SqlType::Int8
        | SqlType::Oid
        | SqlType::Reg(_)
        | SqlType::Date
        | SqlType::Timestamp
        | SqlType::Timestamptz
        | SqlType::Time => from.varint("integer").map(drop),
        SqlType::Float4 | SqlType::Float8 => from.take(8, "float").map(drop),
        SqlType::Numeric => {
            from.varint("numeric")?;
            from.bytes("numeric").map(drop)
        }
        SqlType::Text
        | SqlType::Varchar
        | SqlType::Bpchar
        | SqlType::Name
        | SqlType::InternalChar
        | SqlType::Json
        | SqlType::Unknown
        | SqlType::Bytea => from.bytes("text").map(drop),
        SqlType::Uuid => from.take(16, "uuid").map(drop),
        SqlType::Interval
        | SqlType::Jsonb
        | SqlType::Enum(_)
        | SqlType::Array(_)
        | SqlType::Int2Vector
        | SqlType::OidVector => decode_datum(base, from).map(drop),
    }
}

/// Decodes a row written by [`encode`] that has exactly these columns.
pub(crate) fn decode_whole(
    types: impl ExactSizeIterator<Item = SqlType>,
    from: &mut Reader<'_>,
) -> Result<Vec<Datum>, DecodeError> {
    let width = types.len();
    let row = decode(types, from)?;
    if row.len() == width { Ok(row) } else { Err(DecodeError::new("row without all its columns")) }
}

fn decode_datum(base: SqlType, from: &mut Reader<'_>) -> Result<Datum, DecodeError> {
    Ok(match base {
        SqlType::Bool => Datum::Bool(from.u8("boolean")? != 0),
        SqlType::Int2 | SqlType::Int4 | SqlType::Int8 | SqlType::Oid | SqlType::Reg(_) => {
            Datum::Int(integer(from)?)
        }
        SqlType::Float4 | SqlType::Float8 => Datum::Float(f64::from_bits(from.u64("float")?)),
        SqlType::Numeric => {
            let scale = u32::try_from(from.varint("numeric")?);
            let scale = scale.map_err(|_| DecodeError::new("numeric"))?;
            Datum::Numeric(Numeric::from_bytes(from.bytes("numeric")?, scale))
        }
        SqlType::Text
        | SqlType::Varchar
        | SqlType::Bpchar
        | SqlType::Name
        | SqlType::InternalChar
        | SqlType::Json
        | SqlType::Unknown => {
            let bytes = from.bytes("text")?.to_vec();
            Datum::Text(String::from_utf8(bytes).map_err(|_| DecodeError::new("text"))?)
        }
        SqlType::Bytea => Datum::Bytea(from.bytes("bytea")?.to_vec()),
        SqlType::Date => {
            let days = i32::try_from(integer(from)?);
            Datum::Date(days.map_err(|_| DecodeError::new("date"))?)
        }
        SqlType::Timestamp | SqlType::Timestamptz => Datum::Timestamp(integer(from)?),
        SqlType::Time => Datum::Time(integer(from)?),
        SqlType::Interval => {
            let narrow = |part| i32::try_from(part).map_err(|_| DecodeError::new("interval"));
            let (months, days) = (narrow(integer(from)?)?, narrow(integer(from)?)?);
            Datum::Interval(Interval { months, days, micros: integer(from)? })
        }
        SqlType::Uuid => {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(from.take(16, "uuid")?);
            Datum::Uuid(bytes)
        }
        SqlType::Jsonb => Datum::Jsonb(Arc::new(Json::decode(from)?)),
        SqlType::Enum(_) => Datum::Enum(Arc::new(decode_label(from)?)),
        SqlType::Array(_) | SqlType::Int2Vector | SqlType::OidVector => {
            decode_array(base.element().expect("an array's type is one"), from)?
        }
    })
}

fn decode_label(from: &mut Reader<'_>) -> Result<Label, DecodeError> {
    let malformed = || DecodeError::new("value of an enum");
    let place = Some(from.bytes("place")?).filter(|bytes| !bytes.is_empty()).map(Place::new);
    let text = match usize::try_from(from.varint("label")?).map_err(|_| malformed())? {
        0 => None,
        more => Some(std::str::from_utf8(from.take(more - 1, "label")?).map_err(|_| malformed())?),
    };
    Label::of_parts(place, text).ok_or_else(malformed)
}

fn decode_array(base: SqlType, from: &mut Reader<'_>) -> Result<Datum, DecodeError> {
    let malformed = || DecodeError::new("array");
    let dimensions = from.varint("array")?;
    if dimensions > DIMENSIONS_MAX as u64 {
        return Err(malformed());
    }
    let mut dims = Vec::new();
    for _ in 0..dimensions {
        dims.push(usize::try_from(from.varint("array")?).map_err(|_| malformed())?);
    }
    let count = dims.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
    let count = if dims.is_empty() { 0 } else { count.ok_or_else(malformed)? };
    let mut items = Vec::new();
    for _ in 0..count {
        let is_there = from.u8("array")? != 0;
        items.push(if is_there { decode_datum(base, from)? } else { Datum::Null });
    }
    let array = Array::new(dims, items).map_err(|_| malformed())?;
    Ok(Datum::Array(Arc::new(array)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::EnumId;
    use proptest::prelude::*;

    fn label() -> Label {
        Label::new(Place::between(None, None), "sad")
    }

    fn row() -> (Vec<SqlType>, Vec<Datum>) {
        let columns = [
            (SqlType::Bool, Datum::Bool(true)),
            (SqlType::Int8, Datum::Int(i64::MIN)),
            (SqlType::Float8, Datum::Float(-0.5)),
            (SqlType::Numeric, Datum::Numeric("-12.340".parse().unwrap())),
            (SqlType::Text, Datum::Text("é".to_owned())),
            (SqlType::Bytea, Datum::Bytea(vec![0, 255])),
            (SqlType::Date, Datum::Date(i32::MIN)),
            (SqlType::Timestamp, Datum::Timestamp(i64::MAX)),
            (SqlType::Time, Datum::Time(1)),
            (
                SqlType::Interval,
                Datum::Interval(Interval { months: i32::MIN, days: 1, micros: i64::MAX }),
            ),
            (SqlType::Uuid, Datum::Uuid([7; 16])),
            (SqlType::Int4, Datum::Null),
            (SqlType::Jsonb, Datum::Jsonb(Arc::new(Json::Array(vec![Json::Bool(true)])))),
            (
                SqlType::Text.array().unwrap(),
                Datum::array(vec![Datum::Text("a".to_owned()), Datum::Null]),
            ),
            (SqlType::Enum(EnumId::new(16_384).unwrap()), Datum::Enum(Arc::new(label()))),
        ];
        columns.into_iter().unzip()
    }

    #[test]
    fn a_row_survives_its_encoding_and_no_prefix_of_it_is_a_row() {
        let (types, row) = row();
        let mut bytes = Vec::new();
        encode(&row, &mut bytes);
        let read = |bytes: &[u8]| decode(types.iter().copied(), &mut Reader::new(bytes));
        assert_eq!(read(&bytes), Ok(row.clone()));
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn the_fields_of_a_row_are_its_values_as_they_are_kept() {
        let (types, row) = row();
        let mut bytes = Vec::new();
        encode(&row, &mut bytes);
        let mut fields = Fields::open(&bytes).unwrap();
        assert_eq!(fields.count(), row.len());
        for (base, datum) in types.iter().zip(&row) {
            let raw = fields.next(*base).unwrap();
            assert_eq!(raw.is_none(), datum.is_null(), "{base}");
            let Some(raw) = raw else { continue };
            let mut alone = Vec::new();
            put_alone(raw, &mut alone);
            let read = decode_whole([*base].into_iter(), &mut Reader::new(&alone)).unwrap();
            assert_eq!(read, std::slice::from_ref(datum));
        }
        for len in 0..bytes.len() {
            let read = |mut fields: Fields<'_>| {
                types.iter().try_for_each(|base| fields.next(*base).map(drop))
            };
            assert!(Fields::open(&bytes[..len]).and_then(read).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn what_is_stored_of_an_enum_is_its_place_alone() {
        let base = SqlType::Enum(EnumId::new(16_384).unwrap());
        let row = [Datum::Enum(Arc::new(label()))];
        let (mut sent, mut stored) = (Vec::new(), Vec::new());
        encode(&row, &mut sent);
        encode_stored(&row, &mut stored);
        let texts = [sent, stored].map(|bytes| {
            let read = decode([base].into_iter(), &mut Reader::new(&bytes)).unwrap();
            let [Datum::Enum(label)] = &read[..] else { panic!("{read:?}") };
            assert_eq!(label.place(), Some(&Place::between(None, None)));
            label.text().map(str::to_owned)
        });
        assert_eq!(texts, [Some("sad".to_owned()), None]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_row_or_an_error(mut bytes: Vec<u8>) {
            let (types, _) = row();
            bytes.insert(0, VERSION);
            let mut from = Reader::new(&bytes);
            if let Ok(row) = decode(types.iter().copied(), &mut from) {
                prop_assert!(row.len() <= types.len());
            }
        }
    }
}
