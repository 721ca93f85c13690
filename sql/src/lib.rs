//! PostgreSQL statements become transactions.

mod authorization;
pub mod catalog;
mod conflict;
mod copy;
pub mod engine;
pub mod error;
mod exec;
mod expr;
mod keys;
pub mod memory;
mod plan;
mod relational;
mod rows;
pub mod scram;
mod sequence;
pub mod session;
mod statement;
mod syntax;
mod system;
pub mod types;

use std::sync::Arc;

use pangea_core::txn::Procedure;

pub use plan::OutputColumn;
use plan::cache::PlanCache;
pub use statement::STATEMENT;

/// What all sessions of a node share.
#[derive(Debug, Default)]
pub struct Shared {
    plans: PlanCache,
    blocks: sequence::Blocks,
}

/// The procedures that a node must know to run SQL.
pub fn procedures() -> Vec<Arc<dyn Procedure>> {
    vec![Arc::new(sequence::Reserve), Arc::new(statement::Statement::default())]
}
