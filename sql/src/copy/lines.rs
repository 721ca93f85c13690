//! Splits streamed text and CSV input into lines.
//!
//! All lines end like the first one: with `\n`, `\r` or `\r\n`. In text, a backslash escapes the
//! next character, so an escaped newline does not end the line. In CSV, a quoted newline does not
//! end the line. A line `\.` ends the data, whatever follows it.

use crate::error::{SqlError, code};

/// Maximum length of a line. A longer row could not be written.
pub(super) const LINE_BYTES_MAX: usize = 32 << 20;

/// Line ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Newline,
    Return,
    Both,
}

/// Options that exist only in CSV.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoting {
    pub quote: u8,
    /// `None` if the escape character is the quote itself.
    pub escape: Option<u8>,
}

/// Unconsumed input, and the state of the scan for line ends.
#[derive(Debug)]
pub(super) struct Lines {
    quoting: Option<Quoting>,
    input: Vec<u8>,
    /// Start of the current line, and the position that the scan has reached.
    start: usize,
    at: usize,
    /// Start and end of the last line.
    line: (usize, usize),
    number: u64,
    is_begun: bool,
    is_quoted: bool,
    is_escaped: bool,
    ending: Option<Ending>,
    /// `is_whole`: the input is complete. `is_over`: all lines have been returned.
    is_whole: bool,
    is_over: bool,
    /// Bytes that the scan has to inspect.
    special: [bool; 256],
}

/// The meaning of a backslash.
enum Backslash {
    /// It starts the end-of-data marker.
    End,
    /// It is part of a line.
    Ordinary,
    /// More input is needed to decide.
    Unknown,
}

impl Lines {
    pub(super) fn new(quoting: Option<Quoting>) -> Self {
        let mut special = [false; 256];
        for byte in [b'\n', b'\r', b'\\'] {
            special[usize::from(byte)] = true;
        }
        if let Some(quoting) = quoting {
            special[usize::from(quoting.quote)] = true;
            special[usize::from(quoting.escape.unwrap_or(quoting.quote))] = true;
        }
        Self {
            quoting,
            input: Vec::new(),
            start: 0,
            at: 0,
            line: (0, 0),
            number: 0,
            is_begun: false,
            is_quoted: false,
            is_escaped: false,
            ending: None,
            is_whole: false,
            is_over: false,
            special,
        }
    }

