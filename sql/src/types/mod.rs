//! The SQL types, under PostgreSQL's names and numbers.

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
    /// A number of a thing in the catalog that is shown by its name.
    Reg(Reg),
    /// `int2vector`, an array whose values are counted from 0
    Int2Vector,
    /// `oidvector`, the same of `oid`
    OidVector,
    /// A string literal or NULL whose type its surroundings decide.
    Unknown,
    /// An enum that somebody made.
    Enum(EnumId),
    /// An array of values of a type.
    Array(Element),
}

/// The number of an enum in `pg_type`, which is even. The next one is that of its arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnumId(u32);

impl EnumId {
    /// The first number of what users make.
    pub const FIRST: u32 = 16_384;
    /// Numbers from here on are of what is not stored.
    const END: u32 = 1 << 30;

    /// An enum by its number, where it may be one's.
    pub fn new(oid: u32) -> Option<Self> {
        let is_one = (Self::FIRST..Self::END).contains(&oid) && oid.is_multiple_of(2);
        is_one.then_some(Self(oid))
    }

    /// Its number.
    pub fn oid(self) -> u32 {
        self.0
    }

    /// The number of its arrays.
    pub fn array_oid(self) -> u32 {
        self.0 + 1
    }

    /// What stands for its name where that is not known. As an identifier in quotes it is read as
    /// a name, too, so that a text with it can be parsed.
    pub fn mark(self) -> String {
        format!("type {}", self.0)
    }

    /// The enum that a mark stands for.
    pub fn of_mark(mark: &str) -> Option<Self> {
        mark.strip_prefix("type ").and_then(|oid| oid.parse().ok()).and_then(Self::new)
    }
}

/// What a number in the catalog is the number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reg {
    /// `regclass`
    Class,
    /// `regnamespace`
    Namespace,
    /// `regproc`
    Procedure,
    /// `regprocedure`: with the types of what it is given.
    Signature,
    /// `regrole`
    Role,
    /// `regtype`
    Type,
}

/// The type of an array's values: any but an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element(Of);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Of {
    /// Its place in the catalog.
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

    /// The type as that of an array's values; nothing where there are no such arrays.
    pub fn of(base: SqlType) -> Option<Self> {
        if let SqlType::Enum(id) = base {
            return Some(Self(Of::Enum(id)));
        }
        let at = CATALOG.iter().position(|row| row.base == base && row.array_oid != 0);
        at.map(|at| Self(Of::BuiltIn(at as u8)))
    }

    /// The type of each value.
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
    /// 0 where there are no arrays of it.
    array_oid: u32,
    array_name: &'static str,
}

/// The longest text that is read into many values, and the most memory that one function makes of
/// one: a short call such as `repeat` gives long texts, and each value takes more than its text.
pub(crate) const PARTED_BYTES_MAX: usize = 32 << 20;

/// # Errors
/// When a text is too long to be read into many values.
pub(crate) fn check_parted(text: &str) -> Result<(), SqlError> {
    if text.len() <= PARTED_BYTES_MAX {
        return Ok(());
    }
    let most = PARTED_BYTES_MAX >> 20;
    let message = format!("a text of more than {most} MiB can't be read into an array or JSON");
    Err(SqlError::new(code::LIMIT_EXCEEDED, message))
}

/// PostgreSQL's type modifier for "none".
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

/// Every type that a column can have, but for arrays, with its number and length in PostgreSQL's
/// catalog and the number of its arrays.
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

/// The length of an enum in `pg_type`: PostgreSQL keeps a number for each label.
const ENUM_LENGTH: i16 = 4;

/// A type that is not supported, by its number in `pg_type`, as users know it.
pub(crate) fn unsupported_name(oid: u32) -> String {
    format!("the type with number {oid} in pg_type")
}

impl SqlType {
    /// Every type but arrays and those that users make.
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

    /// The type's number in `pg_type`.
    pub fn oid(self) -> u32 {
        match self {
            Self::Array(element) => element.array_oid(),
            Self::Enum(id) => id.oid(),
            base => base.row().oid,
        }
    }

    /// The type's length in `pg_type`: -1 for variable.
    pub fn wire_len(self) -> i16 {
        match self {
            Self::Array(_) => -1,
            Self::Enum(_) => ENUM_LENGTH,
            base => base.row().length,
        }
    }

