//! The signatures of the functions: names, argument types and result types.

use super::arrays::ArrayFunction;
use super::cast::{self, Level};
use super::functions::Function;
use super::strings::TrimSide;
use super::{
    catalog_calls, dates, json_calls, math, node_calls, regexes, session_calls, text_functions,
    time_functions,
};
use crate::types::{SqlType, TEXTS};
use SqlType::{
    Bool, Bytea, Date, Float8, Int2, Int4, Int8, Interval, Numeric, Text, Time, Timestamp,
    Timestamptz, Uuid,
};

/// One signature of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    pub name: &'static str,
    pub args: &'static [SqlType],
    /// Whether the last argument may be repeated.
    pub is_variadic: bool,
    pub result: SqlType,
    pub function: Function,
}

pub(super) const fn of(
    name: &'static str,
    args: &'static [SqlType],
    result: SqlType,
    function: Function,
) -> Signature {
    Signature { name, args, is_variadic: false, result, function }
}

const fn variadic(name: &'static str, args: &'static [SqlType], function: Function) -> Signature {
    Signature { name, args, is_variadic: true, result: Text, function }
}

/// Signatures with the same name are tried in this order.
const SIGNATURES: &[Signature] = &[
    of("abs", &[Int2], Int2, Function::Abs(Int2)),
    of("abs", &[Int4], Int4, Function::Abs(Int4)),
    of("abs", &[Int8], Int8, Function::Abs(Int8)),
    of("abs", &[Numeric], Numeric, Function::Abs(Numeric)),
    of("abs", &[Float8], Float8, Function::Abs(Float8)),
    of("ceil", &[Float8], Float8, Function::Ceil),
    of("ceil", &[Numeric], Numeric, Function::Ceil),
    of("ceiling", &[Float8], Float8, Function::Ceil),
    of("ceiling", &[Numeric], Numeric, Function::Ceil),
    of("floor", &[Float8], Float8, Function::Floor),
    of("floor", &[Numeric], Numeric, Function::Floor),
    of("round", &[Float8], Float8, Function::Round),
    of("round", &[Numeric], Numeric, Function::Round),
    of("round", &[Numeric, Int4], Numeric, Function::RoundTo),
    of("trunc", &[Float8], Float8, Function::Truncate),
    of("trunc", &[Numeric], Numeric, Function::Truncate),
    of("trunc", &[Numeric, Int4], Numeric, Function::TruncateTo),
    of("sign", &[Float8], Float8, Function::Sign),
    of("sign", &[Numeric], Numeric, Function::Sign),
    of("sqrt", &[Float8], Float8, Function::Sqrt),
    of("lower", &[Text], Text, Function::Lower),
    of("upper", &[Text], Text, Function::Upper),
    of("length", &[Text], Int4, Function::Length),
    of("length", &[Bytea], Int4, Function::Length),
    of("char_length", &[Text], Int4, Function::Length),
    of("character_length", &[Text], Int4, Function::Length),
    of("octet_length", &[SqlType::Bpchar], Int4, Function::OctetLength),
    of("octet_length", &[Text], Int4, Function::OctetLength),
    of("octet_length", &[Bytea], Int4, Function::OctetLength),
    of("substring", &[Text, Int4], Text, Function::Substring),
    of("substring", &[Text, Int4, Int4], Text, Function::Substring),
    of("substr", &[Text, Int4], Text, Function::Substring),
    of("substr", &[Text, Int4, Int4], Text, Function::Substring),
    of("btrim", &[Text], Text, Function::Trim(TrimSide::Both)),
    of("btrim", &[Text, Text], Text, Function::Trim(TrimSide::Both)),
    of("ltrim", &[Text], Text, Function::Trim(TrimSide::Left)),
    of("ltrim", &[Text, Text], Text, Function::Trim(TrimSide::Left)),
    of("rtrim", &[Text], Text, Function::Trim(TrimSide::Right)),
    of("rtrim", &[Text, Text], Text, Function::Trim(TrimSide::Right)),
    of("replace", &[Text, Text, Text], Text, Function::Replace),
    of("strpos", &[Text, Text], Int4, Function::Position),
    of("position", &[Text, Text], Int4, Function::Position),
    of("left", &[Text, Int4], Text, Function::Left),
    of("right", &[Text, Int4], Text, Function::Right),
    of("lpad", &[Text, Int4], Text, Function::Pad { is_left: true }),
    of("lpad", &[Text, Int4, Text], Text, Function::Pad { is_left: true }),
    of("rpad", &[Text, Int4], Text, Function::Pad { is_left: false }),
    of("rpad", &[Text, Int4, Text], Text, Function::Pad { is_left: false }),
    of("repeat", &[Text, Int4], Text, Function::Repeat),
    of("reverse", &[Text], Text, Function::Reverse),
    of("split_part", &[Text, Text, Int4], Text, Function::SplitPart),
    of("starts_with", &[Text, Text], Bool, Function::StartsWith),
    of("string_to_array", &[Text, Text], TEXTS, Function::Array(ArrayFunction::Split)),
    of("string_to_array", &[Text, Text, Text], TEXTS, Function::Array(ArrayFunction::Split)),
    variadic("concat", &[Text], Function::Concat),
    variadic("concat_ws", &[Text, Text], Function::ConcatWithSeparator),
    of("to_hex", &[Int4], Text, Function::ToHex(Int4)),
    of("to_hex", &[Int8], Text, Function::ToHex(Int8)),
    of("chr", &[Int4], Text, Function::Chr),
    of("ascii", &[Text], Int4, Function::Ascii),
    of("now", &[], Timestamptz, Function::Now),
    of("transaction_timestamp", &[], Timestamptz, Function::Now),
    of("statement_timestamp", &[], Timestamptz, Function::StatementNow),
    of("clock_timestamp", &[], Timestamptz, Function::StatementNow),
    of("current_timestamp", &[], Timestamptz, Function::Now),
    of("localtimestamp", &[], Timestamp, Function::LocalNow),
    of("current_date", &[], Date, Function::Today),
    of("extract", &[Text, Date], Numeric, Function::Extract(Date)),
    of("extract", &[Text, Timestamp], Numeric, Function::Extract(Timestamp)),
    of("extract", &[Text, Timestamptz], Numeric, Function::Extract(Timestamptz)),
    of("extract", &[Text, Time], Numeric, Function::Extract(Time)),
    of("extract", &[Text, Interval], Numeric, Function::Extract(Interval)),
    of("date_trunc", &[Text, Timestamptz], Timestamptz, Function::DateTruncate(Timestamptz)),
    of("date_trunc", &[Text, Timestamp], Timestamp, Function::DateTruncate(Timestamp)),
    of("date_trunc", &[Text, Interval], Interval, Function::DateTruncate(Interval)),
    of("date_trunc", &[Text, Timestamptz, Text], Timestamptz, Function::DateTruncate(Timestamptz)),
    of("timezone", &[Text, Timestamptz], Timestamp, Function::AtTimeZone { to_utc: false }),
    of("timezone", &[Text, Timestamp], Timestamptz, Function::AtTimeZone { to_utc: true }),
    of("gen_random_uuid", &[], Uuid, Function::RandomUuid),
    of("random", &[], Float8, Function::Random),
    of("version", &[], Text, Function::Version),
    of("current_database", &[], Text, Function::Database),
    of("current_catalog", &[], Text, Function::Database),
    of("current_user", &[], Text, Function::User),
    of("session_user", &[], Text, Function::SessionUser),
    of("user", &[], Text, Function::User),
    of("current_role", &[], Text, Function::User),
    of("pg_advisory_unlock_all", &[], Text, Function::UnlockAll),
];

