//! The built-in functions and their evaluation.

use crate::error::{SqlError, code};
use crate::types::datum::{Datum, compare_floats};
use crate::types::numeric::Numeric;
use crate::types::zone::Zone;
use crate::types::{ColumnType, SqlType};

use super::arrays::ArrayFunction;
use super::catalog_calls::{self, CatalogFunction};
use super::dates::{self, DateFunction};
use super::enums::EnumFunction;
use super::json::JsonFunction;
use super::math::{self, MathFunction};
use super::node_calls::{self, NodeFunction};
use super::regexes::{self, RegexFunction};
use super::session_calls::{self, SettingFunction};
use super::text_functions::{self, WordFunction};
use super::time_functions::{self, TimeFunction};
use super::{Env, arithmetic, cast, strings, times};

/// A built-in function. The binder has checked its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Abs(SqlType),
    Ceil,
    Floor,
    Round,
    RoundTo,
    Truncate,
    TruncateTo,
    Sign,
    Sqrt,
    Greatest,
    Least,
    Lower,
    Upper,
    Length,
    OctetLength,
    Substring,
    Trim(strings::TrimSide),
    Replace,
    Position,
    Left,
    Right,
    Pad {
        is_left: bool,
    },
    Repeat,
    Reverse,
    SplitPart,
    StartsWith,
    Concat,
    ConcatWithSeparator,
    Like {
        is_negated: bool,
        is_case_blind: bool,
    },
    ToHex(SqlType),
    Chr,
    Ascii,
    Now,
    StatementNow,
    LocalNow,
    Today,
    Extract(SqlType),
    DateTruncate(SqlType),
    AtTimeZone {
        to_utc: bool,
    },
    Time(TimeFunction),
    Array(ArrayFunction),
    Enum(EnumFunction),
    Json(JsonFunction),
    Word(WordFunction),
    Math(MathFunction),
    Date(DateFunction),
    Regex(RegexFunction),
    CountNulls {
        is_counted: bool,
    },
    RandomUuid,
    Random,
    Version,
    Database,
    User,
    SessionUser,
    Catalog(CatalogFunction),
    Setting(SettingFunction),
    Node(NodeFunction),
    /// `pg_advisory_unlock_all`: drivers call it before they return a connection to a pool. No
    /// session holds these locks.
    UnlockAll,
    TypeName(SqlType),
}

impl Function {
    /// Whether two calls with the same arguments may differ.
    pub(crate) fn is_volatile(self) -> bool {
        use SettingFunction::Set;
        matches!(self, Self::RandomUuid | Self::Random | Self::Setting(Set) | Self::Node(_))
    }

    /// Whether the result depends only on the arguments: not on the time, the session's time zone,
    /// or randomness.
    pub(crate) fn is_immutable(self) -> bool {
        let depends_on_zone =
            |base: SqlType| base.element().unwrap_or(base) == SqlType::Timestamptz;
        match self {
            Self::Now
            | Self::StatementNow
            | Self::LocalNow
            | Self::Today
            | Self::RandomUuid
            | Self::Random
            | Self::Version
            | Self::Database
            | Self::User
            | Self::SessionUser
            | Self::Catalog(_)
            | Self::Setting(_)
            | Self::Node(_)
            | Self::UnlockAll => false,
            Self::Extract(base) | Self::DateTruncate(base) => !depends_on_zone(base),
            Self::Array(ArrayFunction::Join(base))
            | Self::Json(JsonFunction::Make { base, .. })
            | Self::Time(TimeFunction::Age(base))
            | Self::Date(DateFunction::Format(base)) => !depends_on_zone(base),
            Self::Time(TimeFunction::AgeToday(_) | TimeFunction::LocalTime)
            | Self::Date(DateFunction::MakeTimestamptz | DateFunction::TimeOfDay) => false,
            _ => true,
        }
    }

