//! Splits a line of text or CSV into its fields.

use super::lines::bad_format;
use super::options::{Format, Options};
use crate::error::SqlError;
use crate::types::binary::check_text;

/// The fields of a line, with escapes and quotes removed.
#[derive(Debug, Default)]
pub(super) struct Fields {
    bytes: Vec<u8>,
    /// Start and end of each field; `None` for NULL.
    places: Vec<Option<(usize, usize)>>,
}

impl Fields {
    /// The number of fields.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns a field; `None` for NULL.
    pub(super) fn at(&self, at: usize) -> Option<&[u8]> {
        self.places[at].map(|(start, end)| &self.bytes[start..end])
    }

    /// Splits a line, replacing the previous fields.
    pub(super) fn cut(&mut self, line: &[u8], options: &Options) -> Result<(), SqlError> {
        self.bytes.clear();
        self.places.clear();
        let mut rest = Some(line);
        while let Some(line) = rest {
            rest = match options.format {
                Format::Csv => self.cut_csv(line, options)?,
                Format::Text | Format::Binary => self.cut_text(line, options)?,
            };
        }
        Ok(())
    }

    fn add(&mut self, start: usize, is_null: bool) {
        self.places.push((!is_null).then_some((start, self.bytes.len())));
    }

    /// Parses the first field of a text line. Returns the rest of the line after the delimiter.
    fn cut_text<'a>(
        &mut self,
        line: &'a [u8],
        options: &Options,
    ) -> Result<Option<&'a [u8]>, SqlError> {
        let start = self.bytes.len();
        let is_end = |byte: &u8| *byte == options.delimiter || *byte == b'\\';
        let mut at = 0;
        let mut must_check = false;
        let rest = loop {
            let plain = line[at..].iter().position(is_end).unwrap_or(line.len() - at);
            self.bytes.extend_from_slice(&line[at..at + plain]);
            at += plain;
            match line.get(at) {
                None => break None,
                Some(b'\\') => {
                    let Some((byte, len)) = escaped(&line[at + 1..]) else {
                        at += 1;
                        break None;
                    };
                    must_check |= len > 1 && (byte == 0 || byte >= 0x80);
                    must_check |= len == 1 && byte == 0;
                    self.bytes.push(byte);
                    at += 1 + len;
                }
                Some(_) => break Some(&line[at + 1..]),
            }
        };
        let is_null = line[..at] == *options.null.as_bytes();
        if must_check && !is_null {
            check_text(&self.bytes[start..])?;
        }
        self.add(start, is_null);
        Ok(rest)
    }

    /// Parses the first field of a CSV line. Returns the rest of the line after the delimiter.
    fn cut_csv<'a>(
        &mut self,
        line: &'a [u8],
        options: &Options,
    ) -> Result<Option<&'a [u8]>, SqlError> {
        let start = self.bytes.len();
        let (mut at, mut is_quoted, mut was_quoted) = (0, false, false);
        let rest = loop {
            let Some(&byte) = line.get(at) else {
                if is_quoted {
                    return Err(bad_format("unterminated CSV quoted field"));
                }
                break None;
            };
            at += 1;
            if is_quoted {
                let next = line.get(at).copied();
                let is_escape = byte == options.escape
                    && next.is_some_and(|next| next == options.escape || next == options.quote);
                if is_escape {
                    self.bytes.extend(next);
                    at += 1;
                } else if byte == options.quote {
                    is_quoted = false;
                } else {
                    self.bytes.push(byte);
                }
            } else if byte == options.delimiter {
                break Some(&line[at..]);
            } else if byte == options.quote {
                (is_quoted, was_quoted) = (true, true);
            } else {
                self.bytes.push(byte);
            }
        };
        let is_null = !was_quoted && self.bytes[start..] == *options.null.as_bytes();
        self.add(start, is_null);
        Ok(rest)
    }
}

/// Decodes the escape sequence after a backslash. Returns the byte and the length of the sequence,
/// or `None` at the end of the line.
fn escaped(rest: &[u8]) -> Option<(u8, usize)> {
    let &first = rest.first()?;
    let digits = |from: usize, radix: u32, most: usize| {
        let value = |&byte: &u8| char::from(byte).to_digit(radix);
        let found = rest[from..].iter().take(most).map_while(value);
        found.fold((0u32, 0usize), |(all, count), digit| (all * radix + digit, count + 1))
    };
    Some(match first {
        b'0'..=b'7' => {
            let (value, count) = digits(0, 8, 3);
            // Truncated to a byte, as in PostgreSQL.
            (value as u8, count)
        }
        b'x' => match digits(1, 16, 2) {
            (_, 0) => (b'x', 1),
            (value, count) => (value as u8, count + 1),
        },
        b'b' => (8, 1),
        b'f' => (12, 1),
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'v' => (11, 1),
        other => (other, 1),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::*;

    fn fields(line: &str, with: &str) -> Result<Vec<Option<String>>, String> {
        let mut fields = Fields::default();
        fields.cut(line.as_bytes(), &options(with)).map_err(|error| error.message)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((0..fields.len()).map(|at| fields.at(at).map(text)).collect())
    }

    fn of(fields: &[Option<&str>]) -> Result<Vec<Option<String>>, String> {
        Ok(fields.iter().map(|field| field.map(str::to_owned)).collect())
    }

    #[test]
    fn text_has_escapes() {
        assert_eq!(fields("", ""), of(&[Some("")]));
        assert_eq!(fields("a\t\\N\t", ""), of(&[Some("a"), None, Some("")]));
        let escaped = "a\\tb\\\tc\\x41\\101\\\\\\N\\q\\x";
        assert_eq!(fields(escaped, ""), of(&[Some("a\tb\tcAA\\NqX".replace('X', "x").as_str())]));
        assert_eq!(fields("\\xc3\\xa9\\", ""), of(&[Some("é")]));
        let invalid = |bytes| format!("invalid byte sequence for encoding \"UTF8\": {bytes}");
        assert_eq!(fields("\\377", ""), Err(invalid("0xff")));
        assert_eq!(fields("a\\0", ""), Err(invalid("0x00")));
        assert_eq!(
            fields("a|nil|nil2", "delimiter '|', null 'nil'"),
            of(&[Some("a"), None, Some("nil2")])
        );
    }

    #[test]
    fn csv_has_quotes() {
        let csv = "format csv";
        let line = "a,\"b,\"\"c\",,\"\",d\"e f\"g";
        let expected = [Some("a"), Some("b,\"c"), None, Some(""), Some("de fg")];
        assert_eq!(fields(line, csv), of(&expected));
        assert_eq!(fields("\"a", csv), Err("unterminated CSV quoted field".to_owned()));
        let escaping = "format csv, quote '''', escape '!', null 'x'";
        assert_eq!(fields("'a!'!!b!c',x,'x'", escaping), of(&[Some("a'!b!c"), None, Some("x")]));
    }
}
