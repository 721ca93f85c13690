//! PostgreSQL statements become transactions.

pub mod catalog;
mod conflict;
pub mod engine;
pub mod error;
mod exec;
mod expr;
mod keys;
pub mod memory;
mod plan;
mod rows;
pub mod session;
mod statement;
mod syntax;
pub mod types;

use std::sync::Arc;

use pangea_core::txn::Procedure;

pub use plan::OutputColumn;
pub use plan::cache::PlanCache;
pub use statement::STATEMENT;

/// The procedures that a node must know to run SQL.
pub fn procedures() -> Vec<Arc<dyn Procedure>> {
    vec![Arc::new(statement::Statement::default())]
}
