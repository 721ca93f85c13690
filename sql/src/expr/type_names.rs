//! Resolution of type names.

use sqlparser::ast;

use crate::catalog::{Enums, PUBLIC};
use crate::error::SqlError;
use crate::syntax;
use crate::types::{ColumnType, Reg, SqlType};

/// Returns the type that a syntax tree names, given some known enums.
///
/// # Errors
/// Also for an enum that is not among the known ones: see [`SqlError::undefined_type`].
pub(crate) fn column_type(
    data_type: &ast::DataType,
    enums: &Enums,
) -> Result<ColumnType, SqlError> {
    use ast::DataType as D;
    let plain = |base: SqlType| Ok(ColumnType::from(base));
    match data_type {
        D::Bool | D::Boolean => plain(SqlType::Bool),
        D::SmallInt(None) | D::Int2(None) => plain(SqlType::Int2),
        D::Int(None) | D::Integer(None) | D::Int4(None) => plain(SqlType::Int4),
        D::BigInt(None) | D::Int8(None) => plain(SqlType::Int8),
        D::Real | D::Float4 => plain(SqlType::Float4),
        D::DoublePrecision | D::Float8 | D::Float(ast::ExactNumberInfo::None) => {
            plain(SqlType::Float8)
        }
        D::Float(ast::ExactNumberInfo::Precision(bits @ 1..=53)) => {
            plain(if *bits <= 24 { SqlType::Float4 } else { SqlType::Float8 })
        }
        D::Numeric(info) | D::Decimal(info) | D::Dec(info) => match info {
            ast::ExactNumberInfo::None => plain(SqlType::Numeric),
            ast::ExactNumberInfo::Precision(precision) => ColumnType::numeric(*precision, 0),
            ast::ExactNumberInfo::PrecisionAndScale(precision, scale) => {
                ColumnType::numeric(*precision, *scale)
            }
        },
        D::Text => plain(SqlType::Text),
        D::Varchar(length) | D::CharacterVarying(length) | D::CharVarying(length) => match length {
            None => plain(SqlType::Varchar),
            Some(length) => string_type(SqlType::Varchar, *length),
        },
        D::Char(length) | D::Character(length) => {
            let one = ast::CharacterLength::IntegerLength { length: 1, unit: None };
            string_type(SqlType::Bpchar, length.unwrap_or(one))
        }
        D::Bytea => plain(SqlType::Bytea),
        D::Date => plain(SqlType::Date),
        D::Timestamp(precision, zone) => {
            let is_zoned = matches!(zone, ast::TimezoneInfo::WithTimeZone | ast::TimezoneInfo::Tz);
            let base = if is_zoned { SqlType::Timestamptz } else { SqlType::Timestamp };
            Ok(precision.map_or(base.into(), |digits| ColumnType::with_fraction(base, digits)))
        }
        D::Time(precision, ast::TimezoneInfo::None | ast::TimezoneInfo::WithoutTimeZone) => {
            let with = |digits| ColumnType::with_fraction(SqlType::Time, digits);
            Ok(precision.map_or(SqlType::Time.into(), with))
        }
        D::Interval { fields: None, precision } => {
            let with = |digits| ColumnType::with_fraction(SqlType::Interval, digits);
            Ok(precision.map_or(SqlType::Interval.into(), with))
        }
        D::Uuid => plain(SqlType::Uuid),
        D::Regclass => plain(SqlType::Reg(Reg::Class)),
        D::JSON => plain(SqlType::Json),
        D::JSONB => plain(SqlType::Jsonb),
        D::Array(ast::ArrayElemTypeDef::SquareBracket(inner, _)) => {
            let inner = column_type(inner, enums)?;
            Ok(ColumnType { base: super::arrays::array_of(inner.base)?, ..inner })
        }
        D::Custom(name, _) => custom_type(name, enums),
        other => Err(SqlError::unsupported(format!("type {}", other.to_string().to_lowercase()))),
    }
}

fn string_type(base: SqlType, length: ast::CharacterLength) -> Result<ColumnType, SqlError> {
    match length {
        ast::CharacterLength::IntegerLength { length, .. } => ColumnType::with_length(base, length),
        ast::CharacterLength::Max => Err(SqlError::unsupported("a length of max")),
    }
}

fn enum_named(name: &str, enums: &Enums) -> Result<ColumnType, SqlError> {
    let found = enums.named(name).map(|one| one.base().into());
    found.ok_or_else(|| SqlError::undefined_type(name))
}

fn custom_type(object: &ast::ObjectName, enums: &Enums) -> Result<ColumnType, SqlError> {
    let parts = syntax::name_parts(object)?;
    let name = parts.last().map_or("", String::as_str);
    let by_name = |base: SqlType| Ok(ColumnType::from(base));
    match name {
        "bool" => by_name(SqlType::Bool),
        "int2" => by_name(SqlType::Int2),
        "int4" => by_name(SqlType::Int4),
        "int8" => by_name(SqlType::Int8),
        "float4" => by_name(SqlType::Float4),
        "float8" => by_name(SqlType::Float8),
        "numeric" => by_name(SqlType::Numeric),
        "text" => by_name(SqlType::Text),
        "varchar" => by_name(SqlType::Varchar),
        "bpchar" => by_name(SqlType::Bpchar),
        "date" => by_name(SqlType::Date),
        "time" => by_name(SqlType::Time),
        "timestamp" => by_name(SqlType::Timestamp),
        "timestamptz" => by_name(SqlType::Timestamptz),
        "interval" => by_name(SqlType::Interval),
        "bytea" => by_name(SqlType::Bytea),
        "uuid" => by_name(SqlType::Uuid),
        "json" => by_name(SqlType::Json),
        "jsonb" => by_name(SqlType::Jsonb),
        "name" => by_name(SqlType::Name),
        "char" => by_name(SqlType::InternalChar),
        "oid" => by_name(SqlType::Oid),
        "regclass" => by_name(SqlType::Reg(Reg::Class)),
        "regnamespace" => by_name(SqlType::Reg(Reg::Namespace)),
        "regproc" => by_name(SqlType::Reg(Reg::Procedure)),
        "regprocedure" => by_name(SqlType::Reg(Reg::Signature)),
        "regrole" => by_name(SqlType::Reg(Reg::Role)),
        "regtype" => by_name(SqlType::Reg(Reg::Type)),
        "int2vector" => by_name(SqlType::Int2Vector),
        "oidvector" => by_name(SqlType::OidVector),
        "serial" | "bigserial" | "smallserial" | "serial4" | "serial8" | "money" | "inet"
        | "cidr" | "macaddr" | "macaddr8" | "xml" | "citext" | "hstore" | "point" | "line"
        | "lseg" | "box" | "path" | "polygon" | "circle" | "tsvector" | "tsquery" | "jsonpath"
        | "pg_lsn" | "pg_snapshot" | "int4range" | "int8range" | "numrange" | "tsrange"
        | "tstzrange" | "daterange" | "int4multirange" | "int8multirange" | "nummultirange"
        | "tsmultirange" | "tstzmultirange" | "datemultirange" => {
            Err(SqlError::unsupported(format!("type {name}")))
        }
        // All enums are in `public`.
        _ => match &parts[..] {
            [_] => enum_named(name, enums),
            [schema, _] if schema == PUBLIC => enum_named(name, enums),
            _ => Err(SqlError::undefined_type(&parts.join("."))),
        },
    }
}
