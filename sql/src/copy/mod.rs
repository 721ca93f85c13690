//! COPY: bulk transfer of rows between a table and a client.
//!
//! ```text
//!   COPY FROM:  CopyData, in any chunks --> lines, tuples --> fields --> rows --> batches
//!   COPY TO:    a snapshot --> rows, in batches --> messages, one for each row
//! ```
//!
//! - `options`: those of the statement, with PostgreSQL's errors; its grammar is `syntax::copy`.
//! - `lines`, `fields`: text and CSV. `tuples`: binary.
//! - `reader`: parses a client's data into rows; errors name line, column and value.
//! - `row_writer`: formats rows for the client.
//! - `rows`: rows in transit to a table.
//!
//! The session drives the transfer: see `session::copy`.

mod fields;
mod lines;
pub(crate) mod options;
mod reader;
mod row_writer;
mod rows;
mod tuples;

pub(crate) use options::{Format, Named, Options};
pub(crate) use reader::{RowReader, Target, in_context, on_line};
pub use row_writer::Messages;
pub(crate) use row_writer::RowWriter;
pub(crate) use rows::{Rows, at_row, row_of};

#[cfg(test)]
mod tests;