/// Returns all signatures of all functions.
fn forms() -> impl Iterator<Item = &'static Signature> {
    let groups = [
        // First, so that an untyped literal as the second argument of `substring` is a pattern, not
        // a position.
        regexes::SIGNATURES,
        SIGNATURES,
        time_functions::SIGNATURES,
        json_calls::SIGNATURES,
        text_functions::SIGNATURES,
        math::SIGNATURES,
        dates::SIGNATURES,
        catalog_calls::SIGNATURES,
        node_calls::SIGNATURES,
        session_calls::SIGNATURES,
    ];
    groups.into_iter().chain(catalog_calls::PRIVILEGE_FORMS).flatten()
}

/// Returns the first name of a function, if it has one.
pub(crate) fn name_of(function: Function) -> Option<&'static str> {
    forms().find(|form| form.function == function).map(|form| form.name)
}

/// The result of a function lookup.
pub(crate) enum Found {
    Signature(Signature),
    /// The name exists, but with other argument types.
    OtherArgs,
    Nothing,
}

/// Returns the number of arguments that need a cast; `None` if the signature does not accept them.
/// Untyped arguments need no cast.
fn casts(signature: &Signature, args: &[SqlType]) -> Option<usize> {
    let fixed = signature.args.len();
    let takes_count = if signature.is_variadic { args.len() >= fixed } else { args.len() == fixed };
    if !takes_count {
        return None;
    }
    // A variadic function takes any type, as text.
    let level_max = if signature.is_variadic { Level::Assignment } else { Level::Implicit };
    let mut count = 0;
    for (at, &arg) in args.iter().enumerate() {
        let wanted = signature.args[at.min(fixed - 1)];
        if cast::level(arg, wanted).is_none_or(|level| level > level_max) {
            return None;
        }
        count += usize::from(arg != wanted && arg != SqlType::Unknown);
    }
    Some(count)
}

/// Returns the signature of `name` that accepts these arguments with the fewest casts.
pub(crate) fn find(name: &str, args: &[SqlType]) -> Found {
    let named = || forms().filter(|signature| signature.name == name);
    let fitting = named().filter_map(|form| casts(form, args).map(|count| (count, form)));
    match fitting.min_by_key(|(count, _)| *count) {
        Some((_, signature)) => Found::Signature(*signature),
        None if named().next().is_some() => Found::OtherArgs,
        None => Found::Nothing,
    }
}
