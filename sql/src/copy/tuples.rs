//! Splits streamed binary input into tuples.
//!
//! ```text
//!   PGCOPY\n\xff\r\n\0 | flags i32 | length of the extension i32 | extension
//!   for each row: number of fields i16 | for each field: length i32, -1 for NULL | bytes
//!   -1 i16
//! ```

use super::lines::{LINE_BYTES_MAX, bad_format};
use crate::error::{SqlError, code};

/// Signature at the start of the data.
pub(super) const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
/// Flag of old versions: rows have object ids.
const HAS_OIDS: u32 = 1 << 16;
/// Critical flags: an unknown one is an error.
const CRITICAL: u32 = 0xffff << 16;
/// Size of the signature, the flags and the length of the extension, in bytes.
const HEADER_BYTES: usize = SIGNATURE.len() + 8;

/// Start and end of a value in the input; `None` for NULL.
pub(super) type Value = Option<(usize, usize)>;

/// Unconsumed input, and the last tuple.
#[derive(Debug, Default)]
pub(super) struct Tuples {
    input: Vec<u8>,
    start: usize,
    /// Remaining bytes of the header's extension; `None` until the header has been read.
    extension: Option<usize>,
    number: u64,
    values: Vec<Value>,
    bad_field: Option<usize>,
    is_whole: bool,
    is_ended: bool,
}

impl Tuples {
    /// Appends input and discards the last tuple.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.input.drain(..self.start);
        self.start = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Marks the input as complete.
    pub(super) fn end(&mut self) {
        self.is_whole = true;
    }

    /// Number of the last tuple, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns a value of the last tuple; `None` for NULL.
    pub(super) fn at(&self, at: usize) -> Option<&[u8]> {
        self.values[at].map(|(start, end)| &self.input[start..end])
    }

    /// Position of the field that caused the error, if any.
    pub(super) fn bad_field(&self) -> Option<usize> {
        self.bad_field
    }

    /// Advances to the next tuple. Returns false if more input is needed or all tuples have been
    /// returned.
    pub(super) fn advance(&mut self, width: usize) -> Result<bool, SqlError> {
        if !self.read_header()? {
            return Ok(false);
        }
        let rest = &self.input[self.start..];
        if self.is_ended {
            let error = "received copy data after EOF marker";
            return if rest.is_empty() { Ok(false) } else { Err(bad_format(error)) };
        }
        let Some(count) = rest.first_chunk::<2>().map(|bytes| i16::from_be_bytes(*bytes)) else {
            if self.is_whole {
                self.start = self.input.len();
            }
            return Ok(false);
        };
        if count == -1 {
            self.is_ended = true;
            self.number += 1;
            self.start += 2;
            return self.advance(width);
        }
        if usize::try_from(count) != Ok(width) {
            self.number += 1;
            let message = format!("row field count is {count}, expected {width}");
            return Err(bad_format(message));
        }
        match self.read_values(width) {
            Ok(end) => {
                self.number += 1;
                self.start = end;
                Ok(true)
            }
            Err(None) if !self.is_whole => Ok(false),
            Err(error) => {
                self.number += 1;
                self.bad_field = Some(self.values.len());
                Err(error.unwrap_or_else(ends_early))
            }
        }
    }

    /// Reads the header and skips its extension. Returns whether both are complete.
    fn read_header(&mut self) -> Result<bool, SqlError> {
        if self.extension.is_none() {
            let input = &self.input[self.start..];
            let signature = input.len().min(SIGNATURE.len());
            let is_short = input.len() < HEADER_BYTES;
            if input[..signature] != SIGNATURE[..signature]
                || (self.is_whole && signature < SIGNATURE.len())
            {
                return Err(bad_format("COPY file signature not recognized"));
            }
            if is_short {
                return match (self.is_whole, input.len()) {
                    (false, _) => Ok(false),
                    (true, 0..15) => Err(bad_format("invalid COPY file header (missing flags)")),
                    (true, _) => Err(bad_format("invalid COPY file header (missing length)")),
                };
            }
            let number = |at: usize| {
                let bytes = input[at..].first_chunk::<4>().expect("the header is whole");
                u32::from_be_bytes(*bytes)
            };
            let (flags, len) = (number(SIGNATURE.len()), number(SIGNATURE.len() + 4));
            if flags & HAS_OIDS != 0 {
                return Err(bad_format("invalid COPY file header (WITH OIDS)"));
            }
            if flags & CRITICAL != 0 {
                return Err(bad_format("unrecognized critical flags in COPY file header"));
            }
            if i32::try_from(len).is_err() {
                return Err(bad_format("invalid COPY file header (missing length)"));
            }
            self.start += HEADER_BYTES;
            self.extension = Some(len as usize);
        }
        let left = self.extension.unwrap_or(0);
        let passed = left.min(self.input.len() - self.start);
        self.start += passed;
        self.extension = Some(left - passed);
        if left > passed && self.is_whole {
            return Err(bad_format("invalid COPY file header (wrong length)"));
        }
        Ok(left == passed)
    }

