//! Parses the input of COPY FROM into rows. The input may be in any format and in chunks of any
//! size.

use std::sync::Arc;

use super::fields::Fields;
use super::lines::{Lines, Quoting, bad_format};
use super::options::{Format, Header, Options};
use super::tuples::Tuples;
use crate::error::SqlError;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::types::{ColumnType, binary, text};

/// Maximum length of a line or a value in an error, in bytes.
const SHOWN_BYTES_MAX: usize = 100;

/// A column that is read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub name: String,
    pub ty: ColumnType,
    /// Whether the NULL string is an ordinary value (FORCE_NOT_NULL).
    pub is_never_null: bool,
    /// Whether a quoted NULL string is NULL, too (FORCE_NULL).
    pub is_null_quoted: bool,
}

/// Parser of rows.
#[derive(Debug)]
pub(crate) struct RowReader {
    table: String,
    options: Arc<Options>,
    targets: Arc<[Target]>,
    source: Source,
    fields: Fields,
    is_header_read: bool,
}

#[derive(Debug)]
enum Source {
    Lines(Box<Lines>),
    Tuples(Tuples),
}

impl RowReader {
    /// Creates a parser for rows with columns `targets` of a table.
    pub(crate) fn new(table: &str, options: Arc<Options>, targets: Arc<[Target]>) -> Self {
        let escape = Some(options.escape).filter(|&escape| escape != options.quote);
        let quoting = Quoting { quote: options.quote, escape };
        let source = match options.format {
            Format::Binary => Source::Tuples(Tuples::default()),
            Format::Csv => Source::Lines(Box::new(Lines::new(Some(quoting)))),
            Format::Text => Source::Lines(Box::new(Lines::new(None))),
        };
        let is_header_read = options.header == Header::None;
        let (table, fields) = (table.to_owned(), Fields::default());
        Self { table, options, targets, source, fields, is_header_read }
    }

