//! Typed columns as bytes that sort like the columns.