    /// Locates the values of a tuple and returns the tuple's end. `Err(None)` means that more input
    /// is needed.
    fn read_values(&mut self, width: usize) -> Result<usize, Option<SqlError>> {
        self.values.clear();
        let mut at = self.start + 2;
        for _ in 0..width {
            let bytes = self.input.get(at..).and_then(|rest| rest.first_chunk::<4>());
            let len = i32::from_be_bytes(*bytes.ok_or(None)?);
            at += 4;
            if len == -1 {
                self.values.push(None);
                continue;
            }
            let len = usize::try_from(len).map_err(|_| Some(bad_format("invalid field size")))?;
            if at - self.start + len > LINE_BYTES_MAX {
                let mebibytes = LINE_BYTES_MAX >> 20;
                let message = format!("a row of the input is longer than {mebibytes} MiB");
                return Err(Some(SqlError::new(code::LIMIT_EXCEEDED, message)));
            }
            if at + len > self.input.len() {
                return Err(None);
            }
            self.values.push(Some((at, at + len)));
            at += len;
        }
        Ok(at)
    }
}

fn ends_early() -> SqlError {
    bad_format("unexpected EOF in COPY data")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Cut = Result<Vec<Vec<Option<Vec<u8>>>>, String>;

    fn cut(bytes: &[u8], width: usize, size: usize) -> Cut {
        let mut tuples = Tuples::default();
        let mut found = Vec::new();
        let mut take = |tuples: &mut Tuples| {
            while tuples.advance(width).map_err(|error| error.message)? {
                let value = |at| tuples.at(at).map(<[u8]>::to_vec);
                found.push((0..width).map(value).collect());
            }
            Ok::<_, String>(())
        };
        for piece in bytes.chunks(size) {
            tuples.push(piece);
            take(&mut tuples)?;
        }
        tuples.end();
        take(&mut tuples)?;
        Ok(found)
    }

    fn file(extension: &[u8], tuples: &[u8]) -> Vec<u8> {
        let len = (extension.len() as u32).to_be_bytes();
        [&SIGNATURE[..], &[0; 4], &len, extension, tuples].concat()
    }

    const TUPLES: &[u8] = b"\0\x02\0\0\0\x01a\xff\xff\xff\xff\0\x02\0\0\0\0\0\0\0\x02bc\xff\xff";

    #[test]
    fn tuples_are_found_wherever_the_input_is_cut() {
        let a = |text: &[u8]| Some(text.to_vec());
        let expected = vec![vec![a(b"a"), None], vec![a(b""), a(b"bc")]];
        for extension in [&b""[..], b"xyz"] {
            let bytes = file(extension, TUPLES);
            for size in 1..40 {
                assert_eq!(cut(&bytes, 2, size), Ok(expected.clone()), "{size}");
            }
        }
        assert_eq!(cut(&file(b"", b""), 2, 9), Ok(Vec::new()), "the trailer may be missing");
    }

    #[test]
    fn what_is_no_tuple_is_refused() {
        let cases: [(&[u8], &str); 7] = [
            (b"\0\x01", "row field count is 1, expected 2"),
            (b"\x80\0", "row field count is -32768, expected 2"),
            (b"\0\x02\0\0\0\x05a", "unexpected EOF in COPY data"),
            (b"\0\x02\0\0", "unexpected EOF in COPY data"),
            (b"\0\x02\xff\xff\xff\xfe", "invalid field size"),
            (b"\0\x02\x7f\xff\xff\xff", "a row of the input is longer than 32 MiB"),
            (b"\xff\xffx", "received copy data after EOF marker"),
        ];
        for (tuples, message) in cases {
            for size in [1, 2, 3, 100] {
                assert_eq!(cut(&file(b"", tuples), 2, size), Err(message.to_owned()), "{size}");
            }
        }
        let header = |bytes: &[u8]| cut(bytes, 2, 3).unwrap_err();
        assert_eq!(header(b"1\t2\n"), "COPY file signature not recognized");
        assert_eq!(header(b"PGCO"), "COPY file signature not recognized");
        let missing = "invalid COPY file header (missing flags)";
        assert_eq!(header(&file(b"", b"")[..13]), missing);
        let mut oids = file(b"", b"");
        oids[12] = 1;
        assert_eq!(header(&oids), "invalid COPY file header (WITH OIDS)");
        oids[12] = 2;
        assert_eq!(header(&oids), "unrecognized critical flags in COPY file header");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_tuples_or_an_error(
            tuples: Vec<u8>,
            width in 0usize..4,
            size in 1usize..20,
        ) {
            let bytes = file(b"", &tuples);
            prop_assert_eq!(cut(&bytes, width, size), cut(&bytes, width, usize::MAX));
            let _ = cut(&tuples, width, size);
        }
    }
}
