//! The settings of a session: their names, defaults and valid values. The values of one session are
//! in `session/settings.rs`.

pub(crate) mod isolation;
mod planning;
pub(crate) mod search_path;
pub(crate) mod units;

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::error::{SqlError, code};
use crate::types::zone::Zone;
use isolation::LEVELS;
use units::{Block, blocks_of, checked_size, checked_time, out_of_range, parse_ms, shown_real};

/// The result of `version()`. Drivers parse the number after "PostgreSQL".
pub(crate) const VERSION: &str =
    concat!("PostgreSQL 15.0 (Pangea ", env!("CARGO_PKG_VERSION"), ")");

/// The valid values of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Any text.
    Free,
    Bool,
    Number,
    /// One of these, in lower case.
    OneOf(&'static [&'static str]),
    /// An integer in a range.
    Whole(i32, i32),
    /// A number in a range.
    Real(f64, f64),
    /// A time in milliseconds, with or without a unit; 0 disables it.
    Time,
    /// An amount of memory, in blocks or with a unit; the range is in blocks.
    Size(Block, u64, u64),
    TimeZone,
    Encoding,
    DateStyle,
    /// A list of schemas.
    SearchPath,
    /// A read-only setting.
    Fixed,
}

pub(crate) struct Setting {
    pub name: &'static str,
    pub default: &'static str,
    pub kind: Kind,
    /// Whether each change is reported to clients.
    pub is_reported: bool,
}

pub(super) const fn of(name: &'static str, default: &'static str, kind: Kind) -> Setting {
    Setting { name, default, kind, is_reported: false }
}

const fn reported(name: &'static str, default: &'static str, kind: Kind) -> Setting {
    Setting { name, default, kind, is_reported: true }
}

/// The levels of messages. A client receives messages of the level that it sets, and above.
const SEVERITIES: &[&str] = &[
    "debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "info", "notice", "warning",
    "error",
];

/// The settings, sorted by name.
const SETTINGS: &[Setting] = &[
    reported("application_name", "", Kind::Free),
    of("block_size", "8192", Kind::Fixed),
    of("bytea_output", "hex", Kind::OneOf(&["hex"])),
    of("check_function_bodies", "on", Kind::Bool),
    reported("client_encoding", "UTF8", Kind::Encoding),
    of("client_min_messages", "notice", Kind::OneOf(SEVERITIES)),
    of("copy_atomic", "off", Kind::Bool),
    reported("DateStyle", "ISO, MDY", Kind::DateStyle),
    of("default_table_access_method", "heap", Kind::OneOf(&["heap"])),
    of("default_tablespace", "", Kind::OneOf(&[""])),
    of("default_transaction_deferrable", "off", Kind::Bool),
    of("default_transaction_isolation", "serializable", Kind::OneOf(LEVELS)),
    reported("default_transaction_read_only", "off", Kind::Bool),
    of("escape_string_warning", "on", Kind::Bool),
    of("extra_float_digits", "1", Kind::Number),
    of("idle_in_transaction_session_timeout", "0", Kind::Time),
    reported("in_hot_standby", "off", Kind::Fixed),
    reported("integer_datetimes", "on", Kind::Fixed),
    reported("IntervalStyle", "postgres", Kind::OneOf(&["postgres"])),
    reported("is_superuser", "off", Kind::Fixed),
    of("lc_collate", "C", Kind::Fixed),
    of("lc_ctype", "C.UTF-8", Kind::Fixed),
    of("lc_messages", "C", Kind::Free),
    of("lc_monetary", "C", Kind::Free),
    of("lc_numeric", "C", Kind::Free),
    of("lc_time", "C", Kind::Free),
    of("lock_timeout", "0", Kind::Time),
    of("max_identifier_length", "63", Kind::Fixed),
    of("max_index_keys", "32", Kind::Fixed),
    of("max_parallel_workers_per_gather", "8", Kind::Whole(0, 1_024)),
    of("max_staleness", "0", Kind::Time),
    of("min_parallel_table_scan_size", "8MB", Kind::Size(Block::Page, 0, 715_827_882)),
    // psql reads it before it hashes a password itself.
    of("password_encryption", "scram-sha-256", Kind::OneOf(&["scram-sha-256"])),
    of("reads", "snapshot", Kind::OneOf(&["snapshot", "strict"])),
    of("replay", "on", Kind::Bool),
    of("role", "none", Kind::Fixed),
    of("row_security", "on", Kind::Bool),
    of("search_path", search_path::DEFAULT, Kind::SearchPath),
    reported("server_encoding", "UTF8", Kind::Fixed),
    reported("server_version", "15.0", Kind::Fixed),
    of("server_version_num", "150000", Kind::Fixed),
    reported("session_authorization", "", Kind::Fixed),
    reported("standard_conforming_strings", "on", Kind::OneOf(&["on"])),
    of("statement_timeout", "0", Kind::Time),
    // All scans read in the same order.
    of("synchronize_seqscans", "off", Kind::OneOf(&["off", "on"])),
    of("synchronous_commit", "on", Kind::Free),
    reported("TimeZone", "UTC", Kind::TimeZone),
    of("transaction_isolation", "serializable", Kind::OneOf(LEVELS)),
    of("transaction_read_only", "off", Kind::Bool),
    of("version", VERSION, Kind::Fixed),
    of("xmloption", "content", Kind::OneOf(&["content"])),
];