    /// Appends input. All rows of the earlier input must have been read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match &mut self.source {
            Source::Lines(lines) => lines.push(bytes),
            Source::Tuples(tuples) => tuples.push(bytes),
        }
    }

    /// Marks the input as complete.
    pub(crate) fn end(&mut self) {
        match &mut self.source {
            Source::Lines(lines) => lines.end(),
            Source::Tuples(tuples) => tuples.end(),
        }
    }

    /// Number of the last line that was read.
    pub(crate) fn line_number(&self) -> u64 {
        match &self.source {
            Source::Lines(lines) => lines.number(),
            Source::Tuples(tuples) => tuples.number(),
        }
    }

    /// The last line that was read, truncated for errors. Empty for binary data.
    pub(crate) fn line(&self) -> &[u8] {
        match &self.source {
            Source::Lines(lines) => {
                let line = lines.line();
                // One extra byte shows that the line is longer.
                &line[..line.len().min(SHOWN_BYTES_MAX + 1)]
            }
            Source::Tuples(_) => &[],
        }
    }

    /// Returns the next row. `None` if more input is needed or all rows have been read.
    pub(crate) fn next(&mut self, zone: &Zone) -> Result<Option<Vec<Datum>>, SqlError> {
        if matches!(self.source, Source::Tuples(_)) {
            return self.next_tuple();
        }
        if !self.is_header_read {
            if !self.next_line()? {
                return Ok(None);
            }
            self.is_header_read = true;
            self.check_header().map_err(|error| self.on_line(error))?;
        }
        if !self.next_line()? {
            return Ok(None);
        }
        let is_empty = matches!(&self.source, Source::Lines(lines) if lines.line().is_empty());
        let len = if self.targets.is_empty() && is_empty { 0 } else { self.fields.len() };
        if len > self.targets.len() {
            return Err(self.on_line(bad_format("extra data after last expected column")));
        }
        let mut row = Vec::with_capacity(self.targets.len());
        for (at, target) in self.targets.iter().enumerate() {
            if at >= len {
                let message = format!("missing data for column \"{}\"", target.name);
                return Err(self.on_line(bad_format(message)));
            }
            let value = self.field(at, target);
            let datum = value.map_or(Ok(Datum::Null), |value| {
                let text = binary::check_text(value)?;
                let datum = text::parse(target.ty.base, text, zone)?;
                text::fit(target.ty, datum, false)
            });
            row.push(datum.map_err(|error| {
                let shown = match value {
                    Some(value) => format!("\"{}\"", shown(value)),
                    None => "null input".to_owned(),
                };
                self.in_context(error, &format!(", column {}: {shown}", target.name))
            })?);
        }
        Ok(Some(row))
    }

    fn field(&self, at: usize, target: &Target) -> Option<&[u8]> {
        let null = self.options.null.as_bytes();
        match self.fields.at(at) {
            None if target.is_never_null => Some(null),
            Some(value) if target.is_null_quoted && value == null => None,
            value => value,
        }
    }

    /// Reads the next line and splits it into fields. Returns false if there is no line.
    fn next_line(&mut self) -> Result<bool, SqlError> {
        let Source::Lines(lines) = &mut self.source else { return Ok(false) };
        let taken = lines.advance();
        let is_there = taken.and_then(|is_there| match is_there {
            true => binary::check_text(lines.line()).map(|_| true),
            false => Ok(false),
        });
        let number = lines.number();
        if !is_there.map_err(|error| in_context(error, &self.table, number, ""))? {
            return Ok(false);
        }
        let cut = self.fields.cut(lines.line(), &self.options);
        cut.map_err(|error| self.on_line(error))?;
        Ok(true)
    }

    /// Checks that the names in the header match the columns (HEADER MATCH).
    fn check_header(&self) -> Result<(), SqlError> {
        if self.options.header != Header::Match {
            return Ok(());
        }
        let (found, expected) = (self.fields.len(), self.targets.len());
        if found != expected {
            return Err(bad_format(format!(
                "wrong number of fields in header line: got {found}, expected {expected}"
            )));
        }
        for (at, target) in self.targets.iter().enumerate() {
            let got = match self.fields.at(at) {
                Some(name) if name == target.name.as_bytes() => continue,
                Some(name) => format!("got \"{}\"", String::from_utf8_lossy(name)),
                None => format!("got null value (\"{}\")", self.options.null),
            };
            return Err(bad_format(format!(
                "column name mismatch in header line field {}: {got}, expected \"{}\"",
                at + 1,
                target.name
            )));
        }
        Ok(())
    }

    fn next_tuple(&mut self) -> Result<Option<Vec<Datum>>, SqlError> {
        let Source::Tuples(tuples) = &mut self.source else { return Ok(None) };
        let found = tuples.advance(self.targets.len());
        let column = |at: usize| format!(", column {}", self.targets[at].name);
        match found {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(error) => {
                let at = tuples.bad_field().map(column).unwrap_or_default();
                let number = tuples.number();
                // Errors in the file header have no line number.
                return Err(match number {
                    0 => error,
                    _ => in_context(error, &self.table, number, &at),
                });
            }
        }
        let mut row = Vec::with_capacity(self.targets.len());
        for (at, target) in self.targets.iter().enumerate() {
            let datum = tuples.at(at).map_or(Ok(Datum::Null), |value| {
                let datum = binary::decode(target.ty.base, value)?;
                text::fit(target.ty, datum, false)
            });
            let number = tuples.number();
            let located = |error| in_context(error, &self.table, number, &column(at));
            row.push(datum.map_err(located)?);
        }
        Ok(Some(row))
    }

    /// Adds the last line to an error's context.
    fn on_line(&self, error: SqlError) -> SqlError {
        self.in_context(error, &on_line(self.line()))
    }

    fn in_context(&self, error: SqlError, what: &str) -> SqlError {
        in_context(error, &self.table, self.line_number(), what)
    }
}

/// Adds a line number of the input to an error's context.
pub(crate) fn in_context(mut error: SqlError, table: &str, number: u64, what: &str) -> SqlError {
    error.context = Some(format!("COPY {table}, line {number}{what}"));
    error
}

/// Formats a line for the context of an error.
pub(crate) fn on_line(line: &[u8]) -> String {
    format!(": \"{}\"", shown(line))
}

/// Truncates a client's data for display.
fn shown(bytes: &[u8]) -> String {
    if bytes.len() <= SHOWN_BYTES_MAX {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut end = SHOWN_BYTES_MAX;
    // Never split a character.
    while bytes[end] & 0xc0 == 0x80 && end > 0 {
        end -= 1;
    }
    format!("{}...", String::from_utf8_lossy(&bytes[..end]))
}
