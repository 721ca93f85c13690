//! More string functions: quoting, encodings, `format`, characters.

use md5::{Digest, Md5};

use super::functions::{Function, integer, text};
use super::signatures::{Signature, of};
use crate::error::{SqlError, code};
use crate::syntax;
use crate::types::SqlType;
use crate::types::SqlType::{Bytea, Int4, Int8, Text};
use crate::types::datum::Datum;
use crate::types::text::{decode_hex, encode_hex};

/// A function over strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordFunction {
    /// `pg_size_pretty`
    PrettySize,
    Capitals,
    Translate,
    Md5,
    Overlay,
    BitLength,
    QuoteIdent,
    QuoteLiteral,
    QuoteNullable,
    Encode,
    Decode,
    Format,
}

use WordFunction as W;

const fn word(
    name: &'static str,
    args: &'static [SqlType],
    result: SqlType,
    function: WordFunction,
) -> Signature {
    of(name, args, result, Function::Word(function))
}

pub(super) const SIGNATURES: &[Signature] = &[
    word("pg_size_pretty", &[Int8], Text, W::PrettySize),
    word("initcap", &[Text], Text, W::Capitals),
    word("translate", &[Text, Text, Text], Text, W::Translate),
    word("md5", &[Text], Text, W::Md5),
    word("md5", &[Bytea], Text, W::Md5),
    word("overlay", &[Text, Text, Int4], Text, W::Overlay),
    word("overlay", &[Text, Text, Int4, Int4], Text, W::Overlay),
    word("bit_length", &[Text], Int4, W::BitLength),
    word("bit_length", &[Bytea], Int4, W::BitLength),
    word("quote_ident", &[Text], Text, W::QuoteIdent),
    word("quote_literal", &[Text], Text, W::QuoteLiteral),
    word("quote_nullable", &[Text], Text, W::QuoteNullable),
    word("encode", &[Bytea, Text], Text, W::Encode),
    word("decode", &[Text, Text], Bytea, W::Decode),
    word("format", &[Text], Text, W::Format),
    Signature { is_variadic: true, ..word("format", &[Text, Text], Text, W::Format) },
];

/// Whether the function handles NULL arguments itself.
pub(super) fn takes_nulls(function: WordFunction) -> bool {
    matches!(function, W::QuoteNullable | W::Format)
}

/// Formats a number of bytes in the largest unit in which it is at least ten.
fn pretty_size(bytes: i64) -> String {
    let units = ["kB", "MB", "GB", "TB", "PB"];
    if bytes.unsigned_abs() < 10 * 1_024 {
        return format!("{bytes} bytes");
    }
    // Half units are counted until the last step, which rounds.
    let mut halves = bytes / 512;
    let mut unit = 0;
    while unit + 1 < units.len() && halves.unsigned_abs() >= 20 * 1_024 - 1 {
        halves /= 1_024;
        unit += 1;
    }
    format!("{} {}", (halves + halves.signum()) / 2, units[unit])
}

pub(super) fn call(function: WordFunction, args: &[Datum]) -> Result<Datum, SqlError> {
    let string = |at: usize| text(&args[at]);
    let bytes = || match &args[0] {
        Datum::Bytea(bytes) => bytes.as_slice(),
        other => text(other).as_bytes(),
    };
    let result = match function {
        W::PrettySize => pretty_size(integer(&args[0])),
        W::Capitals => capitals(string(0)),
        W::Translate => translate(string(0), string(1), string(2)),
        W::Md5 => encode_hex(&Md5::digest(bytes())),
        W::Overlay => overlay(string(0), string(1), integer(&args[2]), args.get(3).map(integer))?,
        W::BitLength => return Ok(Datum::Int(bytes().len() as i64 * 8)),
        W::QuoteIdent => syntax::quoted_ident(string(0)),
        W::QuoteNullable if args[0].is_null() => "NULL".to_owned(),
        W::QuoteLiteral | W::QuoteNullable => quote_literal(string(0)),
        W::Encode => encode(bytes(), string(1))?,
        W::Decode => return decode(string(0), string(1)).map(Datum::Bytea),
        W::Format if args[0].is_null() => return Ok(Datum::Null),
        W::Format => format(string(0), &args[1..])?,
    };
    Ok(Datum::Text(result))
}

