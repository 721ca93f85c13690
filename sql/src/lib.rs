//! PostgreSQL statements become transactions.

pub mod engine;
pub mod error;
pub mod types;