    /// Appends input and discards the last line.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        self.input.drain(..self.start);
        self.at -= self.start;
        self.start = 0;
        self.line = (0, 0);
        self.input.extend_from_slice(bytes);
    }

    /// Marks the input as complete.
    pub(super) fn end(&mut self) {
        self.is_whole = true;
    }

    /// The last line, without its line ending.
    pub(super) fn line(&self) -> &[u8] {
        &self.input[self.line.0..self.line.1]
    }

    /// Number of the last line, from 1. If a row spans several lines, it is the number of the last
    /// of them.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Advances to the next line. Returns false if more input is needed or all lines have been
    /// returned.
    pub(super) fn advance(&mut self) -> Result<bool, SqlError> {
        while !self.is_over {
            if !self.is_begun {
                self.is_begun = true;
                self.number += 1;
                (self.is_quoted, self.is_escaped) = (false, false);
            }
            let rest = &self.input[self.at..];
            let plain = rest.iter().position(|&byte| self.special[usize::from(byte)]);
            let passed = plain.unwrap_or(rest.len());
            // Only the byte right after an escape is escaped.
            self.is_escaped &= passed == 0;
            self.at += passed;
            if self.at - self.start > LINE_BYTES_MAX {
                return Err(too_long());
            }
            let Some(&byte) = self.input.get(self.at) else { return Ok(self.finish()) };
            let is_first = self.at == self.start;
            let is_last = self.at + 1 == self.input.len() && !self.is_whole;
            let is_backslash = byte == b'\\' && (self.quoting.is_none() || is_first);
            if is_last && (byte == b'\r' || is_backslash) {
                return Ok(false);
            }
            if is_backslash {
                match self.backslash()? {
                    Backslash::Unknown => return Ok(false),
                    Backslash::Ordinary => {}
                    Backslash::End => {
                        self.is_over = true;
                        let is_there = self.at > self.start;
                        self.take(0);
                        return Ok(is_there);
                    }
                }
                if self.quoting.is_none() {
                    self.at = (self.at + 2).min(self.input.len());
                    continue;
                }
            }
            self.quote(byte);
            match byte {
                b'\r' | b'\n' if !self.is_quoted => {
                    let len = self.line_end(byte)?;
                    self.take(len);
                    return Ok(true);
                }
                _ => self.at += 1,
            }
        }
        Ok(false)
    }

    /// Handles the end of the buffered input: the rest is a line if the input is complete.
    fn finish(&mut self) -> bool {
        if !self.is_whole {
            return false;
        }
        self.is_over = true;
        let is_there = self.at > self.start;
        self.take(0);
        is_there
    }

    /// Ends the current line. Its line ending has `len` bytes.
    fn take(&mut self, len: usize) {
        self.line = (self.start, self.at);
        self.at += len;
        self.start = self.at;
        self.is_begun = false;
    }

    fn quote(&mut self, byte: u8) {
        let Some(quoting) = self.quoting else { return };
        // An escape counts only within quotes, and only if it is not escaped itself.
        if self.is_quoted && Some(byte) == quoting.escape {
            self.is_escaped = !self.is_escaped;
        }
        if byte == quoting.quote && !self.is_escaped {
            self.is_quoted = !self.is_quoted;
        }
        if Some(byte) != quoting.escape {
            self.is_escaped = false;
        }
        let counted = if self.ending == Some(Ending::Newline) { b'\n' } else { b'\r' };
        if self.is_quoted && byte == counted {
            self.number += 1;
        }
    }

    /// Returns the length of the line ending that begins with `byte`.
    fn line_end(&mut self, byte: u8) -> Result<usize, SqlError> {
        let is_both = byte == b'\r' && self.input.get(self.at + 1) == Some(&b'\n');
        let (ending, len) = match (byte, self.ending) {
            (b'\n', None | Some(Ending::Newline)) => (Ending::Newline, 1),
            (b'\r', None | Some(Ending::Both)) if is_both => (Ending::Both, 2),
            (b'\r', None | Some(Ending::Return)) => (Ending::Return, 1),
            _ => return Err(self.other_ending(byte)),
        };
        self.ending = Some(ending);
        Ok(len)
    }

    fn other_ending(&self, byte: u8) -> SqlError {
        let (name, letter) =
            if byte == b'\n' { ("newline", 'n') } else { ("carriage return", 'r') };
        let (kind, hint) = match self.quoting {
            None => ("literal", format!("Use \"\\{letter}\" to represent {name}.")),
            Some(_) => ("unquoted", format!("Use quoted CSV field to represent {name}.")),
        };
        bad_format(format!("{kind} {name} found in data")).with_hint(hint)
    }

    /// Classifies a backslash. In CSV it can only start the end-of-data marker.
    fn backslash(&self) -> Result<Backslash, SqlError> {
        let is_csv = self.quoting.is_some();
        let byte = |at: usize| match self.input.get(at) {
            Some(&byte) => Some(byte),
            // As in PostgreSQL, the input ends with a virtual zero byte.
            None => self.is_whole.then_some(0),
        };
        if byte(self.at + 1) != Some(b'.') {
            return Ok(Backslash::Ordinary);
        }
        let refused = |message: &str| match is_csv {
            true => Ok(Backslash::Ordinary),
            false => Err(bad_format(message)),
        };
        let corrupt = "end-of-copy marker corrupt";
        let unlike = "end-of-copy marker does not match previous newline style";
        let mut at = self.at + 2;
        if self.ending == Some(Ending::Both) {
            match byte(at) {
                None => return Ok(Backslash::Unknown),
                Some(b'\r') => at += 1,
                Some(b'\n') => return refused(unlike),
                Some(_) => return refused(corrupt),
            }
        }
        let Some(last) = byte(at) else { return Ok(Backslash::Unknown) };
        if !matches!(last, b'\r' | b'\n') {
            return refused(corrupt);
        }
        let expected = match self.ending {
            None => last,
            Some(Ending::Newline | Ending::Both) => b'\n',
            Some(Ending::Return) => b'\r',
        };
        if last == expected { Ok(Backslash::End) } else { Err(bad_format(unlike)) }
    }
}

/// The error for malformed COPY data.
pub(super) fn bad_format(message: impl Into<String>) -> SqlError {
    SqlError::new(code::BAD_COPY_FORMAT, message)
}