/// Values by setting name.
pub(crate) type Values = BTreeMap<String, String>;

/// Returns all built-in settings.
pub(crate) fn all() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().chain(planning::SETTINGS)
}

pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    all().find(|setting| setting.name.eq_ignore_ascii_case(name))
}

pub(crate) fn known(name: &str) -> Result<&'static Setting, SqlError> {
    find(name).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> SqlError {
    let message = format!("unrecognized configuration parameter \"{name}\"");
    SqlError::new(code::UNDEFINED_OBJECT, message)
}

/// Whether a setting is custom: as in PostgreSQL, its name contains a dot.
pub(crate) fn is_custom(name: &str) -> bool {
    name.contains('.')
}

/// Returns the value of a setting.
///
/// # Errors
/// 42704 if it does not exist.
pub(crate) fn shown<'a>(values: &'a Values, name: &str) -> Result<&'a str, SqlError> {
    match is_custom(name) {
        true => values.get(&name.to_lowercase()).map(String::as_str).ok_or_else(|| unknown(name)),
        false => Ok(&values[known(name)?.name]),
    }
}

/// A setting as displayed in `pg_settings`.
#[derive(Debug)]
pub(crate) struct Described<'a> {
    pub name: &'static str,
    /// The value, in units of `unit` if the setting has a unit.
    pub value: Cow<'a, str>,
    pub default: Cow<'static, str>,
    pub unit: Option<&'static str>,
    pub kind: &'static str,
    pub choices: &'static [&'static str],
    pub is_fixed: bool,
}

/// Returns all built-in settings with their values.
pub(crate) fn described(values: &Values) -> impl Iterator<Item = Described<'_>> {
    all().map(|setting| {
        let kind = match setting.kind {
            Kind::Bool => "bool",
            Kind::Number | Kind::Whole(..) | Kind::Time | Kind::Size(..) => "integer",
            Kind::Real(..) => "real",
            Kind::OneOf(["on"] | ["off"]) => "bool",
            Kind::OneOf(_) => "enum",
            Kind::Free
            | Kind::TimeZone
            | Kind::Encoding
            | Kind::DateStyle
            | Kind::SearchPath
            | Kind::Fixed => "string",
        };
        Described {
            name: setting.name,
            value: in_units(setting.kind, &values[setting.name]),
            default: in_units(setting.kind, setting.default),
            unit: match setting.kind {
                Kind::Time => Some("ms"),
                Kind::Size(block, ..) => Some(block.name()),
                _ => None,
            },
            kind,
            choices: if let Kind::OneOf(choices) = setting.kind { choices } else { &[] },
            is_fixed: setting.kind == Kind::Fixed,
        }
    })
}

