//! PostgreSQL statements become transactions.

pub mod engine;
