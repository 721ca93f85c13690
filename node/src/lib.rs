//! Placeholder.

pub mod pgwire;