/// `initcap`: the first letter of each word in upper case, the others in lower case.
fn capitals(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_inside = false;
    for c in text.chars() {
        if is_inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        is_inside = c.is_alphanumeric();
    }
    out
}

fn translate(text: &str, from: &str, to: &str) -> String {
    let to: Vec<char> = to.chars().collect();
    let change = |c: char| match from.chars().position(|known| known == c) {
        Some(at) => to.get(at).copied(),
        None => Some(c),
    };
    text.chars().filter_map(change).collect()
}

fn overlay(text: &str, with: &str, start: i64, length: Option<i64>) -> Result<String, SqlError> {
    if start <= 0 {
        let message = "negative substring length not allowed";
        return Err(SqlError::new(code::SUBSTRING_LENGTH, message));
    }
    let length = length.unwrap_or_else(|| with.chars().count() as i64);
    let before: String = text.chars().take(start as usize - 1).collect();
    let skipped = (start + length - 1).max(0) as usize;
    let after: String = text.chars().skip(skipped).collect();
    super::strings::bounded(before.len() + with.len() + after.len())?;
    Ok(before + with + &after)
}

fn quote_literal(text: &str) -> String {
    let prefix = if text.contains('\\') { "E" } else { "" };
    format!("{prefix}'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// The line length at which PostgreSQL breaks base64, in characters.
const BASE64_LINE: usize = 76;

fn unknown_encoding(name: &str) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER, format!("unrecognized encoding: \"{name}\""))
}

fn encode(bytes: &[u8], name: &str) -> Result<String, SqlError> {
    match name.to_ascii_lowercase().as_str() {
        "hex" => Ok(encode_hex(bytes)),
        "base64" => Ok(encode_base64(bytes)),
        "escape" => {
            let mut out = String::with_capacity(bytes.len());
            for &byte in bytes {
                match byte {
                    b'\\' => out.push_str("\\\\"),
                    0 | 0x80.. => out.push_str(&format!("\\{byte:03o}")),
                    plain => out.push(char::from(plain)),
                }
            }
            Ok(out)
        }
        _ => Err(unknown_encoding(name)),
    }
}

fn encode_base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() / 3 * 4 + 4);
    let mut column = 0;
    for group in bytes.chunks(3) {
        if column == BASE64_LINE {
            out.push('\n');
            column = 0;
        }
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = BASE64[(bits >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
        column += 4;
    }
    out
}

fn decode(text: &str, name: &str) -> Result<Vec<u8>, SqlError> {
    match name.to_ascii_lowercase().as_str() {
        "hex" => decode_hex(text),
        "base64" => decode_base64(text),
        "escape" => crate::types::text::parse_escaped(text),
        _ => Err(unknown_encoding(name)),
    }
}

fn decode_base64(text: &str) -> Result<Vec<u8>, SqlError> {
    let malformed = |message: String| SqlError::new(code::INVALID_PARAMETER, message);
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count, mut padding) = (0u32, 0, 0);
    for c in text.chars().filter(|c| !matches!(c, ' ' | '\t' | '\n' | '\r')) {
        let digit = match c {
            '=' if padding == 0 && count < 2 => {
                return Err(malformed(
                    "unexpected \"=\" while decoding base64 sequence".to_owned(),
                ));
            }
            '=' => {
                padding += 1;
                0
            }
            c => BASE64
                .iter()
                .position(|known| char::from(*known) == c)
                .filter(|_| padding == 0)
                .ok_or_else(|| {
                    malformed(format!(
                        "invalid symbol \"{c}\" found while decoding base64 sequence"
                    ))
                })? as u32,
        };
        bits = bits << 6 | digit;
        count += 1;
        if count == 4 {
            let bytes = bits.to_be_bytes();
            out.extend(&bytes[1..4 - padding.min(2)]);
            (bits, count) = (0, 0);
        }
    }
    if count != 0 {
        return Err(malformed("invalid base64 end sequence".to_owned())
            .with_hint("Input data is missing padding, is truncated, or is otherwise corrupted."));
    }
    Ok(out)
}

