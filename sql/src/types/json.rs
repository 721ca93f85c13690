//! JSON: `jsonb` as a tree in PostgreSQL's normal form, `json` as its text.
//!
//! In the normal form an object's keys are sorted by length and then by bytes. The last of equal
//! keys is retained. Numbers are `numeric`, and therefore exact. The depth of trees is limited, so
//! that a walk never runs out of stack. Code that makes a tree deeper calls [`Json::check_depth`].

mod parse;

use std::cmp::Ordering;
use std::fmt::{self, Write};

use pangea_core::codec::{DecodeError, Reader, Writer};

use super::numeric::Numeric;
use crate::error::{SqlError, code};

pub use parse::{Parts, check, parse, parts, string_of};

/// Maximum nesting depth of arrays and objects. A walk takes a stack frame for each level.
pub const DEPTH_MAX: usize = 1_000;

/// A `jsonb` value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number.
    Number(Numeric),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object. [`object`] sorts its keys.
    Object(Vec<(String, Json)>),
}

/// Compares an object's keys in PostgreSQL's order.
fn compare_keys(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// Returns an object. Among members with the same key, the last one is retained.
pub fn object(mut members: Vec<(String, Json)>) -> Json {
    // The sort is stable: equal keys remain in the order of the text.
    members.sort_by(|(a, _), (b, _)| compare_keys(a, b));
    let mut kept: Vec<(String, Json)> = Vec::with_capacity(members.len());
    for member in members {
        match kept.last_mut() {
            Some(last) if last.0 == member.0 => *last = member,
            _ => kept.push(member),
        }
    }
    Json::Object(kept)
}

/// Returns the error of a value that is nested too deeply.
pub fn too_deep() -> SqlError {
    SqlError::new(code::TOO_COMPLEX, "stack depth limit exceeded")
        .with_detail(format!("JSON can be nested {DEPTH_MAX} levels deep."))
}

impl Json {
    /// Returns the kind, as `jsonb_typeof` does.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "boolean",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }

    /// Returns whether it is neither an array nor an object.
    pub fn is_scalar(&self) -> bool {
        !matches!(self, Self::Array(_) | Self::Object(_))
    }

    /// Returns the value of a key.
    pub fn member(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        let found = members.binary_search_by(|(known, _)| compare_keys(known, key));
        found.ok().map(|at| &members[at].1)
    }

    /// Returns the element of an array at a position, from 0. A negative position counts from the
    /// end.
    pub fn at(&self, place: i64) -> Option<&Self> {
        let Self::Array(items) = self else { return None };
        items.get(index(place, items.len())?)
    }

    fn depth(&self) -> usize {
        match self {
            Self::Array(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Object(members) => {
                1 + members.iter().map(|(_, value)| value.depth()).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// # Errors
    /// If it is nested more deeply than [`DEPTH_MAX`].
    pub fn check_depth(&self) -> Result<(), SqlError> {
        if self.depth() > DEPTH_MAX { Err(too_deep()) } else { Ok(()) }
    }

    /// Compares in PostgreSQL's order of `jsonb`. As in PostgreSQL, an empty array is less than a
    /// scalar at the top level, and greater inside of another array.
    pub fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Array(items), other) if items.is_empty() && other.is_scalar() => Ordering::Less,
            (one, Self::Array(items)) if items.is_empty() && one.is_scalar() => Ordering::Greater,
            _ => self.compare_inner(other),
        }
    }

    fn compare_inner(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Number(a), Self::Number(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) => a.cmp(b),
            (Self::Array(a), Self::Array(b)) => a.len().cmp(&b.len()).then_with(|| {
                let orders = a.iter().zip(b).map(|(a, b)| a.compare_inner(b));
                orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
            }),
            (Self::Object(a), Self::Object(b)) => a.len().cmp(&b.len()).then_with(|| {
                let orders = a.iter().zip(b).map(|((key_a, a), (key_b, b))| {
                    key_a.cmp(key_b).then_with(|| a.compare_inner(b))
                });
                orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
            }),
            (a, b) => a.rank().cmp(&b.rank()),
        }
    }

    /// Returns the rank of its kind in PostgreSQL's order.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::String(_) => 1,
            Self::Number(_) => 2,
            Self::Bool(_) => 3,
            Self::Array(_) => 4,
            Self::Object(_) => 5,
        }
    }

    /// Returns `self @> other`.
    pub fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            // A top-level scalar matches an element of an array.
            (Self::Array(items), scalar) if scalar.is_scalar() => {
                items.iter().any(|item| item.contains_inner(scalar))
            }
            _ => self.contains_inner(other),
        }
    }

    fn contains_inner(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(_), Self::Object(members)) => members.iter().all(|(key, wanted)| {
                self.member(key).is_some_and(|value| value.contains_inner(wanted))
            }),
            (Self::Array(items), Self::Array(wanted)) => {
                wanted.iter().all(|wanted| items.iter().any(|item| item.contains_inner(wanted)))
            }
            (a, b) if a.is_scalar() && b.is_scalar() => a.compare_inner(b).is_eq(),
            _ => false,
        }
    }

    /// Formats the value over several lines, as `jsonb_pretty` does.
    pub fn pretty(&self) -> String {
        let mut out = String::new();
        self.put_pretty(0, &mut out);
        out
    }

    fn put_pretty(&self, depth: usize, out: &mut String) {
        let indent = |depth: usize, out: &mut String| {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', depth * 4));
        };
        let (open, close, count) = match self {
            Self::Array(items) => ('[', ']', items.len()),
            Self::Object(members) => ('{', '}', members.len()),
            scalar => {
                let _ = write!(out, "{scalar}");
                return;
            }
        };
        out.push(open);
        for at in 0..count {
            if at > 0 {
                out.push(',');
            }
            indent(depth + 1, out);
            match self {
                Self::Array(items) => items[at].put_pretty(depth + 1, out),
                Self::Object(members) => {
                    put_string(&members[at].0, out);
                    out.push_str(": ");
                    members[at].1.put_pretty(depth + 1, out);
                }
                _ => unreachable!("scalars were written"),
            }
        }
        indent(depth, out);
        out.push(close);
    }

    /// Appends the value in the format of [`Json::decode`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.put_u8(0),
            Self::Bool(value) => out.put_u8(1 + u8::from(*value)),
            Self::Number(value) => {
                out.put_u8(3);
                out.put_varint(value.scale().into());
                value.with_bytes(|bytes| out.put_bytes(bytes));
            }
            Self::String(value) => {
                out.put_u8(4);
                out.put_bytes(value.as_bytes());
            }
            Self::Array(items) => {
                out.put_u8(5);
                out.put_varint(items.len() as u64);
                items.iter().for_each(|item| item.encode(out));
            }
            Self::Object(members) => {
                out.put_u8(6);
                out.put_varint(members.len() as u64);
                for (key, value) in members {
                    out.put_bytes(key.as_bytes());
                    value.encode(out);
                }
            }
        }
    }

    /// Decodes the format of [`Json::encode`].
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::decode_at(from, 0)
    }

    fn decode_at(from: &mut Reader<'_>, depth: usize) -> Result<Self, DecodeError> {
        let malformed = || DecodeError::new("jsonb");
        if depth > DEPTH_MAX {
            return Err(malformed());
        }
        let string = |from: &mut Reader<'_>| {
            let bytes = from.bytes("jsonb")?.to_vec();
            String::from_utf8(bytes).map_err(|_| malformed())
        };
        Ok(match from.u8("jsonb")? {
            0 => Self::Null,
            1 => Self::Bool(false),
            2 => Self::Bool(true),
            3 => {
                let scale = u32::try_from(from.varint("jsonb")?).map_err(|_| malformed())?;
                Self::Number(Numeric::from_bytes(from.bytes("jsonb")?, scale))
            }
            4 => Self::String(string(from)?),
            5 => {
                let mut items = Vec::new();
                for _ in 0..from.varint("jsonb")? {
                    items.push(Self::decode_at(from, depth + 1)?);
                }
                Self::Array(items)
            }
            6 => {
                let mut members = Vec::new();
                for _ in 0..from.varint("jsonb")? {
                    members.push((string(from)?, Self::decode_at(from, depth + 1)?));
                }
                Self::Object(members)
            }
            _ => return Err(malformed()),
        })
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Null | Self::Bool(_) => 0,
                Self::Number(number) => number.heap_bytes(),
                Self::String(text) => text.len(),
                Self::Array(items) => items.iter().map(Self::size).sum(),
                Self::Object(members) => {
                    members.iter().map(|(key, value)| key.len() + 24 + value.size()).sum()
                }
            }
    }
}

