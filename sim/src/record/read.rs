//! Reads histories from files: one JSON object per line, one line per transaction.

use std::fmt;
use std::io::{self, BufRead};

use pangea_core::guarantee::Isolation;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, Visitor};

use super::{Atom, Malformed, Name, Names, Op, Outcome, Range, Recorded, Rules, Seen, Txn};

/// The maximum length of a line in bytes, so that a file of another kind does not exhaust memory.
const LINE_LEN_MAX: usize = 256 << 20;
/// The number of lines between two calls of `watch`.
const LINES_PER_CALL: usize = 1_000;

/// The reason why a history could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file could not be read.
    Io(io::Error),
    /// The file is not a history.
    Malformed(Malformed),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Malformed(malformed) => malformed.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}

/// Reads a history. `watch` is called from time to time with the number of bytes read.
///
/// # Errors
/// If the input can't be read, or a line is not a transaction: its number, and the expected input.
pub fn read(input: &mut dyn BufRead, watch: &mut dyn FnMut(u64)) -> Result<Recorded, ReadError> {
    let mut recorded = Recorded::default();
    let (mut rules, mut text, mut bytes) = (Rules::default(), Vec::new(), 0);
    for line in 1.. {
        text.clear();
        let limit = LINE_LEN_MAX as u64 + 1;
        let mut limited = io::Read::take(&mut *input, limit);
        let len = limited.read_until(b'\n', &mut text).map_err(ReadError::Io)?;
        bytes += len as u64;
        if len == 0 {
            break;
        }
        if len > LINE_LEN_MAX {
            let what = format!("the line is longer than {LINE_LEN_MAX} bytes");
            return Err(ReadError::Malformed(Malformed { line, what }));
        }
        if line % LINES_PER_CALL == 0 {
            watch(bytes);
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let txn = transaction(line, &text, &mut recorded.names).map_err(ReadError::Malformed)?;
        rules.check(&recorded.names, &txn).map_err(ReadError::Malformed)?;
        recorded.txns.push(txn);
    }
    watch(bytes);
    Ok(recorded)
}

fn transaction(line: usize, text: &[u8], names: &mut Names) -> Result<Txn, Malformed> {
    // The deserializer would accept an array as an object, with its values in the order of the
    // fields.
    if text.trim_ascii_start().first() == Some(&b'[') {
        let what = "a transaction must be a JSON object, but this is an array".to_owned();
        return Err(Malformed { line, what });
    }
    let parsed: RawTxn =
        serde_json::from_slice(text).map_err(|error| malformed(line, text, &error))?;
    let RawTxn { client, begin, end, outcome, real_time, r#final, at, level, note, ops } = parsed;
    let is_known = outcome == RawOutcome::Committed;
    let ops = ops.into_iter().map(|op| op.named(is_known, names));
    let ops: Result<Vec<Option<Op>>, String> = ops.collect();
    let ops = ops.map_err(|what| Malformed { line, what })?.into_iter().flatten().collect();
    let outcome = match outcome {
        RawOutcome::Committed => Outcome::Committed,
        RawOutcome::Aborted => Outcome::Aborted,
        RawOutcome::Unknown => Outcome::Unknown,
    };
    Ok(Txn {
        id: line,
        client,
        begin,
        end,
        outcome,
        is_held: real_time,
        is_final: r#final,
        at,
        level: level.map(|RawLevel(level)| level),
        note,
        ops,
    })
}

fn malformed(line: usize, text: &[u8], error: &serde_json::Error) -> Malformed {
    let whole = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = whole.strip_suffix(&place).unwrap_or(&whole);
    let column = error.column();
    let is_json = || serde_json::from_slice::<IgnoredAny>(text).is_ok();
    let what = match error.classify() {
        // The JSON parser reports another type as bad syntax if one of several names is expected.
        serde_json::error::Category::Syntax if is_json() => format!(
            "column {column}: expected an outcome, \"committed\", \"aborted\" or \"unknown\", or \
             one operation, such as {{\"read\": {{..}}}}"
        ),
        serde_json::error::Category::Eof => format!(
            "the object is incomplete at column {column} ({what}); expected one complete JSON \
             object: is the file truncated?"
        ),
        serde_json::error::Category::Syntax => {
            format!("column {column}: {what}; expected one JSON object for each line")
        }
        _ => format!("column {column}: {what}"),
    };
    Malformed { line, what }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTxn {
    client: Atom,
    begin: i64,
    #[serde(default)]
    end: Option<i64>,
    outcome: RawOutcome,
    #[serde(default = "yes")]
    real_time: bool,
    #[serde(default)]
    r#final: bool,
    #[serde(default)]
    at: Option<i64>,
    #[serde(default)]
    level: Option<RawLevel>,
    #[serde(default)]
    note: Option<Box<str>>,
    ops: Vec<RawOp>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum RawOutcome {
    Committed,
    Aborted,
    Unknown,
}

/// A level by its name on command lines.
#[derive(Deserialize)]
#[serde(try_from = "Box<str>")]
struct RawLevel(Isolation);

impl TryFrom<Box<str>> for RawLevel {
    type Error = String;

    fn try_from(name: Box<str>) -> Result<Self, String> {
        name.parse().map(Self)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum RawOp {
    Append {
        key: Atom,
        value: Atom,
    },
    #[serde(alias = "insert")]
    Write {
        key: Atom,
        value: Atom,
    },
    Delete {
        key: Atom,
    },
    Read {
        key: Atom,
        #[serde(default)]
        value: RawSeen,
    },
    Scan {
        #[serde(default)]
        from: Option<Atom>,
        #[serde(default)]
        to: Option<Atom>,
        #[serde(default)]
        rows: Option<Vec<(Atom, Atom)>>,
    },
}

/// The result of a read.
#[derive(Default)]
enum RawSeen {
    #[default]
    NotTold,
    Nothing,
    Value(Atom),
    List(Vec<Atom>),
}

impl RawOp {
    /// Replaces keys and values by names. The result of a read may be missing if the transaction is
    /// not known to have committed.
    fn named(self, is_known: bool, names: &mut Names) -> Result<Option<Op>, String> {
        let op = match self {
            Self::Append { key, value } => {
                Op::Append { key: names.name(key), value: names.name(value) }
            }
            Self::Write { key, value } => {
                Op::Write { key: names.name(key), value: names.name(value) }
            }
            Self::Delete { key } => Op::Delete { key: names.name(key) },
            Self::Read { key, value } => {
                let seen = match value {
                    RawSeen::NotTold if is_known => {
                        return Err(format!(
                            "the read of {key} has no `value`; expected the result, or null for \
                             no value"
                        ));
                    }
                    RawSeen::NotTold => return Ok(None),
                    RawSeen::Nothing => Seen::Nothing,
                    RawSeen::Value(value) => Seen::Value(names.name(value)),
                    RawSeen::List(values) => {
                        Seen::List(values.into_iter().map(|value| names.name(value)).collect())
                    }
                };
                Op::Read { key: names.name(key), seen }
            }
            Self::Scan { rows: None, .. } if is_known => {
                return Err(
                    "the scan has no `rows`; expected the rows found, or [] for none".into()
                );
            }
            Self::Scan { rows: None, .. } => return Ok(None),
            Self::Scan { from, to, rows: Some(rows) } => {
                let mut bound = |atom: Option<Atom>| -> Option<Name> { Some(names.name(atom?)) };
                let range = Range { from: bound(from), to: bound(to) };
                let rows =
                    rows.into_iter().map(|(key, value)| (names.name(key), names.name(value)));
                Op::Scan { range, rows: rows.collect() }
            }
        };
        Ok(Some(op))
    }
}

impl<'de> Deserialize<'de> for Atom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AtomVisitor)
    }
}

struct AtomVisitor;

impl Visitor<'_> for AtomVisitor {
    type Value = Atom;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a 64-bit integer or a string")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Atom, E> {
        Ok(Atom::Number(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Atom, E> {
        let signed = i64::try_from(number);
        signed
            .map(Atom::Number)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Atom, E> {
        Ok(Atom::Text(text.into()))
    }
}

impl<'de> Deserialize<'de> for RawSeen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeenVisitor)
    }
}

struct SeenVisitor;

impl<'de> Visitor<'de> for SeenVisitor {
    type Value = RawSeen;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the result of a read: a number, a string, null for no value, or a list of values",
        )
    }

    fn visit_unit<E: de::Error>(self) -> Result<RawSeen, E> {
        Ok(RawSeen::Nothing)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawSeen, E> {
        AtomVisitor.visit_i64(number).map(RawSeen::Value)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<RawSeen, E> {
        AtomVisitor.visit_u64(number).map(RawSeen::Value)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RawSeen, E> {
        AtomVisitor.visit_str(text).map(RawSeen::Value)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut sequence: A) -> Result<RawSeen, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = sequence.next_element()? {
            values.push(value);
        }
        Ok(RawSeen::List(values))
    }
}