    /// Whether the function handles NULL arguments itself; otherwise any NULL gives NULL.
    fn takes_nulls(self) -> bool {
        match self {
            Self::Array(function) => function.takes_nulls(),
            Self::Json(function) => function.takes_nulls(),
            Self::Word(function) => text_functions::takes_nulls(function),
            Self::CountNulls { .. } => true,
            Self::Enum(function) => function == EnumFunction::Range,
            Self::Catalog(function) => function.takes_nulls(),
            Self::Setting(function) => function == SettingFunction::Set,
            Self::Concat
            | Self::ConcatWithSeparator
            | Self::Greatest
            | Self::Least
            | Self::TypeName(_) => true,
            _ => false,
        }
    }

    /// Evaluates the function.
    pub(crate) fn call(self, args: &[Datum], env: &Env) -> Result<Datum, SqlError> {
        if !self.takes_nulls() && args.iter().any(Datum::is_null) {
            return Ok(Datum::Null);
        }
        if let Some(result) = self.call_without_args(env) {
            return Ok(result);
        }
        match self {
            Self::Abs(_) | Self::Ceil | Self::Floor | Self::Round | Self::RoundTo => {
                self.call_number(args)
            }
            Self::Truncate | Self::TruncateTo | Self::Sign | Self::Sqrt => self.call_number(args),
            Self::Greatest => Ok(extreme(args, std::cmp::Ordering::Greater)),
            Self::Least => Ok(extreme(args, std::cmp::Ordering::Less)),
            Self::Extract(base) => times::extract(text(&args[0]), base, &args[1], &env.zone),
            Self::DateTruncate(base) => {
                let zone = args.get(2).map(|zone| zone_named(text(zone))).transpose()?;
                times::truncate(text(&args[0]), base, &args[1], zone.as_ref().unwrap_or(&env.zone))
            }
            Self::AtTimeZone { to_utc } => at_time_zone(text(&args[0]), &args[1], to_utc),
            Self::Array(function) => function.call(args, &env.zone),
            Self::Enum(function) => function.call(args),
            Self::Json(function) => function.call(args, &env.zone),
            Self::Word(function) => text_functions::call(function, args),
            Self::Regex(function) => regexes::call(function, args),
            Self::Math(function) => math::call(function, args),
            Self::Date(function) => dates::call(function, args, &env.zone, env.statement_now),
            Self::CountNulls { is_counted } => {
                let counted = args.iter().filter(|arg| arg.is_null() == is_counted);
                Ok(Datum::Int(counted.count() as i64))
            }
            Self::Time(function) => time_functions::call(function, args, &env.zone, env.now),
            Self::TypeName(base) => Ok(Datum::Text(base.name().into_owned())),
            Self::Catalog(function) => catalog_calls::call(function, args, env),
            Self::Node(function) => node_calls::call(function, args, env),
            Self::Setting(function) => session_calls::call(function, args, env),
            _ => strings::call(self, args),
        }
    }

    fn call_without_args(self, env: &Env) -> Option<Datum> {
        Some(match self {
            Self::Now => Datum::Timestamp(env.now),
            Self::StatementNow => Datum::Timestamp(env.statement_now),
            Self::LocalNow => Datum::Timestamp(env.zone.to_local(env.now)),
            Self::Today => {
                Datum::Date(crate::types::datetime::timestamp_to_date(env.zone.to_local(env.now)))
            }
            Self::RandomUuid => Datum::Uuid(random_uuid(env)),
            // A double has 53 bits of precision.
            Self::Random => Datum::Float((env.random() >> 11) as f64 / (1u64 << 53) as f64),
            Self::Version => Datum::Text(crate::settings::VERSION.to_owned()),
            Self::Database => Datum::Text(env.database.to_string()),
            Self::User => Datum::Text(env.user.to_string()),
            Self::SessionUser => Datum::Text(env.session_user.to_string()),
            Self::UnlockAll => Datum::Text(String::new()),
            _ => return None,
        })
    }

