//! The SQL types, with PostgreSQL's names and OIDs.

pub mod array;
pub mod binary;
pub mod datetime;
pub mod datum;
pub mod interval;
pub mod json;
pub mod label;
pub mod numeric;
pub mod text;
pub mod time;
pub mod zone;

use std::borrow::Cow;
use std::fmt;

use crate::error::{SqlError, code};

/// A type without its modifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SqlType {
    /// `boolean`
    Bool,
    /// `smallint`
    Int2,
    /// `integer`
    Int4,
    /// `bigint`
    Int8,
    /// `real`
    Float4,
    /// `double precision`
    Float8,
    /// `numeric`
    Numeric,
    /// `text`
    Text,
    /// `character varying`
    Varchar,
    /// `character`, blank-padded
    Bpchar,
    /// `bytea`
    Bytea,
    /// `date`
    Date,
    /// `timestamp without time zone`
    Timestamp,
    /// `timestamp with time zone`
    Timestamptz,
    /// `time without time zone`
    Time,
    /// `interval`
    Interval,
    /// `uuid`
    Uuid,
    /// `json`, a text
    Json,
    /// `jsonb`
    Jsonb,
    /// `name`, a text of at most 63 bytes
    Name,
    /// `"char"`, a text of at most one byte
    InternalChar,
    /// `oid`
    Oid,
    /// The OID of an object in the catalog, displayed as the object's name.
    Reg(Reg),
    /// `int2vector`, an array whose elements are counted from 0
    Int2Vector,
    /// `oidvector`, like `int2vector` with elements of type `oid`
    OidVector,
    /// A string literal or NULL whose type is determined by its context.
    Unknown,
    /// An enum that a user created.
    Enum(EnumId),
    /// An array of elements of one type.
    Array(Element),
}

/// The OID of an enum in `pg_type`, which is even. The next number is the OID of its array type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnumId(u32);

impl EnumId {
    /// First OID of objects that users create.
    pub const FIRST: u32 = 16_384;
    /// First OID of objects that are not stored.
    const END: u32 = 1 << 30;

    /// Returns the enum with an OID, if the OID can be that of an enum.
    pub fn new(oid: u32) -> Option<Self> {
        let is_one = (Self::FIRST..Self::END).contains(&oid) && oid.is_multiple_of(2);
        is_one.then_some(Self(oid))
    }

    /// Returns its OID.
    pub fn oid(self) -> u32 {
        self.0
    }

    /// Returns the OID of its array type.
    pub fn array_oid(self) -> u32 {
        self.0 + 1
    }

    /// Returns a placeholder for the name, used if the name is unknown. As a quoted identifier it
    /// is parsed as a name, so that a text that contains it can be parsed.
    pub fn mark(self) -> String {
        format!("type {}", self.0)
    }

    /// Returns the enum of a placeholder.
    pub fn of_mark(mark: &str) -> Option<Self> {
        mark.strip_prefix("type ").and_then(|oid| oid.parse().ok()).and_then(Self::new)
    }
}

/// The kind of object that an OID identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reg {
    /// `regclass`
    Class,
    /// `regnamespace`
    Namespace,
    /// `regproc`
    Procedure,
    /// `regprocedure`: with argument types.
    Signature,
    /// `regrole`
    Role,
    /// `regtype`
    Type,
}

/// The element type of an array: any type but an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element(Of);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Of {
    /// Its position in `CATALOG`.
    BuiltIn(u8),
    Enum(EnumId),
}

impl Element {
    /// `integer`
    pub const INT4: Self = Self(Of::BuiltIn(2));
    /// `text`
    pub const TEXT: Self = Self(Of::BuiltIn(7));
    /// `name`
    pub const NAME: Self = Self(Of::BuiltIn(19));

    /// Returns the type as an element type. Returns `None` if it has no array type.
    pub fn of(base: SqlType) -> Option<Self> {
        if let SqlType::Enum(id) = base {
            return Some(Self(Of::Enum(id)));
        }
        let at = CATALOG.iter().position(|row| row.base == base && row.array_oid != 0);
        at.map(|at| Self(Of::BuiltIn(at as u8)))
    }

