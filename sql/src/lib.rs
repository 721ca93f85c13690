//! PostgreSQL statements become transactions.

pub mod catalog;
pub mod engine;
pub mod error;
mod exec;
mod expr;
mod keys;
mod rows;
mod syntax;
pub mod types;