fn too_long() -> SqlError {
    let mebibytes = LINE_BYTES_MAX >> 20;
    let message = format!("a row of the input is longer than {mebibytes} MiB");
    SqlError::new(code::LIMIT_EXCEEDED, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CSV: Option<Quoting> = Some(Quoting { quote: b'"', escape: None });

    type Cut = Result<Vec<(u64, String)>, String>;

    /// Splits a text that arrives in chunks of `size` bytes.
    fn cut(quoting: Option<Quoting>, text: &[u8], size: usize) -> Cut {
        let mut lines = Lines::new(quoting);
        let mut found = Vec::new();
        let mut take = |lines: &mut Lines| {
            while lines.advance().map_err(|error| error.message)? {
                let line = String::from_utf8_lossy(lines.line()).into_owned();
                found.push((lines.number(), line));
            }
            Ok::<_, String>(())
        };
        for piece in text.chunks(size) {
            lines.push(piece);
            take(&mut lines)?;
        }
        lines.end();
        take(&mut lines)?;
        Ok(found)
    }

    fn lines(quoting: Option<Quoting>, text: &str) -> Cut {
        let whole = cut(quoting, text.as_bytes(), usize::MAX);
        for size in 1..4 {
            assert_eq!(cut(quoting, text.as_bytes(), size), whole, "{text:?} by {size}");
        }
        whole
    }

    fn of(numbered: &[(u64, &str)]) -> Cut {
        Ok(numbered.iter().map(|(number, line)| (*number, (*line).to_owned())).collect())
    }

    #[test]
    fn lines_end_as_the_first_one_did() {
        assert_eq!(lines(None, "a\nb\n"), of(&[(1, "a"), (2, "b")]));
        assert_eq!(lines(None, "a\r\nb"), of(&[(1, "a"), (2, "b")]));
        assert_eq!(lines(None, "a\rb\r"), of(&[(1, "a"), (2, "b")]));
        assert_eq!(lines(None, "\n\n"), of(&[(1, ""), (2, "")]));
        let message = |text| lines(None, text).unwrap_err();
        assert_eq!(message("a\nb\rc\n"), "literal carriage return found in data");
        assert_eq!(message("a\r\nb\nc"), "literal newline found in data");
        assert_eq!(message("a\r\nb\rc"), "literal carriage return found in data");
    }

    #[test]
    fn a_backslash_hides_a_newline_and_a_dot_after_it_ends_the_data() {
        assert_eq!(lines(None, "a\\\nb\nc"), of(&[(1, "a\\\nb"), (2, "c")]));
        assert_eq!(lines(None, "a\n\\.\nrest\r"), of(&[(1, "a")]));
        assert_eq!(lines(None, "a\nb\\.\nrest"), of(&[(1, "a"), (2, "b")]));
        assert_eq!(lines(None, "a\\"), of(&[(1, "a\\")]));
        assert_eq!(lines(None, "\\.x\n"), Err("end-of-copy marker corrupt".to_owned()));
        let unlike = "end-of-copy marker does not match previous newline style";
        assert_eq!(lines(None, "a\n\\.\r"), Err(unlike.to_owned()));
        assert_eq!(lines(CSV, "a\n\\.\nrest"), of(&[(1, "a")]));
        assert_eq!(lines(CSV, "\\.x\n \\.\n"), of(&[(1, "\\.x"), (2, " \\.")]));
    }

    #[test]
    fn quotes_hide_newlines_and_count_them() {
        let text = "x\n1,\"a\nb\"\n2,\"\"\"\n\"\n";
        let expected = [(1, "x"), (3, "1,\"a\nb\""), (5, "2,\"\"\"\n\"")];
        assert_eq!(lines(CSV, text), of(&expected));
        let escaping = Some(Quoting { quote: b'\'', escape: Some(b'!') });
        assert_eq!(lines(escaping, "'a!'\nb!!'\nc"), of(&[(1, "'a!'\nb!!'"), (2, "c")]));
        assert_eq!(lines(CSV, "a\rb\n"), Err("unquoted newline found in data".to_owned()));
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let mut lines = Lines::new(None);
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..100).find(|_| {
            lines.push(&piece);
            lines.advance().is_err()
        });
        assert_eq!(refused, Some(LINE_BYTES_MAX >> 20));
    }

    proptest! {
        #[test]
        fn where_the_input_is_cut_makes_no_difference(
            text in proptest::collection::vec(
                prop_oneof![
                    Just(b'\n'), Just(b'\r'), Just(b'\\'), Just(b'.'), Just(b'"'), Just(b'!'),
                    Just(b','), any::<u8>(),
                ],
                0..60,
            ),
            size in 1usize..5,
        ) {
            for quoting in [None, CSV, Some(Quoting { quote: b'"', escape: Some(b'!') })] {
                prop_assert_eq!(cut(quoting, &text, size), cut(quoting, &text, usize::MAX));
            }
        }
    }
}
