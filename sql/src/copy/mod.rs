//! COPY: rows between a table and a client, in bulk.
//!
//! ```text
//!   COPY FROM:  CopyData, in any pieces --> lines, tuples --> fields --> rows --> batches
//!   COPY TO:    a snapshot --> rows, some at a time --> messages, one a row
//! ```
//!
//! - `syntax`, `options`: the statement. Both syntaxes of PostgreSQL, and its errors.
//! - `lines`, `fields`: text and CSV. `tuples`: binary.
//! - `reader`: what a client sends becomes rows; errors name line, column and value.
//! - `row_writer`: rows become what a client is sent.
//! - `rows`: rows on their way into a table.
//!
//! What is done with them is the session's: see `session::copy`.

mod fields;
mod lines;
mod options;
mod reader;
mod row_writer;
mod rows;
mod syntax;
mod tuples;

pub(crate) use options::{Format, Named, Options};
pub(crate) use reader::{RowReader, Target, in_context, on_line};
pub use row_writer::Messages;
pub(crate) use row_writer::RowWriter;
pub(crate) use rows::{Rows, at_row, row_of};
pub(crate) use syntax::parse;

#[cfg(test)]
mod tests;