/// Reads the digits at the start of a text; `None` if there is no digit.
fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<i64>, SqlError> {
    let mut value: Option<i64> = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        let next = value.unwrap_or(0) * 10 + i64::from(digit);
        if next > i64::from(i32::MAX) {
            let message = "number is out of range";
            return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message));
        }
        value = Some(next);
    }
    Ok(value)
}

fn format(pattern: &str, args: &[Datum]) -> Result<String, SqlError> {
    let wrong = |message: String| SqlError::new(code::INVALID_PARAMETER, message);
    let unterminated = || {
        wrong("unterminated format() type specifier".to_owned())
            .with_hint("For a single \"%\" use \"%%\".")
    };
    let mut out = String::new();
    let mut next = 0;
    let mut take = |at: Option<usize>| {
        let at = at.unwrap_or(next);
        next = at + 1;
        args.get(at).ok_or_else(|| wrong("too few arguments for format()".to_owned()))
    };
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            out.push('%');
            continue;
        }
        let (mut position, mut width, mut is_left) = (None, 0, false);
        match (digits(&mut chars)?, chars.peek()) {
            (Some(0), Some('$')) => {
                let message = "format specifies argument 0, but arguments are numbered from 1";
                return Err(wrong(message.to_owned()));
            }
            (Some(number), Some('$')) => {
                chars.next();
                position = Some(number as usize - 1);
            }
            (Some(number), _) => width = number,
            (None, _) => {}
        }
        while chars.peek() == Some(&'-') {
            chars.next();
            is_left = true;
        }
        if chars.peek() == Some(&'*') {
            chars.next();
            let asked = take(None)?;
            width = if asked.is_null() { 0 } else { parse_width(text(asked))? };
            (is_left, width) = (is_left || width < 0, width.abs());
        } else if let Some(number) = digits(&mut chars)? {
            width = number;
        }
        let kind = chars.next().ok_or_else(unterminated)?;
        if !matches!(kind, 's' | 'I' | 'L') {
            let message = format!("unrecognized format() type specifier \"{kind}\"");
            return Err(wrong(message).with_hint("For a single \"%\" use \"%%\"."));
        }
        let shown = converted(kind, take(position)?)?;
        let missing = (width as usize).saturating_sub(shown.chars().count());
        super::strings::bounded(out.len() + shown.len() + missing)?;
        let blanks = std::iter::repeat_n(' ', missing);
        if is_left {
            out.push_str(&shown);
            out.extend(blanks);
        } else {
            out.extend(blanks);
            out.push_str(&shown);
        }
    }
    Ok(out)
}

fn parse_width(text: &str) -> Result<i64, SqlError> {
    let parsed = text.trim().parse::<i32>().map(i64::from);
    parsed.map_err(|_| {
        let message = format!("invalid input syntax for type integer: \"{text}\"");
        SqlError::new(code::INVALID_TEXT, message)
    })
}

fn converted(kind: char, value: &Datum) -> Result<String, SqlError> {
    Ok(match (kind, value) {
        ('I', Datum::Null) => {
            let message = "null values cannot be formatted as an SQL identifier";
            return Err(SqlError::new(code::NULL_NOT_ALLOWED, message));
        }
        ('L', Datum::Null) => "NULL".to_owned(),
        (_, Datum::Null) => String::new(),
        ('I', value) => syntax::quoted_ident(text(value)),
        ('L', value) => quote_literal(text(value)),
        (_, value) => text(value).to_owned(),
    })
}