    /// Returns the type of an element.
    pub fn base(self) -> SqlType {
        match self.0 {
            Of::BuiltIn(at) => CATALOG[usize::from(at)].base,
            Of::Enum(id) => SqlType::Enum(id),
        }
    }

    fn array_oid(self) -> u32 {
        match self.0 {
            Of::BuiltIn(at) => CATALOG[usize::from(at)].array_oid,
            Of::Enum(id) => id.array_oid(),
        }
    }

    fn array_name(self) -> Cow<'static, str> {
        match self.0 {
            Of::BuiltIn(at) => CATALOG[usize::from(at)].array_name.into(),
            Of::Enum(id) => format!("\"{}\"[]", id.mark()).into(),
        }
    }
}

/// A type in PostgreSQL's catalog.
struct Row {
    base: SqlType,
    oid: u32,
    length: i16,
    name: &'static str,
    /// 0 if the type has no array type.
    array_oid: u32,
    array_name: &'static str,
}

/// Maximum length in bytes of a text that is parsed into many values. The limit for the memory of
/// `array_fill` derives from it. A short call such as `repeat` returns a long text, and each value
/// takes more memory than its text.
pub(crate) const PARTED_BYTES_MAX: usize = 32 << 20;

/// # Errors
/// If a text is too long to be parsed into many values.
pub(crate) fn check_parted(text: &str) -> Result<(), SqlError> {
    if text.len() <= PARTED_BYTES_MAX {
        return Ok(());
    }
    let most = PARTED_BYTES_MAX >> 20;
    let message = format!("a text of more than {most} MiB cannot be converted to an array or JSON");
    Err(SqlError::new(code::LIMIT_EXCEEDED, message))
}

/// PostgreSQL's value for the absence of a type modifier.
pub const NO_MODIFIER: i32 = -1;

macro_rules! row {
    ($base:expr, $oid:literal, $length:literal, $name:literal, $array_oid:literal) => {
        Row {
            base: $base,
            oid: $oid,
            length: $length,
            name: $name,
            array_oid: $array_oid,
            array_name: concat!($name, "[]"),
        }
    };
}

/// Every type that a column can have, except arrays, with its OID and length in PostgreSQL's
/// catalog and the OID of its array type.
const CATALOG: [Row; 31] = {
    use SqlType as T;
    [
        row!(T::Bool, 16, 1, "boolean", 1000),
        row!(T::Int2, 21, 2, "smallint", 1005),
        row!(T::Int4, 23, 4, "integer", 1007),
        row!(T::Int8, 20, 8, "bigint", 1016),
        row!(T::Float4, 700, 4, "real", 1021),
        row!(T::Float8, 701, 8, "double precision", 1022),
        row!(T::Numeric, 1700, -1, "numeric", 1231),
        row!(T::Text, 25, -1, "text", 1009),
        row!(T::Varchar, 1043, -1, "character varying", 1015),
        row!(T::Bpchar, 1042, -1, "character", 1014),
        row!(T::Bytea, 17, -1, "bytea", 1001),
        row!(T::Date, 1082, 4, "date", 1182),
        row!(T::Timestamp, 1114, 8, "timestamp without time zone", 1115),
        row!(T::Timestamptz, 1184, 8, "timestamp with time zone", 1185),
        row!(T::Time, 1083, 8, "time without time zone", 1183),
        row!(T::Interval, 1186, 16, "interval", 1187),
        row!(T::Uuid, 2950, 16, "uuid", 2951),
        row!(T::Json, 114, -1, "json", 199),
        row!(T::Jsonb, 3802, -1, "jsonb", 3807),
        row!(T::Name, 19, 64, "name", 1003),
        row!(T::InternalChar, 18, 1, "\"char\"", 1002),
        row!(T::Oid, 26, 4, "oid", 1028),
        row!(T::Reg(Reg::Class), 2205, 4, "regclass", 2210),
        row!(T::Reg(Reg::Namespace), 4089, 4, "regnamespace", 4090),
        row!(T::Reg(Reg::Procedure), 24, 4, "regproc", 1008),
        row!(T::Reg(Reg::Signature), 2202, 4, "regprocedure", 2207),
        row!(T::Reg(Reg::Role), 4096, 4, "regrole", 4097),
        row!(T::Reg(Reg::Type), 2206, 4, "regtype", 2211),
        row!(T::Int2Vector, 22, -1, "int2vector", 1006),
        row!(T::OidVector, 30, -1, "oidvector", 1013),
        row!(T::Unknown, 705, -2, "unknown", 0),
    ]
};