    fn call_number(self, args: &[Datum]) -> Result<Datum, SqlError> {
        let digits = args.get(1).map_or(0, integer);
        Ok(match (self, &args[0]) {
            (Self::Abs(base), Datum::Int(value)) if *value < 0 => {
                return arithmetic::negate(base, args[0].clone());
            }
            (Self::Sign, Datum::Numeric(value)) => Datum::Numeric(Numeric::from(value.signum())),
            (Self::Sign, Datum::Float(value)) => Datum::Float(match compare_floats(*value, 0.0) {
                std::cmp::Ordering::Less => -1.0,
                std::cmp::Ordering::Equal => 0.0,
                std::cmp::Ordering::Greater => 1.0,
            }),
            (_, Datum::Int(_)) => args[0].clone(),
            (Self::Abs(_), Datum::Float(value)) => Datum::Float(value.abs()),
            (Self::Ceil, Datum::Float(value)) => Datum::Float(value.ceil()),
            (Self::Floor, Datum::Float(value)) => Datum::Float(value.floor()),
            (Self::Round, Datum::Float(value)) => Datum::Float(value.round_ties_even()),
            (Self::Truncate, Datum::Float(value)) => Datum::Float(value.trunc()),
            (Self::Sqrt, Datum::Float(value)) if *value < 0.0 => {
                let message = "cannot take square root of a negative number";
                return Err(SqlError::new(code::POWER_ARGUMENT, message));
            }
            // IEEE 754 defines the square root to the last bit, so it is the same on every machine.
            (Self::Sqrt, Datum::Float(value)) => Datum::Float(value.sqrt()),
            (Self::Abs(_), Datum::Numeric(value)) => Datum::Numeric(value.abs()),
            (Self::Ceil, Datum::Numeric(value)) => Datum::Numeric(value.ceil()),
            (Self::Floor, Datum::Numeric(value)) => Datum::Numeric(value.floor()),
            (Self::Round | Self::RoundTo, Datum::Numeric(value)) => {
                Datum::Numeric(value.round_at(digits))
            }
            (Self::Truncate | Self::TruncateTo, Datum::Numeric(value)) => {
                Datum::Numeric(value.truncate_at(digits))
            }
            (function, value) => panic!("{function:?} of {value:?}"),
        })
    }
}

/// Returns the text of an argument.
pub(super) fn text(datum: &Datum) -> &str {
    match datum {
        Datum::Text(text) => text,
        other => panic!("{other:?} is not a text"),
    }
}

/// Returns the integer of an argument.
pub(super) fn integer(datum: &Datum) -> i64 {
    match datum {
        Datum::Int(value) => *value,
        other => panic!("{other:?} is not an integer"),
    }
}

/// Returns the extreme argument, ignoring NULLs; the first one of equals.
fn extreme(args: &[Datum], wanted: std::cmp::Ordering) -> Datum {
    let mut best = &Datum::Null;
    for arg in args.iter().filter(|arg| !arg.is_null()) {
        if best.is_null() || arg.compare(best) == wanted {
            best = arg;
        }
    }
    best.clone()
}

/// Returns the time zone that an argument names.
pub(super) fn zone_named(name: &str) -> Result<Zone, SqlError> {
    // A number is a POSIX zone here, unlike in SET TimeZone.
    if let Some(zone) = Zone::posix(name) {
        return Ok(zone);
    }
    Zone::named(name).map_err(|_| {
        SqlError::new(code::INVALID_PARAMETER, format!("time zone \"{name}\" not recognized"))
    })
}

fn at_time_zone(zone: &str, value: &Datum, to_utc: bool) -> Result<Datum, SqlError> {
    let zone = zone_named(zone)?;
    let target = if to_utc { SqlType::Timestamptz } else { SqlType::Timestamp };
    let source = if to_utc { SqlType::Timestamp } else { SqlType::Timestamptz };
    cast::apply(value.clone(), source, ColumnType::from(target), true, &zone)
}

/// Returns a random (version 4) UUID.
fn random_uuid(env: &Env) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&env.random().to_be_bytes());
    bytes[8..].copy_from_slice(&env.random().to_be_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