    /// The type's SQL name. Of one that users make, its mark in quotes.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Array(element) => element.array_name(),
            Self::Enum(id) => format!("\"{}\"", id.mark()).into(),
            base => base.row().name.into(),
        }
    }

    /// The enum that it is, or that it is an array of.
    pub fn enumeration(self) -> Option<EnumId> {
        match self {
            Self::Enum(id) | Self::Array(Element(Of::Enum(id))) => Some(id),
            _ => None,
        }
    }

    /// The type of the values of an array.
    pub fn element(self) -> Option<Self> {
        match self {
            Self::Array(element) => Some(element.base()),
            Self::Int2Vector => Some(Self::Int2),
            Self::OidVector => Some(Self::Oid),
            _ => None,
        }
    }

    /// Whether two of its values may be equal and look unlike, as 1.0 and 1.00.
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

    /// Whether it is an array whose values are counted from 0, and which is shown without braces.
    pub fn is_vector(self) -> bool {
        matches!(self, Self::Int2Vector | Self::OidVector)
    }

    /// Whether it is a number in the catalog.
    pub fn is_oid(self) -> bool {
        matches!(self, Self::Oid | Self::Reg(_))
    }

    /// The type of arrays of it; of an array, itself: arrays have any number of dimensions.
    pub fn array(self) -> Option<Self> {
        match self {
            Self::Array(_) => Some(self),
            base => Element::of(base).map(Self::Array),
        }
    }

    /// The type's name in `pg_type`; of an array, that of its values.
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

    /// The type with this number in `pg_type`; an enum wherever the number may be one's.
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

    /// Whether the type is `smallint`, `integer` or `bigint`.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int2 | Self::Int4 | Self::Int8)
    }

    /// Whether arithmetic is defined on it.
    pub fn is_number(self) -> bool {
        self.is_integer() || matches!(self, Self::Float4 | Self::Float8 | Self::Numeric)
    }

    /// Whether its values are strings.
    pub fn is_string(self) -> bool {
        matches!(self, Self::Text | Self::Varchar | Self::Bpchar | Self::Name | Self::InternalChar)
    }

    /// Whether it is a date, a time, a timestamp or an interval.
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
    /// Length, or precision and scale; [`NO_MODIFIER`] for none.
    pub modifier: i32,
}

impl From<SqlType> for ColumnType {
    fn from(base: SqlType) -> Self {
        Self { base, modifier: NO_MODIFIER }
    }
}

/// What PostgreSQL adds to lengths and precisions in a modifier.
const MODIFIER_HEADER: i32 = 4;
/// The longest `varchar(n)` and `char(n)`.
const LENGTH_MAX: u64 = 10_485_760;
/// In the upper half of an interval's modifier: it keeps all of its fields.
const INTERVAL_ALL_FIELDS: i32 = 0x7fff;
/// The most digits of a `numeric(p, s)`.
const PRECISION_MAX: u64 = 1_000;

impl ColumnType {
    /// `character(n)` or `character varying(n)`.
    ///
    /// # Errors
    /// When the length is out of range.
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

    /// `numeric(precision, scale)`.
    ///
    /// # Errors
    /// When either is out of range.
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

    /// `time(precision)`, `timestamp(precision)` with or without time zone, `interval(precision)`.
    pub fn with_fraction(base: SqlType, precision: u64) -> Self {
        let digits = precision.min(6) as i32;
        let is_interval = base == SqlType::Interval;
        Self {
            base,
            modifier: if is_interval { INTERVAL_ALL_FIELDS << 16 | digits } else { digits },
        }
    }

    /// The digits of the fraction of a second that a time, timestamp or interval keeps.
    pub fn fraction_digits(self) -> Option<i32> {
        (self.base.is_datetime() && self.modifier >= 0).then_some(self.modifier & 0xffff)
    }

    /// The type of the values of an array: the modifier is theirs.
    pub fn element(self) -> Option<Self> {
        self.base.element().map(|base| Self { base, ..self })
    }

    /// The length of a `character(n)` or `character varying(n)`.
    pub fn length(self) -> Option<usize> {
        (self.base.is_string() && self.modifier >= MODIFIER_HEADER)
            .then(|| (self.modifier - MODIFIER_HEADER) as usize)
    }

    /// The precision and scale of a `numeric(p, s)`.
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