/// The length of an enum in `pg_type`: PostgreSQL stores an OID for each label.
const ENUM_LENGTH: i16 = 4;

/// Returns the name of an unsupported type for error messages, by its OID in `pg_type`.
pub(crate) fn unsupported_name(oid: u32) -> String {
    format!("the type with OID {oid}")
}

/// Arrays of text.
pub(crate) const TEXTS: SqlType = SqlType::Array(Element::TEXT);

impl SqlType {
    /// Every type except arrays and users' types.
    pub const ALL: [Self; CATALOG.len()] = {
        let mut all = [Self::Unknown; CATALOG.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = CATALOG[at].base;
            at += 1;
        }
        all
    };

    fn row(self) -> &'static Row {
        let row = CATALOG.iter().find(|row| row.base == self);
        row.expect("every type but arrays and those of users is in the catalog")
    }

    /// Returns the type's OID in `pg_type`.
    pub fn oid(self) -> u32 {
        match self {
            Self::Array(element) => element.array_oid(),
            Self::Enum(id) => id.oid(),
            base => base.row().oid,
        }
    }

    /// Returns the type's length in `pg_type`. -1 is variable.
    pub fn wire_len(self) -> i16 {
        match self {
            Self::Array(_) => -1,
            Self::Enum(_) => ENUM_LENGTH,
            base => base.row().length,
        }
    }

    /// Returns the type's SQL name. For a user's type, its placeholder in quotes.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Array(element) => element.array_name(),
            Self::Enum(id) => format!("\"{}\"", id.mark()).into(),
            base => base.row().name.into(),
        }
    }

    /// Returns the enum, if the type is an enum or an array of one.
    pub fn enumeration(self) -> Option<EnumId> {
        match self {
            Self::Enum(id) | Self::Array(Element(Of::Enum(id))) => Some(id),
            _ => None,
        }
    }

    /// Returns the element type of an array.
    pub fn element(self) -> Option<Self> {
        match self {
            Self::Array(element) => Some(element.base()),
            Self::Int2Vector => Some(Self::Int2),
            Self::OidVector => Some(Self::Oid),
            _ => None,
        }
    }

    /// Returns whether two equal values may be displayed differently, as 1.0 and 1.00.
    pub fn has_equals_unlike(self) -> bool {
        let is_such = |base: Self| {
            matches!(
                base,
                Self::Numeric
                    | Self::Float4
                    | Self::Float8
                    | Self::Bpchar
                    | Self::Interval
                    | Self::Jsonb
            )
        };
        is_such(self.element().unwrap_or(self))
    }

    /// Returns whether it is an array that is counted from 0 and displayed without braces.
    pub fn is_vector(self) -> bool {
        matches!(self, Self::Int2Vector | Self::OidVector)
    }

    /// Returns whether it is an OID.
    pub fn is_oid(self) -> bool {
        matches!(self, Self::Oid | Self::Reg(_))
    }

    /// Returns its array type. The array type of an array is the array itself, because arrays have
    /// any number of dimensions.
    pub fn array(self) -> Option<Self> {
        match self {
            Self::Array(_) => Some(self),
            base => Element::of(base).map(Self::Array),
        }
    }

    /// Returns the type's name in `pg_type`. For an array, the name of its element type.
    pub fn internal_name(self) -> Cow<'static, str> {
        let name = match self {
            Self::Bool => "bool",
            Self::Int2 => "int2",
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::Float4 => "float4",
            Self::Float8 => "float8",
            Self::Varchar => "varchar",
            Self::Bpchar => "bpchar",
            Self::Timestamp => "timestamp",
            Self::Timestamptz => "timestamptz",
            Self::Time => "time",
            Self::InternalChar => "char",
            Self::Array(element) => return element.base().internal_name(),
            Self::Enum(id) => return id.mark().into(),
            other => return other.name(),
        };
        name.into()
    }

    /// Returns the type with an OID in `pg_type`. An OID that can be an enum's is an enum.
    pub fn from_oid(oid: u32) -> Option<Self> {
        let array = |row: &Row| Element::of(row.base).map(Self::Array);
        let known = CATALOG.iter().find_map(|row| match oid {
            0 => None,
            oid if row.oid == oid => Some(row.base),
            oid if row.array_oid == oid => array(row),
            _ => None,
        });
        let made = || match EnumId::new(oid & !1)? {
            id if id.oid() == oid => Some(Self::Enum(id)),
            id => Element::of(Self::Enum(id)).map(Self::Array),
        };
        known.or_else(made)
    }

    /// Returns whether the type is `smallint`, `integer` or `bigint`.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int2 | Self::Int4 | Self::Int8)
    }

    /// Returns whether arithmetic is defined on it.
    pub fn is_number(self) -> bool {
        self.is_integer() || matches!(self, Self::Float4 | Self::Float8 | Self::Numeric)
    }

    /// Returns whether its values are strings.
    pub fn is_string(self) -> bool {
        matches!(self, Self::Text | Self::Varchar | Self::Bpchar | Self::Name | Self::InternalChar)
    }

    /// Returns whether it is a date, a time, a timestamp or an interval.
    pub fn is_datetime(self) -> bool {
        matches!(
            self,
            Self::Date | Self::Timestamp | Self::Timestamptz | Self::Time | Self::Interval
        )
    }
}

impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A type with its modifier, in PostgreSQL's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnType {
    /// The type.
    pub base: SqlType,
    /// Length, or precision and scale. [`NO_MODIFIER`] if there is none.
    pub modifier: i32,
}

impl From<SqlType> for ColumnType {
    fn from(base: SqlType) -> Self {
        Self { base, modifier: NO_MODIFIER }
    }
}

/// The constant that PostgreSQL adds to lengths and precisions in a modifier.
const MODIFIER_HEADER: i32 = 4;
/// Maximum length of `varchar(n)` and `char(n)`.
const LENGTH_MAX: u64 = 10_485_760;
/// Upper half of an interval's modifier: all of its fields are stored.
const INTERVAL_ALL_FIELDS: i32 = 0x7fff;
/// Maximum precision of a `numeric(p, s)`, in digits.
const PRECISION_MAX: u64 = 1_000;

impl ColumnType {
    /// Returns `character(n)` or `character varying(n)`.
    ///
    /// # Errors
    /// If the length is out of range.
    pub fn with_length(base: SqlType, length: u64) -> Result<Self, SqlError> {
        let name = if base == SqlType::Bpchar { "char" } else { "varchar" };
        if length == 0 {
            let message = format!("length for type {name} must be at least 1");
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        }
        if length > LENGTH_MAX {
            let message = format!("length for type {name} cannot exceed {LENGTH_MAX}");
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        }
        Ok(Self { base, modifier: length as i32 + MODIFIER_HEADER })
    }