/// Returns the position in a list of this length, from 0. A negative position counts from the end.
pub fn index(place: i64, len: usize) -> Option<usize> {
    let place = if place < 0 { place.checked_add(len as i64)? } else { place };
    usize::try_from(place).ok().filter(|at| *at < len)
}

/// Appends a string with quotes.
pub fn put_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::String(text) => {
                let mut quoted = String::with_capacity(text.len() + 2);
                put_string(text, &mut quoted);
                f.write_str(&quoted)
            }
            Self::Array(items) => {
                f.write_char('[')?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at > 0 { ", " } else { "" })?;
                }
                f.write_char(']')
            }
            Self::Object(members) => {
                f.write_char('{')?;
                for (at, (key, value)) in members.iter().enumerate() {
                    let mut quoted = String::with_capacity(key.len() + 2);
                    put_string(key, &mut quoted);
                    write!(f, "{}{quoted}: {value}", if at > 0 { ", " } else { "" })?;
                }
                f.write_char('}')
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        parse(text).unwrap()
    }

    #[test]
    fn objects_have_one_form() {
        let cases = [
            ("{\"b\":1,\"aa\":2,\"b\":3, \"c\":1.10}", "{\"b\": 3, \"c\": 1.10, \"aa\": 2}"),
            ("[1e2, -0, 1.0e-3,true ,null]", "[100, 0, 0.0010, true, null]"),
            ("\"\\u00e9\\ud83d\\ude00\\n\"", "\"é😀\\n\""),
        ];
        for (text, shown) in cases {
            assert_eq!(json(text).to_string(), shown, "{text}");
        }
    }

    #[test]
    fn values_survive_their_encoding() {
        for text in ["null", "[true, -1.50, \"x\", {}]", "{\"a\": {\"b\": []}}"] {
            let mut bytes = Vec::new();
            json(text).encode(&mut bytes);
            let read = Json::decode(&mut Reader::new(&bytes)).unwrap();
            assert_eq!(read.to_string(), text);
            for len in 0..bytes.len() {
                assert!(Json::decode(&mut Reader::new(&bytes[..len])).is_err(), "{text} at {len}");
            }
        }
    }

    #[test]
    fn the_order_is_that_of_kinds_then_of_sizes() {
        let ascending =
            ["[]", "null", "\"a\"", "1", "true", "[1]", "[[]]", "[1,1]", "{}", "{\"a\":1}"];
        for pair in ascending.windows(2) {
            assert!(json(pair[0]).compare(&json(pair[1])).is_lt(), "{pair:?}");
        }
        assert_eq!(json("[1.0]").compare(&json("[1.00]")), Ordering::Equal);
    }

    #[test]
    fn depth_has_a_limit() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(&nested(DEPTH_MAX)).unwrap().check_depth().is_ok());
        for depth in [DEPTH_MAX + 1, 1_000_000] {
            assert_eq!(parse(&nested(depth)).unwrap_err().code.as_str(), "54001");
            assert_eq!(check(&nested(depth)).unwrap_err().code.as_str(), "54001");
        }
    }
}