/// Converts a value to a number of the setting's units.
fn in_units(kind: Kind, value: &str) -> Cow<'_, str> {
    let number = match kind {
        Kind::Size(block, ..) => blocks_of(value, block).map(|blocks| blocks.to_string()),
        Kind::Time => parse_ms(value).map(|ms| ms.to_string()),
        _ => None,
    };
    number.map_or(Cow::Borrowed(value), Cow::Owned)
}

pub(crate) fn checked(setting: &Setting, value: &str) -> Result<String, SqlError> {
    let name = setting.name;
    let lower = value.trim().to_ascii_lowercase();
    let invalid = || {
        let message = format!("invalid value for parameter \"{name}\": \"{value}\"");
        SqlError::new(code::INVALID_PARAMETER, message)
    };
    match setting.kind {
        Kind::Free => Ok(value.to_owned()),
        Kind::SearchPath if search_path::parsed(value).is_some() => Ok(value.to_owned()),
        Kind::SearchPath => Err(invalid().with_detail("List syntax is invalid.")),
        Kind::Bool => match lower.as_str() {
            "on" | "true" | "yes" | "1" | "t" => Ok("on".to_owned()),
            "off" | "false" | "no" | "0" | "f" => Ok("off".to_owned()),
            _ => {
                let message = format!("parameter \"{name}\" requires a Boolean value");
                Err(SqlError::new(code::INVALID_PARAMETER, message))
            }
        },
        Kind::Number => lower.parse::<i64>().map(|n| n.to_string()).map_err(|_| invalid()),
        Kind::Whole(least, most) => match lower.parse::<i32>() {
            Ok(count) if (least..=most).contains(&count) => Ok(count.to_string()),
            Ok(count) => Err(out_of_range(name, &count.to_string(), (least, most))),
            Err(_) => Err(invalid()),
        },
        Kind::Real(least, most) => match lower.parse::<f64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(shown_real(number)),
            Ok(number) if !number.is_nan() => {
                let range = (shown_real(least), shown_real(most));
                Err(out_of_range(name, &shown_real(number), range))
            }
            _ => Err(invalid()),
        },
        Kind::Time => checked_time(name, value.trim(), &invalid),
        Kind::Size(block, least, most) => {
            checked_size(name, value.trim(), (block, (least, most)), &invalid)
        }
        Kind::OneOf(values) if values.contains(&lower.as_str()) => Ok(lower),
        Kind::OneOf(values) => {
            let hint = format!("Available values: {}.", values.join(", "));
            Err(invalid().with_hint(hint))
        }
        Kind::TimeZone => Zone::named(value.trim()).map(|zone| zone.name().to_owned()),
        // As in PostgreSQL, punctuation is ignored: some drivers send quotes.
        Kind::Encoding => match lower.replace(|c: char| !c.is_ascii_alphanumeric(), "").as_str() {
            "utf8" | "unicode" => Ok("UTF8".to_owned()),
            _ => Err(invalid().with_hint("Only UTF8 is supported.")),
        },
        Kind::DateStyle => match lower.split(',').next().map(str::trim) {
            Some("iso") if !lower.contains("dmy") && !lower.contains("ymd") => {
                Ok("ISO, MDY".to_owned())
            }
            Some("mdy") => Ok("ISO, MDY".to_owned()),
            _ => Err(SqlError::unsupported(format!("DateStyle \"{value}\""))),
        },
        Kind::Fixed => {
            let message = format!("parameter \"{name}\" cannot be changed");
            Err(SqlError::new(code::FIXED_PARAMETER, message))
        }
    }
}