    /// Returns `numeric(precision, scale)`.
    ///
    /// # Errors
    /// If either is out of range.
    pub fn numeric(precision: u64, scale: i64) -> Result<Self, SqlError> {
        if !(1..=PRECISION_MAX).contains(&precision) {
            let message =
                format!("NUMERIC precision {precision} must be between 1 and {PRECISION_MAX}");
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        }
        if scale < 0 || scale as u64 > precision {
            let feature = format!("NUMERIC scale {scale} outside of 0 to the precision");
            return Err(SqlError::unsupported(feature));
        }
        let modifier = ((precision as i32) << 16 | scale as i32) + MODIFIER_HEADER;
        Ok(Self { base: SqlType::Numeric, modifier })
    }

    /// Returns `time(precision)`, `timestamp(precision)` with or without time zone, or
    /// `interval(precision)`.
    pub fn with_fraction(base: SqlType, precision: u64) -> Self {
        let digits = precision.min(6) as i32;
        let is_interval = base == SqlType::Interval;
        Self {
            base,
            modifier: if is_interval { INTERVAL_ALL_FIELDS << 16 | digits } else { digits },
        }
    }

    /// Returns the number of fractional digits of the seconds in a time, timestamp or interval.
    pub fn fraction_digits(self) -> Option<i32> {
        (self.base.is_datetime() && self.modifier >= 0).then_some(self.modifier & 0xffff)
    }

    /// Returns the element type of an array. The modifier applies to the elements.
    pub fn element(self) -> Option<Self> {
        self.base.element().map(|base| Self { base, ..self })
    }

    /// Returns the length of a `character(n)` or `character varying(n)`.
    pub fn length(self) -> Option<usize> {
        (self.base.is_string() && self.modifier >= MODIFIER_HEADER)
            .then(|| (self.modifier - MODIFIER_HEADER) as usize)
    }

    /// Returns the precision and scale of a `numeric(p, s)`.
    pub fn precision_and_scale(self) -> Option<(u32, u32)> {
        let packed = self.modifier.saturating_sub(MODIFIER_HEADER);
        (self.base == SqlType::Numeric && packed >= 0)
            .then_some((packed as u32 >> 16, packed as u32 & 0xffff))
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(element) = self.element() {
            return write!(f, "{element}[]");
        }
        if let Some(length) = self.length() {
            return write!(f, "{}({length})", self.base);
        }
        if let Some((precision, scale)) = self.precision_and_scale() {
            return write!(f, "numeric({precision},{scale})");
        }
        match self.base {
            SqlType::Timestamp if self.modifier >= 0 => {
                write!(f, "timestamp({}) without time zone", self.modifier)
            }
            SqlType::Timestamptz if self.modifier >= 0 => {
                write!(f, "timestamp({}) with time zone", self.modifier)
            }
            SqlType::Time if self.modifier >= 0 => {
                write!(f, "time({}) without time zone", self.modifier)
            }
            base => match self.fraction_digits() {
                Some(digits) => write!(f, "{base}({digits})"),
                None => base.fmt(f),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_number() {
        for Row { base, oid, name, array_oid, .. } in CATALOG {
            assert_eq!(SqlType::from_oid(oid), Some(base));
            assert_eq!((base.oid(), &*base.name()), (oid, name));
            let Some(array) = base.array() else { continue };
            assert_eq!(SqlType::from_oid(array_oid), Some(array));
            assert_eq!((array.oid(), array.element()), (array_oid, Some(base)));
            assert_eq!(array.name(), format!("{name}[]"));
        }
        assert_eq!(SqlType::from_oid(0), None);
        assert_eq!(Element::TEXT.base(), SqlType::Text);
        assert_eq!(Element::NAME.base(), SqlType::Name);
    }

    #[test]
    fn modifiers_keep_lengths_and_precisions() {
        let varchar = ColumnType::with_length(SqlType::Varchar, 10).unwrap();
        assert_eq!((varchar.modifier, varchar.length()), (14, Some(10)));
        let numeric = ColumnType::numeric(10, 2).unwrap();
        assert_eq!(numeric.precision_and_scale(), Some((10, 2)));
        assert_eq!(numeric.to_string(), "numeric(10,2)");
        assert!(ColumnType::numeric(0, 0).is_err() && ColumnType::numeric(1001, 0).is_err());
    }
}
