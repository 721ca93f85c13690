//! Parsing of JSON texts: to trees, to their parts, or only for validation.

use super::{DEPTH_MAX, Json, object, too_deep};
use crate::error::{SqlError, code};
use crate::types::check_parted;
use crate::types::numeric::Numeric;

/// Maximum number of bits of all numbers in a text. A few characters with an exponent can stand for
/// many digits.
const NUMBER_BITS_MAX: u64 = 1 << 30;

/// Parses a text to its normal form.
///
/// # Errors
/// If it is not JSON, contains a zero character, or is nested too deeply.
pub fn parse(text: &str) -> Result<Json, SqlError> {
    check_parted(text)?;
    let mut parser = Parser { text, at: 0, is_built: true, bits: 0 };
    let json = parser.value(0)?;
    parser.end()?;
    Ok(json)
}

/// Validates a text.
///
/// # Errors
/// If it is not JSON, or is nested too deeply.
pub fn check(text: &str) -> Result<(), SqlError> {
    let mut parser = Parser { text, at: 0, is_built: false, bits: 0 };
    parser.value(0)?;
    parser.end()
}

/// The parts of a text, as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts<'a> {
    /// Neither an array nor an object.
    Scalar(&'a str),
    /// The elements of an array.
    Array(Vec<&'a str>),
    /// The keys and values of an object.
    Object(Vec<(String, &'a str)>),
}

/// Returns the parts of a JSON text.
///
/// # Errors
/// If a key contains a character that a text cannot contain.
pub fn parts(text: &str) -> Result<Parts<'_>, SqlError> {
    check_parted(text)?;
    let mut parser = Parser { text, at: 0, is_built: false, bits: 0 };
    let span = |parser: &mut Parser<'_>| {
        parser.skip_blanks();
        let start = parser.at;
        parser.value(1)?;
        Ok::<_, SqlError>(start..parser.at)
    };
    parser.skip_blanks();
    let mut array = Vec::new();
    match parser.peek() {
        Some('[') => {
            parser.at += 1;
            while !parser.takes(']') {
                parser.takes(',');
                array.push(&text[span(&mut parser)?]);
            }
            Ok(Parts::Array(array))
        }
        Some('{') => {
            let mut members = Vec::new();
            parser.at += 1;
            while !parser.takes('}') {
                parser.takes(',');
                parser.skip_blanks();
                parser.is_built = true;
                let key = parser.string()?;
                parser.is_built = false;
                parser.takes(':');
                members.push((key, &text[span(&mut parser)?]));
            }
            Ok(Parts::Object(members))
        }
        _ => Ok(Parts::Scalar(text.trim_matches(is_blank))),
    }
}

/// Parses a text that is a JSON string. Returns `None` for any other value.
///
/// # Errors
/// If it contains a character that a text cannot contain.
pub fn string_of(text: &str) -> Result<Option<String>, SqlError> {
    let mut parser = Parser { text, at: 0, is_built: true, bits: 0 };
    parser.skip_blanks();
    if parser.peek() != Some('"') {
        return Ok(None);
    }
    parser.string().map(Some)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

fn malformed(detail: impl Into<String>) -> SqlError {
    SqlError::new(code::INVALID_TEXT, "invalid input syntax for type json").with_detail(detail)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Whether values are built. Otherwise they are only validated, and the result is null.
    is_built: bool,
    /// Number of bits of the numbers so far.
    bits: u64,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches(is_blank).len();
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.skip_blanks();
        let is_there = self.peek() == Some(wanted);
        if is_there {
            self.at += 1;
        }
        is_there
    }

    /// Returns the error of an unexpected token.
    fn unexpected(&mut self, expected: &str) -> SqlError {
        let Some(first) = self.peek() else {
            return malformed("The input string ended unexpectedly.");
        };
        let is_mark = matches!(first, '{' | '}' | '[' | ']' | ',' | ':');
        let start = self.at;
        if is_mark {
            return malformed(format!("Expected {expected}, but found \"{first}\"."));
        }
        self.is_built = false;
        // If the token itself is invalid, that is the error, whatever was expected.
        match self.scalar() {
            Ok(_) => {
                let found = &self.text[start..self.at];
                malformed(format!("Expected {expected}, but found \"{found}\"."))
            }
            Err(error) => error,
        }
    }

    fn end(&mut self) -> Result<(), SqlError> {
        self.skip_blanks();
        if self.rest().is_empty() {
            return Ok(());
        }
        Err(self.unexpected("end of input"))
    }

    #[recursive::recursive]
    fn value(&mut self, depth: usize) -> Result<Json, SqlError> {
        self.skip_blanks();
        match self.peek() {
            Some('[' | '{') if depth >= DEPTH_MAX => Err(too_deep()),
            Some('[') => self.array(depth),
            Some('{') => self.object(depth),
            Some('}' | ']' | ',' | ':') | None => Err(self.unexpected("JSON value")),
            _ => self.scalar(),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, SqlError> {
        self.at += 1;
        let mut items = Vec::new();
        if !self.takes(']') {
            loop {
                let item = self.value(depth + 1)?;
                if self.is_built {
                    items.push(item);
                }
                if self.takes(']') {
                    break;
                }
                if !self.takes(',') {
                    return Err(self.unexpected("\",\" or \"]\""));
                }
            }
        }
        Ok(Json::Array(items))
    }

    fn object(&mut self, depth: usize) -> Result<Json, SqlError> {
        self.at += 1;
        let mut members = Vec::new();
        let mut expected = "string or \"}\"";
        if self.takes('}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_blanks();
            if self.peek() != Some('"') {
                return Err(self.unexpected(expected));
            }
            expected = "string";
            let key = self.string()?;
            if !self.takes(':') {
                return Err(self.unexpected("\":\""));
            }
            let value = self.value(depth + 1)?;
            if self.is_built {
                members.push((key, value));
            }
            if self.takes('}') {
                return Ok(object(members));
            }
            if !self.takes(',') {
                return Err(self.unexpected("\",\" or \"}\""));
            }
        }
    }

    fn scalar(&mut self) -> Result<Json, SqlError> {
        if self.peek() == Some('"') {
            let string = self.string()?;
            return Ok(if self.is_built { Json::String(string) } else { Json::Null });
        }
        let rest = self.rest();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii();
        let is_number = rest.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        let is_part = |c: char| is_word(c) || is_number && matches!(c, '-' | '+' | '.');
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        // A character that begins no token is a token of its own.
        let end = end.max(rest.chars().next().map_or(0, char::len_utf8));
        let token = &rest[..end];
        let json = match token {
            "null" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            number if is_json_number(number) => match self.is_built {
                true => Json::Number(self.number(number)?),
                false => Json::Null,
            },
            wrong => return Err(malformed(format!("Token \"{wrong}\" is invalid."))),
        };
        self.at += end;
        Ok(json)
    }

    fn number(&mut self, text: &str) -> Result<Numeric, SqlError> {
        let number: Numeric = text.parse()?;
        self.bits += number.unscaled().bits();
        if self.bits > NUMBER_BITS_MAX {
            return Err(SqlError::new(
                code::LIMIT_EXCEEDED,
                "the numbers of a JSON text are too long",
            ));
        }
        Ok(number)
    }

    /// Parses a string that begins here. Returns an empty string if no values are built.
    fn string(&mut self) -> Result<String, SqlError> {
        let start = self.at;
        let mut out = String::new();
        let mut at = start + 1;
        loop {
            let Some(c) = self.text[at..].chars().next() else {
                return Err(malformed(format!("Token \"{}\" is invalid.", &self.text[start..])));
            };
            at += c.len_utf8();
            match c {
                '"' => {
                    self.at = at;
                    return Ok(out);
                }
                c if c < ' ' => {
                    let value = u32::from(c);
                    let detail = format!("Character with value 0x{value:02x} must be escaped.");
                    return Err(malformed(detail));
                }
                '\\' => {
                    let (c, length) = self.escape(&self.text[at..])?;
                    at += length;
                    if self.is_built {
                        out.push(c);
                    }
                }
                c if self.is_built => out.push(c),
                _ => {}
            }
        }
    }

    /// Returns the character that an escape sequence denotes, and the length of the sequence.
    fn escape(&self, rest: &str) -> Result<(char, usize), SqlError> {
        let Some(c) = rest.chars().next() else {
            return Err(malformed(format!("Token \"{}\" is invalid.", self.rest())));
        };
        let plain = match c {
            '"' | '\\' | '/' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => return self.unicode(rest),
            c => return Err(malformed(format!("Escape sequence \"\\{c}\" is invalid."))),
        };
        Ok((plain, 1))
    }

    fn unicode(&self, rest: &str) -> Result<(char, usize), SqlError> {
        let unit = |text: &str| {
            let digits = text.get(..4).filter(|d| d.bytes().all(|byte| byte.is_ascii_hexdigit()));
            digits
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .ok_or_else(|| malformed("\"\\u\" must be followed by four hexadecimal digits."))
        };
        let first = unit(&rest[1..])?;
        if !self.is_built {
            return Ok((' ', 5));
        }
        let no_low = || malformed("Unicode low surrogate must follow a high surrogate.");
        match first {
            0 => Err(SqlError::new(code::UNTRANSLATABLE, "unsupported Unicode escape sequence")
                .with_detail("\\u0000 cannot be converted to text.")),
            0xd800..=0xdbff => {
                let second = rest[5..].strip_prefix("\\u").ok_or_else(no_low)?;
                match unit(second)? {
                    low @ 0xdc00..=0xdfff => {
                        let point = 0x1_0000 + ((first & 0x3ff) << 10) + (low & 0x3ff);
                        char::from_u32(point).map(|c| (c, 11)).ok_or_else(no_low)
                    }
                    0xd800..=0xdbff => {
                        Err(malformed("Unicode high surrogate must not follow a high surrogate."))
                    }
                    _ => Err(no_low()),
                }
            }
            point => char::from_u32(point).map(|c| (c, 5)).ok_or_else(no_low),
        }
    }
}

/// Returns whether a text is a number in JSON's syntax.
pub(super) fn is_json_number(text: &str) -> bool {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let exponent = exponent.map(|part| part.strip_prefix(['+', '-']).unwrap_or(part));
    is_digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(is_digits)
        && exponent.is_none_or(is_digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_as_in_postgresql() {
        let cases = [
            ("", "The input string ended unexpectedly."),
            ("{a", "Token \"a\" is invalid."),
            ("{\"a\":1,}", "Expected string, but found \"}\"."),
            ("[1 2]", "Expected \",\" or \"]\", but found \"2\"."),
            ("{\"a\" 1}", "Expected \":\", but found \"1\"."),
            ("{1:2}", "Expected string or \"}\", but found \"1\"."),
            ("01", "Token \"01\" is invalid."),
            ("\"abc", "Token \"\"abc\" is invalid."),
            ("\"\\x\"", "Escape sequence \"\\x\" is invalid."),
            ("[1] []", "Expected end of input, but found \"[\"."),
            ("\"\\ud800\"", "Unicode low surrogate must follow a high surrogate."),
        ];
        for (text, detail) in cases {
            let error = parse(text).unwrap_err();
            assert_eq!(error.detail.as_deref(), Some(detail), "{text}");
        }
        assert!(check("\"\\ud800\\u0000\"").is_ok());
        assert_eq!(parse("\"\\u0000\"").unwrap_err().code.as_str(), "22P05");
    }

    #[test]
    fn parts_keep_their_text() {
        let text = " {\"a\" : [1, 2 ] , \"b\\n\": {\"c\":1.10} }";
        let Parts::Object(members) = parts(text).unwrap() else { panic!("an object") };
        assert_eq!(members, [("a".to_owned(), "[1, 2 ]"), ("b\n".to_owned(), "{\"c\":1.10}")]);
        assert_eq!(parts(" [ 1 ,\"]\" ]").unwrap(), Parts::Array(vec!["1", "\"]\""]));
        assert_eq!(parts(" 1 ").unwrap(), Parts::Scalar("1"));
    }
}
