//! Formats rows as the output of COPY TO.

use std::sync::Arc;

use super::options::{Format, Header, Options};
use super::tuples::SIGNATURE;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::types::{binary, text};
use crate::vocabulary::column::OutputColumn;

/// A sequence of output messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// The concatenated messages.
    pub bytes: Vec<u8>,
    /// End offset of each message.
    pub ends: Vec<usize>,
}

impl Messages {
    fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }
}

/// Formatter of rows.
#[derive(Debug)]
pub(crate) struct RowWriter {
    options: Arc<Options>,
    columns: Vec<OutputColumn>,
    /// For each column, whether its values are always quoted.
    quoted: Vec<bool>,
    zone: Zone,
    /// False while the header of binary data has not been written.
    is_headed: bool,
    value: Vec<u8>,
}

impl RowWriter {
    pub(crate) fn new(
        options: Arc<Options>,
        columns: Vec<OutputColumn>,
        quoted: Vec<bool>,
        zone: Zone,
    ) -> Self {
        assert_eq!(columns.len(), quoted.len(), "every column is in quotes or is not");
        Self { options, columns, quoted, zone, is_headed: true, value: Vec::new() }
    }

    /// Starts the output: writes the column names if the statement has HEADER.
    pub(crate) fn begin(&mut self, out: &mut Messages) {
        if self.options.format == Format::Binary {
            self.is_headed = false;
        } else if self.options.header != Header::None {
            for at in 0..self.columns.len() {
                self.value.clear();
                self.value.extend_from_slice(self.columns[at].name.as_bytes());
                self.delimit(at, &mut out.bytes);
                self.put_text(false, &mut out.bytes);
            }
            out.bytes.push(b'\n');
            out.end();
        }
    }

    /// Writes a row.
    pub(crate) fn row(&mut self, row: &[Datum], out: &mut Messages) {
        self.head(out);
        if self.options.format == Format::Binary {
            out.bytes.extend((row.len() as i16).to_be_bytes());
        }
        for (at, datum) in row.iter().enumerate() {
            let base = self.columns[at].ty.base;
            if self.options.format == Format::Binary {
                let start = out.bytes.len();
                out.bytes.extend((-1i32).to_be_bytes());
                if !datum.is_null() {
                    binary::encode(base, datum, &mut out.bytes);
                    let len = (out.bytes.len() - start - 4) as i32;
                    out.bytes[start..start + 4].copy_from_slice(&len.to_be_bytes());
                }
                continue;
            }
            self.delimit(at, &mut out.bytes);
            if datum.is_null() {
                out.bytes.extend_from_slice(self.options.null.as_bytes());
                continue;
            }
            self.value.clear();
            match datum {
                Datum::Text(text) => self.value.extend_from_slice(text.as_bytes()),
                _ => self.value.extend(text::format(base, datum, &self.zone).into_bytes()),
            }
            self.put_text(self.quoted[at], &mut out.bytes);
        }
        if self.options.format != Format::Binary {
            out.bytes.push(b'\n');
        }
        out.end();
    }

    /// Writes the trailer of binary data.
    pub(crate) fn finish(&mut self, out: &mut Messages) {
        self.head(out);
        if self.options.format == Format::Binary {
            out.bytes.extend((-1i16).to_be_bytes());
            out.end();
        }
    }

    /// Writes the header of binary data. As in PostgreSQL, it shares a message with the first row
    /// or the trailer.
    fn head(&mut self, out: &mut Messages) {
        if !self.is_headed {
            out.bytes.extend_from_slice(SIGNATURE);
            out.bytes.extend([0; 8]);
            self.is_headed = true;
        }
    }

    fn delimit(&self, at: usize, out: &mut Vec<u8>) {
        if at > 0 {
            out.push(self.options.delimiter);
        }
    }

    /// Writes the current value as text or as CSV.
    fn put_text(&self, is_quoted: bool, out: &mut Vec<u8>) {
        match self.options.format {
            Format::Csv => self.put_csv(is_quoted, out),
            Format::Text | Format::Binary => self.put_escaped(out),
        }
    }

    fn put_escaped(&self, out: &mut Vec<u8>) {
        let delimiter = self.options.delimiter;
        for &byte in &self.value {
            let letter = match byte {
                8 => b'b',
                12 => b'f',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                11 => b'v',
                b'\\' => b'\\',
                _ if byte == delimiter => byte,
                _ => {
                    out.push(byte);
                    continue;
                }
            };
            out.extend([b'\\', letter]);
        }
    }

    fn put_csv(&self, is_quoted: bool, out: &mut Vec<u8>) {
        let Options { delimiter, quote, escape, .. } = *self.options;
        let is_special =
            |byte: &u8| *byte == delimiter || *byte == quote || matches!(*byte, b'\n' | b'\r');
        // Unquoted, it would be the end-of-data marker.
        let is_end = self.columns.len() == 1 && self.value == b"\\.";
        let is_quoted = is_quoted
            || is_end
            || self.value == self.options.null.as_bytes()
            || self.value.iter().any(is_special);
        if !is_quoted {
            out.extend_from_slice(&self.value);
            return;
        }
        out.push(quote);
        for &byte in &self.value {
            if byte == quote || byte == escape {
                out.push(escape);
            }
            out.push(byte);
        }
        out.push(quote);
    }
}
